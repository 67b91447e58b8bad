"""Oracle: bytes counted by hand from the kernels that Transformer Engine and torchao launch for each recipe, and who runs which.

Counted for an element in 16 bits that both products of a pass want (weights train): ``nvte_compute_amax`` reads 2, a cast reads 2 and
writes 1 a copy; blocks write a scale beside each copy, of 4 bytes for 128 elements or 1 for 32 (quantizer.cpp, ``get_scale_shape``).
"""

from __future__ import annotations

from typing import get_args

import pytest

from sim.cluster.gpu import layer_work
from sim.spec.fields import Fp8Recipe
from sim.spec.fp8_recipe import recipes_on, usual_recipe
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.sections import with_fields
from sim.spec.stack import Stack

TOKENS, K, N, BATCH = 4096, 4096, 8192, 2
SCALES = 4 / 128, 1 / 32
"""Bytes of scales beside an element, in blocks of 128 and 32."""

HOPPER: dict[Fp8Recipe, float] = {
    "delayed": 2 + 1 + 1,  # cast_transpose
    "tensorwise": 2 + 2 + 1 + 1,  # compute_amax, cast_transpose
    "blockwise": 2 + 2 * (1 + SCALES[0]),  # quantize_transpose_vector_blockwise
}
BLACKWELL: dict[Fp8Recipe, float] = {
    "delayed": 2 + 1,  # cast alone: products take either layout
    "tensorwise": 2 + 2 + 1,
    "mxfp8": 2 + 2 * (1 + SCALES[1]),  # cast_mxfp8_2D: rows and columns from one read
}


def _gpu(machine: str) -> Gpu:
    return load_hardware(machine).spec.groups[0].node.gpu


def _stack(name: str, recipe: Fp8Recipe | None) -> Stack:
    settings = [f"training.fp8_recipe={recipe}"] if recipe else []
    return load_workload("llama-3.1-8b", [f"training.stack={name}", "training.precision=fp8", *settings]).spec.layer_stack


def _product(name: str = "block.attention.output", **weights: object) -> Layer:
    shape = {"name": name, "op": "gemm", "tokens": TOKENS, "channels": (K, N), "forward": f"{2 * TOKENS * K * N} FLOP"}
    return Layer.model_validate(shape | (weights or {"shares": "tokens"}))


def _forward(gpu: Gpu, stack: Stack, layer: Layer) -> float:
    """Return the bytes of an activation's element that a forward moves beside the product."""
    return layer_work(layer, gpu, "fp8", stack, BATCH).converted_bytes / (BATCH * TOKENS * K)


@pytest.mark.parametrize(("machine", "counted"), [("hgx-h100", HOPPER), ("gb300-nvl72", BLACKWELL)])
def test_casts_are_the_bytes_of_the_kernels_of_each_recipe(machine: str, counted: dict[Fp8Recipe, float]) -> None:
    gpu = _gpu(machine)
    for recipe, each in counted.items():
        stack = _stack("megatron-core", recipe)
        assert _forward(gpu, stack, _product()) == pytest.approx(each)
        backward = layer_work(_product(), gpu, "fp8", stack, BATCH, backward=True).converted_bytes
        assert backward == pytest.approx(each * BATCH * TOKENS * N)


@pytest.mark.parametrize(
    ("machine", "recipe", "each"),
    [
        ("hgx-h100", "delayed", -1 + 1 + 1),  # the norm writes 1 in place of 2; nvte_transpose reads and writes 1
        ("gb300-nvl72", "delayed", -1),
        ("hgx-h100", "tensorwise", 2 + 1 + 1),  # the norm finds the largest magnitude (FUSED_NORM_AMAX_FP8)
        ("hgx-h100", "blockwise", HOPPER["blockwise"]),  # the norm knows nothing of blocks
        ("gb300-nvl72", "mxfp8", BLACKWELL["mxfp8"]),
    ],
)
def test_what_a_fused_norm_before_a_product_spares(machine: str, recipe: Fp8Recipe, each: float) -> None:
    stack = _stack("megatron-core", recipe)
    for name in ("attention.qkv", "feed.gate_up"):
        assert _forward(_gpu(machine), stack, _product(f"block.{name}")) == pytest.approx(each)


def test_frozen_weights_spare_the_copy_by_columns() -> None:
    frozen = _product(frozen=[K * N])
    cases: tuple[tuple[str, Fp8Recipe, float, float], ...] = (
        ("hgx-h100", "delayed", 2 + 1, 2 + 1 + 1),
        ("gb300-nvl72", "mxfp8", 2 + 1 + SCALES[1], 2 + 2 * (1 + SCALES[1])),
    )
    for machine, recipe, each, weight in cases:  # weights themselves are wanted both ways, for gradients of inputs
        moved = layer_work(frozen, _gpu(machine), "fp8", _stack("megatron-core", recipe), BATCH).converted_bytes
        assert moved == pytest.approx(each * BATCH * TOKENS * K + weight * K * N)


