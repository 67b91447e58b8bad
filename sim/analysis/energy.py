"""How much energy does training use, and how much CO2 does it emit? Power of GPUs, host and network, times PUE and grid intensity.

A GPU draws a share of its TDP. The share is highest while matrix products bound its kernels, lower while memory bandwidth bounds them or a
communication kernel spins, and lowest while the GPU is idle, which includes the time while kernels start (`sim.spec.energy`). A node adds
its host, its NICs, what its power supplies lose of all of these, and, in a job of several nodes, switch ports. The energy of the site is
the energy of the computers times PUE. CO2 is the energy of the site times the grid's mean intensity over a year. A power cap slows only
compute, according to a measured curve over the ratio of the cap to the uncapped draw; waits for input get as much shorter, others stay the
same.

Limits: a mean over the step, no peaks; kernels of all sizes draw the same power; GPUs without draws by kernel have one whatever bounds
their kernels; storage and cooling are included in host power and PUE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sim.spec import memo
from sim.spec.energy import GpuPower, Grid, KernelMix, PowerModel
from sim.spec.fields import curve_value
from sim.spec.hardware import Gpu, Node
from sim.spec.library import catalog, load_part
from sim.spec.yaml import SpecError

WAITING = ("interconnect", "network", "straggler", "pipeline")
"""Stalls during which a communication kernel spins; the GPU is idle during all other stalls except compute."""
INPUT = ("fetch", "prep")
"""Stalls during which a GPU waits for a batch that loaders read or prepare."""
WORLD = "WORLD"
"""The region used in place of an unknown one."""
_CAPS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Limits that a table of power caps shows, relative to the power without a limit of a GPU that computes."""
KWH = 3.6e6
"""J in a kWh."""


class GridIntensity(NamedTuple):
    """Carbon intensity (kg/J) of the grid of a *region*, with its year and source."""

    region: str
    intensity: float
    year: str
    source: str
    assumed: bool = False
    """Whether the region is unknown and the mean of the world is used."""

    @property
    def figures(self) -> dict[str, Any]:
        """Return the intensity as it appears in documents."""
        return {
            "region": self.region, "kg_per_kwh": self.intensity * KWH, "year": self.year, "source": self.source, "assumed": self.assumed,
        }  # fmt: skip


class NodePower(NamedTuple):
    """Mean power (W) of one node: all its GPUs, the rest of the machine with what its power supplies lose, and NICs and switch ports."""

    gpus: float
    host: float
    network: float

    @property
    def total(self) -> float:
        """Return the sum of the parts (W)."""
        return self.gpus + self.host + self.network


def power_model() -> PowerModel:
    """Return the power model of the catalog."""
    return load_part(PowerModel, "default")


def gpu_power(gpu: Gpu, model: PowerModel, mix: KernelMix | None = None) -> GpuPower:
    """Return the block of *model* that names *gpu*, or else the block that names no GPU, with the compute share for kernels of *mix*."""
    return memo.get_or_make((gpu_power, gpu.name, id(model), mix), lambda: _gpu_power(gpu, model, mix), model)


def _gpu_power(gpu: Gpu, model: PowerModel, mix: KernelMix | None) -> GpuPower:
    named = next((block for block in model.gpus if gpu.name in block.gpus), None)
    block = named or next(block for block in model.gpus if not block.gpus)
    if mix is None or block.products is None or block.memory is None:
        return block
    starts = max(0.0, 1.0 - mix.products - mix.memory)
    return block.model_copy(update={"compute": mix.products * block.products + mix.memory * block.memory + starts * block.idle})


def grid_of(region: str | None, provider: str = "") -> GridIntensity:
    """Return the intensity of *region* (a provider's region or a country), or of the world if it is None or not in the catalog.

    With a *provider*, only its regions and countries are searched: Nebius and Google each have a us-central1, in different states.
    """
    grids = [load_part(Grid, name) for name in catalog("hardware/parts/grids")]
    for grid in grids:
        if region in grid.regions and (not provider or grid.name == provider or WORLD in grid.regions):
            return GridIntensity(str(region), grid.regions[str(region)], grid.year, _source_text(grid))
    world = next(grid for grid in grids if WORLD in grid.regions)
    return GridIntensity(WORLD, world.regions[WORLD], world.year, _source_text(world), assumed=True)


