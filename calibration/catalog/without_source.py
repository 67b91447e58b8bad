"""What would descriptions be if one source had never been measured? Its rows are left out of every fit, and its constants are reset.

Factors of GPUs and software stacks are refitted to the one-GPU rows of all other sources (`calibration.catalog.compute`). Constants of
transport classes and machines that were read off the source's rows are reset to those of the class they refine. Two things cannot be
undone: descriptions of clusters, and the simulator's mechanisms, some of which were added because predictions of these rows were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sim.spec.catalog import UnknownName, locate, read
from sim.spec.hardware import Gpu, Hardware, Node
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.spec.yaml import read as parse

if TYPE_CHECKING:
    from calibration.catalog.compute import Factors
    from calibration.catalog.compute_model import FactorRow

FILE: Final = Path(__file__).with_name("sources.yaml")
_SOURCES: Final[Mapping[str, Mapping[str, Any]]] = parse(FILE).value
ONE_GPU_PREFIXES: Final[Mapping[str, str]] = {name: entry["one_gpu"] for name, entry in _SOURCES.items() if "one_gpu" in entry}
"""For each source of measured runs, the prefix of its rows' source in the one-GPU records; a source not listed has no such rows."""
SINGLE_SOURCE_PRIORS: Final[Mapping[str, tuple[str, ...]]] = {name: tuple(entry.get("wide", ())) for name, entry in _SOURCES.items()}
"""For each source, the priors of `calibration.clusters.priors` that rest on it alone."""
RUN_SOURCES: Final = frozenset(_SOURCES)
"""The sources of the committed runs, on which constants may rest."""


def machine_without(source: str, machine: Hardware) -> Hardware:
    """Return *machine* as it would be described without *source*; equal nodes stay one object."""
    changed: dict[int, Node] = {}
    groups = []
    for group in machine.groups:
        if id(group.node) not in changed:
            changed[id(group.node)] = _node(source, group.node)
        groups.append(group.model_copy(update={"node": changed[id(group.node)]}))
    return machine.model_copy(update={"groups": tuple(groups)})


def _node(source: str, node: Node) -> Node:
    entry = _SOURCES.get(source, {})
    moved = {name: {field: _frozen(value) for field, value in fields.items()} for name, fields in entry.get("transports", {}).items()}
    update: dict[str, Any] = {
        place: transport.model_copy(update=dict(moved[transport.name]))
        for place, transport in node.transports.items()
        if transport.name in moved
    }
    if node.nic.transport.name in moved:
        transport = node.nic.transport.model_copy(update=dict(moved[node.nic.transport.name]))
        update["nic"] = node.nic.model_copy(update={"transport": transport})
    if "topology" in entry:
        update["topology"] = node.topology.model_copy(update=dict(entry["topology"]))
    if source in ONE_GPU_PREFIXES:
        update["gpu"] = _gpu(node.gpu, factors_without(source))
    return node.model_copy(update=update)


def _frozen(value: Any) -> Any:
    """Return *value* with lists converted to tuples, as descriptions hold them."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def workload_without(source: str, workload: Workload, overrides: tuple[str, ...]) -> Workload:
    """Return *workload* with its stack as it would be without *source*; fields set by *overrides* are kept."""
    if source not in ONE_GPU_PREFIXES:
        return workload
    training = workload.training
    name = _fitted_name(training.stack.name)
    if name is None:
        return workload
    fields = stack_factors(training.stack, name, factors_without(source))
    kept = {field: value for field, value in fields.items() if not any(f"stack.{field}" in text for text in overrides)}
    stack = with_fields(training.stack, **kept)
    return workload.with_training(stack=stack)


@lru_cache(maxsize=16)
def factors_without(source: str) -> Factors:
    """Return the factors of GPUs and stacks (logarithms), fitted to all one-GPU rows except those of *source*."""
    from calibration.catalog.compute import fit

    return fit([row for row in _rows() if not row.record.source.startswith(ONE_GPU_PREFIXES[source])])


@lru_cache(maxsize=1)
def _rows() -> tuple[FactorRow, ...]:
    from calibration.catalog.compute_model import read_rows

    return read_rows()


def _gpu(gpu: Gpu, factors: Factors) -> Gpu:
    """Return *gpu* with the *factors* of its architecture, or unchanged if the architecture has no rows."""
    from calibration.catalog.compute_model import multiprocessor_of

    capability = multiprocessor_of(gpu)
    if all(row.capability != capability for row in _rows()):
        return gpu
    return gpu.model_copy(update=gpu_factors(capability, factors))


def gpu_factors(capability: str, factors: Factors) -> dict[str, float]:
    """Return the fitted fields of GPUs of a compute *capability*; if it has no rows, those that all GPUs share."""
    from calibration.catalog.compute_model import MEMORY_EFFICIENCY, factor_kinds

    fitted = dict.fromkeys(("vector", "tensor", "gemm", "memory"), 1.0) | {
        kind: math.exp(sum(factors.get((kind, owner), 0.0) for owner in ("all", f"cc {capability}"))) for kind in factor_kinds(capability)
    }
    return {
        "vector_factor": fitted["vector"],
        "tensor_core_factor": fitted["tensor"],
        "tensor_core_gemm_factor": fitted["gemm"],
        "memory_efficiency": MEMORY_EFFICIENCY / fitted["memory"],
    }


def stack_factors(stack: Stack, name: str, factors: Factors) -> dict[str, float]:
    """Return the fitted fields of *stack*, with the factors fitted to the rows of the stack *name*."""
    from calibration.catalog.compute_model import EAGER_LAUNCH, FIRST_KERNELS, FIRST_STACKS

    def factor(kind: str) -> float:
        shared = factors.get((kind, FIRST_KERNELS), 0.0) if name in FIRST_STACKS else 0.0
        return math.exp(factors.get((kind, name), 0.0) + shared)

    fields = {
        "compute_factor": factor("overall"),
        "tensor_core_factor": factor("tensor"),
        "tensor_core_gemm_factor": factor("gemm"),
        "elementwise_traffic": factor("fused"),
        "optimizer_factor": factor("optimizer"),
    }
    if isinstance(stack.source, dict) and stack.source.get("launch_cpu", "").startswith("fitted"):
        fields["launch_cpu"] = EAGER_LAUNCH * factor("launch")
    return fields


@lru_cache(maxsize=128)
def _fitted_name(name: str) -> str | None:
    """Return the stack whose rows determine the factors of the stack *name*: itself, or the nearest one with rows that it extends."""
    fitted = {row.stack for row in _rows()}
    for _ in range(8):
        if name in fitted:
            return name
        try:
            name = str(read(locate(name, "workloads/stacks")).value.get("extends") or "")
        except UnknownName:
            return None
    return None
