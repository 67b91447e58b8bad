"""What do sequences of unequal length cost in a decoder? Its layer table for padded, unpadded and packed samples."""

from functools import lru_cache
from typing import Final, Literal, Self

from pydantic import model_validator

from sim.spec.fields import Fraction, Source, Spec
from sim.spec.layer import Layer

Padding = Literal["padded", "unpadded", "packed"]
_WITH_TOKENS: Final = ("forward", "backward", "arithmetic", "backward_arithmetic", "read", "write", "backward_traffic", "saved")
_WHOLE: Final = ("casts", "dropped", "composed")


class Lengths(Spec):
    """Lengths of the sequences of a data set, relative to the full length for which the model's layer table is written."""

    mean: Fraction
    """Mean relative length."""
    square: Fraction
    """Mean of the squared relative length; the work of attention is proportional to it."""
    source: Source

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not 0 < self.mean**2 <= self.square <= self.mean:
            raise ValueError(
                f"lengths between 0 and 1 with a mean of {self.mean:g} have a mean square of {self.mean**2:.3g} to {self.mean:g}, not "
                f"{self.square:g}; write fractions of the longest sequence"
            )
        return self


@lru_cache(maxsize=64)
def with_lengths(layers: tuple[Layer, ...], padding: Padding, mean: float, square: float) -> tuple[Layer, ...]:
    """Return *layers* for sequences of unequal length; *mean* and *square* are relative to the sequence length of the table.

    Unpadded samples contain only their tokens: work is proportional to the mean, work of attention to the square. Packed samples are full,
    and attention stays inside each document: documents of lengths l that fill a sequence have ``E[l^2] / E[l]`` of its square.
    """
    tokens = mean if padding == "unpadded" else 1.0
    pairs = square if padding == "unpadded" else square / mean
    return tuple(_shorter(layer, tokens, pairs) for layer in layers) if padding != "padded" else layers


@lru_cache(maxsize=64)
def at_full_length(layers: tuple[Layer, ...], mean: float) -> tuple[Layer, ...]:
    """Return unpadded *layers* of *mean* length scaled to sequences of full length, the case that a rank's memory must hold.

    The work of attention is scaled only by tokens, not restored to full length: memory does not depend on it.
    """
    return tuple(_shorter(layer, 1.0 / mean, 1.0 / mean) for layer in layers)


def _shorter(layer: Layer, tokens: float, pairs: float) -> Layer:
    update = {name: getattr(layer, name) * tokens for name in _WITH_TOKENS}
    update |= {name: round(getattr(layer, name) * tokens) for name in _WHOLE}
    if layer.op == "attention":
        update |= {"forward": layer.forward * pairs, "backward": layer.backward * pairs}
    if layer.tokens:
        update["tokens"] = max(1, round(layer.tokens * tokens))
    return layer.model_copy(update=update)