def country_ratios() -> list[float]:
    """Return the intensities of the countries of the catalog, relative to that of the world."""
    grids = (load_part(Grid, name) for name in catalog("hardware/parts/grids"))
    world = next(grid.regions for grid in grids if WORLD in grid.regions)
    return [intensity / world[WORLD] for region, intensity in world.items() if region != WORLD]


def named_grid(region: str) -> GridIntensity:
    """Return the intensity of a *region* specified by a user. Raise SpecError if it is not in the catalog."""
    named = grid_of(region)
    if named.assumed and region != WORLD:
        raise SpecError(
            f"--region {region}: no grid intensity available; write an AWS or GCP region such as us-east-1, or a country such as USA"
        )
    return named._replace(assumed=False)


def _source_text(grid: Grid) -> str:
    return grid.source if isinstance(grid.source, str) else grid.source.get("*", "")


def shares_of(stalls: Mapping[str, float]) -> tuple[float, float, float]:
    """Return the shares of a step during which GPUs compute, spin in communication, and are idle, given the seconds of each stall."""
    total = sum(stalls.values()) or 1.0
    compute, waiting = stalls.get("compute", 0.0), sum(stalls.get(name, 0.0) for name in WAITING)
    return compute / total, waiting / total, max(0.0, 1 - (compute + waiting) / total)


def node_power(
    node: Node,
    model: PowerModel,
    shares: tuple[float, float, float],
    several: bool,
    gpus: int | None = None,
    working: bool = True,
    mix: KernelMix | None = None,
    cap: float = math.inf,
    others: int = 0,
) -> NodePower | None:
    """Return the mean power of *node* while its GPUs (or *gpus* of them) spend *shares* of the time computing, spinning and idle.

    *several*: whether the job has more nodes, so that switches count; *working*: whether the host is busy; *mix*: what bounds the
    kernels, if available; *cap*: power limit of each GPU (W). If other jobs use *others* of the GPUs, the job has a part of idle GPUs,
    host and network in proportion to its GPUs. Return None if the TDP is unknown.
    """
    if node.gpu.power is None or not node.gpu_count:
        return None
    draw = gpu_power(node.gpu, model, mix)
    used = node.gpu_count if gpus is None else gpus
    compute, waiting, idle = (min(node.gpu.power * level, cap) for level in (draw.compute, draw.waiting, draw.idle))
    busy = shares[0] * compute + shares[1] * waiting + shares[2] * idle
    part, counted = used / (used + others), gpus_of_share(node.gpu_count, used, others)
    of_gpus = used * busy + (counted - used) * idle
    rest = part * node.gpu_count / model.host_gpus * (model.host if working else model.host_idle)
    cards = min(node.nic.count, node.gpu_count)  # more interfaces than GPUs share adapters, as EFA's 32 of 100 Gbps on a p5: estimate
    of_hosts = model.host_nics * max(1.0, node.gpu_count / model.host_gpus)  # the host of a small node is a part, but has one adapter
    adapters = part * max(0.0, cards - of_hosts) * model.nic
    at_the_wall = (of_gpus + rest + adapters) / model.supply_efficiency
    switches = part * cards * model.switch_ports * model.switch_port if several else 0.0
    return NodePower(of_gpus, at_the_wall - of_gpus - adapters, adapters + switches)


def gpus_of_share(gpu_count: int, used: int, others: int) -> float:
    """Return the GPUs of a node that count for a job that uses *used* of them and other jobs *others*: its own and a part of idle ones."""
    return used + used / (used + others) * (gpu_count - used - others)


def computing_power(gpu: Gpu, model: PowerModel, mix: KernelMix | None = None) -> float:
    """Return the power (W) that *gpu* draws without a limit while it computes kernels of *mix*. Raise ValueError if its TDP is unknown."""
    if gpu.power is None:
        raise ValueError(f"the power of {gpu.name} is unknown")
    return gpu.power * gpu_power(gpu, model, mix).compute


def limited_speed(node: Node, model: PowerModel, cap: float, mix: KernelMix | None = None) -> float:
    """Return the speed of a GPU of *node* while it computes with a limit of *cap* (W), relative to its speed without the limit.

    Raise ValueError if the GPU's TDP is unknown.
    """
    return curve_value(model.cap, min(1.0, cap / computing_power(node.gpu, model, mix)))


