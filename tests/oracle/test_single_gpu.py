"""Measured record: forward and backward of whole networks on one V100, from DeepBench's kernel times alone.

u39kun/deep-learning-benchmark README @02ef7436 (PyTorch 0.3.0, fp32, batch 16, 224x224, mean of 20 after warm-up, no optimizer). The
efficiency curves of the GPU were fitted to single kernels (baidu-research/DeepBench), never to a network.
"""

from __future__ import annotations

import pytest

from sim.cluster.gpu import layer_time
from sim.spec.library import load_hardware, load_workload

BATCH = 16


@pytest.mark.parametrize(("model", "measured"), [("vgg16", 83.5e-3), ("resnet152", 136.5e-3), ("densenet161", 142.5e-3)])
def test_a_network_is_the_sum_of_its_kernels(model: str, measured: float) -> None:
    """Reached: 6, 0 and 9 % too fast; host launches and the gaps between kernels are left out."""
    gpu = load_hardware("p3.2xlarge").spec.groups[0].node.gpu
    workload = load_workload(model, ["training.stack=torch-1.6-ddp"]).spec
    stack, layers = workload.training.stack, workload.model.layers
    total = sum(layer_time(layer, gpu, "fp32", stack, BATCH, backward).time for layer in layers for backward in (False, True))
    assert total == pytest.approx(measured, rel=0.12)
