"""Oracles: shares sum to the model; message counts of Korthikanti et al. (arXiv 2205.05198, section 4.2) and bytes s*b*h."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.ring import Ring
from sim.parallel.shares import rank_share
from sim.parallel.split import LayerPiece, Unit, require_tokens, split, token_multiple
from sim.spec.decoder import decoder_layers
from sim.spec.model import Model
from sim.spec.parallel import Parallel
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from tests.parallel.layouts import block_model, model, parallel

HIDDEN, TOKENS, BLOCKS = 512, 256, 4
STREAM = 4.0 * HIDDEN * TOKENS
GPT = {"layers": BLOCKS, "hidden": HIDDEN, "heads": 8, "vocab": 1024, "activation": "gelu", "norm": "layernorm", "positions": "learned"}
GPT |= {"max_seq": 256, "bias": "none", "dropout": 0.1, "composed_gelu": True}
LLAMA = {"layers": BLOCKS, "hidden": HIDDEN, "heads": 8, "kv_heads": 4, "ffn": 1408, "vocab": 1024}
SPARSE = LLAMA | {"experts": 8, "experts_per_token": 2, "expert_ffn": 256}


def decoder(fields: dict[str, Any], tokens: int = TOKENS) -> Model:
    return model(decoder_layers(Transformer.model_validate(fields), tokens), "decoder")


def messages(unit: Unit, direction: str) -> Counter[tuple[str, str]]:
    return Counter((each.axis, each.op) for piece in unit.pieces for each in getattr(piece, direction))


def blocks(model: Model, **fields: Any) -> list[Unit]:
    return [unit for unit in split(model, parallel(**fields)) if unit.kind == "block"]


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_a_block_with_sequence_parallelism_gathers_and_scatters_twice(shape: dict[str, Any]) -> None:
    """Forward: 2 all-gathers, 2 reduce-scatters. Backward the mirror image, and each gathered input once more for its weights' gradient."""
    for unit in blocks(decoder(shape), tensor=4):
        assert messages(unit, "forward") == {("tensor", "all_gather"): 2, ("tensor", "reduce_scatter"): 2}
        assert messages(unit, "backward") == {("tensor", "all_gather"): 4, ("tensor", "reduce_scatter"): 2}
        sizes = {each.nbytes for piece in unit.pieces for each in (*piece.forward, *piece.backward)}
        assert sizes == {STREAM}
        assert sum(each.overlaps for piece in unit.pieces for each in piece.backward) == 2


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_a_block_without_sequence_parallelism_reduces_twice(shape: dict[str, Any]) -> None:
    for unit in blocks(decoder(shape), tensor=4, sequence=False):
        assert messages(unit, "forward") == {("tensor", "all_reduce"): 2}
        assert messages(unit, "backward") == {("tensor", "all_reduce"): 2}
        assert {each.nbytes for piece in unit.pieces for each in (*piece.forward, *piece.backward)} == {STREAM}


def test_context_ranks_shorten_tensor_messages() -> None:
    for unit in blocks(decoder(LLAMA), tensor=2, context=2):
        sizes = {each.nbytes for piece in unit.pieces for each in (*piece.forward, *piece.backward) if each.axis == "tensor"}
        assert sizes == {STREAM / 2}


def test_embedding_and_head_are_split_by_vocabulary() -> None:
    """The embedding's partial sums are scattered; the head's input is gathered; the loss reduces three numbers a token."""
    first, *_, last = split(decoder(LLAMA), parallel(tensor=4))
    assert messages(first, "forward") == {("tensor", "reduce_scatter"): 1}
    assert messages(first, "backward") == {("tensor", "all_gather"): 1}
    assert messages(last, "forward") == {("tensor", "all_gather"): 1, ("tensor", "all_reduce"): 3}
    assert messages(last, "backward") == {("tensor", "reduce_scatter"): 1, ("tensor", "all_gather"): 1}
    assert {each.nbytes for piece in last.pieces for each in piece.forward if each.op == "all_reduce"} == {4.0 * TOKENS}


def test_experts_are_dispatched_and_combined_both_ways() -> None:
    """Two all-to-alls forward and two backward of all copies of a rank's tokens: s*K*h, s split by tensor and context ranks."""
    for unit in blocks(decoder(SPARSE), tensor=2, context=2, expert=4):
        to_all = [each for piece in unit.pieces for each in (*piece.forward, *piece.backward) if each.op == "all_to_all"]
        assert len(to_all) == 4
        assert {each.nbytes for each in to_all} == {2 * STREAM / 4}


