"""What does a precision mean? One table: the units it computes on, and the bytes of each kind of element. All other files ask it.

Sources: torch.amp documentation (parameters, gradients and optimizer state stay FP32, matrix operators run on 16-bit casts);
torch.optim, which creates state in the parameters' type; NVIDIA/TransformerEngine's user guide (linear layers in FP8, everything else
in BF16; weights and their gradients keep the type they have, FP32 here, beside FP8 copies, plain and transposed). NVFP4 is four bits, and a
scale of eight for each 16 elements (its common/recipe, NVFP4BlockScaling).
Limits: what plain FP32 computes on is the stack's choice (TF32 or not); the types of single operators under autocast stand where
they matter, in `sim.cluster.gpu` and `sim.analysis.memory`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.spec.fields import Peak, Precision


class Meaning(NamedTuple):
    """What one precision computes on, and bytes per element."""

    units: tuple[Peak, ...]
    """Best first: what a GPU lacks, or has no kernels for, gives way to the next. Empty: the stack decides."""
    needs: Peak | None
    """The units that it cannot do without."""
    autocast: bool
    """Weights of matrix operators and their gradients are converted between 32 and 16 bits."""
    weight: float
    cast: float
    """Of the narrow copy in which the weights of matrix operators are kept for the whole step."""
    gradient: float
    state: float
    activation: float
    matrix: float
    """Of activations saved by matrix operators."""

    @property
    def quantized(self) -> bool:
        """Whether matrix operators bring their operands to fewer bits than all else has."""
        return self.matrix < self.activation


MEANING: Final[dict[Precision, Meaning]] = {
    "fp32": Meaning((), None, False, 4, 0, 4, 4, 4, 4),
    "tf32": Meaning(("tf32", "fp32"), None, False, 4, 0, 4, 4, 4, 4),
    "amp_fp16": Meaning(("fp16", "fp32"), None, True, 4, 2, 4, 4, 2, 2),
    "amp_bf16": Meaning(("bf16", "fp32"), "bf16", True, 4, 2, 4, 4, 2, 2),
    "fp16": Meaning(("fp16", "fp32"), None, False, 2, 0, 2, 2, 2, 2),
    "bf16": Meaning(("bf16", "fp32"), "bf16", False, 2, 0, 2, 2, 2, 2),
    "fp8": Meaning(("fp8", "bf16", "fp32"), "fp8", False, 4, 2, 4, 4, 2, 1),
    "nvfp4": Meaning(("nvfp4", "bf16", "fp32"), "nvfp4", False, 4, 2, 4, 4, 2, 0.5625),
}
"""TF32 and FP16 run everywhere: where there are no units for them, at the FP32 rate."""
