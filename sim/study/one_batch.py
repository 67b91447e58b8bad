"""How is one job trained on machines with different numbers of GPUs? At one global batch, so that an epoch has the same optimizer steps.

Few GPUs accumulate gradients over several passes, each with at most the workload's own batch or what fits into their memory. Many GPUs
take a smaller batch each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from sim.spec.hardware import Gpu
from sim.spec.library import load_hardware, load_workload
from sim.spec.overrides import Option
from sim.spec.training import Training
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.memory_fit import largest_fitting_batch
from sim.study.scenario import Scenario, overrides_of, sorted_overrides, without_keys

GPUS: Final = 8
"""Number of GPUs of the usual global batch, each with the workload's own batch: as in most rented machines."""
NEAR: Final = 0.05
"""Share by which a global batch may differ if it does not divide evenly."""
_STEPS: Final = "gradient_accumulation_steps"


def usual_global_batch(scenario: Scenario, nodes: int = 1) -> int:
    """Return the default global batch to compare a job of *scenario* on up to *nodes* nodes: that of `GPUS` GPUs.

    If that is less than one sample per replica on *nodes* nodes of `GPUS` GPUs, as for decoders with a batch of 1, it is theirs.
    """
    training = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.training
    of_one = training.batch * training.gradient_accumulation_steps
    own, most = (_replicas(training, gpus) for gpus in (GPUS, GPUS * nodes))
    return of_one * (own if own * of_one >= most else most)


def own_batch_option(scenario: Scenario) -> str:
    """Return the option of *scenario* that sets the batch of each machine, so that all do not share one; empty if there is none."""
    return f"--batch {scenario.batch}" if scenario.batch is not None else micro_batches_option(scenario)


def micro_batches_option(scenario: Scenario) -> str:
    """Return the option of *scenario* that sets the number of micro-batches; empty if there is none."""
    laid = [Option(option, key, value).written for option, key, value in scenario.layout if key == _STEPS]
    return next(iter([*laid, *(f"--set {text}" for text in overrides_of(scenario, f"training.{_STEPS}"))]), "")


def without_micro_batches(scenario: Scenario) -> Scenario:
    """Return *scenario* without options for the number of micro-batches."""
    return without_keys(scenario, [f"training.{_STEPS}"])


def _replicas(training: Training, gpus: int) -> int:
    """Return how many replicas of the model *gpus* GPUs hold; each trains on one batch at a time."""
    layout = training.parallel
    return max(1, gpus // (layout.tensor * layout.pipeline * layout.context))


def _most(workload: Workload, gpus: Sequence[Gpu], ranks: int) -> int:
    """Return the maximum samples of a pass: the workload's batch, or what fits every one of *gpus* if each holds the whole model."""
    batch = workload.training.batch
    return batch if workload.training.has_layout else min(batch, largest_fitting_batch(gpus, workload, ranks))


def at_global_batch(scenario: Scenario, total: int) -> Scenario:
    """Return *scenario* with *total* samples per optimizer step, or with a number within `NEAR` of it that divides evenly.

    Raise SpecError if there are too many GPUs for that, or if its descriptions cannot be read.
    """
    for_hardware, for_workload = sorted_overrides(scenario)
    machine = load_hardware(scenario.hardware, for_hardware).spec
    groups = machine.groups
    gpus = (
        machine.first_workers.node.gpu_count * scenario.nodes
        if scenario.nodes
        else sum(group.count * group.node.gpu_count for group in groups)
    )
    if not gpus:
        raise SpecError(f"{scenario.hardware}: has no GPU")
    workload = load_workload(scenario.workload, for_workload).spec
    replicas = _replicas(workload.training, gpus)
    steps = max(1, ceil(total / (replicas * _most(workload, [group.node.gpu for group in groups if group.node.gpu_count], gpus)) - 1e-9))
    each = round(total / (replicas * steps))
    if abs(each * replicas * steps - total) > NEAR * total:
        nodes = f", {scenario.nodes} nodes" if (scenario.nodes or 1) > 1 else ""
        raise SpecError(
            f"{scenario.hardware}{nodes}: a global batch of {total:,} does not divide evenly over {gpus:,} GPUs; --global-batch sets "
            "another"
        )
    bare = without_keys(scenario, ["training.batch", f"training.{_STEPS}"])
    return replace(bare, batch=each, overrides=(*bare.overrides, f"training.{_STEPS}={steps}"))
