"""How long does a whole job take, and what does it cost? Start-up, a cold epoch, warm ones, evaluation and checkpoints.

``time = start-up + first epoch + (epochs - 1) * warm epoch + epochs * (evaluation + checkpoint)``, cost = rate * time; where a disk's
burst credits run out, later epochs take what one takes without them. Evaluation is forward alone over a share of the training
samples; without backward it takes about a third of a step's compute (backward is twice forward). A checkpoint holds weights and
optimizer state and is written once an epoch, while training waits. A job may also be given its time instead: `epochs_in` inverts the sum.

Limits: a fixed start-up; evaluation reads from the page cache; checkpoints do not overlap training; part of an epoch has its share of
evaluation and checkpoint.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

FORWARD_SHARE = 1.0 / 3.0
"""Of a step's compute that forward takes: backward does two products where forward does one."""
START_UP = 75.0
"""Seconds until a rented machine runs the job: cake-lab/CM-DARE measured 69 to 76 s for on-demand virtual machines on GCE."""


class JobPlan(NamedTuple):
    """What the user wants done: *epochs*, or as many as *time* (s, start-up and all) allows; one of the two is None."""

    epochs: float | None
    evaluation: float = 0.0
    """Samples evaluated after each epoch, as a share of the training samples."""
    checkpoints: bool = True
    """Whether each epoch ends with one."""
    start_up: float = START_UP
    time: float | None = None
    tokens: float | None = None
    """Tokens to train on, in place of both, until the data set and the model's sequence tell how many epochs that is."""


class MachinePace(NamedTuple):
    """What one machine takes (s)."""

    first_epoch: float
    warm_epoch: float
    compute_share: float
    """Of the warm epoch."""
    checkpoint: float
    tired_from: float = inf
    """Number of the first epoch without the disk's burst credits."""
    tired_epoch: float = 0.0
    """What an epoch takes from then on."""


class WholeJob(NamedTuple):
    """Seconds of each part of a job."""

    start_up: float
    first_epoch: float
    later_epochs: float
    evaluation: float
    checkpoints: float
    revocations: float = 0.0
    """What spot machines take longer on average: work done twice, waiting for replacements."""
    failures: float = 0.0
    """What failures take longer on average, where they are asked for: the start, work done again, recovery, revocations."""

    @property
    def total(self) -> float:
        """Return the seconds from renting to the end."""
        return sum(self)


def whole_job(plan: JobPlan, pace: MachinePace) -> WholeJob:
    """Return the parts of a job of *plan* at *pace*. Raise ValueError for a job without work or with two lengths."""
    epochs = epochs_in(plan, pace)
    rested = min(epochs, max(1.0, pace.tired_from - 1.0))
    return WholeJob(
        plan.start_up if plan.time is None else min(plan.start_up, plan.time),
        min(epochs, 1.0) * pace.first_epoch,
        max(0.0, rested - 1.0) * pace.warm_epoch + (epochs - rested) * pace.tired_epoch,
        epochs * _evaluation(plan, pace),
        epochs * _checkpoint(plan, pace),
    )


def epochs_in(plan: JobPlan, pace: MachinePace) -> float:
    """Return the epochs of a job of *plan*: as given, or how far it comes in its time."""
    if (plan.epochs is None) == (plan.time is None):
        raise ValueError("a job needs a number of epochs or a time")
    if plan.epochs is not None:
        if plan.epochs <= 0:
            raise ValueError(f"{plan.epochs} epochs: a job needs more than 0")
        return plan.epochs
    left, done, beside = (plan.time or 0.0) - plan.start_up, 0.0, _evaluation(plan, pace) + _checkpoint(plan, pace)
    rested = max(1.0, pace.tired_from - 1.0)
    for most, epoch in ((1.0, pace.first_epoch), (rested - 1.0, pace.warm_epoch), (inf, pace.tired_epoch)):
        fit = min(most, max(0.0, left) / (epoch + beside)) if most else 0.0
        done, left = done + fit, left - fit * (epoch + beside)
        if fit < most:
            break
    return done


def _evaluation(plan: JobPlan, pace: MachinePace) -> float:
    return plan.evaluation * FORWARD_SHARE * pace.compute_share * pace.warm_epoch


def _checkpoint(plan: JobPlan, pace: MachinePace) -> float:
    return pace.checkpoint if plan.checkpoints else 0.0
