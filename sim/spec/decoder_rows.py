"""What does one operator of a decoder cost? Rows of its layer table, for one sample.

A fused operator is one row, as in Megatron-LM with Transformer Engine and in compiled torch (`sim.spec.decoder`). Bytes are for 4-byte
elements (see ``Layer``).
"""

from __future__ import annotations

from typing import Any, Final

from sim.spec.layer import Layer, TensorShare
from sim.spec.transformer import Transformer

FLOAT: Final = 4.0
"""Bytes of an element in a layer table."""
_LABELS: Final = 8.0
"""Bytes of a token's index, or of its label, as int64."""
_ARITHMETIC: Final[dict[str, tuple[float, float]]] = {
    "layernorm": (8.0, 14.0),
    "nonparametric": (8.0, 12.0),
    "rmsnorm": (5.0, 12.0),
    "gelu": (20.0, 44.0),
    "geglu": (21.0, 46.0),
    "relu": (1.0, 1.0),
    "reglu": (2.0, 3.0),
    "relu2": (2.0, 3.0),
    "sigmoid": (5.0, 8.0),
    "silu": (5.0, 9.0),
    "swiglu": (6.0, 11.0),
    "xielu": (11.0, 19.0),
}
"""FLOP per element, forward and backward, as ``sim extract`` counts them."""


