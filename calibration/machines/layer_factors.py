"""How much slower are layers inside a network than single kernels predict? Two factors from the times of whole layers.

One factor is for layers that compute products, such as convolutions and fully connected layers; the other is for passes: all remaining
layers, which are memory bound. Each factor is the measured time, forward and backward, over the time that the simulator's layer model
gives for the device as its kernels describe it. So it covers effects that single kernels do not show: backward passes, allocation and
cache misses. Each network gives one pair of factors and the fit combines all networks. The factor of products goes to the device. The
factor of passes goes to the software stack (`Stack.elementwise_traffic`: element-wise operators, norms and pooling), because the optimizer
uses the same memory without this loss. A network with layers whose kernels were not measured is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from calibration.machines.machine_fit import FACTOR, Fit, MergedRecords
from calibration.machines.posterior import fit_mean
from calibration.measure.machine_record import AnswerRow
from sim.cluster.gpu import layer_time
from sim.extract import extract
from sim.spec.catalog import catalog
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.yaml import SpecError

PRODUCT_OPERATORS: Final = ("conv", "gemm", "attention", "rnn", "embedding")
"""Operator classes of layers that compute products; all others are passes over memory."""
_COMPUTING: Final = ("Conv", "Linear", "Bilinear", "LSTM", "GRU", "RNN", "Embedding", "MultiheadAttention")
"""Prefixes of the names of torch modules that compute products."""
NETWORK_PRODUCTS: Final = "products in networks"
NETWORK_PASSES: Final = "passes in networks"
"""Subjects of the two fits."""
_TORCHVISION: Final = "torchvision.models"
_PICTURE: Final = ("3x224x224",)
"""The input with which the catalog's models of torchvision are traced."""
LEAST_TIME: Final = 20e-6
"""Total measured time (s) of one kind of layers in a network below which their factor is noise."""


@lru_cache(maxsize=32)
def trace_model(target: str, inputs: Sequence[str], arguments: Sequence[str]) -> Model:
    """Return the layer table of a measured model. Raise SpecError if it cannot be traced.

    Models of torchvision that the catalog has need no torch, so that a record can be fitted on a machine without it.
    """
    from sim.extract.target import parse_arguments

    module, _, name = target.partition(":")
    if module == _TORCHVISION and (*inputs,) == _PICTURE and not arguments and name in catalog("workloads/models"):
        return load_part(Model, name)
    return extract(target, inputs, target.rpartition(":")[2], parse_arguments(arguments))


def layer_fits(records: MergedRecords, gpu: Gpu, kernels: Collection[str]) -> dict[str, Fit]:
    """Return the factors on products and passes relative to *gpu*, without those for which no layer was measured.

    *kernels* are the kernel classes that were measured or that the catalog describes.
    """
    values_of: dict[str, list[float]] = {NETWORK_PRODUCTS: [], NETWORK_PASSES: []}
    for row in records.rows("layers"):
        try:
            model = trace_model(row["model"], tuple(row["inputs"]), tuple(row["arguments"]))
        except SpecError:
            continue  # the model is no longer available
        if any(_kernel(layer.op) not in kernels for layer in model.layers if layer.op in PRODUCT_OPERATORS):
            continue  # some of its kernels were not measured
        for subject, ratio in zip(values_of, layer_ratios(row, model, gpu), strict=True):
            values_of[subject] += [ratio] if ratio else []
    return {
        subject: Fit(subject, "layers", np.ones(len(values)), np.array(values), fit_mean(FACTOR, values))
        for subject, values in values_of.items()
        if values
    }


def untraced_models(records: MergedRecords) -> dict[str, str]:
    """Return the models whose layers were measured but which cannot be traced here, with the reason."""
    reasons: dict[str, str] = {}
    for row in records.rows("layers"):
        try:
            trace_model(row["model"], tuple(row["inputs"]), tuple(row["arguments"]))
        except SpecError as error:
            reasons[row["model"]] = error.problems[0]
    return reasons


def _kernel(op: str) -> str:
    """Return the kernel class that describes layers of class *op*."""
    return "conv" if op == "conv" else "gemm"


def layer_ratios(row: AnswerRow, model: Model, gpu: Gpu) -> tuple[float | None, float | None]:
    """Return measured over modeled time of the layers that compute products and of the others; None if they took too little time."""
    measured = [0.0, 0.0]
    for layer in row["layers"]:
        measured[not layer["type"].startswith(_COMPUTING)] += _median(layer["forward_s"]) + _median(layer["backward_s"])
    stack = full_precision(load_part(Stack, "torch-2.x-ddp"))
    modeled = [0.0, 0.0]
    for each in model.layers:
        modeled[each.op not in PRODUCT_OPERATORS] += _time(each, gpu, stack, row["batch"])
    pairs = zip(measured, modeled, strict=True)
    computing, passing = (took / due if took > LEAST_TIME and due > 0 else None for took, due in pairs)
    return computing, passing


def full_precision(stack: Stack) -> Stack:
    """Return *stack* as used when layers and steps are measured: fp32 products without TF32."""
    return with_fields(stack, fp32_convolution="fp32", fp32_matmul="fp32")


def _time(layer: Layer, gpu: Gpu, stack: Stack, batch: int) -> float:
    return sum(layer_time(layer, gpu, "fp32", stack, batch, backward).time for backward in (False, True))


def _median(times: Sequence[Any]) -> float:
    return float(np.median(times)) if len(times) else 0.0
