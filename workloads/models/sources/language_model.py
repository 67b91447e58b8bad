"""What is the LSTM language model in the catalog? The one of pytorch/examples (word_language_model) on WikiText-2 that Gavel ran.

An embedding of 200 numbers for 33,278 words, two LSTM layers of width 200 with dropout 0.2 over 35 words at a time, an untied output
matrix. Batches stand second, as that code has them.
"""

from __future__ import annotations

import torch
from torch import nn


class LstmLanguageModel(nn.Module):  # type: ignore[misc, unused-ignore]
    """Embedding, LSTM, scores of the next word."""

    def __init__(self, vocabulary: int = 33278, width: int = 200, depth: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout, self.encoder = nn.Dropout(dropout), nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, depth, dropout=dropout)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores (sequence, batch, vocabulary) of the words after *words* (sequence, batch)."""
        states, _ = self.recurrent(self.dropout(self.encoder(words)))
        result: torch.Tensor = self.decoder(self.dropout(states))
        return result
