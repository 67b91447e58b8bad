"""Does a replayed profile predict the job elsewhere? Oracles: the simulator, given only what the trace shows; traces by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from calibration.cli import main
from calibration.lab.plan import WORKLOADS as LAB
from calibration.questions import Folders
from calibration.traces.agreement import complete_description
from calibration.traces.import_trace import import_traces
from calibration.traces.pass_times import kernel_class, measure_passes
from calibration.traces.replay import JobDescription, replay_text, write_replay
from sim.events import Cause
from sim.report.trace.run_trace import write_trace
from sim.spec.library import load_hardware, load_workload
from sim.spec.stack import Ddp
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer
from tests.calibration.traces.test_cpu_traces import cpu_profile
from tests.calibration.traces.test_import_trace import NCCL, STEP, Event, event, gpu, profile

ROOT = Path(__file__).resolve().parents[3]
SYNTHETIC = "input.loader=synthetic"


def step_time(hardware: str, workload: str, overrides: Sequence[str] = (), **keys: int | str | None) -> float:
    scenario_answer = answer(Scenario(hardware, workload, (SYNTHETIC, *overrides), **keys))  # type: ignore[arg-type]
    return scenario_answer.run.jobs[0].warm.step_time


HIDDEN = ("node.gpu.vector_factor=1.4", "training.stack.launch_cpu=25 us", "training.compute_factor=1.2")
"""Properties of the machine of a simulated trace, which the replay does not know."""
JOBS: dict[str, tuple[str, str, int, int, tuple[str, ...], str | None]] = {
    "small buckets": ("p3.16xlarge", "resnet50", 2, 32, (), "torch-1.13-ddp"),
    "host-bound": ("p3.16xlarge", "resnet50", 2, 4, (), None),
    "large gradients": ("p3.8xlarge", "vgg16", 2, 32, (), "flat"),
    "16 bits": ("p4d.24xlarge", "mobilenet_v2", 2, 32, ("training.precision=amp_fp16",), None),
    "accumulation": ("g4dn.12xlarge", "resnet18", 2, 32, ("training.gradient_accumulation_steps=3",), "torch-2.x-ddp"),
    "recomputed": ("p4d.24xlarge", "bert-base-seq128", 2, 16, ("training.activation_checkpointing=blocks",), None),
    "horovod": ("dgx-a100", "resnet50", 2, 64, (), "horovod-0.21"),
}


@pytest.mark.parametrize(
    "names", [["small buckets", "accumulation"], pytest.param(list(JOBS), marks=pytest.mark.nightly)], ids=["two", "all"]
)
def test_a_simulated_job_is_replayed_where_it_ran_and_on_other_numbers_of_nodes(tmp_path: Path, names: list[str]) -> None:
    """Within 1 % where it ran, 3 % on 1 and 4 nodes and with buckets of 5 MiB."""
    wrong = []
    for name in names:
        hardware, workload, nodes, batch, overrides, stack = JOBS[name]
        truth = (*overrides, *HIDDEN)
        run = answer(Scenario(hardware, workload, (SYNTHETIC, *truth), nodes=nodes, batch=batch, stack=stack), keep_rates=True).run
        write_trace(run, tmp_path / "t.json.gz")
        mine = tmp_path / f"{name}.yaml"
        mine.write_text(replay_text(import_traces([tmp_path / "t.json.gz"]), JobDescription(), mine))
        has_caps = isinstance(run.jobs[0].job.workload.training.stack.exchange, Ddp)
        buckets = [(nodes, 0.03, ("training.stack.bucket_cap=5 MiB",))] if has_caps else []
        for where, most, more in ((nodes, 0.01, ()), (1, 0.03, ()), (4, 0.03, ()), *buckets):
            direct = step_time(hardware, workload, (*truth, *more), nodes=where, batch=batch, stack=stack)
            seconds = step_time(hardware, str(mine), more, nodes=where)
            if abs(seconds / direct - 1.0) > most:
                wrong.append(f"{name}, {where} nodes {more}: {seconds:.6f} s, simulated {direct:.6f} s")
    assert not wrong, wrong


def test_what_the_model_misses_is_missed_nowhere_else(tmp_path: Path) -> None:
    """All layers take 1.37 times what the model says: on another machine, network and batch the replay knows it."""
    hidden = ("training.compute_factor=1.37",)
    run = answer(Scenario("p3.16xlarge", "resnet50", (SYNTHETIC, *hidden), nodes=2, batch=64), keep_rates=True).run
    write_trace(run, tmp_path / "t.json.gz")
    mine = tmp_path / "mine.yaml"
    assert main(["-q", "import-trace", str(tmp_path / "t.json.gz"), "--workload-out", str(mine)]) == 0
    for hardware, nodes, batch in (("dgx-a100", 4, 64), ("p3.16xlarge", 2, 32), ("g4dn.12xlarge", 1, 48)):
        direct = step_time(hardware, "resnet50", hidden, nodes=nodes, batch=batch)
        assert step_time(hardware, str(mine), nodes=nodes, batch=batch) == pytest.approx(direct, rel=0.01)


# --- of a trace alone ------------------------------------------------------------------------------------------------


def torch_step(number: int, shapes: bool = True) -> list[Event]:
    """One step of 100 ms of a model with two parameters, as recorded by torch.

    Copy 0-4 ms; forward: a convolution 4-20 and a ReLU 20-24 ms; backward: a product 24-44, keeping the gradient of 10 M elements 44-46, a
    convolution 46-70, keeping that of 20 M 70-72; exchange 72-90; Adam 90-98, launched before.
    """
    at, ident = number * STEP, 100 * number

    def kernel(place: int, start: float, end: float, name: str, stream: int = 7, category: str = "kernel") -> list[Event]:
        return gpu(ident + place, (at + 100.0 * place, at + 100.0 * place + 50), (at + 1e3 * start, at + 1e3 * end), name, stream, category)

    def backward(first: float, last: float, name: str, elements: int = 0) -> list[Event]:
        start, end = at + 100.0 * first - 20, at + 100.0 * last + 70
        inner = event("cpu_op", name, start + 2, start + 10, **({"Input Dims": [[elements]], "Input type": ["float"]} if shapes else {}))
        outer = event("cpu_op", f"autograd::engine::evaluate_function: {name}", start, end)
        return [outer, *([inner] if elements else [])]

    keep = "torch::autograd::AccumulateGrad"
    copy = kernel(1, 0, 4, "Memcpy HtoD (Pinned -> Device)", 7, "gpu_memcpy")
    copy[1]["args"]["bytes"] = 8_000_000
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, at + STEP), *copy,
        *kernel(2, 4, 20, "sm80_xmma_fprop_implicit_gemm"), *kernel(3, 20, 24, "vectorized_elementwise_kernel"),
        *backward(4, 4, "MmBackward0"), *kernel(4, 24, 44, "ampere_sgemm_128x64"),
        *backward(5, 5, keep, 10_000_000), *kernel(5, 44, 46, "vectorized_elementwise_kernel"),
        *backward(6, 6, "ConvolutionBackward0"), *kernel(6, 46, 70, "sm80_xmma_dgrad"),
        *backward(7, 8, keep, 20_000_000), *kernel(7, 70, 72, "vectorized_elementwise_kernel"), *kernel(8, 72, 90, NCCL, 20),
        event("user_annotation", "Optimizer.step#AdamW.step", at + 880, at + 960), *kernel(9, 90, 98, "multi_tensor_apply_kernel"),
    ]  # fmt: skip


def torch_profile(folder: Path, rank: int = 0, world_size: int = 1, shapes: bool = True) -> Path:
    return profile(folder, rank, world_size, [trace_event for number in range(3, 6) for trace_event in torch_step(number, shapes)])


def test_kernels_are_told_apart_by_pass_gradient_and_class(tmp_path: Path) -> None:
    measured = measure_passes(import_traces([torch_profile(tmp_path)]))
    table = {key: ({op: 1e3 * time for op, time in part.by_class.items()}, 1e3 * part.upkeep) for key, part in measured.parts.items()}
    expected: Any = {
        ("forward", -1): ({"conv": pytest.approx(16), "elementwise": pytest.approx(4)}, 0.0),
        ("backward", 0): ({"gemm": pytest.approx(20)}, pytest.approx(2)),
        ("backward", 1): ({"conv": pytest.approx(24)}, pytest.approx(2)),
        ("optimizer", -1): ({"elementwise": pytest.approx(8)}, 0.0),
    }
    assert table == expected
    assert [gradient.elements for gradient in measured.gradients] == [10_000_000, 20_000_000]
    assert (measured.optimizer, measured.micro_batches) == ("AdamW", 1) and measured.copied_bytes == pytest.approx(8e6)


def test_a_trace_alone_makes_a_workload(tmp_path: Path) -> None:
    """On the machine that made it kernels take their 76 ms again; four nodes take longer, a faster GPU takes less."""
    mine = tmp_path / "mine.yaml"
    files = [str(torch_profile(tmp_path, rank, 2)) for rank in range(2)]
    options = ["--hardware", "a2-highgpu-2g", "--batch", "16", "--workload-out", str(mine)]
    assert main(["-q", "import-trace", *files, *options]) == 0
    workload = load_workload(str(mine)).spec
    assert [sum(layer.gradients) for layer in workload.model.layers if layer.gradients] == [20_000_000, 10_000_000]
    assert workload.training.optimizer.name == "adam" and workload.model.input == 500_000
    noise = workload.training.noise
    assert (noise.persistent_cv, noise.compute_cv) == (0.0, 0.0)  # equal ranks
    scenario_answer = answer(Scenario("a2-highgpu-2g", str(mine), ("training.noise.compute_cv=0", "training.noise.persistent_cv=0"))).run
    stalls = {blame.cause.value: blame.seconds for blame in scenario_answer.stalls}
    assert stalls["compute"] == pytest.approx(76e-3, rel=1e-3)
    assert step_time("a2-highgpu-2g", str(mine), nodes=4) > step_time("a2-highgpu-2g", str(mine))
    assert step_time("p5.48xlarge", str(mine)) < step_time("a2-highgpu-2g", str(mine))


def test_ranks_that_waited_for_data_get_a_loader_as_fast_as_theirs(tmp_path: Path) -> None:
    """A step of 100 ms waits 2 ms for its batch: the loader makes one in 100 ms, however fast the GPU of another machine is."""
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    waits = [event("user_annotation", name, (at + 0.98) * STEP, (at + 1) * STEP) for at in range(3, 6)]
    events = [*(trace_event for number in range(3, 6) for trace_event in torch_step(number)), *waits]
    mine = tmp_path / "mine.yaml"
    mine.write_text(replay_text(import_traces([profile(tmp_path, events=events)]), JobDescription("a2-highgpu-1g", batch=16), mine))
    for hardware in ("a2-highgpu-1g", "p5.4xlarge"):
        speed = (
            load_hardware(hardware).spec.groups[0].node.host.cpu.speed / load_hardware("a2-highgpu-1g").spec.groups[0].node.host.cpu.speed
        )
        scenario_answer = answer(Scenario(hardware, str(mine))).run.jobs[0].warm.step_time
        assert scenario_answer == pytest.approx(0.1 / speed, rel=0.02), hardware


def test_classes_of_kernels_and_operators() -> None:
    names = {
        "sm80_xmma_fprop_implicit_gemm": "conv", "cudnn::cnn::wgrad_alg0_engine": "conv", "aten::conv2d": "conv",
        "autograd::engine::evaluate_function: AddmmBackward0": "gemm", "aten::linear": "gemm", "ampere_bf16_s16816gemm": "gemm",
        "nvjet_hsh_128x256": "gemm", "pytorch_flash::flash_fwd_kernel": "attention", "vectorized_elementwise_kernel": "elementwise",
        "multi_tensor_apply_kernel": "elementwise", "aten::batch_norm": "elementwise",
    }  # fmt: skip
    assert {name: kernel_class(name) for name in names} == names


def refused(files: Sequence[Path], tmp_path: Path, *more: str) -> str:
    with pytest.raises(SpecError) as error:
        named = dict(zip(("hardware", "workload"), more, strict=False))
        replay_text(import_traces(files), JobDescription(**named, batch=None if "no batch" in more else 16), tmp_path / "mine.yaml")  # type: ignore[arg-type]
    return str(error.value)


def test_what_cannot_be_replayed_is_refused_in_a_sentence(tmp_path: Path) -> None:
    profiles = [torch_profile(tmp_path)]
    assert "add --hardware with the machine that was profiled" in refused(profiles, tmp_path)
    assert "V1000 is not in the catalog" in refused(profiles, tmp_path, "V1000")
    assert "does not contain the samples per GPU; add --batch" in refused(profiles, tmp_path, "a2-highgpu-1g", "", "no batch")
    bare = [torch_profile(tmp_path, shapes=False)]
    assert "profile with record_shapes=True, or add --workload" in refused(bare, tmp_path, "a2-highgpu-1g")
    assert "keeps 0 gradients in 0 backward passes" in refused([profile(tmp_path)], tmp_path, "a2-highgpu-1g")
    forgotten = refused([cpu_profile(tmp_path, rank) for rank in range(2)], tmp_path, "a2-highgpu-1g")
    assert "shows no kernels of a GPU, but a2-highgpu-1g has A100-SXM4-40GBs; profile with activities=" in forgotten
    assert "if the job ran on CPUs, name their machine" in forgotten


def test_one_rank_stands_for_all(tmp_path: Path) -> None:
    """A replay of rank 0 of two has the times of a job of two ranks that are both like it."""
    job, path = JobDescription("a2-highgpu-2g", batch=16), tmp_path / "mine.yaml"
    alone = replay_text(import_traces([torch_profile(tmp_path, 0, 2)]), job, path)
    both = replay_text(import_traces([torch_profile(tmp_path, rank, 2) for rank in range(2)]), job, path)
    assert "rank0.json: 2 steps of 2 ranks on 1 of a2-highgpu-2g" in alone
    assert "noise" not in alone  # of one rank, two steps do not show it; two ranks are seen to be equal
    assert alone == both.replace("rank0.json and 1 more:", "rank0.json:").replace(" noise: {compute_cv: 0.0, persistent_cv: 0.0},", "")


def test_a_layer_table_of_another_model_is_refused(tmp_path: Path) -> None:
    """The gradients of the trace have 30 million elements in two tensors; torchvision's ResNet-50 has 25,557,032 parameters."""
    message = refused([torch_profile(tmp_path)], tmp_path, "a2-highgpu-1g", "resnet50")
    assert "has gradients of 30,000,000 parameters, but resnet50 trains 25,557,032; name the workload that the trace shows" in message


