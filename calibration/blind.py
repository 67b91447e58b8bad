"""Does the simulator foretell a GPU that nobody here has measured? Predict first, then measure the same, then compare.

`questions` are steps, GPU memory and power of training, single kernels, copies and the loader. `predict` writes what a machine's
description says of each, with the 95% interval where there is one, and `measure` answers them on that machine. Predictions are committed
before anything is measured, and stay as they were: the records say how well the simulator did, not how well it does since.

Limits: steps are those of `calibration.ddp_steps` on one GPU, without input; a loader's rate is that of Pillow.
"""

from __future__ import annotations

import csv
import gc
import importlib
import io
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from calibration.ddp_steps import Precision, StepsWanted, run_rank
from calibration.machine import cores
from calibration.machine_record import Row
from calibration.probes.attention import attention_answer
from calibration.probes.copies import copy_answer
from calibration.probes.loading import loading_answer
from calibration.probes.passes import launch_answer, memory_answer
from calibration.probes.probe import Bench
from calibration.probes.products import convolution_answer, gemm_answer
from calibration.team import SpawnedTeam
from sim.cluster import kernels
from sim.cluster.gpu import layer_time
from sim.report.files import write_file
from sim.spec.hardware import Gpu, Node
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.stack import Stack
from sim.spec.workload import Attention
from sim.spec.yaml import SpecError

Kind = Literal["step", "memory", "power", "product", "convolution", "attention", "pass", "launch", "copy", "loader"]
UNITS: Final[dict[Kind, str]] = {"memory": "B", "power": "W"}
"""Of what is predicted; seconds else."""
COLUMNS: Final = ("kind", "name", "precision", "batch", "unit", "predicted", "low", "high", "measured", "note")
PICTURES: Final = ("3x224x224",)
TEXT: Final = ("input_ids=384:int64", "token_type_ids=384:int64", "attention_mask=384:int64")
CUDA_PRECISIONS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8")
EDGES: Final = (512, 1024, 2048, 4096, 8192)
PROJECTIONS: Final = ((4096, 14336, 4096), (4096, 4096, 14336), (8192, 28672, 8192), (2048, 128256, 2048), (16, 4096, 4096))
"""Rows, columns and depth: feed-forward products of Llama 3 8B and 70B, the vocabulary of its 1B, and a few rows."""
STEP_SECONDS: Final = 1.5
DECODER: Final = "calibration.blind:decoder_on_gpu"
STACK: Final = "torch-2.11-ddp"
DECODER_STACK: Final = "hf-transformers"
"""Of the machine that is lent: PyTorch 2.11, and transformers 5 in it."""
TRACED: Final = {"calibration.blind:llama_on_gpu": "sim.extract.zoo_llama:Llama"}
"""What is traced in place of a model that is made on the GPU."""


@dataclass(frozen=True)
class Training:
    """Steps to time: of a torch model, or of a catalogue workload that *workload* names and *model* builds."""

    name: str
    model: str
    inputs: tuple[str, ...]
    batch: int
    precision: Precision
    arguments: tuple[str, ...] = ()
    optimizer: Literal["momentum", "adamw"] = "momentum"
    workload: str = ""
    sequence: int = 0


class Question(NamedTuple):
    """One line of the table before it is answered; *asked* is for the probe of its kind, *training* for steps."""

    kind: Kind
    name: str
    precision: str
    batch: int
    asked: Row | None = None
    training: Training | None = None


