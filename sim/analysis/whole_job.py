"""How long does a whole job take, and what does it cost? Start-up, a cold epoch, warm ones, evaluation and checkpoints.

``time = start-up + first epoch + (epochs - 1) * warm epoch + epochs * (evaluation + checkpoint)``, cost = rate * time. Evaluation is
forward alone over a share of the training samples; without backward it takes about a third of a step's compute (backward is twice
forward). A checkpoint holds weights and optimizer state and is written once, while training waits.

Limits: a fixed start-up; evaluation reads from the page cache; checkpoints do not overlap training.
"""

from __future__ import annotations

from typing import NamedTuple

FORWARD_SHARE = 1.0 / 3.0
"""Of a step's compute that forward takes: backward does two products where forward does one."""
START_UP = 75.0
"""Seconds until a rented machine runs the job: cake-lab/CM-DARE measured 69 to 76 s for on-demand virtual machines on GCE."""


class Plan(NamedTuple):
    """What the user wants done."""

    epochs: int
    evaluation: float = 0.0
    """Samples evaluated after each epoch, as a share of the training samples."""
    checkpoints: bool = True
    """Whether each epoch ends with one."""
    start_up: float = START_UP


class WholeJob(NamedTuple):
    """Seconds of each part of a job."""

    start_up: float
    first_epoch: float
    later_epochs: float
    evaluation: float
    checkpoints: float
    revocations: float = 0.0
    """What spot machines take longer on average: work done twice, waiting for replacements, checkpoints to cloud storage."""

    @property
    def total(self) -> float:
        """Return the seconds from renting to the end."""
        return sum(self)


def whole_job(plan: Plan, first_epoch: float, warm_epoch: float, compute_share: float, checkpoint: float) -> WholeJob:
    """Return the parts of a job of *plan* on a machine with these epoch times (s).

    *compute_share* is compute's share of the warm epoch, *checkpoint* the seconds that writing one takes.
    Raise ValueError for a job without epochs.
    """
    if plan.epochs < 1:
        raise ValueError(f"{plan.epochs} epochs: a job has 1 or more")
    return WholeJob(
        plan.start_up,
        first_epoch,
        (plan.epochs - 1) * warm_epoch,
        plan.epochs * plan.evaluation * FORWARD_SHARE * compute_share * warm_epoch,
        plan.epochs * checkpoint if plan.checkpoints else 0.0,
    )
