"""Which GPT-2 models are in the catalog? The four sizes of Radford et al. (2019), with fused causal attention.

Pre-norm decoder blocks, learned positions, the output matrix tied to the token embeddings, dropout 0.1 as released
(huggingface/transformers GPT2Config). The model returns its loss: each token against the next one.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_SIZES = {"small": (768, 12, 12), "medium": (1024, 24, 16), "large": (1280, 36, 20), "xl": (1600, 48, 25)}
"""Width, blocks and heads (Radford et al. 2019, table 2; huggingface configurations for the heads)."""


class Gpt2(nn.Module):  # type: ignore[misc, unused-ignore]
    """The decoder with its tied output matrix."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int = 50257, positions: int = 1024, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.dropout = nn.Dropout(dropout)
        self.block = nn.ModuleList(Gpt2Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting each token of (batch, sequence) from those before it."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.dropout(self.tokens(input_ids) + self.positions(positions))
        for block in self.block:
            hidden = block(hidden)
        scores = self.output(self.norm(hidden))
        loss: torch.Tensor = functional.cross_entropy(scores[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        return loss


class Gpt2Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Causal self-attention and a feed-forward block of four times the width, each behind a norm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed, self.activation, self.feed_output = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        self.output_dropout, self.feed_dropout = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states (batch, sequence, width)."""
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self._projected(hidden))
        attended = functional.scaled_dot_product_attention(query, key, value, dropout_p=self.rate, is_causal=True)
        hidden = hidden + self.output_dropout(self.output(attended.transpose(1, 2).flatten(2)))
        fed: torch.Tensor = self.feed_output(self.activation(self.feed(self.norm(hidden))))
        result: torch.Tensor = hidden + self.feed_dropout(fed)
        return result

    def _projected(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chunks: tuple[torch.Tensor, ...] = self.project(self.attention_norm(hidden)).chunk(3, dim=-1)
        return chunks


def gpt2(size: str) -> Gpt2:
    """Return GPT-2 ``small`` (124 M parameters), ``medium``, ``large`` or ``xl`` (1.5 G)."""
    return Gpt2(*_SIZES[size])
