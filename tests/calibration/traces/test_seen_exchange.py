"""Is the exchange of a profile over Gloo replayed? Oracles: sizes of buckets by hand, and torch's DistributedDataParallel."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.lab.layout_score import COMMITTED_POINTS, HARDWARE
from calibration.lab.plan import WORKLOADS
from calibration.questions import Folders
from calibration.traces.import_trace import import_traces
from calibration.traces.replay import JobDescription, replay_text
from sim.spec.library import load_workload
from sim.spec.stack import Ddp
from sim.spec.workload import Workload
from tests.calibration.traces.test_import_trace import Event, event, profile

MACHINE = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
STEP = 100_000.0  # microseconds
MIB = 2**20
SIZES = (1_500_000, 6_000_000, 2_000_000)
"""Elements of three gradients, in the order in which they become ready."""


def trained(folder: Path, rank: int, buckets: list[int]) -> Path:
    """Three steps of a CPU: forward to 20 ms, three gradients to 50 ms, and an all-reduce of 10 ms for each of *buckets* (elements)."""
    events: list[Event] = []
    for number in range(3):
        at = number * STEP
        events.append(event("user_annotation", f"ProfilerStep#{number}", at, at + STEP))
        events.append(event("cpu_op", "aten::linear", at, at + 20_000))
        for place, size in enumerate(SIZES):
            begin = at + 20_000 + 10_000 * place
            keep = "torch::autograd::AccumulateGrad"
            shown = {"Input Dims": [[size]], "Input type": ["float"]}
            events.append(event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", begin, begin + 8_000))
            events.append(event("cpu_op", f"autograd::engine::evaluate_function: {keep}", begin + 8_000, begin + 9_000))
            events.append(event("cpu_op", keep, begin + 8_100, begin + 8_900, **shown))
        for place, size in enumerate(buckets):
            begin = at + 50_000 + 10_000 * place
            shown = {"Input Dims": [[size]], "Input type": ["float"]}
            events.append(event("user_annotation", "gloo:all_reduce", begin, begin + 10_000, **shown) | {"tid": 3})
        events.append(event("cpu_op", "Optimizer.step#SGD.step", at + 90_000, at + 99_000))
    return profile(
        folder, rank, 2, events=events, deviceProperties=[], distributedInfo={"backend": "gloo", "rank": rank, "world_size": 2}
    )  # fmt: skip


def replayed(folder: Path, buckets: list[int], stack: str = "") -> Workload:
    job = import_traces([trained(folder, rank, buckets) for rank in range(2)])
    mine = folder / "mine.yaml"
    description = JobDescription(MACHINE, stack=stack, batch=4, folders=Folders(None, WORKLOADS))
    mine.write_text(replay_text(job, description, mine))
    return load_workload(str(mine), library=WORKLOADS).spec


@pytest.mark.parametrize(
    ("buckets", "first", "cap"),
    [
        pytest.param([1_500_000, 8_000_000], 1 * MIB, 25 * MIB, id="torch's defaults"),
        pytest.param([7_500_000, 2_000_000], 25 * MIB, 25 * MIB, id="bucket_cap_mb=25 closes no smaller first bucket"),
        pytest.param([9_500_000], 38e6, 38e6, id="one bucket"),
        pytest.param([1_500_000, 6_000_000, 2_000_000], 6e6, 24e6, id="smaller ones"),
        pytest.param([1_500_000, 1_000_000], 1 * MIB, 25 * MIB, id="of something else"),
    ],
)
def test_buckets_are_those_of_the_profile(buckets: list[int], first: float, cap: float, tmp_path: Path) -> None:
    exchange = replayed(tmp_path, buckets).training.stack.exchange
    assert isinstance(exchange, Ddp)
    assert (exchange.first_bucket_cap, exchange.bucket_cap) == (first, cap)


def test_a_stack_that_the_user_names_says_what_sockets_cost(tmp_path: Path) -> None:
    """10 ms for 38 MB is faster than the line of 1 Gbps: all of the line; with a stack, what it says."""
    sockets = replayed(tmp_path, [9_500_000]).training.stack.library.gloo_transport
    assert sockets is not None and sockets.total_efficiency == 1.0
    named = replayed(tmp_path, [9_500_000], "gloo-ddp").training.stack.library.gloo_transport
    assert named is not None and named.total_efficiency == 0.956
