"""What workload did the user describe? A model's layer table, a data set, its input pipeline and the training set-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field, model_validator

from sim.spec.fields import (
    Bytes,
    Count,
    Counts,
    Dtype,
    Factor,
    Fraction,
    Numbers,
    OperatorClass,
    Precision,
    Seconds,
    Source,
    Spec,
    Whole,
    Work,
)
from sim.spec.parallel import Parallel
from sim.spec.stack import Stack

Share = Literal["", "column", "row", "vocabulary", "heads", "sequence", "expert", "replicated"]
"""How a tensor-parallel group shares a layer, in torch's words where it has them. column: weights, work and output are split, the input is
complete. row: weights, work and input are split, the output is a partial sum. vocabulary: an embedding's table is split by rows.
heads: everything is split, nothing is sent. sequence: split by tokens under sequence parallelism, else repeated. expert: weights are split
over the expert group, work and traffic with the tokens. replicated: every rank does it all. Empty: nobody said how."""

WIDTHS: Final[Mapping[Dtype, float]] = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "complex64": 8}
"""Bytes of an element."""


class Attention(Spec):
    """Shape of one fused attention call, per sample."""

    heads: Count
    kv_heads: Count
    head_dim: Count
    value_dim: Count | None = None
    """Size of a value head where it differs (multi-head latent attention)."""
    queries: Count
    keys: Count
    causal: bool = True
    window: Whole = 0
    """Tokens that each token looks back on; 0: all."""


class Layer(Spec):
    """One operator call of the model, per sample unless said otherwise; bytes are for 4-byte elements."""

    name: str
    op: OperatorClass
    gradients: tuple[Count, ...] = ()
    """Elements of each gradient tensor that becomes ready with this layer's backward, in the order they become ready."""
    dtypes: tuple[Dtype, ...] = ()
    """Type that the model's code gives each gradient tensor, then each frozen one; one serves all. What is fp32 goes by the precision."""
    forward: Work = 0.0
    """FLOP of products: convolutions, matrix products, attention."""
    backward: Work = 0.0
    arithmetic: Work = 0.0
    """FLOP of everything else, in a layer without products."""
    backward_arithmetic: Work = 0.0
    read: Bytes = 0.0
    """Activation bytes the forward reads."""
    write: Bytes = 0.0
    """Activation bytes the forward writes."""
    backward_traffic: Bytes = 0.0
    """Activation bytes the backward reads and writes."""
    saved: Bytes = 0.0
    """Activation bytes kept from forward for backward."""
    forward_kernels: Whole = 1
    backward_kernels: Whole = 1
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
    share: Share = ""
    tokens: Whole = 0
    """Rows of a matrix product per sample; with ``channels`` its shape. 0: not known."""
    groups: Whole = 0
    """Experts among which the rows of a grouped product are spread; 0 for a plain product."""
    attention: Attention | None = None
    """Shape of fused attention."""
    segment: Whole = 0
    """Number of the activation-checkpointed segment of the model's code that the layer is in; 0 for none."""

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


class Model(Spec):
    """A layer table in forward order; backward runs it in reverse. Written by ``sim extract``."""

    name: str
    command: str = ""
    """The command that wrote the table."""
    parameters: Count
    """All of them: elements of the layers' gradient and frozen tensors, and the unused."""
    unused: Whole = 0
    """Parameters that are not frozen, but that no gradient reaches."""
    input: Bytes
    """Bytes of one sample's input tensors on the GPU."""
    buffers: Bytes = 0.0
    """Non-trainable state, such as BatchNorm statistics."""
    autocast_saved: Bytes = 0.0
    """Bytes a sample that backward keeps, all layers together, where autocast runs products in 16 bits; 0 where that is not known."""
    layers: tuple[Layer, ...] = Field(min_length=1)
    source: Source

    @model_validator(mode="after")
    def _counted(self) -> Model:
        total = sum(sum(layer.gradients) for layer in self.layers)
        if total > self.parameters:
            raise ValueError(
                f"the layers' gradients hold {total} elements, more than the model's {self.parameters} parameters; "
                f"write parameters: {known_parameters(self)}"
            )
        return self


def known_parameters(model: Model) -> int:
    """Return how many parameters the layers of *model* and its ``unused`` tell of."""
    return model.unused + sum(sum(layer.gradients) + sum(layer.frozen) for layer in model.layers)


def batch_norms(model: Model) -> list[int]:
    """Return the places of the BatchNorm layers in the table of *model*: convolutions and buffers tell them from LayerNorm."""
    if not model.buffers or not any(layer.op in ("conv", "pointwise_conv", "depthwise_conv") for layer in model.layers):
        return []
    return [index for index, layer in enumerate(model.layers) if layer.op == "norm" and layer.gradients]


class Lengths(Spec):
    """How long the sequences of a data set are, as shares of the longest, for which the model's layer table is written."""

    mean: Fraction
    """Mean length."""
    square: Fraction
    """Mean of the squared length, which attention's products go with."""
    source: Source

    @model_validator(mode="after")
    def _possible(self) -> Lengths:
        if not 0 < self.mean**2 <= self.square <= self.mean:
            raise ValueError(
                f"lengths between 0 and 1 with a mean of {self.mean:g} have a mean square of {self.mean**2:.3g} to {self.mean:g}, "
                f"not {self.square:g}; write shares of the longest sequence"
            )
        return self


