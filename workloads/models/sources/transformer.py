"""Which translation Transformers are in the catalog? The big one of Vaswani et al. (NeurIPS 2017), and Gavel's for Multi30k.

Encoder and decoder of post-norm layers with attention as separate matrix products, as fairseq and jadore801120's code of 2017 to
2019 ran it; the model returns its loss. Vocabularies: fairseq's joint word pieces of WMT'16 English-German, one matrix for both
embeddings and the output; and Multi30k's words that occur five times, output tied to the target embedding.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention of *heads* heads with dropout on the weights; the residual and the norm stand outside."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor, hidden_after: torch.Tensor | None = None) -> torch.Tensor:
        """Return what *hidden* reads from *memory*; *hidden_after* is true where a later position must not be seen."""
        query, key, value = (
            project(inputs).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, inputs in ((self.query, hidden), (self.key, memory), (self.value, memory))
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if hidden_after is not None:
            scores = scores.masked_fill(hidden_after, -math.inf)
        result: torch.Tensor = self.output((self.dropout(scores.softmax(-1)) @ value).transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Self-attention, in a decoder attention to the source, and a feed-forward block, each added to its input and normed."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float, decoder: bool) -> None:
        super().__init__()
        self.attention, self.attention_norm = Attention(width, heads, dropout), nn.LayerNorm(width)
        self.source = Attention(width, heads, dropout) if decoder else None
        self.source_norm = nn.LayerNorm(width) if decoder else None
        self.feed, self.activation, self.feed_output = nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, source: torch.Tensor | None = None, hidden_after: torch.Tensor | None = None) -> torch.Tensor:
        """Return the next hidden states (batch, sequence, width)."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, hidden, hidden_after)))
        if self.source is not None and self.source_norm is not None:
            hidden = self.source_norm(hidden + self.dropout(self.source(hidden, source)))
        result: torch.Tensor = self.norm(hidden + self.dropout(self.feed_output(self.activation(self.feed(hidden)))))
        return result


class Transformer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Encoder and decoder of six layers each; with one vocabulary both share their embeddings, and the output is always tied."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float, vocabularies: tuple[int, ...], depth: int = 6) -> None:
        super().__init__()
        self.source_tokens = nn.Embedding(vocabularies[0], width)
        self.target_tokens = nn.Embedding(vocabularies[-1], width)
        if len(vocabularies) == 1:
            self.target_tokens.weight = self.source_tokens.weight
        self.encoder = nn.ModuleList(Layer(width, inner, heads, dropout, decoder=False) for _ in range(depth))
        self.decoder = nn.ModuleList(Layer(width, inner, heads, dropout, decoder=True) for _ in range(depth))
        self.output, self.dropout = nn.Linear(width, vocabularies[-1], bias=False), nn.Dropout(dropout)
        self.output.weight = self.target_tokens.weight
        self.register_buffer("positions", torch.zeros(1024, width), persistent=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting *target*, shifted by one, from *source* (both batch, sequence)."""
        memory, hidden = self._embedded(self.source_tokens, source), self._embedded(self.target_tokens, target)
        for layer in self.encoder:
            memory = layer(memory)
        length = target.shape[1]
        after = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        for layer in self.decoder:
            hidden = layer(hidden, memory, after)
        loss: torch.Tensor = functional.cross_entropy(self.output(hidden).flatten(0, 1), target.flatten(), label_smoothing=0.1)
        return loss

    def _embedded(self, tokens: nn.Embedding, words: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dropout(tokens(words) * math.sqrt(tokens.embedding_dim) + self.positions[: words.shape[1]])
        return result


def big() -> Transformer:
    """Return the big Transformer: width 1024, 16 heads, feed-forward 4096, dropout 0.3 (Vaswani et al., table 3, last line)."""
    return Transformer(1024, 4096, 16, 0.3, (33708,))


def multi30k() -> Transformer:
    """Return the Transformer of jadore801120/attention-is-all-you-need-pytorch that Gavel runs: width 512, 8 heads, 2048."""
    return Transformer(512, 2048, 8, 0.1, (2909, 3149))