def test_a_record_is_not_added_for_another_model_or_if_the_replay_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same trace cannot be added again, so a record is written last."""
    trace, records, kept = str(torch_profile(tmp_path)), tmp_path / "runs.csv", tmp_path / "mine.yaml"
    named = ["--hardware", "a2-highgpu-1g", "--batch", "8", "--record", str(records)]
    assert main(["import-trace", trace, *named, "--workload", "resnet50"]) == 2
    assert "has gradients of 30,000,000 parameters" in capsys.readouterr().err and not records.exists()
    kept.write_text("kept")
    assert main(["import-trace", trace, *named, "--workload-out", str(kept)]) == 2
    assert not records.exists()


def test_a_sharded_or_pipelined_job_needs_a_workload_that_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("FSDP::all_gather (0)", "gloo:send", "_c10d_functional::all_reduce"):
        events = [trace_event for number in range(3, 6) for trace_event in torch_step(number)]
        events.append(event("user_annotation", name, 4 * STEP, 4 * STEP + 10))
        message = refused([profile(tmp_path, events=events)], tmp_path, "a2-highgpu-1g")
        assert f"shows {name}, so ranks share the model; add --workload" in message
        refusal = refused([profile(tmp_path, events=events)], tmp_path, "a2-highgpu-1g", "gpt2")
        assert "gpt2: training.parallel does not describe how the 1 ranks" in refusal and "add, for example, --shard parameters" in refusal
    named = ["--hardware", "a2-highgpu-1g", "--batch", "8", "--shard", "parameters", "--workload-out", str(tmp_path / "mine.yaml")]
    assert main(["import-trace", str(torch_profile(tmp_path)), *named]) == 2
    assert "--shard: " in (said := capsys.readouterr().err) and "shows no collective of ranks that share the model; leave it out" in said


def test_steps_with_several_backward_passes_are_counted(tmp_path: Path) -> None:
    """Two steps under one ProfilerStep, without the first one's optimizer and exchange, are one step of two micro-batches."""
    events: list[Event] = []
    for number in (2, 4, 6):
        first = [
            trace_event
            for trace_event in torch_step(number)
            if trace_event["args"].get("correlation") not in (100 * number + 8, 100 * number + 9)
        ]
        kept_events = [
            trace_event
            for trace_event in [*first, *torch_step(number + 1)]
            if not trace_event["name"].startswith(("ProfilerStep", "Optimizer"))
        ]
        events += [event("user_annotation", f"ProfilerStep#{number // 2}", number * STEP, (number + 2) * STEP), *kept_events]
    measured = measure_passes(import_traces([profile(tmp_path, events=events)]))
    assert (measured.micro_batches, [gradient.elements for gradient in measured.gradients]) == (2, [10_000_000, 20_000_000])
    assert sum(part.seconds for (name, _), part in measured.parts.items() if name == "backward") == pytest.approx(48e-3)


