"""Daly's mean time of a job with checkpoints (FGCS 22, 2006): an oracle of closed forms and drawn courses."""

import math


def daly_time(work: float, interval: float, checkpoint: float, restart: float, mean_between: float) -> float:
    """Return the mean time (s) to do *work* (s) with a checkpoint after each *interval* (s) of it; failures may also hit restarts."""
    return mean_between * math.exp(restart / mean_between) * math.expm1((interval + checkpoint) / mean_between) * work / interval
