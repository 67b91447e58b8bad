"""What is said if machines wait for prepared samples only because few loader workers run? The workers, the idle cores, and the option."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sim.events import Cause
from sim.simulate import Run
from sim.study.loader_workers import LoaderWorkers, limiting_workers
from sim.units import pluralized


def worker_assumptions(run: Run, number: int) -> list[str]:
    """Return the number of workers of job *number*, if it is the default and limits the step."""
    workers = limiting_workers(run, number)
    if workers is None or not workers.are_default:
        return []
    return [f"{_named(workers)}, of {workers.threads} hardware threads per GPU (--set {workers.option}=...)"]


def worker_figures(run: Run, number: int) -> dict[str, Any]:
    """Return the key of a run's document for the workers of job *number*; empty if more of them would not help."""
    workers = limiting_workers(run, number)
    if workers is None:
        return {}
    return {"loader_workers": {"option": workers.option, "per_gpu": workers.per_gpu, "hardware_threads_per_gpu": workers.threads}}


def worker_notes(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note for those machines of *documents* whose largest stall is preparation by few workers, by their number."""
    limited: dict[tuple[str, int], dict[str, int]] = {}
    for document in documents:
        workers = document.get("loader_workers")
        if workers and _waits_for_samples(document["stalls_s"]):
            machines = limited.setdefault((workers["option"], workers["per_gpu"]), {})
            machines[document["hardware"]] = workers["hardware_threads_per_gpu"]
    return [
        f"{pluralized(len(threads), 'machine')} {'waits' if len(threads) == 1 else 'wait'} for {_named(LoaderWorkers(option, each, 0))} "
        f"but {'has' if len(threads) == 1 else 'have'} {_range(threads.values())} hardware threads per GPU; --set {option}="
        f"{min(threads.values())} uses {'them' if len(set(threads.values())) == 1 else 'as many as all of them have'}"
        for (option, each), threads in limited.items()
    ]


def _waits_for_samples(stalls: Mapping[str, float]) -> bool:
    waits = {cause: seconds for cause, seconds in stalls.items() if cause != Cause.COMPUTE}
    return max(waits, key=lambda cause: waits[cause]) == Cause.PREP


def _named(workers: LoaderWorkers) -> str:
    what = "DALI thread" if workers.option.endswith("threads") else "loader worker"
    return f"{pluralized(workers.per_gpu, what)} per GPU"


def _range(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
