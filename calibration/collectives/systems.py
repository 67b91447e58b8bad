"""Which machine does a table of collectives mean by a system in prose, such as ``16 nodes x 8 H100, 8 x 400 Gbps RoCE``?

The machine is that of the catalog, or of `MACHINES`, that the text names; otherwise one with its GPU. What the text says about the network
between nodes replaces that of the machine: transport, number of NICs and their rate. A text that says too little, or something that is not
described, is refused with the reason.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from calibration import HARDWARE
from calibration.gpu_names import catalog_gpus, number_of
from calibration.network_words import GENERATIONS, StatedNics, nics_stated
from sim.check import check_hardware, require
from sim.spec.catalog import aliases_of, all_files
from sim.spec.hardware import Hardware, Node
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.units import pluralized

MACHINES: Final[Sequence[tuple[str, str]]] = (
    (r"p6e[- ]?gb[23]00|u-p6e", "p6e-gb200.36xlarge"), (r"p6[- ]?b300", "p6-b300.48xlarge"), (r"p6[- ]?b200", "p6-b200.48xlarge"),
    (r"p5en", "p5en.48xlarge"), (r"p5e", "p5e.48xlarge"), (r"p5", "p5.48xlarge"), (r"p4de", "p4de.24xlarge"), (r"p4d", "p4d.24xlarge"),
    (r"p3dn", "p3dn.24xlarge"),
    (r"nd[- _]?gb200[- _]?v6", "nd128isr_ndr_gb200_v6"),
    (r"nd(96)?(isr)?[- _]?mi300x([- _]?v5)?", "nd96isr_mi300x_v5"), (r"nd(96)?(isr)?[- _]?h200([- _]?v5)?", "nd96isr_h200_v5"),
    (r"nd(96)?(isr)?[- _]?h100([- _]?v5)?", "nd96isr_h100_v5"), (r"ndm[- _]?a100([- _]?v4)?|nd96amsr", "nd96amsr_a100_v4"),
    (r"nd(96)?(asr)?[- _]?a100([- _]?v4)?|nd96asr", "nd96asr_v4"), (r"ndv5", "nd96isr_{gpu}_v5"), (r"ndv2|nd40rs", "nd40rs_v2"),
    (r"a4x[- ]?max", "a4x-maxgpu-4g-metal"), (r"a4x", "a4x-highgpu-4g"), (r"a4[- ]?high(gpu)?|gcp a4", "a4-highgpu-8g"),
    (r"a3[- ]?ultra(gpu)?", "a3-ultragpu-8g"), (r"a3[- ]?mega(gpu)?", "a3-megagpu-8g"), (r"a3[- ]?high(gpu)?", "a3-highgpu-8g"),
    (r"a2[- ]?ultra(gpu)?", "a2-ultragpu-8g"), (r"a2[- ]?mega(gpu)?", "a2-megagpu-16g"), (r"a2[- ]?high(gpu)?", "a2-highgpu-8g"),
    (r"bm\.gpu4\.8|bm\.gpu\.b4\.8", "oci-bm-gpu4-8"), (r"bm\.gpu3\.8", "dgx-1-v100"), (r"bm\.gpu\.(gm4|a100-v2)\.8", "bm.gpu.a100-v2.8"),
    (r"bm\.gpu\.(\w+)\.[48]", r"bm.gpu.\1.*"), (r"oci", "bm.gpu.{gpu}.*"),
    (r"core ?weave", "coreweave-{gpu}"), (r"lambda|1[- ]?click|1cc", "gpu_8x_{gpu}*"),
    (r"frontier|lumi(-g)?|setonix|adastra|(cray )?ex235a", "cray-ex235a"), (r"perlmutter", "perlmutter"), (r"polaris", "polaris"),
    (r"leonardo", "leonardo-booster"), (r"juwels", "juwels-booster"), (r"jupiter|jedi", "jupiter-booster"),
    (r"marenostrum|mn5", "marenostrum5-acc"), (r"alps|isambard(-ai)?", "alps-gh200"), (r"grand teton", "grand-teton-h100"),
    (r"dgx[- ]?2h?", "dgx-2"), (r"dgx[- ]?1", "dgx-1-{gpu}"), (r"dgx[- ]?a100|dgx|superpod", "dgx-{gpu}"), (r"selene", "dgx-a100-80gb"),
    (r"eos", "dgx-h100"), (r"v100.*(?:no effective nvlink|without nvlink|no nvlink)", "v100-no-nvlink"),
)  # fmt: skip
"""Words for machines that are no names of the catalog, with the machine's name: ``{gpu}`` stands for the number of the row's GPU, and ``*``
for any rest. The first pattern that a text has, and whose name exists, is meant."""
_OF_GPU: Final[Mapping[str, str]] = {
    "a100-sxm4-40gb": "dgx-a100", "a100-sxm4-80gb": "dgx-a100-80gb", "a800-sxm4-80gb": "hgx-a800", "b200-sxm-180gb": "hgx-b200",
    "b300-sxm-288gb": "hgx-b300", "gb200-186gb": "gb200-nvl72", "gb300-288gb": "gb300-nvl72", "gh200-96gb": "alps-gh200",
    "gh200-144gb": "alps-gh200", "h100-sxm5-80gb": "hgx-h100", "h20-sxm-96gb": "hgx-h20", "h200-sxm-141gb": "hgx-h200",
    "h800-sxm5-80gb": "hgx-h800", "l40s": "l40s-pcie", "mi250x-gcd": "cray-ex235a", "mi300x": "mi300x-platform",
    "mi325x": "mi325x-platform", "mi350x": "mi350x-platform", "mi355x": "mi355x-platform", "p100-sxm2-16gb": "dgx-1-p100",
    "rtx-pro-6000-blackwell-server": "g4-standard-384", "v100-sxm2-16gb": "dgx-1-v100", "v100-sxm2-32gb": "dgx-1-v100",
}  # fmt: skip
"""The machine that is assumed for a GPU whose host a table does not name."""
PCIE_BOX: Final = "l40s-pcie"
"""The machine whose GPUs are replaced by others on PCIe: eight, four below each of two AMD processors."""
_WITHOUT_NETWORK: Final = (PCIE_BOX, "alps-gh200", "g4-standard-384")
"""Machines that stand for hosts with any network, which must be stated."""
_NO_PEERS: Final = re.compile(r"rtx(30|40|50)\d\d")
"""GeForce cards since Ampere: their driver has no peer-to-peer copies over PCIe (github.com/tinygrad/open-gpu-kernel-modules README)."""
_PCIE: Final[Mapping[str, str]] = {
    "pascal": "pcie3-x16", "volta": "pcie3-x16", "turing": "pcie3-x16", "hopper": "pcie5-x16", "blackwell": "pcie5-x16",
}  # fmt: skip
"""The slot of a card by the architecture of its GPU, where it is not PCIe 4.0 (data sheets of the cards)."""
_BRIDGED: Final = re.compile(r"nvlink[- ]bridge|\bbridged?\b|\bnv-?bridge|\bnv(2|4|8|12|18)\b", re.IGNORECASE)
RACK: Final = 72
"""GPUs that the NVLink of a rack joins, unless its name says otherwise."""
_TRANSPORTS: Final[Sequence[tuple[str, str]]] = (
    (r"\b(no|without)\W(efa|rdma|infiniband|ib|roce|(gpudirect-)?tcpxo?)\b|(efa|rdma|infiniband|roce|\bib) (is )?(off|disabled)", "tcp"),
    (r"tcpxo|fastrak", "gpudirect-tcpxo"), (r"tcpx\b", "gpudirect-tcpx"),
    (r"nccl_ib_disable=1|nccl_net=\"?socket|ipoib|\bsockets?\b|\btcp\b|\bena\b|gvnic", "tcp"),
    (r"\befa", "efa"), (r"slingshot|\bhsn\b", "slingshot"), (r"roce|rdma over converged|spectrum-?x|\bthor\b|broadcom", "roce"),
    (r"infini ?band|\bib\b|\b[xnhef]dr(\d{2,3})?\b|mlx5", "infiniband"), (r"\b[248]00 ?(gbe|g(bps|bit/s|b/s)? ethernet)\b", "roce"),
    (r"ethernet|\d ?gbe\b", "tcp"),
)  # fmt: skip
"""Transports by words about the network between nodes, the most specific first. Cards of 200 Gbit/s and more are bought for RDMA: estimate
(the sockets of a rank level off at 42 Gbit/s, says ``hardware/parts/transports/tcp.yaml``)."""
_OTHERS: Final = (
    (r"\bsharp\b(?! ?(off|disabled))|collnet(?!_enable=0)", "it reduces in the network's switches (SHARP), which its description lacks"),
    (r"mscclpp|mscclang|\bmsccl\b(?! ?(off|disabled))|\b(hiccl|oneccl|gloo|ucc|hccl|xccl|baidu)\b|nvshmem|deepep|flashinfer",
     "it used another library, whose algorithms are not NCCL's"),
    (r"symmetric memory|user buffer|\bregistered\b|(?<!\w)(?-i:-R) ?[12]\b", "its buffers are registered, for which NCCL has other code"),
    (r"\bsummit\b|\bsierra\b|\blassen\b|\bac922\b|power9", "POWER9 hosts are not described"),
    (r"nccl_max_n?channels|nccl_max_ctas|nccl_nthreads|nccl_buffsize", "it set NCCL's channels, threads or buffers, which a record cannot"),
)  # fmt: skip
"""Words about runs that are not predicted, with the reason."""
_WITHOUT_GPUDIRECT: Final = re.compile(
    r"(gpu ?direct( rdma)?|gdr)[ =:]*(off|disabled|0)\b|(no|without) (gpu ?direct|gdr)|nccl_net_gdr_level=(0|loc)\b", re.IGNORECASE
)
_WITHOUT_PEERS: Final = re.compile(r"nccl_p2p_disable=1|\bp2p (off|disabled)|\bno p2p|without p2p", re.IGNORECASE)
_WITHOUT_NVLINK: Final = re.compile(r"(no|without)( effective)? nvlink|nvlink (off|disabled)", re.IGNORECASE)
_WITHOUT_RACK: Final = re.compile(r"mnnvl_enable=0|(without|no) mnnvl", re.IGNORECASE)


class SystemWords(NamedTuple):
    """What a row says about its machine: texts, and numbers of nodes and of GPUs over all nodes; nodes may be unknown."""

    system: str
    gpu: str
    network: str
    note: str
    nodes: int | None
    gpus: int


class MeantSystem(NamedTuple):
    """A machine with overrides, the nodes and GPUs per node of its description, and what was assumed about it, as text."""

    hardware: str
    overrides: tuple[str, ...]
    nodes: int
    gpus_per_node: int
    assumed: str


def system_meant(words: SystemWords) -> MeantSystem:
    """Return the system that *words* mean. Raise SpecError with the reason if there is none, or too little is known."""
    text = "; ".join(filter(None, (words.system, words.network, words.note)))
    for pattern, reason in _OTHERS:
        if words_of_it := re.search(pattern, text, re.IGNORECASE):
            raise SpecError(f"'{words_of_it.group()}': {reason}")
    machine, overrides, is_named = _machine(words, text)
    node = _node(machine, overrides)
    nodes = _nodes(words, node)
    if words.gpus % nodes:
        raise SpecError(f"{words.gpus} GPUs do not divide evenly over {nodes} nodes")
    if _is_rack(node):
        nodes, trays = (nodes, 1) if _WITHOUT_RACK.search(text) else _racks(words, text)
        overrides = (*overrides, f"trays={trays}")
        node = _node(machine, overrides)
    per_node = words.gpus // nodes
    if per_node > node.gpu_count:
        raise SpecError(f"{words.gpus} GPUs on {pluralized(nodes, 'node')} are {per_node} of each, but {machine} has {node.gpu_count}")
    if _WITHOUT_NVLINK.search(text) or _WITHOUT_PEERS.search(text):
        overrides += ("node.topology.nvlink=null",) if node.nvlink else ()
        overrides += ("node.topology.peer_to_peer=none",) if _WITHOUT_PEERS.search(text) else ()
    networked = _network(words, text, machine, node, is_named) if nodes > 1 else ()
    overrides += networked
    shown = " ".join([machine, *set_options(overrides)])
    is_told = nodes == 1 or networked or (transport_meant(text) is not None and _stated(words) is not None)
    lacks = "" if is_named else "; its host is assumed" if is_told else "; its host and network are assumed"
    return MeantSystem(machine, overrides, nodes, per_node, shown + lacks)


def set_options(overrides: Sequence[str]) -> Sequence[str]:
    """Return *overrides* as options of a command line, in quotes where a shell needs them."""
    return [f"--set {shlex.quote(each)}" for each in overrides]


def network_meant_on(machine: str, network: str, nodes: int) -> tuple[str, ...]:
    """Return overrides for what the words *network* say about the network between *nodes* nodes of *machine*, one of the catalog.

    Nothing for other machines, which a file describes, and for words without a transport.
    """
    if machine.lower() not in _catalog() or transport_meant(network) is None:
        return ()
    return _network(SystemWords("", "", network, "", nodes, nodes), network, machine, _node(machine, ()), is_named=True)


# --- the machine -----------------------------------------------------------------------------------------------------


def _machine(words: SystemWords, text: str) -> tuple[str, tuple[str, ...], bool]:
    """Return the machine that *words* name, its overrides, and whether it is named; otherwise one with their GPU."""
    part = _gpu(words)
    for name in _named_in(words.system, part):
        if (overrides := _with_gpu(name, words, part)) is not None:
            return name, overrides, True
    if part and "sxm" in part and re.search(r"bridge|\bnv\d+ pairs|nvlink pairs", words.system, re.IGNORECASE):
        part = next(iter(catalog_gpus().meant(f"{number_of(part)} PCIe")), part)  # bridges join cards
    if part is None:
        shows = "('python -m sim list gpus' shows those of the catalog)"
        if not words.gpu and not words.system:
            raise SpecError("system and gpu are blank; name the machine or its GPU in one of them")
        if not words.gpu:
            raise SpecError(f"'{words.system}': names no machine and no GPU; write the GPU into the column gpu {shows}")
        raise SpecError(f"gpu '{words.gpu}': no description of this GPU {shows}")
    if re.search(r"nvl32|nvl4\b|nvl36", text, re.IGNORECASE) and part.startswith("gh200"):
        raise SpecError(f"'{words.system}': this rack of GH200 is not described")
    if (machine := _OF_GPU.get(part)) is not None:
        return machine, (), False
    return (*_pcie_box(part, text), False)


def _gpu(words: SystemWords) -> str | None:
    """Return the part of the catalog that *words* name as their GPU, by the column gpu or else by the system; None if there is none."""
    texts = (words.gpu, re.sub(r"[-_ ]?\d+ ?GB\b", "", words.gpu), *_gpus_in(words.system))
    return next((parts[0] for text in texts if text and (parts := catalog_gpus().meant(text))), None)


def _gpus_in(system: str) -> Iterator[str]:
    """Yield the words of *system* that may be the name of a GPU, longer ones first."""
    words = re.findall(r"[\w.-]+", system)
    for length in (4, 3, 2, 1):
        for start in range(len(words) - length + 1):
            candidate = " ".join(words[start : start + length])
            if re.match(r"(nvidia|amd|tesla|geforce|rtx|gtx|instinct|quadro|titan|[abghklmpt]+i?\d)", candidate, re.IGNORECASE):
                yield candidate


def _named_in(system: str, part: str | None) -> Iterator[str]:
    """Yield the machines that *system* names: those that are rented, those of `MACHINES`, and others of the catalog, long names first."""
    plain = system.lower()
    names = sorted(((alias, stem) for stem, aliases in _catalog().items() for alias in (stem, *aliases)), key=lambda each: -len(each[0]))
    named = [stem for alias, stem in names if re.search(_pattern(alias), plain)]
    yield from filter(_is_rented, named)
    number = number_of(part) if part else ""
    for pattern, name in MACHINES:
        match = re.search(rf"(?<![\w.])(?:{pattern})(?![\w])", plain)
        if match:
            wanted = match.expand(name) if "\\" in name else name
            yield from _files_like(wanted.replace("{gpu}", number), part or "")
    yield from named


@lru_cache(maxsize=1)
def _catalog() -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(aliases_of(path)) for name, path in all_files("hardware").items()}


@lru_cache(maxsize=2048)
def _pattern(name: str) -> str:
    """Return a pattern of *name* with any punctuation between its words."""
    return r"(?<![\w.])" + r"[ ._-]*".join(map(re.escape, re.findall(r"[a-z0-9]+", name.lower()))) + r"(?![\w])"


def _files_like(name: str, part: str) -> list[str]:
    """Return the machine called *name*, which may end in ``*``: that with the memory of *part*, else the one with the shortest name."""
    aliases = {alias: stem for stem, others in _catalog().items() for alias in others}
    machines = {*_catalog(), *(path.stem for path in HARDWARE.glob("*.yaml"))}
    name = aliases.get(name, name)
    if name in machines:
        memory = part.rpartition("-")[2]
        return [f"{name}-{memory}"] if f"{name}-{memory}" in machines else [name]
    pattern = re.escape(name.rstrip("*")) + (r"([.-_].*)?" if not name.endswith("*") else ".*")
    return sorted((each for each in machines if re.fullmatch(pattern, each)), key=len)[:1]


def _with_gpu(name: str, words: SystemWords, part: str | None) -> tuple[str, ...] | None:
    """Return the override with which *name* has the GPU of *words*, if its memory is another; None if it is another GPU."""
    own = _node(name, ()).gpu.name
    meant = catalog_gpus().meant(words.gpu)
    if part is None or not meant or own.lower() in {each.lower() for each in meant}:
        return ()
    if number_of(own) == number_of(part):
        return (f"node.gpu={part}",) if re.search(r"\d ?gb?\b", words.gpu.lower()) else ()
    if _is_rented(name) and re.search(_pattern(name), words.system.lower()):
        raise SpecError(f"gpu '{words.gpu}': {name} has {own}; correct gpu or system")
    return None


def _pcie_box(part: str, text: str) -> tuple[str, tuple[str, ...]]:
    """Return the machine of eight PCIe cards, with overrides for *part* and for the bridges that *text* states."""
    gpu = _node(PCIE_BOX, (f"node.gpu={part}",)).gpu
    overrides = [] if part == "l40s" else [f"node.gpu={part}"]
    if slot := _PCIE.get(gpu.architecture):
        overrides.append(f"node.topology.pcie={slot}")
    if _NO_PEERS.match(part):
        overrides += ["node.topology.peer_to_peer=none", "node.topology.peer_to_peer_of_two=none"]
    if _BRIDGED.search(text) and not _WITHOUT_NVLINK.search(text):
        overrides.append("node.topology.bridged=true")
    elif re.search(r"xgmi|infinity fabric", text, re.IGNORECASE):
        raise SpecError(
            f"{part} with Infinity Fabric bridges: which cards they join is not known; describe the machine in a column hardware"
        )
    return PCIE_BOX, tuple(overrides)


@lru_cache(maxsize=512)
def described(machine: str, overrides: tuple[str, ...] = ()) -> Hardware:
    """Return the description of *machine* with *overrides*. Raise SpecError if it is invalid."""
    loaded = load_hardware(machine, overrides, library=HARDWARE)
    require(check_hardware(loaded.spec, loaded.document))
    return loaded.spec


def _node(machine: str, overrides: tuple[str, ...]) -> Node:
    return described(machine, overrides).groups[0].node


# --- nodes and racks -------------------------------------------------------------------------------------------------


def _nodes(words: SystemWords, node: Node) -> int:
    """Return the number of nodes; if it is not stated, 1 for GPUs that one has."""
    if words.nodes is not None:
        return words.nodes
    if words.gpus <= (RACK if _is_rack(node) else node.gpu_count):
        return 1
    raise SpecError(f"nodes: is missing, and {words.gpus} GPUs are more than the {node.gpu_count} of one node")


def _is_rack(node: Node) -> bool:
    return node.gpu.name.lower().startswith(("gb200", "gb300")) and node.nvlink is not None and node.nvlink.switch_links > 0


def _racks(words: SystemWords, text: str) -> tuple[int, int]:
    """Return the number of racks of *words*, whose trays are joined by NVLink, and the trays of each that have its GPUs."""
    stated = re.search(r"nvl ?(\d+)|gb[23]00x(\d+)", text, re.IGNORECASE)
    size = int(next(filter(None, stated.groups()))) if stated else RACK
    count = math.ceil(words.gpus / size)
    if words.gpus % count:
        raise SpecError(f"{words.gpus} GPUs do not divide evenly over {count} racks of {size}; state how many are in each")
    return count, math.ceil(words.gpus / count / 4)


# --- the network between nodes ---------------------------------------------------------------------------------------


def _network(words: SystemWords, text: str, machine: str, node: Node, is_named: bool) -> tuple[str, ...]:
    """Return overrides for what *words* say about the network between nodes."""
    stated = transport_meant(text)
    own = node.nic.transport.name
    transport = own if stated is None or own.startswith(stated) else stated
    nics = _stated(words) or StatedNics()
    lacking = "which network joins its nodes" if stated is None else "" if nics.gbps else "how fast the network between its nodes is"
    if not is_named and machine in _WITHOUT_NETWORK and lacking:
        raise SpecError(f"'{words.system}': does not say {lacking}; write it into the column network or system")
    if is_named and _is_rented(machine) and transport == own:
        nics = StatedNics()  # as the provider's
    count, rate = _counted(nics, node, text)
    if count > node.gpu_count and words.nodes and not count % words.nodes and rate > _usual(node) / 2:
        count //= words.nodes  # the number of all nodes
    overrides: list[str] = []
    if count != node.nic.count:
        overrides += _wiring(node, count)
    if not math.isclose(rate, node.nic.bandwidth):
        overrides.append(f"node.nic.bandwidth={rate * 8 / 1e9:g} Gbps")
    if transport != own:
        overrides += _of_transport(transport, node)
    if node.nic.gpudirect and transport != "tcp" and _WITHOUT_GPUDIRECT.search(text):
        overrides.append("node.nic.gpudirect=false")
    return tuple(overrides)


def _stated(words: SystemWords) -> StatedNics | None:
    return nics_stated(words.network) or nics_stated(words.system) or nics_stated(words.note)


def _usual(node: Node) -> float:
    """Return the bytes/s of the network per GPU of *node*."""
    return node.nic.bandwidth * node.nic.count / node.gpu_count


def transport_meant(text: str) -> str | None:
    """Return the transport class that *text* names; None if it names none."""
    return next((name for pattern, name in _TRANSPORTS if re.search(pattern, text, re.IGNORECASE)), None)


def _is_rented(machine: str) -> bool:
    return bool(described(machine).provider)


def _counted(nics: StatedNics, node: Node, text: str) -> tuple[int, float]:
    """Return the number of NICs of a node and the bytes/s of each, from what is stated and otherwise as in *node*."""
    rate = nics.gbps * 1e9 / 8 if nics.gbps else node.nic.bandwidth
    if nics.per_gpu:
        return node.gpu_count * nics.per_gpu, rate
    if nics.nics:
        return nics.nics, rate
    if nics.in_total:
        return node.nic.count, rate / node.nic.count
    is_of_link = re.search("|".join(GENERATIONS) + r"|infini|\bib\b|slingshot|\befa", text, re.IGNORECASE)
    return (1 if nics.gbps and nics.gbps <= 100 and not is_of_link else node.nic.count), rate


def _wiring(node: Node, count: int) -> list[str]:
    """Return overrides for *count* NICs, spread evenly over the switches, or sockets, that have GPUs.

    Half as many as there are switches are each below one with two GPUs.
    """
    topology = node.topology
    places = [switch for switch in topology.switches if switch.gpus]
    if not places:
        near = _spread(count, len(topology.sockets))
        sockets = [{"gpus": list(socket.gpus), "nics": nics} for socket, nics in zip(topology.sockets, near, strict=True)]
        return [f"node.nic.count={count}", f"node.topology.sockets={json.dumps(sockets)}"]
    above = [{"name": each.name, "parent": each.parent} for each in topology.switches if not each.gpus]
    rows = [{"name": each.name, "parent": each.parent, "gpus": list(each.gpus)} for each in places]
    if 2 * count == len(rows) and all(one["parent"] == other["parent"] for one, other in zip(rows[::2], rows[1::2], strict=True)):
        rows = [one | {"gpus": [*one["gpus"], *other["gpus"]]} for one, other in zip(rows[::2], rows[1::2], strict=True)]
    for row, nics in zip(rows, _spread(count, len(rows)), strict=True):
        row["nics"] = nics
    return [f"node.nic.count={count}", f"node.topology.switches={json.dumps([*above, *rows])}"]


def _spread(count: int, places: int) -> list[list[int]]:
    """Return the numbers of *count* things over *places*, as evenly as possible."""
    return [[each for each in range(count) if each * places // count == place] for place in range(places)]


def _of_transport(transport: str, node: Node) -> list[str]:
    """Return overrides for *transport*, without what the plug-in of the machine's own sets."""
    overrides = [f"node.nic.transport={transport}"]
    overrides += [f"node.nic.{key}=[]" for key in ("nccl_algorithms", "nccl_protocols") if getattr(node.nic, key)]
    overrides += ["node.nic.nccl_plugin_latency=0 us"] if node.nic.nccl_plugin_latency else []
    overrides += ["node.nic.gpudirect=false"] if transport == "tcp" and node.nic.gpudirect else []
    return overrides
