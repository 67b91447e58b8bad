"""Into which units does a model come apart? Numbered blocks, what is before and behind them, and parts where a pipeline is cut inside.

A *unit* is what FSDP wraps, activation checkpointing recomputes and pipelines place, unless the layout says otherwise.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Final, Literal

from sim.parallel.wraps import TORCHS_SIZE
from sim.spec.parallel import Parallel, Wrapping
from sim.spec.segments import block
from sim.spec.workload import Layer, Model
from sim.spec.yaml import SpecError
from sim.units import any_of

UnitKind = Literal["first", "block", "last"]
_NAMED: Final = 6
"""Layers that a message names."""


def units(model: Model, cuts: Sequence[str] = ()) -> list[tuple[str, UnitKind, tuple[Layer, ...]]]:
    """Return the units of *model* in order: (name, kind, layers). Layers between two numbered blocks belong to the later one.

    A unit in which a module of *cuts* begins is two; raise SpecError where no stage can begin (`cut_layers`).
    """
    uncut = _units(model)
    if not cuts:
        return uncut
    path = dict(zip(cut_layers(model, cuts), cuts, strict=True))
    made: list[tuple[str, UnitKind, tuple[Layer, ...]]] = []
    first = 0
    for name, kind, layers in uncut:
        last = first + len(layers)
        for start, end in pairwise([first, *(at for at in path if first < at < last), last]):
            made.append((name if start == first else path[start], kind, model.layers[start:end]))
        first = last
    return made


def cut_layers(model: Model, cuts: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the layers that the modules *cuts* begin with.

    Raise SpecError for a module that *model* does not have, for the first one, for modules out of order, and inside a decoder's block,
    whose table does not say what is alive there.
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
    made: list[tuple[str, UnitKind, tuple[Layer, ...]]] = []
    waiting: tuple[Layer, ...] = ()
    for index, (name, layers) in enumerate(runs):
        if index not in numbered:
            waiting += layers
            continue
        if not made and waiting:
            made.append((waiting[0].name, "first", waiting))
            waiting = ()
        made.append((name, "block", waiting + layers))
        waiting = ()
    return [*made, (waiting[0].name, "last", waiting)] if waiting else made


def wrapping(model: Model, parallel: Parallel) -> Wrapping | None:
    """Return what FSDP wraps where that is said or the model has no numbered blocks; None: units."""
    if parallel.shard != "parameters" or parallel.wrap is not None or parallel.pipeline > 1:
        return parallel.wrap
    return None if _is_numbered(model) else TORCHS_SIZE


def _is_numbered(model: Model) -> bool:
    return any(re.search(r"\.\d+$", block(layer.name)) for layer in model.layers)
