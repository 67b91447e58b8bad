"""Where are the passes of a micro-batch cut? By hand, and by what the exchange plan holds."""

from __future__ import annotations

import pytest

from sim.training.cuts import programs
from sim.training.exchange_plan import plan_exchange
from tests.harness import layer, toy_workload

FUSION = {"threshold": "1 KB", "cycle_time": "100 ms", "control_latency": "1 ms", "request_time": "0 s", "source": "test"}
LAYERS = [layer(0.1, 1, 10), layer(0.2, 2), layer(0.3, 3, 30, 31)]


def test_a_bucket_leaves_after_the_layer_of_its_last_tensor() -> None:
    """By hand: backward runs the layers from the last on, whose two tensors are ready together."""
    (program,) = programs(toy_workload(LAYERS, stack={"strategy": "apex_per_tensor"}), (), 4)
    assert program.forward == ()
    assert [(cut.layers, cut.bucket) for cut in program.backward] == [(1, 0), (1, 1), (3, 2)]


def test_without_overlap_all_leave_at_the_end() -> None:
    (program,) = programs(toy_workload(LAYERS, stack={"strategy": "apex_per_tensor", "overlap": False}), (), 4)
    assert [(cut.layers, cut.bucket) for cut in program.backward] == [(3, 0), (3, 1), (3, 2)]


def test_all_but_the_last_micro_batch_are_silent() -> None:
    workload = toy_workload(LAYERS, stack={"blocking_scalar_all_reduces": 1})
    workload = workload.model_copy(update={"training": workload.training.model_copy(update={"gradient_accumulation_steps": 3})})
    first, second, last = programs(workload, (), 4)
    assert (first.buckets, second.forward, second.backward) == ((), (), ())
    assert [cut.layers for cut in last.forward] == [3] and last.buckets


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_operation_of_the_plan_starts_once(ranks: int) -> None:
    """Oracle: the exchange plan, asked for more and fewer ranks by turns."""
    workload = toy_workload(LAYERS, stack={"blocking_scalar_all_reduces": 2})
    for asked in (3, ranks, 5, ranks):
        (program,) = programs(workload, (), asked)
        plan = plan_exchange(workload, (), asked)
        expected = [*plan.before, *plan.between, *(bucket.operation for bucket in plan.buckets)]
        assert [cut.operation for cut in (*program.forward, *program.backward)] == expected


def test_only_horovod_asks_when_gradients_are_ready() -> None:
    """Oracle: tensors 1 s apart miss each other's cycle of 0.1 s, those ready at once share it; DDP's buckets are by size alone."""
    fused = toy_workload(LAYERS, stack={"strategy": "horovod", "fusion": FUSION})
    apart, together = (programs(fused, ready, 4)[0] for ready in ((0.0, 1.0, 2.0), (0.0, 0.0, 0.0)))
    assert (len(apart.buckets), len(together.buckets)) == (3, 1)
    plain = toy_workload(LAYERS)
    assert programs(plain, (0.0, 1.0, 2.0), 4) is programs(plain, (0.0, 0.0, 0.0), 4)