def test_keys_and_values_go_round_the_ring() -> None:
    """Forward passes K and V of a sequence once, backward K, V and their gradients: 2 and 4 times s * k * d (t splits heads)."""
    for unit in blocks(decoder(LLAMA), tensor=2, context=4):
        forward = sum(each.nbytes for piece in unit.pieces for each in piece.forward if each.axis == "context")
        backward = sum(each.nbytes for piece in unit.pieces for each in piece.backward if each.axis == "context")
        keys = 4.0 * TOKENS * 4 * 64 / 2
        assert (forward, backward) == (2 * keys, 4 * keys)


@pytest.mark.parametrize(("repeats", "heads"), [(False, 4), (True, 8)])
def test_torch_passes_the_keys_and_values_that_attention_reads(repeats: bool, heads: int) -> None:
    """Those of all query heads if they are repeated before; gradients in 4-byte elements, once to each rank and home again."""
    ring = Ring(sends=False, compiled=True, repeats_keys=repeats, keeps_keys=True)
    for unit in split(decoder(LLAMA), parallel(tensor=2, context=4), ring=ring):
        for piece in unit.pieces:
            if piece.layer.attention is None:
                continue
            own = 4.0 * TOKENS / 4 * heads * (64 + 64) / 2
            assert piece.layer.attention.in_steps
            assert piece.layer.attention.kv_heads == heads / 2
            assert [(each.op, each.nbytes, each.times) for each in piece.forward if each.axis == "context"] == [("all_gather", 4 * own, 1)]
            assert [(each.op, each.wide, each.times) for each in piece.backward if each.axis == "context"] == [("send_recv", own, 4)]


def test_tensor_ranks_that_split_every_expert_hold_all_copies_of_their_tokens() -> None:
    """Closed forms of a divided feed-forward (h x f, f x h) on K copies of s gathered tokens: whole at both ends, f/t wide inside."""
    hidden, inner, copies, ranks = 512, 256, 2.0 * STREAM, 4
    for context, unit in ((1, blocks(decoder(SPARSE), tensor=ranks)[0]), (2, blocks(decoder(SPARSE), tensor=ranks, context=2)[0])):
        part = {piece.layer.name.rpartition("experts.")[2]: piece.layer for piece in unit.pieces if piece.layer.share == "expert"}
        wide, narrow = copies / context, copies / context * inner / hidden / ranks
        assert {name: (layer.read, layer.write) for name, layer in part.items()} == {
            "dispatch": (STREAM / context, wide),
            "gate_up": (wide, 2 * narrow),
            "activation": (2 * narrow, narrow),
            "down": (narrow, wide),
            "combine": (wide, STREAM / context),
        }
        assert part["gate_up"].channels == (hidden, 2 * inner // ranks)
        assert part["down"].channels == (inner // ranks, hidden)
        assert part["gate_up"].saved == wide
        assert part["down"].saved == narrow


# --- shares ------------------------------------------------------------------------------------------------------------

LAYOUTS = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from((1, 2, 4)),
        "context": st.sampled_from((1, 2, 4)),
        "expert": st.sampled_from((1, 2, 8)),
        "sequence": st.sampled_from((True, None)),
    }
)


@given(st.sampled_from([GPT, LLAMA, SPARSE]), LAYOUTS)
def test_shares_sum_to_the_model(shape: dict[str, Any], fields: dict[str, Any]) -> None:
    """Products over all tensor and context ranks are the model's; so are the weights that one copy of the model holds.

    What is cast is a rank's part of what it reads, what is dropped of what it writes.
    """
    layers = decoder(shape)
    own: Parallel = parallel(**(fields | {"expert": fields["expert"] if "experts" in shape else 1}))
    ranks = own.tensor * own.context
    for layer in layers.layers:
        part = rank_share(layer, own)
        twice = layer.share == "replicated" or (layer.share == "sequence" and own.tensor == 1)
        copies = own.tensor if twice else 1
        assert part.forward * ranks == pytest.approx(layer.forward * copies)
        assert part.backward * ranks == pytest.approx(layer.backward * copies)
        split_by = own.expert if layer.share == "expert" and own.expert > 1 else own.tensor
        total = sum(layer.gradients) * (split_by if layer.share in ("sequence", "replicated") else 1)
        assert sum(part.gradients) * split_by == pytest.approx(total)
        assert part.casts == pytest.approx(layer.casts * part.read / layer.read)
        assert part.composed == pytest.approx(layer.composed * part.write / layer.write)
        assert part.dropped == pytest.approx(layer.dropped * part.write / layer.write)


