"""What is a page of many runs based on? Assumptions and warnings, every input with its source, prices, and what was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from sim.report.page.frame import PagePart
from sim.report.page.markup import Child, Figures, Html, bullets, details, join, section, tag
from sim.report.page.provenance import fingerprints, machine_inputs, prices, sources, workload_inputs
from sim.spec.hardware import Group, Hardware
from sim.study.descriptions import Descriptions
from sim.units import pluralized

_OPEN = 1
"""Maximum number of descriptions whose inputs are shown openly; if there are more, each is folded behind its name."""


_LISTED = 12
"""Maximum number of assumptions or warnings that are all listed openly."""


def basis(figures: Figures, descriptions: Descriptions | None = None) -> list[PagePart]:
    """Return the last parts of a page: assumptions and warnings, the inputs of *descriptions* (if given), and prices.

    *figures* are of a document with ``assumptions``, ``warnings``, ``version`` and ``inputs_sha256``, and optionally ``prices``.
    """
    return [_assumed(figures), _inputs(figures, descriptions), *prices(figures)]


def _assumed(figures: Figures) -> PagePart:
    warned, machines = figures.value("warnings"), set(figures.value("inputs_sha256"))
    html = join(
        _grouped(figures.value("assumptions"), "assumptions", machines),
        tag("h3", "Warnings") if warned else None,
        _grouped(warned, "warnings", machines) if warned else None,
    )
    return PagePart("assumed", "Assumptions", section("assumed", "Assumptions", html))


def _grouped(lines: Sequence[str], what: str, machines: Set[str]) -> Html:
    """Return *lines* as a list; if there are many, those about some *machines* are folded, each with its machines behind its text."""
    if len(lines) <= _LISTED:
        return bullets(lines)
    of_some = [line for line in lines if set(_names(line)) <= machines]
    items = [tag("li", details(f"{line.partition(': ')[2]} ({_count(line)})", line.partition(": ")[0])) for line in of_some]
    shared = [line for line in lines if line not in of_some]
    return join(bullets(shared) if shared else None, details(f"{len(items):,} {what} about some machines", tag("ul", *items)))


def _names(line: str) -> list[str]:
    """Return the machines that *line* begins with (`sim.report.basis.merged_basis`)."""
    return line.partition(": ")[0].removeprefix("all but ").split("; ")


def _count(line: str) -> str:
    return f"{'all but ' if line.startswith('all but ') else ''}{pluralized(len(_names(line)), 'machine')}"


def _inputs(figures: Figures, descriptions: Descriptions | None) -> PagePart:
    shown: list[Child] = [*_machines(descriptions), *_workloads(descriptions)] if descriptions else []
    return PagePart(
        "inputs", "Inputs", section("inputs", "Inputs", details("All inputs, sources and hashes", *shown, fingerprints(figures)))
    )


def _machines(descriptions: Descriptions) -> Iterator[Html]:
    if len(descriptions.hardware) > _OPEN:
        yield tag("h3", "Machines")
    for hardware in descriptions.hardware:
        rows = [
            (_role_prefix(group, hardware) + name, value, source)
            for group in hardware.groups
            for name, value, source in machine_inputs(group)
        ]
        yield _folded(hardware.name, sources(rows, f"Inputs of {hardware.name}"), len(descriptions.hardware))


def _role_prefix(group: Group, hardware: Hardware) -> str:
    return f"{group.role}: " if len(hardware.groups) > 1 else ""


def _workloads(descriptions: Descriptions) -> Iterator[Html]:
    if len(descriptions.workloads) > _OPEN:
        yield tag("h3", "Workloads")
    for workload in descriptions.workloads:
        yield _folded(workload.name, sources(workload_inputs(workload), f"Inputs of {workload.name}"), len(descriptions.workloads))


def _folded(name: str, table: Html, count: int) -> Html:
    return table if count <= _OPEN else details(name, table)
