"""How long do weeks take to draw? 10,000 courses of 54 days on 16,384 GPUs, all that can happen included."""

from __future__ import annotations

from typing import Any

from sim.analysis.course import draw
from sim.analysis.long_run import DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.study.weeks import reliability_of, restart_time
from tests.bench.test_scale import measured_only

DAY = 86400.0
COURSES = 10_000


def weeks() -> LongRun:
    """54 days of 2048 nodes at the middle level, checkpoints every ten minutes."""
    data, nodes = reliability_of("middle"), 2048
    causes = [
        DrawnCause(cause.name, cause.share, Uniform(*cause.detection), Uniform(*cause.localization), cause.replaces, cause.silent_for)
        for cause in data.causes
    ]
    return LongRun(
        nodes, 103, Saving(600.0, 1.0, 30.0, 60.0), causes, (nodes * data.rate.low, nodes * data.rate.value, nodes * data.rate.high),
        [(step.share, step.time) for step in data.repair], Uniform(*data.spare), restart_time(data.requeue, 16384),
        restart_time(data.in_place, 16384), Uniform(*data.communicators), horizon=54 * DAY, shape=data.spread_of_nodes,
        repeats=(data.repeats.share, data.repeats.after),
        correlated=(nodes * data.correlated.rate, data.correlated.nodes, Uniform(*data.correlated.repair)),
        slow=(nodes * data.slow.rate, data.slow.factor, data.slow.duration), planned=(data.planned.rate, data.planned.duration),
        degrees_of_freedom=float(data.rate.degrees_of_freedom or "inf"),
    )  # fmt: skip


def test_ten_thousand_courses(benchmark: Any) -> None:
    measured_only(benchmark)
    benchmark.extra_info |= {"label": "10,000 courses of 54 days on 16,384 GPUs, failures and all", "aim": "20 s on two cores"}
    benchmark.pedantic(draw, (weeks(), COURSES, 1), rounds=1)
