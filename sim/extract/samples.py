"""Which data set of the catalog has samples like the inputs of a model, and how many tokens has one?

Decided by the largest input, or without shapes by the layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.extract.target import InputShape, parse_input
from sim.spec.model import Model

IMAGES, TOKENS, SOUNDS, ROWS = "imagenet-1k", "openwebtext-seq1024", "librispeech-960", "criteo-kaggle"


def dataset_like(inputs: Sequence[str], model: Model) -> str:
    """Return the name of a data set with samples of the kind that *model* takes; *inputs* are the texts of ``--input``."""
    shapes = [parse_input(text) for text in inputs if not text.startswith("@")]
    if shapes:
        return _kind(max(shapes, key=lambda shape: math.prod(shape.sizes(1))))
    looked_up = any(layer.rows for layer in model.layers)
    return TOKENS if looked_up and not any(layer.op == "conv" for layer in model.layers) else IMAGES


def tokens_of(inputs: Sequence[str], model: Model) -> int | None:
    """Return the tokens of a sample that *model* takes: the length of the longest row of integers in *inputs*, the texts of ``--input``.

    Without such texts, the most rows that an embedding looks up. None: it takes no rows of integers.
    """
    shapes = [parse_input(text) for text in inputs if not text.startswith("@")]
    if not shapes:
        return max((layer.rows_per_sample for layer in model.layers), default=0) or None
    lengths = [shape.sizes(1) for shape in shapes if "int" in shape.dtype and len(shape.sizes(1)) > 1]
    rows = [sizes for sizes in lengths if len(sizes) == 2] or lengths  # masks have more edges
    return max(map(math.prod, rows), default=None)


def _kind(shape: InputShape) -> str:
    """Return the data set for samples of this *shape*: images have channels and two edges, sounds are frames of numbers."""
    edges = len(shape.sizes(1)) - 1
    if edges >= 3:
        return IMAGES
    if edges and "int" in shape.dtype:
        return TOKENS
    return SOUNDS if edges == 2 else ROWS
