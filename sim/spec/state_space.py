"""What do the convolution and the scan of a Mamba-2 layer cost? Rows of a layer table, between the projections of `sim.spec.decoder`.

The scan runs by chunks (Dao and Gu, arXiv 2405.21060, section 6): products as in causal attention inside a chunk, states of chunks, a
recurrence over these states, and the states' part of the outputs. Products and passes are those of state-spaces/mamba, ops/triton
(``mamba_split_conv1d_scan_combined``), which Megatron-LM and transformers call: backward computes convolution and states of chunks again,
so forward saves only what the projection has made, and the scan's output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.spec.layer import Layer
from sim.spec.transformer import Mamba

_KERNELS: Final = (5, 11)
"""Kernels of the scan, forward and backward (ops/triton/ssd_combined.py): sums of steps, states of chunks, their recurrence, products of
the projections, outputs; backward repeats the first four."""


def scan_flop(mamba: Mamba) -> tuple[float, float]:
    """Return the FLOP of the scan's products per token, forward and backward; inside a chunk, half of the square is computed."""
    projections = float(mamba.chunk * mamba.state * mamba.groups)
    inside = float(mamba.chunk * mamba.inner)
    states = 2.0 * mamba.inner * mamba.state
    return projections + inside + 2.0 * states, 3.0 * projections + 2.0 * inside + 5.0 * states


def scan_elements(mamba: Mamba) -> tuple[float, float]:
    """Return the 16-bit elements that the scan's kernels move per token, forward and backward; states and products have 32 bits."""
    heads, both = float(mamba.inner), 2.0 * mamba.groups * mamba.state
    states = 2.0 * mamba.inner * mamba.state / mamba.chunk
    products = 2.0 * mamba.groups * mamba.chunk
    forward = 3.0 * heads + 2.0 * both + 4.0 * states + 2.0 * products
    backward = 8.0 * heads + 5.0 * both + 9.0 * states + 4.0 * products
    return forward, backward


def scan_layers(mamba: Mamba, tokens: int, width: float) -> Iterator[Layer]:
    """Yield the convolution and the scan of one layer for *tokens* tokens; an element of the table has *width* bytes."""
    channels, moved = mamba.channels, width * tokens * mamba.channels
    yield Layer.model_construct(
        name="mamba.conv",
        op="elementwise",
        gradients=(channels * mamba.conv, channels),
        arithmetic=(2.0 * mamba.conv + 5.0) * tokens * channels,
        backward_arithmetic=(6.0 * mamba.conv + 14.0) * tokens * channels,
        read=moved,
        write=moved,
        backward_traffic=5.0 * moved,  # the convolution again, then input, gradient, and the gradient of the input
        saved=moved,
        backward_kernels=2,
        share="heads",
    )
    flop, elements = scan_flop(mamba), scan_elements(mamba)
    result = width * tokens * mamba.inner
    yield Layer.model_construct(
        name="mamba.scan",
        op="scan",
        gradients=(mamba.heads,) * 3,
        forward=flop[0] * tokens,
        backward=flop[1] * tokens,
        read=width * tokens * elements[0] - result,
        entering=moved + width * tokens * mamba.heads,
        write=result,
        backward_traffic=width * tokens * elements[1],
        saved=width * tokens * mamba.heads,
        forward_kernels=_KERNELS[0],
        backward_kernels=_KERNELS[1],
        share="heads",
    )