def trainings() -> list[Training]:
    """Return the training runs that are predicted and measured, smallest models first."""
    pictures = [
        Training(name, f"torchvision.models:{name}", PICTURES, batch, precision)
        for name in ("resnet50", "vgg16", "vit_b_16")
        for precision in _precisions("fp32", "tf32", "amp_bf16")
        for batch in (32, 128)
    ]
    bert = [
        Training("bert-large-seq384", "sim.extract.zoo:bert_qa", TEXT, batch, precision, ("size=large",))
        for precision in _precisions("fp32", "tf32", "amp_bf16")
        for batch in (8, 32)
    ]
    blocks = [
        Training(
            f"llama-h{width}-seq{sequence}",
            "calibration.blind:llama_on_gpu",
            (f"input_ids={sequence}:int64",),
            batch,
            precision,
            (f"width={width}", f"depth={depth}", f"heads={width // 128}", f"inner={inner}", f"sequence={sequence}"),
        )
        for width, depth, inner in ((4096, 4, 14336), (8192, 2, 28672))
        for sequence, batch in ((2048, 4), (8192, 1))
        for precision in _precisions("tf32", "amp_bf16", "bf16")
    ]
    decoders = [
        Training(
            name,
            DECODER,
            (f"input_ids={length}:int64",),
            batch,
            "amp_bf16",
            (f"name={name}",),
            "adamw",
            name,
            0 if name == "gpt2" else length,
        )
        for name, length, batch in (("gpt2", 1024, 16), ("llama-3.2-1b", 2048, 4), ("qwen2.5-0.5b", 2048, 8))
    ]
    return [*pictures, *bert, *blocks, *decoders, *_others()]


def _others() -> list[Training]:
    """Return runs of models that no constant was chosen on, asked after the first ones had been answered and learned from."""
    convolutional = ("densenet121", "mobilenet_v3_large", "efficientnet_b0", "resnet152", "convnext_tiny", "swin_t")
    pictures = [
        Training(name, f"torchvision.models:{name}", PICTURES, 64, precision)
        for name in convolutional
        for precision in _precisions("tf32", "amp_bf16")
    ]
    bert = [
        Training("bert-base-seq384", "sim.extract.zoo:bert_qa", TEXT, 64, precision, ("size=base",))
        for precision in _precisions("fp32", "amp_bf16")
    ]
    blocks = [
        Training(
            f"llama-h{width}-seq4096",
            "calibration.blind:llama_on_gpu",
            ("input_ids=4096:int64",),
            2,
            "bf16",
            (f"width={width}", f"depth={depth}", f"heads={width // 128}", f"inner={inner}", "sequence=4096"),
        )
        for width, depth, inner in ((2048, 8, 8192), (5120, 4, 13824))
    ]
    decoders = [
        Training(name, DECODER, (f"input_ids={length}:int64",), batch, "amp_bf16", (f"name={name}",), "adamw", name, length)
        for name, length, batch in (("qwen2.5-1.5b", 2048, 4), ("llama-3.2-3b", 2048, 2))
    ]
    return [*pictures, *bert, *blocks, *decoders]


def _precisions(*names: Precision) -> tuple[Precision, ...]:
    return names


def questions() -> list[Question]:
    """Return every question, kind by kind."""
    found: list[Question] = []
    for run in trainings():
        kinds: tuple[Kind, ...] = ("step", "memory", "power")
        found += [Question(kind, run.name, run.precision, run.batch, training=run) for kind in kinds]
    return [*found, *_kernels(), *_copies(), *_loader()]


def _kernels() -> Iterator[Question]:
    from calibration.probes.attention import SHAPES
    from calibration.probes.products import CONVOLUTIONS

    shapes: list[tuple[int, int, int]] = [*((edge, edge, edge) for edge in EDGES), *PROJECTIONS]
    for precision in CUDA_PRECISIONS:
        for shape in shapes:
            yield Question("product", "x".join(map(str, shape)), precision, 1, {"precision": precision, "shape": list(shape)})
    for precision in ("fp32", "tf32", "fp16"):
        for kind, *sizes in CONVOLUTIONS:
            name = f"{kind} {'x'.join(map(str, sizes))}"
            yield Question("convolution", name, precision, 64, {"precision": precision, "class": kind, "shape": [64, *sizes]})
    for way in ("forward", "both"):
        for heads, keys, tokens, size, causal in SHAPES:
            name = f"{way} {heads}/{keys} heads of {size}, {tokens} tokens{', causal' if causal else ''}"
            yield Question(
                "attention", name, "bf16", 1, {"precision": "bf16", "way": way, "shape": [heads, keys, tokens, size], "causal": causal}
            )
    for kind, arrays in (("copy", 2), ("scaled sum", 3)):
        for size in (2**20, 2**24, 2**28):
            yield Question("pass", f"{kind} of {size} B", "fp32", 1, {"pass": kind, "bytes": size * arrays})
    for clock in ("device", "host"):
        yield Question("launch", f"one operator, by the {clock}", "fp32", 1, {"clock": clock})


