"""Which command should be run first for a new workload? One whose step fits into the GPUs' memory, as the simulator counts it.

The workload is tried as it is, then with changes that (nearly) keep its result: activation checkpointing, sharding, tensor parallelism.
A workload with a layout or a global batch is also tried on more nodes: one with a layout before its tensor ranks change.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sim.analysis.layout_memory import memory_by_stage
from sim.check import check_run
from sim.mesh import prepare as laid_out
from sim.mesh import worker_node
from sim.spec.fp8_recipe import supports_recipe
from sim.spec.library import load_hardware, load_workload
from sim.spec.listing import hardware_rows
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.layout import with_micro_batches
from sim.study.scenario import Scenario, has_layout, loaded_hardware, prepare, sorted_overrides


@dataclass(frozen=True)
class NextMachine:
    """A machine of the catalog, and its GPUs."""

    name: str
    gpus: int


MACHINE: Final = NextMachine("hgx-h100", 8)
NARROW: Final = NextMachine("hgx-b200", 8)
"""The machine whose GPUs also have MXFP8 and NVFP4."""
STATES: Final = 16
"""Bytes of weights, gradients and optimizer states per parameter (AdamW in mixed precision)."""
ROOM: Final = 0.5
"""Share of a GPU's memory that these may take, so that activations fit as well: estimate."""
_DOUBLINGS: Final = 6
"""Numbers of nodes that are tried, each twice the one before, until a search is suggested: a specified layout should fit by then."""
_BLOCKS: Final = "training.activation_checkpointing=blocks"


