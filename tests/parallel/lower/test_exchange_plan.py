"""What ranks exchange in a step: every gradient once, at its layer, and what stands before, between and inside; by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.lower.exchange_plan import gradient_tensors, plan_exchange, sent_width
from sim.parallel.program import Load, Message, Pack, Start, Unpack, Update, Wait, Work
from sim.training.step_plan import plan_step
from tests.harness import layer, toy_node, toy_workload

GPU = toy_node().gpu
SOCKETS = {"name": "sockets", "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"}
GLOO = {"backend": "gloo", "gloo_transport": SOCKETS, "nccl_algo": None, "nccl_proto": None}
FUSION = {"threshold": "1 KB", "cycle_time": "100 ms", "control_latency": "1 ms", "request_time": "0 s", "source": "test"}
STRATEGIES = {
    "ddp": {"bucket_cap": "800 B", "first_bucket_cap": "400 B"},
    "apex": {"message_size": 150},
    "apex_per_tensor": {},
    "flat": {},
    "horovod": {"fusion": FUSION},
}


def strategy(name, **keys):
    return {"strategy": name} | STRATEGIES[name] | keys


def plan(workload, ranks=4):
    return plan_step(workload, GPU, 1.0, ranks)


def started_in(step_plan, number):
    """Return what a micro-batch of a plan starts."""
    return [each for each in step_plan.program if isinstance(each, Start) and each.tag[2] == number]


def sent(start):
    return sum(message.nbytes for message in start.messages)


def with_training(workload, **keys):
    return workload.with_training(**keys)


tables = st.lists(st.tuples(st.floats(0, 0.2), st.lists(st.integers(1, 400), max_size=3)), min_size=1, max_size=12)


@given(
    tables, st.sampled_from(sorted(STRATEGIES)), st.booleans(), st.sampled_from([None, "fp16", "bf16"]), st.integers(1, 3), st.booleans()
)
def test_every_strategy_launches_every_gradient_once(table, name, overlap, wire, steps, no_sync):
    """Conservation: bytes launched are the gradients' (half of them on a 16-bit wire); buckets are ready once each, in order."""
    layers = [layer(0.01, backward, *elements) for backward, elements in table]
    stack = strategy(name, overlap=overlap, wire_dtype=wire, no_sync=no_sync)
    workload = toy_workload(layers, stack=stack, accumulation=steps)
    width = 2 if wire else 4
    step_plan = plan(workload)
    for number in range(steps):
        exchanges = number == steps - 1 or not no_sync
        starts = started_in(step_plan, number)
        assert sum(map(sent, starts)) == pytest.approx(width * sum(sum(elements) for _, elements in table) * exchanges)
        buckets = [segment.bucket for _, segment in step_plan.passes("B", number) if segment.bucket >= 0]
        assert buckets == [start.tag[1] for start in starts] == list(range(len(buckets)))


@given(tables, st.sampled_from(sorted(STRATEGIES)))
def test_each_tensor_is_in_one_bucket(table, name):
    """Conservation, tensor by tensor: sizes are powers of two, so that a bucket's bytes tell what is in it."""
    count = sum(len(elements) for _, elements in table)
    sizes = iter(2**power for power in range(count))
    layers = [layer(0.01, backward, *[next(sizes) for _ in elements]) for backward, elements in table]
    buckets = plan(toy_workload(layers, stack=strategy(name))).buckets
    assert sum(buckets) == 4 * (2**count - 1)
    held = [{power for power in range(count) if int(nbytes / 4) >> power & 1} for nbytes in buckets]
    assert sum(len(tensors) for tensors in held) == count


def test_apex_counts_elements():
    """By hand (apex distributed.py): a bucket closes with the tensor that brings it to message_size elements."""
    layers = [layer(0.1, 0.1, elements) for elements in (10, 60, 90, 149, 1)]
    assert plan(toy_workload(layers, stack=strategy("apex"))).buckets == (4 * 150, 4 * 150, 4 * 10)


