"""What does a precision mean? One table of the units it computes on and the bytes of each kind of element, used by all other files.

Sources: torch.amp documentation (parameters, gradients and optimizer state stay in FP32, matrix operators run on 16-bit casts);
torch.optim (creates state in the parameters' type); NVIDIA/TransformerEngine's user guide (linear layers in FP8, everything else in BF16;
weights and their gradients keep their type, FP32 here, next to plain and transposed FP8 copies). NVFP4 has 4 bits per element and an 8-bit
scale for each 16 elements (its common/recipe, NVFP4BlockScaling).
Limits: the stack decides what plain FP32 computes on (TF32 or not); the types of single operators under autocast are in
`sim.cluster.gpu` and `sim.analysis.memory`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.spec.fields import Peak, Precision


class PrecisionTraits(NamedTuple):
    """The units that one precision computes on, and its bytes per element."""

    units: tuple[Peak, ...]
    """Preferred units first: if a GPU lacks the units, or has no kernels for them, the next ones are used. Empty: the stack decides."""
    needs: Peak | None
    """The units without which a GPU cannot run this precision; None: it runs on every GPU."""
    autocast: bool
    """Whether weights of matrix operators and their gradients are converted between 32 and 16 bits."""
    weight: float
    cast: float
    """Bytes per element of the narrow copy of matrix operators' weights that is kept for the whole step."""
    gradient: float
    state: float
    activation: float
    matrix: float
    """Bytes per element of activations saved by matrix operators."""

    @property
    def is_quantized(self) -> bool:
        """Whether matrix operators convert their operands to fewer bits than other operators use."""
        return self.matrix < self.activation


PRECISION_TRAITS: Final[dict[Precision, PrecisionTraits]] = {
    "fp32": PrecisionTraits((), None, False, 4, 0, 4, 4, 4, 4),
    "tf32": PrecisionTraits(("tf32", "fp32"), None, False, 4, 0, 4, 4, 4, 4),
    "amp_fp16": PrecisionTraits(("fp16", "fp32"), None, True, 4, 2, 4, 4, 2, 2),
    "amp_bf16": PrecisionTraits(("bf16", "fp32"), "bf16", True, 4, 2, 4, 4, 2, 2),
    "fp16": PrecisionTraits(("fp16", "fp32"), None, False, 2, 0, 2, 2, 2, 2),
    "bf16": PrecisionTraits(("bf16", "fp32"), "bf16", False, 2, 0, 2, 2, 2, 2),
    "fp8": PrecisionTraits(("fp8", "bf16", "fp32"), "fp8", False, 4, 2, 4, 4, 2, 1),
    "nvfp4": PrecisionTraits(("nvfp4", "bf16", "fp32"), "nvfp4", False, 4, 2, 4, 4, 2, 0.5625),
}
"""TF32 and FP16 run on every GPU; a GPU without units for them runs them at the FP32 rate."""
