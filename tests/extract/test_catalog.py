"""Every model of the catalog against torch: parameters, gradient tensors and FLOP.

Oracles: the model's own parameters; gradients that a backward really leaves; FlopCounterMode on the meta device with the kernels that a
GPU would run, as the difference of two batches. The counter books every group of a grouped convolution in full in backward; it is given
the right formula here.
"""

from __future__ import annotations

import math
import shlex
import warnings
from typing import Any

import pytest

from sim.spec.library import load_part
from sim.spec.model import Model
from tests.extract.compared import cases
from tests.extract.tables import traced_models
from tests.late import torch

pytestmark = pytest.mark.needs("torch")

QUICK = ["resnet18", "vgg16", "bert-base-seq128", "ncf", "transformer-multi30k", "cifar10-resnet18", "ssd300"]
UNCOUNTED = {"gnmt": (2 * 32 * 32 * 1024, 2 * 32 * 32 * 1024)}
"""FLOP of matrix by vector, which the counter does not know, forward and backward: GNMT's scores of 32 target by 32 source states of width
1024. Backward one gradient is such a product, the other an outer product, which is elementwise."""
SLOW = sorted(set(traced_models()) - set(QUICK))
LENGTHS = {"deepspeech2": ("1x161x{}", 400, (20, 40))}
"""Inputs whose every time step torch takes apart on meta: their FLOP, which grow by as much with each step, are counted at two short
lengths instead of at the table's."""


def convolution_backward_flop(gradient: list[int], inputs: list[int], weight: list[int], *rest: Any, **_: Any) -> int:
    """Each weight meets every position of the output (of a transposed convolution: of the input), once for each gradient that is wanted."""
    transposed, wanted = rest[4], rest[7]
    positions = inputs if transposed else gradient
    return 2 * math.prod(weight) * positions[0] * math.prod(positions[2:]) * sum(map(bool, wanted[:2]))


def counted(model: Any, batch: int, inputs: list[str]) -> tuple[int, int]:
    """Return torch's FLOP of a forward and of a backward of *batch* samples."""
    from torch.utils.flop_counter import FlopCounterMode

    from sim.extract import run, trace
    from sim.extract.fused import as_on_cuda

    formulas = {torch.ops.aten.convolution_backward: convolution_backward_flop}
    positional, named = run._inputs(model, inputs, batch)
    with torch.device("meta"), as_on_cuda(), FlopCounterMode(display=False) as forward:
        loss = trace.loss_of(model(*positional, **named))
    with FlopCounterMode(display=False, custom_mapping=formulas) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def counted_per_sample(name: str, model: Any, inputs: list[str]) -> tuple[int, int]:
    """Return torch's FLOP of forward and of backward that one more sample makes, at the length of the table's input."""
    if name in LENGTHS:
        text, full_length, (few, more) = LENGTHS[name]
        assert inputs == [text.format(full_length)]
        short, longer = (_one_more(model, [text.format(length)]) for length in (few, more))
        extrapolated = [low + (high - low) * (full_length - few) // (more - few) for low, high in zip(short, longer, strict=True)]
        return extrapolated[0], extrapolated[1]
    return _one_more(model, inputs)


def _one_more(model: Any, inputs: list[str]) -> tuple[int, int]:
    two, three = (counted(model, batch, inputs) for batch in (2, 3))
    return three[0] - two[0], three[1] - two[1]


@pytest.mark.parametrize("name", [*QUICK, *cases(SLOW)])
def test_parameters_gradients_and_flop_are_torchs(name: str) -> None:
    from sim.extract import target
    from sim.extract.build import build

    table = load_part(Model, name)
    words = shlex.split(table.command)
    options = list(zip(words[5:-2:2], words[6:-2:2], strict=True))
    if "torchvision" in words[4] or words[4].endswith((":resnet", ":Ssd300")):
        pytest.importorskip("torchvision", reason="the catalog's image models are torchvision's")
    inputs = [text for option, text in options if option == "--input"]
    arguments = target.parse_arguments([text for option, text in options if option == "--arg"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(words[4], target.load_target(words[4]), arguments)
        assert table.parameters == sum(parameter.numel() for parameter in model.parameters())
        forward, backward = counted_per_sample(name, model, inputs)
    gradients = sorted(parameter.numel() for parameter in model.parameters() if parameter.grad is not None)
    assert sorted(size for layer in table.layers for size in layer.gradients) == gradients
    extra, extra_backward = UNCOUNTED.get(name, (0, 0))
    assert sum(layer.forward for layer in table.layers) == forward + extra
    assert sum(layer.backward for layer in table.layers) == backward + extra_backward
