"""Which machines and workloads of the catalog do the names in other people's tables mean? Spellings, GPUs, and models by other names.

A GPU alone names no host and no network: those of a machine of the catalog with this GPU are assumed, which a note says. A model whose
samples have a length, such as BERT, means the workload of the length that the row states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from calibration import HARDWARE
from calibration.questions import Folders, file_named
from calibration.run_records import RunRecord
from calibration.run_words import plain_name
from sim.spec.catalogue import SUFFIX, aliases_of, all_files
from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError

PCIE_BOX: Final = "n3-rtx-a6000x8"
"""The machine whose GPUs are replaced by those that no machine of the catalog has: a host with eight PCIe slots."""
_COUNT: Final = re.compile(r"(\d+)\s*x\s*(?=\D)", re.IGNORECASE)
"""The number of GPUs before their name."""
_PARTS: Final = "hardware/parts/gpus"
_FAMILIES: Final = re.compile(r"nvidia|amd|instinct|tesla|geforce|quadro|(rtx|gtx)[-_ ]?(?=[a\d])")
"""Words before the number of a GPU that people leave out."""
_FORMS: Final = re.compile(r"(pcie|sxm\d?|nvl|gcd)?(\d+gb)?")
"""What may follow a GPU's name in that of a part: form and memory. The first part in alphabetical order is meant: PCIe before SXM."""
_MODELS: Final[Mapping[str, str]] = {
    "bertbase": "bert-base-seq128",
    "bertlarge": "bert-large-seq384",
    "densenet": "densenet121",
    "dlrm": "dlrm-criteo",
    "gnmtv2": "gnmt",
    "inception3": "inception_v3",
    "resnext101": "resnext101_32x8d",
    "resnext50": "resnext50_32x4d",
    "squeezenet": "squeezenet1_0",
    "ssd": "ssd300",
    "transformer": "transformer-big",
    "transformerxl": "transformer-xl-base",
    "vitbase": "vit_b_16",
}
"""Models by names that leave out the variant that most tables mean: the first of its paper, or the one its benchmark trains."""
_TUNED: Final = re.compile(r"(un)?cased$|(pretrain|finetun)(ing|e)?$|squad$")
"""Ends of names that change no layer's size."""


class _Meant(NamedTuple):
    """A machine of the catalog, the override with which it is the one that a name means, and what is assumed, as text."""

    machine: str
    override: str = ""
    assumed: str = ""


def with_catalog_names(records: Sequence[RunRecord], folders: Folders) -> tuple[list[RunRecord], list[str]]:
    """Return *records* with machines and workloads as the catalog spells them, and a note on each name that was changed."""
    notes: dict[str, str] = {}
    renamed = []
    for record in records:
        workload = _workload(record.workload, record.sequence, folders.workloads)
        machine = _machine(record.hardware, _gpus_of_a_node(record), (folders.hardware, HARDWARE))
        if machine.machine.lower() != record.hardware.lower():
            notes[f"hardware {record.hardware} {machine}"] = f"hardware '{record.hardware}' was read as {machine.machine}{machine.assumed}"
        if workload.lower() != record.workload.lower():
            notes[f"workload {record.workload} {workload}"] = f"workload '{record.workload}' was read as {workload}"
        overrides = "; ".join(filter(None, (machine.override, record.overrides)))
        renamed.append(replace(_with_count(record, machine), hardware=machine.machine, workload=workload, overrides=overrides))
    return renamed, list(notes.values())


def _gpus_of_a_node(record: RunRecord) -> int:
    """Return how many GPUs of a node *record* uses, as far as it says so; 1 if not."""
    if record.placement:
        return max((int(part) for part in record.placement.split("+") if part.strip().isdigit()), default=1)
    count = _COUNT.match(record.hardware.strip())
    gpus = record.gpus_per_node or (record.total_gpus / record.nodes if record.total_gpus and record.nodes else None)
    return int(gpus or (count and int(count[1])) or 1)


def _with_count(record: RunRecord, machine: _Meant) -> RunRecord:
    """Return *record*, with the number of GPUs that its name states if nothing else does and *machine* is assumed."""
    count = _COUNT.match(record.hardware.strip())
    stated = (record.placement, record.gpus_per_node, record.total_gpus)
    return replace(record, gpus_per_node=float(count[1])) if count and machine.assumed and not any(stated) else record


