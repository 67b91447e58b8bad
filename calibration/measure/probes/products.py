"""How fast are matrix products and convolutions, by size and precision? One kernel at a time, as inside a network's layers.

Matrix products are square or have the shapes of typical fully connected layers. Convolutions are forward passes with shapes of ResNet-50
and MobileNetV2 (arXiv 1512.03385, 1801.04381), in the classes of the layer model. Sizes are limited so that one call takes at most a third
of the time for a question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe, shares_processors
from calibration.measure.probes.timing import repetition_times
from calibration.measure.team import TeamRank

SIZES: Final = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
LINEAR_LAYERS: Final = ((32, 4096, 4096), (64, 1000, 2048), (256, 1024, 1024), (1024, 4096, 1024), (3072, 1024, 4096))
"""Rows, columns and depth of fully connected layers: VGG, ResNet-50, an attention layer, BERT-large's two."""
CONVOLUTIONS: Final = (
    ("conv", 64, 64, 56, 3, 1, 1),
    ("conv", 128, 128, 28, 3, 1, 1),
    ("conv", 256, 256, 14, 3, 1, 1),
    ("conv", 512, 512, 7, 3, 1, 1),
    ("conv", 64, 64, 112, 3, 1, 1),
    ("pointwise_conv", 64, 256, 56, 1, 1, 1),
    ("pointwise_conv", 256, 64, 56, 1, 1, 1),
    ("pointwise_conv", 512, 128, 28, 1, 1, 1),
    ("pointwise_conv", 1024, 256, 14, 1, 1, 1),
    ("pointwise_conv", 512, 2048, 7, 1, 1, 1),
    ("direct_conv", 3, 64, 224, 7, 2, 1),
    ("direct_conv", 128, 128, 56, 3, 2, 1),
    ("direct_conv", 256, 256, 28, 3, 2, 1),
    ("direct_conv", 64, 192, 27, 5, 1, 1),
    ("depthwise_conv", 144, 144, 56, 3, 1, 144),
    ("depthwise_conv", 384, 384, 14, 3, 1, 384),
    ("depthwise_conv", 960, 960, 7, 3, 1, 960),
)
"""Class, input channels, output channels, image size, kernel size, stride, groups."""
CONCURRENT_EDGE: Final = 512
"""Size of the square product that ranks sharing processors compute concurrently."""
BATCHES: Final = {"cpu": (1, 4, 16), "cuda": (1, 8, 64)}
ASSUMED_RATE: Final = {"cpu": 3e11, "cuda": 2e14}
"""Assumed rate (FLOP/s) of the fastest device of each kind; for CUDA it limits the sizes that are measured."""
PRECISION_TYPES: Final = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
"""torch's data type of each precision."""
_FP8_MULTIPLE: Final = 16
"""Columns and depth of fp8 products must be multiples of this (cuBLAS)."""


def precisions(bench: Bench) -> tuple[str, ...]:
    """Return the precisions that this device computes natively; CPUs convert fp16 to fp32 and back."""
    if bench.device == "cpu":
        return ("fp32",) if bench.quick else ("fp32", "bf16")
    import torch

    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        return ("fp32", "fp16")
    return ("fp32", "tf32", "fp16", "bf16", *(["fp8"] if capability >= (8, 9) else []))


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 for fp32 products within the context."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _rate(bench: Bench, precision: str) -> float:
    """Return a rough estimate of the rate (FLOP/s) of products of *precision*, from which sizes are chosen.

    It is measured on CPUs: without instructions for bf16, products are some fifty times slower in it.
    """
    if bench.device == "cuda":
        return ASSUMED_RATE["cuda"]
    import torch

    one = torch.randn(256, 256).to(getattr(torch, PRECISION_TYPES[precision]))
    return 2 * 256**3 / min(repetition_times(lambda: one @ one, "cpu", 0.02))


