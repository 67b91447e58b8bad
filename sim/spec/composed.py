"""What do operators cost that a model's code composes of many? Hugging Face transformers writes GELU and RMS norms so.

Kernels and bytes are counted from the code. GELU (activations.py, NewGELUActivation): eight operators, whose powers, and what follows
them, autocast has in 32 bits. RMS norm (LlamaRMSNorm of modeling_llama.py and its like): to 32 bits, power, mean, sum with epsilon,
reciprocal root, product, back, product with the weight; in 32 bits whatever the precision, but for the last in that of the stream.
"""

from __future__ import annotations

from sim.spec.fields import Precision
from sim.spec.layer import Layer
from sim.spec.precision import MEANING
from sim.spec.stack import Stack

_GELU_KERNELS = (8, 11)
"""Forward and backward, as ``sim extract`` counts."""
_GELU_PASSES = (18.0, 28.0)
"""Elements that these kernels read and write for each of its own."""
_GELU_SAVED = 3.0
"""Tensors kept beside the input: tanh, one more than that, half the input."""
_GELU_SAVED_AUTOCAST = 2.0 + 4.0 + 4.0 + 2.0
"""Their bytes an element under autocast: powers are in 32 bits, and with them the input that is kept, tanh and its sum."""
_NORM_KERNELS = (6, 14)
"""Forward and backward of a stream in 32 bits; in 16 bits two casts each more."""
_NORM_BYTES = (28.0, 92.0)
"""Bytes an element that these kernels read and write."""
_FROZEN_KERNELS = 2
"""Of backward that a weight without gradient spares: a product and a sum."""
_FROZEN_BYTES = (16.0, 8.0)
"""Bytes an element that these move, of a stream in 32 bits and in 16."""
_CASTS = 12.0
"""Bytes an element of two casts, to 32 bits and back."""
_NARROW_PRODUCT = (4.0, 12.0)
"""Bytes an element by which the product with the weight, and its two gradients, move less in 16 bits."""


def composed_elements(layer: Layer, stack: Stack) -> int:
    """Return the elements of *layer* that *stack* runs operator by operator; 0 where one kernel does it."""
    return layer.composed if (stack.composed_norms if layer.op == "norm" else stack.composed_gelu) else 0


def composed_kernels(layer: Layer, precision: Precision, backward: bool) -> int:
    """Return the kernels of one pass of *layer*."""
    if layer.op == "norm":
        spared = _FROZEN_KERNELS if backward and layer.frozen else 0
        return _NORM_KERNELS[backward] - spared + (2 if _narrow(precision) else 0)
    return _GELU_KERNELS[backward]


def composed_bytes(layer: Layer, precision: Precision, backward: bool) -> float:
    """Return the bytes that these kernels move for each element."""
    if layer.op == "norm":
        spared = _FROZEN_BYTES[_narrow(precision)] if backward and layer.frozen else 0.0
        return _NORM_BYTES[backward] - spared + (_CASTS - _NARROW_PRODUCT[backward] if _narrow(precision) else 0.0)
    return _GELU_PASSES[backward] * (4.0 if MEANING[precision].autocast else MEANING[precision].activation)


def composed_saved(layer: Layer, precision: Precision) -> float:
    """Return the bytes kept for backward for each element, beyond those that *layer* keeps in one kernel.

    A norm keeps its input in 32 bits, and what its weight multiplies unless that is frozen.
    """
    widths = MEANING[precision]
    if layer.op == "norm":
        return 4.0 - widths.activation if layer.frozen and _narrow(precision) else 0.0 if layer.frozen else 4.0
    return _GELU_SAVED_AUTOCAST if widths.autocast else _GELU_SAVED * widths.activation


def _narrow(precision: Precision) -> bool:
    """Return whether the residual stream has 16 bits; autocast leaves it 32."""
    return MEANING[precision].activation < 4.0 and not MEANING[precision].autocast
