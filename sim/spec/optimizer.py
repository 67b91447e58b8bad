"""What does an update rule cost? Memory passes, kernels and states of each optimizer."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BeforeValidator

from sim.spec.fields import Spec


class Optimizer(Spec):
    """The update rule of the weights. ``none``: the step ends with the gradients, as in some benchmarks.

    adam includes AdamW, and may be written ``adamw``. adam8bit keeps both states in 8 bits with one scale per 256 elements (Dettmers et
    al., arXiv 2110.02861; bitsandbytes). adafactor keeps sums of rows and columns (Shazeer and Stern, arXiv 1804.04235). muon
    orthogonalizes the momentum of the matrices inside blocks (kellerjordan.github.io/posts/muon; distributed: Liu et al., arXiv
    2502.16982) and uses Adam for other weights.
    """

    name: Annotated[
        Literal["none", "sgd", "momentum", "adam", "lamb", "adam8bit", "adafactor", "muon"],
        BeforeValidator(lambda text: "adam" if text == "adamw" else text),
    ] = "momentum"
    """Name of the rule. It decides the number of states per weight, and the memory traffic and kernels of an update."""

    @property
    def passes(self) -> float:
        """Memory passes per parameter byte of a fused update: reads and writes of weight, gradient and state."""
        return _RULES[self.name].passes

    @property
    def separate_passes(self) -> float:
        """Memory passes if each operation is a separate kernel, with weight decay (``torch/optim`` sgd.py, adamw.py)."""
        return _RULES[self.name].separate_passes

    @property
    def separate_kernels(self) -> float:
        """Kernels per parameter tensor if each operation is a separate kernel."""
        return _RULES[self.name].separate_kernels

    @property
    def passes_between(self) -> float:
        """Fused passes between two kernels: the update is written, then read again with the weight once its norm is computed."""
        return _RULES[self.name].between

    @property
    def states(self) -> int:
        """Number of state tensors with the parameter's shape."""
        return _RULES[self.name].states

    def state_width(self, width: float, matrix: bool = True) -> float:
        """Return the bytes of all states of one parameter, if an element of a full state has *width* bytes.

        *matrix*: whether the parameter belongs to a matrix product inside a block.
        """
        if self.name == "adam8bit":
            return 2.0 * (1.0 + 4.0 / 256)
        if self.name == "adafactor":
            return 2.0 * width / _ADAFACTOR_EDGE
        return width * (self.states if matrix or self.name != "muon" else 2)


class _UpdateRule(NamedTuple):
    """The cost of one update: memory passes if fused and in separate kernels, kernels per tensor, and full-size states.

    *between*: the fused passes for an update that is written, then read again with the weight once its norm is computed.
    """

    passes: float
    separate_passes: float
    separate_kernels: float
    states: int
    between: float = 0.0


_RULES: Final[Mapping[str, _UpdateRule]] = {
    "none": _UpdateRule(0.0, 0.0, 0.0, 0),
    "sgd": _UpdateRule(3.0, 6.0, 2.0, 0),
    "momentum": _UpdateRule(5.0, 11.0, 4.0, 1),
    "adam": _UpdateRule(7.0, 22.0, 9.0, 2),
    "lamb": _UpdateRule(10.0, 28.0, 14.0, 2, 3.0),
    "adam8bit": _UpdateRule(4.0, 4.0, 1.0, 2),  # weight and gradient in full, two states of a quarter in each direction, in one kernel
    # estimate (transformers/optimization.py: square, two means, outer product, scale, clip; the update is written and read again)
    "adafactor": _UpdateRule(6.0, 14.0, 14.0, 0, 3.0),
    "muon": _UpdateRule(8.0, 12.0, 34.0, 1),  # estimate (momentum 4, Newton-Schulz 5 x 5 kernels, update 5)
}
_ADAFACTOR_EDGE: Final = 4096
"""Rows or columns of a matrix for which sums are kept: estimate (hidden size of models of 7 B parameters)."""
