"""How long does a whole job take, and what does it cost? Start-up, a cold epoch, warm ones, evaluation and checkpoints.

``time = start-up + first epoch + (epochs - 1) * warm epoch + epochs * evaluation + checkpoints``, cost = rate * time. While the page
caches of several nodes fill, epochs after the first take longer than warm ones. If a disk's burst credits run out, later epochs take as
long as an epoch without credits. Evaluation is a forward pass over a share of the training samples. It takes about a third of the compute
of a step (backward is twice forward), or the whole step if that waits for prepared samples, because loaders deliver no faster. A
checkpoint contains weights and optimizer state and is written after each epoch and at the end of the job, while training waits. A job may
have a time limit instead of a number of epochs: `epochs_in` inverts the sum.

Limits: a fixed start-up; evaluation reads from the page cache; checkpoints do not overlap training; part of an epoch has its share of
evaluation.
"""

from __future__ import annotations

from math import ceil, floor, inf
from typing import NamedTuple

FORWARD_SHARE = 1.0 / 3.0
"""Share of the forward pass in the compute of a step: backward does two matrix products for each one of forward."""
_WAITS = 0.05
"""Share of a step that waits for preparation above which loaders set its pace, not only the variation among batches (estimate)."""
START_UP = 75.0
"""Time (s) until a rented machine runs the job: cake-lab/CM-DARE measured 69 to 76 s for on-demand virtual machines on GCE."""


class JobPlan(NamedTuple):
    """The job that the user plans: *epochs*, or as many as fit into *time* (s, including start-up); one of the two is None."""

    epochs: float | None
    evaluation: float = 0.0
    """Samples evaluated after each epoch, as a share of the training samples."""
    checkpoints: bool = True
    """Whether each epoch ends with a checkpoint."""
    start_up: float = START_UP
    time: float | None = None
    tokens: float | None = None
    """Number of training tokens, in place of both, until it is converted to epochs with the data set and the model's sequence length."""


class MachinePace(NamedTuple):
    """The times (s) of the parts of a job on one machine."""

    first_epoch: float
    warm_epoch: float
    evaluation: float
    """Time to evaluate a sample, relative to the time to train on it in the warm epoch."""
    checkpoint: float
    throttled_from: float = inf
    """Number of the first epoch without the disk's burst credits."""
    throttled_epoch: float = 0.0
    """Time of each epoch from then on."""
    filling: tuple[float, ...] = ()
    """Time of each epoch after the first while page caches fill; warm epochs follow."""


class WholeJob(NamedTuple):
    """Seconds of each part of a job."""

    start_up: float
    first_epoch: float
    later_epochs: float
    evaluation: float
    checkpoints: float
    revocations: float = 0.0
    """Mean additional time on spot machines: repeated work and waiting for replacements."""
    failures: float = 0.0
    """Mean additional time due to failures, if they are requested: repeated work, recovery, revocations, planned stops, slow nodes, and
    compiling at the start."""

    @property
    def total(self) -> float:
        """Return the time (s) from renting to the end."""
        return sum(self)


def whole_job(plan: JobPlan, pace: MachinePace) -> WholeJob:
    """Return the times of the parts of the job *plan* at *pace*. Raise ValueError for no work, or unless one length is specified."""
    epochs = left = epochs_in(plan, pace)
    times: list[float] = []
    for most, epoch in _stretches(pace):
        times.append(min(most, left) * epoch if left else 0.0)
        left -= min(most, left)
    return WholeJob(
        plan.start_up if plan.time is None else min(plan.start_up, plan.time),
        times[0],
        sum(times[1:]),
        epochs * _evaluation(plan, pace),
        _saves(epochs) * _checkpoint(plan, pace),
    )


def _saves(epochs: float) -> int:
    """Return the number of checkpoints of a job of *epochs*: one after each whole epoch, and one at the end; none without work."""
    return ceil(epochs * (1.0 - 1e-12))


def _stretches(pace: MachinePace) -> list[tuple[float, float]]:
    """Return the number of epochs of each kind in order, and the time of each such epoch; the last kind has no end."""
    rested = max(1.0, pace.throttled_from - 1.0)
    filling = pace.filling[: int(min(rested - 1.0, len(pace.filling)))]
    cold = [(1.0, pace.first_epoch), *((1.0, epoch) for epoch in filling)]
    return [*cold, (rested - len(cold), pace.warm_epoch), (inf, pace.throttled_epoch)]


def epochs_in(plan: JobPlan, pace: MachinePace) -> float:
    """Return the number of epochs of the job *plan*: as specified, or as many as fit into its time.

    Work after the last whole epoch must leave time for its checkpoint; if it cannot, the job ends with that epoch.
    """
    if (plan.epochs is None) == (plan.time is None):
        raise ValueError("a job needs a number of epochs or a time")
    if plan.epochs is not None:
        if plan.epochs <= 0:
            raise ValueError(f"{plan.epochs} epochs: a job needs more than 0")
        return plan.epochs
    left, done, checkpoint = max(0.0, (plan.time or 0.0) - plan.start_up), 0.0, _checkpoint(plan, pace)
    for most, training in _stretches(pace):
        epoch = training + _evaluation(plan, pace)
        if most and left < most * (epoch + checkpoint):
            complete = floor(left / (epoch + checkpoint))
            return done + complete + max(0.0, left - complete * (epoch + checkpoint) - checkpoint) / epoch
        done, left = done + most, left - most * (epoch + checkpoint)
    return done


def _evaluation(plan: JobPlan, pace: MachinePace) -> float:
    return plan.evaluation * pace.evaluation * pace.warm_epoch


def evaluation_share(step_time: float, compute: float, prep: float, ahead: bool = True) -> float:
    """Return the time to evaluate a sample relative to a training step of *step_time* with *compute* and waits for *prep* (all s).

    *ahead*: whether loaders prepare batches while others are trained on; if not, each batch waits for its own preparation.
    """
    forward = FORWARD_SHARE * compute
    if not ahead:
        return (forward + prep) / step_time
    return 1.0 if prep > _WAITS * step_time else forward / step_time


def _checkpoint(plan: JobPlan, pace: MachinePace) -> float:
    return pace.checkpoint if plan.checkpoints else 0.0
