"""Is a layout that a profile contradicts refused? Oracle: what torch does in each, as in profiles over Gloo and NCCL."""

from __future__ import annotations

import pytest

from calibration.traces.kineto import CPU, RankTrace, TraceSpan
from calibration.traces.shown_layout import require_layout
from sim.mesh import prepare
from sim.parallel.units import units
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError

STEPS = 3
HARDWARE = load_hardware("p3.16xlarge").spec
FSDP = ("gloo:all_gather", "gloo:all_reduce")
MESSAGES = ("gloo:recv", "gloo:send")


def profiled(*collectives: str, rank: int = 0, fsdp: bool = False, kept: int = 0) -> RankTrace:
    """Three steps of 1 s in which each of *collectives* runs once and *kept* gradients are accumulated."""
    trace = RankTrace(f"rank{rank}.json", rank, 2, "host", CPU, fsdp=fsdp)
    for number in range(STEPS):
        trace.steps[number] = TraceSpan(f"ProfilerStep#{number}", number, number + 1.0)
        trace.collectives += [TraceSpan(name, number + 0.1, number + 0.2) for name in collectives]
        trace.gradients += [TraceSpan("", number + 0.5, number + 0.5)] * kept
    return trace


def refusal(trace: RankTrace, *layout: str) -> str:
    """Return the message with which *layout* is refused for *trace*; empty if it is not."""
    base = load_workload("gpt2", [f"training.{field}" for field in layout]).spec
    try:
        require_layout([trace], prepare(HARDWARE, base, 2), base.model)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("trace", "layout"),
    [
        (profiled(*FSDP, fsdp=True), ["parallel.shard=parameters"]),
        (profiled("ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"), ["parallel.shard=parameters"]),
        (profiled("gloo:all_reduce"), ["parallel.tensor=2", "parallel.sequence=false"]),
        (profiled("gloo:all_gather", "gloo:all_reduce"), ["parallel.tensor=2"]),
        (profiled("gloo:all_gather", "gloo:all_reduce"), ["parallel.tensor=2", "parallel.sequence=false"]),  # scores that are gathered
        (profiled(*MESSAGES), ["parallel.pipeline=2", "gradient_accumulation_steps=4"]),
        (profiled("ncclDevKernel_SendRecv", "gloo:all_gather"), ["parallel.context=2"]),
    ],
)
def test_layouts_that_torch_runs_so_are_accepted(trace: RankTrace, layout: list[str]) -> None:
    assert refusal(trace, *layout) == ""


@pytest.mark.parametrize(
    ("trace", "layout", "message"),
    [
        (profiled(*FSDP, fsdp=True), ["parallel.tensor=2"], "shows FSDP, but the layout does not shard weights; add --shard parameters"),
        (profiled(*MESSAGES), ["parallel.shard=parameters"], "shows no all-gather, so its ranks do not shard weights"),
        (profiled(*FSDP), ["parallel.pipeline=2", "gradient_accumulation_steps=4"], "shows no messages between ranks"),
        (profiled(*MESSAGES, "gloo:all_gather"), ["parallel.tensor=2"], "shows gloo:recv, but the layout has no stages"),
        (profiled("gloo:all_reduce"), ["parallel.tensor=2"], "add --parallel sequence=false"),
    ],
)
def test_other_layouts_are_refused_with_what_to_write(trace: RankTrace, layout: list[str], message: str) -> None:
    assert message in refusal(trace, *layout) and refusal(trace, *layout).startswith("rank0.json: ")


def test_micro_batches_are_counted_by_the_gradients_of_a_stage() -> None:
    """Each tensor of the stage is accumulated once per micro-batch; a count that is no whole number says nothing."""
    base = load_workload("gpt2", ["training.parallel.pipeline=2", "training.gradient_accumulation_steps=4"]).spec
    layout, members = prepare(HARDWARE, base, 2), [layers for _, _, layers in units(base.model)]
    tensors = sum(len(layer.gradients) for unit in layout.units_of(1) for layer in members[unit])
    steps = ("parallel.pipeline=2", "gradient_accumulation_steps=4")
    assert refusal(profiled(*MESSAGES, rank=1, kept=4 * tensors), *steps) == ""
    assert refusal(profiled(*MESSAGES, rank=1, kept=4 * tensors), "parallel.pipeline=2", "gradient_accumulation_steps=2") == (
        "rank1.json: shows 4 micro-batches in a step, but the layout has 2; write --micro-batches 4"
    )
    assert refusal(profiled(*MESSAGES, rank=1, kept=2 * tensors + tensors // 2), *steps) == ""
