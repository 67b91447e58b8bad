"""How does a Chakra trace run on a machine? From trace files and hardware to a simulated step of every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sim.check import check_hardware, require
from sim.cluster.build import Placement, place
from sim.parallel.chakra import graphs_of
from sim.parallel.graph import Graph, match_messages
from sim.spec.fields import Peak, Precision
from sim.spec.foreign.chakra_files import TraceFiles, read_trace
from sim.spec.hardware import Hardware
from sim.spec.library import load_part
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.stack import ServerExchange, Stack
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, loaded_hardware, split_overrides
from sim.training.collectives.price.collective_plan import DEFAULT, Tuning
from sim.training.graphs.idle import RankStep, rank_steps
from sim.training.graphs.prices import GraphPrices
from sim.training.graphs.run import GraphScene, PlayedGraphs, play_graphs
from sim.training.job import tuning_of
from sim.units import pluralized


@dataclass(frozen=True, eq=False)
class GraphRun:
    """One simulated step of a trace."""

    hardware: Hardware
    name: str
    graphs: Sequence[Graph]
    prices: GraphPrices
    played: PlayedGraphs
    ranks: tuple[RankStep, ...]
    peak: Peak | None
    inputs: Mapping[str, str]
    """SHA-256 of the hardware and of the trace."""

    @property
    def step_time(self) -> float:
        """Return the seconds until the last rank finishes."""
        return self.played.time

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.prices.placement)


def graph_run(scenario: Scenario, groups: Path | None = None) -> GraphRun:
    """Load, check and simulate the trace that *scenario* names as its workload; *groups* is the file of its communicators.

    Raise SpecError listing the problems.
    """
    _, of_workload = split_overrides(scenario.overrides)
    if of_workload:
        raise SpecError(f"--set {of_workload[0]}: a trace has no such field; only hardware fields can be set")
    machine = loaded_hardware(scenario)
    require(check_hardware(machine.spec, machine.document))
    trace = read_trace(scenario.workload, groups)
    placement = place(machine.spec, scenario.gpus, scenario.placement)
    _require_ranks(trace, machine.spec, placement)
    peak = _peak(scenario.precision, machine.spec)
    tuning = DEFAULT if scenario.stack is None else _tuning(scenario.stack)
    graphs = graphs_of(trace, [len(part.gpus) for part in placement])
    inputs = {"hardware": machine.sha256, "trace": trace.sha256}
    return run_graphs(machine.spec, trace.name, graphs, placement, tuning, peak, inputs)


def run_graphs(
    hardware: Hardware,
    name: str,
    graphs: Sequence[Graph],
    placement: Sequence[Placement],
    tuning: Tuning = DEFAULT,
    peak: Peak | None = None,
    inputs: Mapping[str, str] | None = None,
) -> GraphRun:
    """Simulate *graphs*, one for each GPU of *placement* in its order. Raise SpecError if the ranks' communication does not match."""
    prices = GraphPrices(hardware, tuple(placement), tuning)
    played = play_graphs(GraphScene(graphs, match_messages(graphs), prices, peak))
    return GraphRun(hardware, name, graphs, prices, played, rank_steps(played), peak, inputs or {})


def _require_ranks(trace: TraceFiles, hardware: Hardware, placement: Sequence[Placement]) -> None:
    ranks, gpus = len(trace.ranks), sum(len(part.gpus) for part in placement)
    if ranks == gpus:
        return
    each = {len(part.gpus) for part in placement}
    if len(each) == 1 and ranks % min(each) == 0:
        fits = f"--nodes {ranks // min(each)}"
    elif ranks < gpus and ranks % len(placement) == 0:
        fits = f"--gpus {ranks}"
    else:
        fits = "--placement with the GPUs of each node"
    lent = f"{hardware.name} provides {gpus} GPUs"
    raise SpecError(f"{trace.name}: the trace has {pluralized(ranks, 'rank')}, but {lent}, and each rank needs one; write {fits}")


def _peak(precision: str | None, hardware: Hardware) -> Peak | None:
    """Return the first compute units for *precision* that all GPUs have."""
    if precision is None:
        return None
    chosen = next((name for name in get_args(Precision) if name == precision), None)
    if chosen is None:
        raise SpecError(f"--precision {precision}: write one of {', '.join(get_args(Precision))}")
    gpus = [group.node.gpu for group in hardware.worker_groups]
    units: tuple[Peak, ...] = (*PRECISION_TRAITS[chosen].units, "fp32")
    return next(peak for peak in units if all(peak in gpu.peak for gpu in gpus))


def _tuning(stack: str) -> Tuning:
    loaded = load_part(Stack, stack)
    if loaded.library.gloo_transport is not None or isinstance(loaded.exchange, ServerExchange):
        raise SpecError(f"--stack {stack}: does not use NCCL, but a trace's collectives are NCCL's; name a stack that uses it")
    return tuning_of(loaded.library)
