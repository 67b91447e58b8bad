"""What programs have in common: loads before what begins the model, work joined, collectives of one operation; by hand."""

from __future__ import annotations

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
