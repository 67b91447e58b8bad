"""What is T5 in the catalog? Encoder and decoder of the paper (Raffel et al., arXiv 1910.10683, section 2.1), as Hugging Face runs them.

Pre-norm layers without biases: a norm without mean (RMSNorm), attention as separate matrix products whose scores are not scaled but get a
bias by the distance of two tokens, and a feed-forward block with ReLU. Each stack has one table of biases, 32 buckets by heads, which all
its layers share; embeddings and output are one matrix of 32,128 words. Sizes: sections 3.1.2 and 3.7. The
model returns its loss. Limits: buckets are computed once, not per step (their integers take no time beside the rest).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_VOCABULARY = 32128
_BUCKETS = 32
_DROPOUT = 0.1
_SIZES = {"small": (512, 2048, 8, 6), "base": (768, 3072, 12, 12), "large": (1024, 4096, 16, 24)}
"""Width, feed-forward width, heads of 64 elements, and layers of each stack."""


class Norm(nn.Module):  # type: ignore[misc, unused-ignore]
    """RMSNorm in separate operations, as T5LayerNorm of transformers runs without apex."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return *hidden* over its root mean square, times the weight."""
        return self.weight * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention of *heads* heads on what its norm returns, with dropout, added to the input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, Norm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.weights_dropout, self.dropout = nn.Dropout(_DROPOUT), nn.Dropout(_DROPOUT)

    def forward(self, hidden: torch.Tensor, bias: torch.Tensor | None, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return *hidden* with what it reads from itself or from *memory*; *bias* is added to the scores (1, heads, query, key)."""
        normed = self.norm(hidden)
        source = normed if memory is None else memory
        query, key, value = (
            project(inputs).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, inputs in ((self.query, normed), (self.key, source), (self.value, source))
        )
        scores = query @ key.transpose(-1, -2)
        if bias is not None:
            scores = scores + bias
        attended = (self.weights_dropout(scores.softmax(-1)) @ value).transpose(1, 2).flatten(2)
        result: torch.Tensor = hidden + self.dropout(self.output(attended))
        return result


class Layer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Self-attention, in a decoder attention to the encoder, and a feed-forward block."""

    def __init__(self, width: int, inner: int, heads: int, decoder: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.source = Attention(width, heads) if decoder else None
        self.norm, self.feed, self.feed_output = Norm(width), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.inner_dropout, self.dropout = nn.Dropout(_DROPOUT), nn.Dropout(_DROPOUT)

    def forward(self, hidden: torch.Tensor, bias: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the next hidden states (batch, sequence, width)."""
        hidden = self.attention(hidden, bias)
        if self.source is not None:
            hidden = self.source(hidden, None, memory)
        fed = self.feed_output(self.inner_dropout(functional.relu(self.feed(self.norm(hidden)))))
        result: torch.Tensor = hidden + self.dropout(fed)
        return result


class Stack(nn.Module):  # type: ignore[misc, unused-ignore]
    """The layers of the encoder or the decoder, with their biases by distance and the last norm."""

    def __init__(self, width: int, inner: int, heads: int, depth: int, decoder: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.distance = nn.Embedding(_BUCKETS, heads)
        self.layer = nn.ModuleList(Layer(width, inner, heads, decoder) for _ in range(depth))
        self.norm, self.first_dropout, self.last_dropout = Norm(width), nn.Dropout(_DROPOUT), nn.Dropout(_DROPOUT)

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the states of the last layer for embedded tokens (batch, sequence, width)."""
        length = hidden.shape[1]
        buckets = torch.zeros(length, length, dtype=torch.int64, device=hidden.device)
        bias = self.distance(buckets).permute(2, 0, 1).unsqueeze(0)
        if self.decoder:
            bias = bias + torch.full((length, length), torch.finfo(bias.dtype).min, device=hidden.device).triu(1)
        hidden = self.first_dropout(hidden)
        for layer in self.layer:
            hidden = layer(hidden, bias, memory)
        result: torch.Tensor = self.last_dropout(self.norm(hidden))
        return result


class T5(nn.Module):  # type: ignore[misc, unused-ignore]
    """T5 of a size, ``small``, ``base`` or ``large``."""

    def __init__(self, size: str) -> None:
        super().__init__()
        width, inner, heads, depth = _SIZES[size]
        self.tokens = nn.Embedding(_VOCABULARY, width)
        self.encoder = Stack(width, inner, heads, depth, decoder=False)
        self.decoder = Stack(width, inner, heads, depth, decoder=True)
        self.output = nn.Linear(width, _VOCABULARY, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of *target* from *source* (both batch, sequence); the output is scaled by the root of the width."""
        memory = self.encoder(self.tokens(source))
        hidden = self.decoder(self.tokens(target), memory)
        words = self.output(hidden * hidden.shape[-1] ** -0.5)
        return functional.cross_entropy(words.flatten(0, 1), target.flatten())
