"""How is a checkpoint that a run writes told of? What training waits for, and what its traffic costs the steps beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.units import counted, show

if TYPE_CHECKING:
    from sim.study.saving import SavedRun


def saved_document(saved: SavedRun) -> dict[str, Any]:
    """Return the part of a run's document that tells of *saved*."""
    return {
        "store": saved.store,
        "bytes": saved.nbytes,
        "writers": saved.writers,
        "blocking_s": saved.blocking,
        "written_s": saved.written,
        "step_time_beside_s": saved.beside,
        "cost_s": saved.costs,
    }


def saved_text(document: Mapping[str, Any]) -> str:
    """Return in words what a run's *document* tells of a checkpoint."""
    saved = document["checkpoint"]
    slower = saved["step_time_beside_s"] / document["step_time_s"] - 1
    return (
        f"checkpoint of {show(saved['bytes'], 'size')} in {counted(saved['writers'], 'part')} to {saved['store']}: training waits "
        f"{show(saved['blocking_s'], 'time')}, then steps take {100 * slower:.1f}% longer for {show(saved['written_s'], 'time')}: "
        f"{show(saved['cost_s'], 'time')} in all"
    )
