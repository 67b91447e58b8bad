"""What does a plan minimize per step? Its time (seconds), its cost (money), or its energy (joules of the site)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from sim.analysis.energy import node_power, power_model, shares_of
from sim.mesh import LayoutRun, worker_node
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.options import Objective
from sim.study.plan.block_sums import FloatRow
from sim.study.plan.floor import Floors, Setting
from sim.study.plan.space import LayoutCandidate
from sim.training.layer_times import mix_of


def scale(setting: Setting, objective: Objective) -> float:
    """Return the least objective per second of a step on the cluster of *setting*; only energy may be higher."""
    if objective == "time":
        return 1.0
    if objective == "energy":
        return min(site_power(setting, shares) for shares in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
    return float(setting.nodes) if setting.rate is None else setting.rate


def least_added(setting: Setting, candidates: Sequence[LayoutCandidate], floors: Floors, objective: Objective) -> FloatRow:
    """Return the least objective of a step of each of *candidates* in addition to `scale` for each second: the energy of computing.

    A GPU that computes draws more power than one that waits, and no layout saves the work. *floors* are the bounds of *candidates*.
    """
    added = numpy.zeros(len(candidates))
    if objective != "energy":
        return added
    least, power = scale(setting, objective), dict[tuple[int, str], float]()
    for place in numpy.flatnonzero(floors.work).tolist():
        key = candidates[place].batch, candidates[place].precision  # what bounds kernels depends on no other field of a layout
        if key not in power:
            power[key] = site_power(setting, (1.0, 0.0, 0.0), setting.workload_in(candidates[place]))
        added[place] = max(0.0, power[key] - least) * floors.work[place]
    return added


def site_power(setting: Setting, shares: tuple[float, float, float], workload: Workload | None = None) -> float:
    """Return the W of all nodes and their cooling, with GPUs computing, waiting and idle for *shares* of a step of *workload*.

    Raise SpecError if the power of the GPU is not specified.
    """
    node, model = worker_node(setting.hardware), power_model()
    mix = mix_of(workload, node.gpu) if workload is not None else None
    power = node_power(node, model, shares, setting.nodes > 1, setting.gpus_per_node, mix=mix)
    if power is None:
        raise SpecError(f"--objective energy: {node.gpu.name} has no power specified; add it, for example --set node.gpu.power='700 W'")
    return setting.nodes * power.total * model.pue


def joules_of_step(setting: Setting, run: LayoutRun) -> float:
    """Return the joules of one step of *run*, at the mean power of its GPUs."""
    return site_power(setting, shares_of({cause.value: seconds for cause, seconds in run.stalls.items()}), run.workload) * run.step_time
