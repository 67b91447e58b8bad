"""Which units does each chunk of a pipeline hold? Blocks are distributed evenly, by cost, or as the layout specifies.

The beginning and the end of the model belong to the first and last chunk. If a layout cuts the model at modules, the chunks are the parts
between the cuts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise

from sim.parallel.split import Unit
from sim.parallel.units import UnitKind
from sim.spec.identity import IdentityKey
from sim.spec.parallel import MeshOptions, Parallel, even_blocks
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from sim.units import pluralized


def stages(
    kinds: Sequence[UnitKind], parallel: Parallel, first_less: int = 0, last_less: int = 0, cost: tuple[float, float] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the units of each chunk, in the order of the model; its beginning and end belong to the first and last chunk.

    Blocks are distributed evenly, with remainders in the early chunks, or by the *cost* of a block and of the head (`by_cost`). The first
    and last chunk hold *first_less* and *last_less* fewer blocks. Raise SpecError for more chunks than blocks, and if ``layers_per_stage``
    does not sum to the number of blocks.
    """
    chunks = parallel.pipeline * parallel.chunks
    numbers = [index for index, kind in enumerate(kinds) if kind == "block"]
    if parallel.layers_per_stage:
        counts = list(parallel.layers_per_stage)
    elif cost and chunks > 1:
        counts = list(by_cost(len(numbers), *cost, chunks)[0])
    else:
        counts = even_blocks(len(numbers), chunks, first_less, last_less)
    if len(counts) != chunks or sum(counts) != len(numbers):
        raise SpecError(
            f"training.parallel.layers_per_stage: {'+'.join(map(str, counts))} gives {len(counts)} chunks {sum(counts)} blocks; "
            f"{chunks} chunks and {len(numbers)} blocks need {'+'.join(map(str, even_blocks(len(numbers), chunks, 0, 0)))}"
        )
    cut: list[tuple[int, ...]] = []
    done = 0
    for count in counts:
        cut.append(tuple(numbers[done : done + count]))
        done += count
    first = tuple(index for index, kind in enumerate(kinds) if kind == "first")
    last = tuple(index for index, kind in enumerate(kinds) if kind == "last")
    cut[0] = (*first, *cut[0])
    cut[-1] = (*cut[-1], *last)
    return tuple(cut)


def stages_of(
    units: Sequence[Unit], parallel: Parallel, first_less: int = 0, last_less: int = 0, cost: tuple[float, float] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the *units* of each chunk as `stages` does, or according to cuts; units of a block that wraps divide stay together.

    Raise SpecError like `stages`, for a model with neither numbered blocks nor cuts, and if the number of cuts does not fit the chunks.
    """
    if parallel.cuts:
        _check_cuts(parallel)
        starts = [0, *(number for number, unit in enumerate(units) if unit.begins_stage), len(units)]
        return tuple(tuple(range(start, end)) for start, end in pairwise(starts))
    blocks = blocks_of(units)
    if parallel.pipeline > 1 and len(blocks) == 1:
        raise SpecError(
            f"training.parallel.pipeline: stages are cut between numbered blocks (layers.0, layers.1, ...), but {units[0].name} has "
            f"none; specify where they begin, such as training.parallel.cuts: [{', '.join(_even_cuts(units, parallel))}], or use "
            "pipeline: 1"
        )
    cut = stages([units[numbers[0]].kind for numbers in blocks], parallel, first_less, last_less, cost)
    return tuple(tuple(number for block in chunk for number in blocks[block]) for chunk in cut)


def _check_cuts(parallel: Parallel) -> None:
    count, expected = len(parallel.cuts), parallel.pipeline * parallel.chunks - 1
    if count != expected:
        chunks = f"{parallel.pipeline} stages" if parallel.chunks == 1 else f"{parallel.pipeline} stages x {parallel.chunks} chunks"
        raise SpecError(
            f"training.parallel.cuts: {'+'.join(parallel.cuts)} divides the model into {count + 1} parts, but there "
            f"{'is 1 stage' if expected == 0 else f'are {chunks}'}; name {expected or 'no'} modules instead of {count}, or change "
            "pipeline"
        )


def _even_cuts(units: Sequence[Unit], parallel: Parallel) -> list[str]:
    """Return the layers at which *units* can be cut into chunks with about equal work in matrix products.

    Raise SpecError for more chunks than layers.
    """
    layers, chunks = [piece.layer for unit in units for piece in unit.pieces], parallel.pipeline * parallel.chunks
    if chunks > len(layers):
        raise SpecError(
            f"training.parallel.pipeline: {chunks} chunks of layers, but the model has {pluralized(len(layers), 'layer')}; "
            f"use at most {len(layers)} stages x virtual stages"
        )
    done = list(accumulate(layer.forward for layer in layers))
    cuts: list[int] = []
    for chunk in range(1, chunks):
        even = bisect_left(done, done[-1] * chunk / chunks) + 1
        cuts.append(min(max(even, max(cuts, default=0) + 1), len(layers) - chunks + chunk))
    return [layers[number].name for number in cuts]


def blocks_of(units: Sequence[Unit]) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the *units* of each block and of both ends of the model; several units if wraps divide a block."""
    return _blocks(IdentityKey(id(units), units))


@lru_cache(maxsize=1024)
def _blocks(same: IdentityKey) -> tuple[tuple[int, ...], ...]:
    (units,) = same.held
    return tuple(tuple(run) for _, run in groupby(range(len(units)), key=lambda number: (units[number].kind, units[number].name)))


def stage_costs(shape: Transformer) -> tuple[float, float]:
    """Return the costs of a block and of the head for stages by cost (nanotron ``get_block_compute_costs``); the embedding costs 0."""
    block = 4.0 * shape.heads * shape.head_size * shape.hidden + 3.0 * shape.inner * shape.hidden
    return block, float(shape.vocab) * shape.hidden


def distribution_of(options: MeshOptions, shape: Transformer | None, virtual_stages: int) -> tuple[int, int, tuple[float, float] | None]:
    """Return how a framework distributes blocks over stages: the arguments *first_less*, *last_less* and *cost* of `stages`."""
    cost = stage_costs(shape) if shape and options.stages_by_cost and virtual_stages == 1 else None
    return options.first_stage_less, options.last_stage_less, cost


def by_cost(blocks: int, block: float, head: float, stages: int) -> tuple[tuple[int, ...], int]:
    """Return the number of blocks of each of *stages* and the stage of the head; a stage takes blocks until their cost reaches its share.

    *block* and *head* are the costs of a block and of the head (nanotron models/base.py). In nanotron's published code, a stage that
    reaches its share exactly takes one more block; here it does not.
    """
    share = (blocks * block + head) / stages
    counts, stage, passed = [0] * stages, 0, 0.0
    for _ in range(blocks):
        counts[stage] += 1
        passed += block
        stage += passed >= share * (stage + 1)
    return tuple(counts), stage
