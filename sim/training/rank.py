"""What does a rank do in each step? It plays the instructions of its program in order, with one handler for each type of instruction.

Data parallelism (`sim.training.step`) and layouts (`sim.training.layouts.run`) differ in their handlers: how kernels are launched, where
batches come from, how waits are attributed. One rank represents all ranks of its class, which behave identically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import simpy

from sim.cluster.clock import SimProcess
from sim.parallel.program import Program

Play = Callable[[Any, int], Iterable[simpy.Event]]
"""Plays an instruction, given the instruction and its index in the program; yields the events that the rank waits for."""


class Rank:
    """One rank, or a class of equal ranks: its *program*, and *plays*, the handler of each type of instruction."""

    def __init__(self, env: simpy.Environment, program: Program, plays: Mapping[type, Play]) -> None:
        unknown = {type(instruction) for instruction in program} - plays.keys()
        if unknown:
            raise ValueError(f"no part of the rank can run {', '.join(sorted(kind.__name__ for kind in unknown))}")
        self.env = env
        self.program = program
        self._plays = plays
        self.at = 0
        """Index of the current instruction; part of the simulation state."""
        self.clock: list[float] = []
        """Time (s) at which each instruction of the step finished."""

    def close(self) -> None:
        """Forget the handlers, which refer back to this rank; it cannot run again."""
        self._plays = {}

    def run(self) -> SimProcess:
        """Run one step: the program once."""
        self.clock = []
        yield from self.play(0, len(self.program))

    def play(self, begin: int, end: int) -> SimProcess:
        """Play the instructions from index *begin* to before *end*."""
        env, plays, clock = self.env, self._plays, self.clock
        for at, instruction in enumerate(self.program[begin:end], begin):
            self.at = at
            yield from plays[type(instruction)](instruction, at)
            clock.append(env.now)
