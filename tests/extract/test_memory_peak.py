"""Activations and temporaries at their peak, against the storages that torch really makes and frees during a step on the meta device.

Oracle: ``allocation.py``, which knows nothing of layers. Within 10 %, at a small and a larger batch; what is compared is what the batch
and the new gradients need, as weights, old gradients and state are equal by construction. Left out: DLRM, as sparse gradients cannot be
added on meta.
"""

from __future__ import annotations

import contextlib
import shlex
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sim.analysis import memory
from sim.spec.library import catalogue, load_part, load_workload
from sim.spec.workload import Model

torch = pytest.importorskip("torch", reason="counting torch's storages needs torch")

QUICK = ["alexnet", "resnet18", "vgg11", "cifar10-resnet18", "ncf", "recoder-ml20m", "gnmt", "transformer-multi30k"]
SLOW = sorted(set(catalogue("workloads/models")) - {*QUICK, "dlrm-criteo"})


def allocated(table: Model, batch: int) -> int:
    from sim.extract import run, target, trace
    from sim.extract.build import build
    from sim.extract.fused import as_on_cuda
    from tests.extract.allocation import step_peak

    words = shlex.split(table.command)
    options = list(zip(words[5:-2:2], words[6:-2:2], strict=True))
    if "torchvision" in words[4] or "resnet" in words[4] or "ssd" in words[4]:
        pytest.importorskip("torchvision", reason="the catalogue's image models are torchvision's")
    model = build(words[4], target.find(words[4]), target.parse_arguments([text for option, text in options if option == "--arg"]))
    positional, named = run._inputs(model, [text for option, text in options if option == "--input"], batch)
    unrecorded: Any = SimpleNamespace(paused=contextlib.nullcontext)
    with as_on_cuda(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return step_peak(model, positional, named, lambda output: trace._loss(output, unrecorded))


def predicted(name: str, batch: int) -> float:
    workload = load_workload(name, ["training.precision=fp32", "training.stack.optimizer=fused"]).spec
    live, fresh = memory._live(workload), memory._fresh_gradients(workload, batch)
    return max(batch * moment.activations + waiting for moment, waiting in zip(live, fresh, strict=True))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_peak_is_what_torch_allocates(name: str) -> None:
    table = load_part(Model, name, "workloads/models")
    for batch in (2, 8):
        assert predicted(name, batch) == pytest.approx(allocated(table, batch), rel=0.1), batch
