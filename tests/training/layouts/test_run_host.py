"""What does the host of a layout's rank delay? Launches, checks, counts of tokens. Oracle: the time of each launch, written out."""

from __future__ import annotations

from typing import Any

import pytest

from sim.events import Cause
from sim.parallel.routing import BACKWARD_LAUNCHES
from sim.spec.hardware import LAYOUT_HOST_SPEED, Hardware
from sim.spec.layer import Layer
from tests.harness import layer, machine
from tests.training.layouts.toys import SLOT, block, blocks, free, run, split_block, workload


def test_the_host_issues_a_prefetch_behind_the_work_before_it() -> None:
    """A host that launches slowly: each gather begins when the block before it is launched, and nothing is hidden."""
    elements, ranks, nvlink = 1_000_000, 4, 1e8
    gather = 4.0 * elements * (ranks - 1) / ranks / nvlink
    slow = {"stack": {"launch_cpu": f"{2 * gather!r} s"}}
    layout_run = run(machine(ranks, nvlink=nvlink), workload(blocks(4, 0.0, 0.0, elements), shard="parameters", **slow))
    quick = run(machine(ranks, nvlink=nvlink), workload(blocks(4, 0.0, 0.0, elements), shard="parameters"))
    forward = 4 * 2 * gather + gather  # four launches, of which each but the last precedes a gather
    assert layout_run.step_time >= forward + 4 * 2 * gather
    assert quick.step_time == pytest.approx((4 + 3 + 4) * gather + gather, rel=0.1)
    assert layout_run.stalls[Cause.LAUNCH] > 0


def test_counts_of_tokens_drain_the_host() -> None:
    """With its lead gone the host launches each expert layer while the GPU waits; not where capacity is fixed."""
    layers = []
    for number in range(4):
        layers.append(block(number))
        for name in ("dispatch", "experts"):
            kind = {"name": f"layers.{number}.{name}", "share": "expert", "groups": 4, "tokens": 8}
            layers.append(block(number, 1e-5, 1e-5).model_copy(update=kind))
    launch = {"launch_cpu": "1 ms"}
    counted, padded = (
        run(free(2), workload(layers, stack=launch, mesh={"expert_counts": counts}, expert=2, shard="none")) for counts in (True, False)
    )
    assert padded.stalls[Cause.LAUNCH] == pytest.approx(1e-3)  # of the first kernel
    # behind each count the GPU waits for the expert's kernel and, since that is short, for the one after it
    assert counted.stalls[Cause.LAUNCH] == pytest.approx(1e-3 + 4 * (2e-3 - 1e-5), rel=1e-6)


def test_launches_that_block_add_to_the_time_of_the_gpu() -> None:
    """CUDA_LAUNCH_BLOCKING: two kernels of each of four blocks are launched when the GPU is idle, and so are the rest of each block."""
    stack, mesh = {"launch_cpu": "1 ms"}, {"block_host": "2 ms"}
    ahead, blocking = (run(free(1), workload(blocks(4), stack={**stack, "launch_blocking": waits}, mesh=mesh)) for waits in (False, True))
    assert ahead.step_time == pytest.approx(4 * SLOT + 1e-3)  # of the first kernel
    assert blocking.step_time == pytest.approx(4 * SLOT + 4 * (2 * 1e-3 + (1 + BACKWARD_LAUNCHES) * 2e-3))
    assert blocking.stalls[Cause.LAUNCH] == pytest.approx(blocking.step_time - 4 * SLOT)


def test_checked_collectives_bound_a_step_by_the_host() -> None:
    # forward two messages of a block, backward two more and one gathered again; each check is seven messages between two ranks in turn
    seconds, count = 0.05, 3
    checked, plain = (
        run(free(2), workload([each for number in range(count) for each in split_block(number)], mesh=mesh, tensor=2)).step_time
        for mesh in ({"framework": "megatron", "collective_check": f"{seconds} s"}, {"framework": "megatron"})
    )
    launched = count * 5 * 7 * seconds
    assert launched < checked < launched + 2 * plain
    assert plain < 0.1 * checked


