"""Which constants of a machine's transport classes explain its NCCL collectives? Factors on efficiency, latency and launch, with intervals.

The time of a message depends on the algorithm and protocol that NCCL chooses, so the simulator's own plan predicts each measured
collective. The fit (`calibration.machines.posterior`) finds the factors by which the machine differs from its description, with the
priors of `calibration.clusters.network_parameters`. The description (``--hardware``) provides links and GPUs. Limits: the share of a NIC
that all flows reach together is not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from calibration.clusters.network_parameters import EVERYWHERE, NIC, WIDTHS, transports
from calibration.machines.machine_fit import Fit, MergedRecords, median_time
from calibration.machines.posterior import FitParameter, Vector, fit_posterior
from calibration.measure.machine_record import AnswerRow
from sim.cluster.build import place, slots, with_nodes
from sim.spec.hardware import Hardware, Node, Transport
from sim.training.collectives.price.collective_plan import CollectivePlan, plan_collectives
from sim.training.collectives.price.table import rows as table_rows
from sim.training.job import job_slots

NCCL: Final = "nccl"
PROBES: Final = ("all_reduce", "collectives")
"""Probes that measure collectives: all-reduces and small all-gathers, and those of sharded, expert-parallel and pipelined jobs."""
DIFFERENCE_STEP: Final = 0.02
"""Step of the finite difference in a log factor."""
ConstantKey = tuple[str, str]
"""The node's field that holds a transport class (``nic`` for the NIC's), and the constant to scale."""


def nccl_fit(records: MergedRecords, hardware: Hardware) -> Fit | None:
    """Fit factors on *hardware*'s transport classes to the collectives of the records. Return None if no collective was measured."""
    rows = _collectives(records)
    keys = _keys(hardware, rows)
    if not rows or not keys:
        return None
    ordered = sorted(rows, key=_kind)
    times = np.array([median_time(row) for row in ordered])

    def modelled(point: Vector) -> Vector:
        return np.log(predicted_times(hardware, dict(zip(keys, point.tolist(), strict=True)), ordered))

    def model(point: Vector) -> tuple[Vector, Vector]:
        center = modelled(point)
        slopes = [(modelled(point + step) - center) / DIFFERENCE_STEP for step in DIFFERENCE_STEP * np.eye(len(keys))]
        return center, np.stack(slopes, axis=1)

    parameters = [FitParameter(factor_name(key), 1.0, _width(hardware, key)) for key in keys]
    sizes = np.array([row["bytes"] for row in ordered], dtype=float)
    return Fit(NCCL, "all_reduce", sizes, times, fit_posterior(model, times, parameters))


def _collectives(records: MergedRecords) -> list[AnswerRow]:
    """Return the measured collectives of all operations, without those that ran concurrently with other work."""
    return [row for probe in PROBES for row in records.rows(probe) if "beside" not in row]


def factor_name(key: ConstantKey) -> str:
    """Return the name of a factor in tables, such as ``nvlink transport efficiency``."""
    return f"{key[0]} {key[1]}".strip().replace("_", " ")


def _kind(row: AnswerRow) -> tuple[int, int, str]:
    return row["ranks"], row.get("nodes", 1), row["op"]