def _copies() -> Iterator[Question]:
    for way in ("to device", "to host"):
        for host in ("pinned", "pageable"):
            for size in (2**16, 2**22, 2**28):
                yield Question("copy", f"{host} {way}, {size} B", "", 1, {"way": way, "host": host, "bytes": size, "together": 1})


def _loader() -> Iterator[Question]:
    for workers in (1, 4, 8, 16):
        yield Question("loader", f"one picture, {workers} workers", "", 1, {"stage": "loader", "workers": workers})


class Foretold(NamedTuple):
    """What a description says, and its 95% interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


def predict(machine: str, output: Path, progress: Callable[[int, int], None] = lambda done, count: None) -> int:
    """Write what the machine called *machine* is predicted to answer, and return how many questions have a prediction."""
    asked = questions()
    rows = []
    for number, question in enumerate(asked):
        progress(number, len(asked))
        told = _foretold(question, machine)
        rows.append(_line(question, told))
    write_table(output, rows, f"Predicted for {machine}; nothing of this machine was measured before.")
    return sum(row["predicted"] != "" for row in rows)


def _line(question: Question, told: Foretold | None) -> dict[str, Any]:
    cells: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    cells |= {"kind": question.kind, "name": question.name, "precision": question.precision, "batch": question.batch}
    cells["unit"] = UNITS.get(question.kind, "s")
    if told is None:
        return cells | {"note": "not predicted"}
    numbers = {"predicted": told.value, "low": told.low, "high": told.high}
    return cells | {name: f"{value:.5g}" for name, value in numbers.items() if value is not None} | {"note": told.note}


def _foretold(question: Question, machine: str) -> Foretold | None:
    if question.training is not None:
        return _training(question.training, machine, question.kind)
    assert question.asked is not None
    gpu = _node(machine).gpu
    time = _OF_KERNELS[question.kind](question.asked, gpu, machine)
    return None if time is None else Foretold(time)


def _node(machine: str) -> Node:
    return load_hardware(machine).spec.groups[0].node


@lru_cache(maxsize=64)
def _document(run: Training, machine: str) -> dict[str, Any]:
    """Return the simulator's document of *run*: synthetic input, one GPU."""
    from calibration.layer_factors import traced
    from sim.api import simulate
    from sim.extract.table import write

    stack = DECODER_STACK if run.model == DECODER else STACK
    options: dict[str, Any] = {"batch": run.batch, "precision": run.precision, "stack": stack}
    optimizer = "adam" if run.optimizer == "adamw" else run.optimizer
    overrides: dict[str, Any] = {"input.loader": "synthetic", "training.optimizer.name": optimizer}
    if run.precision == "fp32":
        overrides["training.stack.fp32_convolution"] = "fp32"
    if run.workload:
        overrides |= {"model.sequence": run.sequence} if run.sequence else {}
        return simulate(machine, run.workload, overrides=overrides, **options).document
    table = traced(TRACED.get(run.model, run.model), run.inputs, run.arguments)
    with tempfile.TemporaryDirectory() as folder:
        layers, workload = Path(folder) / "layers.yaml", Path(folder) / "workload.yaml"
        write(table, layers)
        workload.write_text(f"{{name: {run.name}, model: {layers}, dataset: synthetic-images, training: {{batch: 1, stack: flat}}}}\n")
        return simulate(machine, workload, overrides=overrides, **options).document


