"""How much energy does training take, and how much carbon? Power by what GPUs do, of the host and the network; PUE; the grid's intensity.

A GPU draws a share of its TDP: most while products bound its kernels, less while memory does or a communication kernel spins, least while
it has nothing to do, which it has while kernels start (`sim.spec.energy`). A node adds its host, and its NICs with their switch ports where
there are several nodes. Energy of the site is that of the computers times PUE; CO2 is that times the grid's intensity in the mean of a
year. A power cap slows compute alone, by a measured curve over the share of the uncapped draw that the cap allows.

Limits: a mean over the step, no peaks; kernels of all sizes draw alike; GPUs that nobody measured draw alike whatever bounds their
kernels; storage and cooling are in host and PUE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sim.spec.energy import GpuPower, Grid, KernelMix, PowerModel
from sim.spec.fields import at
from sim.spec.hardware import Gpu, Node
from sim.spec.library import catalogue, load_part
from sim.spec.yaml import SpecError

WAITING = ("interconnect", "network", "straggler", "pipeline")
"""Stalls in which a communication kernel spins; in the others but compute the GPU has nothing to do."""
WORLD = "WORLD"
"""The region that stands in for an unknown one."""
KWH = 3.6e6
"""J in a kWh."""


class GridIntensity(NamedTuple):
    """Carbon of a *region*: *intensity* (kg/J), of which year, and whose figure it is."""

    region: str
    intensity: float
    year: str
    source: str
    assumed: bool = False
    """Whether the region is unknown, and the world's mean stands in."""

    @property
    def figures(self) -> dict[str, Any]:
        """Return it as documents have it."""
        return {
            "region": self.region, "kg_per_kwh": self.intensity * KWH, "year": self.year, "source": self.source, "assumed": self.assumed,
        }  # fmt: skip


class NodePower(NamedTuple):
    """Mean power of one node (W): of all its GPUs, the rest of the machine, and its part of the network."""

    gpus: float
    host: float
    network: float

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.gpus + self.host + self.network


def power_model() -> PowerModel:
    """Return the power model of the catalogue."""
    return load_part(PowerModel, "default", "hardware/parts/power")


def draw_of(gpu: Gpu, model: PowerModel, mix: KernelMix | None = None) -> GpuPower:
    """Return what *model* says of *gpu*, the block that names it, else the one that names none, for kernels of *mix*."""
    named = next((block for block in model.gpus if gpu.name in block.gpus), None)
    block = named or next(block for block in model.gpus if not block.gpus)
    if mix is None or block.products is None or block.memory is None:
        return block
    starts = max(0.0, 1.0 - mix.products - mix.memory)
    return block.model_copy(update={"compute": mix.products * block.products + mix.memory * block.memory + starts * block.idle})


def grid_of(region: str | None, provider: str = "") -> GridIntensity:
    """Return the intensity of *region* (of a provider, or a country); of the world where it is None or not in the catalogue.

    A *region* of which nobody wrote a provider is looked up in every file.
    """
    grids = [load_part(Grid, name, "hardware/parts/grids") for name in catalogue("hardware/parts/grids")]
    grids.sort(key=lambda grid: grid.name != provider)
    for grid in grids:
        if region in grid.regions:
            return GridIntensity(str(region), grid.regions[str(region)], grid.year, _text(grid))
    world = next(grid for grid in grids if WORLD in grid.regions)
    return GridIntensity(WORLD, world.regions[WORLD], world.year, _text(world), assumed=True)


def named_grid(region: str) -> GridIntensity:
    """Return the intensity of the *region* that a user wrote. Raise SpecError for one that the catalogue does not have."""
    named = grid_of(region)
    if named.assumed and region != WORLD:
        raise SpecError(
            f"--region {region}: no grid intensity available; write an AWS or GCP region such as us-east-1, or a country such as USA"
        )
    return named._replace(assumed=False)


def _text(grid: Grid) -> str:
    return grid.source if isinstance(grid.source, str) else grid.source.get("*", "")


def shares_of(stalls: Mapping[str, float]) -> tuple[float, float, float]:
    """Return which shares of a step GPUs compute, spin in communication, and have nothing to do, given seconds by stall."""
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
) -> NodePower | None:
    """Return the mean power of *node* while its GPUs (or *gpus* of them) spend *shares* on computing, spinning and nothing.

    *several*: whether the job has more nodes, so that the network counts; *working*: whether the host does; *mix*: what bounds its
    kernels, if that is known; *cap*: limit of each GPU (W). None without a TDP.
    """
    if node.gpu.power is None or not node.gpu_count:
        return None
    draw = draw_of(node.gpu, model, mix)
    used = node.gpu_count if gpus is None else gpus
    compute, waiting, idle = (min(node.gpu.power * level, cap) for level in (draw.compute, draw.waiting, draw.idle))
    busy = shares[0] * compute + shares[1] * waiting + shares[2] * idle
    of_gpus = used * busy + (node.gpu_count - used) * idle
    size = node.gpu_count / model.host_gpus
    network = node.nic.count * (model.nic + model.switch_port) if several else 0.0
    return NodePower(of_gpus, size * (model.host if working else model.host_idle), network)