@given(LAYOUTS)
def test_a_split_product_has_its_shape(fields: dict[str, Any]) -> None:
    """FLOP = 2 m k n of the shape that one rank computes."""
    own = parallel(**fields)
    products = [piece.layer for unit in split(decoder(SPARSE), own) for piece in unit.pieces if piece.layer.op == "gemm"]
    assert len(products) > 4 * BLOCKS
    for part in products:
        k, n = part.channels
        assert part.forward == pytest.approx(2.0 * part.tokens * k * n)


def test_equal_pieces_of_different_splits_are_one_object() -> None:
    """Times are cached by identity: a split of experts leaves attention as it is. Each piece is what a copy of the model has there."""
    sparse, other = decoder(SPARSE), decoder(SPARSE)
    splits = [parallel(tensor=tensor, expert=expert) for tensor in (1, 2) for expert in (1, 8)]
    met: dict[LayerPiece, set[int]] = {}
    for own in splits:
        pieces, apart = ([piece for unit in split(each, own) for piece in unit.pieces] for each in (sparse, other))
        assert pieces == apart and not {id(piece) for piece in pieces} & {id(piece) for piece in apart}
        for piece in pieces:
            met.setdefault(piece, set()).add(id(piece))
    assert all(len(identities) == 1 for identities in met.values())


def test_a_group_is_as_loaded_as_its_fullest_rank() -> None:
    even, loaded = (blocks(decoder(SPARSE), expert=4, expert_imbalance=load)[0] for load in (1.0, 1.5))
    for before, after in zip(even.pieces, loaded.pieces, strict=True):
        factor = 1.5 if before.layer.share == "expert" else 1.0
        assert after.layer.forward == pytest.approx(factor * before.layer.forward)


def test_keys_of_few_heads_are_held_by_several_ranks() -> None:
    """With fewer key heads than tensor ranks each rank has one: max(1, k / t)."""
    attention = next(piece.layer.attention for piece in blocks(decoder(LLAMA), tensor=8)[0].pieces if piece.layer.attention)
    assert (attention.heads, attention.kv_heads) == (1, 1)


# --- what cannot be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "fields", "message"),
    [
        (LLAMA, {"tensor": 3}, "training.parallel.tensor: 3 ranks do not divide 8 attention heads; use 2 or 4"),
        (LLAMA, {"expert": 2}, "training.parallel.expert: decoder has no experts; use expert: 1"),
        (SPARSE, {"expert": 3}, "training.parallel.expert: 3 ranks do not divide 8 experts; use 2 or 4"),
        (SPARSE, {"expert": 2, "tensor": 2, "sequence": False}, "write sequence: true, or expert: 1"),
    ],
)
def test_shares_that_cannot_be(shape: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        split(decoder(shape), parallel(**fields))


@pytest.mark.parametrize(
    ("fields", "multiple"),
    [
        ({"context": 3}, 6), ({"tensor": 8}, 8), ({"tensor": 8, "sequence": False}, 1), ({"tensor": 2, "context": 4}, 8),
        ({"tensor": 8, "context": 4}, 32), ({"tensor": 3, "context": 2}, 12), ({}, 1),
    ],
)  # fmt: skip
def test_tokens_are_a_multiple_of_what_ranks_divide(fields: dict[str, Any], multiple: int) -> None:
    """Oracle: the two conditions of Megatron-LM, tried one number after the other: halves of context ranks, then tensor ranks."""
    layout = parallel(**fields)
    context, tensor = layout.context, layout.tensor if layout.sequence_parallel else 1
    fits = [n for n in range(1, 200) if (context == 1 or n % (2 * context) == 0) and n % context == 0 and n // context % tensor == 0]
    assert fits[0] == multiple == token_multiple(layout)
    require_tokens(None, layout)
    require_tokens(multiple * 7, layout)
    if multiple > 1:
        with pytest.raises(
            SpecError, match=f"do not divide a sequence of {multiple * 7 + 1} tokens; use {multiple * 7} or {multiple * 8} "
        ):
            require_tokens(multiple * 7 + 1, layout)


def test_a_plan_and_attention_are_needed() -> None:
    plain = block_model({"stem": (10,), "body.0.conv": (10,), "body.1.conv": (10,)})
    with pytest.raises(SpecError, match="toy has no tensor plan, which says"):
        split(plain, parallel(tensor=2))
    with pytest.raises(SpecError, match="toy has no attention to split by sequence; use context: 1"):
        split(plain, parallel(context=2))
