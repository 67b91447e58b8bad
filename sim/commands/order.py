"""In which order did the user type machines and a workload? Either works, because a name or file is only one of the two."""

from __future__ import annotations

from collections.abc import Sequence

from sim.units import all_of

_NAMED = 3
"""Number of names that a message lists."""
_WORKLOADS = frozenset({"workload", "jobs", "model"})
"""Kinds of descriptions that stand where a workload is expected."""


def what_is_missing(names: Sequence[str]) -> str:
    """Return that all of *names* are machines, or that several are workloads alone, and what to write; empty if neither is so.

    Files are left to their readers, which know the line that makes them what they are.
    """
    from sim.check.files import kind_of
    from sim.spec.catalog import catalog, is_path

    if any(map(is_path, names)) or (names[-1] in catalog("workloads") and (len(names) == 1 or names[0] in catalog("hardware"))):
        return ""
    kinds = {kind_of(name) for name in names}
    if kinds == {"hardware"}:
        return f"{all_of(names, _NAMED)} {'is a machine' if len(names) == 1 else 'are machines'}; write a workload too, such as resnet50"
    if kinds <= _WORKLOADS and len(names) > 1:
        return f"{all_of(names, _NAMED)} are workloads; write a machine too, such as p3.16xlarge"
    return ""


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