def _training(run: Training, machine: str, kind: Kind) -> Foretold:
    document = _document(run, machine)
    if kind == "memory":  # as max_memory_allocated counts, without the context
        held = document["gpu_memory_bytes"]
        return Foretold(held["total"] - held["context"])
    if kind == "power":
        return Foretold(document["energy"]["gpu_power_w"])
    share = document["expected_error"]["measured_over_predicted_95"]
    step = document["step_time_s"]
    return Foretold(step, step * share["low"], step * share["high"])


def _product(asked: Row, gpu: Gpu, machine: str) -> float | None:
    rows, columns, depth = asked["shape"]
    if kernels.described(gpu, asked["precision"]) is None:
        return _layer(gpu, "fp32", rows, "torch.nn:Linear", (str(depth),), in_features=depth, out_features=columns, bias=False)
    return kernels.product_time(gpu, asked["precision"], rows, columns, depth, burst=True) + gpu.kernel_time


def _attention(asked: Row, gpu: Gpu, machine: str) -> float:
    heads, kv_heads, tokens, size = asked["shape"]
    shape = Attention(heads=heads, kv_heads=kv_heads, head_dim=size, queries=tokens, keys=tokens, causal=asked["causal"])
    ways = (False, True) if asked["way"] == "both" else (False,)
    kernel = load_part(Stack, STACK, "workloads/stacks").attention_kernel
    return sum(kernels.attention_time(gpu, asked["precision"], shape, 1, way, kernel, burst=True) + gpu.kernel_time for way in ways)


def _convolution(asked: Row, gpu: Gpu, machine: str) -> float:
    batch, inputs, outputs, edge, window, stride, groups = asked["shape"]
    said = {"in_channels": inputs, "out_channels": outputs, "kernel_size": window, "stride": stride, "padding": window // 2}
    shape = (f"{inputs}x{edge}x{edge}",)
    return _layer(gpu, asked["precision"], batch, "torch.nn:Conv2d", shape, **said, groups=groups, bias=False)


def _layer(gpu: Gpu, precision: Precision, batch: int, target: str, inputs: tuple[str, ...], **arguments: Any) -> float:
    """Return the seconds of the forward pass of one layer."""
    from calibration.layer_factors import full_precision, traced

    model = traced(target, inputs, tuple(f"{name}={value}" for name, value in arguments.items()))
    layer = next(layer for layer in model.layers if layer.forward)
    stack = full_precision(load_part(Stack, STACK, "workloads/stacks"))
    return layer_time(layer, gpu, precision, stack, batch).time


def _pass(asked: Row, gpu: Gpu, machine: str) -> float:
    time = kernels.pass_time(asked["bytes"], gpu) if gpu.kernels else asked["bytes"] / gpu.memory_bandwidth / gpu.memory_efficiency
    return time + gpu.kernel_time


def _launch(asked: Row, gpu: Gpu, machine: str) -> float:
    if asked["clock"] == "device":
        return gpu.kernel_time
    return load_part(Stack, STACK, "workloads/stacks").launch_cpu / _node(machine).host.cpu.speed


def _copy(asked: Row, gpu: Gpu, machine: str) -> float | None:
    if asked["host"] == "pageable":
        return None
    link = _node(machine).topology.pcie
    return float(asked["bytes"] / (link.bandwidth * link.efficiency))


def _picture(asked: Row, gpu: Gpu, machine: str) -> float | None:
    """Return the seconds of a picture with so many workers: those of ImageNet, whose pictures the probe's are like."""
    host = _node(machine).host
    busy = min(asked["workers"], host.physical_cores)
    threads = min(max(asked["workers"] - host.physical_cores, 0), host.vcpus - host.physical_cores)
    gain = (host.cpu.smt_gain - 1.0) * threads
    return float(load_workload("resnet50").spec.dataset.prep / host.cpu.speed / (busy + gain))


_OF_KERNELS: Final[dict[Kind, Callable[[Row, Gpu, str], float | None]]] = {
    "product": _product,
    "convolution": _convolution,
    "attention": _attention,
    "pass": _pass,
    "launch": _launch,
    "copy": _copy,
    "loader": _picture,
}


def write_table(path: Path, rows: Sequence[dict[str, Any]], heading: str) -> None:
    """Write *rows* as CSV, whole or not at all, below a line that says what they are."""
    text = io.StringIO()
    text.write(f"# {heading}\n")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue())


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table that `predict` wrote; raise SpecError where *path* is none."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: {getattr(error, 'strerror', None) or 'is no text'}") from None
    reader = csv.DictReader(lines)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise SpecError(f"{path}: the columns are not {', '.join(COLUMNS)}; give a table of 'python -m calibration blind'")
    return list(reader)


