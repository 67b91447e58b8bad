"""What one GPU does in a step: layer times, bucket boundaries, the host behind and the optimizer, by hand."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.gpu import memory_time
from sim.parallel.lower.exchange_plan import gradient_bytes
from sim.parallel.program import Load, Start, Unpack
from sim.spec.sections import with_fields
from sim.training.step_plan import (
    Segment,
    StepPlan,
    _joined,
    kernel_segment,
    mean_time_to_norm,
    optimizer_work,
    plan_key,
    plan_step,
    timed_pass,
)
from tests.harness import layer, toy_node, toy_workload

NODE = toy_node()


def plan(workload, distributed=True, cpu_speed=1.0, gpu=NODE.gpu):
    step = plan_step(workload, gpu, cpu_speed, 2 if distributed else 1)
    forward, backward = ([segment for _, segment in step.passes(part)] for part in ("F", "B"))
    return Plan(step, forward, backward)


def waits(planned, *segments):
    """Return how long the GPU waits for the host at each of *segments*, which are the plan's own objects."""
    pairs = list(zip(planned.step.segments, planned.step.waits(), strict=True))
    return [sum(wait for each, wait in pairs if each is segment) for segment in segments]


class Plan(NamedTuple):
    """A step, and its last micro-batch."""

    step: StepPlan
    forward: list[Segment]
    backward: list[Segment]

    @property
    def after(self):
        return next(
            (segment for each, segment in zip(self.step.program, self.step.segments, strict=True) if isinstance(each, Unpack)), None
        )

    @property
    def optimizer(self):
        return self.step.optimizer

    @property
    def buckets(self):
        return self.step.buckets


def busy(segments):
    return [pytest.approx(segment.compute) for segment in segments]


def test_backward_runs_in_reverse_and_is_cut_at_buckets():
    """By hand: three layers of 1, 2 and 3 s backward; per tensor, the last layer's two tensors are ready first, together."""
    layers = [layer(0.1, 1, 10), layer(0.2, 2), layer(0.3, 3, 30, 31)]
    planned = plan(toy_workload(layers, stack={"strategy": "apex_per_tensor"}))
    assert busy(planned.forward) == [0.6]
    assert busy(planned.backward) == [3, 0, 3]
    assert [segment.bucket for segment in planned.backward] == [0, 1, 2]
    assert planned.buckets == (120.0, 124.0, 40.0)


def test_what_follows_the_last_bucket_is_a_segment_of_its_own():
    """By hand: the first layers hold no gradients, so their backward runs beside the last bucket's exchange."""
    planned = plan(toy_workload([layer(0.1, 1), layer(0.2, 2, 10)]))
    assert busy(planned.backward) == [2, 1]
    assert [segment.bucket for segment in planned.backward] == [0, -1]


def test_without_overlap_every_bucket_waits_for_the_end():
    """By hand: two buckets, ready after the whole backward."""
    planned = plan(toy_workload([layer(0.1, 1, 10), layer(0.2, 2, 10)], stack={"strategy": "apex_per_tensor", "overlap": False}))
    assert busy(planned.backward) == [3, 0]
    assert [segment.bucket for segment in planned.backward] == [0, 1]


def test_alone_there_are_no_buckets():
    planned = plan(toy_workload([layer(0.1, 1, 10), layer(0.2, 2, 10)]), distributed=False)
    assert planned.buckets == ()
    assert busy(planned.backward) == [3]


def test_batch_and_factors_scale_compute():
    """Closed form: seconds per sample x batch x the user's and the stack's factor."""
    training = toy_workload([layer(0.1, 0.2, 10)], batch=3, stack={"compute_factor": 2.0})
    slowed = training.with_training(compute_factor=1.5)
    assert plan(slowed).forward[0].compute == pytest.approx(0.1 * 3 * 2 * 1.5)
    assert plan(slowed).backward[0].compute == pytest.approx(0.2 * 3 * 2 * 1.5)


def test_gradient_copies_are_memory_passes():
    """Closed form: half of 4 passes over a bucket's bytes before its exchange, half after; nothing for one rank alone."""
    slow = NODE.gpu.model_copy(update={"memory_bandwidth": 1e6})
    layers = [layer(0, 1, 1000)]
    workload = toy_workload(layers, stack={"gradient_copy_passes": 4.0}, optimizer="sgd")
    weights = 2 * 4000 / 1e6  # the backward's own: read weights, write their gradients; hidden behind its FLOP
    planned, alone = plan(workload, gpu=slow), plan(workload, distributed=False, gpu=slow)
    assert weights < 1
    assert planned.backward[0].compute == pytest.approx(1 + 2 * 4000 / 1e6)
    assert alone.backward[0].compute == pytest.approx(1)
    assert planned.after.compute == pytest.approx(2 * 4000 / 1e6)
    assert planned.optimizer == alone.optimizer
    assert alone.after is None
    assert alone.optimizer.compute == pytest.approx(3 * 4000 / 1e6)  # SGD: read weight and gradient, write weight