def _workload(name: str, sequence: int | None, folder: Path | None) -> str:
    """Return the workload of the catalog or *folder* that *name* means, of *sequence* tokens if there is one; *name* if there is none."""
    spelled = _spelled(name, "workloads", (folder,))
    plain = plain_name(spelled)
    model = _MODELS.get(plain) or _MODELS.get(_TUNED.sub("", plain), "")
    if model and _is_unknown(spelled, "workloads", (folder,)):
        spelled = model
    own_length = re.search(r"-seq\d+$", name.lower())
    of_length = re.sub(r"-seq\d+$", "", model or spelled) + f"-seq{sequence}"
    return of_length if sequence and not own_length and of_length in all_files("workloads") else spelled


@lru_cache(maxsize=512)
def _machine(name: str, gpus: int, folders: tuple[Path | None, ...]) -> _Meant:
    """Return the machine that *name* means, which has *gpus* GPUs in a node if possible; *name* itself if there is none."""
    spelled = _spelled(name, "hardware", folders)
    if not _is_unknown(spelled, "hardware", folders):
        return _Meant(spelled)
    part = _part(name)
    if not part:
        return _Meant(name)
    count = _COUNT.match(name.strip())
    rows = [row for row in hardware_rows()[0] if row["nodes"] == 1 and str(row["gpu"]).lower() == part.lower()]
    own = [row for row in rows if not row["provider"]]
    if len(own) == 1 and (count is None or int(count[1]) == own[0]["gpus"]):
        return _Meant(str(own[0]["name"]))
    enough = [row for row in rows if int(row["gpus"] or 0) >= gpus]
    box = min(enough, key=lambda row: (bool(row["provider"]), row["gpus"], row["price"] or math.inf, row["name"]), default=None)
    if box is None:
        those = f"{gpus} of these GPUs" if rows else "this GPU"
        assumed = f" with {part}: no machine of the catalog has {those}, so its host and network are assumed"
        return _Meant(PCIE_BOX, f"node.gpu={part}", assumed)
    return _Meant(str(box["name"]), "", ", a machine of the catalog with this GPU; its host and network are assumed")


@lru_cache(maxsize=512)
def _part(name: str) -> str:
    """Return the GPU of the catalog that *name* means, perhaps after a number of them; empty if there is none."""
    wanted = _letters(_COUNT.sub("", name.strip(), count=1))
    spellings = {part: {_letters(each) for each in (part, *_aliases(path))} for part, path in sorted(all_files(_PARTS).items())}
    exact = [part for part, same in spellings.items() if wanted in same]
    longer = [
        part for part, same in spellings.items() for each in same
        if wanted and each.startswith(wanted) and _FORMS.fullmatch(each.removeprefix(wanted))
    ]  # fmt: skip
    return next(iter((*exact, *longer)), "")


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", _FAMILIES.sub("", name.lower()))


def _is_unknown(name: str, kind: str, folders: tuple[Path | None, ...]) -> bool:
    try:
        file_named(name, kind, folders)
    except SpecError:
        return True
    return False


@lru_cache(maxsize=512)
def _spelled(name: str, kind: str, folders: tuple[Path | None, ...]) -> str:
    """Return the file name in *folders* or the catalogue that differs from *name* in spelling only; *name* if there is none or several."""
    if not _is_unknown(name, kind, folders):
        path = file_named(name, kind, folders)
        return path.stem if path.stem.lower() == name.lower() else name
    searched = (inside for folder in filter(None, folders) for inside in (folder / kind, folder))
    files = [*(each for inside in searched for each in inside.glob("*" + SUFFIX)), *all_files(kind).values()]
    same = {each.stem for each in files if any(plain_name(spelling) == plain_name(name) for spelling in (each.stem, *_aliases(each)))}
    return same.pop() if len(same) == 1 else name


def _aliases(path: Path) -> list[str]:
    """Return the aliases in *path*; none if it cannot be read, which is reported when it is loaded."""
    try:
        return aliases_of(path)
    except SpecError:
        return []
