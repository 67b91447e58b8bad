"""Which machines and workloads of the catalog do the names in other people's tables mean? Spellings, GPUs, and models by other names.

A GPU alone names no host and no network: those of a machine of the catalog with this GPU are assumed, which a note says. A model whose
samples have a length, such as BERT, means the workload of the length that the row states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from calibration import HARDWARE
from calibration.gpu_names import catalog_gpus, count_of, number_of
from calibration.network_words import nic_of
from calibration.questions import Folders, file_named, has_file, machine_named
from calibration.run_records import RunRecord
from calibration.run_words import plain_name, pointed_name
from sim.spec.catalog import SUFFIX, aliases_of, all_files, is_path, read
from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError

PCIE_BOX: Final = "n3-rtx-a6000x8"
"""The machine whose GPUs are replaced by those that no machine of the catalog has: a host with eight PCIe slots."""
USUAL_GPUS: Final = 8
"""Number of GPUs of a node above which machines are unusual, such as a DGX-2."""
_WITH_COUNT: Final = re.compile(r"(?<![\w.])(\d+\s*[x\u00d7]\s*[a-z][^(),;+]*)", re.IGNORECASE)
"""GPUs with their number inside the name of a machine, such as ``DGX-1 (8x V100 32GB)`` or ``n1-standard-16 with 8x V100``."""
_MODELS: Final[Mapping[str, str]] = {
    "bert": "bert-large-seq384",
    "bertb": "bert-base-seq128",
    "bertbase": "bert-base-seq128",
    "bertl": "bert-large-seq384",
    "bertlarge": "bert-large-seq384",
    "deitbasepatch16": "vit_b_16",
    "densenet": "densenet121",
    "dlrm": "dlrm-criteo",
    "gnmtv2": "gnmt",
    "gpt2small": "gpt2",
    "inception3": "inception_v3",
    "inception4": "inception_v4",
    "mobilenetv2100": "mobilenet_v2",
    "mobilenetv3": "mobilenet_v3_large",
    "mobilenetv3large100": "mobilenet_v3_large",
    "neumf": "ncf",
    "resnext101": "resnext101_32x8d",
    "resnext50": "resnext50_32x4d",
    "roberta": "roberta-base-seq512",
    "robertabase": "roberta-base-seq512",
    "robertalarge": "roberta-large-seq512",
    "shufflenet": "shufflenet_v2_x0_5",
    "squeezenet": "squeezenet1_0",
    "ssd": "ssd300",
    "t5": "t5-base",
    "transformer": "transformer-big",
    "transformerxl": "transformer-xl-base",
    "vitb": "vit_b_16",
    "vitbase": "vit_b_16",
    "vitbase16": "vit_b_16",
    "vitbasepatch16": "vit_b_16",
}
"""Models by names that leave out the variant that most tables mean (the first of its paper, or the one its benchmark trains), and by those
of timm, whose 100 is the width in percent; DeiT's layers are ViT's."""
_PACKAGE: Final = re.compile(r"^(?:torchvision\.models|timm(?:\.models)?|(?:tf\.)?keras\.applications)\.|^(?:tv|tf)_(?=[a-z])")
"""Where a model's code is from: a Python package, or the beginning of a name of timm's."""
_WEIGHTS: Final = re.compile(r"(?<=[a-z0-9])\.[a-z][a-z0-9_]*$")
"""The weights in a name of timm's, such as ``.a1_in1k``, which change no layer's size."""
_AROUND_MODELS: Final = re.compile(
    r"(?<![a-z0-9])(image ?net([- ]?1k)?|in1k|ilsvrc( ?2012)?|squad( ?v?[12]\.[01])?|coco|cifar[- ]?100?|mnli|wikipedia|v1(\.5)?b?|"
    r"torchvision|timm|keras|hugging ?face|224|299|pre[- ]?train(ing|ed)?|fine[- ]?tun(e|ing|ed)|whole word masking|wwm|(un)?cased|"
    r"phase ?[12]|training|model)"
    r"(?![a-z0-9])"
)
"""Words beside the name of a model that change no layer's size: data, releases, code, what it is trained for."""


ASSUMED: Final = ", a machine of the catalog with this GPU; its host and network are assumed"
_TRANSPORTS: Final = (
    (r"infini|\bib\b|[xnhef]dr", "infiniband"),
    (r"roce|rdma", "roce"),
    (r"\befa", "efa"),
    (r"slingshot", "slingshot"),
)
"""Transports by the words of a network; others are TCP."""


