"""How far off may a collective's time be? The errors of predictions for measured collectives over the same kind of link.

``python -m calibration collectives --write`` writes `hardware/validated_collectives.json` from the nccl-tests tables that come with
`calibration`. It holds relative errors of times that were predicted with the measured system left out of every fit. The errors for a
band of sizes are those of the same operation over the same kind of link, or else those of any operation over that link, or else of the
same NICs with or without GPUDirect, or of the class of which they are a variant. If none of these was measured, there is no estimate, and
a warning reports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sim.report.validated import validated_groups, validated_part
from sim.spec.algorithms import not_nccls
from sim.training.collectives.price.layout import GPUDIRECT, GPUDIRECT_BY_PROCESSOR
from sim.training.collectives.price.table import Table
from sim.units import show

SUMMARY = "hardware/validated_collectives.json"


def collective_error(table: Table) -> dict[str, Any] | None:
    """Return the validated errors (fractions) of *table*'s operation by band of sizes, and their basis; None if there are none."""
    validated = validated_collectives()
    errors: dict[str, Mapping[str, Any]] = {}
    unmatched: list[str] = []
    measured_over: dict[str, None] = {}
    for row in table.rows:
        band = band_of(row.nbytes)
        if band in errors or row.algorithm in not_nccls():
            continue
        for carrier in _carriers(table.carrier):
            own, other = f"{carrier}, {table.op}, {band}", f"{carrier}, any operation, {band}"
            if (name := own if own in validated else other) in validated:
                errors[band], measured_over[carrier] = validated[name], None
                unmatched += [f"no measured {table.op} of {band}"] if name == other else []
                break
    if not errors:
        return None
    if elsewhere := [carrier for carrier in measured_over if carrier != table.carrier]:
        ways = (way.strip() for way in (GPUDIRECT_BY_PROCESSOR, GPUDIRECT) if elsewhere[0].endswith(way))
        how = next(ways, "through host memory")
        other = _class(elsewhere[0])
        unmatched.append(f"measured {how} only" + (f", over {other} with other latencies" if other != _class(table.carrier) else ""))
    beyond = unmatched + _beyond(table, errors)
    if table.group is not None and any((use.groups or 2) > 1 for use in table.group.links):
        beyond.append("groups that share links, measured one at a time")
    systems = sorted({system for group in errors.values() for system in group["systems"]})
    reach = f"extrapolated: {'; '.join(beyond)}" if beyond else "within the sizes measured"
    return {
        "bands": [{"band": band, **{key: group[key] for key in ("median", "p90", "points")}} for band, group in errors.items()],
        "basis": f"measured over {' and '.join(measured_over)} on {', '.join(systems)}, each predicted by a fit without it; {reach}",
        "extrapolates": bool(beyond),
    }


VARIANTS: Mapping[str, str] = dict.fromkeys(("efa-read", "efa-rdma-2", "efa-rdma-3"), "efa")
"""Classes with the constants of another except for latencies, which are scaled (`calibration.collectives.fit.DERIVED_CLASSES`)."""
_ROUNDED = 1.01
"""How much larger than the largest measured message one may be: nccl-tests rounds sizes down to whole elements of each rank."""


def _carriers(carrier: str) -> tuple[str, ...]:
    """Return *carrier*, then the same links with other ways between GPU and NIC, and then those of which they are a variant."""
    name = _class(carrier)
    names = (name, VARIANTS.get(name, name))
    return tuple(dict.fromkeys((carrier, *(each + way for each in names for way in (GPUDIRECT, GPUDIRECT_BY_PROCESSOR, "")))))


def _class(carrier: str) -> str:
    return carrier.removesuffix(GPUDIRECT_BY_PROCESSOR).removesuffix(GPUDIRECT)


def _beyond(table: Table, errors: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what of *table* exceeds all measurements that its *errors* rest on, by band of sizes."""
    beyond = [
        f"{value:,} {noun}, measured up to {max(group[key] for group in exceeded.values()):,}{_only(exceeded, errors)}"
        for noun, key, value in (("nodes", "most_nodes", table.nodes), ("GPUs", "most_gpus", table.ranks))
        if (exceeded := {band: group for band, group in errors.items() if value > group[key]})
    ]
    gpus = {part.node.gpu.name: part.node.gpu.architecture for part in table.machine.groups} if table.machine else {}
    for name, architecture in gpus.items():
        if unseen := {band: group for band, group in errors.items() if architecture not in group["architectures"]}:
            beyond.append(f"no {name} or other GPU of its architecture measured{_only(unseen, errors)}")
    largest, most_bytes = max(row.nbytes for row in table.rows), max(group["most_bytes"] for group in errors.values())
    longer = largest > _ROUNDED * most_bytes
    return beyond + ([f"{show(largest, 'size')}, measured up to {show(most_bytes, 'size')}"] if longer else [])


def _only(some: Mapping[str, object], errors: Mapping[str, object]) -> str:
    """Return the bands *some* in parentheses; empty if they are all of *errors*."""
    return "" if len(some) == len(errors) else f" ({', '.join(some)})"


def error_lines(error: Mapping[str, Any]) -> list[str]:
    """Return *error* as lines of text."""
    bands = "; ".join(f"{band['band']} {100 * band['median']:.0f}% / {100 * band['p90']:.0f}%" for band in error["bands"])
    return [f"expected error (median / 90th percentile): {bands}", f"  {error['basis']}"]


def unmeasured(table: Table) -> list[str]:
    """Return a warning if the links or the algorithms of *table* were never measured."""
    validated = validated_collectives()
    if not table.carrier:
        return []
    if not any(name.startswith(f"{carrier}, ") for carrier in _carriers(table.carrier) for name in validated):
        measured = ", ".join(sorted({name.partition(",")[0] for name in validated}))
        return [f"no measurements over {table.carrier}: its constants come from the sources of the transport class; measured: {measured}"]
    others = sorted({row.algorithm for row in table.rows} & not_nccls())
    return [f"no measurements of {name}: the time is computed from its schedule and the links" for name in others]


def band_of(nbytes: float) -> str:
    """Return the band of sizes that a collective of *nbytes* belongs to; empty if no validated band contains it."""
    return next((str(band["name"]) for band in validated_part("bands", SUMMARY) if nbytes <= (band["to"] or math.inf)), "")


def validated_collectives() -> Mapping[str, Mapping[str, Any]]:
    """Return the errors by group of measured collectives; empty if the catalog has no such file."""
    return validated_groups(SUMMARY)