def test_a_checked_reduction_begins_when_the_host_has_compared_it() -> None:
    step = {
        check: run(free(4), workload(blocks(2), mesh={"collective_check": check}, shard="optimizer")).step_time for check in ("0 s", "1 s")
    }
    assert step["1 s"] - step["0 s"] == pytest.approx(2 * (4 * 4 - 1) * 1.0, rel=0.01)  # one bucket: a reduce-scatter, and a gather


def routed(number: int) -> list[Layer]:
    """Return a block of four experts: their product, and a combination that takes no time."""
    own = {"share": "expert", "read": "4 B", "write": "4 B"}
    return [
        block(number, share="expert", tokens=64, groups=4, channels=(8, 8)),
        layer(0.0, 0.0, name=f"layers.{number}.combine", **own),
    ]


def test_experts_keep_the_host_busy_and_graphs_less() -> None:
    layers = [each for number in range(4) for each in routed(number)]
    steps = {
        (host, graphs): run(
            free(2), workload(layers, mesh={"expert_host": host, "expert_counts": False}, stack={"cuda_graphs": graphs}, expert=2)
        ).step_time
        for host in ("0 s", "1 s")
        for graphs in (False, True)
    }
    assert steps["0 s", False] == pytest.approx(4 * SLOT, rel=0.01)
    assert steps["1 s", False] == pytest.approx(4 * (1.0 + 1.5), rel=0.02)
    assert steps["1 s", True] == pytest.approx(4 * (1.0 + 1.5) * (1 - 72 / 100), rel=0.03)  # graphs replay 72 of 100 kernels


def on_processor(**fields: float) -> Hardware:
    """Return a machine whose processor has other *fields*."""
    (group,) = free(2).groups
    host = group.node.host
    node = group.node.model_copy(update={"host": host.model_copy(update={"cpu": host.cpu.model_copy(update=fields)})})
    return free(2).model_copy(update={"groups": (group.model_copy(update={"node": node}),)})


def test_a_processor_that_launches_slower_takes_longer_for_a_block_and_for_each_kernel() -> None:
    """At half the speed of the servers for which a stack's host times hold, twice as long; `speed` alone changes only launches."""
    laid_out, launched = workload(blocks(4), mesh={"block_host": "1 s"}), workload(blocks(4), stack={"launch_cpu": "1 s"})
    assert run(on_processor(launch_speed=LAYOUT_HOST_SPEED / 2), laid_out).step_time == pytest.approx(2 * 4 * (1.0 + 1.5), rel=0.02)
    assert run(on_processor(speed=0.5), laid_out).step_time == pytest.approx(4 * (1.0 + 1.5), rel=0.02)
    reference = run(on_processor(), launched).step_time
    assert run(on_processor(launch_speed=0.5), launched).step_time == pytest.approx(2 * reference, rel=0.02)
    assert run(on_processor(speed=0.5), launched).step_time == pytest.approx(2 * reference, rel=0.02)


def test_blocks_keep_the_host_busy_operator_by_operator() -> None:
    """A block's forward takes the host a second, its backward 1.5, what runs forward again one more; replayed graphs take none."""

    laid_out = workload(blocks(4), mesh={"block_host": "1 s"})
    again = laid_out.with_training(activation_checkpointing="blocks")
    graphs = workload(blocks(4), mesh={"block_host": "1 s"}, stack={"cuda_graphs": True})
    assert run(free(2), laid_out).step_time == pytest.approx(4 * (1.0 + 1.5), rel=0.02)
    assert run(free(2), again).step_time == pytest.approx(4 * (1.0 + 2.5), rel=0.02)
    assert run(free(2), graphs).step_time == pytest.approx(4 * SLOT, rel=0.01)


