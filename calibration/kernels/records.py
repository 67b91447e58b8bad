"""Which kernels have others timed? ``records/kernels.csv``, and the simulator's time for each row.

FP8 rows of ai-dynamo's tables include the scaling and the cast of the activations, so these are added to the product: a read of 16 bits and
a write of 8, in separate kernels. Their causal attention is that of inference, which also reads keys and values and writes them to a cache.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from calibration import RECORDS
from sim.cluster import kernels
from sim.cluster.kernels import ProductShape
from sim.spec.catalog import UnknownName
from sim.spec.fields import Fp8Recipe, Peak
from sim.spec.hardware import Gpu
from sim.spec.layer import Attention
from sim.spec.library import load_part

KERNEL_TIMES: Final = RECORDS / "kernels.csv"
PREFILL_SOURCE: Final = "ai-dynamo"
"""Prefix of the source of rows whose FP8 products include a cast, and whose causal attention writes keys and values to a cache."""
CAST_KERNELS: Final = {"fp8": (4, 6.0), "fp8_block128": (1, 3.0), "nvfp4": (5, 4.5625)}
"""Kernels that these rows launch in addition to the product, and the bytes that they move per element. With one scale per tensor, and in
NVFP4, they determine the maximum first. Both are estimated from the rows: estimate (least error among 0 to 5 kernels and 3 to 16 bytes)."""
PEAKS: Final[dict[str, Peak]] = {"tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block128": "fp8", "nvfp4": "nvfp4"}
"""Units by precision of the operands."""
RECIPES: Final[dict[str, Fp8Recipe]] = {"fp8": "tensorwise", "fp8_block128": "blockwise"}
"""FP8 scaling recipe by precision of the operands."""


class ExpertLayer(NamedTuple):
    """A layer of experts: gated feed-forward networks, *experts_per_token* of them for each token, spread evenly over ranks."""

    tokens: int
    hidden: int
    ffn: int
    experts: int
    experts_per_token: int
    tensor: int
    expert: int


class KernelRow(NamedTuple):
    """One measured kernel."""

    gpu: str
    op: str
    kernel: str
    precision: str
    backward: bool
    product: ProductShape | None
    attention: Attention | None
    experts: ExpertLayer | None
    batch: int
    nbytes: float
    time: float
    source: str

    @property
    def peak(self) -> Peak:
        """Return the units that it ran on."""
        return PEAKS[self.precision]

    @property
    def is_large(self) -> bool:
        """Return whether its size is typical of training: products of 40 GFLOP, 64 rows per expert, 2048 keys, passes of 32 MB or more."""
        if self.product:
            return self.product.flop >= 4e10
        if self.experts:
            return self.experts.tokens * self.experts.experts_per_token >= 64 * self.experts.experts
        return self.attention.keys >= 2048 if self.attention else self.nbytes >= 32e6


def read_kernels(path: Path = KERNEL_TIMES) -> list[KernelRow]:
    """Return the measured kernels of *path*."""
    with path.open(encoding="utf-8", newline="") as lines:
        return [_row(cells) for cells in csv.DictReader(line for line in lines if not line.startswith("#"))]


def _row(cells: dict[str, str]) -> KernelRow:
    def number(name: str) -> int:
        return int(cells[name] or 0)

    product = ProductShape(number("m"), number("n"), number("k"), number("groups") or 1) if cells["op"] == "gemm" else None
    shape = None
    if cells["op"] == "attention":
        shape = Attention(
            heads=number("heads"),
            kv_heads=number("kv_heads") or number("heads"),
            head_dim=number("head_dim"),
            value_dim=number("value_dim") or None,
            queries=number("queries"),
            keys=number("keys") or number("queries"),
            causal=cells["causal"] == "yes",
            window=number("window"),
        )
    experts = None
    if cells["op"] == "experts":
        experts = ExpertLayer(*(number(name) for name in ("m", "k", "n", "groups", "chosen", "tensor", "expert")))
    return KernelRow(
        cells["gpu"],
        cells["op"],
        cells["kernel"],
        cells["precision"],
        cells["direction"] == "backward",
        product,
        shape,
        experts,
        number("batch") or 1,
        float(number("bytes")),
        float(cells["time_us"]) * 1e-6,
        cells["source"],
    )


@lru_cache(maxsize=64)
def catalog_gpu(name: str) -> Gpu | None:
    """Return the GPU *name* of the catalog; None if there is none."""
    try:
        return load_part(Gpu, name.lower())
    except UnknownName:
        return None


def predicted_time(row: KernelRow, gpu: Gpu) -> float:
    """Return the predicted seconds of *row* on *gpu* in a short burst, including the launch floor."""
    if row.product:
        time = kernels.product_time(gpu, row.peak, row.product, burst=True, recipe=RECIPES.get(row.precision))
        if row.source.startswith(PREFILL_SOURCE) and row.precision in CAST_KERNELS:
            launches, nbytes = CAST_KERNELS[row.precision]
            time += launches * gpu.kernel_time + kernels.elementwise_time(nbytes * row.product.m * row.product.k, gpu)
    elif row.attention:
        time = kernels.attention_time(gpu, row.peak, row.attention, row.batch, row.backward, row.kernel, burst=True)
        if row.source.startswith(PREFILL_SOURCE) and row.attention.causal:
            cached = 8.0 * row.batch * row.attention.keys * row.attention.kv_heads * row.attention.head_dim
            time += kernels.elementwise_time(cached, gpu) + gpu.kernel_time
    elif row.experts:
        time = experts_time(row.experts, gpu, row.peak)
    else:
        time = kernels.elementwise_time(row.nbytes, gpu)
    return time + gpu.kernel_time


def experts_time(layer: ExpertLayer, gpu: Gpu, peak: Peak) -> float:
    """Return the seconds of a layer of experts in a burst: two grouped products, the gate, and moving tokens to experts and back."""
    rows = layer.tokens * layer.experts_per_token / layer.expert
    active = max(1, round(min(layer.experts / layer.expert, rows)))
    ffn = layer.ffn // layer.tensor
    both = ((rows / active, 2 * ffn, layer.hidden), (rows / active, layer.hidden, ffn))
    products = sum(kernels.product_time(gpu, peak, ProductShape(*shape, active), burst=True) for shape in both)
    passes = kernels.elementwise_time(2.0 * 3 * ffn * rows, gpu) + kernels.elementwise_time(2.0 * layer.hidden * (rows + layer.tokens), gpu)
    return products + passes + 4 * gpu.kernel_time


def predictable_rows(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """Return the rows whose GPU has a description of kernels for the units that they ran on."""
    return [row for row in rows if (gpu := catalog_gpu(row.gpu)) is not None and kernels.kernels_of(gpu, row.peak)]
