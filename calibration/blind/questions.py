"""What is predicted for a machine before it is measured? Step times, GPU memory and power of training; kernels, copies and the loader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from calibration.measure.ddp_steps import StepPrecision
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.attention import SHAPES
from calibration.measure.probes.products import CONVOLUTIONS

QuestionKind = Literal["step", "memory", "power", "product", "convolution", "attention", "pass", "launch", "copy", "loader", "experts"]
UNITS: Final[dict[QuestionKind, str]] = {"memory": "B", "power": "W"}
"""Units of predicted values; seconds for all other kinds."""
IMAGE_INPUTS: Final = ("3x224x224",)
TEXT_INPUTS: Final = ("input_ids=384:int64", "token_type_ids=384:int64", "attention_mask=384:int64")
CUDA_PRECISIONS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8")
SQUARE_EDGES: Final = (512, 1024, 2048, 4096, 8192)
PROJECTIONS: Final = ((4096, 14336, 4096), (4096, 4096, 14336), (8192, 28672, 8192), (2048, 128256, 2048), (16, 4096, 4096))
"""Rows, columns and depth of products: feed-forward layers of Llama 3 8B and 70B, the vocabulary of the 1B, and one with few rows."""
DECODER: Final = "calibration.blind.models:decoder_on_gpu"
GPT2: Final = "calibration.blind.models:gpt2_on_gpu"
LLAMA: Final = "calibration.blind.models:llama_on_gpu"
LORA_DECODER: Final = "calibration.blind.models:adapted_decoder_on_gpu"
"""Models that are built on the GPU."""
TITAN: Final = "torchtitan:"
"""Prefix of a model that torchtitan builds, compiles and trains; torchtitan's family and size follow."""
MEGATRON: Final = "megatron:"
"""Prefix of a model that Megatron-Core builds and trains with Transformer Engine; the catalog's name follows."""
MICRO_BATCHES: Final = 4
"""Micro-batches of a step under Megatron-Core."""
ATTENTION_SHAPES: Final = (
    *((32, 8, tokens, 128, True) for tokens in (1024, 4096, 8192, 16384, 32768, 65536)), (32, 32, 4096, 128, True), (8, 1, 8192, 128, True),
    (64, 8, 4096, 64, True), (64, 8, 16384, 64, True), (16, 16, 4096, 64, False), (16, 16, 2048, 192, True), (16, 16, 8192, 192, True),
    (12, 12, 2048, 80, True), (16, 8, 4096, 256, True),
)  # fmt: skip
"""Attention shapes of decoders, written as in `calibration.measure.probes.attention`; each is measured with every kernel that torch has."""
EXPERT_SHAPES: Final = (
    *((128, rows, 1536, 2048) for rows in (32, 128, 512)), (128, 256, 2048, 768), (16, 2048, 1536, 2048), (64, 256, 2816, 2048),
    (32, 512, 5760, 2880), (32, 512, 2880, 2880), (8, 2048, 28672, 4096), (8, 2048, 4096, 14336), (32, 256, 4096, 7168),
    (32, 256, 7168, 2048),
)  # fmt: skip
"""Experts, rows per expert, columns and depth: Qwen3 30B, Moonlight, gpt-oss, Mixtral 8x7B and DeepSeek V3; gate and up are one product."""


@dataclass(frozen=True)
class BlindTraining:
    """A training run to time: of a torch model, or of the catalog workload *workload*, which *model* builds."""

    name: str
    model: str
    inputs: tuple[str, ...]
    batch: int
    precision: StepPrecision | Literal["fp8"]
    arguments: tuple[str, ...] = ()
    optimizer: Literal["momentum", "adamw"] = "momentum"
    workload: str = ""
    sequence: int = 0

    @property
    def settings(self) -> dict[str, str]:
        """Return `arguments` (``name=value``) by name."""
        return dict(argument.split("=", 1) for argument in self.arguments)


