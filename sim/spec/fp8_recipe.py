"""What does quantizing the operands of matrix products cost? A table by scaling recipe: copies, reads, scales, and which GPUs support it.

Products need both operands contiguous along the dimension that they sum over, so the second product on an operand (weight gradients use
activations, input gradients use weights) needs it transposed. Blackwell's FP8 units accept either order; earlier GPUs need a transposed
copy. If blocks along that dimension have their own scales, the copy by columns also has different values from the copy by rows.

Sources: NVIDIA/TransformerEngine common/recipe, pytorch/csrc/quantizer.cpp (``quantize_impl`` and ``get_scale_shape`` of each quantizer),
csrc/extensions/normalization.cpp, pytorch/quantization.py (``get_default_fp8_recipe`` and ``check_fp8_block_scaling_support``),
common/transformer_engine.cpp (``nvte_is_non_tn_fp8_gemm_supported``); pytorch/ao torchao/float8/config.py for rowwise.
Limits: kernels that reorder scales for the units, and maxima that ranks exchange, are not modeled.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from sim.spec.fields import Fp8Recipe, Precision
from sim.spec.hardware import Gpu


class Quantization(NamedTuple):
    """Memory traffic of quantizing a tensor: bytes per quantized element, including its share of the scales, and number of reads."""

    activation: float
    weight: float
    reads: float
    """Number of reads of activations and gradients for a copy by rows, which also produces a copy by columns."""
    column_reads: float
    """Number of additional reads for the copy by columns."""
    weight_reads: float
    """Number of reads of weights for both copies."""
    own_columns: bool
    """Whether the copy by columns has its own scales, so that it must be written even if products accept either order."""
    norm: Literal["", "amax", "writes"]
    """What a fused norm before the product saves. amax: finding the largest magnitude; writes: everything, because it writes few bits."""

    def copies(self, gpu: Gpu) -> float:
        """Return the number of copies of a tensor that is used in both orders."""
        return 2.0 if self.own_columns or needs_transposes(gpu) else 1.0


RECIPES: Final[dict[Fp8Recipe, Quantization]] = {
    "delayed": Quantization(1.0, 1.0, 1.0, 0.0, 1.0, False, "writes"),
    "tensorwise": Quantization(1.0, 1.0, 2.0, 0.0, 2.0, False, "amax"),
    "rowwise": Quantization(1.0, 1.0, 1.0, 2.0, 3.0, True, ""),
    "blockwise": Quantization(1 + 4 / 128, 1 + 4 / 128**2, 1.0, 0.0, 1.0, True, ""),
    "mxfp8": Quantization(1 + 1 / 32, 1 + 1 / 32, 1.0, 0.0, 1.0, True, ""),
}
"""delayed: one scale per tensor, from maxima of earlier steps; tensorwise: from its own maximum, which takes another read; rowwise: 32 bits
per row or column; blockwise: 32 bits per 128 elements of activations and 128 x 128 of weights, as in DeepSeek-V3; mxfp8: 8 bits per 32
elements (OCP MX)."""
NVFP4: Final = Quantization(0.5625, 0.5625, 3.0, 0.0, 2.0, True, "")
"""Four bits per element and an 8-bit scale per 16 elements. Tensors are read for the largest magnitude, for rows, and for columns, which
first get a random Hadamard transform (csrc/quantizer.cpp, ``NVFP4Quantizer::quantize_impl``); weights are not transformed."""


def quantization(precision: Precision, recipe: Fp8Recipe | None, gpu: Gpu) -> Quantization | None:
    """Return how products of *precision* quantize operands on *gpu*, by *recipe* or the default one; None: they do not."""
    if precision == "fp8":
        return RECIPES[recipe or usual_recipe(gpu)]
    return NVFP4 if precision == "nvfp4" else None


def usual_recipe(gpu: Gpu) -> Fp8Recipe:
    """Return Transformer Engine's default recipe on *gpu*."""
    if _blackwell(gpu):
        return "mxfp8"
    return "tensorwise" if float(gpu.compute_capability) >= 12 else "delayed"


def supports_recipe(recipe: Fp8Recipe, gpu: Gpu) -> bool:
    """Return whether *gpu* supports *recipe*: MX blocks need Blackwell or CDNA 4, rows and blocks need Hopper or later."""
    if recipe == "mxfp8":
        return _blackwell(gpu) or gpu.architecture == "cdna4"
    return recipe in ("delayed", "tensorwise") or float(gpu.compute_capability) >= 9


def recipes_on(gpu: Gpu) -> list[Fp8Recipe]:
    """Return the recipes that *gpu* supports."""
    return [recipe for recipe in get_args(Fp8Recipe) if supports_recipe(recipe, gpu)]


def needs_transposes(gpu: Gpu) -> bool:
    """Return whether 8-bit products need transposed operands in memory: all GPUs except Blackwell's data center GPUs do."""
    return not _blackwell(gpu)


def _blackwell(gpu: Gpu) -> bool:
    return 10 <= float(gpu.compute_capability) < 12
