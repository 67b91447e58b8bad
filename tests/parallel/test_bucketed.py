"""What do Megatron-LM's ranks send behind the last backward? By hand from ``finalize_model_grads``: data ranks, norms, the tied table."""

from __future__ import annotations

from typing import Any

import pytest

from sim.parallel.lower.bucketed import GATHER_COPIES, LAUNCH_QUEUE
from sim.parallel.lower.layouts import Layout, program
from sim.parallel.program import Copy, Start, Update, Wait, Work
from sim.spec.decoder import decoder_layers
from sim.spec.transformer import Transformer
from tests.parallel.layouts import layout, model

HIDDEN, BLOCKS, HEADS = 64, 4, 4
GPT: dict[str, Any] = {
    "layers": BLOCKS, "hidden": HIDDEN, "heads": HEADS, "vocab": 128, "activation": "gelu", "norm": "layernorm", "positions": "learned",
    "max_seq": 32, "bias": "all",
}  # fmt: skip
LLAMA: dict[str, Any] = {"layers": BLOCKS, "hidden": HIDDEN, "heads": HEADS, "vocab": 128, "ffn": 96}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "llama": LLAMA,
    "norms of heads": LLAMA | {"qk_norm": "head"},
    "experts": LLAMA | {"experts": 4, "experts_per_token": 2},
}


def of(shape: str, framework: str = "megatron", **fields: Any) -> Layout:
    layers = decoder_layers(Transformer.model_validate(SHAPES[shape]), 32)
    return layout(model(layers), 8, stack={"framework": framework}, **({"tensor": 2, "shard": "none"} | fields))


def reduced(made: Layout, stage: int = 0) -> list[tuple[str, int, float]]:
    """Return what is added up among tensor ranks outside blocks."""
    return [(each.op, made.mesh.group_size(each.axis), each.nbytes) for each in program(made, stage) if _of_norms(each)]


def _of_norms(each: object) -> bool:
    return isinstance(each, Start) and each.axis == "tensor"


EXPECTED = {
    # two norms of weight and bias in a block, one behind the last; biases of the products behind attention and in the MLP
    "gpt": 2 * HIDDEN * (2 * BLOCKS + 1) + 2 * HIDDEN * BLOCKS,
    "llama": HIDDEN * (2 * BLOCKS + 1),
    # one for queries, one for keys
    "norms of heads": HIDDEN * (2 * BLOCKS + 1) + 2 * (HIDDEN // HEADS) * BLOCKS,
    # the router
    "experts": HIDDEN * (2 * BLOCKS + 1) + 4 * HIDDEN * BLOCKS,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_norms_are_one_all_reduce_in_their_data_type(shape: str) -> None:
    assert reduced(of(shape, micro_batches=3)) == [("all_reduce", 2, 4.0 * EXPECTED[shape])]
    assert reduced(of(shape, reduced=2.0)) == [("all_reduce", 2, 2.0 * EXPECTED[shape])]


def test_stages_add_up_their_own() -> None:
    made = of("llama", pipeline=2, micro_batches=4)
    assert [reduced(made, stage) for stage in range(2)] == [
        [("all_reduce", 2, 4.0 * HIDDEN * BLOCKS)],
        [("all_reduce", 2, 4.0 * HIDDEN * (BLOCKS + 1))],
    ]


def test_without_sequence_parallelism_norms_of_heads_alone_are_added_up() -> None:
    assert reduced(of("norms of heads", sequence=False)) == [("all_reduce", 2, 4.0 * 2 * (HIDDEN // HEADS) * BLOCKS)]
    assert reduced(of("gpt", sequence=False)) == []


def test_nothing_is_added_up_without_tensor_ranks_or_elsewhere() -> None:
    assert reduced(of("llama", tensor=1)) == []
    assert reduced(of("llama", framework="nanotron")) == []


@pytest.mark.parametrize("overlap", [False, True])
def test_it_is_behind_data_ranks_and_before_the_tied_table(overlap: bool) -> None:
    layers = decoder_layers(Transformer.model_validate(LLAMA), 32)
    stack = {"framework": "megatron", "overlap_gradients": overlap}
    made = layout(model(layers), 8, stack=stack, tensor=2, pipeline=2, shard="none", micro_batches=4, tied=8.0, clips=True)
    ends = [each for each in program(made, 0) if isinstance(each, Start | Wait)]
    at = next(index for index, each in enumerate(ends) if _of_norms(each))
    assert {each.tag for each in ends[:at] if isinstance(each, Start)} == {each.tag for each in ends[:at] if isinstance(each, Wait)}
    assert [type(each).__name__ for each in ends[at:]] == ["Start", "Wait"] * 3
    assert [each.axis for each in ends[at:] if isinstance(each, Start)] == ["tensor", "ends", "everyone"]


def test_deepspeeds_first_stage_all_reduces_gradients_and_the_second_scatters_them() -> None:
    """Oracle: runtime/engine.py and zero/stage_1_and_2.py: without contiguous gradients, buckets are all-reduced over data ranks."""

    def sent(shard: str, **stack: str) -> set[tuple[str, str]]:
        made = layout(
            model(decoder_layers(Transformer.model_validate(LLAMA), 32)),
            8,
            stack={"framework": "deepspeed", **stack},
            tensor=2,
            shard=shard,
        )
        return {(each.op, each.axis) for each in program(made, 0) if isinstance(each, Start) and each.axis in ("pool", "shard")}

    assert sent("optimizer", whole_gradients="always") == {("all_reduce", "pool"), ("all_gather", "shard")}
    assert sent("gradients", whole_gradients="always") == {("reduce_scatter", "shard"), ("all_gather", "shard")}
    assert sent("optimizer") == {("reduce_scatter", "shard"), ("all_gather", "shard")}


def test_nanotrons_first_stage_reduces_one_buffer_after_backward_and_copies_every_slice() -> None:
    """Oracle: trainer.py, ``training_step``: one all-reduce, whatever overlaps; distributed.py, ``all_gather_coalesced``: a slice each."""
    options = {
        "framework": "nanotron", "whole_gradients": "always", "overlap_parameters": False, "slice_host": "1 us", "bucket_elements": 10_000,
    }  # fmt: skip
    layers = decoder_layers(Transformer.model_validate(LLAMA), 32)
    ranks = 512
    made = layout(model(layers), ranks, stack=options, tensor=1, shard="optimizer")
    played = program(made, 0)
    total = sum(size for layer in layers for size in layer.gradients)
    starts = [each for each in played if isinstance(each, Start) and each.axis in ("pool", "shard")]
    assert [(each.op, each.nbytes) for each in starts] == [("all_reduce", 4 * total), ("all_gather", 2 * total)]
    works = [place for place, each in enumerate(played) if isinstance(each, Work)]
    update = next(place for place, each in enumerate(played) if isinstance(each, Update))
    assert works[-1] < played.index(starts[0]) < update < played.index(starts[1])
    (copy,) = [each for each in played if isinstance(each, Copy)]
    slices = ranks * sum(len(layer.gradients) for layer in layers)
    assert copy.nbytes == 2 * GATHER_COPIES * 2 * total
    assert copy.host == pytest.approx((slices - LAUNCH_QUEUE) * 1e-6)
    few = layout(model(layers), 8, stack=options, tensor=1, shard="optimizer")
    assert [each.host for each in program(few, 0) if isinstance(each, Copy)] == [0.0]