class Capped(NamedTuple):
    """What a power cap does to a step."""

    cap: float
    """W of one GPU."""
    step_time: float
    power: NodePower


def capped(
    node: Node, model: PowerModel, stalls: Mapping[str, float], cap: float, several: bool, mix: KernelMix | None = None,
    gpus: int | None = None,
) -> Capped | None:  # fmt: skip
    """Return the step and the power of *node* with its *gpus* (all) limited to *cap* (W), given the *stalls* (s) of the uncapped step."""
    if node.gpu.power is None:
        return None
    draw = draw_of(node.gpu, model, mix)
    full = node.gpu.power * draw.compute
    share = min(1.0, cap / full)
    slower = dict(stalls)
    slower["compute"] = stalls.get("compute", 0.0) / at(model.cap, share)
    power = node_power(node, model, shares_of(slower), several, gpus, mix=mix, cap=cap)
    return None if power is None else Capped(cap, sum(slower.values()), power)


class NodesOfKind(NamedTuple):
    """Nodes of one kind in a job: *nodes* of them with *gpus* of the job's on each; *mix*: what bounds their kernels, if that is known."""

    node: Node
    nodes: int
    gpus: int
    mix: KernelMix | None = None


def mean_power(
    kinds: Sequence[NodesOfKind], shares: tuple[float, float, float], model: PowerModel, working: bool = True, cap: float = math.inf
) -> NodePower | None:
    """Return the power of the mean node of *kinds*, as `node_power` has it of each; None where the TDP of a GPU is unknown."""
    nodes, total = sum(kind.nodes for kind in kinds), NodePower(0.0, 0.0, 0.0)
    for kind in kinds:
        power = node_power(kind.node, model, shares, nodes > 1, kind.gpus, working, kind.mix, cap)
        if power is None:
            return None
        total = NodePower(*(sums + kind.nodes / nodes * part for sums, part in zip(total, power, strict=True)))
    return total


def energy_figures(
    kinds: Sequence[NodesOfKind], stalls: Mapping[str, float], per_step: float, grid: GridIntensity, tokens: int | None = None
) -> dict[str, Any] | None:
    """Return power, energy and carbon of a run as its document has them: *per_step* samples of *tokens* tokens in the *stalls* (s).

    Power of a node and of a GPU is that of the mean one of all *kinds*; power caps are worked out where there is one kind.
    """
    model, step, nodes = power_model(), sum(stalls.values()), sum(kind.nodes for kind in kinds)
    power = mean_power(kinds, shares_of(stalls), model)
    if power is None or not step:
        return None
    site = nodes * power.total * model.pue
    each = site * step / per_step
    return {
        "gpu_power_w": power.gpus * nodes / sum(kind.nodes * kind.node.gpu_count for kind in kinds),
        "node_power_w": power.total,
        "parts_w": power._asdict(),
        "pue": model.pue,
        "site_power_w": site,
        "energy_per_sample_j": each,
        "energy_per_token_j": each / tokens if tokens else None,
        "co2_per_sample_kg": each * grid.intensity,
        "grid": grid.figures,
        "power_caps": _caps(kinds[0]._replace(nodes=nodes), stalls, per_step, model)
        if all(kind.node == kinds[0].node for kind in kinds) else [],
    }  # fmt: skip


def _caps(kind: NodesOfKind, stalls: Mapping[str, float], per_step: float, model: PowerModel) -> list[dict[str, float]]:
    """Return the step and the energy of a sample with GPUs limited to shares of what they draw while they compute."""
    full = (kind.node.gpu.power or 0.0) * draw_of(kind.node.gpu, model, kind.mix).compute
    caps = [capped(kind.node, model, stalls, share * full, kind.nodes > 1, kind.mix, kind.gpus) for share in (0.5, 0.6, 0.7, 0.8, 0.9)]
    return [
        {
            "gpu_cap_w": one.cap,
            "step_time_s": one.step_time,
            "energy_per_sample_j": kind.nodes * one.power.total * model.pue * one.step_time / per_step,
        }
        for one in caps
        if one is not None
    ]
