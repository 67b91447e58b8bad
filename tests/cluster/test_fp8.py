"""Oracles: attention has no weights to bring to 8 bits, and casts are bytes that Transformer Engine reads and writes."""

from __future__ import annotations

from sim.cluster.gpu import layer_time, layer_work
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_workload


def test_attention_of_a_run_in_fp8_takes_no_casts() -> None:
    gpu = load_hardware("hgx-h100").spec.groups[0].node.gpu
    workload = load_workload("llama-3.1-8b").spec
    stack = workload.training.stack
    core = next(layer for layer in workload.model.layers if layer.attention)
    product = next(layer for layer in workload.model.layers if layer.channels and layer.tokens)
    slow, fast = (tuple(layer_time(layer, gpu, precision, stack, 1) for layer in (core, product)) for precision in ("bf16", "fp8"))
    assert fast[0] <= slow[0]
    assert fast[1] < slow[1]


def test_frozen_weights_spare_the_transposed_copy_of_activations() -> None:
    """Rows along k of activations are for gradients of weights alone (Transformer Engine): a byte an element less, forward and backward."""
    gpu = load_hardware("hgx-h100").spec.groups[0].node.gpu
    stack = load_workload("llama-3.1-8b", ["training.stack=megatron-core"]).spec.layer_stack
    tokens, k, n, batch = 4096, 4096, 8192, 2
    shape = {"name": "product", "op": "gemm", "tokens": tokens, "channels": (k, n), "forward": f"{2 * tokens * k * n} FLOP"}
    tied, frozen = (Layer.model_validate(shape | weights) for weights in ({"shares": "tokens"}, {"frozen": [k * n]}))
    for backward, width in ((False, k), (True, n)):
        elements = float(batch * tokens * width)
        assert layer_work(tied, gpu, "fp8", stack, batch, backward).converted == stack.cast_traffic * 4.0 * elements
        weights = 0.0 if backward else 6.0 * k * n
        assert layer_work(frozen, gpu, "fp8", stack, batch, backward).converted == stack.cast_traffic * (3.0 * elements + weights)
