"""Activations, new gradients and casts at their peak, against the storages that torch really makes and frees during a step on meta.

Oracle: ``allocation.py``, which knows nothing of layers; under autocast, with the casts that torch.amp documents. Within 10%, the whole
catalog, in FP32 and under autocast, at a small and a larger batch; what is compared is what the batch, the new gradients and the casts
need, as weights, old gradients and state are equal by construction. Left out: DLRM, as sparse gradients cannot be added on meta.
"""

from __future__ import annotations

import shlex
import warnings
from functools import cache
from typing import Any

import pytest

from sim.analysis import memory
from sim.spec.library import load_part, load_workload
from sim.spec.model import Model
from tests.extract.compared import cases
from tests.extract.tables import traced_models
from tests.late import torch

pytestmark = pytest.mark.needs("torch")

QUICK = ["alexnet", "resnet18", "vgg11", "cifar10-resnet18", "ncf", "recoder-ml20m", "transformer-multi30k"]
SLOW = sorted(set(traced_models()) - {*QUICK, "dlrm-criteo"})

STEP_BY_STEP = ["deepspeech2"]
"""Models whose every time step torch takes apart on meta: compared at a tenth of their clip and ten times the batch, so with as many bytes;
their table grows to the catalog's."""
CLIP = "1x161x400"


class Stepped:
    """The forward and loss of a model, under autocast."""

    def __init__(self, model: Any) -> None:
        self.parameters, self.buffers, self._model = model.parameters, model.buffers, model

    def __call__(self, *positional: Any, **named: Any) -> Any:
        from sim.extract.autocast import Autocast
        from sim.extract.trace import loss_of

        with torch.autocast("cpu", torch.bfloat16), Autocast():
            return loss_of(self._model(*positional, **named))


def allocated(table: Model, batch: int, autocast: bool) -> int:
    from sim.extract import run, target, trace
    from sim.extract.build import build
    from sim.extract.fused import as_on_cuda
    from tests.extract.allocation import step_peak

    words = shlex.split(table.command)
    options = list(zip(words[5:-2:2], words[6:-2:2], strict=True))
    if "torchvision" in words[4] or "resnet" in words[4] or "ssd" in words[4]:
        pytest.importorskip("torchvision", reason="the catalog's image models are torchvision's")
    model = build(words[4], target.load_target(words[4]), target.parse_arguments([text for option, text in options if option == "--arg"]))
    positional, named = run._inputs(model, [text for option, text in options if option == "--input"], batch)
    with as_on_cuda(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if autocast:
            return step_peak(Stepped(model), positional, named, lambda loss: loss)
        return step_peak(model, positional, named, trace.loss_of)


def shortened(table: Model, length: int) -> Model:
    """Return *table* extracted anew with a clip of *length* frames instead of its own."""
    from sim.extract import extract

    words = shlex.split(table.command.replace(CLIP, f"{CLIP.rpartition('x')[0]}x{length}"))
    return extract(words[4], [words[6]], table.name, command=shlex.join(words))


@cache
def compared(name: str) -> Model:
    """Return the table that is compared with torch: the catalog's, but with a clip of 40 frames where torch takes steps apart."""
    table = load_part(Model, name)
    return shortened(table, 40) if name in STEP_BY_STEP else table


def predicted(table: Model, name: str, batch: int, precision: str) -> float:
    workload = load_workload(name, [f"training.precision={precision}", "training.stack.optimizer=fused"]).spec
    workload = workload.model_copy(update={"model": table})
    return max(moment.activations + moment.fresh + moment.casts for moment in memory._moments(workload, batch))


@pytest.mark.parametrize("precision", ["fp32", "amp_fp16"])
@pytest.mark.parametrize("name", [*QUICK, *cases(SLOW)])
def test_peak_is_what_torch_allocates(name: str, precision: str) -> None:
    table = compared(name)
    for batch in (20, 80) if name in STEP_BY_STEP else (2, 8):
        expected = pytest.approx(allocated(table, batch, precision != "fp32"), rel=0.1)
        assert predicted(table, name, batch, precision) == expected, batch


@pytest.mark.parametrize("name", cases(STEP_BY_STEP))
def test_the_catalog_has_the_table_of_a_longer_clip(name: str) -> None:
    """Everything of every layer grows by as much with each frame: from 20 and 40 frames to the catalog's 400, to the last byte."""
    full, few, more = load_part(Model, name), shortened(load_part(Model, name), 20), compared(name)
    grown = [(few.input, more.input, full.input), (few.autocast_saved, more.autocast_saved, full.autocast_saved)]
    for low, high, full_layer in zip(few.layers, more.layers, full.layers, strict=True):
        fields = [(getattr(low, field), getattr(high, field), getattr(full_layer, field)) for field in type(full_layer).model_fields]
        grown += [values for values in fields if isinstance(values[2], int | float)]
        assert all(low == high == full_value for low, high, full_value in fields if not isinstance(full_value, int | float))
    assert [full_value for _, _, full_value in grown] == [low + (high - low) * (400 - 20) / (40 - 20) for low, high, _ in grown]
