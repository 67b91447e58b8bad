"""How much power does a machine draw, and how much carbon does a kWh carry? Fractions of a GPU's TDP, power of the rest, grids.

The model is in `sim.analysis.energy`. Its constants are one file in ``hardware/parts/power``; ``hardware/parts/grids`` has one file for
each source of carbon intensities.
"""

from typing import NamedTuple

from pydantic import Field

from sim.spec.fields import CarbonIntensity, Curve, Factor, Power, Source, Spec


class KernelMix(NamedTuple):
    """Fractions of the kernel time that are bound by products and by memory; in the rest of it, kernels are starting.

    Recurrent kernels count as bound by memory: their arithmetic units wait for the time step before.
    """

    products: float
    memory: float


class GpuPower(Spec):
    """Power draw of GPUs of one kind, as fractions of their TDP; 1.02 means two percent above it."""

    gpus: tuple[str, ...] = ()
    """Catalog names of the GPUs; empty: all GPUs that no other block names."""
    compute: Factor
    """Draw while the kernels of a training step run, used if it is unknown what bounds them or ``products`` and ``memory`` are missing."""
    products: Factor | None = None
    """Draw while a kernel bound by matrix products or convolutions runs; none: ``compute`` is used for all kernels."""
    memory: Factor | None = None
    """Draw while a kernel bound by memory runs; none: ``compute`` is used for all kernels."""
    waiting: Factor
    """Draw while a communication kernel spins, waiting for the network or for other ranks."""
    idle: Factor
    """Draw while no kernel runs: the input is late, kernels are starting, or the job restarts."""
    source: Source


class PowerModel(Spec):
    """Power draw of the GPUs and of the rest of a node, and the effect of a power cap on speed."""

    name: str
    gpus: tuple[GpuPower, ...] = Field(min_length=1)
    """Power draw of each kind of GPU by activity."""
    host: Power
    """Draw of one working node without its GPUs, behind its power supplies: processors, memory, fans, disks and ``host_nics`` adapters."""
    host_idle: Power
    """Draw of one waiting node without its GPUs, behind its power supplies."""
    supply_efficiency: Factor
    """Efficiency of the power supplies of a node: what GPUs and the rest of it draw, relative to what it takes from the mains."""
    host_gpus: Factor
    """Number of GPUs of the node to which ``host`` and ``host_idle`` refer; the draw of other nodes is proportional to their GPUs."""
    host_nics: Factor
    """Number of network adapters of ``host_gpus`` GPUs whose draw ``host`` and ``host_idle`` include; each of the others draws ``nic``."""
    nic: Power
    """Draw of one network adapter with its optics, behind the power supplies of its node; InfiniBand or Ethernet at 100 Gbps and above."""
    switch_port: Power
    """Draw of one switch port with its optics."""
    switch_ports: Factor
    """Number of switch ports for each network adapter of a job of several nodes."""
    cap: Curve
    """Fraction of the compute speed that remains, as a function of the power cap relative to the uncapped draw."""
    pue: Factor
    """Power usage effectiveness: energy of the whole site relative to the energy of its computers."""
    pue_interval: tuple[Factor, Factor]
    """Interval of ``pue`` that contains 95% of sites: low, high."""
    intensity_change: tuple[Factor, Factor]
    """Interval that contains 95% of grids' carbon intensities in the year of a job, relative to that of the catalog: low, high."""
    source: Source


class Grid(Spec):
    """Carbon intensity of the electricity of regions, as annual means; one file for each source of figures."""

    name: str
    regions: dict[str, CarbonIntensity] = Field(min_length=1)
    """Carbon intensity by a provider's region, or by country (ISO 3166, three letters)."""
    year: str
    """Year of the means; if the source names no year, what it states about the period."""
    source: Source
