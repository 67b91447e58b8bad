"""Small models in torch for ``fully_shard``: an embedding, numbered blocks, a norm and a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

WIDTH = 16
RANK = 16
"""Of adapters: the width between their factors."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.output(nn.functional.scaled_dot_product_attention(q, k, v))


class Feed(nn.Module):
    def __init__(self, inner: int = 4 * WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Adapted(nn.Module):
    """A frozen product and the factors beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.a, self.b = nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.base(x) + self.b(self.a(x))


class Net(nn.Module):
    def __init__(self, blocks: Sequence[nn.Module], tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Any) -> Any:
        x = self.tokens(x)
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x))