class BlindQuestion(NamedTuple):
    """One line of the table before it is answered; *request* is for the probe of its kind, *training* is the run to time."""

    kind: QuestionKind
    name: str
    precision: str
    batch: int
    request: AnswerRow | None = None
    training: BlindTraining | None = None


def trainings() -> list[BlindTraining]:
    """Return the training runs that are predicted and measured, smallest models first."""
    pictures = [
        BlindTraining(name, f"torchvision.models:{name}", IMAGE_INPUTS, batch, precision)
        for name in ("resnet50", "vgg16", "vit_b_16")
        for precision in _precisions("fp32", "tf32", "amp_bf16")
        for batch in (32, 128)
    ]
    bert = [
        BlindTraining("bert-large-seq384", "workloads/models/sources/bert.py:bert_qa", TEXT_INPUTS, batch, precision, ("size=large",))
        for precision in _precisions("fp32", "tf32", "amp_bf16")
        for batch in (8, 32)
    ]
    blocks = [
        BlindTraining(
            f"llama-h{width}-seq{sequence}",
            LLAMA,
            (f"input_ids={sequence}:int64",),
            batch,
            precision,
            (f"width={width}", f"depth={depth}", f"heads={width // 128}", f"inner={inner}", f"sequence={sequence}"),
        )
        for width, depth, inner in ((4096, 4, 14336), (8192, 2, 28672))
        for sequence, batch in ((2048, 4), (8192, 1))
        for precision in _precisions("tf32", "amp_bf16", "bf16")
    ]
    gpt2 = BlindTraining("gpt2", GPT2, ("input_ids=1024:int64",), 16, "amp_bf16", ("size=small",), "adamw", "gpt2", 1024)
    decoders = [
        BlindTraining(name, DECODER, (f"input_ids={length}:int64",), batch, "amp_bf16", (f"name={name}",), "adamw", name, length)
        for name, length, batch in (("llama-3.2-1b", 2048, 4), ("qwen2.5-0.5b", 2048, 8))
    ]
    return [*pictures, *bert, *blocks, gpt2, *decoders, *_unseen_models(), *_lora_runs(), *_titan_runs(), *_megatron_runs()]


def _unseen_models() -> list[BlindTraining]:
    """Return runs of models that no constant was tuned on. They were added after constants had been tuned on the first ones."""
    convolutional = ("densenet121", "mobilenet_v3_large", "efficientnet_b0", "resnet152", "convnext_tiny", "swin_t")
    pictures = [
        BlindTraining(name, f"torchvision.models:{name}", IMAGE_INPUTS, 64, precision)
        for name in convolutional
        for precision in _precisions("tf32", "amp_bf16")
    ]
    bert = [
        BlindTraining("bert-base-seq384", "workloads/models/sources/bert.py:bert_qa", TEXT_INPUTS, 64, precision, ("size=base",))
        for precision in _precisions("fp32", "amp_bf16")
    ]
    blocks = [
        BlindTraining(
            f"llama-h{width}-seq4096",
            LLAMA,
            ("input_ids=4096:int64",),
            2,
            "bf16",
            (f"width={width}", f"depth={depth}", f"heads={width // 128}", f"inner={inner}", "sequence=4096"),
        )
        for width, depth, inner in ((2048, 8, 8192), (5120, 4, 13824))
    ]
    decoders = [
        BlindTraining(name, DECODER, (f"input_ids={length}:int64",), batch, "amp_bf16", (f"name={name}",), "adamw", name, length)
        for name, length, batch in (("qwen2.5-1.5b", 2048, 4), ("llama-3.2-3b", 2048, 2))
    ]
    return [*pictures, *bert, *blocks, *decoders]