def with_slower_compute(stalls: Mapping[str, float], speed: float, ahead: bool = True) -> dict[str, float]:
    """Return *stalls* (s) of a step whose GPUs compute at *speed*; if loaders work *ahead*, waits for input get as much shorter."""
    compute = stalls.get("compute", 0.0) / speed
    hidden, slower = compute - stalls.get("compute", 0.0), dict(stalls) | {"compute": compute}
    for name in INPUT if ahead else ():
        wait = stalls.get(name, 0.0)
        slower |= {name: max(0.0, wait - hidden)} if name in stalls else {}
        hidden = max(0.0, hidden - wait)
    return slower


class NodesOfKind(NamedTuple):
    """Nodes of one kind in a job: *nodes* of them, each with *gpus* GPUs of the job and *others* of other jobs.

    *mix*: what bounds the kernels of the job, if available.
    """

    node: Node
    nodes: int
    gpus: int
    mix: KernelMix | None = None
    others: int = 0


def mean_power(
    kinds: Sequence[NodesOfKind], shares: tuple[float, float, float], model: PowerModel, working: bool = True, cap: float = math.inf
) -> NodePower | None:
    """Return the mean over the nodes of *kinds* of their power (`node_power`), or None if the TDP of a GPU is unknown."""
    nodes, total = sum(kind.nodes for kind in kinds), NodePower(0.0, 0.0, 0.0)
    for kind in kinds:
        power = node_power(kind.node, model, shares, nodes > 1, kind.gpus, working, kind.mix, cap, kind.others)
        if power is None:
            return None
        total = NodePower(*(sums + kind.nodes / nodes * part for sums, part in zip(total, power, strict=True)))
    return total


def energy_figures(
    kinds: Sequence[NodesOfKind], stalls: Mapping[str, float], per_step: float, grid: GridIntensity, tokens: float | None = None,
    ahead: bool = True,
) -> dict[str, Any] | None:  # fmt: skip
    """Return power, energy and carbon of a run as they appear in its document.

    A step consists of the *stalls* (s) and trains on *per_step* samples of *tokens* tokens. The power of a node and of a GPU is the mean
    over all *kinds*. Power caps are computed only if all nodes are the same; *ahead*: whether loaders work while GPUs compute.
    Return None if a TDP is unknown or the step is empty.
    """
    model, step, nodes = power_model(), sum(stalls.values()), sum(kind.nodes for kind in kinds)
    power = mean_power(kinds, shares_of(stalls), model)
    if power is None or not step:
        return None
    site = nodes * power.total * model.pue
    energy_per_sample = site * step / per_step
    return {
        "gpu_power_w": power.gpus * nodes / sum(kind.nodes * gpus_of_share(kind.node.gpu_count, kind.gpus, kind.others) for kind in kinds),
        "node_power_w": power.total,
        "parts_w": power._asdict(),
        "pue": model.pue,
        "site_power_w": site,
        "energy_per_sample_j": energy_per_sample,
        "energy_per_token_j": energy_per_sample / tokens if tokens else None,
        "co2_per_sample_kg": energy_per_sample * grid.intensity,
        "grid": grid.figures,
        "power_caps": power_caps(kinds, stalls, per_step, ahead) if all(kind.node == kinds[0].node for kind in kinds) else [],
    }  # fmt: skip


def power_caps(kinds: Sequence[NodesOfKind], stalls: Mapping[str, float], per_step: float, ahead: bool = True) -> list[dict[str, float]]:
    """Return step time and energy per sample with GPUs capped at several shares of the power that they draw while they compute.

    All *kinds* have the same node, whose GPU has a TDP. The steps are estimated (`with_slower_compute`).
    """
    model, nodes, (node, mix) = power_model(), sum(kind.nodes for kind in kinds), (kinds[0].node, kinds[0].mix)
    full, caps = computing_power(node.gpu, model, mix), []
    for cap in (share * full for share in _CAPS):
        slower = with_slower_compute(stalls, limited_speed(node, model, cap, mix), ahead)
        power, step = mean_power(kinds, shares_of(slower), model, cap=cap), sum(slower.values())
        assert power is not None  # the TDP is known
        joules = nodes * power.total * model.pue * step / per_step
        caps.append({"gpu_cap_w": cap, "step_time_s": step, "energy_per_sample_j": joules})
    return caps
