"""What does a rank do, step after step? The instructions of its program in order, each played by one of the parts it is made of.

Data parallelism (`sim.training.step`) and layouts (`sim.training.layouts.run`) differ in their parts: how kernels are launched, where
batches come from, how waits are blamed. A rank stands for all of its class, which step alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import simpy

from sim.parallel.program import Program

SimProcess = Generator[simpy.Event, object, None]
Play = Callable[[Any, int], Iterable[simpy.Event]]
"""Plays one instruction, which stands at that place of the program: yields what the rank waits for before it goes on."""


class Rank:
    """One rank, or a class of equal ranks: its *program*, and by the type of instruction what *plays* it."""

    def __init__(self, env: simpy.Environment, program: Program, plays: Mapping[type, Play]) -> None:
        unknown = {type(instruction) for instruction in program} - plays.keys()
        if unknown:
            raise ValueError(f"no part of the rank plays {', '.join(sorted(kind.__name__ for kind in unknown))}")
        self.env = env
        self.program = program
        self._plays = plays
        self.at = 0
        """The instruction that it is at: part of the state that decides what happens next."""
        self.clock: list[float] = []
        """When each instruction of the step was over (s)."""

    def run(self) -> SimProcess:
        """Run the program once: one step."""
        env, plays, clock = self.env, self._plays, list[float]()
        self.clock = clock
        for at, instruction in enumerate(self.program):
            self.at = at
            yield from plays[type(instruction)](instruction, at)
            clock.append(env.now)
