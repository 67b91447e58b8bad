"""What is GNMT in the catalog? NVIDIA's second version (DeepLearningExamples PyTorch/Translation/GNMT), as Lambda and MLPerf ran it.

Four LSTM layers of width 1024 in encoder and decoder (Wu et al., arXiv 1609.08144, with the smaller set of layers), the first of the
encoder bidirectional, residuals from the third on, normalized Bahdanau attention after the decoder's first layer and fed to all the
others, one embedding for both languages. The model returns its loss. Limits: no padding, no label smoothing's own kernels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 32320
"""32,317 word pieces of WMT'16 English-German, padded to a multiple of 8 for tensor cores (the same README)."""


class Bahdanau(nn.Module):  # type: ignore[misc, unused-ignore]
    """Additive attention with a normalized score vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.vector, self.bias, self.scale = (nn.Parameter(torch.empty(size)) for size in (width, width, 1))

    def forward(self, states: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Return what *states* (batch, target, width) read from *memory* (batch, source, width)."""
        sums = self.query(states).unsqueeze(2) + self.key(memory).unsqueeze(1) + self.bias
        direction = self.vector / self.vector.norm() * self.scale
        weights = torch.tanh(sums).matmul(direction).softmax(-1)
        return torch.bmm(weights, memory)


class Gnmt(nn.Module):  # type: ignore[misc, unused-ignore]
    """Encoder, attention, decoder and the vocabulary's scores."""

    def __init__(self, width: int = 1024, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.tokens, self.dropout = nn.Embedding(vocabulary, width, padding_idx=0), nn.Dropout(0.2)
        self.encoder = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in (2 * width, width, width))
        self.encoder.insert(0, nn.LSTM(width, width, bidirectional=True, batch_first=True))
        self.attention = Bahdanau(width)
        self.decoder = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in (width, *3 * (2 * width,)))
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting *target* from *source* (both batch, sequence)."""
        memory = self.tokens(source)
        for index, layer in enumerate(self.encoder):
            states, _ = layer(self.dropout(memory))
            memory = states + memory if index >= 2 else states
        hidden, _ = self.decoder[0](self.dropout(self.tokens(target)))
        context = self.attention(hidden, memory)
        for index, layer in enumerate(self.decoder[1:]):
            states, _ = layer(torch.cat((self.dropout(hidden), context), dim=-1))
            hidden = states + hidden if index >= 1 else states
        loss: torch.Tensor = functional.cross_entropy(self.classifier(hidden).flatten(0, 1), target.flatten())
        return loss
