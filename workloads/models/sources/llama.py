"""Which Llama models are in the catalog? The 7B of Touvron et al. (arXiv 2302.13971), and anything of its shape.

Pre-norm decoder blocks with RMS norms, rotary positions, fused causal attention and a gated feed-forward block, no biases, no
dropout, untied output matrix (huggingface/transformers LlamaConfig). The model returns its loss: each token against the next one.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Llama(nn.Module):  # type: ignore[misc, unused-ignore]
    """The decoder; its defaults are Llama 7B."""

    def __init__(
        self, width: int = 4096, depth: int = 32, heads: int = 32, inner: int = 11008, vocabulary: int = 32000, sequence: int = 2048
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.block = nn.ModuleList(LlamaBlock(width, heads, inner) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.output = nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(sequence), 10000.0 ** (-torch.arange(0, width // heads, 2) * heads / width))
        self.register_buffer("cosine", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sine", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting each token of (batch, sequence) from those before it."""
        length = input_ids.shape[1]
        hidden = self.tokens(input_ids)
        for block in self.block:
            hidden = block(hidden, self.cosine[:length], self.sine[:length])
        scores = self.output(self.norm(hidden))
        loss: torch.Tensor = functional.cross_entropy(scores[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        return loss


class LlamaBlock(nn.Module):  # type: ignore[misc, unused-ignore]
    """Causal self-attention with rotary positions, and a feed-forward block gated by SiLU."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((width, inner), (width, inner), (inner, width)))

    def forward(self, hidden: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states (batch, sequence, width); *cosine* and *sine* turn query and key by their positions."""
        inputs = self.attention_norm(hidden)
        query, key, value = (self._split(project(inputs)) for project in (self.query, self.key, self.value))
        query, key = _turned(query, cosine, sine), _turned(key, cosine, sine)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(2))
        inputs = self.norm(hidden)
        result: torch.Tensor = hidden + self.down(functional.silu(self.gate(inputs)) * self.up(inputs))
        return result

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _turned(vectors: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosine + torch.cat((-second, first), dim=-1) * sine
