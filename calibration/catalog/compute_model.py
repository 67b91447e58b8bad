"""How long does one GPU take for a measured row, as a function of a few factors? The layer model in a form whose factors can be fitted.

A row's step takes ``c * (sum of max(products * f, bytes * m) + converted bytes * m + kernels)``, at least the host's time to launch it,
plus the optimizer (less the part of its launches that backward hides) and the host's checks of gradients. The sum runs over the layers,
forward and backward, with times from ``sim.cluster.gpu.layer_work``. Factors belong to an architecture (compute capability): products on
vector units, products on tensor cores, memory; or to a software stack: everything, tensor cores, bytes of fusible operators, launches, the
optimizer. All are logarithms here, zero if nothing was fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration import RECORDS
from calibration.run_records import RunRecord, read_records
from sim.cluster.gpu import FUSIBLE, layer_work, memory_time
from sim.spec.hardware import Gpu
from sim.spec.library import load_part, load_workload
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.training.sequences import layers_run
from sim.training.step_plan import gradient_checks, optimizer_work, plan_step, reads_before_update

Vector = NDArray[np.float64]

ROWS: Final = RECORDS / "single_gpu.csv"
"""1-GPU rows; ``hardware`` is the name of a GPU in ``hardware/parts/gpus``."""

ROW_FACTORS: Final = ("vector", "tensor", "memory", "overall", "fused", "launch", "optimizer", "gemm")
"""The factors of a row's time, as logarithms; ``tensor`` and ``gemm`` are the sum of an architecture's and a stack's factor."""
UNFITTED_STACK: Final[dict[str, float]] = {
    "compute_factor": 1.0,
    "tensor_core_factor": 1.0,
    "tensor_core_gemm_factor": 1.0,
    "elementwise_traffic": 1.0,
    "optimizer_factor": 1.0,
}
"""Fitted fields of a stack with their values before any fit."""
EAGER_LAUNCH: Final = 25e-6
"""Time of one launch (s) before the fit, in stacks whose launches are fitted: that of ``torch-1.13-ddp``, which all of them extend."""
SAME_MULTIPROCESSOR: Final = {"3.7": "3.5"}
"""Compute capabilities that share their factors: GK210 is GK110 with more registers and shared memory (NVIDIA, Kepler Tuning Guide)."""
WHOLE_STEP_CAPABILITIES: Final = frozenset({"9.0"})
"""Compute capabilities whose efficiency curves come from whole steps (records/blind), so that products need no factor."""
CHIPS_OF_ONE_NAME: Final = ("maxwell", "pascal")
"""TITAN X is the name of two chips: GM200, and a year later GP102."""
FIRST_KERNELS: Final = "cuDNN 7.0"
"""The release with the first convolutions on tensor cores, slower than all later ones; its stacks share a factor on tensor cores."""
FIRST_STACKS: Final = ("tensorflow-1.4", "tensorflow-1.5", "torch-0.3")
MEMORY_EFFICIENCY: Final = 0.77
"""Reached share of the data sheet's memory bandwidth before any fit: 0.75 by copies on H100 (NVIDIA/nccl issue 1264), 0.78 on M60
(rossumai)."""


@dataclass(frozen=True)
class FactorRow:
    """A measured row and the arrays that predict it: one element per layer and pass, in seconds before any factor."""

    record: RunRecord
    capability: str
    peak: float
    """Peak FLOP/s of the units that most of the row's FLOP run on."""
    flop: float
    measured: float
    products: Vector
    least_times: Vector
    on_tensor_cores: NDArray[np.bool_]
    fusible_traffic: Vector
    is_gemm: NDArray[np.bool_]
    is_shape_modeled: NDArray[np.bool_]
    """Products whose time is modeled by the shape of their kernels, to which no factor applies."""
    other_traffic: Vector
    conversion: float
    kernels: float
    host: float
    optimizer: float
    optimizer_host: float
    checks: float
    reads_back: bool
    is_image_model: bool
    """Whether convolutions do most of the FLOP."""

    @property
    def chip(self) -> str:
        """Return the GPU's name without memory size and form factor; rows of one chip are left out together."""
        name, _, board = self.record.hardware.partition("-")
        return f"{name}-{board}" if board in CHIPS_OF_ONE_NAME else name

    @property
    def stack(self) -> str:
        """Return the name of the software stack."""
        return self.record.stack or ""

    @property
    def family(self) -> str:
        """Return ``fp32 convolution`` for image models on vector units, else ``tensor cores and BERT``, which includes language models."""
        return "fp32 convolution" if self.is_image_model and not self.on_tensor_cores.any() else "tensor cores and BERT"