def test_distributed_overhead_is_paid_by_distributed_steps_only():
    workload = toy_workload(stack={"distributed_overhead": "7 ms"})
    assert plan(workload).optimizer.compute - plan(workload, distributed=False).optimizer.compute == pytest.approx(7e-3, rel=1e-6)


def test_precision_sets_the_gradients_width():
    """Parameters and gradients stay FP32 under AMP and beside FP8 copies; pure half precision halves them."""
    widths = {}
    for precision in ("fp32", "tf32", "amp_fp16", "amp_bf16", "fp16", "bf16", "fp8"):
        workload = toy_workload()
        widths[precision] = gradient_bytes(workload.with_training(precision=precision))
    assert widths == {"fp32": 4, "tf32": 4, "amp_fp16": 4, "amp_bf16": 4, "fp16": 2, "bf16": 2, "fp8": 4}


def test_a_sparse_table_is_updated_by_rows():
    """By hand: 100 rows of 10, 4 of them looked up by 2 samples: 40 elements of 1000, and of 8 ranks that gather rows 320; dense, all."""
    table = layer(0.1, 0.1, 1000, rows=100, rows_per_sample=2, sparse=True)

    def elements(stack=None, ranks=1, table=table):
        work = optimizer_work(toy_workload([table], batch=2, stack=stack), NODE.gpu, ranks)
        passes = toy_workload().training.optimizer.passes
        return (work.time - work.launches * NODE.gpu.kernel_time) / memory_time(4.0 * passes, NODE.gpu)

    assert elements() == pytest.approx(40)
    assert elements(ranks=8) == pytest.approx(1000)  # sums of whole gradients came
    assert elements({"sparse_embeddings": True}, ranks=8) == pytest.approx(320)
    assert elements({"sparse_embeddings": True}, ranks=1000) == pytest.approx(1000)
    assert elements(table=table.model_copy(update={"sparse": False})) == pytest.approx(1000)


# --- the host ahead or behind ----------------------------------------------------------------------------------------


def test_a_fast_host_never_shows():
    """Launches of 1 us hide behind kernels of 0.1 s, but for the very first."""
    planned = plan(toy_workload([layer(0.1, 0.2, 10)] * 5, stack={"launch_cpu": "1 us"}))
    assert waits(planned, *planned.forward) == [pytest.approx(1e-6)]
    assert sum(waits(planned, *planned.backward)) == 0


def test_a_slow_host_sets_the_pace():
    """Closed form: with kernels of 1 ms and launches of 5 ms the GPU ends one kernel after the last launch."""
    planned = plan(toy_workload([layer(1e-3, 1e-3, 10)] * 10, stack={"launch_cpu": "5 ms"}), distributed=False)
    passes = [*planned.forward, *planned.backward]
    assert sum(part.compute for part in passes) + sum(waits(planned, *passes)) == pytest.approx(20 * 5e-3 + 1e-3)
    faster = plan(toy_workload([layer(1e-3, 1e-3, 10)] * 10, stack={"launch_cpu": "5 ms"}), cpu_speed=100.0)
    assert waits(faster, *faster.forward)[0] < 1e-4


def test_a_captured_step_costs_one_launch():
    """Closed form: 20 kernels of 1 ms and the optimizer's; the host takes 5 ms for each, for all of them together with CUDA graphs."""
    layers = [layer(1e-3, 1e-3, 10)] * 10
    planned = plan(toy_workload(layers, stack={"launch_cpu": "5 ms", "cuda_graphs": True}), distributed=False)
    assert waits(planned, *planned.forward, *planned.backward, planned.optimizer) == [pytest.approx(5e-3), 0.0, 0.0]
    eager = plan(toy_workload(layers, stack={"launch_cpu": "5 ms"}), distributed=False)
    assert planned.forward[0].compute == eager.forward[0].compute
    assert sum(waits(eager, *eager.forward, *eager.backward)) > 70e-3


def scaled(workload):
    """Return *workload* with loss scaling, which makes the host wait for backward to see whether gradients overflowed."""
    return workload.with_training(precision="amp_fp16")


