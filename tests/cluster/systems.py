"""Random systems of flows on shared links. Figures are often round, so that ties and coincidences come up."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from sim.cluster.fairshare import Flow

LINKS = "abcde"

amounts = st.sampled_from([1.0, 2.0, 3.0, 6.0, 10.0]) | st.floats(0.1, 100)
counts = st.sampled_from([1.0, 1.0, 2.0, 3.0])
caps = st.just(math.inf) | amounts
capacities = st.fixed_dictionaries({link: amounts for link in LINKS})


def usages(least: int = 1) -> st.SearchStrategy[dict[str, float]]:
    """Whole crossings of at least *least* of LINKS."""
    return st.dictionaries(st.sampled_from(LINKS), counts, min_size=least, max_size=4)


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    """A flow that something holds back: a link, its own cap, or either."""
    usage = draw(usages(least=0))
    return Flow(usage, draw(counts | amounts), draw(caps if usage else amounts))


systems = st.tuples(st.lists(flows(), min_size=1, max_size=8), capacities)
