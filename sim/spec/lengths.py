"""What do sequences of unequal length cost a decoder? Its table for padded, unpadded and packed samples."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

from pydantic import model_validator

from sim.spec.fields import Fraction, Source, Spec
from sim.spec.layer import Layer

Padding = Literal["padded", "unpadded", "packed"]
_WITH_TOKENS: Final = ("forward", "backward", "arithmetic", "backward_arithmetic", "read", "write", "backward_traffic", "saved")
_WHOLE: Final = ("casts", "dropped", "composed")


class Lengths(Spec):
    """How long the sequences of a data set are, as shares of the longest, for which the model's layer table is written."""

    mean: Fraction
    """Mean length."""
    square: Fraction
    """Mean of the squared length, which attention's products go with."""
    source: Source

    @model_validator(mode="after")
    def _possible(self) -> Lengths:
        if not 0 < self.mean**2 <= self.square <= self.mean:
            raise ValueError(
                f"lengths between 0 and 1 with a mean of {self.mean:g} have a mean square of {self.mean**2:.3g} to {self.mean:g}, "
                f"not {self.square:g}; write shares of the longest sequence"
            )
        return self


@lru_cache(maxsize=64)
def with_lengths(layers: tuple[Layer, ...], padding: Padding, mean: float, square: float) -> tuple[Layer, ...]:
    """Return *layers* for sequences of unequal length: *mean* and mean *square* are shares of the sequence that the table is for.

    Unpadded samples have their tokens only, so work goes with the mean, that of attention with the square. Packed samples are full, and
    attention works on each document alone: documents of lengths l that fill a sequence have ``E[l^2] / E[l]`` of its square.
    """
    tokens = mean if padding == "unpadded" else 1.0
    pairs = square if padding == "unpadded" else square / mean
    return tuple(_shorter(layer, tokens, pairs) for layer in layers) if padding != "padded" else layers


@lru_cache(maxsize=64)
def at_full_length(layers: tuple[Layer, ...], mean: float) -> tuple[Layer, ...]:
    """Return unpadded *layers* of *mean* length for sequences of full length, which a rank's memory has to hold.

    Work of attention stays as `with_lengths` made it but for its tokens: no memory goes with it.
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
