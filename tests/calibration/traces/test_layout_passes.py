"""Is a rank's own work separated in a profile of a divided model? Oracles: spans written by hand, and conservation of their seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.lab.layout_score import COMMITTED_POINTS, HARDWARE, layout_workload
from calibration.lab.plan import WORKLOADS
from calibration.measure.division import Division
from calibration.questions import Folders, machine_named
from calibration.traces.import_trace import ImportedJob, import_traces
from calibration.traces.kineto import CPU, RankTrace, TraceSpan
from calibration.traces.layout_passes import RankPasses, rank_passes, stage_passes, with_unit_times
from calibration.traces.replay import JobDescription, replay_text
from sim.analysis.stalls import Window
from sim.cluster.build import with_nodes
from sim.cluster.gpu import layer_time
from sim.events import Cause, EventLog
from sim.mesh import prepare, run_layout
from sim.parallel.split import split
from sim.spec.library import load_hardware, load_workload
from sim.spec.sections import with_fields
from sim.spec.yaml import SpecError

ROOT = Path(__file__).resolve().parents[3]
OWN = RankPasses(0.03, 0.06, 0.01)


def trace(rank: int, slower: float = 1.0) -> RankTrace:
    """Three steps: forward, a gather of 0.2 s inside it; backward, in which two collectives overlap for 0.1 s; the optimizer."""
    rank_trace = RankTrace("rank.json", rank, 2, "host", CPU, layout_event="gloo:all_gather")
    at = 0.0
    for number in range(3):
        forward, backward, update = (seconds * slower for seconds in OWN)
        begin, at = at, at + forward / 2 + 0.2 + forward / 2
        rank_trace.collectives.append(TraceSpan("gloo:all_gather", begin + forward / 2, begin + forward / 2 + 0.2))
        rank_trace.compute += [ran(begin, begin + forward / 2), ran(at - forward / 3, at)]  # the host is at work before the second one
        rank_trace.backward.append(TraceSpan("backward", at, at + 0.01))
        rank_trace.collectives += [TraceSpan("gloo:all_reduce", at + 0.01, at + 0.31), TraceSpan("gloo:all_reduce", at + 0.21, at + 0.41)]
        rank_trace.compute += [ran(at, at + 0.01), ran(at + 0.41, at + 0.4 + backward)]
        at += 0.4 + backward
        rank_trace.optimizer.append(TraceSpan("SGD", at, at + update))
        rank_trace.compute.append(ran(at, at + update / 2))
        at += update
        rank_trace.steps[number] = TraceSpan(f"ProfilerStep#{number}", begin, at)
    return rank_trace


def ran(start: float, end: float) -> TraceSpan:
    return TraceSpan("aten::mm", start, end, start, start)


def staged(rank: int, *order: str, tail: float = 0.0, factors: Sequence[float] = (1.0, 1.0)) -> RankTrace:
    """Three steps of a stage: forwards of 0.1 s and backwards of 0.2 s in this order, each behind 0.5 s of message; 0.05 s of optimizer.

    The passes of the steps that count take *factors* times as long; *tail* seconds of work are between passes and optimizer.
    """
    rank_trace = RankTrace("rank.json", rank, 2, "host", CPU, layout_event="gloo:recv")
    at = 0.0
    for number, factor in enumerate((1.0, *factors)):
        begin = at
        for part in order:
            rank_trace.collectives.append(TraceSpan("gloo:recv", at, at + 0.5))
            at += 0.5
            seconds = factor * (0.1 if part == "F" else 0.2)
            rank_trace.compute.append(ran(at, at + seconds))
            if part == "B":
                rank_trace.backward.append(TraceSpan("backward", at, at + seconds))
            at += seconds
        rank_trace.compute.append(ran(at, at + tail))
        at += tail
        rank_trace.optimizer.append(TraceSpan("SGD", at, at + 0.05))
        rank_trace.compute.append(ran(at, at + 0.05))
        at += 0.05
        rank_trace.steps[number] = TraceSpan(f"ProfilerStep#{number}", begin, at)
    return rank_trace


def imported(*traces: RankTrace) -> ImportedJob:
    windows = [Window(0.0, 1.0, 2) for _ in traces]
    return ImportedJob(traces, EventLog(lambda: 0.0), windows, 0.7, (), [{} for _ in traces])


def test_what_is_left_of_a_step_is_the_ranks_own() -> None:
    first, second = rank_passes(imported(trace(0), trace(1, slower=2.0))).values()
    assert first == pytest.approx(OWN)
    assert second == pytest.approx([2.0 * seconds for seconds in OWN])


def test_a_gpu_computes_while_its_kernels_run() -> None:
    """A kernel launched in forward that runs behind the optimizer's launch is forward's; what two streams do at once counts once."""
    rank_trace = RankTrace("rank.json", 0, 1, "host", "H100", layout_event="FSDP::all_gather")
    rank_trace.steps[0] = TraceSpan("ProfilerStep#0", 0.0, 1.0)
    rank_trace.backward.append(TraceSpan("backward", 0.2, 0.3))
    rank_trace.optimizer.append(TraceSpan("SGD", 0.5, 0.6))
    rank_trace.compute += [
        TraceSpan("gemm", 0.1, 0.6, 0.05, 0.06),
        TraceSpan("copy", 0.4, 0.7, 0.1, 0.11),
        TraceSpan("gemm", 0.7, 0.9, 0.25, 0.26),
    ]
    rank_trace.compute += [TraceSpan("norm", 0.9, 0.95, 0.4, 0.41), TraceSpan("update", 1.2, 1.3, 0.55, 0.56)]
    (passes,) = rank_passes(imported(rank_trace)).values()
    assert passes == pytest.approx(RankPasses(0.6, 0.25, 0.1))


def on_gpu(rank: int, own: RankPasses) -> RankTrace:
    """One step on a GPU: kernels of each pass, launched well before they run, behind a gather of a second."""
    rank_trace = RankTrace("rank.json", rank, 8, "host", "H100", layout_event="FSDP::all_gather")
    forward, backward = own[:2]
    rank_trace.collectives.append(TraceSpan("ncclDevKernel_AllGather_RING_LL", 0.0, 1.0))
    rank_trace.backward.append(TraceSpan("backward", 0.2, 0.3))
    rank_trace.optimizer.append(TraceSpan("AdamW", 0.5, 0.6))
    rank_trace.compute += [
        TraceSpan("gemm", 1.0, 1.0 + forward, 0.1, 0.11),
        TraceSpan("gemm", 1.0 + forward, 1.0 + forward + backward, 0.25, 0.26),
    ]
    rank_trace.compute.append(TraceSpan("multi_tensor_apply", 1.0 + forward + backward, 1.0 + sum(own), 0.55, 0.56))
    rank_trace.steps[0] = TraceSpan("ProfilerStep#0", 0.0, 1.0 + sum(own))
    return rank_trace


def test_a_sharded_job_of_gpus_is_replayed(tmp_path: Path) -> None:
    """Its ranks' own work, slightly slowed by concurrent collectives, and half of it with half the samples."""
    own = RankPasses(0.2, 0.4, 0.01)
    laid_out, mine = tmp_path / "sharded.yaml", tmp_path / "mine.yaml"
    laid_out.write_text("extends: llama-3.1-8b\nname: sharded\ntraining: {parallel: {shard: parameters}}\n")
    mine.write_text(
        replay_text(imported(*(on_gpu(rank, own) for rank in range(8))), JobDescription("hgx-h100", str(laid_out), batch=2), mine)
    )
    hardware = load_hardware("hgx-h100", ["node.gpu.kernels.sustained_cv=0"]).spec  # ranks alike, as in the trace
    full, half = (run_layout(hardware, load_workload(str(mine), (f"training.batch={batch}",)).spec) for batch in (2, 1))
    assert sum(own) <= full.stalls[Cause.COMPUTE] < 1.06 * sum(own)
    fewer = full.stalls[Cause.COMPUTE] - half.stalls[Cause.COMPUTE]
    assert fewer == pytest.approx((own.forward + own.backward) / 2, rel=0.05)
    by_option = JobDescription("hgx-h100", "llama-3.1-8b", batch=2, layout=(("--shard", "parallel.shard", "parameters"),))
    mine.write_text(replay_text(imported(*(on_gpu(rank, own) for rank in range(8))), by_option, mine))
    assert run_layout(hardware, load_workload(str(mine)).spec).step_time == full.step_time


