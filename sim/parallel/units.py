"""Into which units is a model divided? Numbered blocks, the layers before and after them, and parts of blocks if a pipeline cuts inside.

FSDP wraps *units*, activation checkpointing recomputes them, and pipelines place them, unless the layout specifies something else.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Final, Literal

from sim.parallel.wraps import TORCHS_SIZE
from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.parallel import Parallel, Wrapping
from sim.spec.segments import block
from sim.spec.yaml import SpecError
from sim.units import any_of

UnitKind = Literal["first", "block", "last"]
_NAMED: Final = 6
"""Number of layers that an error message lists."""


def units(model: Model, cuts: Sequence[str] = ()) -> list[tuple[str, UnitKind, tuple[Layer, ...]]]:
    """Return the units of *model* in order: (name, kind, layers). Layers between two numbered blocks belong to the later block.

    A unit inside which a module of *cuts* begins is divided there. Raise SpecError if no stage can begin at a cut (`cut_layers`).
    """
    uncut = _units(model)
    if not cuts:
        return uncut
    path = dict(zip(cut_layers(model, cuts), cuts, strict=True))
    result: list[tuple[str, UnitKind, tuple[Layer, ...]]] = []
    first = 0
    for name, kind, layers in uncut:
        last = first + len(layers)
        for start, end in pairwise([first, *(at for at in path if first < at < last), last]):
            result.append((name if start == first else path[start], kind, model.layers[start:end]))
        first = last
    return result


def cut_layers(model: Model, cuts: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the layers with which the modules *cuts* begin.

    Raise SpecError for a module that *model* does not have, for its first module, for modules out of order, and for a cut inside a block of
    a decoder, because the decoder's table does not list the activations that are live there.
    """
    names = [layer.name for layer in model.layers]
    of_units = {0, *accumulate(len(layers) for _, _, layers in _units(model))}
    starts: list[int] = []
    for cut in cuts:
        at = next((number for number, name in enumerate(names) if name == cut or name.startswith(f"{cut}.")), None)
        if at is None:
            near = difflib.get_close_matches(cut, dict.fromkeys([*names, *(block(name) for name in names)]), n=3)
            hint = f"did you mean {any_of(near)}?" if near else f"it begins with {', '.join(names[:_NAMED])}, ..."
            raise SpecError(f"training.parallel.cuts: {model.name} has no module {cut}; {hint}")
        if at <= max([0, *starts]):
            before = "is the first module of the model" if at == 0 else f"does not come after {cuts[len(starts) - 1]}"
            raise SpecError(f"training.parallel.cuts: {cut} {before}; write modules in the order of the model, without the first")
        if model.transformer is not None and at not in of_units:
            raise SpecError(f"training.parallel.cuts: {cut} is inside {block(cut)}; decoders are cut between blocks: write {block(cut)}")
        starts.append(at)
    return tuple(starts)


def _units(model: Model) -> list[tuple[str, UnitKind, tuple[Layer, ...]]]:
    runs = [(name, tuple(members)) for name, members in groupby(model.layers, key=lambda layer: block(layer.name))]
    numbered = {index for index, (name, _) in enumerate(runs) if re.search(r"\.\d+$", name)}
    if not numbered:
        return [(model.name, "block", model.layers)]
    result: list[tuple[str, UnitKind, tuple[Layer, ...]]] = []
    waiting: tuple[Layer, ...] = ()
    for index, (name, layers) in enumerate(runs):
        if index not in numbered:
            waiting += layers
            continue
        if not result and waiting:
            result.append((waiting[0].name, "first", waiting))
            waiting = ()
        result.append((name, "block", waiting + layers))
        waiting = ()
    return [*result, (waiting[0].name, "last", waiting)] if waiting else result


def wrapping(model: Model, parallel: Parallel) -> Wrapping | None:
    """Return what FSDP wraps if the layout specifies it or the model has no numbered blocks; None: FSDP wraps the units."""
    if parallel.shard != "parameters" or parallel.wrap is not None or parallel.pipeline > 1:
        return parallel.wrap
    return None if _is_numbered(model) else TORCHS_SIZE


def _is_numbered(model: Model) -> bool:
    return any(re.search(r"\.\d+$", block(layer.name)) for layer in model.layers)
