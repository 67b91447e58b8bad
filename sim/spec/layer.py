"""What does one operator call of a model cost? A row of its layer table, per sample, independent of the hardware.

``sim extract`` writes the rows of torch models; `sim.spec.decoder` derives them from the shape of a decoder.
"""

from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import model_validator

from sim.spec.fields import Bytes, Count, Dtype, Factor, OperatorClass, Spec, Whole, WorkQuantity
from sim.spec.measured import MeasuredTimes

TensorShare = Literal["", "colwise", "rowwise", "vocabulary", "heads", "per_head", "sequence", "expert", "replicated"]
"""How a tensor-parallel group splits a layer, in torch's terms where it has them. colwise: weights, work and output are split, the input is
complete. rowwise: weights, work and input are split, the output is a partial sum; its bias is whole. vocabulary: an embedding's table is
split by rows. heads: everything is split, nothing is sent. per_head: work is split, the weights of one head are used for all. sequence:
split by tokens under sequence parallelism, else replicated. expert: weights are split over the expert group, work and traffic with the
tokens. replicated: every rank does all of it. Empty: not specified."""

WIDTHS: Final[Mapping[Dtype, float]] = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "complex64": 8}
"""Bytes of an element."""

WORK_FIELDS: Final = ("forward", "backward", "arithmetic", "backward_arithmetic", "read", "write", "backward_traffic")
"""The fields of a layer that hold the work of its passes: FLOP and bytes."""


class Attention(Spec):
    """Shape of one fused attention call, per sample."""

    heads: Count
    """Number of query heads."""
    kv_heads: Count
    """Number of key and value heads."""
    head_dim: Count
    """Size of a query or key head."""
    value_dim: Count | None = None
    """Size of a value head, if it differs (multi-head latent attention); None: ``head_dim``."""
    queries: Count
    """Number of query tokens."""
    keys: Count
    """Number of key tokens."""
    causal: bool = True
    """Whether each token attends only to itself and earlier tokens."""
    sinks: bool = False
    """Whether each head has a learned sink, a score without a key."""
    window: Whole = 0
    """Sliding window: number of tokens that each token can look back, and ahead if not ``causal``; 0: all."""
    chunked: bool = False
    """Whether each token attends only to its own chunk of ``window`` tokens; the last chunk may be shorter."""
    documents: Factor = 1.0
    """Mean number of sequences of this length in a sample; each attends only to itself (packed documents)."""
    shares: Count = 1
    """Number of context ranks that split the queries of a longer sequence; each has a piece from both ends, so that all see the same number
    of keys."""
    in_steps: bool = False
    """Whether a context rank attends to the keys of each rank in a call of its own (torch's ring)."""


