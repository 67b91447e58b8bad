"""How does a layout become programs? Each stage gets a list of instructions, depending on what its ranks shard.

Layouts that differ in what programs do not name, such as recomputation, have equal programs: the last ones are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, overload

from sim.parallel.lower.bucketed import Bucketed
from sim.parallel.lower.lowering import Layout as Layout
from sim.parallel.lower.sharded import Sharded
from sim.parallel.program import HOST_WAITS, Program, merge_work, with_host_waits, with_loads
from sim.spec.identity import content

MOST_INSTRUCTIONS: Final = 200_000
"""Maximum number of instructions of all programs that are kept: about 40 MB."""


class _KeptPrograms:
    """The programs that were lowered last, with what determines them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Program, object]] = OrderedDict()
        self._instructions = 0

    def get_or_lower(self, layout: Layout, stage: int) -> Program:
        """Return the program of *stage* of *layout*, which is kept unless it is too long, beside the units whose identity is in its key."""
        key = stage, _determinants(layout)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        made = _lower(layout, stage)
        if len(made) <= MOST_INSTRUCTIONS:
            self._kept[key] = made, layout.units
            self._instructions += len(made)
        while self._instructions > MOST_INSTRUCTIONS:
            _, (oldest, _) = self._kept.popitem(last=False)
            self._instructions -= len(oldest)
        return made


_kept_programs = _KeptPrograms()


def program(layout: Layout, stage: int) -> Program:
    """Return the program of each rank of *stage* for one step, memoized in *layout*, and for layouts with equal programs."""
    if stage not in layout.programs:
        own = layout.own_passes is not None  # the user's schedule may change
        layout.programs[stage] = _lower(layout, stage) if own else _kept_programs.get_or_lower(layout, stage)
    return layout.programs[stage]


def _lower(layout: Layout, stage: int) -> Program:
    lowering = Sharded(layout, stage) if layout.shards_parameters else Bucketed(layout, stage)
    instructions, ops = lowering.step(), HOST_WAITS[layout.options.host_waits]
    instructions = with_host_waits(instructions, ops) if ops else instructions
    return merge_work(with_loads(instructions) if 0 in layout.units_of(stage) else instructions)


def _determinants(layout: Layout) -> Hashable:
    """Return what determines the programs of *layout*: equal values mean equal programs.

    Splits of a model are memoized, so layouts that hold equal units hold the same ones.
    """
    of_layout = (
        layout.chunks, layout.schedule, layout.micro_batches, layout.gathered_width, layout.reduced_width, layout.input_bytes,
        layout.clips_gradients, layout.tied_bytes, layout.synchronizes_each,
    )  # fmt: skip
    return id(layout.units), layout.mesh.gpus, content(layout.mesh.parallel), content(layout.options), of_layout


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
