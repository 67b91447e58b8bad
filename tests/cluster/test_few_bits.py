"""Oracles: attention has no weights to bring to 8 or 4 bits, and casts are bytes that Transformer Engine reads and writes."""

from __future__ import annotations

import pytest

from sim.cluster.gpu import layer_time, layer_work
from sim.spec.fields import Precision
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_workload


@pytest.mark.parametrize(("machine", "narrow"), [("hgx-h100", "fp8"), ("gb300-nvl72", "fp8"), ("gb300-nvl72", "nvfp4")])
def test_attention_of_a_run_in_few_bits_takes_no_casts(machine: str, narrow: Precision) -> None:
    gpu = load_hardware(machine).spec.groups[0].node.gpu
    workload = load_workload("llama-3.1-8b").spec
    stack = workload.training.stack
    core = next(layer for layer in workload.model.layers if layer.attention)
    product = next(layer for layer in workload.model.layers if layer.channels and layer.tokens)
    precisions: tuple[Precision, ...] = ("bf16", narrow)
    slow, fast = (tuple(layer_time(layer, gpu, precision, stack, 1) for layer in (core, product)) for precision in precisions)
    assert fast[0] <= slow[0]
    assert fast[1] < slow[1]


def test_four_bits_are_read_thrice_and_never_written_by_a_norm() -> None:
    """Largest magnitude, rows, and columns behind a Hadamard transform, 9/16 of a byte each with scales; weights, kept in 16 bits, are not
    transformed."""
    gpu = load_hardware("gb300-nvl72").spec.groups[0].node.gpu
    stack = load_workload("llama-3.1-8b", ["training.stack=megatron-core"]).spec.layer_stack
    tokens, k, n, batch = 4096, 4096, 8192, 2
    shape = {"name": "block.attention.qkv", "op": "gemm", "tokens": tokens, "channels": (k, n), "forward": f"{2 * tokens * k * n} FLOP"}
    frozen = Layer.model_validate(shape | {"frozen": [k * n]})
    assert stack.kernels.fused_casts
    assert layer_work(frozen, gpu, "nvfp4", stack, batch).converted_bytes == (6.0 + 0.5625) * batch * tokens * k + (4.0 + 1.125) * k * n
    assert layer_work(frozen, gpu, "nvfp4", stack, batch, backward=True).converted_bytes == (6.0 + 0.5625) * batch * tokens * n
    assert (
        layer_time(frozen, gpu, "nvfp4", stack, 8).time
        < layer_time(frozen, gpu, "fp8", stack, 8).time
        < layer_time(frozen, gpu, "bf16", stack, 8).time
    )