class Dataset(Spec):
    """A data set as it lies on disk, and what one sample costs to prepare on the reference core (Xeon Gold 5118)."""

    name: str
    samples: Count
    sample: Bytes
    """Mean bytes of one sample on disk."""
    prepared: Bytes
    """Bytes of one prepared sample as it crosses to the GPU."""
    prep: Seconds
    """Core time per sample with the PyTorch loader: decode, augment, collate."""
    dali_prep: Seconds | None = None
    """Core time per sample with DALI on the CPU."""
    dali_gpu_prep: Seconds | None = None
    """Core time per sample that remains with DALI on the GPU."""
    dali_gpu_time: Seconds | None = None
    """GPU time per sample that DALI's decode and augmentation take on a V100."""
    lengths: Lengths | None = None
    """Of sequences that are shorter than the model's; None where all are of one length, or nobody knows."""
    files: Literal["per_sample", "packed"] = "per_sample"
    """per_sample: every sample is a file of its own, read at random; packed: large sequential records."""
    source: Source


class Input(Spec):
    """The loader; torch's own names for torch's options. Counts are per rank."""

    loader: Literal["pytorch", "dali_cpu", "dali_gpu", "synthetic"] = "pytorch"
    num_workers: Whole = 4
    prefetch_factor: Count = 2
    pin_memory: bool = True
    persistent_workers: bool = False
    num_threads: Count = 3
    """DALI's threads of one rank."""
    worker_start: Seconds = 0.0
    """Time to start the workers at the beginning of an epoch."""
    compute_cv: Fraction = 0.02
    """Coefficient of variation that a step's compute time owes to Python's loader beside it; none with DALI or synthetic input."""
    source: Source = Field(
        default={
            "*": "torch and DALI defaults",
            "compute_cv": "estimate (steps and ranks spread by 1 to 3 % in traces of petuum/adaptdl and siasosp23/artifacts; the middle)",
        }
    )

    @property
    def jitter(self) -> float:
        """Return what the loader adds to the variation of compute time."""
        return self.compute_cv if self.loader == "pytorch" else 0.0


class Optimizer(Spec):
    """The update rule; ``passes`` counts memory passes per parameter byte. ``none``: gradients only, as some benchmarks stop there."""

    name: Literal["none", "sgd", "momentum", "adam", "lamb"] = "momentum"

    @property
    def passes(self) -> float:
        """Memory passes per parameter byte: reads and writes of weight, gradient and state."""
        return {"none": 0.0, "sgd": 3.0, "momentum": 5.0, "adam": 7.0, "lamb": 10.0}[self.name]

    @property
    def separate_passes(self) -> float:
        """The same where each operation is a kernel of its own, with weight decay (``torch/optim`` sgd.py, adamw.py)."""
        return {"none": 0.0, "sgd": 6.0, "momentum": 11.0, "adam": 22.0, "lamb": 28.0}[self.name]

    @property
    def separate_kernels(self) -> float:
        """Kernels of that rule on each parameter tensor."""
        return {"none": 0.0, "sgd": 2.0, "momentum": 4.0, "adam": 9.0, "lamb": 14.0}[self.name]

    @property
    def states(self) -> int:
        """State tensors kept per parameter."""
        return {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "lamb": 2}[self.name]


class Noise(Spec):
    """How ranks and steps differ; zero is deterministic."""

    compute_cv: Fraction | None = None
    """Coefficient of variation of one rank's compute time from step to step; None takes the GPU's and the loader's."""
    persistent_cv: Fraction | None = None
    """Coefficient of variation of the ranks' mean compute times, which stay as they are; None takes the GPU's."""
    draw: bool = False
    """Draw each step from the seed's random numbers, for its distribution; else every step has the expected slowest rank."""


class Training(Spec):
    """How the model is trained; the batch is per GPU."""

    batch: Count
    precision: Precision = "fp32"
    optimizer: Optimizer = Optimizer()
    stack: Stack
    gradient_accumulation_steps: Count = 1
    parallel: Parallel = Parallel()
    """Layout of the model over the GPUs; the default is plain data parallelism."""
    activation_checkpointing: Literal["model", "none", "blocks", "selective"] = "model"
    """What backward recomputes instead of keeping it: what the model's code says, nothing, every numbered block, or (in layouts) attention
    only."""
    compute_factor: Factor = 1.0
    """Measured compute time over the model's, where the user knows it."""
    noise: Noise = Noise()
    source: Source = "the user's choice"


class Workload(Spec):
    """One model on one data set with one training set-up."""

    name: str
    aliases: tuple[str, ...] = ()
    description: str = ""
    model: Model
    dataset: Dataset
    input: Input = Input()
    training: Training

    @property
    def layer_stack(self) -> Stack:
        """Return the stack as it treats this model's layers: operators of models with attention may be composed of many."""
        stack = self.training.stack
        if stack.composed_traffic == 1.0 or all(layer.op != "attention" for layer in self.model.layers):
            return stack
        return stack.model_copy(update={"elementwise_traffic": stack.elementwise_traffic * stack.composed_traffic})


class JobSpec(Spec):
    """One of several jobs on one cluster: which *nodes*, and there *placement* (GPUs per node, as in ``1+2``) or *gpus* by number."""

    workload: Workload
    nodes: Numbers = ()
    """Numbers of its nodes, from 0 on; without, *placement* counts from the first node, and *gpus* are those of the first."""
    placement: Counts | None = None
    """GPUs of each node in turn, 0 for none, those that are free; with *nodes* one number stands for each of them."""
    gpus: tuple[Whole, ...] = ()
    """GPUs on each of its nodes."""
    start: Seconds = 0.0
    epochs: Factor = 1.0
    """Epochs after which it is over, where jobs that come and go share loader workers (``sim share``)."""


class Jobs(Spec):
    """Several jobs that share a cluster."""

    name: str = "jobs"
    jobs: tuple[JobSpec, ...] = Field(min_length=1)
    coordinated_prep: bool = False
    """Whether jobs with one data set on the same nodes read and prepare each batch once for all of them (CoorDL)."""
