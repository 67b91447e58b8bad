"""In which order did the user type machines and a workload? Either works, because a name or file is only one of the two."""

from __future__ import annotations

from collections.abc import Sequence

_WORKLOADS = frozenset({"workload", "jobs", "model"})
"""Kinds of descriptions that stand where a workload is expected."""


def workload_last(names: Sequence[str]) -> list[str]:
    """Return *names*, machines and one workload, with the workload last; as they are if it is not clear which one it is."""
    from sim.check.files import kind_of
    from sim.spec.catalog import catalog

    *others, last = names
    if last in catalog("workloads"):
        return list(names)
    kinds = {place: kind for place, name in enumerate(others) if (kind := kind_of(name)) != "hardware"}
    workloads = [place for place, kind in kinds.items() if kind in _WORKLOADS]
    likely = workloads or list(kinds)  # a name that nobody knows, where the last one is a machine's, is a misspelled workload
    if len(likely) != 1 or (of_last := kind_of(last)) in _WORKLOADS or not (workloads or of_last == "hardware"):
        return list(names)
    return [name for place, name in enumerate(names) if place != likely[0]] + [others[likely[0]]]
