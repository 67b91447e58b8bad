"""How does a layout become programs? Each stage gets a list of instructions, depending on what its ranks shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from sim.parallel.lower.bucketed import Bucketed
from sim.parallel.lower.lowering import Layout as Layout
from sim.parallel.lower.sharded import Sharded
from sim.parallel.program import HOST_WAITS, Program, merge_work, with_host_waits, with_loads


def program(layout: Layout, stage: int) -> Program:
    """Return the program of each rank of *stage* for one step, memoized in *layout*."""
    if stage not in layout.programs:
        lowering = Sharded(layout, stage) if layout.shards_parameters else Bucketed(layout, stage)
        layout.programs[stage] = merge_work(with_loads(with_host_waits(lowering.step(), HOST_WAITS[layout.options.host_waits])))
    return layout.programs[stage]


def programs_of(layout: Layout) -> Sequence[Program]:
    """Return the program of each stage, which is not written before it is read: that of many micro-batches takes seconds."""
    return _Programs(layout)


class _Programs(Sequence[Program]):
    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __len__(self) -> int:
        return self._layout.mesh.stages

    @overload
    def __getitem__(self, stage: int) -> Program: ...

    @overload
    def __getitem__(self, stage: slice) -> Sequence[Program]: ...

    def __getitem__(self, stage: int | slice) -> Program | Sequence[Program]:
        stages = range(len(self))[stage]
        return program(self._layout, stages) if isinstance(stages, int) else [program(self._layout, each) for each in stages]
