"""How fast are kernels of known shape on a GPU? The constants of the model in `sim.cluster.kernels`, one block per architecture."""

from typing import Literal

from pydantic import Field

from sim.spec.fields import Bytes, Count, Factor, Fp8Recipe, Fraction, Latency, Peak, Share, Source, Spec, Whole


class AttentionRate(Spec):
    """Constants of one fused attention kernel: its rates relative to large matrix products, and its other work."""

    kernel: Literal["flash1", "flash2", "flash3", "flash4", "cudnn", "cudnn8", "triton", "efficient"]
    """Which kernel. flash1 to flash4: FlashAttention 1 to 4 (on AMD devices, flash2 is Composable Kernel's); cudnn: cuDNN's from 9.0 on;
    cudnn8: that of cuDNN 8.9; triton: the first FlashAttention, in Triton; efficient: torch's memory-efficient kernel, the only one for
    FP32, run in TF32."""
    head_step: Count = 32
    """The head dimension is padded to a multiple of this."""
    forward: Factor
    """Rate of the products in forward, relative to the rate of large matrix products."""
    backward: Factor
    """The same ratio for backward."""
    wide_backward: Factor = 1.0
    """Additional factor on ``backward`` for heads whose values have more than 128 elements."""
    fill: Whole
    """Fixed cost of a block of queries, expressed as keys in addition to those it attends to: loading, the first and last products, and
    writing the result."""
    backward_fill: Whole
    """The same cost in backward."""
    tail: float = Field(default=0.0, ge=0)
    """Time lost at the end of a causal kernel, as a multiple of the difference between its longest block of queries and the mean one:
    blocks start in sequence order, so the longest ones run last. Fitted, so it may exceed 1."""
    backward_tail: float = Field(default=0.0, ge=0)
    """The same multiple in backward."""
    exponential_passes: Factor
    """Work of the softmax per score, in exponentials at the rate ``Kernels.exponentials``; below 1 if polynomials replace some of them."""
    backward_passes: Factor
    """The same work in backward."""
    sinks: Latency = 0.0
    """Additional time of backward per query and head on one multiprocessor if each head has a learned sink (gpt-oss)."""
    sharpness: Factor
    """How well matrix products and exponentials overlap: 1 adds their times (no overlap); the higher, the closer to the longer of them."""
    source: Source


ProductRole = Literal["output", "inputs", "weights"]
"""What a product computes: the output of a layer in forward, or the gradients of its inputs or weights in backward."""


class Fp8Rates(Spec):
    """Rates of FP8 products with one scaling recipe, by what they compute, relative to ``Kernels.product_share``."""

    output: Factor = 1.0
    """Rate of products of forward."""
    inputs: Factor = 1.0
    """Rate of gradients of inputs."""
    weights: Factor = 1.0
    """Rate of gradients of weights."""

    @property
    def of_step(self) -> float:
        """Return the rate of the three products of a layer together."""
        return 3.0 / (1.0 / self.output + 1.0 / self.inputs + 1.0 / self.weights)


class Kernels(Spec):
    """Constants for kernels of known shape on one GPU (``hardware/parts/kernels``); the model is in `sim.cluster.kernels`."""

    name: str
    sm_count: Count
    """Number of streaming multiprocessors (AMD: compute units)."""
    product_share: dict[Peak, Share]
    """Fraction of ``Gpu.peak`` that the main loop of large tiles reaches in short bursts, including any loss to the board's power limit."""
    fp8_rates: dict[Fp8Recipe, Fp8Rates] = Field(default_factory=dict)
    """Rate of FP8 products by scaling recipe, relative to ``product_share``; 1 for recipes that are not listed."""
    sustained: Share
    """Additional factor on ``product_share`` in training steps, which keep the board at its power limit for seconds."""
    sustained_cv: Fraction = 0.0
    """Coefficient of variation of the compute time of such steps from board to board, of decoders, in addition to ``persistent_cv``."""
    whole_steps: Factor = 1.0
    """Additional factor on kernel times under stacks with ``factor_by_kernels``: their ``compute_factor`` was fitted mostly on Hopper."""
    tile_edge: Factor
    """How much rate small tiles lose because each operand loaded serves fewer products: an m x n tile reaches
    ``1 / (1 + tile_edge (1/m + 1/n))`` of the full rate."""
    pipeline_fill: Whole
    """Cost of filling and draining a block's main loop, in elements of k."""
    wave_loss: Fraction
    """Fraction of the last wave's idle time that is lost; persistent kernels and several blocks per multiprocessor recover the rest."""
    sharpness: Factor
    """How well reading operands and computing overlap in a product: 1 adds their times (no overlap); the higher, the closer to the longer
    of the two."""
    memory_share: Share
    """Fraction of the memory bandwidth at which operands are read."""
    feeders: Factor
    """Fraction of the multiprocessors that must be reading to reach this bandwidth."""
    split_traffic: Factor
    """For products split along k: memory traffic of the partial sums, relative to one write and one read of each in FP32."""
    split_time: Latency
    """For products split along k: time to add up the partial sums, in addition to their traffic."""
    pass_share: Share
    """Fraction of the memory bandwidth that large element-wise passes reach."""
    pass_half_size: Bytes
    """Size in bytes at which an element-wise pass reaches half of that bandwidth."""
    indexed_elements: float = Field(gt=0)
    """Elements per second of one multiprocessor in element-wise kernels that compute the address of each element, because an operand is
    broadcast or strided."""
    scan_rate: float = Field(default=3.7e11, gt=0)
    """FLOP per second of one multiprocessor in chunked scans of Mamba-2, whose products are small. Default: that of an H100
    (``hardware/parts/kernels/hopper.yaml``), as for the next two."""
    delta_rate: float = Field(default=5.25e11, gt=0)
    """FLOP per second of one multiprocessor in chunked scans of gated delta nets."""
    conv_share: Share = 0.74
    """Fraction of the memory bandwidth that causal convolutions along the sequence reach."""
    exponentials: float = Field(gt=0)
    """Exponentials per second of all multiprocessors together."""
    attention: tuple[AttentionRate, ...] = ()
    """Fused attention kernels; the first one for 16 bits is the default."""
    measured: bool = False
    """Whether calibration/records/kernels.csv has measurements of this exact GPU."""
    source: Source