def test_many_launches_of_the_optimizer_show():
    """Closed form: SGD's weight decay and update, 2 launches per parameter tensor of 5 ms each, and no work worth mentioning."""
    planned = plan(scaled(toy_workload([layer(1, 1, 10, 10)] * 3, stack={"launch_cpu": "5 ms", "optimizer": "per_tensor"})))
    assert planned.step.waits()[-1] == pytest.approx(2 * 6 * 5e-3)
    assert plan(scaled(toy_workload([layer(1, 1, 10)], stack={"launch_cpu": "5 ms"}))).step.waits()[-1] == pytest.approx(5e-3)


def test_launches_of_the_optimizer_hide_behind_backward():
    """By hand: 60 ms of layers begin after one launch of 5 ms and end 35 ms after the host's 6; so much of 12 launches is hidden."""
    keys = {"launch_cpu": "5 ms", "optimizer": "per_tensor"}
    assert plan(toy_workload([layer(0.01, 0.01, 10, 10)] * 3, stack=keys)).step.waits()[-1] == pytest.approx(0.06 - 0.035, rel=1e-3)
    assert plan(toy_workload([layer(1, 1, 10, 10)] * 3, stack=keys)).step.waits()[-1] == 0


def test_checks_of_gradients_hold_the_gpu_up():
    """Closed form: 4 launches of 1 ms on each of 3 tensors that nothing hides, and then the optimizer's own 6."""
    keys = {"launch_cpu": "1 ms", "optimizer": "per_tensor", "gradient_checks": 4}
    assert plan(toy_workload([layer(1, 1, 10)] * 3, stack=keys)).step.waits()[-1] == pytest.approx((4 * 3 + 6) * 1e-3)


@given(
    times=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=12),
    launch=st.floats(0, 0.5),
    strategy=st.sampled_from(["ddp", "apex_per_tensor", "flat"]),
    overlap=st.booleans(),
    accumulation=st.integers(1, 3),
)
def test_segments_hold_all_the_work(times, launch, strategy, overlap, accumulation):
    """Conservation: backward is the layers' seconds however it is cut; each bucket is ready once, in order; the host hides nothing."""
    layers = [layer(forward, backward, *[100] * tensors) for forward, backward, tensors in times]
    caps = {"bucket_cap": "800 B", "first_bucket_cap": "400 B"} if strategy == "ddp" else {}
    keys = {"strategy": strategy, "overlap": overlap, "launch_cpu": f"{launch!r} s"} | caps
    planned = plan(toy_workload(layers, stack=keys, accumulation=accumulation))
    backward = sum(seconds for _, seconds, _ in times)
    assert planned.forward[0].compute == pytest.approx(sum(seconds for seconds, _, _ in times), abs=1e-12)
    assert sum(segment.compute for segment in planned.backward) == pytest.approx(backward, abs=1e-12)
    assert [each.micro_batch for each in planned.step.program if isinstance(each, Load)] == list(range(accumulation))
    for silent in range(accumulation - 1):
        assert sum(segment.compute for _, segment in planned.step.passes("B", silent)) == pytest.approx(backward, abs=1e-12)
    assert {each.tag[2] for each in planned.step.program if isinstance(each, Start)} <= {accumulation - 1}
    assert [segment.bucket for segment in planned.backward if segment.bucket >= 0] == list(range(len(planned.buckets)))
    assert sum(planned.buckets) == 400 * sum(tensors for _, _, tensors in times)
    passes = [*planned.forward, *planned.backward]
    assert sum(segment.compute for segment in passes) + sum(waits(planned, *passes)) >= 2 * len(layers) * launch * (1 - 1e-9)


@given(
    layers=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=12),
    launch=st.floats(0, 0.5),
    host=st.floats(0, 3),
    ahead=st.floats(0, 3),
)
def test_a_segment_ends_when_its_kernels_do_one_by_one(layers, launch, host, ahead):
    """Oracle: host and GPU kernel by kernel, of which all of a layer take as long, for any lead of the host."""
    cursor, gpu = host, host + ahead
    joined = _joined([kernel_segment(seconds, float(count), launch) for seconds, count in layers])
    wait = joined.wait(cursor, gpu)
    assert joined.launch_end(cursor, gpu) == pytest.approx(cursor + launch * sum(count for _, count in layers))
    end = gpu + joined.compute + wait
    for seconds, count in layers:
        for _ in range(max(1, count)):
            cursor += launch if count else 0.0
            gpu = max(gpu, cursor) + seconds / max(1, count)
    assert end == pytest.approx(gpu, rel=1e-9, abs=1e-12)