@dataclass(frozen=True)
class _SmallerStep:
    """Options that make a step smaller."""

    layout: tuple[tuple[str, str, str | int], ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the options as they are typed, each after a space."""
        return "".join([f" {option} {value}" for option, _, value in self.layout] + [f" --set {override}" for override in self.overrides])


_SHARDED: Final = (("--shard", "parallel.shard", "parameters"),)
_CHANGES: Final = (_SmallerStep(), _SmallerStep(overrides=(_BLOCKS,)), _SmallerStep(_SHARDED), _SmallerStep(_SHARDED, (_BLOCKS,)))


def machine_for(training: Mapping[str, Any]) -> NextMachine:
    """Return the machine whose GPUs have the precision and the FP8 recipe of *training*: `MACHINE` if it has, else `NARROW`."""
    gpu = worker_node(load_hardware(MACHINE.name).spec).gpu
    recipe = training.get("fp8_recipe")
    return NARROW if training.get("precision") == "nvfp4" or (recipe and not supports_recipe(recipe, gpu)) else MACHINE


def machine_with(gpu: str, gpus: int | None) -> NextMachine | None:
    """Return the machine of the catalog with so many *gpus* named *gpu*, as clusters spell them; else a larger one, or None.

    Of several: not PCIe boards, without a provider (a machine as its vendor describes it), then the lowest price.
    """
    words = re.split(r"[-_ ]", gpu.lower().removeprefix("nvidia_").removeprefix("tesla_"))
    matches: list[tuple[tuple[object, ...], NextMachine]] = []
    for row in hardware_rows()[0]:
        name, count, parts = str(row["name"]), int(row["gpus"] or 0), str(row["gpu"]).lower().split("-")
        if row["nodes"] != 1 or count < (gpus or 1):
            continue
        if parts[0] == words[0] and all(any(word in part for part in parts) for word in words):
            preference = (count != (gpus or MACHINE.gpus), "pcie" in parts, name != MACHINE.name, bool(row["provider"]))
            matches.append(((*preference, row["price"] or math.inf, name), NextMachine(name, count)))
    return min(matches, key=lambda each: each[0])[1] if matches else None


def first_command(path: str, shown: str, global_batch: int | None = None, gpus: int | None = None, machine: NextMachine = MACHINE) -> str:
    """Return a command for the workload in the file *path*, which it names *shown*; a search if no usual layout fits.

    *gpus* is the minimum number of GPUs, on as many of *machine*; fewer than a node's are used alone if the step fits on them.
    """
    workload = load_workload(path).spec
    may_grow = workload.training.has_layout or global_batch is not None
    node = machine.gpus
    least_nodes = -(-(gpus or 1) // node)
    candidates: list[tuple[_SmallerStep, int, int | None]] = [
        (change, nodes, None) for change, nodes in _candidates(workload, may_grow, least_nodes, node)
    ]
    if gpus and gpus < node:
        candidates = [*((change, 1, gpus) for change in _keeping(workload)), *candidates]
    for change, nodes, part in candidates:
        scenario = Scenario(
            machine.name,
            path,
            change.overrides,
            nodes=nodes if nodes > 1 else None,
            gpus=part,
            layout=change.layout,
            global_batch=global_batch,
        )
        if steps := _accumulated(workload, global_batch, part or node * nodes, scenario):
            change = replace(change, layout=(*change.layout, ("--micro-batches", "gradient_accumulation_steps", steps)))
            scenario = replace(scenario, layout=change.layout)
        if _fits(scenario):
            more = f" --nodes {nodes}" if nodes > 1 else f" --gpus {part}" if part else ""
            batch = f" --global-batch {global_batch}" if global_batch else ""
            return f"python -m sim run {machine.name} {shlex.quote(shown)}{more}{change.text}{batch}"
    room = ROOM * node * worker_node(load_hardware(machine.name).spec).gpu.memory
    enough = math.ceil(STATES * workload.model.parameters / room)
    nodes = least_nodes if enough <= least_nodes else 1 << (enough - 1).bit_length()  # as heads and experts: 17 would be 17 stages
    return f"python -m sim plan {machine.name} {shlex.quote(shown)} --nodes {nodes}"


def is_search(command: str) -> bool:
    """Return whether *command* searches for a layout: that of `first_command` if no usual one fits."""
    return command.split()[3] == "plan"


def _accumulated(workload: Workload, global_batch: int | None, gpus: int, scenario: Scenario) -> int:
    """Return the number of the workload's batches over which *scenario* accumulates gradients; 0 if no option is needed, as in layouts.

    Without them, data parallelism divides *global_batch* over the GPUs alone, whatever the workload's batch.
    """
    batch = workload.training.batch
    if global_batch is None or batch == 1 or has_layout(scenario):
        return 0
    steps, rest = divmod(global_batch, batch * gpus)
    return 0 if rest or steps == workload.training.gradient_accumulation_steps else steps


def _candidates(workload: Workload, may_grow: bool, least_nodes: int, node: int) -> Iterator[tuple[_SmallerStep, int]]:
    """Yield changes and numbers of nodes to try, smallest change first: *least_nodes*, and more if the job *may_grow*.

    Tensor ranks other than those of a layout are tried last.
    """
    parallel = workload.training.parallel
    tensor = [2**power for power in range(1, 4) if parallel.tensor < 2**power <= node]  # their messages need the links inside a node
    wider = [_SmallerStep((("--tp", "parallel.tensor", size), *_SHARDED), (_BLOCKS,)) for size in tensor if may_grow]
    least = max(-(-parallel.model_ranks // node), least_nodes)
    kept, every = _keeping(workload), (*_CHANGES, *wider)
    for changes in (kept, every) if kept != _CHANGES or workload.training.has_layout else (every,):
        for doubling in range(_DOUBLINGS if may_grow else 1):
            for change in changes:
                yield change, least * 2**doubling


def _keeping(workload: Workload) -> tuple[_SmallerStep, ...]:
    """Return the changes that keep what *workload* says to shard."""
    own = workload.training.parallel.shard not in ("none", "parameters")
    return tuple(change for change in _CHANGES if not (own and change.layout))


def _fits(scenario: Scenario) -> bool:
    """Return whether *scenario* runs and fits into the memory of every GPU without thrashing."""
    try:
        if not has_layout(scenario):
            prepare(scenario)
            return True
        machine, loaded = loaded_hardware(scenario), load_workload(scenario.workload, sorted_overrides(scenario)[1])
        check_run(machine, loaded, gpus=scenario.gpus)
        gpus = scenario.gpus or sum(group.count * group.node.gpu_count for group in machine.spec.groups)
        workload = with_micro_batches(loaded.spec, scenario, gpus)
        stages = memory_by_stage(laid_out(machine.spec, workload, scenario.gpus), workload, worker_node(machine.spec).gpu)
    except SpecError:
        return False
    return all(stage.verdict(worker_node(machine.spec).gpu) == "fits" for stage in stages)
