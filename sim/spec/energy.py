"""How much power does a machine draw, and what carbon does a kWh carry? Shares of a GPU's TDP, watts beside the GPUs, grids.

`sim.analysis.energy` has the law; one file in ``hardware/parts/power`` describes it, one in ``hardware/parts/grids`` each region.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from sim.spec.fields import CarbonIntensity, Curve, Factor, Power, Source, Spec


class KernelMix(NamedTuple):
    """Shares of the time of kernels in which products and memory bound them; in the rest kernels start."""

    products: float
    memory: float


class GpuPower(Spec):
    """What GPUs of one kind draw, as shares of their TDP; 1.02 means two per cent above it."""

    gpus: tuple[str, ...] = ()
    """Names of the catalogue; empty: all that no other block names."""
    compute: Factor
    """While kernels of a training step run of which no more is known."""
    products: Factor | None = None
    """While a kernel runs that matrix products or convolutions bound."""
    memory: Factor | None = None
    """While one runs that memory bounds."""
    waiting: Factor
    """While a communication kernel spins, waiting for the network or for other ranks."""
    idle: Factor
    """While nothing runs: the input is late, kernels start, or the job restarts."""
    source: Source


class PowerModel(Spec):
    """Power of a node beside its GPUs, and what a power cap costs."""

    name: str
    gpus: tuple[GpuPower, ...] = Field(min_length=1)
    """What each kind of GPU draws by what it does."""
    host: Power
    """Of one node beside its GPUs at work: processors, memory, fans, disks, conversion."""
    host_idle: Power
    """The same of a node that waits."""
    host_gpus: Factor
    """GPUs of the node that ``host`` speaks of; a node with fewer GPUs draws in proportion."""
    nic: Power
    """Of one network interface, its cable and the port of the switch; InfiniBand or Ethernet from 100 Gbps on."""
    switch_port: Power
    """Of one port of a switch above the first layer."""
    cap: Curve
    """Share of the speed of compute that is left over the share of the uncapped draw that a cap allows."""
    pue: Factor
    """Power usage effectiveness: energy of the site over that of its computers."""
    pue_interval: tuple[Factor, Factor]
    """95% of sites lie between."""
    source: Source


class Grid(Spec):
    """Carbon that the electricity of regions carries, in the mean of a year: one file for each source of figures."""

    name: str
    regions: dict[str, CarbonIntensity] = Field(min_length=1)
    """By region of a provider, or by country (ISO 3166, three letters)."""
    year: str
    """Of the means; what the source says of it where it names no year."""
    source: Source
