"""Which units do stages hold? Oracles: written-down pipelines, conservation of units, nanotron's rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.split import split
from sim.parallel.stages import blocks_of, by_cost, stages, stages_of
from sim.spec.yaml import SpecError
from tests.parallel.layouts import block_model, parallel


def test_blocks_are_spread_over_chunks() -> None:
    kinds = ["first", *["block"] * 8, "last"]
    cut = stages(kinds, parallel(pipeline=2, virtual_stages=2))  # type: ignore[arg-type]
    assert cut == ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
    assert stages(kinds, parallel(pipeline=3))[0] == (0, 1, 2, 3)  # type: ignore[arg-type]
    assert stages(kinds, parallel(pipeline=2, layers_per_stage=(3, 5))) == ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9))  # type: ignore[arg-type]


def test_126_layers_on_16_stages() -> None:
    """Llama 3 405B: 7 blocks on the first and the last stage, 8 on all others (arXiv 2407.21783, section 3.3.2)."""
    kinds = ["first", *["block"] * 126, "last"]
    cut = stages(kinds, parallel(pipeline=16), 1, 1)  # type: ignore[arg-type]
    assert [sum(kinds[unit] == "block" for unit in chunk) for chunk in cut] == [7, *[8] * 14, 7]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
def test_every_unit_is_in_one_chunk(count: int, pipeline: int, virtual: int, first: int, last: int) -> None:
    kinds = ["first", *["block"] * count, "last"]
    own = parallel(pipeline=pipeline, virtual_stages=virtual if pipeline > 1 else 1)
    if own.pipeline * own.virtual_stages > count:
        with pytest.raises(SpecError, match=f"use at most {count} stages x virtual stages"):
            stages(kinds, own, first, last)  # type: ignore[arg-type]
        return
    cut = stages(kinds, own, first, last)  # type: ignore[arg-type]
    assert [unit for chunk in cut for unit in chunk] == list(range(count + 2))


def test_blocks_by_cost_pass_their_even_share() -> None:
    # nanotron's course notebook shows Llama 3 8B on eight stages: five blocks on the first one, the head on the last
    block = 4.0 * 4096 * 4096 + 3.0 * 14336 * 4096
    counts, head = by_cost(32, block, 128256.0 * 4096, 8)
    assert (counts[0], sum(counts), head) == (5, 32, 7)
    assert by_cost(8, 1.0, 0.0, 4)[0] == (2, 2, 2, 2)
    assert by_cost(6, 1.0, 2.0, 2) == ((4, 2), 1)  # the head counts as two blocks


def test_what_wraps_cut_a_block_into_stays_on_one_stage() -> None:
    """Stages hold the same layers as without wraps."""
    sizes = {f"layers.{number}.{part}": [8] for number in range(5) for part in ("attention", "up", "down")}
    table = block_model({"tokens": [4], **sizes, "head": [4]})
    own = parallel(pipeline=2, virtual_stages=2, shard="parameters", schedule="interleaved_1f1b")
    plain, cut = split(table, own), split(table, own.model_copy(update={"wrap": ("layers.*.attention", "layers.*.up")}))
    assert len(cut) > len(plain) and len(blocks_of(cut)) == len(plain)

    def held(units: object, chunks: object) -> list[list[str]]:
        return [[piece.layer.name for unit in chunk for piece in units[unit].pieces] for chunk in chunks]  # type: ignore[index,attr-defined]

    assert held(cut, stages_of(cut, own)) == held(plain, stages_of(plain, own))
