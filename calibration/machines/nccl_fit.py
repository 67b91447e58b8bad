"""Which constants of a machine's transport classes explain its NCCL collectives? Factors on efficiency, latency and launch, with intervals.

The time of a message depends on the algorithm and protocol that NCCL chooses, so the simulator's own plan predicts each measured
collective. The fit (`calibration.machines.posterior`) finds the factors by which the machine differs from its description, with the
priors of `calibration.clusters.network_parameters`. The description (``--hardware``) provides links and GPUs. Limits: the share of a NIC
that all flows reach together is not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from calibration.clusters.network_parameters import EVERYWHERE, NIC, WIDTHS, transports
from calibration.collectives.constants import with_constants
from calibration.machines.machine_fit import Fit, MergedRecords, median_time
from calibration.machines.posterior import FitParameter, Posterior, PosteriorEstimate, Vector, fit_posterior, interval_half_width
from calibration.measure.machine_record import AnswerRow
from sim.cluster.build import place, slots, with_nodes
from sim.spec.hardware import Hardware, Transport
from sim.training.collectives.price.collective_plan import DEFAULT, AlgorithmChoice, CollectivePlan, Op, Tuning, plan_collectives
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.pricing import cost
from sim.training.collectives.price.table import LAUNCH, time_in_loop
from sim.training.job import job_slots

NCCL: Final = "nccl"
PROBES: Final = ("all_reduce", "collectives")
"""Probes that measure collectives: all-reduces and small all-gathers, and those of sharded, expert-parallel and pipelined jobs."""
DIFFERENCE_STEP: Final = 0.02
"""Step of the finite difference in a log factor."""
SLOW_START: Final = math.log(0.5)
"""Log factor on one efficiency with which the fit starts as well: links that do not bind as described have no slope there, but may bind."""
ConstantKey = tuple[str, str]
"""The node's field that holds a transport class (``nic`` for the NIC's), and the constant to scale."""


class MeasuredCollective(NamedTuple):
    """What was measured: an operation on a message of *nbytes* of *ranks* ranks, the same number on each of *nodes* nodes."""

    ranks: int
    nodes: int
    op: Op
    nbytes: int
    tuning: Tuning = DEFAULT
    per_process: int = 1
    """Number of GPUs on which one process launches in turn."""
    waits: bool = False
    """Whether the host waits for each message."""

    @property
    def team(self) -> tuple[int, int, Tuning]:
        """Return what decides the plan of the collective."""
        return self.ranks, self.nodes, self.tuning


def nccl_fit(records: MergedRecords, hardware: Hardware) -> Fit | None:
    """Fit factors on *hardware*'s transport classes to the collectives of the records. Return None if no collective was measured."""
    rows = _collectives(records)
    return fit_factors(hardware, [_collective(row) for row in rows], [median_time(row) for row in rows])


def _collectives(records: MergedRecords) -> list[AnswerRow]:
    """Return the measured collectives of all operations, without those that ran concurrently with other work."""
    return [row for probe in PROBES for row in records.rows(probe) if "beside" not in row]


def _collective(row: AnswerRow) -> MeasuredCollective:
    return MeasuredCollective(row["ranks"], row.get("nodes", 1), row["op"], row["bytes"])


def fit_factors(hardware: Hardware, measured: Sequence[MeasuredCollective], times: Sequence[float]) -> Fit | None:
    """Fit factors on *hardware*'s transport classes to the *times* (s) of *measured* collectives. Return None if there are none.

    The factor that the times determine least is left at 1 and the others are fitted again, until the times determine all that are left.
    So the description that holds only these predicts what the fit does.
    """
    predicted, seconds = PredictedTimes(hardware, measured), np.array(times, dtype=float)
    keys = all_keys = predicted.keys
    if not keys:
        return None
    fitted = _posterior(predicted, keys, seconds)
    estimates = {one.name: one for one in fitted.estimates}
    while len(keys) > 1 and not all(one.identified for one in fitted.estimates):
        widths = {key: math.log(fitted[factor_name(key)].high / fitted[factor_name(key)].low) / _width(hardware, key) for key in keys}
        keys = [key for key in keys if key != max(widths, key=widths.__getitem__)]
        fitted = _posterior(predicted, keys, seconds)
        estimates |= {one.name: one for one in fitted.estimates}
    ordered = [estimates[factor_name(key)] if key in keys else _not_identified(key, _width(hardware, key)) for key in all_keys]
    sizes = np.array([one.nbytes for one in measured], dtype=float)
    return Fit(NCCL, "all_reduce", sizes, seconds, replace(fitted, estimates=tuple(ordered)))


def _posterior(predicted: PredictedTimes, keys: Sequence[ConstantKey], seconds: Vector) -> Posterior:
    def modeled(point: Vector) -> Vector:
        return np.log(predicted.times(dict(zip(keys, point.tolist(), strict=True))))

    def model(point: Vector) -> tuple[Vector, Vector]:
        center = modeled(point)
        slopes = [(modeled(point + step) - center) / DIFFERENCE_STEP for step in DIFFERENCE_STEP * np.eye(len(keys))]
        return center, np.stack(slopes, axis=1)

    parameters = [FitParameter(factor_name(key), 1.0, _width(predicted.hardware, key)) for key in keys]
    slow = [SLOW_START * np.array([key == other for other in keys]) for key in keys if key[1] == "efficiency"]
    return fit_posterior(model, seconds, parameters, slow)


def _not_identified(key: ConstantKey, width: float) -> PosteriorEstimate:
    reach = math.exp(interval_half_width(math.inf) * width)
    return PosteriorEstimate(factor_name(key), 1.0, 1.0 / reach, reach, identified=False)


