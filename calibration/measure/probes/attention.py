"""How fast is fused attention, by shape? Forward, and forward with backward, of torch's ``scaled_dot_product_attention``.

Shapes are those of BERT, GPT-2 and Llama 3 (8 heads of keys for 32 of queries), one sample, causal or not. FLOP are those of the two
products of forward, half of them where causal, and 3.5 times as many with backward, which works out the scores again (Dao et al., arXiv
2205.14135).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.probes.products import PRECISION_TYPES, affordable, precisions
from calibration.measure.probes.timing import repeated

SHAPES: Final = (
    (12, 12, 128, 64, False), (16, 16, 512, 64, False), (12, 12, 1024, 64, True), (32, 8, 512, 128, True), (32, 8, 2048, 128, True),
    (32, 8, 8192, 128, True),
)  # fmt: skip
"""Heads of queries and of keys, tokens, size of a head, causal."""
_BOTH_WAYS: Final = 3.5
"""FLOP of forward and backward over those of forward: two products and five."""


def attention_questions(bench: Bench) -> list[AnswerRow]:
    """Return shapes, ways and precisions; 8 bits are not among them, as torch's attention has none."""
    questions = [
        {"precision": precision, "way": way, "shape": [heads, keys, tokens, size], "causal": causal,
         "flop": round(4 * heads * tokens**2 * size * (0.5 if causal else 1.0) * (1.0 if way == "forward" else _BOTH_WAYS))}
        for precision in precisions(bench) if precision not in ("tf32", "fp8")
        for way in ("forward", "both") for heads, keys, tokens, size, causal in SHAPES
    ]  # fmt: skip
    return affordable(bench, questions)


def attention_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time one call of one shape, by the ``kernel`` asked for or by that which torch takes."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"flash": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION]}

    heads, keys, tokens, size = question["shape"]
    dtype = getattr(torch, PRECISION_TYPES[question["precision"]])
    backward = question["way"] == "both"

    def made(count: int) -> Any:
        return torch.randn(1, count, tokens, size, device=bench.device).to(dtype).requires_grad_(backward)

    queries, shared, values = made(heads), made(keys), made(keys)
    options = {"is_causal": question["causal"]} | ({"enable_gqa": True} if keys != heads else {})

    def call() -> None:
        output = torch.nn.functional.scaled_dot_product_attention(queries, shared, values, **options)
        if backward:
            torch.autograd.grad(output, (queries, shared, values), output)

    with sdpa_kernel(backends[question["kernel"]]) if "kernel" in question else nullcontext():
        return {"times_s": repeated(call, bench.device, bench.seconds)}


ATTENTION = Probe("attention", "fused attention by shape and precision", attention_questions, attention_answer)
