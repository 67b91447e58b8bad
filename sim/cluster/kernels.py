"""How long does a kernel of known shape take? Pure functions for matrix products, fused attention and element-wise passes.

A product is divided into tiles, one thread block each, and the blocks run on the multiprocessors in waves. A block takes
``(k + fill) * 2 * tile_m * tile_n`` FLOP at the multiprocessor's rate. Small tiles do not reach this rate, because each element that they
load serves fewer products. Meanwhile the multiprocessors that have a block read memory. The library chooses the fastest tile and split
along k (as cuBLAS and CUTLASS do; NVIDIA, "Matrix Multiplication Background User's Guide"). Fused attention walks over the keys that a
block of queries sees, with products and exponentials in parallel (Dao 2023; Shah and others 2024).
The constants come from the GPU's ``kernels`` block; a GPU without one is timed by its efficiency curves (`sim.cluster.gpu`).
Limits: one kernel at a time; rows are spread evenly over experts; the cost of operand layouts is part of the shares. The minimum time of a
kernel, ``Gpu.kernel_time``, is not included.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple

from sim.spec.fields import Fp8Recipe, Peak
from sim.spec.hardware import Gpu
from sim.spec.kernels import AttentionRate, Fp8Rates, Kernels, ProductRole
from sim.spec.layer import Attention

TILES: Final = tuple((m, n) for m in (16, 32, 64, 128, 256) for n in (32, 64, 128, 256) if m * n >= 1024)
"""Rows and columns of the tiles that libraries choose from."""
SPLITS: Final = (1, 2, 4, 8, 16)
"""Numbers of parts into which libraries split a product along k."""
STEP: Final = 128
"""Bytes along k per step of a block's main loop."""
BLOCK: Final = 128
"""Queries per thread block of fused attention, and keys per step of its loop."""
ELEMENT: Final[dict[Peak, float]] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "nvfp4": 0.5625}
"""Bytes of an operand's element; NVFP4 has an 8-bit scale per 16 elements."""
WIDE_HEAD: Final = 128
"""Size of a value head above which ``wide_backward`` applies; queries and keys may be larger (latent attention: 192)."""
_USUAL_RATES: Final = Fp8Rates()
BACKWARD_PRODUCTS: Final = 2.5
"""Products of attention's backward, relative to forward: scores again, and the gradients of values, scores, queries and keys."""


class Speeds(NamedTuple):
    """One GPU's parameters for products: number and FLOP/s of multiprocessors, bytes/s of memory, and the constants of `Kernels`."""

    units: int
    rate: float
    memory: float
    edge: float
    fill: float
    wave_loss: float
    sharpness: float
    feeders: float
    split_traffic: float
    split_time: float
    element: float
    result: float


class ProductShape(NamedTuple):
    """*groups* products of (m, k) with (k, n)."""

    m: float
    n: int
    k: float
    groups: int = 1

    @property
    def flop(self) -> float:
        """Return the floating-point operations."""
        return 2.0 * self.m * self.n * self.k * self.groups


def kernels_of(gpu: Gpu, peak: Peak) -> Kernels | None:
    """Return the description of the GPU's kernels if it has one with a share of *peak*; else None."""
    return gpu.kernels if gpu.kernels is not None and peak in gpu.kernels.product_share else None


def product_time(
    gpu: Gpu, peak: Peak, shape: ProductShape, *, burst: bool = False, recipe: Fp8Recipe | None = None, role: ProductRole = "inputs"
) -> float:
    """Return the seconds of one launch of the products of *shape*.

    *burst*: before the power limit lowers the clock. *recipe*: how 8-bit operands are scaled; None: per tensor. *role*: what the products
    compute, which FP8's rate depends on. Raise ValueError if the GPU's kernels are not described for *peak*.
    """
    kernels = kernels_of(gpu, peak)
    if kernels is None:
        raise ValueError(f"{gpu.name} has no kernels block with a product_share of {peak}")
    return _product_time(_speeds(gpu, kernels, peak, burst, recipe, role), shape) if min(shape) > 0 else 0.0


def _speeds(gpu: Gpu, kernels: Kernels, peak: Peak, burst: bool, recipe: Fp8Recipe | None, role: ProductRole) -> Speeds:
    rate = gpu.peak[peak] * kernels.product_share[peak] * (1.0 if burst else kernels.sustained)
    if recipe is not None and peak == "fp8":
        rate *= getattr(kernels.fp8_rates.get(recipe, _USUAL_RATES), role)
    return Speeds(
        kernels.sm_count,
        rate / kernels.sm_count,
        gpu.memory_bandwidth * kernels.memory_share,
        kernels.tile_edge,
        kernels.pipeline_fill,
        kernels.wave_loss,
        kernels.sharpness,
        kernels.feeders,
        kernels.split_traffic,
        kernels.split_time,
        ELEMENT[peak],
        max(2.0, ELEMENT[peak]),
    )


