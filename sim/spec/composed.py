"""What do GELU and RMS norms cost if the model's code builds them from many operators, as Hugging Face transformers does?

Kernels and bytes are counted from the code. GELU (activations.py, NewGELUActivation) is eight operators; autocast runs the power, and
what follows it, in 32 bits. RMS norm (LlamaRMSNorm of modeling_llama.py and similar classes): cast to 32 bits, power, mean, sum with
epsilon, reciprocal root, product, cast back, product with the weight; all in 32 bits except the last, which has the stream's precision.
"""

from __future__ import annotations

from sim.spec.fields import Precision
from sim.spec.layer import Layer
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.stack import StackKernels

_GELU_KERNELS = (8, 11)
"""Kernels of forward and backward, as ``sim extract`` counts them."""
_GELU_PASSES = (18.0, 28.0)
"""Elements that these kernels read and write per element of the GELU."""
_GELU_SAVED = 3.0
"""Tensors saved in addition to the input: tanh, tanh plus one, half the input."""
_GELU_SAVED_AUTOCAST = 2.0 + 4.0 + 4.0 + 2.0
"""Their bytes per element under autocast, where the power, and therefore the saved input, tanh and its sum are in 32 bits."""
_NORM_KERNELS = (6, 14)
"""Kernels of forward and backward with a stream in 32 bits; with 16 bits, each has two more for casts."""
_NORM_BYTES = (28.0, 92.0)
"""Bytes per element that these kernels read and write."""
_FROZEN_KERNELS = 2
"""Kernels of backward that are not needed for a frozen weight: a product and a sum."""
_FROZEN_BYTES = (16.0, 8.0)
"""Bytes per element that these two kernels move, with a stream in 32 bits and in 16 bits."""
_CASTS = 12.0
"""Bytes per element of two casts, to 32 bits and back."""
_NARROW_PRODUCT = (4.0, 12.0)
"""Bytes per element by which the product with the weight (forward) and its two gradients (backward) move less in 16 bits."""


def composed_elements(layer: Layer, kernels: StackKernels) -> int:
    """Return the elements of *layer* that a stack with these *kernels* processes operator by operator; 0 if it runs one kernel."""
    return layer.composed if (kernels.composed_norms if layer.op == "norm" else kernels.composed_gelu) else 0


def composed_kernels(layer: Layer, precision: Precision, backward: bool) -> int:
    """Return the number of kernels in one pass of *layer*, run operator by operator."""
    if layer.op == "norm":
        spared = _FROZEN_KERNELS if backward and layer.frozen else 0
        return _NORM_KERNELS[backward] - spared + (2 if _is_16_bit(precision) else 0)
    return _GELU_KERNELS[backward]


def composed_bytes(layer: Layer, precision: Precision, backward: bool) -> float:
    """Return the bytes per element that the kernels of one pass of *layer* move, run operator by operator."""
    if layer.op == "norm":
        spared = _FROZEN_BYTES[_is_16_bit(precision)] if backward and layer.frozen else 0.0
        return _NORM_BYTES[backward] - spared + (_CASTS - _NARROW_PRODUCT[backward] if _is_16_bit(precision) else 0.0)
    return _GELU_PASSES[backward] * (4.0 if PRECISION_TRAITS[precision].autocast else PRECISION_TRAITS[precision].activation)


def composed_saved(layer: Layer, precision: Precision) -> float:
    """Return the bytes per element saved for backward in addition to what *layer* saves as one kernel.

    A norm saves its input in 32 bits and, unless its weight is frozen, the input of the product with the weight.
    """
    widths = PRECISION_TRAITS[precision]
    if layer.op == "norm":
        return 4.0 - widths.activation if layer.frozen and _is_16_bit(precision) else 0.0 if layer.frozen else 4.0
    return _GELU_SAVED_AUTOCAST if widths.autocast else _GELU_SAVED * widths.activation


def _is_16_bit(precision: Precision) -> bool:
    """Return whether the residual stream has 16 bits; under autocast it has 32."""
    return PRECISION_TRAITS[precision].activation < 4.0 and not PRECISION_TRAITS[precision].autocast