class _Meant(NamedTuple):
    """A machine of the catalog, the override with which it is the one that a name means, and what is assumed, as text."""

    machine: str
    override: str = ""
    assumed: str = ""


class _Usual(NamedTuple):
    """The network of a machine as it is described, for `nic_of`: bytes/s of a GPU, GPUs of a NIC and of a node, and a slot's bytes/s."""

    nic: float
    dies: int
    usual_gpus: int
    slot: float = math.inf


def with_catalog_names(records: Sequence[RunRecord], folders: Folders) -> tuple[list[RunRecord], list[str]]:
    """Return *records* with machines and workloads as the catalog spells them, and a note on each name that was changed."""
    notes: dict[str, str] = {}
    renamed = []
    for record in records:
        workload = _workload(record.workload, record.sequence or _length_in(f"{record.workload}; {record.note}"), folders.workloads)
        machine = _machine_of(record, (folders.hardware, HARDWARE))
        machine = _on_network(record, machine, (folders.hardware, HARDWARE))
        named = " with ".join(filter(None, (record.hardware, record.gpu)))
        if machine.machine.lower() not in (record.hardware.lower(), named.lower()) or machine.override:
            notes[f"hardware {named} {machine}"] = f"hardware '{named}' was read as {machine.machine}{machine.assumed}"
        file = _file_name(workload, folders.workloads)
        if file.lower() != record.workload.lower():
            sizes = _tokens_assumed(record, file)
            notes[f"workload {record.workload} {file} {sizes}"] = f"workload '{record.workload}' was read as {file}{sizes}"
        overrides = "; ".join(filter(None, (machine.override, record.overrides)))
        renamed.append(replace(_with_count(record, machine), hardware=machine.machine, workload=file, overrides=overrides))
    return renamed, list(notes.values())


def _machine_of(record: RunRecord, folders: tuple[Path | None, ...]) -> _Meant:
    """Return the machine that *record* names, with the GPU that it names, or one with this GPU if it names no known machine."""
    gpus = _gpus_of_a_node(record)
    gpu = record.gpu or _gpus_in(record.hardware)
    number = next(map(number_of, catalog_gpus().meant(gpu)), "")
    family = f"{re.sub(r'[(].*', '', record.hardware)} {number}"  # a DGX-1 with V100s is the machine dgx-1-v100
    if not has_file(_spelled(record.hardware, "hardware", folders), "hardware", folders):
        of_family = _spelled(family, "hardware", folders)
        if has_file(of_family, "hardware", folders):
            return _with_gpu(_Meant(of_family), gpu, folders)
    machine = _machine(record.hardware, gpus, folders) if record.hardware else None
    if not record.gpu:
        return machine or _Meant(record.hardware)
    if machine is None or not has_file(machine.machine, "hardware", folders):
        assumed = _machine(record.gpu, gpus, folders)
        return machine if machine is not None and not has_file(assumed.machine, "hardware", folders) else assumed
    return machine if machine.override else _with_gpu(machine, record.gpu, folders)


def _with_gpu(machine: _Meant, gpu: str, folders: tuple[Path | None, ...]) -> _Meant:
    """Return *machine* with *gpu* instead of its own, unless it has this GPU or the catalog has none of that name."""
    with suppress(SpecError):
        own = machine_named(machine.machine, (), folders[0]).groups
        parts = catalog_gpus().meant(gpu)
        if len(own) == 1 and parts and own[0].node.gpu.name.lower() not in {part.lower() for part in parts}:
            return machine._replace(override=f"node.gpu={parts[0]}", assumed=f"{machine.assumed} with {parts[0]}")
    return machine


def _gpus_in(name: str) -> str:
    """Return the GPUs with their number inside *name*, as text; *name* itself if it has none."""
    inside = _WITH_COUNT.search(name)
    return (inside.group(1) if inside else name).strip()


