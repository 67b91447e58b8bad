"""Small models that ``fully_shard`` wraps: an embedding, numbered blocks, a norm and a head. Importing this imports torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import nn

WIDTH = 16
RANK = 16
"""Width of adapters."""


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
        self.last = nn.Sequential(OrderedDict(norm=nn.LayerNorm(WIDTH), head=nn.Linear(WIDTH, 32, bias=False)))
        if tied:
            self.last.head.weight = self.tokens.weight

    def forward(self, x: Any) -> Any:
        x = self.tokens(x)
        for block in self.layers:
            x = block(x)
        return self.last(x)


def _plain(*parts: type[nn.Module] | nn.Module) -> Net:
    return Net([part() if isinstance(part, type) else part for part in parts])


def _frozen_below(count: int) -> Net:
    net = _plain(Feed, Attention, Feed, Attention)
    for part in (net.tokens, *net.layers[:count]):
        part.requires_grad_(False)
    return net


def _adapted() -> Net:
    net = _plain(Adapted, Adapted, Adapted)
    for part in (net.tokens, net.last.norm, net.last.head):
        part.requires_grad_(False)
    return net


def _frozen_from_above() -> Net:
    net = _plain(Feed, Attention, Feed)
    net.layers[1].requires_grad_(False)
    net.last.head.requires_grad_(False)
    return net


MODELS = {
    "feed": lambda: _plain(Feed, Feed, Feed),
    "decoder": lambda: _plain(Attention, Feed, Attention, Feed),
    "uneven": lambda: _plain(Feed(2 * WIDTH), Feed(16 * WIDTH), Attention),
    "one block": lambda: _plain(Attention),
    "adapters": _adapted,
    "frozen below": lambda: _frozen_below(2),
    "frozen above": _frozen_from_above,
}
