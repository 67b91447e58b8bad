"""How long does each layer of a workload take on a GPU, and how many launches does it need? Cached for all runs that change neither.

Layer times follow from the layer table, batch, precision, software stack and GPU (`sim.cluster.gpu`), or from a measured profile
(`sim.cluster.measured`). Calibration, what-ifs and sweeps evaluate the same job many times, on another network, with more ranks or with
all layer times scaled. None of these changes a layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sim.cluster.gpu import kernel_mix
from sim.cluster.measured import PassSetting, pass_time
from sim.spec.energy import KernelMix
from sim.spec.hardware import Gpu
from sim.spec.identity import IdentityKey, content, field_identities, same_layers
from sim.spec.layer import Layer
from sim.spec.workload import Workload
from sim.training.sequences import layers_run

_CACHE_SIZE: Final = 512
"""Number of jobs in the cache; a job of a thousand layers takes about 60 KB."""
_SPREAD_FIELDS: Final = frozenset({"compute_cv", "persistent_cv"})
"""Fields that calibration varies and on which no layer time depends."""


class LayerTimes(NamedTuple):
    """GPU time (s) and number of launches of each layer, forward and backward, in the order of the layer table."""

    forward: tuple[float, ...]
    forward_launches: tuple[float, ...]
    backward: tuple[float, ...]
    backward_launches: tuple[float, ...]


def layer_times(workload: Workload, gpu: Gpu) -> LayerTimes:
    """Return the time and launches of each layer of *workload* on *gpu*, without the training's ``compute_factor``."""
    return _worked_out(IdentityKey((same_layers(workload), same_gpu(gpu)), workload, gpu))


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_mix(key: IdentityKey) -> KernelMix | None:
    workload, gpu = key.held
    training = workload.training
    places, kinds = _kinds_of_layers(workload)
    return kernel_mix([kinds[place] for place in places], gpu, training.precision, workload.layer_stack, training.batch)


def mix_of(workload: Workload, gpu: Gpu) -> KernelMix | None:
    """Return what bounds the kernels of *workload* on *gpu*, or None if layer times were measured and the bounds are unknown."""
    if workload.model.measured is not None:
        return None
    return _cached_mix(IdentityKey((same_layers(workload), same_gpu(gpu)), workload, gpu))


def same_gpu(gpu: Gpu) -> Hashable:
    """Return a key that is equal for GPUs with equal layer times. It holds object identities, so it is valid only while both exist."""
    return field_identities(gpu, _SPREAD_FIELDS)


@lru_cache(maxsize=_CACHE_SIZE)
def _worked_out(key: IdentityKey) -> LayerTimes:
    workload, gpu = key.held
    training, measured_on = workload.training, workload.model.measured
    setting = PassSetting(gpu, training.precision, workload.layer_stack, training.batch)
    places, kinds = _kinds_of_layers(workload)
    forward, backward = ([pass_time(layer, measured_on, setting, backward_pass) for layer in kinds] for backward_pass in (False, True))
    return LayerTimes(
        tuple([forward[place].time for place in places]),
        tuple([forward[place].launches for place in places]),
        tuple([backward[place].time for place in places]),
        tuple([backward[place].launches for place in places]),
    )


def _kinds_of_layers(workload: Workload) -> tuple[Sequence[int], Sequence[Layer]]:
    """Return the kind of each layer of *workload* as its stack runs it, and a layer of each kind."""
    layers, suffixes = layers_run(workload), workload.training.stack.kernels.fused_casts
    return _kinds_of(IdentityKey((id(layers), suffixes), layers), suffixes)


@lru_cache(maxsize=64)
def _kinds_of(same: IdentityKey, suffixes: tuple[str, ...]) -> tuple[Sequence[int], Sequence[Layer]]:
    """Return the kinds of layers, which are held: layers of equal blocks differ only in their names.

    Their work depends on the last part of the name, and on whether it ends with one of *suffixes*.
    """
    (layers,) = same.held
    numbers: dict[Hashable, int] = {}
    kinds: list[Layer] = []
    places = []
    for layer in layers:
        named = layer.name.rpartition(".")[2], layer.name.endswith(suffixes)
        fields = tuple([content(value) for name, value in layer.__dict__.items() if name != "name"])
        number = numbers.setdefault((named, fields), len(kinds))
        if number == len(kinds):
            kinds.append(layer)
        places.append(number)
    return places, kinds