def test_horovod_fuses_what_backward_finishes_in_a_cycle():
    """By hand: gradients at 40, 80 and 200 ms; cycles end 50, 150 and 250 ms after the first; two collectives of 2 hops of 1 ms agree."""
    layers = [layer(0.0, backward, 100) for backward in (0.12, 0.04, 0.04)]
    starts = started_in(plan(toy_workload(layers, stack=strategy("horovod"))), 0)
    assert [sent(start) for start in starts] == [800, 400]
    assert [start.delay for start in starts] == [pytest.approx(0.01 + 0.004), pytest.approx(0.09 + 0.004)]


def test_horovod_with_an_endless_cycle_sends_what_flat_sends():
    layers = [layer(0.01, 0.1, 100, 20), layer(0.01, 0.1, 300)]
    endless = FUSION | {"threshold": "1 GB", "cycle_time": "10 s"}
    horovod, flat = (
        plan(toy_workload(layers, stack=keys)).buckets for keys in ({"strategy": "horovod", "fusion": endless}, {"strategy": "flat"})
    )
    assert horovod == flat == (4 * 420,)


def test_buffers_are_broadcast_once_a_step_unless_every_micro_batch_exchanges():
    """By hand (torch distributed.py): DDP broadcasts before the first forward after an exchange."""
    for no_sync, expected in ((True, [True, False, False]), (False, [True] * 3)):
        stack = {"broadcast_buffers": True, "no_sync": no_sync}
        step_plan = plan(toy_workload(buffers=1000.0, stack=stack, accumulation=3))
        assert [any(start.tag[0] == "broadcast buffers" for start in started_in(step_plan, number)) for number in range(3)] == expected
        load, start, wait, work = step_plan.program[:4]
        assert (type(load), type(work), wait) == (Load, Work, Wait(start.tag))
        assert start.messages == (Message("broadcast", 1000.0),)


def test_sync_batch_norm_meets_at_every_layer():
    """By hand (torch _functions.py): 2C+1 floats gathered from each of 4 ranks in forward, 2C summed in backward, in every micro-batch."""
    layers = [layer(0.1, 0.2, 50, op="conv"), layer(0.3, 0.4, 7, 7, op="norm"), layer(0.5, 0.6, 9)]
    workload = toy_workload(layers, buffers=1.0, stack={"sync_batch_norm": True, "strategy": "flat"}, accumulation=2)
    step_plan = plan(workload)
    silent, last = started_in(step_plan, 0), started_in(step_plan, 1)
    gathered, summed = Message("all_gather", 4 * 15 * 4), Message("all_reduce", 14 * 4)
    assert [start.messages for start in silent] == [(gathered,), (summed,)]
    assert [start.messages for start in last] == [(gathered,), (summed,), (Message("all_reduce", 4 * 73),)]
    assert [segment.compute for _, segment in step_plan.passes("F")] == [pytest.approx(0.0), pytest.approx(0.5)]
    kinds = [type(each) for each in step_plan.program[step_plan.program.index(Load(1)) :]]
    assert kinds == [Load, Work, Start, Wait, Work, Work, Start, Wait, Work, Pack, Start, Wait, Unpack, Update]


def test_embeddings_travel_as_rows():
    """By hand: 2 samples look up 3 of 100 rows of 8; the table leaves the dense bucket and goes when its layer is done."""
    table = layer(0.1, 0.1, 800, op="embedding", rows=100, rows_per_sample=3)
    layers = [table, layer(0.1, 0.1, 40)]
    dense, sparse = started_in(plan(toy_workload(layers, batch=2, stack={"strategy": "flat", "sparse_embeddings": True})), 0)
    assert dense.messages == (Message("all_reduce", 160),)
    assert sparse.messages == (Message("all_gather", 4 * 6 * 8 * 4), Message("all_gather", 4 * 6 * 8))
    everywhere = toy_workload(layers, batch=50, stack={"sparse_embeddings": True})
    assert gradient_tensors(everywhere)[-1].touched_rows == 100