def test_a_layer_table_takes_the_optimizer_of_the_trace(tmp_path: Path) -> None:
    """A table does not say it, and SGD's state is half of Adam's; a workload does, whose user knows better."""
    (table := tmp_path / "table.yaml").write_text((ROOT / "workloads/models/gpt2.yaml").read_text())
    (job := tmp_path / "job.yaml").write_text("extends: gpt2\nname: job\ntraining: {optimizer: {name: lamb}}\n")
    traces = imported(*(on_gpu(rank, RankPasses(0.2, 0.4, 0.01)) for rank in range(8)))  # of AdamW
    for named, rule in ((table, "adam"), (job, "lamb")):
        mine = tmp_path / f"of-{named.name}"
        by = JobDescription("hgx-h100", str(named), batch=2, layout=(("--shard", "parallel.shard", "parameters"),))
        mine.write_text(replay_text(traces, by, mine))
        written = load_workload(str(mine)).spec
        assert written.training.optimizer.name == rule
        update = run_layout(load_hardware("hgx-h100", ["node.gpu.kernels.sustained_cv=0"]).spec, written).stalls[Cause.COMPUTE] - 0.6
        assert update == pytest.approx(0.01, abs=0.03)


def test_passes_of_a_pipeline_are_told_apart() -> None:
    """Of 1F1B with four micro-batches: the first stage is one forward ahead."""
    passes = rank_passes(imported(staged(0, *"FFBFBFBB"), staged(1, *"FBFBFBFB")))
    assert list(passes.values()) == [pytest.approx(RankPasses(0.4, 0.8, 0.05))] * 2


