"""Oracle: the modules of Transformer Engine in the blocks that Megatron-LM's specifications list, counted by hand."""

from __future__ import annotations

import pytest

from sim.parallel.host_modules import DECODER_MODULES, module_count
from sim.spec.library import load_workload

JOINED = load_workload("llama-3.1-8b", ["training.stack=megatron-core"]).spec.training.stack.kernels.fused_casts
"""Products that ``TELayerNormColumnParallelLinear`` joins with the norm before them."""


@pytest.mark.parametrize(
    ("model", "modules"),
    [
        ("llama-3.1-8b", DECODER_MODULES),  # linear_qkv, core_attention, linear_proj, linear_fc1, linear_fc2
        ("mixtral-8x7b", 4),  # pre_mlp_layernorm instead of the products of the feed-forward block
        ("qwen3-30b-a3b", 6),  # and norms of queries and keys
        ("deepseek-v2-lite", 9),  # two norms; linear_q_proj, kv_down, kv_up, core, proj; two of shared experts
        ("deepseek-v3", 10),  # and q_down and q_up instead of linear_q_proj
    ],
)
def test_blocks_have_the_modules_of_megatrons_specifications(model: str, modules: int) -> None:
    layers = load_workload(model).spec.model.layers
    numbers = sorted({int(each.name.split(".")[1]) for each in layers if each.name.startswith("layers.")})
    last = [each for each in layers if each.name.startswith(f"layers.{numbers[-1]}.")]
    assert sum(module_count(last, number, JOINED) for number in range(len(last))) == modules


def test_a_norm_belongs_to_a_product_only_if_that_joins_it() -> None:
    layers = [each for each in load_workload("llama-3.1-8b").spec.model.layers if each.name.startswith("layers.0.")]
    assert sum(module_count(layers, number, ()) for number in range(len(layers))) == DECODER_MODULES + 2