def _lora_runs() -> Iterator[BlindTraining]:
    """Yield fine-tuning runs with low-rank adapters (Hugging Face's PEFT)."""
    for name, length, batch in (("llama-3.1-8b", 2048, 2), ("qwen2.5-1.5b", 1024, 8)):
        arguments = (f"name={name}", "rank=16")
        yield BlindTraining(f"{name}-lora", LORA_DECODER, (f"input_ids={length}:int64",), batch, "bf16", arguments, "adamw", name, length)


def _titan_runs() -> Iterator[BlindTraining]:
    """Yield runs of decoders with few layers as torchtitan trains them: compiled blocks, FSDP2 over one rank, FP8 by torchao."""
    plain, full = "recompute=none", "recompute=full"
    for workload, size, layers, length, batch, recompute, recipe in (
        ("llama-3.1-8b", "llama3/8B", 8, 8192, 1, plain, ""), ("llama-3.1-8b", "llama3/8B", 8, 8192, 2, full, ""),
        ("llama-3.1-8b", "llama3/8B", 8, 8192, 2, full, "tensorwise"), ("llama-3.1-8b", "llama3/8B", 8, 8192, 2, full, "rowwise"),
        ("llama-3.1-8b", "llama3/8B", 8, 32768, 1, full, "tensorwise"), ("llama-3.1-70b", "llama3/70B", 3, 8192, 1, plain, ""),
        ("llama-3.1-70b", "llama3/70B", 3, 8192, 1, plain, "tensorwise"), ("qwen3-8b", "qwen3/8B", 8, 4096, 2, plain, ""),
        ("qwen3-30b-a3b", "qwen3/30B-A3B", 4, 4096, 2, plain, ""),
    ):  # fmt: skip
        name = f"titan-{workload}-{layers}-layers-seq{length}{'-recomputed' if recompute == full else ''}{'-' * bool(recipe)}{recipe}"
        arguments = (f"layers={layers}", recompute, f"recipe={recipe}")
        yield BlindTraining(name, TITAN + size, (), batch, "fp8" if recipe else "bf16", arguments, "adamw", workload, length)


def _megatron_runs() -> Iterator[BlindTraining]:
    """Yield runs of decoders with few layers under Megatron-Core, with several numbers of experts; short sequences show the host's time."""
    for workload, layers, experts, length, recipes in (
        ("llama-3.1-8b", 8, 0, 8192, ("", "tensorwise", "delayed", "blockwise")), ("llama-3.1-70b", 3, 0, 8192, ("", "tensorwise")),
        ("qwen3-30b-a3b", 6, 128, 4096, ("", "tensorwise", "blockwise")), ("qwen3-30b-a3b", 12, 16, 4096, ("", "tensorwise")),
        ("deepseek-v2-lite", 6, 64, 4096, ("", "tensorwise")), ("deepseek-v3", 2, 32, 4096, ("", "blockwise")),
        ("gpt-oss-20b", 4, 32, 4096, ("",)), ("mixtral-8x7b", 2, 8, 4096, ("", "delayed")),
        ("llama-3.1-8b", 8, 0, 256, ("", "tensorwise", "delayed")),
        ("qwen3-30b-a3b", 6, 128, 256, ("", "tensorwise", "delayed", "blockwise")),
        ("qwen3-30b-a3b", 6, 16, 256, ("", "tensorwise")), ("deepseek-v2-lite", 6, 64, 256, ("",)), ("gpt-oss-20b", 4, 32, 256, ("",)),
        ("deepseek-v3", 2, 8, 4096, ("", "blockwise")), ("gpt-oss-20b", 4, 4, 4096, ("",)),
    ):  # fmt: skip
        for recipe in recipes:
            numbers = f"{layers}-layers{f'-{experts}-experts' if experts else ''}-seq{length}"
            name = f"megatron-{workload}-{numbers}{'-' * bool(recipe)}{recipe}"
            arguments = (f"layers={layers}", f"experts={experts}", f"recipe={recipe}")
            yield BlindTraining(name, MEGATRON + workload, (), 1, "fp8" if recipe else "bf16", arguments, "adamw", workload, length)


