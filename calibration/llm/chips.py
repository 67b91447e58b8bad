"""Which GPU does a name in a table mean, and what are its rates? Those of ``records/llm/gpus.csv``, or else of the catalog's parts.

People write a GPU's name with its maker, the number in a node, or its memory: if the full name is unknown, these words are left out. A GPU
of the catalog that is not in the table of GPUs is assumed to be joined by PCIe only, which `NamedChip` states.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from calibration import HARDWARE
from calibration.gpu_names import PARTS_FOLDER, GpuNames, aliases_by_part
from calibration.llm.shapes import LLM_RECORDS
from sim.spec.catalog import catalog, suggestions
from sim.spec.fields import Peak
from sim.spec.hardware import Gpu
from sim.spec.library import load_hardware, load_part

ProductPrecision = Literal["16bit", "fp8", "fp4"]
PRECISIONS: Final[Mapping[ProductPrecision, Peak]] = {"16bit": "bf16", "fp8": "fp8", "fp4": "nvfp4"}
"""The precision of a workload with these products."""
PCIE: Final[Mapping[int, float]] = {3: 16e9, 4: 32e9, 5: 64e9}
"""Bytes/s of 16 lanes of PCIe by generation, one direction (PCI-SIG: 8, 16 and 32 GT/s per lane)."""
THROUGH_HOST: Final = 20 / 32
"""Share of that rate at which GPUs of a node send to each other without NVLink: that of the table's L40S, as some copies pass through host
memory. In the simulator, such servers reach 15 GB/s (python -m sim collective g6e.48xlarge --op all_gather)."""
PCIE_NODE: Final = 8
"""GPUs of a node that joins them by PCIe: estimate (servers of ten slots)."""
PCIE_NIC: Final = 100e9 / 8
"""Bytes/s of the network per GPU of such a node: estimate."""
RACK: Final = 72
"""Smallest number of GPUs that the fabric joins across nodes (NVL72)."""
TRAY: Final = 4
"""GPUs of one node of such a rack (NVL72: 18 trays)."""
BEFORE_AMPERE: Final = ("pascal", "volta", "turing")
"""Architectures with PCIe 3.0, and without products in bfloat16 (compute capability below 8.0)."""
BEFORE_TURING: Final = ("pascal", "volta")
"""Architectures without a FlashAttention, which Megatron-LM calls (its README: version 2 from Ampere on, version 1 on Turing)."""
WITH_PCIE_5: Final = ("hopper", "blackwell", "cdna3", "cdna4")
"""Architectures with PCIe 5.0 (data sheets of H100 PCIe, RTX 5090 and RTX PRO 6000 Blackwell; AMD: hardware/mi300x-platform.yaml)."""


@dataclass(frozen=True)
class Chip:
    """A GPU of the table of GPUs: rates in FLOP/s and bytes/s, memory in bytes."""

    name: str
    generation: str
    part: str
    peak: Mapping[ProductPrecision, float]
    """Dense peak rates; a precision that the GPU lacks has the rate of the next wider one."""
    memory_bandwidth: float
    memory: float
    fabric: float
    """NVLink or xGMI of one GPU, one direction."""
    domain: int
    """GPUs that the fabric joins."""
    nic: float
    machine: str
    other_domains: tuple[int, ...] = ()
    """Numbers of GPUs that the fabric joins in other nodes with this GPU."""
    dies: int = 1
    """GPUs, as software counts them, on one card."""
    is_mesh: bool = False
    """Whether the fabric is a link between every two GPUs of a domain, not a switch."""

    @property
    def pcie(self) -> int:
        """Return the generation of PCIe that joins the GPUs of a node; 0 if something faster does."""
        return next((generation for generation, rate in PCIE.items() if self.fabric <= rate), 0)

    @property
    def bus(self) -> float:
        """Return the bytes/s of one direction between a GPU and those of its node that the fabric does not join."""
        return self.fabric if self.pcie else PCIE[_pcie_of(self.generation)]

    @property
    def slot(self) -> float:
        """Return the bytes/s that a NIC beside it can have: those of its usual NIC, or of 16 lanes of PCIe if they are faster."""
        return max(self.nic, PCIE[_pcie_of(self.generation)])

    @property
    def usual_gpus(self) -> int:
        """How many GPUs a node usually has."""
        return TRAY if self.domain >= RACK else min(self.domain, 8)


class NamedChip(NamedTuple):
    """A GPU, and what was assumed about it; empty if nothing was."""

    chip: Chip
    assumption: str = ""


def chip_named(name: str) -> NamedChip | None:
    """Return the GPU that *name* means (`calibration.gpu_names`); None if there is none of that name."""
    named = _named(name)
    if named is None or named.chip.dies == 1 or "gcd" in name.lower():
        return named
    return NamedChip(named.chip, f"a GPU is one of the two dies of an {named.chip.name.removesuffix('-GCD')}")


def _named(name: str) -> NamedChip | None:
    if (as_listed := _chips().get(normalize_name(name))) is not None:
        return NamedChip(as_listed)
    meant = next(iter(_gpus().meant(name)), None)
    if meant is None:
        return None
    listed = _chips().get(normalize_name(meant))
    named = NamedChip(listed) if listed is not None else _chip_of_part(meant)
    says_joined = re.search("bridge|nvlink", name, re.IGNORECASE)  # then how boards are joined is not assumed
    if named is None or (named.assumption and not says_joined):
        return named
    return NamedChip(named.chip, f"{named.chip.name} by {name!r}")


def part_of(chip: Chip) -> Gpu:
    """Return the catalog's part of *chip*."""
    return load_part(Gpu, chip.part or chip.name.lower())


