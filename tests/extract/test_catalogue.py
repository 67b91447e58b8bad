"""Every model of the catalogue against torch: parameters, gradient tensors and FLOP.

Oracles: the model's own parameters; gradients that a backward really leaves; FlopCounterMode on the meta device, as the difference of
two batches. The counter books every group of a grouped convolution in full in backward, so models with such are compared forward alone.
"""

from __future__ import annotations

import contextlib
import shlex
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sim.spec.library import catalogue, load_part
from sim.spec.workload import Model

torch = pytest.importorskip("torch", reason="comparing with torch needs torch")

QUICK = ["resnet18", "vgg16", "bert-base-seq128", "gpt2", "ncf", "transformer-multi30k", "cifar10-resnet18", "ssd300"]
UNCOUNTED = {"gnmt": 2 * 32 * 32 * 1024}
"""FLOP of matrix by vector, which the counter does not know: GNMT's scores of 32 target by 32 source states of width 1024."""
SLOW = sorted(set(catalogue("workloads/models")) - set(QUICK))


def counted(model: Any, batch: int, inputs: list[str]) -> tuple[int, int]:
    """Return torch's FLOP of a forward and of a backward of *batch* samples."""
    from torch.utils.flop_counter import FlopCounterMode

    from sim.extract import run, trace

    positional, named = run._inputs(model, inputs, batch)
    unrecorded: Any = SimpleNamespace(paused=contextlib.nullcontext)
    with torch.device("meta"), FlopCounterMode(display=False) as forward:
        loss = trace._loss(model(*positional, **named), unrecorded)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_parameters_gradients_and_flop_are_torchs(name: str) -> None:
    from sim.extract import target
    from sim.extract.build import build

    table = load_part(Model, name, "workloads/models")
    words = shlex.split(table.command)
    options = list(zip(words[5:-2:2], words[6:-2:2], strict=True))
    if "torchvision" in words[4] or words[4].endswith((":resnet", ":Ssd300")):
        pytest.importorskip("torchvision", reason="the catalogue's image models are torchvision's")
    inputs = [text for option, text in options if option == "--input"]
    arguments = target.parse_arguments([text for option, text in options if option == "--arg"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(words[4], target.find(words[4]), arguments)
        assert table.parameters == sum(parameter.numel() for parameter in model.parameters())
        two, three = (counted(model, batch, inputs) for batch in (2, 3))
    gradients = sorted(parameter.numel() for parameter in model.parameters() if parameter.grad is not None)
    assert sorted(size for layer in table.layers for size in layer.gradients) == gradients
    extra = UNCOUNTED.get(name, 0)
    assert sum(layer.forward for layer in table.layers) == three[0] - two[0] + extra
    grouped = any(getattr(module, "groups", 1) > 1 for module in model.modules())
    attends = any(layer.op == "attention" and layer.backward == 2.5 * layer.forward for layer in table.layers)
    if not (
        grouped or attends or extra
    ):  # fused attention computes its scores again in backward, which the counter's own formulas leave out
        assert sum(layer.backward for layer in table.layers) == three[1] - two[1]
