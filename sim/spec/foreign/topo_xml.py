"""What is in NCCL's topology file? ``<system><cpu><pci><gpu><nvlink>`` and ``<nic><net>``: the tree as detected by NCCL.

NCCL writes it to the path in ``NCCL_TOPO_DUMP_FILE`` (NVIDIA/nccl `src/graph/xml.cc`). Cloud providers ship files of the same form for
``NCCL_TOPO_FILE``, without ``gpu``, ``net`` and NVLink; their GPUs and NICs are recognized by PCI class. A ``pci`` that contains others is
a switch. Link rates below 8 GT/s are ignored as unknown, because emulated bridges of virtual machines report 2.5 GT/s x1. A width of 0
means 16 lanes, as in NCCL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from sim.spec.elements import Element, read_elements
from sim.spec.wiring import MOST_DEVICES, Branch, Card, Domain, Lanes, Near, Pair, Processor, Wiring, pairs
from sim.spec.yaml import SpecError
from sim.units import shorten

FORM: Final = "NCCL topology file"

_GPU_CLASS, _NIC_CLASS, _INFINIBAND_CLASS, _NVSWITCH_CLASS = "0x03", "0x02", "0x0207", "0x068000"
"""Prefixes of PCI classes (NVIDIA/nccl topo.cc, kvDictPciClass)."""

_WHOLE = re.compile(r"-?[0-9]{1,9}")
_RATE = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s")
_LEAST_RATE: Final = 8.0
_MBPS: Final = 1e6 / 8


@dataclass
class _DevicesRead:
    """The devices found so far, numbered in the order of the file."""

    file: str
    gpus: list[tuple[Element, Element | None, str]] = field(default_factory=list)
    """PCI element, GPU element and parent (a socket or switch) of each GPU."""
    nics: list[tuple[Card, str]] = field(default_factory=list)
    switches: list[tuple[str, str, Lanes | None]] = field(default_factory=list)
    """Name, parent and uplink."""
    notes: list[str] = field(default_factory=list)

    def wrong(self, element: Element, message: str) -> SpecError:
        return SpecError(f"{self.file}:{element.line}: {message}")


def read_xml(text: str, file: str) -> Wiring:
    """Return the wiring in *text*; *file* is the name used in messages. Raise SpecError with the line of the error."""
    reading = _DevicesRead(file)
    system = _system(read_elements(text, file), file)
    cpus = list(system.all("cpu"))
    _check_hosts(reading, system, cpus)
    for index, cpu in enumerate(cpus):
        _visit(reading, cpu, f"socket{index}")
    if not reading.gpus:
        raise reading.wrong(
            system, "no GPU found: no <gpu>, and no <pci> of class 0x03; dump it with NCCL_TOPO_DUMP_FILE from a job on all GPUs"
        )
    if len(reading.gpus) + len(reading.nics) > MOST_DEVICES:
        raise reading.wrong(system, f"more than {MOST_DEVICES} GPUs and NICs; pass the file of one machine")
    _number_gpus(reading)
    _keep_fastest(reading)
    nvlinks, switch_links = _nvlinks(reading)
    domains, branches = _tree(reading, len(cpus))
    return Wiring(
        form=FORM,
        gpus=len(reading.gpus),
        cards=tuple(card for card, _ in reading.nics),
        domains=domains,
        branches=branches,
        nvlinks=nvlinks,
        switch_links=switch_links,
        nvlink_known=any(gpu is not None for _, gpu, _ in reading.gpus),
        classes=_classes(reading),
        devices=tuple(dict.fromkeys(_devices(reading))),
        compute_capability=_compute_capability(reading),
        vcpus=_count_cpus(cpus),
        numa_nodes=len(cpus),
        processor=_processor(cpus),
        lanes=_gpu_lanes(reading),
        notes=tuple(reading.notes),
    )


# --- elements ---------------------------------------------------------------------------------------------------------


def _system(root: Element, file: str) -> Element:
    if root.tag != "system":
        hint = {"graphs": " (this file is from NCCL_GRAPH_DUMP_FILE)", "topology": " (this file is from hwloc)"}.get(root.tag, "")
        raise SpecError(
            f"{file}:{root.line}: <{shorten(root.tag)}> is not NCCL's topology{hint}; pass the file written to NCCL_TOPO_DUMP_FILE, "
            "which begins with <system>"
        )
    return root


def _whole(reading: _DevicesRead, element: Element, name: str) -> int | None:
    """Return the attribute *name* as a whole number; None if it is missing."""
    text = element.attributes.get(name)
    if text is None:
        return None
    if not _WHOLE.fullmatch(text):
        raise reading.wrong(element, f"{element.tag} {name}={shorten(text)} is not a whole number; pass the file as NCCL wrote it")
    return int(text)


# --- the tree --------------------------------------------------------------------------------------------------------


def _check_hosts(reading: _DevicesRead, system: Element, cpus: Sequence[Element]) -> None:
    if not cpus:
        raise reading.wrong(system, "no <cpu> found; pass the whole file written to NCCL_TOPO_DUMP_FILE")
    hosts = {cpu.attributes.get("host_hash", "") for cpu in cpus}
    if len(hosts) > 1:
        raise reading.wrong(system, f"{len(hosts)} machines in one file (host_hash); dump the topology of a job on one machine")
    numbers = Counter(cpu.attributes.get("numaid", "") for cpu in cpus)
    twice = next((cpu for cpu in reversed(cpus) if numbers[cpu.attributes.get("numaid", "")] > 1), None)
    if twice is not None:
        raise reading.wrong(
            twice, f"NUMA node {shorten(twice.attributes.get('numaid', ''))} appears twice; each <cpu> needs its own numaid"
        )


def _visit(reading: _DevicesRead, element: Element, holder: str) -> None:
    """Record every device below *element*; *holder* is the name of the socket or switch of these devices."""
    for child in element.children:
        if child.tag == "nic":
            _add_cards(reading, child, holder, element.attributes.get("class", ""))
        elif child.tag == "pci":
            _visit_pci(reading, child, holder)


def _visit_pci(reading: _DevicesRead, pci: Element, holder: str) -> None:
    kind = pci.attributes.get("class", "")
    gpus = list(pci.all("gpu"))
    if gpus or kind.startswith(_GPU_CLASS):
        if len(gpus) > 1:
            raise reading.wrong(
                gpus[1], "a second <gpu> at one PCI address (a shared or partitioned GPU); dump a job of one process per GPU"
            )
        reading.gpus.append((pci, gpus[0] if gpus else None, holder))
    elif any(pci.all("nic")):
        _visit(reading, pci, holder)
    elif any(pci.all("pci")):
        name = f"plx{len(reading.switches)}"
        reading.switches.append((name, holder, _lanes(reading, pci)))
        _visit(reading, pci, name)
    elif kind.startswith(_NIC_CLASS):
        reading.nics.append((Card(kind=_network(kind)), holder))


def _network(kind: str) -> Literal["", "infiniband", "ethernet"]:
    if kind.startswith(_INFINIBAND_CLASS):
        return "infiniband"
    return "ethernet" if kind.startswith(_NIC_CLASS) else ""


def _add_cards(reading: _DevicesRead, nic: Element, holder: str, kind: str) -> None:
    """Record the ports of one NIC; NCCL lists a port without PCI address below every <cpu>, so it is counted once."""
    for net in nic.all("net"):
        speed = _whole(reading, net, "speed") or 0
        gdr = _whole(reading, net, "gdr")
        card = Card(
            net.attributes.get("name", "")[:64], speed * _MBPS if speed > 0 else None, _network(kind), None if gdr is None else gdr > 0
        )
        if kind or not card.name or all(card.name != port.name for port, _ in reading.nics):
            reading.nics.append((card, holder))


def _lanes(reading: _DevicesRead, pci: Element) -> Lanes | None:
    """Return the link of *pci*; None if it is missing, or has a rate that only an emulated bridge reports."""
    match = _RATE.match(pci.attributes.get("link_speed", ""))
    width = _whole(reading, pci, "link_width") or 16
    if match is None or float(match[1]) < _LEAST_RATE or not 1 <= width <= 32:
        return None
    return Lanes(float(match[1]), width)


def _tree(reading: _DevicesRead, sockets: int) -> tuple[tuple[Domain, ...], tuple[Branch, ...]]:
    """Return the sockets and switches; switches without devices below them are dropped."""
    gpus = [holder for _, _, holder in reading.gpus]
    nics = [holder for _, holder in reading.nics]
    used = {above for holder in (*gpus, *nics) for above in _parents(reading, holder)}
    kept = [switch for switch in reading.switches if switch[0] in used]
    names = {name: f"plx{index}" for index, (name, _, _) in enumerate(kept)}
    branches = tuple(
        Branch(names[name], names.get(parent, parent), _indices_below(gpus, name), _indices_below(nics, name), lanes)
        for name, parent, lanes in kept
    )
    return tuple(
        Domain(_indices_below(gpus, f"socket{index}"), _indices_below(nics, f"socket{index}")) for index in range(sockets)
    ), branches


def _indices_below(holders: Sequence[str], name: str) -> tuple[int, ...]:
    return tuple(index for index, holder in enumerate(holders) if holder == name)


def _parents(reading: _DevicesRead, holder: str) -> list[str]:
    """Return *holder* and all switches above it, with its socket last."""
    parents = {name: parent for name, parent, _ in reading.switches}
    chain = [holder]
    while chain[-1] in parents:
        chain.append(parents[chain[-1]])
    return chain


def _classes(reading: _DevicesRead) -> dict[Pair, Near]:
    """Return the path type of every pair of GPUs by NCCL's rules: switches on the path, host bridge, socket link."""
    chains = [_parents(reading, holder) for _, _, holder in reading.gpus]
    return {(one, other): _class(chains[one], chains[other]) for one, other in pairs(len(chains))}


