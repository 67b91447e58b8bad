"""Which layers does backward recompute? The segments of activation checkpointing, as a number for each layer.

``model``: the segments that the model's own code checkpoints, as found by ``sim extract``. ``blocks``: every block whose path ends in a
number (``layer1.0``, ``block.11``) and that has more than one layer, as in frameworks that checkpoint by block. ``none``: nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from sim.spec.layer import Layer
from sim.spec.workload import Workload


@lru_cache(maxsize=65536)
def block(name: str) -> str:
    """Return the block of the model that contains the layer *name*: its path up to the first number before its end, or its first name."""
    parts = name.split(".")
    for index, part in enumerate(parts[:-1]):
        if re.fullmatch(r"\d+", part):
            return ".".join(parts[: index + 1])
    return parts[0]


def segments(workload: Workload) -> tuple[int, ...]:
    """Return for each layer of *workload* the number of its segment that backward recomputes; 0 for layers outside of segments."""
    layers, wanted = workload.model.layers, workload.training.activation_checkpointing
    if wanted == "model":
        return tuple(layer.segment for layer in layers)
    return tuple(_by_block(layers)) if wanted == "blocks" else (0,) * len(layers)


def layers_to_recompute(numbers: Sequence[int]) -> dict[int, range]:
    """Return the layers to recompute before the backward of a layer, keyed by the index of that layer, the last one of its segment."""
    spans = [list(members) for number, members in groupby(range(len(numbers)), key=lambda index: numbers[index]) if number]
    return {span[-1]: range(span[0], span[-1] + 1) for span in spans}


def _by_block(layers: Sequence[Layer]) -> list[int]:
    numbers: list[int] = []
    count = 0
    for name, members in groupby(layers, key=lambda layer: block(layer.name)):
        inside = len(list(members))
        numbered = bool(re.search(r"\.\d+$", name)) and inside > 1
        count += numbered
        numbers += [count if numbered else 0] * inside
    return numbers
