"""What do the convolution and the scan of a state-space layer cost? Rows of a layer table, between the projections of `sim.spec.decoder`.

Scans run by chunks of tokens: products as in causal attention inside a chunk, of which half is computed, and products with a state that
passes from chunk to chunk. Mamba-2 is that of Dao and Gu (arXiv 2405.21060, section 6), with the kernels of state-spaces/mamba, ops/triton
(``mamba_split_conv1d_scan_combined``), which Megatron-LM and transformers call. Gated delta nets (Yang and others, arXiv 2412.06464) are
those of fla-org/flash-linear-attention, ops/gated_delta_rule. Backward of both computes states of chunks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sim.spec.layer import Layer
from sim.spec.transformer import DeltaNet, Mamba


class ScanCost(NamedTuple):
    """What a scan costs for each token, forward and backward."""

    flop: tuple[float, float]
    """FLOP of products; inside a chunk, half of the square."""
    elements: tuple[float, float]
    """16-bit elements that the kernels move; those of 32 bits count twice."""
    kept: int
    """Elements that forward keeps, beside what enters the convolution and sets the steps."""
    kernels: tuple[int, int]
    """Kernels that are launched."""


def scan_cost(layer: Mamba | DeltaNet) -> ScanCost:
    """Return what the scan of *layer* costs for each token."""
    return _of_mamba(layer) if isinstance(layer, Mamba) else _of_delta_net(layer)


def _of_mamba(mamba: Mamba) -> ScanCost:
    """Kernels: sums of steps, states of chunks, their recurrence, products of the projections, outputs (ops/triton/ssd_combined.py).

    Backward repeats the first four. Megatron-LM's keeps its result before the gate.
    """
    projections, inside = float(mamba.chunk * mamba.state * mamba.groups), float(mamba.chunk * mamba.inner)
    states = 2.0 * mamba.inner * mamba.state
    heads, both = float(mamba.inner), 2.0 * mamba.groups * mamba.state
    held, products = 2.0 * mamba.inner * mamba.state / mamba.chunk, 2.0 * mamba.groups * mamba.chunk
    return ScanCost(
        (projections + inside + 2.0 * states, 3.0 * projections + 2.0 * inside + 5.0 * states),
        (3.0 * heads + 2.0 * both + 4.0 * held + 2.0 * products, 8.0 * heads + 5.0 * both + 9.0 * held + 4.0 * products),
        kept=mamba.inner,
        kernels=(5, 11),
    )


def _of_delta_net(delta: DeltaNet) -> ScanCost:
    """Products: keys with keys, their inverse with keys and values, queries with keys, scores with values; and three with states.

    Kernels: two norms, sums of decays, products of keys, their inverse, transformed keys and values, states, outputs. transformers and
    Megatron-LM repeat queries and keys for each value head before; products of keys are kept, too.
    """
    keys, values, chunk, heads = float(delta.key_dim), float(delta.value_dim), float(delta.chunk), delta.value_heads
    state = 2.0 * keys * values
    forward = chunk * (3.0 * keys + 2.0 * values) + 3.0 * state
    again = chunk * (keys + values) + 2.0 * state
    held = keys * values / chunk
    moved = 7.0 * keys + 6.0 * values + 6.0 * chunk + 2.0 * held
    moved_again = 4.0 * keys + 4.0 * values + chunk + held
    norms = 4.0 * keys * delta.key_heads
    return ScanCost(
        (heads * forward, heads * (2.0 * forward + again)),
        (heads * moved + norms, heads * (2.0 * moved + moved_again) + 2.0 * norms),
        kept=delta.inner + heads * (2 * delta.key_dim + delta.chunk),
        kernels=(8, 16),
    )


def scan_layers(layer: Mamba | DeltaNet, name: str, tokens: int, width: float) -> Iterator[Layer]:
    """Yield the convolution and the scan of a layer *name* for *tokens* tokens; an element of the table has *width* bytes."""
    channels, moved = layer.channels, width * tokens * layer.channels
    yield Layer.model_construct(
        name=f"{name}.conv",
        op="causal_conv",
        gradients=(channels * layer.conv, channels) if isinstance(layer, Mamba) else (channels * layer.conv,),
        arithmetic=(2.0 * layer.conv + 5.0) * tokens * channels,
        backward_arithmetic=(6.0 * layer.conv + 14.0) * tokens * channels,
        read=moved,
        write=moved,
        backward_traffic=5.0 * moved,  # the convolution again, then input, gradient, and the gradient of the input
        saved=moved,
        backward_kernels=2,
        share="heads",
    )
    cost, result, steps = scan_cost(layer), width * tokens * layer.inner, width * tokens * layer.steps
    yield Layer.model_construct(
        name=f"{name}.scan",
        op="scan" if isinstance(layer, Mamba) else "delta_scan",
        gradients=(layer.scanned_heads,) * (3 if isinstance(layer, Mamba) else 2),
        forward=cost.flop[0] * tokens,
        backward=cost.flop[1] * tokens,
        read=width * tokens * cost.elements[0] - result,
        entering=moved + steps,
        write=result,
        backward_traffic=width * tokens * cost.elements[1],
        saved=steps + width * tokens * cost.kept,
        forward_kernels=cost.kernels[0],
        backward_kernels=cost.kernels[1],
        share="heads",
    )


def short_convolution(channels: int, conv: int, tokens: int, width: float) -> Iterator[Layer]:
    """Yield the convolution of *channels* channels between its two gates, without activation (``Lfm2ShortConv`` of transformers).

    The convolution is that of causal-conv1d, along *conv* of *tokens* tokens; an element of the table has *width* bytes.
    """
    elements = float(tokens * channels)
    moved = width * elements
    gate = Layer.model_construct(
        name="conv.gate",
        op="elementwise",
        arithmetic=elements,
        backward_arithmetic=2.0 * elements,
        read=2.0 * moved,
        write=moved,
        backward_traffic=5.0 * moved,
        saved=2.0 * moved,
        share="heads",
    )
    yield gate.model_copy(update={"name": "conv.gate_in"})
    yield Layer.model_construct(
        name="conv.conv",
        op="causal_conv",
        gradients=(channels * conv,),
        arithmetic=2.0 * conv * elements,
        backward_arithmetic=4.0 * conv * elements,
        read=moved,
        write=moved,
        backward_traffic=3.0 * moved,
        saved=moved,
        backward_kernels=2,
        share="heads",
    )
    yield gate.model_copy(update={"name": "conv.gate_out"})