def _class(one: Sequence[str], other: Sequence[str]) -> Near:
    shared = next((name for name in one if name in other), None)
    if shared is None:
        return "SYS"
    if shared == one[-1]:
        return "PHB"
    return "PIX" if shared == one[0] == other[0] else "PXB"


# --- GPUs, NVLink, NICs ----------------------------------------------------------------------------------------------


def _number_gpus(reading: _DevicesRead) -> None:
    """Sort the GPUs by ``dev``, or by PCI address if some have no ``dev``."""
    numbers = [_whole(reading, gpu, "dev") if gpu is not None else None for _, gpu, _ in reading.gpus]
    device_numbers = [number for number in numbers if number is not None]
    twice = next((index for index, number in enumerate(numbers) if number is not None and number in numbers[:index]), None)
    if twice is not None:
        raise reading.wrong(reading.gpus[twice][0], f"GPU dev={numbers[twice]} appears twice; pass the file of one machine")
    order = range(len(numbers))
    if len(device_numbers) == len(numbers):
        reading.gpus = [reading.gpus[index] for index in sorted(order, key=device_numbers.__getitem__)]
        if sorted(device_numbers) != list(order):
            reading.notes.append(f"The file contains only GPUs {', '.join(map(str, sorted(device_numbers)))}; they are renumbered from 0.")
    else:
        reading.gpus.sort(key=lambda entry: entry[0].attributes.get("busid", "").lower())