def measure(path: Path, output: Path, progress: Callable[[int, int], None] = lambda done, count: None) -> int:
    """Answer the questions of the table at *path* on this machine's GPU, write the table with the answers to *output* and count them.

    What fails is noted in its row. Raise SpecError where there is no GPU, or the table asks something else.
    """
    rows = read_table(path)
    asked = {_key(question): question for question in questions()}
    if unknown := [row for row in rows if _key_of(row) not in asked]:
        raise SpecError(f"{path}: {unknown[0]['kind']} '{unknown[0]['name']}' is not among the questions; predict anew")
    runner = Runner()
    for number, row in enumerate(rows):
        progress(number, len(rows))
        if row["measured"]:
            continue
        value, note = runner.answer(asked[_key_of(row)])
        row["measured"] = "" if value is None else f"{value:.5g}"
        row["note"] = "; ".join(part for part in (row["note"], note) if part)
        if number % 8 == 7:
            write_table(output, rows, f"Measured on {runner.device}.")
    write_table(output, rows, f"Measured on {runner.device}.")
    return sum(row["measured"] != "" for row in rows)


def _key(question: Question) -> tuple[str, ...]:
    return question.kind, question.name, question.precision, str(question.batch)


def _key_of(row: dict[str, str]) -> tuple[str, ...]:
    return row["kind"], row["name"], row["precision"], row["batch"]


_PROBES: Final[dict[Kind, Callable[[Bench, Row], Row]]] = {
    "product": gemm_answer,
    "convolution": convolution_answer,
    "attention": attention_answer,
    "pass": memory_answer,
    "launch": launch_answer,
    "copy": copy_answer,
    "loader": loading_answer,
}


class Runner:
    """Answers questions on the GPU of this process."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise SpecError("torch finds no GPU here; --measure needs the machine that was predicted")
        self.device = torch.cuda.get_device_name()
        self._bench = Bench("cuda", cores(), cores(), 0.1, Path.cwd(), SpawnedTeam(1, "cuda", cores()))
        self._trained: dict[Training, tuple[dict[Kind, float], str]] = {}

    def answer(self, question: Question) -> tuple[float | None, str]:
        """Return the measured value of *question*, or None, and a note."""
        try:
            if question.training is not None:
                found, note = self._training(question.training)
                return found.get(question.kind), note
            assert question.asked is not None
            times = _PROBES[question.kind](self._bench, question.asked)["times_s"]
            return statistics.median(times), ""
        except Exception as error:  # one question that fails leaves the others
            return None, f"failed: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}"

    def _training(self, run: Training) -> tuple[dict[Kind, float], str]:
        if run not in self._trained:
            self._trained[run] = trained(run)
        return self._trained[run]


def trained(run: Training) -> tuple[dict[Kind, float], str]:
    """Return step time, peak memory and mean power of the steps of *run* on this process's GPU, and a note on what failed."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    wanted = StepsWanted(
        run.model, run.inputs, run.batch, 8, 3, False, run.precision, run.arguments, seconds=STEP_SECONDS, optimizer=run.optimizer
    )
    note = ""
    found: dict[Kind, float] = {}
    with Power() as power:
        try:
            found["step"] = run_rank(wanted).median
        except SpecError as error:
            note = f"failed: {str(error).splitlines()[0][:100]}"
    if "step" in found:
        found["memory"] = float(torch.cuda.max_memory_allocated())
        note = f"reserved {torch.cuda.max_memory_reserved():.4g} B"
        if (watts := power.typical()) is not None:
            found["power"] = watts
    gc.collect()
    torch.cuda.empty_cache()
    return found, note