def test_layers_take_what_was_seen_together() -> None:
    base = layout_workload(Division(tensor=2), 8)
    gpu = machine_named(HARDWARE).groups[0].node.gpu
    layers = with_unit_times(base, gpu, [(range(6), {"F": 0.3, "B": 0.7})])
    times = [layer.measured for layer in layers if layer.measured is not None]
    assert sum(each.forward for each in times) == pytest.approx(0.3)
    assert sum(each.backward for each in times) == pytest.approx(0.7)


def test_times_of_experts_are_those_of_the_parts_that_tensor_ranks_hold() -> None:
    """Oracle: the pieces that the simulator runs; each takes the same share of its computed time."""
    base = load_workload("qwen3-30b-a3b", ("training.parallel={tensor: 4, expert: 1}", "training.batch=1")).spec
    gpu = load_hardware("hgx-h100").spec.groups[0].node.gpu
    divided = split(base.model, base.training.parallel)
    layers = with_unit_times(base, gpu, [(range(len(divided)), {"F": 0.3, "B": 0.7})])
    pieces = [piece.layer for unit in divided for piece in unit.pieces]
    assert {piece.share for piece in pieces} >= {"expert", "colwise"}
    shares = {
        layer.measured.forward / layer_time(piece, gpu, base.training.precision, base.layer_stack, base.training.batch, False).time
        for layer, piece in zip(layers, pieces, strict=True)
        if layer.measured is not None and layer.measured.forward
    }
    assert max(shares) == pytest.approx(min(shares))


