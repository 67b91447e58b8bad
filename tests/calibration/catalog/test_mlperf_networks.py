"""How much of BatchNorm's traffic do the fused networks of NVIDIA's MXNet leave out on V100? Their graphs say so, layer by layer.

Oracle: an independent count over ResNet-50's layer table. With ReLU fused, BatchNorm makes three passes forward and five backward; the
addition at the end of a block, fused as well, reads one more tensor forward and writes one more gradient backward.
"""

from __future__ import annotations

import re

import pytest

from calibration.questions import workload_named
from sim.spec.layer import Layer

BLOCK_END = re.compile(r"layer\d\.\d\.bn3")
INSIDE_BLOCK = re.compile(r"layer\d\.\d\.bn[12]")
"""Norms whose output only the next convolution of the block reads: it applies them, and the convolution before takes their sums."""
FIRST_SHORTCUT = re.compile(r"layer1\.0\.downsample\.1")
"""The only norm of a shortcut behind a 1x1 convolution of stride 1, as cuDNN's fused convolution must have on V100."""


def _elements(layers: list[Layer], names: str | re.Pattern[str] = ".*") -> float:
    """Return the bytes of one pass over the outputs of the norms with matching *names*."""
    return sum(layer.write for layer in layers if layer.op == "norm" and re.fullmatch(names, layer.name))


@pytest.mark.parametrize(
    ("stack", "saved"),
    [
        ("mlperf-mxnet-normconv", {INSIDE_BLOCK: 3}),
        ("mlperf-mxnet-dbar", {INSIDE_BLOCK: 3, BLOCK_END: 1, FIRST_SHORTCUT: 3}),
    ],
)
def test_fused_networks_leave_out_the_passes_that_their_graphs_do(stack: str, saved: dict[re.Pattern[str], int]) -> None:
    workload = workload_named("resnet50", (f"training.stack={stack}",))
    layers = list(workload.model.layers)
    pools = sum(layer.read + layer.write + layer.backward_traffic for layer in layers if layer.op == "pool")
    every = 8 * _elements(layers) + 2 * _elements(layers, BLOCK_END) + pools
    left = every - sum(passes * _elements(layers, names) for names, passes in saved.items())
    plain = workload_named("resnet50", ("training.stack=ngc-mxnet-20.03",)).training.stack.kernels.elementwise_traffic
    assert workload.training.stack.kernels.elementwise_traffic == pytest.approx(plain * left / every, rel=0.005)
