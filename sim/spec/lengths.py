"""What do sequences of unequal length cost in a decoder? Its layer table for padded, unpadded and packed samples."""

from functools import lru_cache
from typing import Final, Literal, Self

from pydantic import model_validator

from sim.spec.decoder import attended_pairs
from sim.spec.fields import Fraction, Source, Spec
from sim.spec.layer import WORK_FIELDS, Layer

Padding = Literal["padded", "unpadded", "packed"]
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
    if padding == "padded":
        return layers
    tokens = mean if padding == "unpadded" else 1.0
    return tuple(_attending_inside(_shorter(layer, tokens), tokens, square / mean) for layer in layers)


@lru_cache(maxsize=64)
def at_full_length(layers: tuple[Layer, ...], mean: float) -> tuple[Layer, ...]:
    """Return unpadded *layers* of *mean* length scaled to sequences of full length, the case that a rank's memory must hold.

    The work of attention is scaled only by tokens, not restored to full length: memory does not depend on it.
    """
    return tuple(_shorter(layer, 1.0 / mean) for layer in layers)


def _shorter(layer: Layer, tokens: float) -> Layer:
    """Return *layer* with *tokens* of its tokens; attention of each still reaches as far."""
    update = {name: getattr(layer, name) * tokens for name in (*WORK_FIELDS, "saved")}
    update |= {name: round(getattr(layer, name) * tokens) for name in _WHOLE}
    if layer.tokens:
        update["tokens"] = max(1, round(layer.tokens * tokens))
    return layer.model_copy(update=update)


def _attending_inside(layer: Layer, tokens: float, length: float) -> Layer:
    """Return attention inside documents of a sample that has *tokens* of the full tokens; other layers do not change.

    Documents are as long as the one of a token chosen at random: *length*, relative to the full length. A window excludes less in them.
    """
    shape = layer.attention
    if shape is None:
        return layer
    of_sample, of_document = (attended_pairs(keys, shape.window, shape.chunked, shape.causal) for keys in (shape.keys, shape.keys * length))
    keys = max(1, round(shape.keys * length))
    windowed = shape.window < keys
    window = {"window": shape.window if windowed else 0, "chunked": shape.chunked and windowed}
    inside = shape.model_copy(update={"queries": keys, "keys": keys, "documents": tokens / length, **window})
    pairs = of_document / of_sample / length
    return layer.model_copy(update={"forward": layer.forward * pairs, "backward": layer.backward * pairs, "attention": inside})