class Layer(Spec):
    """One operator call of the model. Quantities are per sample unless noted otherwise; bytes are for 4-byte elements."""

    name: str
    op: OperatorClass
    """Class of the operator, which decides the efficiency that applies."""
    gradients: tuple[Count, ...] = ()
    """Elements of each gradient tensor that becomes ready in this layer's backward, in that order."""
    dtypes: tuple[Dtype, ...] = ()
    """Data type in the model's code of each gradient tensor, then of each frozen one; a single type applies to all. Tensors that are fp32
    here get the type of the training precision. Empty: all are fp32."""
    forward: WorkQuantity = 0.0
    """FLOP of products in forward: convolutions, matrix products, attention."""
    backward: WorkQuantity = 0.0
    """FLOP of products in backward."""
    arithmetic: WorkQuantity = 0.0
    """Other FLOP in forward, for layers without products."""
    backward_arithmetic: WorkQuantity = 0.0
    """Other FLOP in backward, for layers without products."""
    read: Bytes = 0.0
    """Activation bytes that forward reads."""
    entering: Bytes | None = None
    """Activation bytes produced before this layer that it or later layers read: what a pipeline stage that begins here receives. None:
    ``read``."""
    write: Bytes = 0.0
    """Activation bytes that forward writes."""
    backward_traffic: Bytes = 0.0
    """Activation bytes that backward reads and writes."""
    saved: Bytes = 0.0
    """Activation bytes that forward saves for backward."""
    casts: Whole = 0
    """Activation elements that autocast converts in separate kernels, to 16 bits for this product or to 32 for a loss; backward converts
    their gradients back."""
    dropped: Whole = 0
    """Activation elements to which dropout is applied before this layer, in a separate pass unless the stack fuses it (``fused_dropout``);
    the mask is counted in the layer's bytes."""
    composed: Whole = 0
    """Elements of a GELU or RMS norm that the model's code builds from many operators, which the stack may run one by one
    (``composed_gelu``, ``composed_norms``)."""
    forward_kernels: Whole = 1
    """Number of kernels that forward launches."""
    backward_kernels: Whole = 1
    """Number of kernels that backward launches."""
    kernel_size: Whole = 0
    """Larger edge of a convolution's window (3 for 3x3, 7 for 1x7); 0 for other operators."""
    stride: Count = 1
    """Stride of a convolution; Winograd supports only 1."""
    channels: tuple[Count, ...] = ()
    """Input and output channels of a convolution (per group) or a matrix product; empty for other operators."""
    rows: Whole = 0
    """Number of rows of an embedding's table, which is its first gradient tensor; 0 for other operators."""
    rows_per_sample: Whole = 0
    """Number of rows of the table that one sample looks up."""
    sparse: bool = False
    """Whether torch makes the gradient of this embedding's table sparse, with only the rows that were looked up."""
    frozen: tuple[Count, ...] = ()
    """Elements of each parameter tensor that is used first by this layer and gets no gradient."""
    shares: str = ""
    """Name of the earlier layer whose parameter this layer also uses; empty: none."""
    share: TensorShare = ""
    """How tensor parallelism splits the layer: by output columns, input rows, vocabulary, heads, along the sequence or by expert.
    replicated or empty: not at all."""
    tokens: Whole = 0
    """Rows of a matrix product per sample; with ``channels`` they are its shape. 0: unknown."""
    groups: Whole = 0
    """Number of experts over which the rows of a grouped product are distributed; 0 for a plain product."""
    attention: Attention | None = None
    """Shape of fused attention; None: not fused attention, or shape unknown."""
    segment: Whole = 0
    """Number of the activation-checkpointing segment in the model's code that contains the layer; 0: none."""
    measured: MeasuredTimes | None = None
    """Measured times of the layer, on the GPU in the model's ``measured``; they are scaled to other GPUs. None: computed."""

    @property
    def parameters(self) -> int:
        """Return the number of parameters, trained and frozen, that are used first by this layer."""
        return sum(self.gradients) + sum(self.frozen)

    @property
    def received_bytes(self) -> float:
        """Return the bytes per sample (4-byte elements) that a part of the model receives if it begins with this layer."""
        return self.read if self.entering is None else self.entering

    def widths(self, width: float) -> tuple[float, ...]:
        """Return the bytes per element of each gradient tensor, then of each frozen one, if an FP32 element has *width* bytes."""
        count = len(self.gradients) + len(self.frozen)
        single: tuple[Dtype, ...] = ("fp32",)
        types = self.dtypes if len(self.dtypes) > 1 else (self.dtypes or single) * count
        return tuple(width if dtype == "fp32" else WIDTHS[dtype] for dtype in types)

    def gradient_bytes(self, width: float) -> float:
        """Return the bytes of the gradient tensors, or of their weights, if an FP32 element has *width* bytes."""
        if not self.dtypes:
            return width * sum(self.gradients)
        return sum(elements * each for elements, each in zip(self.gradients, self.widths(width), strict=False))

    def frozen_bytes(self, width: float) -> float:
        """Return the bytes of the frozen weights, if an FP32 element has *width* bytes."""
        if not self.dtypes:
            return width * sum(self.frozen)
        return sum(elements * each for elements, each in zip(self.frozen, self.widths(width)[len(self.gradients) :], strict=True))

    @model_validator(mode="after")
    def _typed(self) -> Self:
        count = len(self.gradients) + len(self.frozen)
        if len(self.dtypes) not in (0, 1, count):
            raise ValueError(
                f"{len(self.dtypes)} dtypes for {count} gradient and frozen tensors; write one for each, one for all, or none for fp32"
            )
        return self

    @model_validator(mode="after")
    def _tabled(self) -> Self:
        if self.rows and (not self.gradients or self.gradients[0] % self.rows):
            raise ValueError(
                f"rows ({self.rows}) do not divide the layer's first gradient tensor; write the number of rows of the embedding's table"
            )
        if self.rows_per_sample and not self.rows:
            raise ValueError("rows_per_sample without rows; add rows, the number of rows of the embedding's table")
        return self
