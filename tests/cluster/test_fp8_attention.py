"""Oracle: attention has no weights to bring to 8 bits, so FP8 leaves it as it is in 16 bits, and products become faster."""

from __future__ import annotations

from sim.cluster.gpu import layer_time
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