def _plan(hardware: Hardware, ranks: int, nodes: int) -> CollectivePlan:
    """Return the plan of collectives of *ranks* on the first GPUs of each of *nodes*."""
    machine = with_nodes(hardware, nodes)
    placed = place(machine, None, "+".join([str(ranks // nodes)] * nodes))
    return plan_collectives(job_slots(0, slots(machine, [placed])), machine.fabric)


def _keys(hardware: Hardware, rows: Sequence[AnswerRow]) -> list[ConstantKey]:
    """Return the constants on which the collectives of *rows* depend."""
    node = hardware.groups[0].node
    plans = [_plan(hardware, *team) for team in sorted({_kind(row)[:2] for row in rows})]
    crossed = {transport.name for plan in plans for part in plan.parts for transport in part.channels.transports}
    met = [where for where, transport in transports(node) if transport.name in crossed]
    return [(where, constant) for where in met for constant in ("efficiency", "latency")] + [(EVERYWHERE, "launch")] * bool(met)


def _width(hardware: Hardware, key: ConstantKey) -> float:
    where, constant = key
    if constant != "efficiency":
        return WIDTHS[constant]
    if where == NIC:
        return WIDTHS["efficiency, TCP" if hardware.groups[0].node.nic.transport.flow_cap else "efficiency, NIC"]
    return WIDTHS["efficiency, host" if where == "host_transport" else "efficiency"]


def predicted_times(hardware: Hardware, factors: Mapping[ConstantKey, float], ordered: Sequence[AnswerRow]) -> list[float]:
    """Predict the times (s) of collectives, *ordered* by ranks and operation, on *hardware* with log *factors* on its constants."""
    groups = [group.model_copy(update={"node": scale_node(group.node, factors)}) for group in hardware.groups]
    machine = hardware.model_copy(update={"groups": tuple(groups)})
    seconds: list[float] = []
    for (ranks, nodes, op), same in groupby(ordered, _kind):
        plan = _plan(machine, ranks, nodes)
        seconds += [row.time for row in table_rows(plan, op, [row["bytes"] for row in same])]  # type: ignore[arg-type]
    return seconds


def scale_node(node: Node, factors: Mapping[ConstantKey, float]) -> Node:
    """Return *node* with log *factors* applied to the constants of its transport classes."""
    changed: dict[str, Any] = {where: scale_transport(transport, where, factors) for where, transport in transports(node)}
    changed["nic"] = node.nic.model_copy(update={"transport": changed.pop(NIC)})
    return node.model_copy(update=changed)


def scale_transport(transport: Transport, where: str, factors: Mapping[ConstantKey, float]) -> Transport:
    """Return *transport*, the field *where* of its node, with its constants scaled by log *factors*."""
    efficiency, latency = (math.exp(factors.get((where, constant), 0.0)) for constant in ("efficiency", "latency"))
    low = transport.hop_latency_ll
    return transport.model_copy(
        update={
            "efficiency": tuple((size, share * efficiency) for size, share in transport.efficiency),
            "hop_latency": transport.hop_latency * latency,
            "hop_latency_ll": None if low is None else low * latency,
            "launch": transport.launch * math.exp(factors.get((EVERYWHERE, "launch"), 0.0)),
        }
    )


def transport_blocks(records: MergedRecords, fit: Fit, hardware: Hardware) -> dict[str, Any]:
    """Return the part of a ``node`` block that holds the transport classes with constants identified by the records."""
    estimates = {key: fit[factor_name(key)] for key in _keys(hardware, _collectives(records))}
    factors = {key: math.log(estimate.value) for key, estimate in estimates.items() if estimate.identified}
    places = {where for where, _ in estimates if where}
    texts = {
        constant: _source_text(records, {key: estimates[key] for key in factors if key[1] == constant})
        for constant in ("efficiency", "latency", "launch")
    }
    blocks: dict[str, Any] = {}
    for where, transport in transports(hardware.groups[0].node):
        if where in places and (any(place == where for place, _ in factors) or (EVERYWHERE, "launch") in factors):
            blocks[where] = _transport_block(transport, scale_transport(transport, where, factors), records.name, texts)
    nic = blocks.pop(NIC, None)
    return blocks | ({"nic": {"transport": nic}} if nic else {})


def _source_text(records: MergedRecords, estimates: Mapping[ConstantKey, Any]) -> str:
    factors = "; ".join(f"{factor_name(key)} times {one.value:.3g} (95% {one.low:.3g} to {one.high:.3g})" for key, one in estimates.items())
    probes = " and ".join(probe for probe in PROBES if records.rows(probe))
    return f"{', '.join(records.files)}, probe {probes}, {records.date}: {factors} of the class" if factors else ""


def _transport_block(before: Transport, after: Transport, owner: str, texts: Mapping[str, str]) -> dict[str, Any]:
    block: dict[str, Any] = {"extends": before.name, "name": f"{before.name}-of-{owner}"}
    source: dict[str, str] = {}
    if after.efficiency != before.efficiency:
        block["efficiency"] = [[f"{size:.6g} B", float(f"{share:.4g}")] for size, share in after.efficiency]
        source["efficiency"] = texts["efficiency"]
    for field, constant in (("hop_latency", "latency"), ("hop_latency_ll", "latency"), ("launch", "launch")):
        if getattr(after, field) != getattr(before, field):
            block[field] = f"{1e6 * getattr(after, field):.4g} us"
            source[field] = texts[constant]
    return block | {"source": source}