def multiprocessor_of(gpu: Gpu) -> str:
    """Return the compute capability whose factors *gpu* shares."""
    return SAME_MULTIPROCESSOR.get(gpu.compute_capability, gpu.compute_capability)


@lru_cache(maxsize=256)
def gpu_part(name: str) -> Gpu:
    """Return a GPU of the catalog."""
    return load_part(Gpu, name)


@lru_cache(maxsize=512)
def workload_of(name: str, stack: str, overrides: str) -> Workload:
    """Return a workload with its stack and ``KEY=VALUE;...`` overrides."""
    return load_workload(name, [f"training.stack={stack}", *(text for text in overrides.split(";") if text)]).spec


def workload_and_gpu(record: RunRecord) -> tuple[Workload, Gpu]:
    """Return the workload and the GPU of *record*."""
    workload = workload_of(record.workload, record.stack or "", record.overrides)
    training = workload.training
    batch, precision = record.batch_per_gpu or training.batch, record.precision or training.precision
    return workload.with_training(batch=batch, precision=precision), gpu_part(record.hardware)


def measured_time(record: RunRecord) -> float:
    """Return the measured compute time of one step, seconds."""
    if record.step_time is not None:
        return record.step_time - (record.exposed_sync or 0.0)
    assert record.throughput is not None and record.batch_per_gpu is not None
    return record.batch_per_gpu / record.throughput


def predicted_time(record: RunRecord) -> float:
    """Return the step time (s) from the simulator's own plan, with the factors of the catalog."""
    workload, gpu = workload_and_gpu(record)
    return plan_step(workload, gpu, 1.0, ranks=1).isolated_time


def without_fitted_factors(workload: Workload, gpu: Gpu) -> tuple[Workload, Gpu]:
    """Return *workload* and *gpu* without the factors that were fitted to whole networks."""
    catalog_stack = workload.training.stack
    fitted = isinstance(catalog_stack.source, dict) and catalog_stack.source.get("launch_cpu", "").startswith("fitted")
    stack: Stack = with_fields(catalog_stack, **UNFITTED_STACK, **({"launch_cpu": EAGER_LAUNCH} if fitted else {}))
    plain = gpu.model_copy(
        update={"vector_factor": 1.0, "tensor_core_factor": 1.0, "tensor_core_gemm_factor": 1.0, "memory_efficiency": MEMORY_EFFICIENCY}
    )
    return workload.with_training(stack=stack), plain


def read_rows(path: Path = ROWS) -> tuple[FactorRow, ...]:
    """Return the rows of *path*, each with the arrays that predict it."""
    return tuple(factor_row(record) for record in read_records(path).records)


def factor_row(record: RunRecord) -> FactorRow:
    """Return *record* with the arrays that predict it."""
    workload, gpu = without_fitted_factors(*workload_and_gpu(record))
    training, layers, stack = workload.training, layers_run(workload), workload.layer_stack
    works = [
        (layer, layer_work(layer, gpu, training.precision, stack, training.batch, backward))
        for layer in layers
        for backward in (False, True)
    ]
    update = optimizer_work(workload, gpu)
    kernels = sum(work.kernels for _, work in works)
    weight = [(work.products * gpu.peak[work.peak], work.peak) for _, work in works if work.products]
    return FactorRow(
        record=record,
        capability=multiprocessor_of(gpu),
        peak=gpu.peak[max(weight)[1]],
        flop=training.batch * sum(layer.forward + layer.backward for layer in layers),
        measured=measured_time(record),
        products=np.array([work.products for _, work in works]),
        least_times=np.array([work.least_products for _, work in works]),
        on_tensor_cores=np.array([work.peak != "fp32" and work.products > 0 for _, work in works]),
        fusible_traffic=np.array([memory_time(work.moved_bytes, gpu) if layer.op in FUSIBLE else 0.0 for layer, work in works]),
        other_traffic=np.array([0.0 if layer.op in FUSIBLE else memory_time(work.moved_bytes, gpu) for layer, work in works]),
        is_gemm=np.array([layer.op in ("gemm", "attention") for layer, work in works]),
        is_shape_modeled=np.array([work.from_shape for _, work in works]),
        conversion=memory_time(sum(work.converted_bytes for _, work in works), gpu),
        kernels=kernels * gpu.kernel_time,
        host=(1.0 if training.stack.kernels.cuda_graphs else sum(work.launches for _, work in works)) * training.stack.kernels.launch_cpu,
        optimizer=update.time,
        optimizer_host=0.0 if training.stack.kernels.cuda_graphs else update.launches * training.stack.kernels.launch_cpu,
        checks=gradient_checks(workload) * training.stack.kernels.launch_cpu,
        reads_back=reads_before_update(workload),
        is_image_model=sum(layer.forward for layer in layers if layer.op == "conv") > 0.5 * sum(layer.forward for layer in layers),
    )