@pytest.mark.parametrize(
    ("stack", "machine", "recipe", "each"),
    [
        ("megatron-core", "hgx-h100", "delayed", 2 + 1 + 1),  # bfloat16 weights
        ("megatron-core", "hgx-h100", "tensorwise", 4 + 1 + 1),
        ("megatron-core", "hgx-h100", "blockwise", 2 + 2 * (1 + 4 / 128**2)),
        ("megatron-core", "gb300-nvl72", "delayed", 2 + 1),
        ("megatron-core", "gb300-nvl72", "mxfp8", 2 + 2 * (1 + SCALES[1])),
        ("nemo", "hgx-h100", "delayed", 1 + 1),  # the optimizer writes 8 bits, which are transposed
        ("nemo", "gb300-nvl72", "tensorwise", 0),
        ("nemo", "gb300-nvl72", "mxfp8", 2 + 2 * (1 + SCALES[1])),  # gathered in 16 bits (reuse_grad_buf_for_mxfp8_param_ag)
        ("nemo", "hgx-h100", "blockwise", 2 + 2 * (1 + 4 / 128**2)),  # Megatron-Bridge: fp8_param_gather is off
        ("torch-2.x-ddp", "hgx-h100", "delayed", 4 + 1 + 1),  # weights in 32 bits
    ],
)
def test_weights_are_cast_from_the_type_they_are_kept_in(stack: str, machine: str, recipe: Fp8Recipe, each: float) -> None:
    own, gpu = _stack(stack, recipe), _gpu(machine)
    with_weights, without = (
        layer_work(layer, gpu, "fp8", own, BATCH).converted_bytes for layer in (_product(gradients=[K * N]), _product())
    )
    assert with_weights - without == pytest.approx(each * K * N)


def test_torchao_casts_inputs_that_it_keeps_in_16_bits_again_in_backward() -> None:
    """torchao/float8/float8_linear.py saves ``input_hp``; rows of it by a forward, columns by its backward, of gradients both.

    Compiled operators find the maximum of what they write (pytorch/pytorch #111122), and backward knows a forward's; attention's result
    is read for it. Without a compiler each maximum takes a read.
    """
    gpu, stack = _gpu("hgx-h100"), _stack("torchtitan-2.x", "tensorwise")
    assert _forward(gpu, stack, _product()) == pytest.approx(2 + 2 + 1)
    assert _forward(gpu, stack, _product("block.feed.down")) == pytest.approx(2 + 1)
    backward = layer_work(_product(), gpu, "fp8", stack, BATCH, backward=True).converted_bytes
    assert backward == pytest.approx(BATCH * TOKENS * ((2 + 1 + 1) * N + (2 + 1) * K))
    eager = with_fields(stack, fused_maxima=False)
    backward = layer_work(_product(), gpu, "fp8", eager, BATCH, backward=True).converted_bytes
    assert backward == pytest.approx(BATCH * TOKENS * ((2 + 2 + 1 + 1) * N + (2 + 2 + 1) * K))
    rowwise = layer_work(_product(), gpu, "fp8", _stack("torchtitan-2.x", "rowwise"), BATCH, backward=True).converted_bytes
    assert rowwise == pytest.approx(BATCH * TOKENS * ((2 + 1 + 2 + 2 + 1) * N + (2 + 2 + 1) * K))  # a row in registers; columns read twice


def test_recipes_are_those_that_a_gpu_runs_and_transformer_engine_takes_there() -> None:
    """pytorch/quantization.py: ``get_default_fp8_recipe``, ``check_fp8_block_scaling_support``, ``check_mxfp8_support``."""
    usual = {"h100-sxm5-80gb": "delayed", "l40s": "delayed", "b200-sxm-180gb": "mxfp8", "gb300-288gb": "mxfp8", "rtx5090": "tensorwise"}
    for name, recipe in usual.items():
        assert usual_recipe(load_part(Gpu, name)) == recipe
    runs = {
        "l40s": {"delayed", "tensorwise"},
        "h100-sxm5-80gb": set(get_args(Fp8Recipe)) - {"mxfp8"},
        "b200-sxm-180gb": set(get_args(Fp8Recipe)),
    }
    for name, recipes in runs.items():
        assert set(recipes_on(load_part(Gpu, name))) == recipes


def test_blocks_of_128_are_slower_on_hopper_alone() -> None:
    """Their partial sums are scaled outside the tensor cores there; Blackwell's take MX blocks themselves."""
    layer = _product(gradients=[K * N])
    for machine, slower in (("hgx-h100", True), ("gb300-nvl72", False)):
        gpu = _gpu(machine)
        times = [layer_work(layer, gpu, "fp8", _stack("megatron-core", recipe), BATCH).products for recipe in ("tensorwise", "blockwise")]
        assert (times[1] > times[0]) is slower
