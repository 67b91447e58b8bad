"""Which part of a program repeats? Oracle: the program of the whole step, put together again from a shorter one and its turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sim.mesh import prepare
from sim.parallel.lower.layouts import Layout, program
from sim.parallel.program import Program, Receive, Send, Start, Wait, Work
from sim.parallel.turns import turns_of
from tests.harness import machine
from tests.training.layouts.drawn_layouts import model
from tests.training.layouts.toys import workload

MANY, FEW = 11, 6
"""Turns of the whole step, and of the shorter one."""


def layout(**fields: Any) -> Layout:
    return prepare(machine(2, 4), workload(model(), **fields))


def kinds(instructions: Program) -> list[tuple[object, ...]]:
    """What is played, whichever micro-batch it belongs to."""
    return [
        (type(each), each.tag[:2]) if isinstance(each, Start | Wait)
        else (type(each), each.tag[:2], each.stage, each.nbytes) if isinstance(each, Send | Receive)
        else (Work, each.part, each.first, each.last) if isinstance(each, Work)
        else (type(each),)
        for each in instructions
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "works"),
    [
        ({"pipeline": 4, "shard": "optimizer"}, 8),  # a forward and a backward of each micro-batch
        ({"pipeline": 4, "shard": "parameters"}, 8),
        ({"pipeline": 2, "schedule": "interleaved_1f1b", "virtual_stages": 4}, 16),  # of each chunk
        ({"pipeline": 4, "schedule": "zb_h1"}, 12),  # backward in two halves
        ({"shard": "optimizer"}, 2),
        ({"shard": "parameters"}, 16),  # of each block, around gathers and reductions
    ],
    ids=str,
)
@pytest.mark.parametrize("rest", [0, 1])
def test_a_step_is_a_shorter_one_and_its_turns(fields: dict[str, Any], works: int, rest: int) -> None:
    each = fields.get("pipeline", 1)
    rest = 0 if fields.get("schedule") == "interleaved_1f1b" or each == 1 else rest
    laid_out = layout(micro_batches=MANY * each + rest, **fields)
    for stage in range(each):
        of_step = program(laid_out, stage)
        short = program(replace(laid_out, micro_batches=FEW * each + rest), stage)
        turns = turns_of(of_step, short, each, MANY - FEW)
        assert turns is not None
        turn = short[turns.end - turns.length : turns.end]
        assert sum(isinstance(instruction, Work) for instruction in turn) == works
        assert kinds((*short[: turns.end], *(MANY - FEW) * turn, *short[turns.end :])) == kinds(of_step)
        assert turns.loads == (stage == 0)


def test_a_program_whose_forwards_all_come_first_has_no_turns() -> None:
    laid_out = layout(pipeline=4, schedule="gpipe", micro_batches=MANY * 4)
    assert turns_of(program(laid_out, 0), program(replace(laid_out, micro_batches=FEW * 4), 0), 4, MANY - FEW) is None