def test_checkpointed_blocks_run_their_forward_twice() -> None:
    """Oracle: with every block of GPT-2 recomputed, backward takes longer by the forward of the layers inside blocks, and no more."""
    from sim.spec.hardware import Gpu
    from sim.spec.library import load_part, load_workload
    from sim.spec.segments import segments

    device = load_part(Gpu, "a100-sxm4-40gb")
    settings = ["training.stack.launch_cpu=0 us"]
    plain = load_workload("gpt2", settings).spec
    again = load_workload("gpt2", [*settings, "training.activation_checkpointing=blocks"]).spec
    recomputed, expected = (timed_pass(plan_key(workload, device, 1.0)) for workload in (again, plain))
    twice = sum(part.compute for part, number in zip(expected.forward, segments(again), strict=True) if number)
    assert sum(part.compute for part in recomputed.forward) == pytest.approx(sum(part.compute for part in expected.forward))
    assert sum(part.compute for part in recomputed.backward) == pytest.approx(sum(part.compute for part in expected.backward) + twice)


def test_persistent_norms_are_half_their_distance_away():
    """Two norms in a backward of b s: b / 4, in 16 bits and where the stack says so; else compute waits for none, nor without norms."""
    products, norms = [layer(0.3, 0.6, 100, op="conv")], [layer(0.1, 0.2, 100, op="norm")] * 2
    for layers, precision, persistent in (
        (products + norms, "amp_fp16", True),
        (products + norms, "fp32", True),
        (products + norms, "amp_fp16", False),
        (products, "amp_fp16", True),
    ):
        workload = toy_workload(layers, buffers=1e3, stack={"persistent_norms": persistent})
        workload = workload.with_training(precision=precision)
        made = plan(workload).step
        waits = persistent and precision == "amp_fp16" and len(layers) > 1
        backward = sum(segment.compute for _, segment in made.passes("B"))
        assert mean_time_to_norm(workload, made) == (pytest.approx(backward / 4) if waits else math.inf)


def test_a_plan_that_was_kept_is_the_one_worked_out_anew() -> None:
    """Whatever a description changes: no two of these workloads and machines are taken for each other. Oracle: empty caches."""
    from sim.parallel.lower import step_program
    from sim.training import layer_times, step_plan

    plain = toy_workload([layer(0.1, 0.2, 10), layer(0.3, 0.4, 20, 30)], stack={"first_bucket_cap": "40 B", "launch_cpu": "50 ms"})

    def trained(**keys):
        return plain.with_training(**keys)

    def stacked(**keys):
        return trained(stack=with_fields(plain.training.stack, **keys))

    workloads = [
        plain, trained(batch=2), trained(precision="amp_fp16"), trained(compute_factor=2.0), trained(gradient_accumulation_steps=3),
        trained(optimizer=plain.training.optimizer.model_copy(update={"name": "adam"})), stacked(launch_cpu=0.5), stacked(overlap=False),
        stacked(gradient_clipping=True), stacked(blocking_scalar_all_reduces=1), stacked(distributed_overhead=0.5),
        stacked(cuda_graphs=True),
        plain.model_copy(update={"model": plain.model.model_copy(update={"layers": plain.model.layers[:1]})}),
    ]  # fmt: skip
    gpus = [NODE.gpu, NODE.gpu.model_copy(update={"kernel_time": 0.01}), NODE.gpu.model_copy(update={"compute_cv": 0.3})]
    questions = [(workload, gpu, speed, ranks) for workload in workloads for gpu in gpus for speed in (1.0, 0.5) for ranks in (1, 2)]
    kept = [plan_step(*one) for one in questions * 2][len(questions) :]
    for one, cached in zip(questions, kept, strict=True):
        for cache in (step_plan._plans, step_plan.timed_pass, layer_times._worked_out, step_program._untimed):
            cache.cache_clear()
        assert plan_step(*one) == cached


def test_a_workers_step_does_not_depend_on_its_servers():
    """So trials with other costs of servers share its plan; the oracle is a plan worked out from objects that no cache knows."""
    layers = [layer(0.1, 1, 10), layer(0.2, 2), layer(0.3, 3, 30, 31)]
    one = {"source": "test", "count": 1}
    other = {
        "source": "test",
        "count": 4,
        "sharding": "chunks",
        "update_cpu": "1 ms",
        "byte_cpu": "2 s/GB",
        "racks": 2,
        "placement": "colocated",
    }
    first, second = (toy_workload(layers, stack={"strategy": "parameter_server", "servers": servers}) for servers in (one, other))
    apart = plan(first).step, plan(second).step
    assert apart[0] is not apart[1] and apart[0] == apart[1]
    trial = with_fields(first.training.stack, servers=second.training.stack.exchange.servers)
    changed = first.with_training(stack=trial)
    assert plan(changed).step is plan(first).step
