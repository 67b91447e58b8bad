"""What the user wrote of a layout stays in every plan; what no plan can keep is refused in one sentence."""

from __future__ import annotations

import pytest

from sim.report.layout import layout_document
from sim.spec.yaml import SpecError
from sim.study.plan.machines import planned_rows, written_layout
from sim.study.scenario import Scenario


def test_a_plan_keeps_the_layout_that_was_written() -> None:
    """Tensor parallelism of 4 is not what the search would choose; both ways of writing it are kept."""
    free = Scenario("", "llama-3.2-1b", global_batch=16)
    kept = Scenario("", "llama-3.2-1b", ("training.parallel.tensor=4",), global_batch=16)
    found = [planned_rows(each, ["hgx-h100"], (1,), layout_document)[0].document for each in (free, kept)]
    assert [each["parallel"]["tensor"] == 4 for each in found if each is not None] == [False, True]
    by_option = Scenario("", "llama-3.2-1b", layout=(("--tp", "parallel.tensor", 4),))
    assert written_layout(by_option) == written_layout(kept) == {"tensor": "4"}


@pytest.mark.parametrize("text", ["training.parallel={tensor: 4}", "training.parallel.layers_per_stage=[8,8]"])
def test_what_no_plan_keeps_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="cannot be kept fixed; leave it out"):
        written_layout(Scenario("", "llama-3.2-1b", (text,)))