@pytest.mark.alone
@pytest.mark.nightly
@pytest.mark.needs("torch")
def test_a_job_that_torch_profiled_over_gloo_is_replayed(tmp_path: Path) -> None:
    """Oracle: torch.profiler under DistributedDataParallel: every gradient in its place, and compute as long as the trace has it."""
    from calibration.measure.ddp_steps import StepRequest, spawn

    request = StepRequest("calibration.lab.models:vgg", ("3x32x32",), 4, steps=2, device="cpu", trace=str(tmp_path))
    parameters = spawn(request, 2)[0].parameters
    job = import_traces(sorted(tmp_path.glob("rank*.json")))
    mine, machine = tmp_path / "mine.yaml", "calibration/hardware/lab-two-cores.yaml"
    mine.write_text(replay_text(job, JobDescription(str(ROOT / machine), batch=4), mine))
    workload = load_workload(str(mine)).spec
    assert workload.model.parameters == parameters == sum(sum(layer.gradients) for layer in workload.model.layers)
    assert {"conv", "gemm", "elementwise"} == {layer.op for layer in workload.model.layers}
    alone = answer(Scenario(str(ROOT / machine), str(mine), nodes=1)).run.jobs[0].warm.step_time
    assert alone == pytest.approx(job.stalls[Cause.COMPUTE] + job.stalls[Cause.LAUNCH], rel=0.1)
    table = tmp_path / "table.yaml"
    table.write_text("extends: lab-vgg\nname: table\ntraining: {stack: torch-2.x-ddp}\n")  # a stack for NCCL, which needs GPUs
    mine.write_text(replay_text(job, JobDescription(str(ROOT / machine), str(table), batch=4, folders=Folders(None, LAB)), mine))
    stack = load_workload(str(mine), library=LAB).spec.training.stack
    assert stack.library.backend == "gloo" and stack.exchange.gradient_copy_passes == 0.0  # operators copy inside the measured backward


