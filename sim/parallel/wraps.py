"""Which modules does FSDP wrap, and which layers does each wrap contain? Patterns over module paths, or torch's size-based policy.

A wrap holds the parameters below its module that no inner wrap holds (``torch/distributed/fsdp/wrap.py``, and ``fully_shard``). The root
holds the rest. Modules are derived from layer names: a layer's name is the path of its module, or this path and an operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.module_paths import list_modules, matches, paths
from sim.spec.parallel import Wrapping
from sim.spec.yaml import SpecError

TORCHS_SIZE: Final = 100_000_000
"""Default number of parameters from which torch wraps a module: ``min_num_params`` of ``size_based_auto_wrap_policy``."""
WrapChain = tuple[str, ...]
"""The wraps around a layer, from the outermost to the one that holds its parameters; empty: the root holds them."""


def chains(model: Model, wrapping: Wrapping) -> tuple[WrapChain, ...]:
    """Return the wraps around each layer of *model*.

    Raise SpecError for patterns that match no module or one that cannot be wrapped, and if layers in two wraps share parameters.
    """
    sizes = _sizes(model.layers)
    chosen = _by_size(model, sizes, wrapping) if isinstance(wrapping, int) else _by_pattern(model, sizes, wrapping)
    around = [tuple(path for path in paths(layer.name) if path in chosen) for layer in model.layers]
    holders = {chain[-1] for chain, layer in zip(around, model.layers, strict=True) if chain and layer.parameters}
    of_layers = tuple(tuple(path for path in chain if path in holders) for chain in around)
    _check_shared(model, of_layers)
    return of_layers


def _sizes(layers: Iterable[Layer]) -> Mapping[str, int]:
    """Return the number of parameters in each module that has any."""
    sizes: dict[str, int] = defaultdict(int)
    for layer in layers:
        if elements := layer.parameters:
            for path in paths(layer.name):
                sizes[path] += elements
    return sizes


def _lists(model: Model) -> frozenset[str]:
    """Return the modules that only contain other modules and are not called; the blocks of a decoder are in one."""
    return frozenset(("layers",) if model.transformer is not None else model.lists)


def _by_pattern(model: Model, sizes: Mapping[str, int], patterns: Iterable[str]) -> frozenset[str]:
    lists, chosen = _lists(model), set[str]()
    for pattern in patterns:
        matched = {path for path in sizes if matches(pattern, path)}
        if not matched:
            modules = sorted(sizes, key=lambda path: (path.count("."), list(sizes).index(path)))
            raise SpecError(
                f"training.parallel.wrap: no module of {model.name} with parameters matches {pattern}; it has {list_modules(modules)}"
            )
        if bare := sorted(matched & lists):
            raise SpecError(
                f"training.parallel.wrap: {bare[0]} of {model.name} is a list of modules that is never called itself, so FSDP cannot "
                f"wrap it; write {bare[0]}.*"
            )
        chosen |= matched
    return frozenset(chosen)


def _by_size(model: Model, sizes: Mapping[str, int], least: int) -> frozenset[str]:
    """Return the modules that torch's ``size_based_auto_wrap_policy`` wraps, bottom up: each with at least *least* unwrapped parameters."""
    lists, leaves = _lists(model) | set(model.called_lists), frozenset(model.leaves)
    below: dict[str, list[str]] = defaultdict(list)
    for path in sizes:
        below[path.rpartition(".")[0]].append(path)
    chosen: set[str] = set()

    def wrapped(path: str) -> int:
        """Visit *path* and return how many of its parameters are wrapped."""
        if sizes[path] < least or path in leaves:
            return 0
        inside = sum(map(wrapped, below[path]))
        if sizes[path] - inside < least or path in lists:
            return inside
        chosen.add(path)
        return sizes[path]

    if model.parameters >= least:  # the policy visits the root, which is always wrapped
        for path in below[""]:
            wrapped(path)
    return frozenset(chosen)


def _check_shared(model: Model, of_layers: tuple[WrapChain, ...]) -> None:
    """Raise SpecError if two wraps use one parameter: ``fully_shard`` rejects this, and FSDP1 requires one wrap for it."""
    holder = {layer.name: chain[-1] if chain else "" for layer, chain in zip(model.layers, of_layers, strict=True)}
    for layer in model.layers:
        owner = holder.get(layer.shares, holder[layer.name])
        if owner != holder[layer.name]:
            raise SpecError(
                f"training.parallel.wrap: {layer.name} of {model.name} uses the parameters of {layer.shares}, but "
                f"{_wrap_name(holder[layer.name])} wraps the one and {_wrap_name(owner)} the other; FSDP needs both in the same wrap"
            )


def _wrap_name(wrap: str) -> str:
    return wrap or "the root"