def megatron_overrides(run: BlindTraining) -> dict[str, Any]:
    """Return what *run* changes in the catalog's workload."""
    changes: dict[str, Any] = {"model.sequence": run.sequence, "model.transformer.layers": int(run.settings["layers"])}
    if experts := int(run.settings["experts"]):
        changes |= {"model.transformer.experts": experts, "model.transformer.first_dense_layers": 0}
    return changes


def _precisions(*names: StepPrecision) -> tuple[StepPrecision, ...]:
    return names


def questions() -> list[BlindQuestion]:
    """Return all questions, grouped by kind."""
    kinds: tuple[QuestionKind, ...] = ("step", "memory", "power")
    steps = [BlindQuestion(kind, run.name, run.precision, run.batch, training=run) for run in trainings() for kind in kinds]
    return [*steps, *_kernels(), *_decoder_kernels(), *_copies(), *_loader()]


def _kernels() -> Iterator[BlindQuestion]:
    shapes: list[tuple[int, int, int]] = [*((edge, edge, edge) for edge in SQUARE_EDGES), *PROJECTIONS]
    for precision in CUDA_PRECISIONS:
        for shape in shapes:
            yield BlindQuestion("product", "x".join(map(str, shape)), precision, 1, {"precision": precision, "shape": list(shape)})
    for precision in ("fp32", "tf32", "fp16"):
        for kind, *sizes in CONVOLUTIONS:
            name = f"{kind} {'x'.join(map(str, sizes))}"
            yield BlindQuestion("convolution", name, precision, 64, {"precision": precision, "class": kind, "shape": [64, *sizes]})
    for way in ("forward", "both"):
        for heads, keys, tokens, size, causal in SHAPES:
            name = f"{way} {heads}/{keys} heads of {size}, {tokens} tokens{', causal' if causal else ''}"
            yield BlindQuestion(
                "attention", name, "bf16", 1, {"precision": "bf16", "way": way, "shape": [heads, keys, tokens, size], "causal": causal}
            )
    for kind, arrays in (("copy", 2), ("scaled sum", 3)):
        for size in (2**20, 2**24, 2**28):
            yield BlindQuestion("pass", f"{kind} of {size} B", "fp32", 1, {"pass": kind, "bytes": size * arrays})
    for clock in ("device", "host"):
        yield BlindQuestion("launch", f"one operator, by the {clock}", "fp32", 1, {"clock": clock})


def _decoder_kernels() -> Iterator[BlindQuestion]:
    for kernel in ("flash", "cudnn"):
        for heads, keys, tokens, size, causal in ATTENTION_SHAPES:
            for way in ("forward", "both"):
                name = f"{kernel}, {way} {heads}/{keys} heads of {size}, {tokens} tokens{', causal' if causal else ''}"
                call = {"precision": "bf16", "way": way, "shape": [heads, keys, tokens, size], "causal": causal, "kernel": kernel}
                yield BlindQuestion("attention", name, "bf16", 1, call)
    for experts, rows, columns, depth in EXPERT_SHAPES:
        for way in ("forward", "both"):
            name = f"{way} {experts} experts, {rows}x{columns}x{depth}"
            yield BlindQuestion("experts", name, "bf16", 1, {"way": way, "shape": [experts, rows, columns, depth]})


def _copies() -> Iterator[BlindQuestion]:
    for way in ("to device", "to host"):
        for host in ("pinned", "pageable"):
            for size in (2**16, 2**22, 2**28):
                yield BlindQuestion("copy", f"{host} {way}, {size} B", "", 1, {"way": way, "host": host, "bytes": size, "together": 1})


def _loader() -> Iterator[BlindQuestion]:
    for workers in (1, 4, 8, 16):
        yield BlindQuestion("loader", f"one picture, {workers} workers", "", 1, {"stage": "loader", "workers": workers})
