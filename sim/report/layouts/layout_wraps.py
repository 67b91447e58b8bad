"""Which modules does FSDP gather separately? The sentence of a run's assumptions that lists them."""

from __future__ import annotations

from collections import defaultdict

from sim.mesh import LayoutRun
from sim.parallel.wraps import TORCHS_SIZE
from sim.units import pluralized

_NAMED = 3


def wraps_text(run: LayoutRun) -> str | None:
    """Return what FSDP wraps if patterns or sizes decide it; None if the units are the model's numbered blocks."""
    sizes: dict[str, float] = defaultdict(float)
    for unit in run.layout.units:
        if unit.wraps is None:
            return None
        sizes[unit.wraps[-1] if unit.wraps else ""] += unit.elements + unit.expert_elements
    root = sizes.pop("", 0.0)
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)
    named = ", ".join(f"{name} ({_millions(sizes[name])})" for name in largest[:_NAMED])
    shown = named if len(largest) <= _NAMED else f"the largest {named}"
    rest = f"the root holds {_millions(root)}" if root else "the root holds none"
    modules = f"{pluralized(len(largest), 'module')}: {shown}; {rest}" if sizes else f"the root alone, {_millions(root)}"
    if run.mesh.parallel.wrap is None:
        why = f"no numbered blocks, so modules of {_millions(TORCHS_SIZE)} or more, like torch's size_based_auto_wrap_policy"
        return f"FSDP gathers {modules} ({why}; --wrap changes this)"
    return f"FSDP gathers {modules} parameters"


def _millions(elements: float) -> str:
    return f"{elements / 1e6:.3g} M"
