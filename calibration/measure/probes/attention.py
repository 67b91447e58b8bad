"""How fast is fused attention, by shape? Forward, and forward with backward, of torch's ``scaled_dot_product_attention``.

Shapes are those of BERT, GPT-2 and Llama 3 (8 key heads for 32 query heads), with one sample, causal or not. The FLOP count covers the two
products of the forward pass, halved for causal attention. With the backward pass, which recomputes the scores, it is 3.5 times as high (Dao
et al., arXiv 2205.14135).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.probes.products import PRECISION_TYPES, affordable_questions, precisions
from calibration.measure.probes.timing import repetition_times

SHAPES: Final = (
    (12, 12, 128, 64, False), (16, 16, 512, 64, False), (12, 12, 1024, 64, True), (32, 8, 512, 128, True), (32, 8, 2048, 128, True),
    (32, 8, 8192, 128, True),
)  # fmt: skip
"""Query heads, key heads, tokens, head size, causal."""
_BOTH_WAYS: Final = 3.5
"""FLOP of forward and backward over FLOP of forward: two products in the forward pass and five in the backward pass."""


def attention_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per shape, way and precision; torch's attention does not support fp8."""
    questions = [
        {"precision": precision, "way": way, "shape": [heads, keys, tokens, size], "causal": causal,
         "flop": round(4 * heads * tokens**2 * size * (0.5 if causal else 1.0) * (1.0 if way == "forward" else _BOTH_WAYS))}
        for precision in precisions(bench) if precision not in ("tf32", "fp8")
        for way in ("forward", "both") for heads, keys, tokens, size, causal in SHAPES
    ]  # fmt: skip
    return affordable_questions(bench, questions)


def attention_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time one call of one shape, with the ``kernel`` that *question* requests or the one that torch selects."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"flash": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION]}

    heads, keys, tokens, size = question["shape"]
    dtype = getattr(torch, PRECISION_TYPES[question["precision"]])
    backward = question["way"] == "both"

    def random_tensor(count: int) -> Any:
        return torch.randn(1, count, tokens, size, device=bench.device).to(dtype).requires_grad_(backward)

    queries, shared, values = random_tensor(heads), random_tensor(keys), random_tensor(keys)
    options = {"is_causal": question["causal"]} | ({"enable_gqa": True} if keys != heads else {})

    def call() -> None:
        output = torch.nn.functional.scaled_dot_product_attention(queries, shared, values, **options)
        if backward:
            torch.autograd.grad(output, (queries, shared, values), output)

    with sdpa_kernel(backends[question["kernel"]]) if "kernel" in question else nullcontext():
        return {"times_s": repetition_times(call, bench.device, bench.seconds)}


ATTENTION = Probe("attention", "fused attention by shape and precision", attention_questions, attention_answer)
