"""Which Transformer-XL models are in the catalog? Base and large on WikiText-103 as NVIDIA's DeepLearningExamples train them.

Dai et al. (ACL 2019): attention to the segment and a memory of the one before, with relative positions; embeddings and output share an
adaptive softmax with cutoffs at 19,997, 39,997 and 199,997 of 267,735 words, in the large model with vectors four times narrower from
cluster to cluster. The model returns its loss. Limits: how many words fall into the rare clusters depends on the text; here 6 of 192
words in the second, 8 in the third and 2 in the last: estimate (Zipf's law over the cutoffs).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

_CUTOFFS = (0, 19997, 39997, 199997, 267735)
_RARE = (6, 8, 2)
_RARE_OF = 192


class AdaptiveEmbedding(nn.Module):  # type: ignore[misc, unused-ignore]
    """One embedding for each cluster of words, *narrowing* times narrower each, projected to the model's width."""

    def __init__(self, width: int, narrowing: int) -> None:
        super().__init__()
        spans = [(_CUTOFFS[0], _CUTOFFS[-1])] if narrowing == 1 else list(pairwise(_CUTOFFS))
        sizes = [width // narrowing**index for index in range(len(spans))]
        self.table = nn.ModuleList(nn.Embedding(end - start, size) for (start, end), size in zip(spans, sizes, strict=True))
        self.project = nn.ParameterList(nn.Parameter(torch.empty(width, size)) for size in sizes if narrowing > 1)
        self.scale = math.sqrt(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the vectors of *words* (batch, sequence)."""
        if not len(self.project):
            whole: torch.Tensor = self.table[0](words) * self.scale
            return whole
        counts = [_share(words.shape[1], rare) for rare in _RARE]
        parts = words.split([words.shape[1] - sum(counts), *counts], dim=1)
        found = [functional.linear(table(part), project) for table, part, project in zip(self.table, parts, self.project, strict=True)]
        return torch.cat(found, 1) * self.scale


def _share(length: int, rare: int) -> int:
    return max(1, length * rare // _RARE_OF)


class AdaptiveSoftmax(nn.Module):  # type: ignore[misc, unused-ignore]
    """The frequent words and three clusters; a cluster's own words only where the target is one of them. Weights are the embedding's."""

    def __init__(self, width: int, embedding: AdaptiveEmbedding) -> None:
        super().__init__()
        self.embedding = [embedding]  # a list, so that its parameters are not registered twice
        self.cluster, self.cluster_bias = nn.Parameter(torch.empty(3, width)), nn.Parameter(torch.empty(3))
        self.bias = nn.ParameterList(nn.Parameter(torch.empty(end - start)) for start, end in pairwise(_CUTOFFS))

    def forward(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of *words* (batch, sequence) given *hidden* (batch, sequence, width)."""
        weight = torch.cat((self._weight(0), self.cluster))
        scores = self._projected(hidden, 0) @ weight.t() + torch.cat((self.bias[0], self.cluster_bias))
        loss = functional.cross_entropy(scores.flatten(0, 1), words.flatten())
        for index, rare in enumerate(_RARE, 1):
            count = _share(hidden.shape[1], rare)
            there = self._projected(hidden[:, -count:], index) @ self._weight(index).t() + self.bias[index]
            loss = loss + functional.cross_entropy(there.flatten(0, 1), words[:, -count:].flatten())
        return loss

    def _weight(self, index: int) -> torch.Tensor:
        tables = self.embedding[0].table
        weight: torch.Tensor = tables[index].weight if len(tables) > 1 else tables[0].weight[_CUTOFFS[index] : _CUTOFFS[index + 1]]
        return weight

    def _projected(self, hidden: torch.Tensor, index: int) -> torch.Tensor:
        projections = self.embedding[0].project
        return hidden @ projections[index] if len(projections) else hidden


class XlLayer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention with relative positions to the segment and its memory, and a feed-forward block, each added and normed."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.relative = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.output, self.attention_norm = nn.Linear(width, width, bias=False), nn.LayerNorm(width)
        self.feed, self.activation, self.feed_output = nn.Linear(width, inner), nn.ReLU(inplace=True), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.attention_dropout, self.dropout, self.feed_dropout = nn.Dropout(0.0), nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(
        self, hidden: torch.Tensor, memory: torch.Tensor, positions: torch.Tensor, content: torch.Tensor, place: torch.Tensor
    ) -> torch.Tensor:
        """Return the next hidden states; *content* and *place* are the biases of the query that all layers share."""
        joined = torch.cat((memory, hidden), 1)
        query, key, value = (self._split(part) for part in self.project(joined).chunk(3, dim=-1))
        query = query[:, :, -hidden.shape[1] :]
        relative = self.relative(positions).unflatten(-1, (self.heads, -1)).transpose(0, 1)
        by_content = (query + content.unsqueeze(1)) @ key.transpose(-1, -2)
        by_place = _shifted((query + place.unsqueeze(1)) @ relative.transpose(-1, -2))
        scores = (by_content + by_place) / math.sqrt(query.shape[-1])
        after = torch.ones(scores.shape[-2:], dtype=torch.bool, device=hidden.device).triu(1 + memory.shape[1])
        weights = self.attention_dropout(scores.masked_fill(after, -math.inf).softmax(-1))
        attended = (weights @ value).transpose(1, 2).flatten(2)
        hidden = self.attention_norm(hidden + self.dropout(self.output(attended)))
        fed = self.feed_output(self.feed_dropout(self.activation(self.feed(hidden))))
        result: torch.Tensor = self.norm(hidden + self.dropout(fed))
        return result

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _shifted(scores: torch.Tensor) -> torch.Tensor:
    """Return *scores* with each row moved by its own position: pad a column, read the rows one element further."""
    batch, heads, rows, columns = scores.shape
    padded = torch.cat((scores.new_zeros(batch, heads, rows, 1), scores), -1)
    return padded.view(batch, heads, columns + 1, rows)[:, :, 1:].view_as(scores)


class TransformerXl(nn.Module):  # type: ignore[misc, unused-ignore]
    """Embedding, layers, adaptive softmax; the memory comes in as an input and is not trained through."""

    def __init__(self, width: int, depth: int, heads: int, inner: int, narrowing: int) -> None:
        super().__init__()
        self.embedding, self.dropout = AdaptiveEmbedding(width, narrowing), nn.Dropout(0.1)
        self.layer = nn.ModuleList(XlLayer(width, heads, inner) for _ in range(depth))
        self.content, self.place = (nn.Parameter(torch.empty(heads, width // heads)) for _ in range(2))
        self.softmax = AdaptiveSoftmax(width, self.embedding)

    def forward(self, words: torch.Tensor, memory_length: int = 192) -> torch.Tensor:
        """Return the loss of *words* (batch, sequence) with a memory of *memory_length* hidden states at each layer."""
        hidden = self.dropout(self.embedding(words))
        length = memory_length + words.shape[1]
        positions = self.dropout(hidden.new_zeros(length, hidden.shape[-1]))
        for layer in self.layer:
            memory = hidden.new_zeros(len(words), memory_length, hidden.shape[-1])
            hidden = layer(hidden, memory, positions, self.content, self.place)
        loss: torch.Tensor = self.softmax(self.dropout(hidden), words)
        return loss


_SIZES = {"base": (512, 16, 8, 2048, 1), "large": (1024, 18, 16, 4096, 4)}
"""Width, layers, heads, feed-forward width, narrowing (NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/Transformer-XL, README)."""


def transformer_xl(size: str) -> TransformerXl:
    """Return Transformer-XL ``base`` (192 M parameters) or ``large``."""
    return TransformerXl(*_SIZES[size])
