"""How long do collectives take within a group of a mesh? From a machine, a layout and an axis to a table of times.

All such groups of the same stage communicate at once, and times are those of a run with that layout (`sim.training.layouts.prices`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sim.parallel.mesh import GroupAxis, Mesh, mesh_of
from sim.parallel.program import Op
from sim.spec.overrides import Option, apply
from sim.spec.parallel import MEGATRON_ORDER, Parallel
from sim.spec.references import Resolver
from sim.spec.validation import validate
from sim.spec.yaml import Document, Mark, SpecError
from sim.study.collective import PlacedMachine, operation_of, placed_machine
from sim.study.scenario import split_overrides
from sim.training.collectives.price.collective_plan import DEFAULT, Tuning
from sim.training.collectives.price.message import OUT, SIMPLE
from sim.training.collectives.price.table import CollectiveRow, LinkUse, MeshGroup, Table, bus_factor, limit_of
from sim.training.layouts.group_price import GroupPrice
from sim.training.layouts.prices import LayoutPrices

GROUPS: Final[dict[str, GroupAxis]] = {
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "ep": "expert",
    "dp": "shard",
    "shard": "shard",
    "reshard": "reshard",
    "replicate": "replicate",
    "expert_data": "expert_data",
    "ends": "ends",
    "everyone": "everyone",
}
"""Groups of a mesh by the words that ``--group`` accepts; dp: data and context ranks, across which gradients are reduced."""
_FIELDS: Final = "training.parallel."


@dataclass(frozen=True)
class GroupQuestion:
    """Which group of which mesh: its name, its stage, and the fields of ``training`` that define the layout."""

    name: str
    layout: Sequence[tuple[str, str, str | int]] = ()
    stage: int = 0


def group_table(
    hardware: str,
    op: str | None,
    sizes: Sequence[int],
    question: GroupQuestion,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    placement: str | None = None,
    tuning: Tuning = DEFAULT,
    overrides: Sequence[str] = (),
) -> Table:
    """Return the time of *op* in the group of *question* for each of *sizes* (bytes), with all such groups of its stage active at once.

    By default groups run an all-reduce, and pipeline stages a send. Raise SpecError if the combination is impossible.
    """
    of_machine, of_layout = split_overrides(overrides)
    axis = _axis(question)
    parallel = _parallel(question.layout, of_layout)
    machine = placed_machine(hardware, nodes, gpus, placement, of_machine)
    mesh = mesh_of(parallel, [len(part.gpus) for part in machine.placements], MEGATRON_ORDER)
    _require_group(mesh, axis, question)
    operation = operation_of(op or ("send_recv" if axis == "pipeline" else "all_reduce"), tuning)
    prices = LayoutPrices(machine.spec, mesh, tuning)
    if axis == "pipeline":
        if operation != "send_recv":
            raise SpecError(f"--op {op}: pipeline stages only send to each other; write --op send_recv, or leave it out")
        return _sent(machine, prices, sizes, question)
    return _exchanged(machine, prices, operation, sizes, question, axis)


def _axis(question: GroupQuestion) -> GroupAxis:
    axis = next((axis for word, axis in GROUPS.items() if question.name in (word, axis)), None)
    if axis is None:
        raise SpecError(f"--group {question.name}: write one of {', '.join(GROUPS)}")
    return axis


def _parallel(layout: Sequence[tuple[str, str, str | int]], overrides: Sequence[str]) -> Parallel:
    """Return the layout that options and *overrides* of ``training.parallel`` define. Raise SpecError if one sets anything else."""
    changes: list[Option | str] = []
    for option, key, value in layout:
        if not key.startswith("parallel."):
            raise SpecError(
                f"{option}{'' if option.endswith('=') else ' '}{value}: has no effect on which ranks form a group; leave it out"
            )
        changes.append(Option(option, key.removeprefix("parallel."), value))
    for text in overrides:
        if not text.startswith(_FIELDS):
            raise SpecError(f"--set {text}: only hardware fields can be set, and {_FIELDS}... with --group; leave it out")
        changes.append(text.removeprefix(_FIELDS))
    resolver = Resolver()
    document = apply(resolver, Document({}, Mark("--group")), Parallel, changes)
    return validate(Parallel, document, resolver.problems)


def _require_group(mesh: Mesh, axis: GroupAxis, question: GroupQuestion) -> None:
    """Raise SpecError unless *question* identifies one kind of group, with 2 ranks or more."""
    if question.name == "dp" and mesh.parallel.replicate > 1:
        raise SpecError(
            f"--group dp: {mesh.parallel.replicate} replicas of a sharded model form two kinds of groups; write --group shard (ranks "
            "that gather weights) or --group replicate (ranks that reduce the gradients of one shard)"
        )
    if not 0 <= question.stage < mesh.stages:
        raise SpecError(f"--stage {question.stage}: there are {mesh.stages} stages; write 0 to {mesh.stages - 1}")
    if axis == "pipeline" and question.stage == mesh.stages - 1 > 0:
        raise SpecError(f"--stage {question.stage}: the last stage sends nothing on; write 0 to {mesh.stages - 2}")
    if mesh.group_size(axis) < 2:
        options = {"tensor": "--tp 2", "context": "--cp 2", "pipeline": "--pp 2", "expert": "--ep 2", "ends": "--pp 2"}
        more = {"replicate": "--replicate 2 --shard parameters", "reshard": "--shard parameters --parallel reshard_after_forward=2"}
        remedy = (options | more).get(axis, "--nodes 2")
        raise SpecError(f"--group {question.name}: has only 1 rank, which exchanges nothing; write, for example, {remedy}")


def _exchanged(
    machine: PlacedMachine, prices: LayoutPrices, op: Op, sizes: Sequence[int], question: GroupQuestion, axis: GroupAxis
) -> Table:
    """Return the table of *op* among the groups of *axis*."""
    stage = question.stage
    groups = prices.plans(stage, axis)
    plan = groups[0].plan
    size = len(groups[0].ranks)
    rows = []
    for nbytes in sizes:
        price, own = prices.price(stage, axis, op, float(nbytes)), plan.cost(float(nbytes), op)
        algbw = nbytes / price.uncontended_time
        busbw = algbw * bus_factor(op, size)
        limit = limit_of(price.limit, own.latency_of[1], price.latency_share)
        rows.append(
            CollectiveRow(nbytes, price.uncontended_time, algbw, busbw, *plan.choice(float(nbytes), op), limit, own.uncontended_time)
        )
    links = links_of_groups(prices, stage, axis, op, float(max(sizes)))
    stages = 1 if axis == "everyone" else prices.mesh.stages
    count = prices.mesh.gpus // stages // (1 if axis == "ends" else size)
    group = _mesh_group(prices.mesh, question, groups[0].ranks, count, len(groups), links)
    return _table(machine, op, plan.layout.carrier(op), rows, group, prices.tuning)


def _sent(machine: PlacedMachine, prices: LayoutPrices, sizes: Sequence[int], question: GroupQuestion) -> Table:
    """Return the table of messages from the stage to the next one."""
    source, target = question.stage, question.stage + 1
    ends = prices.send_pairs(source, target)
    rows = []
    for nbytes in sizes:
        price = prices.send(source, target, float(nbytes))
        rate = nbytes / price.uncontended_time
        by_itself = prices.one_send(ends[0], float(nbytes)).price.uncontended_time
        rows.append(
            CollectiveRow(nbytes, price.uncontended_time, rate, rate, price.algorithm, SIMPLE, price.blocks, price.limit, by_itself)
        )
    links = links_of_sends(prices, source, target, float(max(sizes)))
    group = _mesh_group(prices.mesh, question, ends[0], prices.mesh.gpus // prices.mesh.stages, len(ends), links)
    return _table(machine, "send_recv", prices.plan_of(ends[0]).layout.carrier("send_recv"), rows, group, prices.tuning)


def _mesh_group(
    mesh: Mesh, question: GroupQuestion, ranks: tuple[int, ...], groups: int, on_node: int, links: Sequence[LinkUse]
) -> MeshGroup:
    axes: dict[str, int] = {axis: mesh.sizes[axis] for axis in mesh.order}
    if mesh.parallel.expert > 1:
        axes["expert"] = mesh.parallel.expert
    places = tuple(mesh.place(rank) for rank in ranks)
    return MeshGroup(question.name, axes, question.stage, ranks, places, groups, on_node, tuple(links))


def _table(machine: PlacedMachine, op: Op, carrier: str, rows: Sequence[CollectiveRow], group: MeshGroup, tuning: Tuning) -> Table:
    nodes = len({node for node, _ in group.places})
    return Table(
        machine.spec.name, op, nodes, len(group.ranks), tuple(rows), machine.bisection, machine.spec, tuning, machine.inputs, carrier,
        group=group,
    )  # fmt: skip


def links_of_groups(prices: LayoutPrices, stage: int, axis: GroupAxis, op: Op, nbytes: float) -> list[LinkUse]:
    """Return the links that *op* on *nbytes* uses on the first node of *stage* and between nodes."""
    sharing = Counter(link for _, plan, own in prices.plans(stage, axis) for slot, link in plan.cost(nbytes, op).load if slot == own)
    return _uses(prices, prices.nodes_of(stage), prices.price(stage, axis, op, nbytes), sharing)


def links_of_sends(prices: LayoutPrices, source: int, target: int, nbytes: float) -> list[LinkUse]:
    """Return the links that sends of *nbytes* from stage *source* to *target* use on the first node of *source* and between nodes."""
    sent = [prices.one_send(ends, nbytes).links for ends in prices.send_pairs(source, target)]
    sharing = Counter(link.name.removeprefix(f"{OUT} ") for links in sent for link in links if link.name.startswith(OUT))
    return _uses(prices, prices.nodes_of(source), prices.send(source, target, nbytes), sharing)


def _uses(prices: LayoutPrices, nodes: str, price: GroupPrice, sharing: Mapping[str, int]) -> list[LinkUse]:
    """Return the links of *nodes* or the machine that *price* loads, by kind, the busiest first."""
    rate = price.volume / (price.uncontended_time - price.launch)
    kinds: dict[str, list[LinkUse]] = defaultdict(list)
    for live, amount in price.load.items():
        own = live.removeprefix(f"{nodes}.")
        if own == live and not prices.of_machine(live):
            continue  # link of another stage's nodes
        tier, described = prices.descriptions[live]
        use = LinkUse(described, tier, 1, sharing.get(own), amount * rate / prices.capacity[live])
        kinds[re.sub(r"\d+", "", described)].append(use)
    rows = [max(uses, key=lambda use: use.busy)._replace(links=len({use.busiest for use in uses})) for uses in kinds.values()]
    return sorted(rows, key=lambda use: -use.busy)
