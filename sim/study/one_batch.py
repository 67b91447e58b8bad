"""How is one job trained on machines of other numbers of GPUs? At one global batch, so that an epoch is the same optimizer steps.

Few GPUs accumulate gradients over several passes of at most the workload's own batch, or of what fits into their memory; many take a
smaller batch each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from sim.spec.hardware import Gpu
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Training, Workload
from sim.spec.yaml import SpecError
from sim.study.memory_fit import most_that_fits
from sim.study.scenario import Scenario, sorted_overrides

GPUS: Final = 8
"""GPUs that the usual global batch is for, each with the workload's own batch: one machine as most are rented."""
NEAR: Final = 0.05
"""Share by which a global batch may differ where it does not divide evenly."""


def usual_global_batch(scenario: Scenario, nodes: int = 1) -> int:
    """Return the global batch at which a job of *scenario* is compared on up to *nodes* nodes unless another is given: that of `GPUS` GPUs.

    Where that is less than a sample for each GPU of as many nodes, as of decoders that take one each, it is that of these.
    """
    training = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.training
    of_one = training.batch * training.gradient_accumulation_steps
    own, most = (_replicas(training, gpus) for gpus in (GPUS, GPUS * nodes))
    return of_one * (own if own * of_one >= most else most)


def _replicas(training: Training, gpus: int) -> int:
    """Return how many samples *gpus* GPUs train at once, each of the batch: one a replica of the model."""
    layout = training.parallel
    return max(1, gpus // (layout.tensor * layout.pipeline * layout.context))


def _most(workload: Workload, gpus: Sequence[Gpu], ranks: int) -> int:
    """Return the samples of one pass at most: the workload's batch, or what fits every one of *gpus* where the model is on each whole."""
    batch = workload.training.batch
    return batch if not workload.training.parallel.trivial else min(batch, most_that_fits(gpus, workload, ranks))


def at_global_batch(scenario: Scenario, total: int) -> Scenario:
    """Return *scenario* with *total* samples per optimizer step, or as many as divide evenly within `NEAR`.

    Raise SpecError where its GPUs are too many for that, or its descriptions cannot be read.
    """
    for_hardware, for_workload = sorted_overrides(scenario)
    groups = load_hardware(scenario.hardware, for_hardware).spec.groups
    gpus = groups[0].node.gpu_count * scenario.nodes if scenario.nodes else sum(group.count * group.node.gpu_count for group in groups)
    if not gpus:
        raise SpecError(f"{scenario.hardware}: has no GPU")
    workload = load_workload(scenario.workload, for_workload).spec
    replicas = _replicas(workload.training, gpus)
    steps = max(1, ceil(total / (replicas * _most(workload, [group.node.gpu for group in groups if group.node.gpu_count], gpus)) - 1e-9))
    each = round(total / (replicas * steps))
    if abs(each * replicas * steps - total) > NEAR * total:
        nodes = f", {scenario.nodes} nodes" if (scenario.nodes or 1) > 1 else ""
        raise SpecError(
            f"{scenario.hardware}{nodes}: a global batch of {total:,} does not divide over {gpus:,} GPUs; --global-batch sets another"
        )
    accumulated = f"training.gradient_accumulation_steps={steps}"
    laid = tuple(field for field in scenario.layout if field[1] != "gradient_accumulation_steps")
    return replace(scenario, batch=each, layout=laid, overrides=(*scenario.overrides, accumulated))