def _on_network(record: RunRecord, machine: _Meant, folders: tuple[Path | None, ...]) -> _Meant:
    """Return *machine* on the network that *record* states, unless one node needs none or a provider's machine has its own."""
    if not record.network or (record.nodes or 1) < 2:
        return machine
    with suppress(SpecError):
        spec = machine_named(machine.machine, tuple(filter(None, (machine.override,))), folders[0])
        node = spec.groups[0].node
        is_stated = has_file(_spelled(record.hardware, "hardware", folders), "hardware", folders) if record.hardware else False
        if len(spec.groups) > 1 or node.nic is None or (is_stated and spec.provider):
            return machine
        gpus = _gpus_of_a_node(record)
        sharing = -(-node.gpu_count // node.nic.count)
        usual = _Usual(node.nic.bandwidth * node.nic.count / node.gpu_count, min(gpus, sharing), gpus)
        rate, is_told = nic_of(record.network, usual, None, gpus)
        if not is_told:
            return machine
        transport = next((transport for words, transport in _TRANSPORTS if re.search(words, record.network, re.IGNORECASE)), "tcp")
        each = f"{rate * gpus * 8 / 1e9 / node.nic.count:g} Gbps"
        overrides = [machine.override, f"node.nic.bandwidth={each}", f"node.nic.transport={transport}"]
        overrides += ["node.nic.gpudirect=false"] if transport == "tcp" else []
        count = f"{node.nic.count} x {each}" if node.nic.count > 1 else each
        return machine._replace(
            override="; ".join(filter(None, overrides)), assumed=f"{machine.assumed}; {count} of {transport} by '{record.network}'"
        )
    return machine


def gpu_of_machine(name: str) -> str:
    """Return the GPU of the machine of the catalog that *name* means; empty if there is none."""
    spelled = _spelled(name, "hardware", (HARDWARE,))
    with suppress(SpecError):
        return str(machine_named(spelled, (), HARDWARE).groups[0].node.gpu.name)
    return ""


def _gpus_of_a_node(record: RunRecord) -> int:
    """Return how many GPUs of a node *record* uses, as far as it says so; 1 if not."""
    if record.placement:
        return max((int(part) for part in record.placement.split("+") if part.strip().isdigit()), default=1)
    count = count_of(_gpus_in(record.hardware or record.gpu))
    gpus = record.gpus_per_node or (record.total_gpus / record.nodes if record.total_gpus and record.nodes else None)
    return int(gpus or count or 1)


def _with_count(record: RunRecord, machine: _Meant) -> RunRecord:
    """Return *record*, with the number of GPUs that its name states if nothing else does and *machine* is assumed."""
    count = count_of(_gpus_in(record.hardware or record.gpu))
    stated = (record.placement, record.gpus_per_node, record.total_gpus)
    return replace(record, gpus_per_node=float(count)) if count and machine.assumed and not any(stated) else record


def _workload(name: str, sequence: int | None, folder: Path | None) -> str:
    """Return the workload of the catalog or *folder* that *name* means, of *sequence* tokens if there is one; *name* if there is none."""
    meant = next((spelled for text in _readings(name) if (spelled := _known(text, folder))), name)
    own_length = re.search(r"-seq\d+$", meant) if _known(name, folder) == meant and re.search(r"-seq\d+$", name.lower()) else None
    length = sequence or _length_in(name)
    of_length = re.sub(r"-seq\d+$", "", meant.lower()) + f"-seq{length}"
    return of_length if length and not own_length and of_length in all_files("workloads") else meant


def _file_name(workload: str, folder: Path | None) -> str:
    """Return the name of the file of *workload*, which may be an alias; *workload* itself if it has none."""
    is_alias = not is_path(workload) and has_file(workload, "workloads", (folder,))
    return file_named(workload, "workloads", (folder,)).stem if is_alias else workload


def _tokens_assumed(record: RunRecord, file: str) -> str:
    """Return which length of sequences the workload *file* assumes, if *record* states none; else nothing."""
    length = re.search(r"-seq(\d+)$", file)
    if length is None or record.sequence or _length_in(f"{record.workload}; {record.note}"):
        return ""
    return f"; assumed: {length.group(1)} tokens per sample (a column sequence says how many)"


def _length_in(text: str) -> int | None:
    """Return the tokens of a sequence that *text* states, such as ``seq128`` or ``sequence length = 128``; None if it states none."""
    stated = re.search(r"(?<![a-z])seq(?:uence)?[-_ ]?(?:len(?:gth)?)?\s?[-_=:]?\s?(\d+)", text.lower())
    return int(stated.group(1)) if stated else None


def _readings(name: str) -> list[str]:
    """Return *name* and what it is without organization, remarks, and words around it, the most literal first."""
    plain = re.sub(
        r"(?<![a-z])rn(?=\d)", "resnet", name.lower().rpartition("/")[2] if re.match(r"[\w.-]+/[a-z]", name.lower()) else name.lower()
    )
    bare = _WEIGHTS.sub("", _PACKAGE.sub("", re.sub(r"\(.*?\)", " ", plain).strip()))
    length = re.sub(r"(?<![a-z])seq(uence)?[-_ ]?(len(gth)?)?[-_ ]?\d+", " ", bare)
    around = _AROUND_MODELS.sub(" ", re.sub(r"[-_,]+", " ", length)).strip()
    joined = re.sub(r"(?<=[a-z0-9])v1\.5$", "", around.replace(" ", ""))
    of_cifar = [f"cifar10-{joined}"] if re.search(r"cifar[-_ ]?10(?!0)", name.lower()) else []
    return [name, plain, *of_cifar, bare, around, joined]


def _known(name: str, folder: Path | None) -> str:
    """Return the workload that *name* spells, or that `_MODELS` has for it; empty if there is none."""
    if not name:
        return ""
    spelled = _spelled(name, "workloads", (folder,))
    if has_file(spelled, "workloads", (folder,)):
        return spelled
    return _MODELS.get(plain_name(name), "")


@lru_cache(maxsize=512)
def _machine(name: str, gpus: int, folders: tuple[Path | None, ...]) -> _Meant:
    """Return the machine that *name* means, which has *gpus* GPUs in a node if possible; *name* itself if there is none."""
    for text in (name, re.sub(r"\(.*?\)", "", name).strip()):
        spelled = _spelled(text, "hardware", folders)
        if text and has_file(spelled, "hardware", folders):
            return _Meant(spelled)
    parts = catalog_gpus().meant(name)
    if not parts:
        inside = _gpus_in(name)
        if inside == name.strip() or not catalog_gpus().meant(inside):
            return _Meant(name)
        meant = _machine(inside, gpus, folders)
        return meant._replace(assumed=meant.assumed or ASSUMED)
    part, count = parts[0], count_of(name)
    rows = [row for row in hardware_rows()[0] if row["nodes"] == 1 and str(row["gpu"]).lower() == part.lower()]
    most = max(USUAL_GPUS, gpus)
    own = [row for row in rows if not row["provider"] and int(row["gpus"] or 0) <= most]
    if len(own) == 1 and count in (None, own[0]["gpus"]):
        return _Meant(str(own[0]["name"]))
    enough = [row for row in rows if int(row["gpus"] or 0) >= gpus]
    box = min(
        enough,
        key=lambda row: (int(row["gpus"] or 0) > most, bool(row["provider"]), row["gpus"], row["price"] or math.inf, row["name"]),
        default=None,
    )
    if box is None:
        those = f"{gpus} of these GPUs" if rows else "this GPU"
        assumed = f" with {part}: no machine of the catalog has {those}, so its host and network are assumed"
        return _Meant(PCIE_BOX, f"node.gpu={part}", assumed)
    return _Meant(str(box["name"]), "", ASSUMED)


@lru_cache(maxsize=512)
def _spelled(name: str, kind: str, folders: tuple[Path | None, ...]) -> str:
    """Return the file name in *folders* or the catalog that differs from *name* in spelling only; *name* if there is none or several."""
    if has_file(name, kind, folders):
        path = file_named(name, kind, folders)
        return path.stem if path.stem.lower() == name.lower() else name
    for spelled, names in _names_by_spelling(kind, folders).items():
        if same := names.get(spelled(name)):
            return next(iter(same)) if len(same) == 1 else name
    return name


@lru_cache(maxsize=16)
def _names_by_spelling(kind: str, folders: tuple[Path | None, ...]) -> Mapping[Callable[[str], str], Mapping[str, set[str]]]:
    """Return, for each way to compare spellings, the names of files in *folders* and the catalog by spelling, and by that of aliases."""
    searched = (inside for folder in filter(None, folders) for inside in (folder / kind, folder))
    files = [*(each for inside in searched for each in inside.glob("*" + SUFFIX)), *all_files(kind).values()]
    by_spelling: dict[Callable[[str], str], dict[str, set[str]]] = {pointed_name: {}, plain_name: {}}
    for each in files:
        for alias in (each.stem, *_aliases(each)):
            for spelled, names in by_spelling.items():
                names.setdefault(spelled(alias), set()).add(each.stem)
    return by_spelling


def _aliases(path: Path) -> list[str]:
    """Return the aliases and the name in *path*; none if it cannot be read, which is reported when it is loaded."""
    try:
        value = read(path).value
        name = value.get("name") if isinstance(value, dict) else None
        return [*aliases_of(path), *([name] if isinstance(name, str) else [])]
    except SpecError:
        return []