def test_matrices_are_told_by_their_output_channels():
    """By hand: a 3x3 convolution from 8 to 16 channels is 16 x 72, its bias a vector."""
    gradients = gradient_tensors(toy_workload([layer(0.1, 0.1, 1152, 16, op="conv", channels=(8, 16))]))
    assert [(tensor.elements, tensor.rows) for tensor in gradients] == [(1152, 16), (16, 1)]


def test_autocast_wire_follows_the_precision():
    """Definition: 16 bits under amp, FP32 otherwise."""
    workload = toy_workload(stack={"wire_dtype": "autocast"})
    widths = {name: sent_width(with_training(workload, precision=name)) for name in ("fp32", "tf32", "amp_fp16", "amp_bf16", "fp16")}
    assert widths == {"fp32": 4, "tf32": 4, "amp_fp16": 2, "amp_bf16": 2, "fp16": 2}


def test_clipping_is_three_passes():
    """Closed form: gradients read for their norm, then read and written, also on one rank."""
    slow = GPU.model_copy(update={"memory_bandwidth": 1e6})
    plain, clipped = (
        plan_step(toy_workload([layer(0, 1, 1000)], stack={"gradient_clipping": on}), slow, 1.0, 1).optimizer.compute
        for on in (False, True)
    )
    assert clipped - plain == pytest.approx(3 * 4000 / 1e6)


def test_casting_costs_passes_before_and_after():
    """Closed form: FP32 and FP16 of 4000 bytes of gradients, each way."""
    slow = GPU.model_copy(update={"memory_bandwidth": 1e6})
    step_plan = plan_step(toy_workload([layer(0, 1, 1000)], stack={"wire_dtype": "fp16"}), slow, 1.0, 2)
    ((_, backward),) = step_plan.passes("B")
    assert backward.compute == pytest.approx(1 + 6000 / 1e6)
    (after,) = (segment for each, segment in zip(step_plan.program, step_plan.segments, strict=True) if isinstance(each, Unpack))
    assert after.compute == pytest.approx(6000 / 1e6)


def test_one_rank_exchanges_nothing():
    stack = {"broadcast_buffers": True, "blocking_scalar_all_reduces": 3}
    assert plan_exchange(toy_workload(buffers=10.0, stack=stack), [0.0], 1) == plan_exchange(toy_workload(), [0.0], 1)
    assert started_in(plan(toy_workload(buffers=10.0, stack=stack), ranks=1), 0) == []


def test_buffers_of_each_data_type_are_broadcast_by_themselves():
    """Oracle: torch's own assignment of statistics (fp32) and counts (int64) to buckets of 250 MiB; Gloo's threads carry both at once."""
    distributed = pytest.importorskip("torch.distributed")
    torch = pytest.importorskip("torch")
    tensors = [tensor for _ in range(5) for tensor in (*(torch.zeros(64) for _ in range(2)), torch.zeros((), dtype=torch.int64))]
    buckets, _ = distributed._compute_bucket_assignment_by_size(tensors, [250 * 2**20])
    sizes = [sum(tensors[index].numel() * tensors[index].element_size() for index in bucket) for bucket in buckets]
    layers = [layer(0.1, 0.2, 64, 64, op="norm") for _ in range(5)] + [layer(0.1, 0.2, 1000, op="conv", channels=(1, 1))]
    for backend, expected in (({}, sizes), (GLOO, [sum(sizes)])):
        workload = toy_workload(layers, buffers=sum(sizes), stack={"broadcast_buffers": True} | backend)
        (operation,) = plan_exchange(workload, [0.0] * 11, 2).before
        assert [(message.op, message.nbytes) for message in operation.messages] == [("broadcast", nbytes) for nbytes in expected]


def test_other_buffers_are_one_broadcast():
    (operation,) = plan_exchange(toy_workload(buffers=1000.0, stack={"broadcast_buffers": True}), [0.0], 2).before
    assert [(message.op, message.nbytes) for message in operation.messages] == [("broadcast", 1000.0)]