def host_factor_of(chip: Chip) -> float:
    """Return `Cpu.host_factor` of the processor beside *chip* in its usual machine; 1 if no machine has it."""
    return _host_factor(chip.machine) if chip.machine else 1.0


@lru_cache(maxsize=64)
def _host_factor(machine: str) -> float:
    return load_hardware(machine, library=HARDWARE).spec.groups[0].node.host.cpu.host_factor


def similar_chips(name: str) -> list[str]:
    """Return GPUs of the table or the catalog with the number of *name*, such as H100; else those whose names resemble it."""
    same = [named.chip.name for gpu in _gpus().of_same_number(name) if (named := chip_named(gpu)) is not None]
    if same:
        return list(dict.fromkeys(same))[:3]
    near = suggestions(normalize_name(name), [*_chips(), *map(normalize_name, catalog(PARTS_FOLDER))]) if name else []
    names = [named.chip.name for each in near if (named := chip_named(each)) is not None]
    return list(dict.fromkeys(names))


@lru_cache(maxsize=1)
def _gpus() -> GpuNames:
    """Return the GPUs of the table with their memory and aliases, and the others of the catalog."""
    chips = {chip.name: chip for chip in _chips().values()}
    aliases = {name: [alias for alias, meant in _chips().items() if meant is chip] for name, chip in chips.items()}
    listed = set(map(normalize_name, aliases))
    others = {part: names for part, names in aliases_by_part().items() if normalize_name(part) not in listed}
    return GpuNames(aliases | others, {name: chip.memory / 2.0**30 for name, chip in chips.items()})


@lru_cache(maxsize=64)
def _chip_of_part(name: str) -> NamedChip | None:
    """Return the part *name* of the catalog; None if it lacks 16-bit products, or is no GPU (TPUs are joined in a torus)."""
    gpu = load_part(Gpu, name)
    narrow = gpu.dense_16bit
    if not narrow or gpu.architecture.startswith("tpu"):
        return None
    pcie = _pcie_of(gpu.architecture)
    peak: Mapping[ProductPrecision, float] = {"16bit": narrow, "fp8": gpu.peak.get("fp8", narrow), "fp4": gpu.peak.get("fp8", narrow)}
    chip = Chip(
        name=gpu.name, generation=gpu.architecture, part=name, peak=peak,
        memory_bandwidth=gpu.memory_bandwidth, memory=gpu.memory, fabric=THROUGH_HOST * PCIE[pcie], domain=PCIE_NODE, nic=PCIE_NIC,
        machine="",
    )  # fmt: skip
    return NamedChip(chip, f"{gpu.name}s of a node joined by PCIe {pcie}.0")


def _pcie_of(generation: str) -> int:
    """Return the generation of PCIe of GPUs of the architecture *generation*."""
    return 3 if generation in BEFORE_AMPERE else 5 if generation in WITH_PCIE_5 else 4


@lru_cache(maxsize=1)
def _chips() -> dict[str, Chip]:
    lines = [line for line in (LLM_RECORDS / "gpus.csv").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    chips: dict[str, Chip] = {}
    for cells in csv.DictReader(lines):
        narrow = float(cells["bf16_TFLOPS"]) * 1e12
        eight = float(cells["fp8_TFLOPS"] or 0) * 1e12 or narrow
        chip = Chip(
            name=cells["name"],
            generation=cells["generation"],
            part=cells["part"],
            peak={"16bit": narrow, "fp8": eight, "fp4": float(cells["fp4_TFLOPS"] or 0) * 1e12 or eight},
            memory_bandwidth=float(cells["memory_GBps"]) * 1e9,
            memory=float(cells["memory_GiB"]) * 2.0**30,
            fabric=float(cells["fabric_GBps"]) * 1e9,
            domain=int(cells["domain"]),
            nic=float(cells["nic_Gbps"]) * 1e9 / 8,
            machine=cells["machine"],
            other_domains=tuple(int(size) for size in cells["other_domains"].split("|") if size),
            dies=int(cells["dies"] or 1),
            is_mesh=bool(cells["mesh"]),
        )
        for alias in (cells["name"], *cells["aliases"].split("|")):
            if alias:
                chips[normalize_name(alias)] = chip
    return chips


def normalize_name(name: str) -> str:
    """Return *name* reduced to lower-case letters and digits."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
