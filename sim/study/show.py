"""What is in a model, and which layers take its time? The layer table of one workload, or depth and gradients of several compared.

A layer's arithmetic intensity is its FLOP (matrix products and other arithmetic) over the bytes that its kernels move, weights included,
for forward and backward of a batch. Above the GPU's ridge point (peak over memory bandwidth) compute bounds it, below it memory bandwidth
does (Williams, Waterman and Patterson, CACM 2009).
The comparison shows how long a step waits for gradients (``stall``: interconnect and network time with synthetic input) next to depth and
gradient volume, the two causes that Stash varies in its micro study (arXiv 2208.14344). Limits: times are those of single layers, without
optimizer, gradient copies or a host that falls behind. If the stack removes padding or fuses attention into one kernel, layers are shown
as it runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from sim.cluster.gpu import element_bytes, peaks_for
from sim.cluster.measured import PassSetting, pass_time
from sim.events import Cause
from sim.parallel.lower.exchange_plan import gradient_volume
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.library import catalog, load_hardware, load_workload
from sim.spec.segments import block
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer, split_overrides
from sim.training.sequences import layers_run

_PRODUCTS = ("forward_flop", "backward_flop")
_ARITHMETIC = ("forward_arithmetic_flop", "backward_arithmetic_flop")
_SUMS = ("parameters", "gradient_tensors", *_PRODUCTS, *_ARITHMETIC, "traffic_bytes", "saved_bytes")
_TIMES = ("forward_time_s", "backward_time_s")


def match_workloads(patterns: Sequence[str]) -> list[str]:
    """Return the workloads in *patterns*: names and paths as they are, and all matches in the catalog for patterns such as ``res*``."""
    names: list[str] = []
    for pattern in patterns:
        matching = [name for name in catalog("workloads") if fnmatchcase(name, pattern)] if any(c in pattern for c in "*?[") else [pattern]
        if not matching:
            raise SpecError(f"{pattern}: no catalog workload matches; 'list workloads' shows them all")
        names += [name for name in matching if name not in names]
    return names


def layer_document(workload: str, hardware: str | None = None, overrides: Sequence[str] = (), batch: int | None = None) -> dict[str, Any]:
    """Return the layers of *workload* (or of a bare layer table), their blocks and totals, with times on the first GPU of *hardware*."""
    for_hardware, for_workload = split_overrides(overrides)
    if for_hardware and hardware is None:
        raise SpecError(f"--set {for_hardware[0]}: is a hardware field, but no hardware is named; write --hardware HW")
    wanted = [*([f"training.batch={batch}"] if batch else []), *for_workload]
    task = load_workload(workload, wanted).spec
    gpu = _gpu(hardware, for_hardware) if hardware else None
    rows = [_row(layer, task, gpu) for layer in layers_run(task)]
    total = _total(rows)
    return {
        "schema": 1,
        "workload": task.name,
        "hardware": hardware,
        "gpu": gpu.name if gpu else None,
        "precision": task.training.precision,
        "batch_per_gpu": task.training.batch,
        "parameters": task.model.parameters,
        "gradient_tensors": total["gradient_tensors"],
        "forward_flop_per_sample": total["forward_flop"],
        "backward_flop_per_sample": total["backward_flop"],
        "saved_bytes_per_sample": total["saved_bytes"],
        "intensity_flop_per_byte": total["intensity_flop_per_byte"],
        "roofline": _roofline(task, gpu) if gpu else None,
        "blocks": [
            {"name": name, "layers": len(members), **_total(members)}
            for name, members in ((name, list(group)) for name, group in groupby(rows, key=lambda row: block(row["name"])))
        ],
        "layers": rows,
    }


def compare_with_gradients(
    workloads: Sequence[str], hardware: str, overrides: Sequence[str] = (), batch: int | None = None
) -> dict[str, Any]:
    """Return for each of *workloads* on *hardware* its depth, its gradient volume, and how long a step waits for gradients."""
    rows = [_compared(name, hardware, overrides, batch) for name in workloads]
    return {"schema": 1, "hardware": hardware, "rows": sorted(rows, key=lambda row: (row["gradient_tensors"], row["gradient_bytes"]))}


def _compared(name: str, hardware: str, overrides: Sequence[str], batch: int | None) -> dict[str, Any]:
    job_run = answer(Scenario(hardware, name, (*overrides, "input.loader=synthetic", "training.parallel={}"), batch=batch)).run.jobs[0]
    model, stalls = job_run.job.workload.model, job_run.warm.stalls
    tensors = [elements for layer in model.layers for elements in layer.gradients]
    stall = stalls[Cause.INTERCONNECT] + stalls[Cause.NETWORK]
    return {
        "workload": name,
        "batch_per_gpu": job_run.job.workload.training.batch,
        "weight_layers": sum(bool(layer.gradients) and layer.forward > 0 for layer in model.layers),
        "gradient_tensors": len(tensors),
        "gradient_bytes": gradient_volume(job_run.job.workload),
        "step_time_s": job_run.warm.step_time,
        "stall_s": stall,
        "stall_share": stall / job_run.warm.step_time,
    }


def _gpu(hardware: str, overrides: Sequence[str]) -> Gpu:
    for group in load_hardware(hardware, overrides).spec.groups:
        if group.role == "worker" and group.node.gpu_count:
            return group.node.gpu
    raise SpecError(f"{hardware}: has no GPU, so there are no times to show")


def _row(layer: Layer, workload: Workload, gpu: Gpu | None) -> dict[str, Any]:
    training = workload.training
    batch, elements = training.batch, sum(layer.gradients)
    scale = element_bytes(layer.op, training.precision) / 4.0
    activations = (layer.read + layer.write + layer.backward_traffic) * scale
    row: dict[str, Any] = {
        "name": layer.name,
        "op": layer.op,
        "parameters": elements,
        "gradient_tensors": len(layer.gradients),
        "forward_flop": layer.forward,
        "backward_flop": layer.backward,
        "forward_arithmetic_flop": layer.arithmetic,
        "backward_arithmetic_flop": layer.backward_arithmetic,
        "traffic_bytes": activations + _weight_bytes(layer) / batch,
        "saved_bytes": layer.saved * scale,
    }
    row["intensity_flop_per_byte"] = _intensity(row)
    if gpu is not None:
        here = PassSetting(gpu, training.precision, workload.layer_stack, batch)
        times = [pass_time(layer, workload.model.measured, here, backward).time for backward in (False, True)]
        row |= dict(zip(_TIMES, times, strict=True))
    return row


def _weight_bytes(layer: Layer) -> float:
    """Return the bytes to read weights twice and write their gradients; for an embedding, only those of a dense gradient."""
    trained = layer.gradient_bytes(4.0)
    if layer.op == "embedding":
        return 0.0 if layer.sparse else trained
    return 3.0 * trained + 2.0 * layer.frozen_bytes(4.0)


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = (*_SUMS, *(_TIMES if _TIMES[0] in rows[0] else ()))
    total: dict[str, Any] = {key: sum(row[key] for row in rows) for key in keys}
    return total | {"intensity_flop_per_byte": _intensity(total)}


def _intensity(row: Mapping[str, Any]) -> float:
    flop = float(sum(row[key] for key in (*_PRODUCTS, *_ARITHMETIC)))
    return flop / row["traffic_bytes"] if row["traffic_bytes"] else 0.0


def _roofline(workload: Workload, gpu: Gpu) -> dict[str, Any]:
    """Return the peak of a convolution (or else of a matrix product), the memory bandwidth, and the ridge point where they meet."""
    op = "conv" if any(layer.op == "conv" for layer in workload.model.layers) else "gemm"
    peak = next(gpu.peak[name] for name in peaks_for(op, workload.training.precision, workload.training.stack.kernels) if name in gpu.peak)
    ridge = peak / gpu.memory_bandwidth
    return {"peak_flop_per_s": peak, "memory_bytes_per_s": gpu.memory_bandwidth, "ridge_flop_per_byte": ridge}