def test_a_sharded_job_is_replayed(tmp_path: Path) -> None:
    """On a network that costs next to nothing the step is the ranks' own work; on a slower one it is longer."""
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    description = JobDescription(machine, str(written(tmp_path)), batch=8, folders=Folders(None, WORKLOADS))
    mine = tmp_path / "mine.yaml"
    mine.write_text(replay_text(imported(trace(0), trace(1)), description, mine))
    workload = load_workload(str(mine), library=WORKLOADS).spec
    fast, slow = (with_nodes(machine_named(HARDWARE, (f"node.nic.bandwidth={rate}",)), 2) for rate in ("1 Tbps", "1 Gbps"))
    stack = workload.training.stack
    assert stack.library.gloo_transport is not None
    free = with_fields(stack, gloo_transport=stack.library.gloo_transport.model_copy(update={"launch": 0.0, "cpu_time_per_byte": 0.0}))
    bare = workload.with_training(stack=free)
    assert run_layout(fast, bare).step_time == pytest.approx(sum(OWN), rel=0.1)
    assert run_layout(slow, workload).step_time > 2 * sum(OWN)


def test_a_job_on_processors_exchanges_over_gloo_whatever_its_stack(tmp_path: Path) -> None:
    """A stack made for NCCL is replayed with Gloo, whose collectives the host waits for: NCCL would need GPUs."""
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    described_by = tmp_path / "laid-out.yaml"
    described_by.write_text("extends: lab-decoder\nname: laid-out\ntraining: {stack: torchtitan-2.x, parallel: {shard: parameters}}\n")
    mine = tmp_path / "mine.yaml"
    description = JobDescription(machine, str(described_by), batch=8, folders=Folders(None, WORKLOADS))
    mine.write_text(replay_text(imported(trace(0), trace(1)), description, mine))
    stack = load_workload(str(mine), library=WORKLOADS).spec.training.stack
    assert (stack.library.backend, stack.mesh and stack.mesh.host_waits) == ("gloo", "everything")
    assert stack.library.gloo_transport is not None


def test_tokens_of_a_sample_are_those_of_the_workload_also_in_a_stream_of_tokens(tmp_path: Path) -> None:
    """Of data set `tokens` a sample has one token, unless the model says how many; a table of layers does not."""
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    described_by, mine = tmp_path / "laid-out.yaml", tmp_path / "mine.yaml"
    described_by.write_text(
        "extends: lab-decoder\nname: laid-out\ndataset: tokens\ntraining: {stack: torchtitan-2.x, parallel: {tensor: 2}}\n"
    )
    description = JobDescription(machine, str(described_by), batch=8, folders=Folders(None, WORKLOADS))
    mine.write_text(replay_text(imported(trace(0), trace(1)), description, mine))
    workload = load_workload(str(mine), library=WORKLOADS).spec
    data, table = workload.dataset, load_workload(str(described_by), library=WORKLOADS).spec.dataset
    assert workload.sequence == 64 and (data.sample, data.samples, data.prep) == (table.sample, table.samples, table.prep)
    assert run_layout(with_nodes(machine_named(HARDWARE), 2), workload).step_time > sum(OWN)


def test_a_workload_without_a_layout_or_a_stack_is_told_to_say_how(tmp_path: Path) -> None:
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    described_by = tmp_path / "plain.yaml"
    described_by.write_text("extends: lab-decoder\nname: plain\ntraining: {stack: torch-2.x-ddp}\n")
    description = JobDescription(machine, str(described_by), batch=8, folders=Folders(None, WORKLOADS))
    with pytest.raises(
        SpecError, match=r"does not describe how the 2 ranks of rank\.json share the model; add, for example, --shard parameters"
    ):
        replay_text(imported(trace(0), trace(1)), description, tmp_path / "mine.yaml")