def affordable_questions(bench: Bench, rows: list[AnswerRow]) -> list[AnswerRow]:
    """Return the *rows* for which one call takes at most a third of the time for a question; in a quick run every second one of them."""
    most = {precision: _rate(bench, precision) * bench.seconds / 3 for precision in dict.fromkeys(row["precision"] for row in rows)}
    kept = [row for row in rows if row["flop"] <= most[row["precision"]]]
    return kept[:: 2 if bench.quick else 1]


def gemm_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per shape and precision of matrix products."""
    shapes = [(size, size, size) for size in SIZES] + list(LINEAR_LAYERS)
    questions: list[AnswerRow] = [
        {"precision": precision, "shape": list(shape), "flop": 2 * math.prod(shape)} for precision in precisions(bench) for shape in shapes
    ]
    questions = [row for row in questions if row["precision"] != "fp8" or all(size % _FP8_MULTIPLE == 0 for size in row["shape"][1:])]
    together = {"precision": "fp32", "shape": [CONCURRENT_EDGE] * 3, "flop": 2 * CONCURRENT_EDGE**3, "together": bench.neighbors}
    return ([together] if shares_processors(bench) else []) + affordable_questions(bench, questions)


def gemm_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time one matrix product, on one rank or on all ranks concurrently."""
    if "together" in question:
        return {"times_by_rank_s": bench.team.ask(gemm_task, question, bench.seconds)}
    return {"times_s": gemm_times(question, bench.device, bench.seconds)}


def gemm_times(question: AnswerRow, device: str, seconds: float) -> list[float]:
    """Return the times (s) of a matrix product in this process."""
    import torch

    rows, columns, depth = question["shape"]
    dtype = getattr(torch, PRECISION_TYPES[question["precision"]])
    left = torch.randn(rows, depth, device=device).to(dtype)
    if question["precision"] == "fp8":
        one, other = torch.ones((), device=device), torch.randn(columns, depth, device=device).to(dtype).t()  # column-major
        return repetition_times(lambda: torch._scaled_mm(left, other, one, one, out_dtype=torch.bfloat16), device, seconds)
    right = torch.randn(depth, columns, device=device).to(dtype)
    return _times(question, device, seconds, lambda: torch.matmul(left, right))


def gemm_task(rank: TeamRank, question: AnswerRow, seconds: float) -> list[float]:
    """Compute the product on this rank, concurrently with the others."""
    import torch.distributed as dist

    dist.barrier()
    return gemm_times(question, rank.device, 4 * seconds)


def convolution_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per class, shape and precision of convolutions."""
    questions = [
        {"precision": precision, "class": kind, "shape": [batch, *shape], "flop": _convolution_flop(batch, *shape)}
        for precision in precisions(bench)
        if precision != "fp8"
        for kind, *shape in CONVOLUTIONS
        for batch in BATCHES[bench.device]
    ]
    return affordable_questions(bench, questions)


def _convolution_flop(batch: int, inputs: int, outputs: int, edge: int, window: int, stride: int, groups: int) -> int:
    return 2 * batch * outputs * (-(-edge // stride)) ** 2 * window**2 * inputs // groups


def convolution_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time the forward pass of one convolution."""
    import torch

    batch, inputs, outputs, edge, window, stride, groups = question["shape"]
    dtype = getattr(torch, PRECISION_TYPES[question["precision"]])
    image = torch.randn(batch, inputs, edge, edge, device=bench.device).to(dtype)
    weight = torch.randn(outputs, inputs // groups, window, window, device=bench.device).to(dtype)
    call = lambda: torch.nn.functional.conv2d(image, weight, stride=stride, padding=window // 2, groups=groups)  # noqa: E731
    return {"times_s": _times(question, bench.device, bench.seconds, call)}


def _times(question: AnswerRow, device: str, seconds: float, call: Callable[[], Any]) -> list[float]:
    import torch

    with torch.no_grad(), tf32(question["precision"] == "tf32"):
        return repetition_times(call, device, seconds)


GEMM = Probe("gemm", "matrix products by size and precision", gemm_questions, gemm_answer)
CONVOLUTION = Probe("convolution", "convolutions by class, size and precision", convolution_questions, convolution_answer)
