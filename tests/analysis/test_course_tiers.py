"""Copies in the memory of peers between checkpoints in a store. Oracle: a course in SimPy, save by save."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import suppress

import numpy as np
import pytest
import simpy

from sim.analysis.course import draw
from sim.analysis.long_run import ZERO_TIME, DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform

HOUR, DAY = 3600.0, 86400.0
Events = Generator[simpy.Event, object, None]
SAVING = Saving(1800.0, 20.0, 400.0, 300.0, 300.0, 4.0, 50.0, 10.0, 40.0)
CAUSES = [DrawnCause("gpu", 0.6, Uniform(60.0, 60.0), ZERO_TIME, 1.0), DrawnCause("software", 0.4, Uniform(30.0, 30.0), ZERO_TIME, 0.0)]
SINGLE, TOGETHER = 1 / (1.5 * HOUR), 1 / (5 * HOUR)
"""Rates of faults of one node, and of several nodes at once."""
RUN = LongRun(
    64, 8, SAVING, CAUSES, (SINGLE + TOGETHER,) * 3, spare=Uniform(25.0, 25.0), restart=200.0, restart_in_place=50.0,
    correlated=(TOGETHER, 4, ZERO_TIME), horizon=10 * DAY,
)  # fmt: skip


class Simulated:
    """One course of `RUN`: processes for the faults, each save, and the recovery."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random, self.env = random, simpy.Environment()
        self.copied = self.stored = self.progress = 0.0
        self.job = self.env.process(self.training())
        self.env.process(self.faults(SINGLE, several=False))
        self.env.process(self.faults(TOGETHER, several=True))
        self.env.run(RUN.horizon)

    def written(self, work: float, duration: float, name: str) -> Events:
        with suppress(simpy.Interrupt):
            yield self.env.timeout(duration)
            setattr(self, name, max(getattr(self, name), work))

    def training(self) -> Events:
        writes: list[simpy.Process] = []
        try:
            while True:
                start = self.env.now
                try:
                    yield self.env.timeout(300.0)
                finally:
                    self.progress += self.env.now - start
                writes.append(self.env.process(self.written(self.progress, SAVING.memory_persist, "copied")))
                if round(self.progress / 300.0) % 6 == 0:
                    writes.append(self.env.process(self.written(self.progress, SAVING.persist, "stored")))
                yield self.env.timeout(SAVING.memory_blocking)
        except simpy.Interrupt:
            for write in writes:
                if write.is_alive:
                    write.interrupt()

    def recovering(self, time: float) -> Events:
        with suppress(simpy.Interrupt):
            yield self.env.timeout(time)
            self.job = self.env.process(self.training())

    def faults(self, rate: float, several: bool) -> Events:
        while True:
            yield self.env.timeout(self.random.exponential(1 / rate))
            if self.job.is_alive:
                self.job.interrupt()
            yield self.env.timeout(0.0)
            replaces = self.random.random() < 0.6
            self.copied = self.stored if several else self.copied
            self.progress = self.copied
            load = SAVING.load if several else SAVING.peer_load if replaces else SAVING.memory_load
            restart = RUN.restart + 25.0 if several or replaces else RUN.restart_in_place
            self.job = self.env.process(self.recovering((60.0 if replaces else 30.0) + restart + load))
            yield self.env.timeout(0.0)


@pytest.mark.parametrize(("courses", "most"), [(50, 0.003), pytest.param(200, 0.0015, marks=pytest.mark.nightly)])
def test_copies_in_memory_are_drawn_as_simpy_simulates_them(courses: int, most: float) -> None:
    """The cause of faults of several nodes gives their detection alone."""
    simulated = [Simulated(np.random.default_rng([5, number])).progress / RUN.horizon for number in range(courses)]
    drawn = draw(RUN, 10 * courses, seed=4)
    error = math.hypot(np.std(simulated) / math.sqrt(courses), drawn.share.std() / math.sqrt(10 * courses))
    assert drawn.share.mean() == pytest.approx(np.mean(simulated), abs=2.5 * error)
    assert error < most