# --- what is said, and what is written ---------------------------------------------------------------------------------


def simulated(tmp_path: Path, hardware: str, workload: str, batch: int) -> Path:
    """Return the trace of a simulated run."""
    run = answer(Scenario(hardware, workload, (SYNTHETIC,), batch=batch), keep_rates=True).run
    write_trace(run, tmp_path / "t.json.gz")
    return tmp_path / "t.json.gz"


@pytest.mark.parametrize(("named", "batch"), [("workloads/models/resnet50.yaml", 64), ("workloads/models/gpt2.yaml", 8)])
def test_a_replay_of_a_layer_table_runs_as_the_table_does(named: str, batch: int, tmp_path: Path) -> None:
    """Oracle: the table itself, which ``sim run`` takes as it is."""
    table = tmp_path / "table.yaml"
    table.write_text((ROOT / named).read_text())
    trace, mine = simulated(tmp_path, "p4d.24xlarge", str(table), batch), tmp_path / "out" / "mine.yaml"
    assert main(["-q", "import-trace", str(trace), "--workload", str(table), "--workload-out", str(mine)]) == 0
    base, written = load_workload(str(table)).spec, load_workload(str(mine)).spec
    assert (written.dataset.prepared, written.training.optimizer, written.input) == (
        base.dataset.prepared, base.training.optimizer, base.input,
    )  # fmt: skip
    direct = step_time("p4d.24xlarge", str(table), batch=batch)
    assert step_time("p4d.24xlarge", str(mine), batch=batch) == pytest.approx(direct, rel=0.01)


