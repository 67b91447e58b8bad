"""How are operands of matrix products brought to few bits? One table by recipe of scaling: copies, reads, scale factors, and who runs it.

Products want both operands with the dimension that they sum over contiguous, so that a second product (gradients of weights want
activations, gradients of inputs want weights) wants them the other way round. Blackwell's units of 8 bits take either; before, a copy
lies transposed. Where blocks along that dimension have scales of their own, a copy by columns has other numbers than one by rows.

Sources: NVIDIA/TransformerEngine common/recipe, pytorch/csrc/quantizer.cpp (``quantize_impl`` and ``get_scale_shape`` of each quantizer),
csrc/extensions/normalization.cpp, pytorch/quantization.py (``get_default_fp8_recipe`` and ``check_fp8_block_scaling_support``),
common/transformer_engine.cpp (``nvte_is_non_tn_fp8_gemm_supported``); pytorch/ao torchao/float8/config.py for rowwise.
Limits: scales that a kernel of their own brings to the order of the units, and maxima that ranks compare, are left out.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from sim.spec.fields import Fp8Recipe, Precision
from sim.spec.hardware import Gpu


class Quantizing(NamedTuple):
    """What bringing a tensor to few bits reads and writes: bytes of an element, its share of the scales included, and passes."""

    activation: float
    weight: float
    reads: float
    """Times that activations and gradients are read for a copy by rows, and for one by columns beside it."""
    column_reads: float
    """Times that they are read again for the copy by columns."""
    weight_reads: float
    """Times that weights are read for both copies."""
    own_columns: bool
    """The copy by columns has scales of its own, so that it is written wherever products want it, whatever layouts they take."""
    norm: Literal["", "amax", "writes"]
    """What a fused norm before the product spares: finding the largest magnitude, or all, since it writes few bits itself."""

    def copies(self, gpu: Gpu) -> float:
        """Return the copies of a tensor that products want both ways round."""
        return 2.0 if self.own_columns or transposes(gpu) else 1.0


RECIPES: Final[dict[Fp8Recipe, Quantizing]] = {
    "delayed": Quantizing(1.0, 1.0, 1.0, 0.0, 1.0, False, "writes"),
    "tensorwise": Quantizing(1.0, 1.0, 2.0, 0.0, 2.0, False, "amax"),
    "rowwise": Quantizing(1.0, 1.0, 1.0, 2.0, 3.0, True, ""),
    "blockwise": Quantizing(1 + 4 / 128, 1 + 4 / 128**2, 1.0, 0.0, 1.0, True, ""),
    "mxfp8": Quantizing(1 + 1 / 32, 1 + 1 / 32, 1.0, 0.0, 1.0, True, ""),
}
"""One scale a tensor from earlier steps' maxima, or from its own, which takes another read; one a row, or column, of 32 bits; 32 bits for
each 128 elements of activations and 128 x 128 of weights, as DeepSeek-V3 has them; 8 bits for each 32 elements (OCP MX)."""
NVFP4: Final = Quantizing(0.5625, 0.5625, 3.0, 0.0, 2.0, True, "")
"""Four bits, and 8 for each 16 elements: read for the largest magnitude, for rows, and for columns, which a random Hadamard transform goes
before (csrc/quantizer.cpp, ``NVFP4Quantizer::quantize_impl``); weights are not transformed."""


def quantizing(precision: Precision, recipe: Fp8Recipe | None, gpu: Gpu) -> Quantizing | None:
    """Return what products of *precision* do to their operands on *gpu*, by *recipe* or the usual one; None: nothing."""
    if precision == "fp8":
        return RECIPES[recipe or usual_recipe(gpu)]
    return NVFP4 if precision == "nvfp4" else None


def usual_recipe(gpu: Gpu) -> Fp8Recipe:
    """Return the recipe that Transformer Engine takes on *gpu* where nobody names one."""
    if _blackwell(gpu):
        return "mxfp8"
    return "tensorwise" if float(gpu.compute_capability) >= 12 else "delayed"


def runs(recipe: Fp8Recipe, gpu: Gpu) -> bool:
    """Return whether *gpu* multiplies 8 bits with the scales of *recipe*: MX blocks since Blackwell and CDNA 4, others since Hopper."""
    if recipe == "mxfp8":
        return _blackwell(gpu) or gpu.architecture == "cdna4"
    return recipe in ("delayed", "tensorwise") or float(gpu.compute_capability) >= 9


def recipes_on(gpu: Gpu) -> list[Fp8Recipe]:
    """Return the recipes that *gpu* runs."""
    return [recipe for recipe in get_args(Fp8Recipe) if runs(recipe, gpu)]


def transposes(gpu: Gpu) -> bool:
    """Return whether products in 8 bits want operands transposed in memory: but for Blackwell's of data centers they do."""
    return not _blackwell(gpu)


def _blackwell(gpu: Gpu) -> bool:
    return 10 <= float(gpu.compute_capability) < 12