def step_time(row: FactorRow, local: Vector) -> float:
    """Return the step time of *row* (s), where *local* has the logarithms of its factors in the order of ``LOCAL``."""
    return step_time_and_slopes(row, local)[0]


def step_time_and_slopes(row: FactorRow, local: Vector) -> tuple[float, Vector]:
    """Return the step time of *row*, and the derivative of its logarithm with respect to the logarithm of each factor."""
    vector, tensor, memory, overall, fused, launch, optimizer, gemm = np.exp(local)
    factors = np.where(row.on_tensor_cores, np.where(row.is_gemm, gemm, tensor), vector)
    by_factors = row.products * np.where(row.is_shape_modeled, 1.0, factors)
    products, free = np.maximum(by_factors, row.least_times), (by_factors >= row.least_times) & ~row.is_shape_modeled
    fusible = row.fusible_traffic * fused * memory
    traffic = fusible + row.other_traffic * memory
    bound = products >= traffic
    shares = dict.fromkeys(ROW_FACTORS, 0.0)
    busy = overall * (np.where(bound, products, traffic).sum() + row.conversion * memory + row.kernels)
    if busy >= row.host * launch:
        shares["vector"] = overall * products[bound & ~row.on_tensor_cores & ~row.is_shape_modeled].sum()
        shares["tensor"] = overall * products[bound & free & row.on_tensor_cores & ~row.is_gemm].sum()
        shares["gemm"] = overall * products[bound & free & row.on_tensor_cores & row.is_gemm].sum()
        shares["memory"] = overall * (traffic[~bound].sum() + row.conversion * memory)
        shares["fused"] = overall * fusible[~bound].sum()
        shares["overall"] = busy
    else:
        shares["launch"] = busy = row.host * launch
    worked, launched = optimizer * row.optimizer * memory, optimizer * row.optimizer_host * launch
    lead = 0.0 if row.reads_back else max(0.0, busy - row.host * launch)
    if launched - lead > worked:
        # backward hides only a part of the launches, so the whole step waits for the host
        shares = dict.fromkeys(ROW_FACTORS, 0.0) if lead else shares
        shares["launch"] += launched + (row.host * launch if lead else 0.0)
        shares["optimizer"] = launched
        update = launched - lead
    else:
        shares["optimizer"] = update = worked
        shares["memory"] += worked
    shares["launch"] += row.checks * launch
    total = float(busy + update + row.checks * launch)
    return total, np.array([shares[name] for name in ROW_FACTORS]) / total


def factor_keys(row: FactorRow) -> tuple[tuple[tuple[str, str], int], ...]:
    """Return the keys of the factors that apply to a row, each with its index in ``LOCAL``."""
    place = {name: index for index, name in enumerate(ROW_FACTORS)}
    own = [((kind, owner), place[kind]) for kind in factor_kinds(row.capability) for owner in ("all", f"cc {row.capability}")]
    stack = [((kind, row.stack), place[kind]) for kind in ("overall", "tensor", "gemm", "fused", "launch", "optimizer")]
    first = [(("tensor", FIRST_KERNELS), place["tensor"])] if row.stack in FIRST_STACKS else []
    return tuple(own + first + stack)


def factor_kinds(capability: str) -> tuple[str, ...]:
    """Return the kinds of factors that GPUs of a compute *capability* have."""
    return ("memory",) if capability in WHOLE_STEP_CAPABILITIES else ("vector", "tensor", "gemm", "memory")


def all_factor_keys(rows: Iterable[FactorRow]) -> Sequence[tuple[str, str]]:
    """Return every factor of *rows*, sorted."""
    return sorted({key for row in rows for key, _ in factor_keys(row)})
