"""Decoders in torch, of the shapes that ``sim.spec.transformer`` describes, for comparing what their layouts send and hold."""

from __future__ import annotations

from typing import Any

from torch import nn

from sim.spec.transformer import Transformer

_ACTIVATIONS = {"silu": nn.SiLU, "swiglu": nn.SiLU, "gelu": nn.GELU, "geglu": nn.GELU, "relu": nn.ReLU}


def _norm(shape: Transformer, width: int) -> nn.Module:
    return nn.LayerNorm(width) if shape.norm == "layernorm" else nn.RMSNorm(width)


class Attention(nn.Module):
    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.shape, size = shape, shape.head_size
        bias = shape.bias in ("all", "qkv", "qkv_output")
        self.q = nn.Linear(shape.hidden, shape.heads * size, bias=bias)
        self.k, self.v = (nn.Linear(shape.hidden, shape.groups * size, bias=bias) for _ in range(2))
        if shape.qk_norm == "head":
            self.q_norm, self.k_norm = _norm(shape, size), _norm(shape, size)
        self.output = nn.Linear(shape.heads * size, shape.hidden, bias=shape.bias in ("all", "qkv_output"))

    def forward(self, x: Any) -> Any:
        q, k, v = (product(x).unflatten(-1, (-1, self.shape.head_size)) for product in (self.q, self.k, self.v))
        if self.shape.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        repeated = self.shape.heads // self.shape.groups
        k, v = (each.repeat_interleave(repeated, dim=2) for each in (k, v))
        heads = nn.functional.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True)
        return self.output(heads.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        bias = shape.bias in ("all", "ffn")
        if shape.gated:
            self.gate = nn.Linear(shape.hidden, shape.inner, bias=bias)
        self.up, self.down = nn.Linear(shape.hidden, shape.inner, bias=bias), nn.Linear(shape.inner, shape.hidden, bias=bias)
        self.activation = _ACTIVATIONS[shape.activation]()

    def forward(self, x: Any) -> Any:
        if hasattr(self, "gate"):
            return self.down(self.activation(self.gate(x)) * self.up(x))
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.shape = shape
        self.attention_norm = _norm(shape, shape.hidden)
        self.attention, self.feed = Attention(shape), Feed(shape)
        if shape.norms_per_layer > 1:
            self.ffn_norm = _norm(shape, shape.hidden)
        if shape.norms_per_layer == 4:
            self.post_attention_norm, self.post_ffn_norm = _norm(shape, shape.hidden), _norm(shape, shape.hidden)

    def forward(self, x: Any) -> Any:
        if self.shape.parallel:
            normed = self.attention_norm(x)
            attended = self.attention(normed)
            return x + attended + self.feed(normed if self.shape.norms_per_layer == 1 else self.ffn_norm(x))
        attended = self.attention(self.attention_norm(x))
        x = x + (self.post_attention_norm(attended) if self.shape.norms_per_layer == 4 else attended)
        fed = self.feed(self.ffn_norm(x))
        return x + (self.post_ffn_norm(fed) if self.shape.norms_per_layer == 4 else fed)


class Decoder(nn.Module):
    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm, self.head = _norm(shape, shape.hidden), nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.tokens(x)
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x))
