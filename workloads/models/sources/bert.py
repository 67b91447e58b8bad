"""BERT as its first releases ran it (Devlin et al., NAACL 2019), and RoBERTa, which has its layers.

Attention is separate matrix products, softmax and dropout, as torch ran it up to version 1.13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn


class Bert(nn.Module):  # type: ignore[misc, unused-ignore]
    """The encoder: embeddings and *depth* layers, without the pooler."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int = 30522, positions: int = 512, types: int = 2) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(types, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.layer = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the hidden states (batch, sequence, width); the mask is 1 where a token stands."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        hidden = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        hidden = self.dropout(self.norm(hidden + self.position_embeddings(positions)))
        penalty = (1.0 - attention_mask[:, None, None, :].to(hidden.dtype)) * -10000.0
        for layer in self.layer:
            hidden = layer(hidden, penalty)
        return hidden


class BertLayer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Self-attention and a feed-forward block of four times the width, each followed by dropout, the residual and a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.attention_norm, self.norm = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.feed, self.activation, self.feed_output = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.attention_dropout, self.output_dropout, self.feed_dropout = nn.Dropout(0.1), nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, hidden: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states; *penalty* is added to the scores of masked tokens."""
        query, key, value = (self._split(project(hidden)) for project in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + penalty
        attended = self.attention_dropout(scores.softmax(-1)) @ value
        merged = attended.transpose(1, 2).flatten(2)
        hidden = self.attention_norm(hidden + self.output_dropout(self.output(merged)))
        fed = self.feed_output(self.activation(self.feed(hidden)))
        result: torch.Tensor = self.norm(hidden + self.feed_dropout(fed))
        return result

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class BertForQuestionAnswering(nn.Module):  # type: ignore[misc, unused-ignore]
    """BERT with the start and end scores of SQuAD."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.bert = Bert(width, depth, heads)
        self.qa_outputs = nn.Linear(width, 2)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return start and end scores, each (batch, sequence)."""
        scores = self.qa_outputs(self.bert(input_ids, token_type_ids, attention_mask))
        return [score.squeeze(-1) for score in scores.split(1, dim=-1)]


class BertForPretraining(nn.Module):  # type: ignore[misc, unused-ignore]
    """BERT with the heads of pretraining: masked tokens (decoder tied to the word embeddings) and next sentence."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int = 30522) -> None:
        super().__init__()
        self.bert = Bert(width, depth, heads, vocabulary)
        self.pooler, self.tanh = nn.Linear(width, width), nn.Tanh()
        self.transform, self.activation, self.norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.bert.word_embeddings.weight
        self.seq_relationship = nn.Linear(width, 2)

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor, masked_positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return vocabulary scores at the masked positions (batch, masked) and next-sentence scores."""
        hidden = self.bert(input_ids, token_type_ids, attention_mask)
        masked = hidden.gather(1, masked_positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        words = self.decoder(self.norm(self.activation(self.transform(masked))))
        return words, self.seq_relationship(self.tanh(self.pooler(hidden[:, 0])))


class Roberta(nn.Module):  # type: ignore[misc, unused-ignore]
    """RoBERTa with its head for masked tokens (decoder tied to the word embeddings): BERT's layers, one type of token, no pooler."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int = 50265, positions: int = 514) -> None:
        super().__init__()
        self.bert = Bert(width, depth, heads, vocabulary, positions, types=1)
        self.transform, self.activation, self.norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-5)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.bert.word_embeddings.weight

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, masked_positions: torch.Tensor) -> torch.Tensor:
        """Return vocabulary scores at the masked positions (batch, masked)."""
        hidden = self.bert(input_ids, torch.zeros_like(input_ids), attention_mask)
        masked = hidden.gather(1, masked_positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        words: torch.Tensor = self.decoder(self.norm(self.activation(self.transform(masked))))
        return words


_BERT = {"base": (768, 12, 12), "large": (1024, 24, 16)}


def bert_qa(size: str) -> BertForQuestionAnswering:
    """Return BERT ``base`` or ``large`` for SQuAD."""
    return BertForQuestionAnswering(*_BERT[size])


def bert_pretraining(size: str) -> BertForPretraining:
    """Return BERT ``base`` or ``large`` with both heads of pretraining."""
    return BertForPretraining(*_BERT[size])


def roberta(size: str) -> Roberta:
    """Return RoBERTa ``base`` or ``large`` (Liu et al., arXiv 1907.11692; sizes of transformers' roberta-base and roberta-large)."""
    return Roberta(*_BERT[size])
