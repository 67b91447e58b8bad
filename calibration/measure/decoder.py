"""Which model do measured layouts train? A small decoder that is split over tensor ranks, shards and stages as in torch's own examples.

Its description is the ``transformer`` block of ``calibration/lab/workloads/lab-decoder.yaml``: RMS norms, one product for queries, keys and
values, GELU, no biases, no positions, an untied head. `split_plan` is the tensor-parallel plan of torchtitan's llama3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from calibration.measure.division import HEAD_DIM


class DecoderBlock(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention and a feed-forward network, each with a norm before it and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output of the block; heads and sequence length of this rank follow from the shape of the attention product."""
        joined = self.qkv(self.attention_norm(hidden))
        batch, length = joined.shape[:2]
        split = joined.view(batch, length, -1, 3, HEAD_DIM).permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        hidden = hidden + self.output(attended.transpose(1, 2).reshape(batch, length, -1))
        result: torch.Tensor = hidden + self.down(functional.gelu(self.up(self.norm(hidden))))
        return result


class Decoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Embedding, blocks, norm and head: the whole model, or the part that one stage holds."""

    def __init__(self, width: int, depth: int, vocabulary: int, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width) if first else None
        self.blocks = nn.ModuleList(DecoderBlock(width) for _ in range(depth))
        self.norm = nn.RMSNorm(width) if last else None
        self.head = nn.Linear(width, vocabulary, bias=False) if last else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next token at every position, or the hidden states for the next stage."""
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        if self.norm is not None and self.head is not None:
            hidden = self.head(self.norm(hidden))
        return hidden


def decoder(width: int = 256, depth: int = 4, vocabulary: int = 2048) -> Decoder:
    """Return the whole model."""
    return Decoder(width, depth, vocabulary)


def split_plan(model: Decoder, sequence: bool) -> Mapping[str, Any]:
    """Return the plan by which ``parallelize_module`` splits *model* over tensor ranks; with *sequence*, norms use sequence parallelism."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    outside = Shard(1) if sequence else Replicate()
    entering, leaving = ColwiseParallel(input_layouts=outside), RowwiseParallel(output_layouts=outside)
    plan: dict[str, Any] = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside)}
    plan["head"] = ColwiseParallel(input_layouts=outside, output_layouts=Shard(-1), use_local_output=False)
    for number in range(len(model.blocks)):
        plan |= {f"blocks.{number}.{name}": entering for name in ("qkv", "up")}
        plan |= {f"blocks.{number}.{name}": leaving for name in ("output", "down")}
    if sequence:
        norms = [f"blocks.{number}.{name}" for number in range(len(model.blocks)) for name in ("attention_norm", "norm")]
        plan |= dict.fromkeys([*norms, "norm"], SequenceParallel(use_local_output=True))
    return plan
