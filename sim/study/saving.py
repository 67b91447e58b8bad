"""How much does a checkpoint slow the steps during which it is written? The run is repeated with parts of checkpoints written throughout.

Training waits for the copy from device to host. Then, until the store has the parts, they share NICs and host memory with the gradients
(`sim.cluster.checkpoint`). Limits: all nodes are simulated with the traffic of the node that writes most, because a collective is only
as fast as its slowest node; a copy to the node's own disk crosses no link of the network; if nodes differ, the time to copy and write is
that of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from sim.cluster.build import Slot
from sim.cluster.checkpoint import Outflow, checkpoint_times, outflows
from sim.mesh import LayoutRun, layout_scene
from sim.simulate import Run, simulate
from sim.spec.hardware import Node
from sim.spec.stores import Store
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.saved_parts import require_room, saved_parts
from sim.study.weeks import Slowed, store_of
from sim.training.layouts.turning import play_steadily

FlowsOfNode = Callable[[Node], Sequence[Outflow]]
"""Returns the parts of checkpoints that leave a node."""
StepWithTraffic = Callable[[FlowsOfNode], float]
"""Returns the seconds of a step while each node writes its parts of checkpoints throughout."""


class SavedRun(NamedTuple):
    """A checkpoint of a run, and the steps during which it is written."""

    store: str
    nbytes: float
    writers: int
    blocking: float
    """Seconds that training waits for the copy to host memory."""
    write_time: float
    """Seconds from the end of that copy until the store has the checkpoint."""
    step: float
    """Seconds of a step without a checkpoint."""
    step_while_saving: float
    """Seconds of a step while a checkpoint is written."""

    @property
    def cost(self) -> float:
        """Return the seconds that one checkpoint costs training."""
        return self.blocking + self.slowdown_cost

    @property
    def slowdown_cost(self) -> float:
        """Return the part of `cost` that is lost to slower steps while the checkpoint is written to the store."""
        return self.write_time * (1.0 - self.step / self.step_while_saving)

    def with_longer_steps(self, longer: float) -> SavedRun:
        """Return the checkpoint of a run whose steps take *longer* seconds more."""
        return self._replace(step=self.step + longer, step_while_saving=self.step_while_saving + longer)


def saved_during_run(run: Run | LayoutRun, name: str) -> SavedRun:
    """Return the effect of a checkpoint to the store *name* on *run*. Raise SpecError for an unknown store, several jobs, or no disk."""
    return _saved_to(run, name, store_of(name))


def slowdown_by_store(run: Run | LayoutRun) -> Slowed:
    """Return a function that returns the seconds that the steps of *run* lose while a checkpoint is written to a store."""

    def slowed(store: Store | None) -> float:
        return _saved_to(run, store.name if store else "disk", store).slowdown_cost if store else 0.0

    return slowed


def _saved_to(run: Run | LayoutRun, name: str, store: Store | None) -> SavedRun:
    if isinstance(run, LayoutRun):
        return _saved(name, store, run.workload, run.node, run.nodes, run.gpus, run.step_time, _layout_beside(run))
    if len(run.jobs) > 1:
        raise SpecError(f"--store {name}: supports one workload, not several jobs")
    job = run.jobs[0].job

    def again(flows: FlowsOfNode) -> float:
        def outflows_of(slot: Slot) -> Sequence[Outflow]:
            return flows(slot.node) if slot.node.gpu_count else ()

        played = simulate(run.hardware, [job], cold=False, seed=run.seed, outflows_of=outflows_of)
        return played.jobs[0].warm.step_time

    return _saved(name, store, job.workload, run.node(), len(job.placement), job.ranks, run.jobs[0].warm.step_time, again)


def _layout_beside(run: LayoutRun) -> StepWithTraffic:
    def again(flows: FlowsOfNode) -> float:
        scene = layout_scene(run.hardware, run.workload, run.layout)
        return play_steadily(replace(scene, outflows=flows(run.node))).time

    return again


def _saved(
    name: str,
    store: Store | None,
    workload: Workload,
    node: Node,
    nodes: int,
    gpus: int,
    step: float,
    again: StepWithTraffic,
) -> SavedRun:
    parts = saved_parts(workload, gpus, nodes, step)
    require_room(parts, node, store, name)
    try:
        times = checkpoint_times(node, parts, store)
    except ValueError as error:
        raise SpecError(f"--store {name}: {error}; name a store") from None

    def flows(of: Node) -> Sequence[Outflow]:
        return outflows(of, parts, store)

    beside = again(flows) if flows(node) else step
    return SavedRun(name, parts.total, parts.writers, times.copy_time, times.write_time, step, beside)
