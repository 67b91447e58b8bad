"""How does a layout become programs? Each stage gets a list of instructions, depending on what its ranks shard."""

from __future__ import annotations

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