class DecoderRows:
    """Rows for one decoder and one sequence length."""

    def __init__(self, shape: Transformer, sequence: int) -> None:
        self.shape, self.tokens = shape, sequence
        self.stream = FLOAT * sequence * shape.hidden
        """Bytes of the residual stream."""

    def input_casts(self, products: int) -> int:
        """Return how many times autocast casts the input of a fused product that represents *products* separate ones, each with its cast.

        Norms and the residual stream stay in 32 bits. The code of gated decoders has separate q, k, v, gate and up products (Llama in
        Hugging Face transformers); the code of others has q, k and v in one product (GPT-2).
        """
        return products if self.shape.gated else 1

    def lookup(self, name: str, rows: int, share: TensorShare) -> Layer:
        """Return an embedding look-up. Position embeddings are added to the stream, and dropout follows the last look-up."""
        numbers = _LABELS * self.tokens
        first = name == "tokens"
        mask = 0.0 if first or not self.shape.dropout else self.stream / 2
        traffic = self.stream + numbers
        return Layer.model_construct(
            name=name,
            op="embedding",
            gradients=(rows * self.shape.hidden,),
            backward_arithmetic=self.stream / FLOAT,
            read=traffic + (0.0 if first else self.stream),
            write=self.stream + mask,
            backward_traffic=traffic + mask,
            saved=mask,
            dropped=int(mask > 0) * self.tokens * self.shape.hidden,
            backward_kernels=6,  # as ``sim extract`` counts embedding_dense_backward
            rows=rows,
            rows_per_sample=self.tokens,
            share=share,
        )

    def norm(self, name: str, width: int, share: TensorShare = "sequence") -> Layer:
        """Return a norm of *width* elements per token."""
        kind = self.shape.norm
        biased = kind == "layernorm" if self.shape.norm_bias is None else self.shape.norm_bias
        elements = float(self.tokens * width)
        statistics = 2 * FLOAT * self.tokens * (2 if kind != "rmsnorm" else 1)  # FP32 in 16 bits
        forward, backward = _ARITHMETIC[kind]
        return Layer.model_construct(
            name=name,
            op="norm",
            gradients=() if kind == "nonparametric" else (width,) * (1 + biased),
            arithmetic=forward * elements,
            backward_arithmetic=backward * elements,
            read=FLOAT * elements,
            write=FLOAT * elements + statistics,
            backward_traffic=5.0 * FLOAT * elements,  # read for the input's gradient, and again for the weights'
            saved=FLOAT * elements + statistics,
            composed=self.tokens * width if kind == "rmsnorm" else 0,
            backward_kernels=2,
            share=share,
        )

    def residual(self, name: str, terms: int = 2) -> Layer:
        """Return the sum of *terms*: a branch after dropout and the stream. Backward adds the two gradients of the stream."""
        mask = self.stream / 2 if self.shape.dropout else 0.0
        return Layer.model_construct(
            name=name,
            op="elementwise",
            arithmetic=self.stream / FLOAT,
            backward_arithmetic=self.stream / FLOAT,
            read=terms * self.stream,
            write=self.stream + mask,
            backward_traffic=3.0 * self.stream + (mask + self.stream if mask else 0.0),
            saved=mask,
            dropped=int(mask > 0) * self.tokens * self.shape.hidden,
            backward_kernels=2 if mask else 1,
            share="sequence",
        )

    def product(
        self,
        name: str,
        inner: int,
        outer: int,
        share: TensorShare,
        *,
        bias: bool = False,
        saves: bool = True,
        rows: int = 0,
        casts: int = 1,
    ) -> Layer:
        """Return the product of *rows* of *inner* elements with a weight; by default one row per token. Experts count all routed rows.

        Autocast casts its input *casts* times.
        """
        routed = share == "expert"
        experts = self.shape.experts if routed else 1
        count = rows or self.tokens
        flop = 2.0 * count * inner * outer
        read, write = FLOAT * count * inner, FLOAT * count * outer
        weight = experts * inner * outer
        fields: dict[str, Any] = {"groups": experts} if routed else {}
        return Layer.model_construct(
            name=name,
            op="gemm",
            gradients=(experts * outer, weight) if bias else (weight,),
            forward=flop,
            backward=2.0 * flop,
            read=read,
            write=write,
            backward_traffic=2.0 * (read + write) + (write if bias else 0.0),
            saved=read if saves else 0.0,
            casts=casts * count * inner,
            backward_kernels=3 if bias else 2,
            channels=(inner, outer),
            share=share,
            tokens=count,
            **fields,
        )

    def activation(self, name: str, inner: int, rows: int, share: TensorShare) -> Layer:
        """Return the activation of *rows* rows of *inner* elements."""
        gate, elements = 1 + self.shape.gated, float(rows * inner)
        forward, backward = _ARITHMETIC[self.shape.activation]
        weighted = self.shape.activation == "xielu"  # one number for either side of 0 (arXiv 2411.13010, section 3)
        return Layer.model_construct(
            name=name,
            op="elementwise",
            gradients=(1, 1) if weighted else (),
            arithmetic=forward * elements,
            backward_arithmetic=backward * elements,
            read=FLOAT * gate * elements,
            write=FLOAT * elements,
            backward_traffic=FLOAT * (2 * gate + 1) * elements,
            saved=FLOAT * gate * elements,
            composed=rows * inner if self.shape.composed_gelu else 0,
            share="per_head" if weighted else share,
        )

    def gate(self, name: str, width: int, activation: str) -> Layer:
        """Return the product of a result, *width* elements per token, with *activation* of its gate."""
        moved = FLOAT * self.tokens * width
        forward, backward = _ARITHMETIC[activation]
        return Layer.model_construct(
            name=name,
            op="elementwise",
            arithmetic=forward * self.tokens * width,
            backward_arithmetic=backward * self.tokens * width,
            read=2.0 * moved,
            write=moved,
            backward_traffic=5.0 * moved,
            saved=moved,  # the gate; attention and scans save their results
            share="heads",
        )

    def rope(self, width: int) -> Layer:
        """Return the rotation of queries and keys, *width* elements per token in total."""
        moved = FLOAT * self.tokens * width
        return Layer.model_construct(
            name="attention.rope",
            op="elementwise",
            arithmetic=3.0 * self.tokens * width,
            backward_arithmetic=3.0 * self.tokens * width,
            read=moved,
            write=moved,
            backward_traffic=2.0 * moved,
            forward_kernels=2,
            backward_kernels=2,
            share="heads",
        )
