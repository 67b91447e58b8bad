"""Which constants of a socket explain a machine's Gloo collectives? Launch cost, latency and bandwidth, with intervals.

Each measured collective is modeled as in the simulator (`sim.training.collectives.play.gloo`)::

    launch + passes * segments_time(segments, segment / bandwidth, latency / 2)

An all-reduce makes two passes of the ring and an all-gather one (probes ``all_reduce`` and ``collectives``). Other operations are ignored
because Gloo's algorithms for them are not modeled. A ring over several machines is bound by its slowest hop, which is between machines.
So records of several machines give two sets of constants, and their difference is the network. The transport class provides the priors.
A large message consists of many segments whose timing becomes periodic; its time is extrapolated from the first few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from calibration.clusters.network_parameters import WIDTHS
from calibration.machines.machine_fit import RATE, Fit, MergedRecords, median_time, ring_traffic
from calibration.machines.posterior import VAGUE_WIDTH, FitParameter, Vector, fit_mean, fit_posterior
from calibration.measure.machine_record import AnswerRow
from sim.spec.hardware import Transport
from sim.spec.library import load_part
from sim.training.collectives.price.gloo_ring import cut_segments, segments_time

LARGE_MESSAGE = 2.0**20
"""Size (bytes) from which the processor time of a collective is due to its bytes rather than its steps."""
PASSES: Final = {"all_reduce": 2, "all_gather": 1}
"""Passes around the ring, by operation."""
INSIDE, BETWEEN = "gloo", "gloo between machines"
"""Subjects of the two fits."""
DIFFERENCE_STEP = 1e-4
"""Step of the finite difference in a log parameter."""
_ENOUGH = 16
"""Segments after which a ring is periodic, with a period of two segments."""


def gloo_class() -> Transport:
    """Return the transport class whose constants are the priors of a socket."""
    return load_part(Transport, "tcp-single-flow")


def gloo_fits(records: MergedRecords) -> list[Fit]:
    """Return the fits of a socket inside a machine and of one between machines, as far as they were measured."""
    plain = [row for row in (*records.rows("all_reduce"), *records.rows("collectives")) if row["op"] in PASSES and "beside" not in row]
    inside, across = ([row for row in plain if (row.get("nodes", 1) > 1) == between] for between in (False, True))
    return [_fit(subject, rows) for subject, rows in ((INSIDE, inside), (BETWEEN, across)) if rows]


def _fit(subject: str, rows: Sequence[AnswerRow]) -> Fit:
    prior = gloo_class()
    assert prior.flow_cap is not None
    times = np.array([median_time(row) for row in rows])

    def model(center: Vector) -> tuple[Vector, Vector]:
        points = [center, *(center + DIFFERENCE_STEP * unit for unit in np.eye(3))]
        logs = np.log([[collective_time(row, *np.exp(point).tolist()) for row in rows] for point in points])
        return logs[0], ((logs[1:] - logs[0]) / DIFFERENCE_STEP).T

    parameters = [
        FitParameter("launch", prior.launch, WIDTHS["launch"]),
        FitParameter("hop_latency", prior.hop_latency, WIDTHS["latency"]),
        FitParameter(
            RATE, 1.0 / prior.flow_cap, VAGUE_WIDTH if subject == BETWEEN else WIDTHS["efficiency, TCP"]
        ),  # a NIC can have any speed
    ]
    sizes = np.array([row["bytes"] for row in rows], dtype=float)
    return Fit(subject, "all_reduce", sizes, times, fit_posterior(model, times, parameters))


def collective_time(row: AnswerRow, launch: float, latency: float, per_byte: float) -> float:
    """Return the modeled time (s) of a measured collective with these constants."""
    count, segment = cut_segments(float(row["bytes"]), row["ranks"])
    return launch + PASSES[row["op"]] * long_pass(count, segment * per_byte, latency / 2, row["ranks"] == 2)


def long_pass(count: int, wire: float, one_way: float, one_line: bool) -> float:
    """Return `segments_time`, extrapolated from the periodic timing of the first segments if there are many."""
    if count <= _ENOUGH + 2:
        return segments_time(count, wire, one_way, one_line)
    first = _ENOUGH + count % 2
    before, after = (segments_time(number, wire, one_way, one_line) for number in (first, first + 2))
    return before + (count - first) / 2 * (after - before)


def gloo_processor(records: MergedRecords) -> Fit | None:
    """Return the fit of the core-seconds per byte sent or received; a rank sends and receives every byte of the ring."""
    rows = [row for row in records.rows("all_reduce") if row["bytes"] >= LARGE_MESSAGE and row.get("cpu_s", 0.0) > 0]
    if not rows:
        return None
    times = np.array([row["cpu_s"] / (2.0 * ring_traffic(row)[1]) for row in rows])
    return Fit("gloo processor", "all_reduce", np.ones(len(times)), times, fit_mean(RATE, times.tolist()))
