"""In which order does a rank of data parallelism work, start and wait? By hand, and by what the exchange plan holds."""

from __future__ import annotations

import pytest

from sim.parallel.lower.exchange_plan import plan_exchange
from sim.parallel.lower.step_program import step_program
from sim.parallel.program import Load, Pack, Start, Unpack, Update, Wait, Work
from tests.harness import layer, toy_workload

FUSION = {"threshold": "1 KB", "cycle_time": "100 ms", "control_latency": "1 ms", "request_time": "0 s", "source": "test"}
SOCKET = {"name": "socket", "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"}
GLOO = {"backend": "gloo", "gloo_transport": SOCKET, "nccl_algo": None, "nccl_proto": None}
LAYERS = [layer(0.1, 1, 10), layer(0.2, 2), layer(0.3, 3, 30, 31)]


def outline(workload, ranks=4):
    """Return the program as short words."""
    words = {Load: "load", Work: "work", Pack: "pack", Unpack: "unpack", Update: "update", Wait: "wait", Start: "start"}
    lines = []
    for each in step_program(workload, (), ranks).instructions:
        numbers = [*each[1:3]] if isinstance(each, Work) else [each.bucket] if isinstance(each, Pack) else []
        numbers = [each.tag[1]] if isinstance(each, Start | Wait) else numbers
        lines.append(" ".join([words[type(each)], *map(str, numbers)]))
    return lines


def test_a_bucket_leaves_after_the_layer_of_its_last_tensor() -> None:
    """By hand: backward runs the layers from the last on, whose two tensors are ready together."""
    assert outline(toy_workload(LAYERS, stack={"strategy": "apex_per_tensor"})) == [
        "load", "work 0 2",
        "work 2 2", "pack 0", "start 0", "pack 1", "start 1", "work 0 1", "pack 2", "start 2",
        "wait 2", "wait 1", "wait 0", "unpack", "update",
    ]  # fmt: skip


def test_without_overlap_all_leave_at_the_end() -> None:
    assert outline(toy_workload(LAYERS, stack={"strategy": "apex_per_tensor", "overlap": False})) == [
        "load", "work 0 2", "work 0 2", "pack 0", "start 0", "pack 1", "start 1", "pack 2", "start 2",
        "wait 2", "wait 1", "wait 0", "unpack", "update",
    ]  # fmt: skip


def test_all_but_the_last_micro_batch_are_silent() -> None:
    """By hand: DDP's ``no_sync``; the scalar that all wait for belongs to the exchange too."""
    workload = toy_workload(LAYERS, stack={"blocking_scalar_all_reduces": 1, "strategy": "flat"}, accumulation=3)
    silent = ["load", "work 0 2", "work 0 2"]
    last = ["load", "work 0 2", "start -1", "wait -1", "work 0 2", "pack 0", "start 0", "wait 0", "unpack", "update"]
    assert outline(workload) == [*silent, *silent, *last]


def test_one_rank_works_alone() -> None:
    assert outline(toy_workload(LAYERS), ranks=1) == ["load", "work 0 2", "work 0 2", "update"]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_operation_of_the_plan_is_started_and_waited_for_once(ranks: int) -> None:
    """Oracle: the exchange plan, requested for more and fewer ranks alternately."""
    workload = toy_workload(LAYERS, stack={"blocking_scalar_all_reduces": 2})
    for count in (3, ranks, 5, ranks):
        program = step_program(workload, (), count).instructions
        plan = plan_exchange(workload, (), count)
        starts = [each for each in program if isinstance(each, Start)]
        assert starts == [*plan.before, *plan.between, *(bucket.start for bucket in plan.buckets)]
        assert sorted(each.tag for each in program if isinstance(each, Wait)) == sorted(start.tag for start in starts)


def test_only_horovod_asks_when_gradients_are_ready() -> None:
    """Oracle: tensors 1 s apart miss each other's cycle of 0.1 s, those ready at once share it; DDP's buckets are by size alone."""
    fused = toy_workload(LAYERS, stack={"strategy": "horovod", "fusion": FUSION})
    apart, together = (step_program(fused, ready, 4) for ready in ((0.0, 1.0, 2.0), (0.0, 0.0, 0.0)))
    assert (len(apart.buckets), len(together.buckets)) == (3, 1)
    plain = toy_workload(LAYERS)
    assert step_program(plain, (0.0, 1.0, 2.0), 4) is step_program(plain, (0.0, 0.0, 0.0), 4)


@pytest.mark.parametrize(
    ("stack", "there"),
    [
        ({"blocking_scalar_all_reduces": 1}, {"scalar"}),
        ({"strategy": "horovod", "fusion": FUSION}, {"bucket"}),
        (GLOO, {"broadcast", "batch", "bucket"}),
    ],
)
def test_where_the_host_waits_itself(stack: dict[str, object], there: set[str]) -> None:
    """By hand: after a scalar that it reads, for Horovod's handles, for all that Gloo does; for NCCL only streams wait."""
    layers = [layer(0.1, 0.1, op="conv"), *LAYERS, layer(0.1, 0.1, 20, 20, op="norm")]
    workload = toy_workload(layers, buffers=1e3, stack={"broadcast_buffers": True, "sync_batch_norm": True, **stack})
    waits = [each for each in step_program(workload, (0.0,) * 5, 4).instructions if isinstance(each, Wait)]
    assert {each.tag[0].split()[0] for each in waits if each.host} == there
    assert {each.tag[0].split()[0] for each in waits if not each.host} == {"broadcast", "batch", "bucket"} - there
