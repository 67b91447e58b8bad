"""How is a run's checkpoint reported? How long training waits for it, and how much its traffic slows the steps meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.units import pluralized, show

if TYPE_CHECKING:
    from sim.study.saving import SavedRun


def saved_document(saved: SavedRun) -> dict[str, Any]:
    """Return the entry of a run's document for the checkpoint *saved*."""
    return {
        "store": saved.store,
        "bytes": saved.nbytes,
        "writers": saved.writers,
        "blocking_s": saved.blocking,
        "written_s": saved.write_time,
        "step_time_beside_s": saved.step_while_saving,
        "cost_s": saved.cost,
    }


def saved_text(document: Mapping[str, Any]) -> str:
    """Return a sentence on the checkpoint in a run's *document*."""
    saved = document["checkpoint"]
    slower = saved["step_time_beside_s"] / document["step_time_s"] - 1
    return (
        f"checkpoint of {show(saved['bytes'], 'size')} in {pluralized(saved['writers'], 'part')} to {saved['store']}: training waits "
        f"{show(saved['blocking_s'], 'time')}, then steps take {100 * slower:.1f}% longer for {show(saved['written_s'], 'time')}: "
        f"{show(saved['cost_s'], 'time')} in total"
    )
