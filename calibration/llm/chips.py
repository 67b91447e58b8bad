"""Which GPU does a name in a table mean, and what are its rates? Those of ``records/llm/gpus.csv``, or else of the catalogue's parts.

People write a GPU's name with its maker, the number in a node, or its memory: if the full name is unknown, these words are left out. A GPU
of the catalogue that is not in the table of GPUs is assumed to be joined by PCIe only, which `NamedChip` states.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from calibration.llm.shapes import LLM_RECORDS
from sim.spec.catalogue import catalogue, suggestions
from sim.spec.hardware import Gpu
from sim.spec.library import load_part

ProductPrecision = Literal["16bit", "fp8", "fp4"]
PCIE: Final = 32e9
"""Bytes/s of PCIe 4.0 x16, one direction (PCI-SIG: 16 GT/s per lane)."""
PCIE_NODE: Final = 8
"""GPUs of a node that joins them by PCIe: estimate (servers of ten slots)."""
PCIE_NIC: Final = 100e9 / 8
"""Bytes/s of the network per GPU of such a node: estimate."""
_PARTS: Final = "hardware/parts/gpus"
_DIE: Final = "GCD"
"""What AMD calls a die of a module with two, each of which software sees as a GPU."""
_COUNT: Final = re.compile(r"^\s*\d+\s*[x*\u00d7]\s*(?=\D)|(?<![a-z])\s*\(?(?<![a-z])[x*\u00d7]\s*\d+\)?\s*$", re.IGNORECASE)
"""The number of GPUs, before or after their name."""
_MEMORY: Final = re.compile(r"(\d+)\s*gi?b?\b", re.IGNORECASE)
_SAME_MEMORY: Final = 0.12
"""Largest relative difference between a GPU's memory and that in its name: some makers' GB are GiB, and parts are reserved (B200: 180 of
192)."""
_WORDS: Final = (
    r"\b(\d+\s*x|[hd]gx|nvidia|amd|instinct|tesla|geforce|quadro|blackwell|hopper|ampere|gpus?|oam|hbm\d?e?|sxm\d?|\d+\s*g(i?b)?)\b"
)
"""Words that people write around a GPU's name."""


@dataclass(frozen=True)
class Chip:
    """A GPU of the table of GPUs: rates in FLOP/s and bytes/s, memory in bytes."""

    name: str
    generation: str
    part: str
    multiprocessors: int
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


class NamedChip(NamedTuple):
    """A GPU, and what was assumed about it; empty if nothing was."""

    chip: Chip
    assumption: str = ""


def chip_named(name: str) -> NamedChip | None:
    """Return the GPU that *name* means; None if there is none of that name."""
    named = _named(name)
    if named is None or _DIE not in named.chip.name or _DIE.lower() in name.lower():
        return named
    return NamedChip(named.chip, f"a GPU is one of the two dies of an {named.chip.name.removesuffix('-' + _DIE)}")


def _named(name: str) -> NamedChip | None:
    chips = _chips()
    if normalize_name(name) in chips:
        return NamedChip(chips[normalize_name(name)])
    part = _parts().get(normalize_name(name))
    if part is not None:
        return _chip_of_part(part)
    counted = _COUNT.sub("", name)
    if normalize_name(counted) in chips:
        return NamedChip(chips[normalize_name(counted)], f"{chips[normalize_name(counted)].name} by {name!r}")
    core = normalize_name(re.sub(_WORDS, " ", counted.lower().replace("-", " ").replace("_", " ")))
    if not core:
        return None
    if core in chips:
        if _differs_in_memory(name, chips[core]):
            return None
        return NamedChip(chips[core], f"{chips[core].name} by {name!r}")
    return _chip_of_part(_parts()[core]) if core in _parts() else None


def similar_chips(name: str) -> list[str]:
    """Return GPUs of the table or the catalogue whose names resemble *name*."""
    near = suggestions(normalize_name(name), [*_chips(), *_parts()]) if name else []
    names = [named.chip.name for each in near if (named := chip_named(each)) is not None]
    return list(dict.fromkeys(names))


def _differs_in_memory(name: str, chip: Chip) -> bool:
    """Return whether *name* states more or less memory than *chip* has, such as a V100 of 16 GB."""
    sizes = _MEMORY.findall(name)
    return bool(sizes) and not any(abs(float(size) * 2.0**30 / chip.memory - 1.0) <= _SAME_MEMORY for size in sizes)


def _chip_of_part(name: str) -> NamedChip | None:
    """Return the part *name* of the catalogue; None if its kernels are not described, or if it lacks 16-bit products."""
    gpu = load_part(Gpu, name, _PARTS)
    narrow = gpu.dense_16bit
    if gpu.kernels is None or not narrow:
        return None
    peak: Mapping[ProductPrecision, float] = {"16bit": narrow, "fp8": gpu.peak.get("fp8", narrow), "fp4": gpu.peak.get("fp8", narrow)}
    chip = Chip(
        name=gpu.name, generation=gpu.architecture, part=name, multiprocessors=gpu.kernels.sm_count, peak=peak,
        memory_bandwidth=gpu.memory_bandwidth, memory=gpu.memory, fabric=PCIE, domain=PCIE_NODE, nic=PCIE_NIC, machine="",
    )  # fmt: skip
    return NamedChip(chip, f"{gpu.name}s of a node joined by PCIe 4.0")


@lru_cache(maxsize=1)
def _parts() -> dict[str, str]:
    """Return the catalogue's GPUs by their `plain` names, and by these without `_WORDS` if the result is unique."""
    parts = {normalize_name(name): name for name in catalogue(_PARTS)}
    short: dict[str, list[str]] = {}
    for name in catalogue(_PARTS):
        short.setdefault(normalize_name(re.sub(_WORDS, " ", name.replace("-", " "))), []).append(name)
    return {**{core: names[0] for core, names in short.items() if core and len(names) == 1}, **parts}


@lru_cache(maxsize=1)
def _chips() -> dict[str, Chip]:
    import csv

    lines = [line for line in (LLM_RECORDS / "gpus.csv").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    chips: dict[str, Chip] = {}
    for cells in csv.DictReader(lines):
        narrow = float(cells["bf16_TFLOPS"]) * 1e12
        eight = float(cells["fp8_TFLOPS"] or 0) * 1e12 or narrow
        chip = Chip(
            name=cells["name"],
            generation=cells["generation"],
            part=cells["part"],
            multiprocessors=int(cells["multiprocessors"]),
            peak={"16bit": narrow, "fp8": eight, "fp4": float(cells["fp4_TFLOPS"] or 0) * 1e12 or eight},
            memory_bandwidth=float(cells["memory_GBps"]) * 1e9,
            memory=float(cells["memory_GiB"]) * 2.0**30,
            fabric=float(cells["fabric_GBps"]) * 1e9,
            domain=int(cells["domain"]),
            nic=float(cells["nic_Gbps"]) * 1e9 / 8,
            machine=cells["machine"],
        )
        for alias in (cells["name"], *cells["aliases"].split("|")):
            if alias:
                chips[normalize_name(alias)] = chip
    return chips


def normalize_name(name: str) -> str:
    """Return *name* reduced to lower-case letters and digits."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
