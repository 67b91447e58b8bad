"""How fast are the matrix products of experts? One grouped product of torch, with or without its backward pass.

The shape is: experts, rows per expert, columns, depth.
"""

from __future__ import annotations

from typing import Any

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench
from calibration.measure.probes.timing import repetition_times


def experts_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time one grouped product in bfloat16 with equal rows per expert; for the way ``both``, also the gradients of inputs and weights."""
    import torch
    from torch.nn import functional

    experts, rows, columns, depth = question["shape"]
    ends = torch.arange(rows, experts * rows + 1, rows, device=bench.device, dtype=torch.int32)
    backward = question["way"] == "both"
    tokens = torch.randn(experts * rows, depth, device=bench.device, dtype=torch.bfloat16, requires_grad=backward)
    weights = torch.randn(experts, columns, depth, device=bench.device, dtype=torch.bfloat16, requires_grad=backward)
    multiply: Any = functional.grouped_mm if hasattr(functional, "grouped_mm") else torch._grouped_mm

    def call() -> None:
        output = multiply(tokens, weights.transpose(-2, -1), offs=ends)
        if backward:
            torch.autograd.grad(output, (tokens, weights), output)

    return {"times_s": repetition_times(call, bench.device, bench.seconds)}
