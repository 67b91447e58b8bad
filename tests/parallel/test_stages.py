"""Which units do stages hold? Oracles: written-down pipelines, conservation of units, nanotron's rule."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.split import split
from sim.parallel.stages import blocks_of, by_cost, stages, stages_of
from sim.parallel.units import cut_layers
from sim.spec.layer import Layer
from sim.spec.yaml import SpecError
from tests.parallel.layouts import block_model, model, parallel


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
    interleaved = parallel(pipeline=16, virtual_stages=8)
    cut = stages(kinds, interleaved, 1, 1)  # type: ignore[arg-type]
    assert (cut[0], cut[1], cut[-2], cut[-1]) == ((0,), (1,), (126,), (127,))  # the embedding and the head are chunks of their own
    with pytest.raises(SpecError, match="or one block less in the first and the last chunk: "):
        stages(kinds, interleaved)  # type: ignore[arg-type]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
def test_every_unit_is_in_one_chunk(count: int, pipeline: int, virtual: int, first: int, last: int) -> None:
    kinds = ["first", *["block"] * count, "last"]
    own = parallel(pipeline=pipeline, virtual_stages=virtual if pipeline > 1 else 1)
    chunks = own.pipeline * own.virtual_stages
    try:
        cut = stages(kinds, own, first, last)  # type: ignore[arg-type]
    except SpecError as error:
        assert f"use at most {count} stages x virtual stages" in str(error)
        assert chunks > count
        assert max(first, last) > 1 or chunks > count + first + last
        return
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


NAMES = ("stem.conv", "stem.norm", "layers.0.a", "layers.0.b", "pool", "layers.1.a", "layers.1.b", "head.norm", "head.out")


@given(st.sets(st.integers(1, len(NAMES) - 1), min_size=1), st.booleans())
def test_stages_are_what_is_between_the_cuts(starts: set[int], numbered: bool) -> None:
    """Every layer is on one stage, in the order of the model, and each stage but the first begins with its module."""
    names = NAMES if numbered else [name.replace(".0", "").replace(".1", "").replace(".", "_") for name in NAMES]
    names = [f"{number}_{name}" if not numbered else name for number, name in enumerate(names)]
    table = block_model({name: [4 + number] for number, name in enumerate(names)})
    own = parallel(pipeline=len(starts) + 1, cuts=[names[start] for start in sorted(starts)])
    held = split(table, own)
    chunks = stages_of(held, own)
    layers = [[piece.layer for unit in chunk for piece in held[unit].pieces] for chunk in chunks]
    assert [len(each) for each in layers] == [end - start for start, end in pairwise([0, *sorted(starts), len(names)])]
    assert list(chain.from_iterable(layers)) == list(table.layers)


def test_a_module_begins_with_the_first_of_its_layers() -> None:
    table = block_model({name: [4] for name in NAMES})
    assert cut_layers(table, ["layers.0", "pool", "head"]) == (2, 4, 7)


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (("layers.2",), r"toy has no module layers\.2; did you mean layers\.1, layers\.0 or layers\.1\.b"),
        (("xyz",), r"toy has no module xyz; it begins with stem\.conv, stem\.norm, layers\.0\.a"),
        (("stem",), "stem is the first module of the model; write modules in the order of the model, without the first"),
        (("pool", "layers.0"), "layers.0 does not come after pool"),
        (("pool", "pool"), "pool does not come after pool"),
    ],
)
def test_stages_that_begin_nowhere_are_refused(cuts: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        cut_layers(block_model({name: [4] for name in NAMES}), cuts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"pipeline": 4},
            r"pool\+head divides the model into 3 parts, but there are 4 stages; name 3 modules instead of 2, or change pipeline",
        ),
        ({"pipeline": 2, "virtual_stages": 2}, "there are 2 stages x 2 chunks; name 3 modules instead of 2"),
        ({}, "there is 1 stage; name no modules instead of 2"),
    ],
)
def test_there_are_as_many_cuts_as_the_pipeline_takes(fields: dict[str, object], message: str) -> None:
    table, own = block_model({name: [4] for name in NAMES}), parallel(**fields, cuts="pool+head")
    with pytest.raises(SpecError, match=message):
        stages_of(split(table, own), own)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (3, r"such as training\.parallel\.cuts: \[conv, head\]"),
        (4, "4 chunks of layers, but the model has 3 layers; use at most 3 stages x virtual stages"),
    ],
)
def test_a_model_without_blocks_has_at_most_as_many_stages_as_layers(pipeline: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        own = parallel(pipeline=pipeline)
        stages_of(split(block_model({"stem": [4], "conv": [4], "head": [4]}), own), own)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cuts": ["a"], "layers_per_stage": [1, 1]}, "cuts and layers_per_stage both set where stages begin"),
        ({"cuts": 7}, "7 names no modules; write the modules that stages begin with"),
    ],
)
def test_what_says_no_cuts_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parallel(pipeline=2, **fields)


def test_no_stage_begins_between_layers_that_ranks_split() -> None:
    """Where the first product's columns are the second one's rows, each rank has its part of what is alive."""
    table = model(
        Layer.model_validate({"name": name, "op": "gemm", "gradients": [8], "share": name, "read": "8 B", "write": "8 B"})
        for name in ("replicated", "colwise", "rowwise", "sequence")
    )
    for cut, sizes in (("colwise", [1, 3]), ("sequence", [3, 1])):
        assert [len(unit.pieces) for unit in split(table, parallel(pipeline=2, tensor=2, cuts=[cut]))] == sizes
    with pytest.raises(SpecError, match="rowwise is between layers that tensor ranks split; cut in front of a block"):
        split(table, parallel(pipeline=2, tensor=2, cuts=["rowwise"]))