@pytest.mark.parametrize(("modules", "share"), [((), 0.0), (("core_attn",), 0.25), (("mlp",), 0.75), (("core_attn", "mlp"), 1.0)])
def test_modules_that_run_again_cost_the_host_their_share_of_the_block(modules: tuple[str, ...], share: float) -> None:
    """Of four kernels of a block, one is attention's and three are the MLP's; with both, the whole block runs again."""
    names = ("attention.core", "feed.gate_up", "feed.activation", "feed.down")
    named = [f"layers.{number}.{name}" for number in range(4) for name in names]
    layers = [layer(0.001, 0.002, 1000, name=name, read="4 B", write="4 B", saved="4 B") for name in named]
    again = workload(layers, mesh={"block_host": "1 s"}).with_training(recompute_modules=modules)
    assert run(free(2), again).step_time == pytest.approx(4 * (1.0 + 1.5 + share), rel=0.02)


def test_each_module_keeps_the_host_busy() -> None:
    """A dense decoder's block has five modules; in 8 bits, four of them quantize. Backward takes half as long again."""
    five = ("attention_norm", "attention.qkv", "attention.core", "attention.output", "ffn_norm", "feed.gate_up", "feed.down")
    ops = {"attention_norm": "norm", "ffn_norm": "norm", "attention.core": "attention"}
    layers = [
        layer(0.001, 0.002, 1000, name=f"layers.{number}.{name}", op=ops.get(name, "gemm"), read="4 B", write="4 B", saved="4 B")
        for number in range(4)
        for name in five
    ]
    joined = {"fused_casts": ["attention.qkv", "feed.gate_up"]}

    def seconds(mesh: dict[str, str], stack: dict[str, Any], **training: Any) -> float:
        return run(free(2), workload(layers, mesh=mesh, stack={**joined, **stack}).with_training(**training)).step_time

    assert seconds({"module_host": "1 s"}, {}) == pytest.approx(4 * 5 * 2.5, rel=0.02)
    assert seconds({"module_host": "1 s"}, {"fused_casts": []}) == pytest.approx(4 * 7 * 2.5, rel=0.02)  # two norms of their own
    assert seconds({"module_host": "1 s"}, {"cuda_graphs": True}) < 1.0
    assert seconds({"quantize_host": "1 s"}, {}) < 1.0
    assert seconds({"quantize_host": "1 s"}, {}, precision="fp8") == pytest.approx(4 * 4 * 2.5, rel=0.02)
    again = {"recompute_modules": ("mlp",)}
    assert seconds({"module_host": "1 s"}, {}, **again) == pytest.approx(4 * (5 * 2.5 + 2), rel=0.02)
    assert seconds({"module_host": "1 s", "checkpoint_host": "3 s"}, {}, **again) == pytest.approx(4 * (5 * 2.5 + 2 + 3), rel=0.02)


def test_each_tensor_message_keeps_the_host_busy() -> None:
    """A block with sequence parallelism starts two messages in forward and two in backward; replayed graphs start none."""
    split = {"layers": [each for number in range(4) for each in split_block(number)], "tensor": 2, "sequence": True}
    started = run(free(2), workload(**split, mesh={"tensor_host": "1 s"}))
    assert started.step_time == pytest.approx(4 * 4 * 1.0, rel=0.02)
    graphs = run(free(2), workload(**split, mesh={"tensor_host": "1 s"}, stack={"cuda_graphs": True}))
    assert graphs.step_time == pytest.approx(run(free(2), workload(**split)).step_time, rel=0.01)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_backward_that_is_split_costs_the_host_no_more(schedule: str) -> None:
    """Two stages of two blocks, two micro-batches: hosts launch ahead of what arrives, so that a step is what one of them launches."""
    laid_out = workload(blocks(4), mesh={"block_host": "1 s"}, micro_batches=2, pipeline=2, schedule=schedule)
    assert run(free(2), laid_out).step_time == pytest.approx(2 * 2 * (1.0 + 1.5), rel=0.05)