class Power:
    """Reads the GPU's power while a block runs, as NVML gives it."""

    INTERVAL = 0.05

    def __init__(self) -> None:
        self._read: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Power:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        import torch

        while not self._ended.wait(self.INTERVAL):
            try:
                self._read.append(torch.cuda.power_draw() / 1e3)
            except Exception:  # NVML's Python package is missing, or the driver says nothing
                return

    def typical(self) -> float | None:
        """Return the median of the last second, watts, while steps ran; None where nothing was read."""
        last = self._read[-round(1.0 / self.INTERVAL) :]
        return statistics.median(last) if last else None


def llama_on_gpu(**shape: int) -> Any:
    """Return the decoder of `sim.extract.zoo_llama`, made where it will run."""
    import torch

    from sim.extract.zoo_llama import Llama

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return Llama(**shape)


def decoder_on_gpu(name: str) -> Any:
    """Return what Hugging Face transformers makes of the catalogue's decoder *name*: a module that returns its loss."""
    import torch

    transformers = importlib.import_module("transformers")  # of the GPU's machine: not among the project's requirements
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        if name == "gpt2":
            return _with_loss(transformers.GPT2LMHeadModel(transformers.GPT2Config()))
        decoder = load_workload(name).spec.model.transformer
        assert decoder is not None
        shape = {
            "hidden_size": decoder.hidden, "num_hidden_layers": decoder.layers, "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.kv_heads, "intermediate_size": decoder.ffn, "vocab_size": decoder.vocab,
            "tie_word_embeddings": decoder.tied, "head_dim": decoder.head_dim, "max_position_embeddings": 8192,
        }  # fmt: skip
        if name.startswith("qwen2"):
            shape.pop("head_dim")
            return _with_loss(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape)))
        return _with_loss(transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)))


def _with_loss(model: Any) -> Any:
    """Return *model* of transformers as a module that takes tokens and returns the loss of the next ones."""
    from torch import nn

    class Causal(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, labels=input_ids, use_cache=False).loss

    return Causal()


class Score(NamedTuple):
    """Errors of predictions of one kind and precision: predicted over measured, less one."""

    kind: str
    precision: str
    rows: int
    signed: float
    median: float
    p90: float
    inside: float | None
    """Share of the measured values inside the 95% interval, where there is one."""


def scores(rows: Sequence[dict[str, str]]) -> list[Score]:
    """Return the errors of the *rows* that were predicted and measured, by kind and precision."""
    import numpy as np

    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        if row["predicted"] and row["measured"]:
            groups.setdefault((row["kind"], row["precision"]), []).append(row)
    made = []
    for (kind, precision), own in groups.items():
        errors = np.array([float(row["predicted"]) / float(row["measured"]) - 1 for row in own])
        bounded = [float(row["low"]) <= float(row["measured"]) <= float(row["high"]) for row in own if row["low"]]
        sizes = np.abs(errors)
        figures = (float(np.median(errors)), float(np.median(sizes)), float(np.percentile(sizes, 90)))
        made.append(Score(kind, precision, len(own), *figures, sum(bounded) / len(bounded) if bounded else None))
    return made


def scores_text(found: Sequence[Score]) -> str:
    """Return the errors as a table, or what to do where nothing was measured yet."""
    if not found:
        return "nothing of this table is measured yet: run it with --measure -o FILE.csv on the machine that it predicts"
    lines = [f"{'':24} {'rows':>5} {'signed':>8} {'median':>8} {'p90':>8}  inside 95%"]
    for one in found:
        inside = "" if one.inside is None else f"{100 * one.inside:.0f}%"
        figures = f"{100 * one.signed:+7.1f}% {100 * one.median:7.1f}% {100 * one.p90:7.1f}%"
        lines.append(f"{(one.kind + ' ' + one.precision).strip():24} {one.rows:5} {figures}  {inside}".rstrip())
    return "\n".join(lines)