@lru_cache(maxsize=65536)
def _product_time(on: Speeds, shape: ProductShape) -> float:
    return min(_candidate(on, shape, tile, split) for tile in TILES for split in _splits(on, shape, tile))


def _splits(on: Speeds, shape: ProductShape, tile: tuple[int, int]) -> Iterator[int]:
    """Yield the splits along k worth trying: more than 1 only if there are fewer tiles than multiprocessors."""
    tiles = _tiles(shape, tile)
    yield from (split for split in SPLITS if split == 1 or (tiles * split < 4 * on.units and tiles < on.units))


def _tiles(shape: ProductShape, tile: tuple[int, int]) -> int:
    return ceil(shape.m / tile[0]) * ceil(shape.n / tile[1]) * shape.groups


def _candidate(on: Speeds, shape: ProductShape, tile: tuple[int, int], split: int) -> float:
    """Return the seconds with one choice of *tile* and *split*."""
    blocks = _tiles(shape, tile) * split
    step = STEP / on.element
    depth = ceil(shape.k / split / step) * step + on.fill
    reuse = 1.0 / (1.0 + on.edge * (1.0 / tile[0] + 1.0 / tile[1]))
    compute = wave_count(blocks / on.units, on.wave_loss) * depth * 2.0 * tile[0] * tile[1] / (on.rate * reuse)
    results = shape.m * shape.n * shape.groups
    moved = shape.groups * shape.k * (shape.m + shape.n) * on.element + results * on.result
    if split > 1:
        moved += on.split_traffic * 8.0 * results * split
    memory = moved / (on.memory * min(1.0, blocks / (on.units * on.feeders)))
    return overlap_time(compute, memory, on.sharpness) + (on.split_time if split > 1 else 0.0)


def wave_count(filled: float, loss: float) -> float:
    """Return the number of waves for *filled* blocks per multiprocessor; the share *loss* of the last wave's idle time is lost."""
    return 1.0 if filled <= 1.0 else filled + loss * (ceil(filled) - filled)


def overlap_time(one: float, other: float, sharpness: float) -> float:
    """Return the seconds of two overlapping activities: the longer one at high *sharpness*, their sum at 1."""
    longer = max(one, other)
    return longer * (1.0 + (min(one, other) / longer) ** sharpness) ** (1.0 / sharpness) if longer > 0 else 0.0


def attention_rate(gpu: Gpu, peak: Peak, kernel: str = "") -> AttentionRate | None:
    """Return the rates of the GPU's fused attention *kernel*, or of its first one if it lacks that; None if none is described.

    32 bits only have the memory-efficient kernel.
    """
    rates = [rate for rate in (gpu.kernels.attention if gpu.kernels else ()) if (rate.kernel == "efficient") is (ELEMENT[peak] == 4)]
    return next((rate for rate in rates if rate.kernel == kernel), rates[0] if rates else None)


def attention_time(
    gpu: Gpu, peak: Peak, shape: Attention, batch: float, backward: bool = False, kernel: str = "", burst: bool = False
) -> float:
    """Return the seconds of one fused attention call over *batch* samples, or of its *backward*, with the given *kernel*.

    Raise ValueError if the GPU's kernels are not described for *peak*, or have no attention.
    """
    if shape.in_steps:
        return sum(count * attention_time(gpu, peak, step, batch, backward, kernel, burst) for step, count in ring_steps(shape))
    batch *= shape.documents
    kernels, rate = kernels_of(gpu, peak), attention_rate(gpu, peak, kernel)
    if kernels is None or rate is None:
        raise ValueError(f"{gpu.name} has no kernels block with attention and a product_share of {peak}")
    share, fill = (rate.backward, rate.backward_fill) if backward else (rate.forward, rate.fill)
    share *= rate.wide_backward if backward and (shape.value_dim or shape.head_dim) > WIDE_HEAD else 1.0
    width = sum(ceil(size / rate.head_step) * rate.head_step for size in (shape.head_dim, shape.value_dim or shape.head_dim))
    blocks = ceil(shape.queries / BLOCK) * shape.heads * batch
    keys = visible_keys(shape)
    speed = gpu.peak[peak] * kernels.product_share[peak] * share * (1.0 if burst else kernels.sustained)
    products = (BACKWARD_PRODUCTS if backward else 1.0) * 2.0 * BLOCK * width
    exponentials = BLOCK * (rate.backward_passes if backward else rate.exponential_passes)
    of_key = overlap_time(products / speed, exponentials / kernels.exponentials, rate.sharpness)
    work = wave_count(blocks / kernels.sm_count, kernels.wave_loss) * kernels.sm_count * (keys + fill) * of_key
    reach = _reach(shape, ceil(shape.keys / BLOCK) * BLOCK)
    work += (rate.backward_tail if backward else rate.tail) * max(0.0, reach - keys) * of_key * kernels.sm_count
    longest = (reach + fill) * of_key * kernels.sm_count
    memory = _attention_bytes(shape, batch, ELEMENT[peak], backward) / (gpu.memory_bandwidth * kernels.memory_share)
    sinks = rate.sinks * shape.queries * shape.heads * batch / kernels.sm_count if backward and shape.sinks else 0.0
    return overlap_time(max(work, longest), memory, kernels.sharpness) + sinks


