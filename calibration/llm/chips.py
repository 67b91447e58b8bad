"""Which GPU does a name in a table mean, and what are its rates? Those of ``records/llm/gpus.csv``, or else of the catalogue's parts.

People write a GPU's name with its maker, the number in a node, or its memory: if the full name is unknown, these words are left out. A GPU
of the catalogue that is not in the table of GPUs is assumed to be joined by PCIe only, which `NamedChip` states.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from calibration.llm.shapes import LLM_RECORDS
from sim.spec.catalogue import catalogue, suggestions
from sim.spec.fields import Precision
from sim.spec.hardware import Gpu
from sim.spec.library import load_part

ProductPrecision = Literal["16bit", "fp8", "fp4"]
PRECISIONS: Final[Mapping[ProductPrecision, Precision]] = {"16bit": "bf16", "fp8": "fp8", "fp4": "nvfp4"}
"""The precision of a workload with these products."""
PCIE: Final = 32e9
"""Bytes/s of PCIe 4.0 x16, one direction (PCI-SIG: 16 GT/s per lane)."""
PCIE_NODE: Final = 8
"""GPUs of a node that joins them by PCIe: estimate (servers of ten slots)."""
PCIE_NIC: Final = 100e9 / 8
"""Bytes/s of the network per GPU of such a node: estimate."""
RACK: Final = 72
"""Smallest number of GPUs that the fabric joins across nodes (NVL72)."""
TRAY: Final = 4
"""GPUs of one node of such a rack (NVL72: 18 trays)."""
_PARTS: Final = "hardware/parts/gpus"
_COUNT: Final = re.compile(r"^\s*\d+\s*[x*\u00d7]\s*(?=\D)|(?<![a-z])\s*\(?(?<![a-z])[x*\u00d7]\s*\d+\)?\s*$", re.IGNORECASE)
"""The number of GPUs, before or after their name."""
_MEMORY: Final = re.compile(r"\b(\d+)\s*gi?b?\b")
_SAME_MEMORY: Final = 0.12
"""Largest relative difference between a GPU's memory and that in its name: some makers' GB are GiB, and parts are reserved (B200: 180 of
192)."""
_WORDS: Final = re.compile(
    r"\b(\d+\s*x|[hd]gx|nvidia|amd|instinct|tesla|geforce|blackwell|hopper|ampere|tensor core|generation|server|workstation|edition|gpus?|"
    r"oam|hbm(2|3|3e)?|nvl72|gcds?)\b"
)
"""Words around a GPU's name that do not distinguish it from others."""
_FORM: Final = re.compile(r"\b(sxm|pcie|nvl)\d?\b")
_VARIANT: Final = re.compile(r"\b(hbm2e|\d+w)\b")
"""Words that distinguish boards of the same name, form and memory; a name without them does not mean such a board."""
_SHOWN: Final[Mapping[str, str]] = {"h10080gbhbm2e": "h100-pcie-80gb"}
"""Names without a form that only one board has (NVIDIA's data sheets: of the H100 of 80 GB, only the PCIe board has HBM2e)."""
_TWO_MEANINGS: Final = ("6000", "8000")
"""Numbers of several generations of RTX boards."""
BEFORE_AMPERE: Final = ("pascal", "volta", "turing")
"""Architectures with PCIe 3.0, and without products in bfloat16 (compute capability below 8.0)."""


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
    other_domains: tuple[int, ...] = ()
    """Numbers of GPUs that the fabric joins in other nodes with this GPU."""
    dies: int = 1
    """GPUs, as software counts them, on one card."""

    @property
    def usual_gpus(self) -> int:
        """How many GPUs a node usually has."""
        return TRAY if self.domain >= RACK else min(self.domain, 8)


class NamedChip(NamedTuple):
    """A GPU, and what was assumed about it; empty if nothing was."""

    chip: Chip
    assumption: str = ""


class _Words(NamedTuple):
    """A GPU's name in parts: its number, such as ``a100``, the form of its board, GB of memory (0: not stated), and the variant."""

    core: str
    form: str
    memory: int
    variant: str


def chip_named(name: str) -> NamedChip | None:
    """Return the GPU that *name* means; None if there is none of that name."""
    named = _named(name)
    if named is None or named.chip.dies == 1 or "gcd" in name.lower():
        return named
    return NamedChip(named.chip, f"a GPU is one of the two dies of an {named.chip.name.removesuffix('-GCD')}")


def _named(name: str) -> NamedChip | None:
    exact = _by_full_name(name)
    if exact is not None:
        return exact
    plain = _plain(name)
    same = _by_full_name(_WORDS.sub(" ", plain))
    chosen = same or _best(_split(plain))
    if chosen is None and (bare := re.sub(r"\(.*?\)", "", name)) != name:  # a note, such as the bridge between two boards
        chosen = _named(bare)
        return chosen and NamedChip(chosen.chip, f"{chosen.chip.name} by {name!r}")
    return chosen if chosen is None or chosen.assumption else NamedChip(chosen.chip, f"{chosen.chip.name} by {name!r}")


def similar_chips(name: str) -> list[str]:
    """Return GPUs of the table or the catalogue whose names resemble *name*."""
    near = suggestions(normalize_name(name), [*_chips(), *_parts()]) if name else []
    names = [named.chip.name for each in near if (named := chip_named(each)) is not None]
    return list(dict.fromkeys(names))