def _keep_fastest(reading: _DevicesRead) -> None:
    """Keep only the fastest ports, because a description has one kind of NIC."""
    fastest = max((card.speed for card, _ in reading.nics if card.speed), default=None)
    slower = [card.name or "unnamed" for card, _ in reading.nics if card.speed != fastest]
    if fastest is not None and slower:
        reading.nics = [(card, holder) for card, holder in reading.nics if card.speed == fastest]
        reading.notes.append(f"Slower network ports are left out: {', '.join(slower[:8])}.")


def _nvlinks(reading: _DevicesRead) -> tuple[dict[Pair, int], int]:
    """Return the number of NVLinks between pairs of GPUs, and from each GPU to NVSwitches."""
    numbers = {pci.attributes.get("busid", "").lower(): index for index, (pci, _, _) in enumerate(reading.gpus)}
    direct: Counter[Pair] = Counter()
    switched = [0] * len(reading.gpus)
    astray = 0
    for index, (pci, gpu, _) in enumerate(reading.gpus):
        for link in gpu.all("nvlink") if gpu is not None else ():
            count = _links(reading, link)
            target = numbers.get(link.attributes.get("target", "").lower())
            if link.attributes.get("tclass", "").startswith(_NVSWITCH_CLASS):
                switched[index] += count
            elif target is not None and target != index and "busid" in pci.attributes:
                direct[index, target] += count
            else:
                astray += count
    if astray:
        reading.notes.append(f"{astray} NVLink ends have no target in the file and are left out.")
    if not any(switched):
        return _checked_pairs(reading, direct), 0
    if len(set(switched)) > 1:
        least = switched.index(min(switched))
        gpu = reading.gpus[least][1] or reading.gpus[least][0]
        raise reading.wrong(
            gpu, f"GPU {least} has {min(switched)} NVLinks to NVSwitches, others have {max(switched)}; see 'nvidia-smi nvlink -s'"
        )
    return {}, switched[0]