def ring_steps(shape: Attention) -> tuple[tuple[Attention, int], ...]:
    """Return the calls of the last context rank around torch's ring, and their numbers: its own keys, then those of each other rank.

    Under a causal mask, only the first half of other ranks' keys is visible (``_templated_ring_attention``). Limit: torch's ring has no
    windows; with one, a single call sees the keys in it.
    """
    own = shape.model_copy(update={"keys": max(1, shape.keys // shape.shares), "shares": 1, "in_steps": False})
    if shape.window:
        return ((shape.model_copy(update={"in_steps": False}), 1),)
    others = own.model_copy(update={"keys": max(1, own.keys // 2), "causal": False}) if shape.causal else own
    return ((own, 1), (others, shape.shares - 1))


def visible_keys(shape: Attention) -> float:
    """Return the mean number of keys that a block of queries walks over: those visible under its mask, in whole blocks.

    Ranks of a context group take pieces from both ends of the sequence, so each rank sees the mean over the sequence (Transformer
    Engine, attention/dot_product_attention/context_parallel.py; torch.distributed.tensor.experimental, ``context_parallel``).
    """
    queries = shape.queries * shape.shares
    blocks = ceil(queries / BLOCK)
    every = ceil(shape.keys / BLOCK) * BLOCK
    if shape.chunked:
        return _visible_in_chunks(shape)
    if not shape.causal:
        reach = (2 * ceil(shape.window / BLOCK) + 1) * BLOCK if shape.window else every
        return float(min(every, reach))
    offset = max(0, shape.keys - queries)  # queries are the last of the keys
    reach = _reach(shape, every)
    first = offset + BLOCK
    ramp = min(blocks, max(0, (reach - first) // BLOCK + 1))
    return (ramp * (first + (ramp - 1) * BLOCK / 2.0) + (blocks - ramp) * reach) / blocks


def _visible_in_chunks(shape: Attention) -> float:
    """Return `visible_keys` of causal attention inside chunks, each of which starts with a block of its own, as packed documents do."""
    chunks, rest = divmod(shape.keys, shape.window)
    blocks, last = ceil(shape.window / BLOCK), ceil(rest / BLOCK)
    return BLOCK * (chunks * blocks * (blocks + 1) + last * (last + 1)) / (2.0 * (chunks * blocks + last))


def _reach(shape: Attention, every: int) -> int:
    """Return the largest number of keys that a block of queries walks over; *every* is the number of all keys."""
    if shape.chunked:
        return min(every, ceil(shape.window / BLOCK) * BLOCK)
    return min(every, (ceil(shape.window / BLOCK) + 1) * BLOCK) if shape.window else every


def _attention_bytes(shape: Attention, batch: float, element: float, backward: bool) -> float:
    """Return the bytes of queries, keys, values and result; backward reads all and the result's gradient, and writes three gradients."""
    value_dim = shape.value_dim or shape.head_dim
    queries = shape.queries * shape.heads * (shape.head_dim + value_dim)
    keys = shape.keys * shape.kv_heads * (shape.head_dim + value_dim)
    return batch * element * (queries + keys) * (2.5 if backward else 1.0)


def indexed_time(elements: float, gpu: Gpu) -> float:
    """Return the seconds of element-wise kernels that compute the address of each of *elements* elements.

    Raise ValueError if the GPU's kernels are not described.
    """
    if gpu.kernels is None:
        raise ValueError(f"{gpu.name} has no kernels block")
    return elements / (gpu.kernels.sm_count * gpu.kernels.indexed_elements)


def elementwise_time(nbytes: float, gpu: Gpu) -> float:
    """Return the seconds of an element-wise kernel that moves *nbytes*: large ones reach ``pass_share`` of the bandwidth, small ones less.

    Raise ValueError if the GPU's kernels are not described.
    """
    if gpu.kernels is None:
        raise ValueError(f"{gpu.name} has no kernels block")
    return (nbytes + gpu.kernels.pass_half_size) / (gpu.memory_bandwidth * gpu.kernels.pass_share) if nbytes > 0 else 0.0