def test_a_fitted_stack_says_what_the_sockets_of_a_divided_job_cost(tmp_path: Path) -> None:
    """`calibration fit` writes a stack for DDP over Gloo. Oracle: the transport it describes, and slower steps than with its prior."""
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    described_by, fitted = tmp_path / "laid-out.yaml", tmp_path / "my-stack.yaml"
    described_by.write_text("extends: lab-decoder\nname: laid-out\ntraining: {stack: torchtitan-2.x, parallel: {shard: parameters}}\n")
    transport = "{extends: tcp-single-flow, flow_cap: 60 MB/s, hop_latency: 3 ms, source: measured}"
    fitted.write_text(f"extends: gloo-ddp\nname: my-ddp\ngloo_transport: {transport}\n")
    steps = {}
    for stack in ("", str(fitted)):
        mine = tmp_path / f"mine-{bool(stack)}.yaml"
        description = JobDescription(machine, str(described_by), stack=stack, batch=8, folders=Folders(None, WORKLOADS))
        mine.write_text(replay_text(imported(trace(0), trace(1)), description, mine))
        workload = load_workload(str(mine), library=WORKLOADS).spec
        assert workload.training.stack.mesh is not None and workload.training.stack.library.gloo_transport is not None
        steps[stack] = run_layout(with_nodes(machine_named(HARDWARE), 2), workload).step_time
    assert workload.training.stack.library.gloo_transport.flow_cap == 60e6
    assert workload.training.stack.library.gloo_transport.hop_latency == 3e-3
    assert steps[str(fitted)] > 1.5 * steps[""]


def replayed_pipeline(folder: Path, *stages: RankTrace) -> float:
    """Return the step (s) of a replay of two stages with four micro-batches, whose messages are free."""
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    described_by = written(folder, "{pipeline: 2}", "gradient_accumulation_steps: 4, ")
    description = JobDescription(machine, str(described_by), batch=8, folders=Folders(None, WORKLOADS))
    mine = folder / "mine.yaml"
    mine.write_text(replay_text(imported(*stages), description, mine))
    workload = load_workload(str(mine), library=WORKLOADS).spec
    stack = workload.training.stack
    assert stack.library.gloo_transport is not None
    free = with_fields(stack, gloo_transport=stack.library.gloo_transport.model_copy(update={"launch": 0.0, "cpu_time_per_byte": 0.0}))
    bare = workload.with_training(stack=free)
    fast = with_nodes(machine_named(HARDWARE, ("node.nic.bandwidth=1 Tbps",)), 2)
    return run_layout(fast, bare).step_time


def test_a_pipeline_is_replayed(tmp_path: Path) -> None:
    """Equal stages whose messages are free: m + p - 1 forwards and backwards (GPipe, arXiv 1811.06965), and the optimizer."""
    step = replayed_pipeline(tmp_path, staged(0, *"FFBFBFBB"), staged(1, *"FBFBFBFB"))
    assert step == pytest.approx((4 + 2 - 1) * 0.3 + 0.05, rel=0.02)


def test_what_the_last_stage_does_after_its_passes_is_hidden(tmp_path: Path) -> None:
    """torch joins its outputs once a step while the first stage is still in its last backward pass; had it belonged to the passes, each
    would be longer. The same on the first stage ends the step later."""
    step = replayed_pipeline(tmp_path, staged(0, *"FFBFBFBB"), staged(1, *"FBFBFBFB", tail=0.15))
    assert step == pytest.approx((4 + 2 - 1) * 0.3 + 0.05, rel=0.02)
    step = replayed_pipeline(tmp_path, staged(0, *"FFBFBFBB", tail=0.15), staged(1, *"FBFBFBFB"))
    assert step == pytest.approx((4 + 2 - 1) * 0.3 + 0.15 + 0.05, rel=0.02)


def step_of_stages(first: float, second: float) -> float:
    """Return the step (s) of 1F1B with free messages whose stages take *first* and *second* times as long, pass by pass."""
    orders, factors = (list("FFBFBFBB"), list("FBFBFBFB")), (first, second)
    now = [0.0, 0.0]
    done: dict[tuple[int, str], list[float]] = {(stage, part): [] for stage in (0, 1) for part in "FB"}
    while any(orders):
        for stage in (0, 1):
            if not orders[stage]:
                continue
            part = orders[stage][0]
            needs = done[1 - stage, part] if (part == "F") == (stage == 1) else [0.0] * 4
            if len(needs) > len(done[stage, part]):
                now[stage] = max(now[stage], needs[len(done[stage, part])]) + factors[stage] * (0.1 if part == "F" else 0.2)
                done[stage, part].append(now[stage])
                orders[stage].pop(0)
    return now[0] + 0.05