def _links(reading: _DevicesRead, link: Element) -> int:
    count = _whole(reading, link, "count")
    if count is None or not 1 <= count <= 99:
        raise reading.wrong(link, f"nvlink count={shorten(link.attributes.get('count', ''))}; write the number of links, 1 or more")
    return count


def _checked_pairs(reading: _DevicesRead, direct: Mapping[Pair, int]) -> dict[Pair, int]:
    counts: dict[Pair, int] = {}
    for (one, other), count in direct.items():
        if direct.get((other, one), 0) != count:
            back = direct.get((other, one), 0)
            gpu = reading.gpus[one][1] or reading.gpus[one][0]
            raise reading.wrong(
                gpu, f"GPU {one} has {count} NVLinks to GPU {other}, but GPU {other} has {back} to GPU {one}; both must agree"
            )
        counts[min(one, other), max(one, other)] = count
    return dict(sorted(counts.items()))


def _devices(reading: _DevicesRead) -> Iterator[int]:
    for pci, _, _ in reading.gpus:
        text = pci.attributes.get("device", "")
        if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text):
            yield int(text, 16)


def _compute_capability(reading: _DevicesRead) -> str:
    capabilities = {number for _, gpu, _ in reading.gpus if gpu is not None and (number := _whole(reading, gpu, "sm")) is not None}
    if len(capabilities) > 1:
        raise reading.wrong(
            reading.gpus[0][0], f"GPUs of several kinds (sm {', '.join(map(str, sorted(capabilities)))}); a node must have one GPU model"
        )
    return f"{(number := capabilities.pop()) // 10}.{number % 10}" if capabilities else ""


def _gpu_lanes(reading: _DevicesRead) -> Lanes | None:
    """Return the most common PCIe link of the GPUs."""
    counted = Counter(lanes for pci, _, _ in reading.gpus if (lanes := _lanes(reading, pci)) is not None)
    return counted.most_common(1)[0][0] if counted else None


# --- processors ------------------------------------------------------------------------------------------------------


def _processor(cpus: Sequence[Element]) -> Processor | None:
    cpu = next((cpu for cpu in cpus if "vendor" in cpu.attributes or "arch" in cpu.attributes), None)
    if cpu is None:
        return None
    numbers = [cpu.attributes.get(name, "") for name in ("familyid", "modelid")]
    family, model = (int(text) if _WHOLE.fullmatch(text) else 0 for text in numbers)
    return Processor(cpu.attributes.get("vendor") or cpu.attributes["arch"], family, model)


def _count_cpus(cpus: Sequence[Element]) -> int | None:
    """Return the total number of hardware threads in the affinity masks; None if there are none."""
    threads = 0
    for cpu in cpus:
        mask = cpu.attributes.get("affinity", "")
        words = mask.split(",")[::-1] if len(mask) <= 4096 else []
        for place, word in enumerate(words):
            if re.fullmatch(r"[0-9a-fA-F]{1,8}", word):
                threads |= int(word, 16) << (32 * place)
    return threads.bit_count() or None
