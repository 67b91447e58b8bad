"""Can this workload run on this hardware? Checks ranks against GPUs, data against disks, precision against the GPU, and memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Final

from sim import units
from sim.check.checks import check_hardware, check_workload, located_messages, require
from sim.check.servers import check_servers
from sim.check.topology import Problem
from sim.spec import memo
from sim.spec.algorithms import OTHER_ALGORITHMS, other_algorithm
from sim.spec.catalog import catalog
from sim.spec.fields import SCANS, OperatorClass, Peak, Precision
from sim.spec.fp8_recipe import recipes_on
from sim.spec.hardware import Gpu, Group, Hardware
from sim.spec.input import Dataset
from sim.spec.library import Loaded, load_part
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.workload import Workload
from sim.spec.yaml import Document
from sim.units import any_of, pluralized

MemoryFit = Callable[[Gpu, Workload], str | None]
"""Returns a sentence with the memory that a step needs, what is available and what would fit; None if it fits."""

_MOST_SPREAD: Final = 2
"""Times as many nodes as hold the GPUs that an even spread may take to be suggested."""
_CURVES: Final[Mapping[OperatorClass, tuple[OperatorClass, ...]]] = {
    "conv": ("conv",), "gemm": ("gemm",), "attention": ("attention", "gemm"), "scan": ("scan", "gemm"),
    "delta_scan": ("delta_scan", "gemm"), "rnn": ("rnn",),
}  # fmt: skip
"""Curves of efficiency, one of which products of each class need: attention may use that of gemm."""
_SHAPED: Final = ("gemm", "attention", *SCANS)
NEEDS: Final[dict[Precision, Peak]] = {name: meaning.needs for name, meaning in PRECISION_TRAITS.items() if meaning.needs}
"""The compute units that a precision requires."""


def check_job(
    hardware: Hardware,
    workload: Workload,
    *,
    gpus: int | None = None,
    fit: MemoryFit | None = None,
    documents: tuple[Document | None, Document | None] = (None, None),
) -> list[str]:
    """Return why *workload* cannot run on *gpus* GPUs (all of them if None) of *hardware*.

    *fit* checks GPU memory. *documents* are those of hardware and workload, for the places of problems.
    """
    problems = [*_counts(hardware, gpus, workload.training.parallel.model_ranks)]
    for_hardware = [*_storage(hardware, workload), *_operators(hardware, workload)]
    for_workload = [*_precision(hardware, workload), *_batches(hardware, workload), *check_servers(hardware, workload)]
    if len(workload.training.batches) in (0, len(hardware.worker_groups)):
        for_workload += _memory(hardware, workload, fit)
    return [*problems, *located_messages(for_hardware, documents[0]), *located_messages(for_workload, documents[1])]


def check_run(hardware: Loaded[Hardware], workload: Loaded[Workload], *, gpus: int | None = None) -> list[str]:
    """Raise SpecError listing everything that prevents *workload* from running on *gpus* GPUs of *hardware* (default: all).

    Return warnings.
    """
    machine, task = hardware.spec, workload.spec
    problems = [
        *memo.get_or_make((check_hardware, id(hardware)), lambda: check_hardware(machine, hardware.document), hardware),
        *memo.get_or_make((check_workload, id(workload)), lambda: check_workload(task, workload.document), workload),
    ]
    documents = (hardware.document, workload.document)
    require([*problems, *check_job(machine, task, gpus=gpus, documents=documents)])
    return job_warnings(machine, task, None if gpus is None else -(-gpus // sum(group.count for group in machine.worker_groups)), gpus)


def job_warnings(hardware: Hardware, workload: Workload, ranks_per_node: int | None = None, ranks: int | None = None) -> list[str]:
    """Return warnings about *workload* on *hardware*: unusual, but not wrong; *ranks* is the total number of GPUs, all of them if None."""
    ranks = ranks or hardware.worker_gpus
    slow = [
        *_without_half_units(hardware, workload),
        *recipe_warnings(workload),
        *_short_epoch(workload, ranks),
        *user_part_warnings(workload),
        *domain_warnings(hardware),
    ]
    if workload.input.loader == "synthetic":
        return slow
    return [*slow, *prep_warnings(workload)] + [
        text for group in hardware.worker_groups for text in (*_crowded(group, workload, ranks_per_node), *_overfull(group, workload))
    ]


def layout_stack_warnings(workload: Workload) -> Iterator[str]:
    """Yield a warning for a stack for layouts if *workload* runs without one, as several jobs on one cluster do."""
    stack = workload.training.stack
    if stack.mesh is not None:
        yield (
            f"training.stack: {stack.name} is for layouts, but this runs plain data parallelism; its data types for weights, gradients and "
            "optimizer state and its host times are ignored"
        )


def recipe_warnings(workload: Workload) -> Iterator[str]:
    """Yield a warning if an FP8 recipe has no effect because the precision is not FP8."""
    training = workload.training
    if training.fp8_recipe is not None and training.precision != "fp8":
        yield f"training.fp8_recipe: {training.fp8_recipe} has no effect with {training.precision}; write precision: fp8, or leave it out"


def user_part_warnings(workload: Workload) -> Iterator[str]:
    """Yield a warning for each user-defined loader, exchange or all-reduce, which is not validated against measurements."""
    if (exchange := workload.training.stack.exchange.own_exchange) is not None:
        yield f"exchange {exchange} is user-defined and not validated; the expected error shown is that of the built-in exchanges"
    if (algorithm := other_algorithm(workload.training.stack.library.nccl_algo)) is not None and algorithm not in OTHER_ALGORITHMS:
        yield f"collective {algorithm} is user-defined and not validated; the expected error shown is that of the built-in algorithms"
    if workload.input.own_loader is not None:
        yield (
            f"loader {workload.input.own_loader} is user-defined and not validated; the expected error shown is that of the built-in "
            "loaders"
        )


def _counts(hardware: Hardware, gpus: int | None, replica: int = 1) -> Iterator[str]:
    """Find numbers of GPUs that *hardware* does not have; advice keeps whole replicas of *replica* GPUs."""
    workers, total = hardware.worker_groups, hardware.worker_gpus
    count = sum(group.count for group in workers)
    if gpus is not None and gpus < 1:
        yield f"--gpus {gpus}: write 1 or more"
    elif gpus is not None and gpus > total:
        more_nodes = workers and len(hardware.groups) == 1 and gpus % replica == 0
        hint = f", or add {_more_nodes(gpus, workers[0].node.gpu_count, replica)}" if more_nodes else ""
        most = f"at most {total}" if replica == 1 else str(total - total % replica) if total >= replica else ""
        advice = f"{most}{hint}" if most else hint.removeprefix(", or ") or f"a multiple of {replica}, and more --nodes"
        yield f"--gpus {gpus}: {count} x {hardware.name} {'has' if count == 1 else 'have'} {pluralized(total, 'GPU')}; write {advice}"


def _more_nodes(gpus: int, each: int, replica: int) -> str:
    """Return the options for *gpus* GPUs on nodes of *each*, or for almost as many if an even spread takes far more nodes than hold them.

    An even spread over more nodes than hold the GPUs pays for idle ones, so it says how many of each node's are used. Whole replicas of
    *replica* GPUs are kept.
    """
    fewest = -(-gpus // each)
    even = next(nodes for nodes in range(fewest, gpus + 1) if gpus % nodes == 0)
    step = math.lcm(fewest, replica)
    near = [count for count in (gpus // step * step, (gpus // step + 1) * step) if 0 < count <= fewest * each]
    if even == fewest:
        return f"--nodes {even}"
    almost = f"--nodes {fewest} and write {any_of(near)} GPUs" if near else ""
    if even > _MOST_SPREAD * fewest and almost:
        return almost
    return ", or ".join(filter(None, (f"--nodes {even} ({gpus // even} of the {pluralized(each, 'GPU')} of each)", almost)))


def _storage(hardware: Hardware, workload: Workload) -> Iterator[Problem]:
    """Check that there is a disk if the loader reads real data."""
    if workload.input.loader == "synthetic":
        return
    for index, group in enumerate(hardware.groups):
        if group.role == "worker" and group.count and group.node.storage is None:
            yield (
                ("groups", index, "node", "storage"),
                f"is missing, but the loader '{workload.input.loader}' reads {workload.dataset.name} from a disk; for example, write "
                "{volume: gp2, source: ...}, or --set input.loader=synthetic",
            )


def _operators(hardware: Hardware, workload: Workload) -> Iterator[Problem]:
    """Find products whose time nothing describes; GPUs with ``kernels`` compute that of matrix products and attention from shapes."""
    if workload.model.measured is not None:
        return
    counts = Counter(layer.op for layer in workload.model.layers if layer.forward)
    for gpu in {group.node.gpu.name: group.node.gpu for group in hardware.worker_groups}.values():
        needed = _CURVES if gpu.kernels is None else {op: _CURVES[op] for op in _CURVES if op not in _SHAPED}
        for op in (op for op, curves in needed.items() if counts[op] and not any(curve in gpu.efficiency for curve in curves)):
            layers = pluralized(counts[op], "layer")
            yield ("node", "gpu", "efficiency"), f"has no curve for {op}, the class of {layers} of {workload.model.name}; write {op}: ..."


def _precision(hardware: Hardware, workload: Workload) -> Iterator[Problem]:
    precision = workload.training.precision
    need = NEEDS.get(precision)
    for gpu in {group.node.gpu.name: group.node.gpu for group in hardware.worker_groups}.values():
        if need is not None and need not in gpu.peak:
            supported = ["fp32", "amp_fp16", *(name for name, peak in NEEDS.items() if peak in gpu.peak)]
            yield ("training", "precision"), f"{gpu.name} has no {need} units, which {precision} needs; write one of {', '.join(supported)}"
        elif precision == "fp8":
            yield from _recipe(gpu, workload)


def precision_problems(hardware: Hardware, workload: Workload) -> list[str]:
    """Return why the GPUs of *hardware* cannot compute in the precision of *workload*."""
    return located_messages([*_precision(hardware, workload)], None)


def _recipe(gpu: Gpu, workload: Workload) -> Iterator[Problem]:
    """Find an FP8 recipe that the stack or the GPU lacks."""
    requested, stack = workload.training.effective_recipe, workload.training.stack
    supported = [recipe for recipe in recipes_on(gpu) if not stack.kernels.fp8_recipes or recipe in stack.kernels.fp8_recipes]
    if requested is not None and requested not in supported:
        lacks = gpu.name if workload.training.supports_recipe else f"stack {stack.name}"
        others = f"write {' or '.join(supported)}" if supported else "write another precision"
        yield ("training", "fp8_recipe"), f"{lacks} has no fp8 recipe {requested}; {others}"


def _memory(hardware: Hardware, workload: Workload, fit: MemoryFit | None) -> Iterator[Problem]:
    training, seen = workload.training, set()
    for number, group in enumerate(hardware.worker_groups):
        group_training = training.for_group(number) if number < len(training.batches) else training
        key = "batches" if training.batches else "batch"
        if fit is None or (group.node.gpu.name, group_training.batch) in seen:
            continue
        seen.add((group.node.gpu.name, group_training.batch))
        if sentence := fit(group.node.gpu, workload.model_copy(update={"training": group_training})):
            yield ("training", key), sentence


def _batches(hardware: Hardware, workload: Workload) -> Iterator[Problem]:
    """Find batches by group that do not match the groups, or that the model does not support."""
    batches, groups = workload.training.batches, hardware.worker_groups
    if not batches:
        return
    if len(batches) != len(groups):
        yield ("training", "batches"), f"{len(batches)} for {len(groups)} groups of workers of {hardware.name}; write one for each"
        return
    for first, second in combinations(range(len(groups)), 2):
        if groups[first].node == groups[second].node and batches[first] != batches[second]:
            yield ("training", "batches"), f"groups {first} and {second} have identical machines; write the same batch for both"
    if tables := [layer.name for layer in workload.model.layers if layer.rows_per_sample]:
        yield ("training", "batches"), f"{tables[0]} exchanges rows by sample, which requires equal batches; write only batch"


def _without_half_units(hardware: Hardware, workload: Workload) -> Iterator[str]:
    precision = workload.training.precision
    for name in dict.fromkeys(group.node.gpu.name for group in hardware.worker_groups if "fp16" not in group.node.gpu.peak):
        if PRECISION_TRAITS[precision].units[:1] == ("fp16",):
            yield f"training.precision: {name} has no fp16 units, so {precision} saves memory traffic but computes at the fp32 rate"


LARGEST_DOMAIN: Final = 72
"""GPUs in the largest NVLink domain for rent: 18 trays of 4 (NVIDIA's data sheets of GB200 NVL72 and GB300 NVL72)."""


def domain_warnings(hardware: Hardware) -> Iterator[str]:
    """Yield a warning for nodes in which NVLink joins more GPUs than in any machine for rent, as too many ``trays`` do."""
    for gpus in dict.fromkeys(group.node.gpu_count for group in hardware.worker_groups if group.node.nvlink):
        if gpus > LARGEST_DOMAIN:
            yield (
                f"trays: NVLink joins {gpus} GPUs here, but at most {LARGEST_DOMAIN} in racks that can be rented (18 trays of 4 in a "
                "GB200 or GB300 NVL72, by NVIDIA's data sheets); --nodes counts racks"
            )


def _short_epoch(workload: Workload, ranks: int) -> Iterator[str]:
    training = workload.training
    step = ranks * training.batch * training.gradient_accumulation_steps
    if step > workload.dataset.samples:
        yield (
            f"dataset.samples: an epoch of {workload.dataset.samples:,} samples is less than one step of {step:,} on {ranks:,} GPUs; "
            "results are for full batches"
        )


def _crowded(group: Group, workload: Workload, ranks: int | None) -> Iterator[str]:
    ranks = ranks or group.node.gpu_count
    workers, threads = ranks * workload.input.num_workers, group.node.host.vcpus
    if workload.input.loader == "pytorch" and workers > threads:
        yield f"input.num_workers: {ranks} ranks x {workload.input.num_workers} workers share {threads} hardware threads"


MUCH_LARGER: Final = 2.0
"""Samples this many times as large as those for which their preparation was measured get a warning: estimate."""
_PREP: Final = {"pytorch": "prep", "dali_cpu": "dali_prep", "dali_gpu": "dali_gpu_prep"}
"""The time to prepare a sample, by loader."""


def prep_warnings(workload: Workload) -> Iterator[str]:
    """Yield a warning for samples much larger than those of the catalog's data set whose preparation time they have.

    A data set that extends one of the catalog keeps its name unless it writes another; then it is known by the times and sizes that it
    keeps.
    """
    dataset, key = workload.dataset, _PREP.get(workload.input.loader)
    if key is None or (original := _original(dataset, key)) is None:
        return
    cost = getattr(dataset, key)
    larger = max(dataset.sample / original.sample, dataset.prepared / original.prepared)
    if cost and cost == getattr(original, key) and larger >= MUCH_LARGER:
        yield (
            f"dataset.{key}: {units.show(cost, 'time')} of a CPU core per sample is that of {original.name}, whose samples take "
            f"{units.show(original.sample, 'size')} on disk and {units.show(original.prepared, 'size')} prepared; here it is "
            f"{units.show(dataset.sample, 'size')} and {units.show(dataset.prepared, 'size')}; measure one of yours, or try "
            f"--set dataset.{key}='{units.show(larger * cost, 'time')}', which is in proportion"
        )


def _original(dataset: Dataset, key: str) -> Dataset | None:
    """Return the data set of the catalog that *dataset* is, or from which it has the time *key* and its prepared size or other times."""
    names = catalog("workloads/datasets")
    if dataset.name in names:
        return load_part(Dataset, dataset.name)
    others = ("prepared", *(name for name in _PREP.values() if name != key and getattr(dataset, name)))
    kept: dict[str, int] = {}
    for name in names if getattr(dataset, key) else ():
        original = load_part(Dataset, name)
        if getattr(dataset, key) == getattr(original, key):
            kept[name] = sum(getattr(dataset, other) == getattr(original, other) for other in others)
    best = max(kept, key=lambda name: kept[name], default=None)
    return load_part(Dataset, best) if best and kept[best] else None


def _overfull(group: Group, workload: Workload) -> Iterator[str]:
    volume = group.node.storage.volume if group.node.storage else None
    need = workload.dataset.samples * workload.dataset.sample
    if volume is not None and need > volume.size * volume.count:
        yield (
            f"node.storage.volume.size: {workload.dataset.name} takes {units.show(need, 'size')}, more than the "
            f"{units.show(volume.size * volume.count, 'size')} of {volume.name}; --set node.storage.volume.size='{need / 2**30:.0f} GiB'"
        )
