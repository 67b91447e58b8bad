"""Oracles: one wave worked by hand, roofline bounds, keys under a mask counted one by one, and measured kernels of five GPUs."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.kernels import fit, records, report
from sim.cluster import kernels
from sim.cluster.gpu import layer_time, layer_work
from sim.cluster.kernels import ProductShape
from sim.spec.decoder import decoder_layers
from sim.spec.hardware import Gpu
from sim.spec.layer import Attention, Layer
from sim.spec.library import load_part, load_workload
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.transformer import Transformer
from tests.cluster.machines import stack

PLAIN = {
    "name": "plain", "sm_count": 100, "product_share": {"bf16": 0.8, "fp8": 0.8}, "sustained": 0.5, "tile_edge": 1e-6, "pipeline_fill": 0,
    "wave_loss": 1, "sharpness": 50, "memory_share": 0.5, "feeders": 1, "split_traffic": 1, "split_time": "1 s", "pass_share": 0.5,
    "pass_half_size": "1 MB", "indexed_elements": 1e10, "exponentials": 1e30, "source": "test",
    "attention": [{"kernel": "flash2", "forward": 0.5, "backward": 0.25, "fill": 0, "backward_fill": 0, "exponential_passes": 1,
                   "backward_passes": 1, "sharpness": 50, "source": "test"}],
}  # fmt: skip


def gpu(**changes):
    """100 multiprocessors, 100 TFLOP/s and 1000 GB/s, of which products reach 0.8 and 0.5; nothing is lost but what tiles cut off."""
    return Gpu.model_validate({
        "name": "g", "architecture": "a", "compute_capability": "9.0", "memory": "16 GiB", "memory_bandwidth": "1000 GB/s",
        "memory_efficiency": 0.8, "peak": {"fp32": "1 TFLOP/s", "bf16": "100 TFLOP/s", "fp8": "200 TFLOP/s"},
        "efficiency": {"gemm": {"bf16": 0.5}}, "kernel_time": "0 us", "context_memory": "1 GiB", "source": "test",
        "kernels": PLAIN | changes,
    })  # fmt: skip


def test_products_of_one_wave_take_the_time_of_one_tile():
    # 10 x 10 tiles of 256 x 256, the largest there are, on 100 multiprocessors of 0.8 TFLOP/s each
    expected = 2 * 256 * 256 * 8192 / 0.8e12
    assert kernels.product_time(gpu(), "bf16", ProductShape(2560, 2560, 8192), burst=True) == pytest.approx(expected, rel=1e-6)
    assert kernels.product_time(gpu(), "bf16", ProductShape(2560, 2560, 8192)) == pytest.approx(2 * expected, rel=1e-6)  # half is sustained
    # one row more is a row of tiles more, the smallest of 32 rows: a second wave of 16 x 64, or less with smaller tiles
    more = kernels.product_time(gpu(), "bf16", ProductShape(2561, 2560, 8192), burst=True)
    assert expected < more <= 2 * expected


def test_products_of_few_rows_take_the_time_of_reading_the_matrix():
    # 16 x 16384 x 16384: 512 MiB at half of 1000 GB/s; 512 tiles of 32 columns keep every multiprocessor reading
    nbytes = 2 * (16 * 16384 + 16384 * 16384 + 16 * 16384)
    assert kernels.product_time(gpu(), "bf16", ProductShape(16, 16384, 16384)) == pytest.approx(nbytes / 500e9, rel=1e-3)


sizes = st.integers(1, 20000)


@settings(max_examples=100, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 64))
def test_products_stay_above_both_roofs_and_grow_with_every_side(m, n, k, groups):
    on = records.catalog_gpu("H100-SXM5-80GB")
    time = kernels.product_time(on, "bf16", ProductShape(m, n, k, groups), burst=True)
    flop, nbytes = 2.0 * m * n * k * groups, 2.0 * groups * (m * k + k * n + m * n)
    assert time >= flop / (on.peak["bf16"] * on.kernels.product_share["bf16"])
    assert time >= nbytes / (on.memory_bandwidth * on.kernels.memory_share)
    assert time <= groups * kernels.product_time(on, "bf16", ProductShape(m, n, k), burst=True) * (1 + 1e-9)
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert kernels.product_time(on, "bf16", ProductShape(*larger, groups), burst=True) >= time * 0.99 or min(m, n, k) < 256


def test_a_block_of_queries_walks_over_the_keys_that_its_mask_shows():
    block = kernels.BLOCK
    wrong = []
    for queries, keys, causal, window in ((1024, 1024, True, 0), (1000, 1000, True, 0), (512, 2048, True, 0), (4096, 4096, True, 512),
                                          (1024, 1024, False, 0), (300, 700, False, 0), (256, 256, True, 1024)):  # fmt: skip
        shape = Attention(heads=1, kv_heads=1, head_dim=64, queries=queries, keys=keys, causal=causal, window=window)
        count = 0
        for first in range(0, queries, block):
            seen = np.zeros(ceil(keys / block), dtype=bool)
            for query in range(first, first + block):
                last = keys - queries + query if causal else keys - 1
                lowest = max(0, last - window) if window and causal else 0
                seen[lowest // block : last // block + 1] = True
            count += int(seen.sum()) * block
        if kernels.visible_keys(shape) != count / ceil(queries / block):
            wrong.append((shape, kernels.visible_keys(shape), count / ceil(queries / block)))
    assert not wrong


@pytest.mark.parametrize(("keys", "window"), [(4096, 1024), (4096, 1280), (1000, 256), (512, 128)])
def test_a_block_of_queries_stays_in_its_chunk(keys, window):
    block = kernels.BLOCK
    shape = Attention(heads=1, kv_heads=1, head_dim=64, queries=keys, keys=keys, window=window, chunked=True)
    walked = [first // block - first // window * window // block + 1 for first in range(0, keys, block)]
    assert kernels.visible_keys(shape) == block * sum(walked) / len(walked)


def test_torch_skips_the_blocks_that_are_not_counted():
    """Oracle: the block mask of torch's FlexAttention, which lists the blocks that its kernel visits."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    block, tokens = kernels.BLOCK, 2048
    masks = {
        (0, False): lambda batch, head, query, key: query >= key,
        (512, False): lambda batch, head, query, key: (query >= key) & (query - key <= 512),
        (512, True): lambda batch, head, query, key: (query >= key) & (query // 512 == key // 512),
    }
    for (window, chunked), mask in masks.items():
        visited = flex.create_block_mask(mask, None, None, tokens, tokens, device="cpu", BLOCK_SIZE=block)
        blocks = int(visited.kv_num_blocks.sum()) + int(visited.full_kv_num_blocks.sum())
        shape = Attention(heads=1, kv_heads=1, head_dim=64, queries=tokens, keys=tokens, window=window, chunked=chunked)
        assert kernels.visible_keys(shape) * tokens / block == blocks * block, (window, chunked)


@pytest.mark.parametrize("shaped", [True, False])
def test_a_window_that_is_a_mask_saves_nothing(shaped):
    on = gpu() if shaped else gpu().model_copy(update={"kernels": None})
    tokens = 8192
    of = Transformer(layers=1, hidden=512, heads=8, ffn=1408, vocab=1000, max_seq=tokens)
    core = {
        window: next(layer for layer in decoder_layers(of.model_copy(update={"window": window}), tokens) if layer.op == "attention")
        for window in (0, 1024)
    }
    skips, masks = stack(), stack(masks_windows=True)
    for backward in (False, True):
        windowed, causal, masked, no_window = (
            layer_work(core[window], on, "bf16", with_stack, 1, backward).products
            for window, with_stack in ((1024, skips), (0, skips), (1024, masks), (0, masks))
        )
        assert no_window == causal  # without a window, torch is told that attention is causal
        assert windowed < 0.4 * causal
        assert masked == pytest.approx(2 * causal, rel=0.03)  # the whole square


@pytest.mark.parametrize("shaped", [True, False])
def test_attention_in_several_kernels_computes_all_scores_and_moves_them(shaped):
    on = gpu() if shaped else gpu().model_copy(update={"kernels": None})
    shape = Transformer(layers=1, hidden=512, heads=8, ffn=1408, vocab=1000, max_seq=4096)
    core = next(layer for layer in decoder_layers(shape, 4096) if layer.op == "attention")
    of_scores = 8 * 4096**2 * 2.0
    for backward, products in ((False, 2), (True, 4)):
        fused, several = (layer_work(core, on, "bf16", stack(score_passes=passes), 1, backward) for passes in (0, 16))
        assert several.converted_bytes - fused.converted_bytes == 8 * of_scores  # half of the passes in each direction
        flop = products * 2 * 8 * 4096.0**2 * 64
        assert several.products >= flop / on.peak["bf16"]
        assert several.products < 6 * flop / on.peak["bf16"]


@pytest.mark.parametrize("shaped", [True, False])
@pytest.mark.parametrize("passes", [None, 16])
def test_attention_that_no_gradient_passes_has_no_backward(shaped, passes):
    """Adapters of feed-forward layers leave the first block's attention without one."""
    on = gpu() if shaped else gpu().model_copy(update={"kernels": None})
    shape = Transformer(layers=1, hidden=512, heads=8, ffn=1408, vocab=1000, max_seq=4096)
    core = next(layer for layer in decoder_layers(shape, 4096) if layer.op == "attention")
    passive = core.model_copy(update={"backward": 0.0, "backward_traffic": 0.0, "backward_kernels": 0})
    work = layer_work(passive, on, "bf16", stack(score_passes=passes), 1, backward=True)
    assert (work.products, work.moved_bytes, work.converted_bytes, work.kernels) == (0, 0, 0, 0)


def test_backward_of_attention_in_several_kernels_has_products_of_the_widths_of_keys_and_values():
    """Scores' and values' gradients have the width of values, those of queries and keys their own. Oracle: other widths."""
    a100 = load_part(Gpu, "a100-sxm4-40gb")
    shape = Transformer(layers=1, hidden=2048, heads=16, head_dim=192, ffn=1408, vocab=1000, max_seq=2048)
    core = next(layer for layer in decoder_layers(shape, 2048) if layer.op == "attention")

    def products(backward, **widths):
        layer = core.model_copy(update={"attention": core.attention.model_copy(update=widths)})
        return layer_work(layer, a100, "bf16", stack(score_passes=16), 4, backward).products

    both, keys, values = (products(True, head_dim=head, value_dim=value) for head, value in ((192, 192), (192, 128), (128, 128)))
    forward = {(head, value): products(False, head_dim=head, value_dim=value) for head in (128, 192) for value in (128, 192)}
    of_scores = forward[192, 128] - forward[128, 128]
    of_results = forward[128, 192] - forward[128, 128]
    assert both - keys == pytest.approx(of_scores + of_results, rel=1e-9)
    assert keys - values == pytest.approx(2 * of_results, rel=1e-9)


@pytest.mark.parametrize(
    ("size", "of_scores", "of_results"),
    [
        (128, 91.6, 134.8),
        (136, 88.8, 115.6),
        (138, 72.3, 88.1),
        (144, 93.3, 127.1),
        (150, 78.0, 93.7),
        (152, 98.2, 133.4),
        (170, 81.2, 103.9),
    ],
)
def test_products_of_attention_in_several_kernels_take_what_they_took_on_an_a100(size, of_scores, of_results):
    """EleutherAI/cookbook, sizing/results/transformer_data/h_sweep.out: 16 heads of a rank, four samples of 2,048 tokens; TFLOP/s."""
    a100 = load_part(Gpu, "a100-sxm4-40gb")
    shape = Transformer(layers=1, hidden=16 * size, heads=16, head_dim=size, ffn=1408, vocab=1000, max_seq=2048)
    core = next(layer for layer in decoder_layers(shape, 2048) if layer.op == "attention")
    flop = 64 * 2 * 2048.0**2 * size / 1e12
    assert layer_work(core, a100, "bf16", stack(score_passes=16), 4).products == pytest.approx(
        flop / of_scores + flop / of_results, rel=0.12
    )


def test_attention_takes_its_flop_at_its_share_and_half_of_it_under_a_causal_mask():
    shape = Attention(heads=100, kv_heads=100, head_dim=128, queries=12800, keys=12800, causal=False)
    flop = 4 * 100 * 12800.0**2 * 128
    assert kernels.attention_time(gpu(), "bf16", shape, 1, burst=True) == pytest.approx(flop / (100e12 * 0.8 * 0.5), rel=1e-6)
    assert kernels.attention_time(gpu(), "bf16", shape, 1, backward=True, burst=True) == pytest.approx(
        2.5 * flop / (100e12 * 0.8 * 0.25), rel=1e-6
    )
    causal = shape.model_copy(update={"causal": True})
    ratio = kernels.attention_time(gpu(), "bf16", causal, 2) / kernels.attention_time(gpu(), "bf16", shape, 2)
    assert ratio == pytest.approx(0.5 * (1 + 1 / 100))  # and half of the blocks on the diagonal


def test_blocks_in_the_order_of_a_causal_sequence_end_with_the_longest():
    """Oracle: with one more of the longest less the mean block for each multiprocessor, whatever the number of heads."""
    shape = Attention(heads=100, kv_heads=100, head_dim=128, queries=12800, keys=12800, causal=True)
    (rate,) = gpu().kernels.attention
    late = with_attention(rate.model_copy(update={"tail": 1.0}))
    block = 4 * 128 * 128 * (12800 - 12928 / 2) / (100e12 * 0.8 * 0.5 / 100)
    for heads in (100, 200):
        many = shape.model_copy(update={"heads": heads, "kv_heads": heads})
        added = kernels.attention_time(late, "bf16", many, 1, burst=True) - kernels.attention_time(gpu(), "bf16", many, 1, burst=True)
        assert added == pytest.approx(block, rel=1e-6)
    even = shape.model_copy(update={"causal": False})
    assert kernels.attention_time(late, "bf16", even, 1) == kernels.attention_time(gpu(), "bf16", even, 1)


def test_wide_heads_take_longer_backward_alone():
    (rate,) = gpu().kernels.attention
    slow = with_attention(rate.model_copy(update={"wide_backward": 0.5}))
    for size, values, backward, ratio in ((128, 128, True, 1.0), (192, 192, False, 1.0), (192, 192, True, 2.0), (192, 128, True, 1.0)):
        shape = Attention(heads=100, kv_heads=100, head_dim=size, value_dim=values, queries=12800, keys=12800, causal=False)
        times = [kernels.attention_time(board, "bf16", shape, 1, backward) for board in (slow, gpu())]
        assert times[0] / times[1] == pytest.approx(ratio, rel=1e-3)


def test_sinks_cost_time_per_query_and_head_backward_alone():
    (rate,) = gpu().kernels.attention
    board = with_attention(rate.model_copy(update={"sinks": 2e-7}))
    plain = Attention(heads=8, kv_heads=2, head_dim=64, queries=1000, keys=1000)
    for backward in (False, True):
        shapes = (plain.model_copy(update={"sinks": True}), plain)
        times = [kernels.attention_time(board, "bf16", shape, 3, backward) for shape in shapes]
        assert times[0] - times[1] == pytest.approx(2e-7 / 100 * 8 * 1000 * 3 if backward else 0.0, abs=1e-12)


def test_fp8_products_have_rates_by_what_they_compute():
    """Forward accumulates without splitting with one scale per tensor; operands of weights' gradients have more scales in blocks."""
    board = load_part(Gpu, "h200-sxm-141gb")
    times = {
        (recipe, role): kernels.product_time(board, "fp8", ProductShape(8192, 8192, 8192), recipe=recipe, role=role)
        for recipe in ("blockwise", "tensorwise")
        for role in ("output", "inputs", "weights")
    }
    assert times["blockwise", "inputs"] / times["blockwise", "weights"] == pytest.approx(0.71, rel=0.02)
    assert times["blockwise", "inputs"] == times["blockwise", "output"]
    assert times["tensorwise", "inputs"] / times["tensorwise", "output"] == pytest.approx(1.18, rel=0.02)
    assert times["tensorwise", "weights"] == times["tensorwise", "inputs"]


def test_fp8_leaves_heads_and_routers_in_16_bits():
    """Oracle: calibration/records/blind/2026-11-27-h200-operators.csv, where the head of FP8 steps runs the kernels of BF16 steps."""
    board = load_part(Gpu, "h200-sxm-141gb")
    stack = load_part(Stack, "megatron-core")
    model = load_workload("qwen3-30b-a3b").spec.model
    named = {layer.name.removeprefix("layers.0."): layer for layer in model.layers}
    for name, narrows in (("head", False), ("router", False), ("experts.down", True), ("attention.qkv", True)):
        for backward in (False, True):
            wide, narrow = (layer_work(named[name], board, precision, stack, 1, backward).products for precision in ("bf16", "fp8"))
            assert narrow < 0.8 * wide if narrows else narrow == wide


def with_attention(rate):
    """Return the made-up GPU with an attention kernel of *rate*."""
    board = gpu()
    return board.model_copy(update={"kernels": board.kernels.model_copy(update={"attention": (rate,)})})


def test_a_layer_that_says_its_shape_takes_the_time_of_its_products():
    on = gpu()
    flop = 2 * 2048 * 4096 * 1024
    layer = Layer.model_validate({
        "name": "l", "op": "gemm", "forward": f"{flop} FLOP", "backward": f"{2 * flop} FLOP", "gradients": [4096 * 1024],
        "channels": [1024, 4096], "tokens": 2048,
    })  # fmt: skip
    product = {name: kernels.product_time(on, "bf16", ProductShape(*shape)) for name, shape in (
        ("forward", (4 * 2048, 4096, 1024)), ("inputs", (4 * 2048, 1024, 4096)), ("weights", (1024, 4096, 4 * 2048)))}  # fmt: skip
    assert layer_work(layer, on, "bf16", stack(), 4).products == pytest.approx(product["forward"])
    assert layer_work(layer, on, "bf16", stack(), 4, backward=True).products == pytest.approx(product["inputs"] + product["weights"])
    frozen = layer.model_copy(update={"gradients": (), "frozen": (4096 * 1024,), "backward": layer.forward})
    assert layer_work(frozen, on, "bf16", stack(), 4, backward=True).products == pytest.approx(product["inputs"])
    experts = layer.model_copy(update={"groups": 8})
    assert layer_work(experts, on, "bf16", stack(), 4).products == pytest.approx(
        kernels.product_time(on, "bf16", ProductShape(1024, 4096, 1024, 8))
    )
    assert (
        layer_work(layer, on, "fp8", stack(), 4).converted_bytes > layer_work(layer, on, "bf16", stack(), 4).converted_bytes
    )  # operands are cast


def test_layers_without_a_shape_and_gpus_without_kernels_go_by_efficiency():
    with_kernels, without = gpu(), gpu().model_copy(update={"kernels": None})
    plain = Layer.model_validate({
        "name": "l", "op": "attention", "forward": "1 GFLOP", "backward": "2 GFLOP", "channels": [10, 100], "read": "1 MB",
    })  # fmt: skip
    shaped = plain.model_copy(update={"op": "gemm", "tokens": 512, "channels": (1000, 1000), "gradients": (1000,)})
    for backward in (False, True):
        assert layer_time(plain, with_kernels, "bf16", stack(), 8, backward) == layer_time(plain, without, "bf16", stack(), 8, backward)
        assert layer_time(shaped, with_kernels, "fp32", stack(), 8, backward) == layer_time(shaped, without, "fp32", stack(), 8, backward)
        assert layer_time(shaped, with_kernels, "bf16", stack(), 8, backward) != layer_time(shaped, without, "bf16", stack(), 8, backward)


def test_a_matrix_product_of_an_extracted_table_has_the_shape_that_its_work_says():
    """Oracle: the same layer with its rows written out, 2 * rows * 1000 * 500 FLOP, in every precision; rounding apart."""
    said = Layer.model_validate({
        "name": "l", "op": "gemm", "forward": "128 MFLOP", "backward": "256 MFLOP", "gradients": [500_000], "channels": [1000, 500],
        "tokens": 128, "read": "1 MB",
    })  # fmt: skip
    silent = said.model_copy(update={"tokens": 0})
    for precision in ("fp32", "bf16", "amp_bf16", "fp8"):
        for backward in (False, True):
            assert layer_time(silent, gpu(), precision, stack(), 8, backward) == pytest.approx(
                layer_time(said, gpu(), precision, stack(), 8, backward)
            )


def test_no_factor_of_whole_networks_touches_products_of_known_shape():
    slow = with_fields(stack(), tensor_core_gemm_factor=3.0)
    layer = Layer.model_validate({"name": "l", "op": "gemm", "forward": "128 GFLOP", "backward": "256 GFLOP", "channels": [4096, 4096]})
    assert layer_time(layer, gpu(), "bf16", slow, 1) == layer_time(layer, gpu(), "bf16", stack(), 1)
    without = gpu().model_copy(update={"kernels": None})
    assert layer_time(layer, without, "bf16", slow, 1).time > 2.0 * layer_time(layer, without, "bf16", stack(), 1).time


def test_attention_in_32_bits_has_the_memory_efficient_kernel_alone():
    """If the GPU describes no such kernel, the layer is priced by its FLOP; if it does, TF32 takes many times as long as 16 bits."""
    shape = {"heads": 32, "kv_heads": 32, "head_dim": 128, "queries": 4096, "keys": 4096}
    layer = Layer.model_validate({"name": "l", "op": "attention", "forward": "1 TFLOP", "backward": "2.5 TFLOP", "attention": shape})
    tf32 = with_fields(stack(), fp32_matmul="tf32")
    hopper, ampere = records.catalog_gpu("H200-SXM-141GB"), records.catalog_gpu("A100-SXM4-80GB")
    assert layer_time(layer, hopper, "fp32", tf32, 1).time > 5.0 * layer_time(layer, hopper, "bf16", tf32, 1).time
    without = ampere.model_copy(update={"kernels": None})
    assert layer_time(layer, ampere, "fp32", tf32, 1) == layer_time(layer, without, "fp32", tf32, 1)


def test_measured_kernels_are_met():
    """Medians over the rows of one GPU and kind, large kernels; layers of experts are predicted, for nothing was fitted to them."""
    rows = records.predictable_rows(records.read_kernels())
    wrong = []
    for op, kernel, precision, most in (("gemm", "cublas", "bf16", 0.09), ("attention", "flash2", "bf16", 0.11),
                                        ("attention", "flash3", "bf16", 0.06), ("experts", "trtllm", "bf16", 0.25)):  # fmt: skip
        for name in {row.gpu for row in rows}:
            chosen = [row for row in rows if (row.gpu, row.op, row.kernel, row.precision) == (name, op, kernel, precision) and row.is_large]
            if len(chosen) >= 10:
                error = float(np.median(np.abs(fit.log_errors(chosen, {name: records.catalog_gpu(name)}))))
                wrong += [(name, op, kernel, error)] if error > most else []
    assert not wrong


@pytest.mark.parametrize(("gpu", "rows"), [("B200-SXM-180GB", 1), ("B300-SXM-288GB", 4)])
def test_products_in_nvfp4_are_those_of_cublas(gpu, rows):
    """Transformer Engine runs them with cuBLASLt; the share in the description is the fit to its rows."""
    own = records.catalog_gpu(gpu)
    chosen = [row for row in records.read_kernels() if (row.gpu, row.kernel, row.precision) == (gpu, "cublas", "nvfp4")]
    assert len(chosen) == rows
    assert own.kernels.product_share["nvfp4"] == pytest.approx(fit.fit_share(chosen, {gpu: own}), rel=0.002)


@pytest.mark.parametrize(
    ("gpu", "older", "newer", "least", "most"),
    [
        ("A100-SXM4-80GB", "triton", "flash2", 1.3, 2.5), ("A100-SXM4-80GB", "flash1", "flash2", 1.7, 3.0),
        ("H100-SXM5-80GB", "flash1", "flash2", 1.7, 3.0), ("H100-SXM5-80GB", "cudnn8", "cudnn", 1.3, 1.5),
        ("H100-SXM5-80GB", "flash2", "cudnn8", 1.0, 1.8),
    ],
)  # fmt: skip
def test_older_attention_takes_as_much_longer_as_published(gpu, older, newer, least, most):
    """Forward and backward together.

    Dao 2023 (arXiv 2307.08691, section 4.1), an A100: 1.3 to 2.5 and 1.7 to 3.0 times FlashAttention 2, by length and head. Release notes
    of cuDNN 9.0.0: up to 1.5 times as fast as 8.9.7 on Hopper; Transformer Engine 1.2 prefers that to FlashAttention 2 there.
    """
    for head in (64, 128):
        for length in (512, 2048, 16384):
            shape = Attention(heads=2048 // head, kv_heads=2048 // head, head_dim=head, queries=length, keys=length, causal=True)
            before, after = (
                sum(
                    kernels.attention_time(records.catalog_gpu(gpu), "bf16", shape, 16384 / length, backward, kernel)
                    for backward in (False, True)
                )
                for kernel in (older, newer)
            )
            assert least < before / after < most + 0.001


def test_refitting_returns_the_constants_that_made_the_times():
    """Constants of attention offset each other, so their times are compared; the share of a product's peak is determined by itself."""
    chosen = [
        row
        for row in records.predictable_rows(records.read_kernels())
        if row.gpu == "H100-SXM5-80GB" and row.kernel in ("cublas", "flash3")
    ]
    products = [row for row in chosen if row.op == "gemm" and row.precision == "bf16"][:40]
    attention = [row for row in chosen if row.op == "attention" and not row.backward][:40]
    assert products and attention
    own = records.catalog_gpu("H100-SXM5-80GB")
    rate = next(rate for rate in own.kernels.attention if rate.kernel == attention[0].kernel)
    other = fit.with_kernels(own, {"product_share": {"bf16": 0.6}, "attention": [rate.model_copy(update={"forward": 0.4})]})
    timed = [row._replace(time=records.predicted_time(row, other)) for row in (*products, *attention)]
    lines = {line["kernel"]: line["constants"] for line in report.refit_constants(timed)}
    assert len(lines) == 2
    (share,) = (values["product_share.bf16"] for name, values in lines.items() if name.startswith("gemm"))
    (constants,) = (values for name, values in lines.items() if name.startswith("attention"))
    assert share == pytest.approx(0.6, rel=0.01)
    again = fit.with_kernels(own, {"attention": [rate.model_copy(update=constants)]})
    left, before = (np.median(np.abs(fit.log_errors(timed[len(products) :], {own.name: gpu}))) for gpu in (again, own))
    assert left < 0.03 < 0.2 < before


def test_what_is_not_described_is_refused():
    bare = gpu().model_copy(update={"kernels": None})
    shape = Attention(heads=1, kv_heads=1, head_dim=64, queries=8, keys=8)
    for call in (
        lambda: kernels.product_time(bare, "bf16", ProductShape(1, 1, 1)),
        lambda: kernels.attention_time(gpu(attention=[]), "bf16", shape, 1),
        lambda: kernels.elementwise_time(1.0, bare),
        lambda: kernels.product_time(gpu(), "fp32", ProductShape(1, 1, 1)),
    ):
        with pytest.raises(ValueError, match="kernels block"):
            call()
    assert kernels.product_time(gpu(), "bf16", ProductShape(0, 5, 5)) == 0


@pytest.mark.parametrize("context", [2, 4, 8])
def test_ranks_of_a_context_group_share_causal_attention_evenly(context):
    # rank i holds pieces i and 2c-1-i of the 2c that a sequence is cut into: counted one by one, each sees the mean of all
    sequence, block = 65536, kernels.BLOCK
    pieces = [
        [(sequence // (2 * context) * piece + first + block) for first in range(0, sequence // (2 * context), block)]
        for piece in range(2 * context)
    ]
    means = {np.mean(pieces[rank] + pieces[-1 - rank]) for rank in range(context)}
    alone = Attention(heads=32, kv_heads=8, head_dim=128, queries=sequence, keys=sequence)
    shared = alone.model_copy(update={"queries": sequence // context, "shares": context})
    assert means == {kernels.visible_keys(shared)} == {kernels.visible_keys(alone)}
    ratio = kernels.attention_time(gpu(), "bf16", shared, 1.0) / kernels.attention_time(gpu(), "bf16", alone, 1.0)
    assert ratio == pytest.approx(1 / context, rel=0.03)  # up to a last wave


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("context", [2, 4, 8])
def test_the_steps_of_a_ring_see_the_keys_that_one_call_would(context, causal):
    # each step is a call of its own, which fills its pipeline: with the fill of a call, n times as many
    sequence, fill = 65536, 128
    alone = Attention(heads=32, kv_heads=8, head_dim=128, queries=sequence // context, keys=sequence, shares=context, causal=causal)
    around = alone.model_copy(update={"in_steps": True})
    steps = kernels.ring_steps(around)
    assert sum(count for _, count in steps) == context
    assert sum(count * step.queries * kernels.visible_keys(step) for step, count in steps) == alone.queries * kernels.visible_keys(alone)
    card = gpu(attention=[PLAIN["attention"][0] | {"fill": fill}])
    ratio = kernels.attention_time(card, "bf16", around, 1.0) / kernels.attention_time(card, "bf16", alone, 1.0)
    keys = kernels.visible_keys(alone)
    assert ratio == pytest.approx((keys + context * fill) / (keys + fill), rel=1e-6)


def test_a_ring_with_a_window_is_one_call():
    windowed = Attention(heads=1, kv_heads=1, head_dim=64, queries=512, keys=1024, shares=2, window=128, in_steps=True)
    assert kernels.attention_time(gpu(), "bf16", windowed, 1.0) == kernels.attention_time(
        gpu(), "bf16", windowed.model_copy(update={"in_steps": False}), 1.0
    )


def test_kernels_of_whole_steps_count_for_stacks_that_run_layouts_alone():
    """Half as long where the stack's factor is said to go by kernels; other stacks know nothing of it."""
    product = Layer.model_validate({"name": "l", "op": "gemm", "forward": "128 GFLOP", "channels": [4096, 4096]})
    alone, plain, layouts = (
        layer_time(product, each, "bf16", stack(compute_factor=1.5, factor_by_kernels=by), 1).time
        for each, by in ((gpu(), True), (gpu(whole_steps=0.5), False), (gpu(whole_steps=0.5), True))
    )
    assert plain == pytest.approx(alone) == pytest.approx(2 * layouts)
