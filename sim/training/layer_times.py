"""How long does each layer of a workload take on a GPU, and how many launches? Worked out once for all runs that change neither.

What layers take follows from layer table, batch, precision, software stack and GPU (`sim.cluster.gpu`), or from what a profile showed of
them (`sim.cluster.measured`). Calibration, what-ifs and sweeps ask for the same job again and again, on another network, with more ranks or
with all layer times longer: none of that changes a layer.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Final, NamedTuple

from sim.cluster.gpu import kernel_mix
from sim.cluster.measured import PassSetting, pass_time
from sim.spec.energy import KernelMix
from sim.spec.hardware import Gpu
from sim.spec.identity import Same, parts, same_layers
from sim.spec.workload import Workload
from sim.training.sequences import layers_run

_KEPT: Final = 512
"""Jobs kept, of about 60 KB each where there are a thousand layers."""
_OF_SPREAD: Final = frozenset({"compute_cv", "persistent_cv"})
"""Fields that no layer's work depends on, and that calibration moves."""


class LayerTimes(NamedTuple):
    """GPU seconds and launches of each layer in the order of the table, forward and backward."""

    forward: tuple[float, ...]
    forward_launches: tuple[float, ...]
    backward: tuple[float, ...]
    backward_launches: tuple[float, ...]


def layer_times(workload: Workload, gpu: Gpu) -> LayerTimes:
    """Return what each layer of *workload* takes on *gpu*, but for the training's own ``compute_factor``."""
    return _worked_out(Same((same_layers(workload), same_gpu(gpu)), workload, gpu))


@lru_cache(maxsize=_KEPT)
def _mixed(question: Same) -> KernelMix | None:
    workload, gpu = question.held
    training = workload.training
    return kernel_mix(layers_run(workload), gpu, training.precision, workload.layer_stack, training.batch)


def mix_of(workload: Workload, gpu: Gpu) -> KernelMix | None:
    """Return what bounds the kernels of *workload* on *gpu*; None where their times were measured, so that nobody knows."""
    if workload.model.measured is not None:
        return None
    return _mixed(Same((same_layers(workload), same_gpu(gpu)), workload, gpu))


def same_gpu(gpu: Gpu) -> Hashable:
    """Return what two GPUs share that take the same time for a layer, while both are alive."""
    return parts(gpu, _OF_SPREAD)


@lru_cache(maxsize=_KEPT)
def _worked_out(question: Same) -> LayerTimes:
    workload, gpu = question.held
    training, layers, on = workload.training, layers_run(workload), workload.model.measured
    here = PassSetting(gpu, training.precision, workload.layer_stack, training.batch)
    forward, backward = ([pass_time(layer, on, here, way) for layer in layers] for way in (False, True))
    return LayerTimes(
        tuple(kernels.time for kernels in forward),
        tuple(kernels.launches for kernels in forward),
        tuple(kernels.time for kernels in backward),
        tuple(kernels.launches for kernels in backward),
    )
