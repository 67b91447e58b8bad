"""What do kernels of known shape reach on a GPU? Constants of the model in `sim.cluster.kernels`, one block for each architecture."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sim.spec.fields import Bytes, Count, Factor, Fp8Recipe, Fraction, Peak, Seconds, Share, Source, Spec, Whole


class AttentionRate(Spec):
    """What one fused attention kernel reaches, forward and backward: shares of the rate of large products, and the work beside them."""

    kernel: Literal["flash2", "flash3", "flash4", "cudnn", "triton", "efficient"]
    """FlashAttention 2, 3, 4, cuDNN's, or FlashAttention's first version in Triton; on AMD's devices flash2 is Composable Kernel's.
    efficient: torch's memory-efficient kernel, which alone takes FP32, here in TF32."""
    head_step: Count = 32
    """Multiples to which the size of a head is padded."""
    forward: Factor
    """Share of the rate of large matrix products that forward reaches."""
    backward: Factor
    """The same of backward."""
    wide_backward: Factor = 1.0
    """Share of that which is left where heads have more than 128 elements."""
    fill: Whole
    """Keys that a block of queries costs beyond those it sees: loading, the first and last products, the result."""
    backward_fill: Whole
    """The same in backward."""
    tail: float = Field(default=0.0, ge=0)
    """Times that the end adds what a mask's longest block of queries takes beyond the mean one: blocks that begin in the order of the
    sequence end with the longest. Fitted, so that it may exceed 1."""
    backward_tail: float = Field(default=0.0, ge=0)
    """The same in backward."""
    exponential_passes: Factor
    """Work of the softmax per score, in exponentials of ``Kernels.exponentials``; below 1 where polynomials replace some."""
    backward_passes: Factor
    """The same in backward."""
    sharpness: Factor
    """How well products and exponentials overlap: 1 not at all."""
    source: Source


class Kernels(Spec):
    """What kernels of known shape reach on one GPU (``hardware/parts/kernels``): see `sim.cluster.kernels` for the model."""

    name: str
    sm_count: Count
    """Multiprocessors, or compute units."""
    product_share: dict[Peak, Share]
    """Share of the peak that the main loop of large tiles reaches in short bursts, what the board's power lets through included."""
    fp8_rates: dict[Fp8Recipe, Factor] = Field(default_factory=dict)
    """Rate of products in 8 bits whose scales are of a recipe, over what ``product_share`` says; 1 for recipes that are not named."""
    sustained: Share
    """Of that, what is left in training steps that keep the board at its power limit for seconds."""
    whole_steps: Factor = 1.0
    """Time of kernels in steps of stacks with ``factor_by_kernels``, over what their ``compute_factor`` says."""
    tile_edge: Factor
    """Rows and columns at which a tile loses half its rate to loading: ``1 / (1 + tile_edge (1/m + 1/n))``."""
    pipeline_fill: Whole
    """Elements of k that filling and draining a block's main loop costs."""
    wave_loss: Fraction
    """Share of the last wave's idle time that is lost; persistent kernels and several blocks a multiprocessor save the rest."""
    sharpness: Factor
    """How well a product's reading overlaps with its computing: 1 not at all."""
    memory_share: Share
    """Share of the memory bandwidth that operands stream at."""
    feeders: Factor
    """Share of the multiprocessors that must read to reach it."""
    split_traffic: Factor
    """Of products split along k: traffic of the partial sums, over one write and one read each."""
    split_time: Seconds
    """Time that adding them up costs beyond it."""
    pass_share: Share
    """Share of the memory bandwidth that element-wise passes reach."""
    pass_half_size: Bytes
    """Bytes at which such a pass reaches half of it."""
    exponentials: float = Field(gt=0)
    """Exponentials per second of all multiprocessors together, beside products."""
    attention: tuple[AttentionRate, ...] = ()
    """The default of 16 bits first."""
    measured: bool = False
    """Whether rows of this very GPU are in calibration/records/kernels.csv."""
    source: Source
