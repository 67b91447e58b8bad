"""Models whose training steps can be followed in closed form; they write what they see to the file that STEP_MODELS_LOG names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

RANK = int(os.environ.get("RANK", "0"))


class Weight(nn.Module):
    """One weight, at first the number of its rank; the loss is the weight times (rank + 1), so its gradient is rank + 1."""

    def __init__(self, dies: int = -1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), float(RANK), dtype=torch.float64))
        self.dies = dies

    def forward(self, inputs: torch.Tensor) -> Any:
        if self.dies == RANK:
            os.kill(os.getpid(), 9)
        if folder := os.environ.get("STEP_MODELS_LOG"):
            with Path(folder, str(RANK)).open("a") as log:
                log.write(f"{self.weight.item()!r} {len(inputs)}\n")
        return (self.weight * (RANK + 1)).sum()


def no_module() -> int:
    return 3
