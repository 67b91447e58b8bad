"""What does one operator call of a model cost? A row of its layer table, per sample, whatever the hardware.

Written by ``sim extract`` from torch models, and by ``sim.spec.transformer`` from a decoder's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import model_validator

from sim.spec.fields import Bytes, Count, Dtype, OperatorClass, Spec, Whole, WorkQuantity
from sim.spec.measured import MeasuredTimes

TensorShare = Literal["", "colwise", "rowwise", "vocabulary", "heads", "per_head", "sequence", "expert", "replicated"]
"""How a tensor-parallel group shares a layer, in torch's words where it has them. colwise: weights, work and output are split, the input
is complete. rowwise: weights, work and input are split, the output is a partial sum; its bias is whole. vocabulary: an embedding's table is
split by rows. heads: everything is split, nothing is sent. per_head: work is split, the weights of one head serve all. sequence: split by
tokens under sequence parallelism, else repeated. expert: weights are split over the expert group, work and traffic with the tokens.
replicated: every rank does it all. Empty: nobody said how."""

WIDTHS: Final[Mapping[Dtype, float]] = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "complex64": 8}
"""Bytes of an element."""


class Attention(Spec):
    """Shape of one fused attention call, per sample."""

    heads: Count
    """Heads of queries."""
    kv_heads: Count
    """Heads of keys and values."""
    head_dim: Count
    """Size of a head of queries and keys."""
    value_dim: Count | None = None
    """Size of a value head where it differs (multi-head latent attention)."""
    queries: Count
    """Tokens that ask."""
    keys: Count
    """Tokens that are asked."""
    causal: bool = True
    """Whether each token sees earlier ones only."""
    window: Whole = 0
    """Tokens that each token looks back on; 0: all."""
    shares: Count = 1
    """Ranks that share a longer sequence's queries, each with a piece from either end: all see equally many keys."""


class Layer(Spec):
    """One operator call of the model, per sample unless said otherwise; bytes are for 4-byte elements."""

    name: str
    op: OperatorClass
    """Class of operator; it decides which efficiency holds."""
    gradients: tuple[Count, ...] = ()
    """Elements of each gradient tensor that becomes ready with this layer's backward, in the order they become ready."""
    dtypes: tuple[Dtype, ...] = ()
    """Type that the model's code gives each gradient tensor, then each frozen one; one serves all. What is fp32 goes by the precision."""
    forward: WorkQuantity = 0.0
    """FLOP of products: convolutions, matrix products, attention."""
    backward: WorkQuantity = 0.0
    """FLOP of backward's products."""
    arithmetic: WorkQuantity = 0.0
    """FLOP of everything else, in a layer without products."""
    backward_arithmetic: WorkQuantity = 0.0
    """The same of backward."""
    read: Bytes = 0.0
    """Activation bytes the forward reads."""
    entering: Bytes | None = None
    """Activation bytes that were made before this layer and that it or later ones read: what a pipeline's stage receives that begins here.
    None: what the layer reads."""
    write: Bytes = 0.0
    """Activation bytes the forward writes."""
    backward_traffic: Bytes = 0.0
    """Activation bytes the backward reads and writes."""
    saved: Bytes = 0.0
    """Activation bytes kept from forward for backward."""
    casts: Whole = 0
    """Activation elements that autocast converts to 16 bits for this product, or to 32 for a loss, in a kernel of their own, and whose
    gradients it converts back."""
    dropped: Whole = 0
    """Activation elements that dropout takes before this layer, which take a pass of their own unless the stack fuses it
    (``fused_dropout``); its mask is in the layer's bytes."""
    composed: Whole = 0
    """Elements of a GELU or RMS norm that code composes of many operators, which the stack may run one by one (``composed_gelu``,
    ``composed_norms``)."""
    forward_kernels: Whole = 1
    """Kernels that forward launches."""
    backward_kernels: Whole = 1
    """Kernels that backward launches."""
    kernel_size: Whole = 0
    """Edge of a convolution's window (3 for 3x3, 7 for 1x7); 0 elsewhere."""
    stride: Count = 1
    """Step of a convolution's window; Winograd serves 1 only."""
    channels: tuple[Count, ...] = ()
    """Input and output channels that a convolution (per group) or a matrix product combines; empty elsewhere."""
    rows: Whole = 0
    """Rows of an embedding's table, its first gradient tensor; 0 elsewhere."""
    rows_per_sample: Whole = 0
    """Rows of the table that one sample looks up."""
    sparse: bool = False
    """torch makes the gradient of this embedding's table sparse: only the rows that were looked up."""
    frozen: tuple[Count, ...] = ()
    """Elements of each parameter tensor that this layer is the first to use and that gets no gradient."""
    shares: str = ""
    """The earlier layer whose parameter this one uses too."""
    share: TensorShare = ""
    """How tensor parallelism divides it: by output columns, input rows, vocabulary, heads, along the sequence, by expert; replicated or
    empty: not at all."""
    tokens: Whole = 0
    """Rows of a matrix product per sample; with ``channels`` its shape. 0: not known."""
    groups: Whole = 0
    """Experts among which the rows of a grouped product are spread; 0 for a plain product."""
    attention: Attention | None = None
    """Shape of fused attention."""
    segment: Whole = 0
    """Number of the activation-checkpointed segment of the model's code that the layer is in; 0 for none."""
    measured: MeasuredTimes | None = None
    """What a profile showed, with the model's ``measured`` that says where; elsewhere it is scaled."""

    @property
    def received(self) -> float:
        """Return the bytes per sample (elements of 4) that a part of the model receives which begins with this layer."""
        return self.read if self.entering is None else self.entering

    def widths(self, width: float) -> tuple[float, ...]:
        """Return the bytes of an element of each gradient tensor, then of each frozen one, where one of FP32 takes *width*."""
        count = len(self.gradients) + len(self.frozen)
        single: tuple[Dtype, ...] = ("fp32",)
        types = self.dtypes if len(self.dtypes) > 1 else (self.dtypes or single) * count
        return tuple(width if dtype == "fp32" else WIDTHS[dtype] for dtype in types)

    def gradient_bytes(self, width: float) -> float:
        """Return the bytes of the gradient tensors, or of as many weights, where an element of FP32 takes *width*."""
        if not self.dtypes:
            return width * sum(self.gradients)
        return sum(elements * each for elements, each in zip(self.gradients, self.widths(width), strict=False))

    def frozen_bytes(self, width: float) -> float:
        """Return the bytes of the frozen weights where an element of FP32 takes *width*."""
        if not self.dtypes:
            return width * sum(self.frozen)
        return sum(elements * each for elements, each in zip(self.frozen, self.widths(width)[len(self.gradients) :], strict=True))

    @model_validator(mode="after")
    def _typed(self) -> Layer:
        count = len(self.gradients) + len(self.frozen)
        if len(self.dtypes) not in (0, 1, count):
            raise ValueError(
                f"{len(self.dtypes)} dtypes for {count} gradient and frozen tensors; write one for each, one for all, or none for fp32"
            )
        return self

    @model_validator(mode="after")
    def _tabled(self) -> Layer:
        if self.rows and (not self.gradients or self.gradients[0] % self.rows):
            raise ValueError(f"rows ({self.rows}) do not divide the layer's first gradient tensor; write the rows of the embedding's table")
        if self.rows_per_sample and not self.rows:
            raise ValueError("rows_per_sample without rows; write the rows of the embedding's table as well")
        return self