def test_nothing_is_written_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = import_traces([simulated(tmp_path, "p3.16xlarge", "resnet18", 16)])
    monkeypatch.setattr("calibration.traces.replay.replay_text", lambda *given: "name: odd\nmodel: nowhere.yaml\n")
    with pytest.raises(SpecError, match=r"mine\.yaml:2:.*nowhere"):
        write_replay(profiled, JobDescription(), tmp_path / "mine.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.gz"]


def test_a_trace_that_names_its_job_is_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: what the simulated job was."""
    trace = str(simulated(tmp_path, "p3.16xlarge", "resnet50", 32))
    profiled = import_traces([Path(trace)])
    other = JobDescription("p4d.24xlarge", "vgg16", "flat", 8, "bf16")
    with pytest.raises(SpecError) as error:
        complete_description(profiled, other)
    for fact in (
        "hardware p3.16xlarge (--hardware p4d",
        "workload resnet50 (--workload vgg16",
        "batch 32 (--batch 8",
        "stack ",
        "precision fp32",
    ):
        assert fact in str(error.value)
    assert main(["import-trace", trace, "--batch", "8", "--record", str(tmp_path / "runs.csv")]) == 2
    assert "batch 32 (--batch 8)" in capsys.readouterr().err and not (tmp_path / "runs.csv").exists()

    box = tmp_path / "box.yaml"
    box.write_text("extends: p3.16xlarge\nname: box\n")
    table = tmp_path / "table.yaml"
    table.write_text((ROOT / "workloads/models/resnet50.yaml").read_text())
    same, doubts = complete_description(profiled, JobDescription(str(box), str(table), batch=32))
    assert (same.hardware, same.stack, same.precision, doubts) == (str(box), "torch-1.13-ddp", "fp32", [])


def test_a_doubt_is_said_where_the_trace_is_not_sure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("extends: resnet18\nname: known-to-nobody\n")
    trace = simulated(tmp_path, "p3.16xlarge", str(tmp_path / "mine.yaml"), 16)
    assert main(["import-trace", str(trace), "--workload", "resnet18"]) == 0
    assert "warning: " in (said := capsys.readouterr().err) and "shows workload known-to-nobody, which is unknown" in said
    real = torch_profile(tmp_path)
    device = import_traces([real]).traces[0].gpu
    assert main(["import-trace", str(real), "--hardware", "p3.2xlarge", "--batch", "16"]) == 0
    assert (
        f"was recorded on {device}, but p3.2xlarge has V100-SXM2-16GB; check that this is the machine of the trace"
        in capsys.readouterr().err
    )
    assert main(["import-trace", str(real), "--hardware", "a2-highgpu-1g", "--batch", "16"]) == 0
    assert "warning" not in capsys.readouterr().err
