"""What programs have in common: loads before what begins the model, work joined, collectives of one operation; by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.parallel.lower import layouts
from sim.parallel.lower.layouts import program
from sim.parallel.program import Load, Message, Start, Work, merge_work, with_loads
from tests.parallel.layouts import block_model, layout


def test_a_forward_that_begins_the_model_loads_its_micro_batch() -> None:
    passes = [Work("F", 0, 0, 0), Work("F", 1, 1, 0), Work("B", 1, 1, 0), Work("B", 0, 0, 0), Work("F", 0, 0, 1)]
    assert list(with_loads(passes)) == [Load(0), *passes[:4], Load(1), passes[4]]
    assert merge_work(with_loads(passes)) == (Load(0), Work("F", 0, 1, 0), Work("B", 0, 1, 0), Load(1), Work("F", 0, 0, 1))


def test_only_the_stage_that_begins_the_model_loads() -> None:
    """Each micro-batch once, in order, on the first of two stages; on the second never."""
    made = layout(block_model({f"layers.{number}.product": [8] for number in range(4)}), 2, micro_batches=3, pipeline=2)
    loads = [[each.micro_batch for each in program(made, stage) if isinstance(each, Load)] for stage in range(2)]
    assert loads == [[0, 1, 2], []]


def test_an_operation_may_be_several_collectives() -> None:
    start = Start(("bucket 0", 0, 0), "all_gather", "shard", 8.0, "gradients", more_messages=(Message("all_gather", 4.0),))
    assert start.messages == (Message("all_gather", 8.0), Message("all_gather", 4.0))


def reductions(shard: str, framework: str) -> list[tuple[str, float]]:
    """Operation and bytes of each reduction of four blocks of 100 elements, in buckets of 30, over two ranks."""
    made = layout(
        block_model({f"layers.{number}.product": [100] for number in range(4)}),
        2,
        stack={"framework": framework, "bucket_elements": 30, "overlap_parameters": False},
        shard=shard,
    )
    return [(each.op, each.nbytes) for each in program(made, 0) if isinstance(each, Start) and each.tag[0].startswith("reduce")]


def test_nanotron_s_ddp_closes_buckets_inside_blocks() -> None:
    """400 elements of 4 bytes in 12 messages of about 30 elements (its trainer.py wraps the model in torch's DDP)."""
    parts = reductions("none", "nanotron")
    assert parts == [("all_reduce", 400 / 3)] * 12


def test_zero_replaces_nanotron_s_ddp() -> None:
    """Then, and in frameworks whose units are not cut, 40 million elements close a bucket, or a block does."""
    assert reductions("optimizer", "nanotron") == [("reduce_scatter", 1600.0)]
    assert reductions("none", "fsdp2") == [("all_reduce", 400.0)] * 4


def test_layouts_with_equal_programs_share_them() -> None:
    """Layouts of one split that differ in nothing that a program names; other fields make other programs."""
    made = layout(block_model({f"layers.{number}.product": [8] for number in range(4)}), 4, micro_batches=4, pipeline=2)
    again = replace(made)
    assert again.programs == {} and [program(again, stage) is program(made, stage) for stage in range(2)] == [True, True]
    for other in (
        replace(made, micro_batches=6),
        replace(made, input_bytes=tuple(2.0 * nbytes + 1.0 for nbytes in made.input_bytes)),
        replace(made, clips_gradients=not made.clips_gradients),
        replace(made, options=made.options.model_copy(update={"host_waits": "everything"})),
        replace(made, reduced_width=made.reduced_width / 2.0),
    ):
        assert program(other, 0) != program(made, 0)
    assert program(replace(made, units=tuple(made.units)), 1) == program(made, 1)


def test_as_many_instructions_are_kept_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that were used last; a longer one than all that fit is lowered each time."""
    made = layout(block_model({f"layers.{number}.product": [8] for number in range(4)}), 2, micro_batches=4, pipeline=2)
    monkeypatch.setattr(layouts, "_kept_programs", layouts._KeptPrograms())
    longest = max(len(program(made, stage)) for stage in range(2))
    monkeypatch.setattr(layouts, "MOST_INSTRUCTIONS", longest)
    monkeypatch.setattr(layouts, "_kept_programs", layouts._KeptPrograms())
    first = program(replace(made), 0)
    assert program(replace(made), 0) is first
    program(replace(made), 1)
    second = program(replace(made), 0)
    assert second == first and second is not first
    long = program(replace(made, micro_batches=8), 0)
    assert program(replace(made, micro_batches=8), 0) is not long
    assert program(replace(made), 0) is second