def factor_name(key: ConstantKey) -> str:
    """Return the name of a factor in tables, such as ``nvlink transport efficiency``."""
    return f"{key[0]} {key[1]}".strip().replace("_", " ")


def _plan(hardware: Hardware, ranks: int, nodes: int, tuning: Tuning = DEFAULT) -> CollectivePlan:
    """Return the plan of collectives of *ranks* on the first GPUs of each of *nodes*."""
    machine = with_nodes(hardware, nodes)
    placed = place(machine, None, "+".join([str(ranks // nodes)] * nodes))
    return plan_collectives(job_slots(0, slots(machine, [placed])), machine.fabric, tuning)


def _width(hardware: Hardware, key: ConstantKey) -> float:
    where, constant = key
    if constant != "efficiency":
        return WIDTHS[constant]
    if where == NIC:
        return WIDTHS["efficiency, TCP" if hardware.groups[0].node.nic.transport.flow_cap else "efficiency, NIC"]
    return WIDTHS["efficiency, host" if where == "host_transport" else "efficiency"]


class PredictedTimes:
    """Predicts the times of collectives on a machine, whose plans and choices do not depend on the factors and are made once."""

    def __init__(self, hardware: Hardware, measured: Sequence[MeasuredCollective]) -> None:
        self.hardware = hardware
        self._measured = measured
        self._plans = {team: _plan(hardware, *team) for team in dict.fromkeys(one.team for one in measured)}
        self._chosen = [self._plans[one.team].choice(float(one.nbytes), one.op) for one in measured]

    @property
    def keys(self) -> list[ConstantKey]:
        """Return the constants on which the times depend."""
        crossed = {transport.name for plan in self._plans.values() for part in plan.parts for transport in part.channels.transports}
        met = [where for where, transport in transports(self.hardware.groups[0].node) if transport.name in crossed]
        return [(where, constant) for where in met for constant in ("efficiency", "latency")] + [(EVERYWHERE, "launch")] * bool(met)

    def times(self, factors: Mapping[ConstantKey, float]) -> list[float]:
        """Return the times (s) with log *factors* on the machine's constants."""
        scaled = {each.name: scale_transport(each, where, factors) for where, each in transports(self.hardware.groups[0].node)}
        fields = {name: {field: getattr(each, field) for field in _SCALED} for name, each in scaled.items()}
        layouts = {team: with_constants(plan.layout, fields) for team, plan in self._plans.items()}
        return [_loop_time(one, _alone(layouts[one.team], one, chosen)) for one, chosen in zip(self._measured, self._chosen, strict=True)]


def _alone(layout: JobLayout, one: MeasuredCollective, chosen: AlgorithmChoice) -> float:
    return cost(layout, one.op, chosen.algorithm, chosen.protocol, float(one.nbytes), chosen.channels).uncontended_time


def _loop_time(one: MeasuredCollective, alone: float) -> float:
    """Return the seconds per message that a benchmark of *one* measures if it takes *alone* seconds by itself."""
    return alone + (one.per_process - 1) * LAUNCH if one.waits else time_in_loop(alone, one.per_process)


_SCALED: Final = ("efficiency", "hop_latency", "hop_latency_ll", "launch")


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


def record_blocks(records: MergedRecords, fit: Fit, hardware: Hardware) -> dict[str, Any]:
    """Return `transport_blocks` for the *fit* of the records."""
    rows = [_collective(row) for row in _collectives(records)]
    probes = " and ".join(probe for probe in PROBES if records.rows(probe))
    return transport_blocks(fit, rows, hardware, f"{', '.join(records.files)}, probe {probes}, {records.date}")


def transport_blocks(fit: Fit, measured: Sequence[MeasuredCollective], hardware: Hardware, source: str) -> dict[str, Any]:
    """Return the part of a ``node`` block that holds the transport classes with constants that *fit* identified.

    *source* begins the text that says where a constant comes from.
    """
    estimates = {key: fit[factor_name(key)] for key in PredictedTimes(hardware, measured).keys}
    factors = {key: math.log(estimate.value) for key, estimate in estimates.items() if estimate.identified}
    places = {where for where, _ in estimates if where}
    texts = {
        constant: _source_text(source, {key: estimates[key] for key in factors if key[1] == constant})
        for constant in ("efficiency", "latency", "launch")
    }
    blocks: dict[str, Any] = {}
    for where, transport in transports(hardware.groups[0].node):
        if where in places and (any(place == where for place, _ in factors) or (EVERYWHERE, "launch") in factors):
            blocks[where] = _transport_block(transport, scale_transport(transport, where, factors), texts)
    nic = blocks.pop(NIC, None)
    return blocks | ({"nic": {"transport": nic}} if nic else {})


def _source_text(source: str, estimates: Mapping[ConstantKey, Any]) -> str:
    factors = "; ".join(f"{factor_name(key)} times {one.value:.3g} (95% {one.low:.3g} to {one.high:.3g})" for key, one in estimates.items())
    return f"{source}: {factors} of the class" if factors else ""


def _transport_block(before: Transport, after: Transport, texts: Mapping[str, str]) -> dict[str, Any]:
    block: dict[str, Any] = {"extends": before.name}  # keeps its name, which says whose errors are expected of it
    source: dict[str, str] = {}
    if after.efficiency != before.efficiency:
        block["efficiency"] = [[f"{size:.6g} B", float(f"{share:.4g}")] for size, share in after.efficiency]
        source["efficiency"] = texts["efficiency"]
    for field, constant in (("hop_latency", "latency"), ("hop_latency_ll", "latency"), ("launch", "launch")):
        if getattr(after, field) != getattr(before, field):
            block[field] = f"{1e6 * getattr(after, field):.4g} us"
            source[field] = texts[constant]
    return block | {"source": source}