def _by_full_name(name: str) -> NamedChip | None:
    """Return the GPU with exactly *name*, apart from case and punctuation."""
    key = normalize_name(name)
    if key in _chips():
        return NamedChip(_chips()[key])
    return _chip_of_part(_parts()[key]) if key in _parts() else None


def _plain(name: str) -> str:
    """Return *name* in lower case with spaces between its words, without the number of GPUs."""
    return re.sub(r"[-_()/,]+", " ", _COUNT.sub("", name).lower()).strip()


def _split(plain: str) -> _Words:
    """Return the parts of the name *plain*."""
    memory, form, variant = _MEMORY.search(plain), _FORM.search(plain), _VARIANT.findall(plain)
    rest = plain
    for pattern in (_MEMORY, _FORM, _VARIANT, _WORDS):
        rest = pattern.sub(" ", rest)
    return _Words(normalize_name(rest), form.group(1) if form else "", int(memory.group(1)) if memory else 0, variant[0] if variant else "")


def _best(words: _Words) -> NamedChip | None:
    """Return the GPU that fits *words*: the one named exactly by the bare number, or else the one with the most memory.

    Without a stated form, only GPUs of the usual form fit.
    """
    usual = _by_full_name(words.core) if words.core else None
    form = words.form or (_split(_plain(usual.chip.name)).form if usual is not None else "")
    fitting = {named: part for named, part in _index() if _fits(part, words._replace(form=form))}
    if not fitting:
        return None
    if usual is not None and usual.chip.name in fitting:
        return usual
    return _by_full_name(max(fitting, key=lambda named: fitting[named].memory))


def _fits(part: _Words, words: _Words) -> bool:
    """Return whether the GPU *part* has everything that *words* states."""
    same_memory = not words.memory or not part.memory or abs(words.memory / part.memory - 1.0) <= _SAME_MEMORY
    return part.core == words.core and same_memory and part.variant in ("", words.variant) and words.form in ("", part.form)


@lru_cache(maxsize=1)
def _index() -> list[tuple[str, _Words]]:
    """Return the names of all GPUs, and their parts; those of the table of GPUs with their memory."""
    chips = {chip.name: chip for chip in _chips().values()}
    listed = {normalize_name(chip.name) for chip in chips.values()}
    words = [(chip.name, _split(_plain(chip.name))._replace(memory=round(chip.memory / 2.0**30))) for chip in chips.values()]
    return words + [(name, _split(_plain(name))) for key, name in _parts().items() if key not in listed]


@lru_cache(maxsize=64)
def _chip_of_part(name: str) -> NamedChip | None:
    """Return the part *name* of the catalogue; None if its number of multiprocessors is unknown, or if it lacks 16-bit products."""
    gpu = load_part(Gpu, name, _PARTS)
    narrow = gpu.dense_16bit
    multiprocessors = gpu.kernels.sm_count if gpu.kernels is not None else _multiprocessors().get(name, 0)
    if not multiprocessors or not narrow:
        return None
    bus, rate = ("3.0", PCIE / 2) if gpu.architecture in BEFORE_AMPERE else ("4.0", PCIE)
    peak: Mapping[ProductPrecision, float] = {"16bit": narrow, "fp8": gpu.peak.get("fp8", narrow), "fp4": gpu.peak.get("fp8", narrow)}
    chip = Chip(
        name=gpu.name, generation=gpu.architecture, part=name, multiprocessors=multiprocessors, peak=peak,
        memory_bandwidth=gpu.memory_bandwidth, memory=gpu.memory, fabric=rate, domain=PCIE_NODE, nic=PCIE_NIC, machine="",
    )  # fmt: skip
    return NamedChip(chip, f"{gpu.name}s of a node joined by PCIe {bus}")


@lru_cache(maxsize=1)
def _parts() -> dict[str, str]:
    """Return the names of the catalogue's GPUs by their normalized names, with and without ``quadro`` and ``rtx``."""
    names = catalogue(_PARTS)
    keys: dict[str, str] = {}
    for word in ("quadrortx|rtx", "quadro", "$"):  # full names last: they win
        keys |= {key: name for name in names if (key := normalize_name(re.sub(f"^({word})", "", name))) not in _TWO_MEANINGS}
    return {**keys, **_SHOWN}


@lru_cache(maxsize=1)
def _multiprocessors() -> dict[str, int]:
    """Return the number of multiprocessors of those parts of the catalogue that have no ``kernels``."""
    lines = (LLM_RECORDS / "multiprocessors.csv").read_text(encoding="utf-8").splitlines()
    return {cells["part"]: int(cells["multiprocessors"]) for cells in csv.DictReader(line for line in lines if not line.startswith("#"))}


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
            multiprocessors=int(cells["multiprocessors"]),
            peak={"16bit": narrow, "fp8": eight, "fp4": float(cells["fp4_TFLOPS"] or 0) * 1e12 or eight},
            memory_bandwidth=float(cells["memory_GBps"]) * 1e9,
            memory=float(cells["memory_GiB"]) * 2.0**30,
            fabric=float(cells["fabric_GBps"]) * 1e9,
            domain=int(cells["domain"]),
            nic=float(cells["nic_Gbps"]) * 1e9 / 8,
            machine=cells["machine"],
            other_domains=tuple(int(size) for size in cells["other_domains"].split("|") if size),
            dies=int(cells["dies"] or 1),
        )
        for alias in (cells["name"], *cells["aliases"].split("|")):
            if alias:
                chips[normalize_name(alias)] = chip
    return chips


def normalize_name(name: str) -> str:
    """Return *name* reduced to lower-case letters and digits."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