def test_stages_of_a_replayed_pipeline_wait_for_each_other_in_every_step(tmp_path: Path) -> None:
    """Oracle: the mean of the steps, pass by pass, which is longer than the step of mean passes."""
    first, second = (1.2, 0.8, 1.0), (0.8, 1.2, 1.0)
    due = [step_of_stages(*factors) for factors in zip(first, second, strict=True)]
    assert due[2] == pytest.approx(5 * 0.3 + 0.05) and sum(due) / 3 > 1.03 * due[2]
    step = replayed_pipeline(tmp_path, staged(0, *"FFBFBFBB", factors=first), staged(1, *"FBFBFBFB", factors=second))
    assert step == pytest.approx(sum(due) / 3, rel=0.01)


@pytest.mark.alone
@pytest.mark.nightly
@pytest.mark.needs("torch")
@pytest.mark.parametrize("layout", [Division(pipeline=2, micro_batches=4), Division(pipeline=2, micro_batches=4, schedule="gpipe")])
def test_a_pipeline_that_torch_profiled_over_gloo_is_replayed(layout: Division, tmp_path: Path) -> None:
    """Oracle: torch.distributed.pipelining under torch.profiler, between two processes that no network slows."""
    from calibration.measure.ddp_steps import StepRequest, spawn
    from calibration.measure.layout_steps import LayoutRequest

    jobs = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        request = StepRequest("calibration.measure.decoder:decoder", ("64:int64",), 8, steps=2, device="cpu", trace=str(folder))
        spawn(request, 2, program=("calibration.measure.layout_steps", LayoutRequest(layout, 2).text()))
        jobs.append(import_traces(sorted(folder.glob("rank*.json"))))
    job = min(jobs, key=lambda job: job.step_time)  # the one that other processes disturbed least
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    by = written(tmp_path, f"{{pipeline: 2, schedule: {layout.schedule}}}", "gradient_accumulation_steps: 4, ")
    mine = tmp_path / "mine.yaml"
    mine.write_text(replay_text(job, JobDescription(machine, str(by), batch=8, folders=Folders(None, WORKLOADS)), mine))
    fast = with_nodes(machine_named(HARDWARE, ("node.nic.bandwidth=1 Tbps",)), 2)
    assert run_layout(fast, load_workload(str(mine), library=WORKLOADS).spec).step_time == pytest.approx(job.step_time, rel=0.15)


def written(folder: Path, layout: str = "{shard: parameters}", training: str = "") -> Path:
    """A workload that says the layout."""
    path = folder / "laid-out.yaml"
    path.write_text(f"extends: lab-decoder\nname: laid-out\ntraining: {{{training}stack: lab-gloo-mesh, parallel: {layout}}}\n")
    return path


def test_what_a_profile_cannot_tell_is_said() -> None:
    with pytest.raises(SpecError, match="no backward pass followed by an optimizer"):
        rank_passes(imported(replace(trace(0), backward=[])))


def test_one_rank_of_each_stage_is_enough_on_part_of_a_node(tmp_path: Path) -> None:
    """Four ranks of a node with eight GPUs, two tensor ranks in each of two stages: ranks 0 and 2, or an error that names one."""
    base = load_workload("gpt2-large", ("training.parallel.tensor=2", "training.parallel.pipeline=2")).spec
    layout = prepare(load_hardware("hgx-h100").spec, base, 4)
    first, second = RankPasses(0.1, 0.2, 0.01), RankPasses(0.3, 0.5, 0.02)
    assert stage_passes({0: first, 2: second}, layout) == [first, second]
    with pytest.raises(SpecError, match="no trace is of a rank of pipeline stage 1; add that of rank 2"):
        stage_passes({0: first, 1: first}, layout)
