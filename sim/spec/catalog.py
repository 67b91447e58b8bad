"""Which file does a name refer to? A path, a file next to the one with the name, or a name or alias in the catalog."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
from functools import lru_cache
from itertools import islice, permutations
from os.path import exists, isfile, islink
from pathlib import Path
from typing import Final, Protocol, cast

from sim.spec import elsewhere, memo, yaml
from sim.spec.defaults import REPLICATED_STACK
from sim.spec.extensions import STACKS, extension, names
from sim.spec.yaml import Document, SpecError
from sim.units import any_of, shorten

SUFFIX: Final = ".yaml"
STACKS_FOLDER: Final = "workloads/stacks"
MOST_NAMED: Final = 12
"""Maximum number of files in a folder that a hint lists; for more, it tells how to list them."""
MOST_TURNED: Final = 2
"""Maximum number of hyphens in a misspelled name for which its words are also tried in other orders."""


class StackFolder(Protocol):
    """A folder of stacks that an installed package provides; docs/develop/own-stacks.md has an example."""

    @property
    def name(self) -> str:
        """Return the name of this set of stacks."""

    @property
    def folder(self) -> Path:
        """Return the folder with the files, one for each stack, ``NAME.yaml``."""


class UnknownName(SpecError):
    """A name that matches no file; the message does not have a place yet."""


def roots() -> list[Path]:
    """Return the folders that contain ``hardware/`` and ``workloads/``: next to the package, or inside an installed wheel."""
    return list(_installed())


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parents[1]
    return tuple(folder for folder in (package.parent, package / "data") if (folder / "hardware" / "parts").is_dir())


def catalog(folder: str) -> dict[str, Path]:
    """Return all files directly in *folder* of the catalog (``hardware``, ``workloads/stacks``, ...) by name."""
    return dict(memo.get_or_make((catalog, folder), lambda: _files(folder)))


def contents(folder: str) -> tuple[tuple[str, int, int], ...]:
    """Return path, modification time and size of every file in *folder* and below, as a cache key: equal while no file changes."""
    files = [file for root in roots() for file in sorted((root / folder).rglob("*" + SUFFIX))]
    return tuple((str(file), stat.st_mtime_ns, stat.st_size) for file in files for stat in [file.stat()])


def provided_files(folder: str) -> dict[str, Path]:
    """Return the files of *folder* that installed packages provide, by name: stacks (entry points ``stallsim.stacks``)."""
    if folder != STACKS_FOLDER:
        return {}
    brought = {name: _stack_folder(name) for name in names(STACKS)}
    return dict(memo.get_or_make((provided_files, *brought.items()), lambda: _in_folders(*brought.values())))


def _stack_folder(name: str) -> Path:
    """Return the folder of stacks that an installed package announces as *name*. Raise SpecError if it was not installed."""
    folder = Path(cast(StackFolder, extension(STACKS, name)).folder)
    if not folder.is_dir():
        raise SpecError(f"{STACKS.word} {name}: there is no folder {folder}; move it into a package, which is installed with its files")
    return folder


def all_files(folder: str) -> dict[str, Path]:
    """Return all files of *folder* by name: the catalog's, and files of installed packages with other names."""
    return provided_files(folder) | catalog(folder)


def _files(folder: str) -> dict[str, Path]:
    return _in_folders(*(root / folder for root in roots()))


def _in_folders(*folders: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in folders:
        for name in sorted(name for name in _names_in(folder) if name.endswith(SUFFIX)):
            files.setdefault(name.removesuffix(SUFFIX), folder / name)
    return files


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # as text: sorting paths takes ten times as long
    except OSError:
        return []


SearchFolders = Path | tuple[Path, ...] | None
"""Additional folders, searched in order before the catalog."""


def locate(name: str, folder: str, near: SearchFolders = None, written_in: Path | None = None) -> Path:
    """Return the file in *folder* of the catalog to which *name* refers; for the other arguments see `file_of`.

    Raise UnknownName, which says what may have been meant, if there is no such file.
    """
    path = file_of(name, folder, near, written_in)
    if path is None:
        hint = (named_beside(name, written_in) if written_in else "") or unknown_name_hint(name, folder)
        raise UnknownName(f"{shown(name)} is not in the catalog ({folder}/){hint}")
    return path


def file_of(name: str, folder: str, near: SearchFolders = None, written_in: Path | None = None) -> Path | None:
    """Return the file in *folder* of the catalog to which *name* refers; None if it has none.

    *written_in* is the file that contains the name (None: a command line): paths are relative to it, and its own parts take precedence over
    the catalog's. *near* are additional folders to search first. Raise UnknownName for a path without a file.
    """
    if written_in is None and _OF_HUB.fullmatch(name) and (released := _released(name, folder)) is not None:
        return released
    if is_path(name):
        return _file_at(name, folder, written_in)
    tail = folder.split("/", 1)[-1]
    nearby = [place for path in ((near,) if isinstance(near, Path) else near or ()) for place in (f"{path}/{tail}", path)]
    for place in (*_own_folders(written_in, tail), *nearby, *(f"{root}/{folder}" for root in roots())):
        for spelling in dict.fromkeys((name, name.lower())):
            if isfile(path := f"{place}/{spelling}{SUFFIX}"):  # as text: creating a Path takes longer than checking for the file
                return Path(path)
    files = all_files(folder)
    by_lower = {known_name.lower(): path for known_name, path in files.items()}
    if (alias := by_lower.get(name.lower()) or _by_alias(name, files)) is not None:
        return alias
    if folder == "hardware" and (measured := _measured_machine(name)) is not None:
        return measured
    if (released := _released(name, folder)) is not None:
        return released
    if written_in is None and name and _is_there(elsewhere.user_path(name)):
        return _file_at(name, folder, None)
    return None


MEASURED: Final = Path(__file__).resolve().parents[2] / "calibration/hardware"
"""The folder of machines on which committed runs were measured."""


def _measured_machine(name: str) -> Path | None:
    """Return the description of the machine *name* on which committed runs were measured, None if there is none.

    A machine of one's own can extend it. The catalog does not list these machines, because nobody can rent them.
    """
    path = MEASURED / f"{name}{SUFFIX}"
    return path if is_file(path) else None


def _is_there(path: Path) -> bool:
    """Return whether *path* is a file, a folder or a link, even one that leads nowhere."""
    return is_file(path) or is_folder(path) or islink(path)


_OF_HUB: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.yaml)(?<!\.yml)")
"""Names of models on the Hugging Face hub, with their owner."""
_TUNED: Final = re.compile(r"^meta-(?=llama)|-(it|instruct|base|chat|hf|pt)(?=-|$)")
"""Parts of such names that do not change the sizes of a model."""


def _released(name: str, folder: str) -> Path | None:
    """Return the model of *folder* whose name is *name*, a name on the hub, without its owner and the way it was tuned.

    None if there is none, or if the user has a file of that name.
    """
    if folder not in ("workloads", "workloads/models") or exists(elsewhere.user_path(name)):
        return None
    released_name = name.rpartition("/")[2].lower()
    files = all_files(folder)
    for spelling in dict.fromkeys((released_name, _TUNED.sub("", released_name), f"{_TUNED.sub('', released_name)}-pt")):
        if (path := files.get(spelling) or _by_alias(spelling, files)) is not None:
            return path
    return None


def read(path: Path, before: str | None = None) -> Document:
    """Return the contents of *path*, cached until the file changes; if *before* is given, only the part before that key."""
    try:
        stat = path.stat()
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {yaml.read_error_text(error)}") from None
    elsewhere.record_read(path)
    return _read_unchanged(path, stat.st_mtime_ns, stat.st_size, before)


_TYPO: Final = 0.9
"""Similarity from which a name is that of the catalog with a wrong letter, not of another model: vit_l_16 and vit_b_16 have 0.875."""


def unknown_name_hint(name: str, folder: str, path: bool = False) -> str:
    """Return a hint for an unknown *name*: similar names in *folder*, or where it may belong. *path*: whether the name was a path."""
    other = {"hardware": "workloads", "workloads": "hardware"}.get(folder)
    if other and name in catalog(other):
        actual, expected = ("workload", "machine") if folder == "hardware" else ("machine", "workload")
        return f"; it is a {actual} ({other}/), not a {expected}"
    file_names = list(all_files(folder))
    if folder == "hardware" and not path and (gpu := gpu_like(name)):
        if unowned := advice_on_unused_gpu(gpu):
            return f"; {unowned}"
        have = f"'python -m sim list hardware --where gpu={gpu}' lists the machines with it"
        return f"; it is a GPU: {have}{''.join(f', such as {near}' for near in suggestions(name, file_names, most=1))}"
    if folder == "hardware" and not path and (provider := _provider_like(name)):
        lists = f"'python -m sim list hardware --where provider={provider}' lists its machines"
        return f"; it is a provider: {lists}, and compare and recommend take them with --where provider={provider}"
    listing = command_that_lists(folder)
    if folder == STACKS_FOLDER and re.sub(r"[-_ ]", "", name.lower()) in _TORCH:
        return f"; did you mean {REPLICATED_STACK}? {listing}"
    if folder == STACKS_FOLDER and (layout := _LAYOUTS.get(re.sub(r"[^a-z]", "", name.lower()))):
        return f"; it is a layout, not a stack: use {layout} with --stack torchtitan-2.x or megatron-core"
    if folder == "hardware" and not path and (of_gpu := _with_gpu_in(name)):
        return f"; did you mean {any_of(of_gpu)}?"
    measured = list(_in_folders(MEASURED)) if folder == "hardware" and not path else []
    if near := suggestions(name, list(catalog(folder))) or suggestions(name, [*file_names, *measured]):
        alike = _joined(name) == _joined(near[0]) or difflib.SequenceMatcher(None, name.lower(), near[0].lower()).ratio() >= _TYPO
        another = folder == "workloads" and not path and not alike
        return f"; did you mean {any_of(near)}?{f' {_NEW_WORKLOAD}' if another else ''}"
    if len(file_names) <= MOST_NAMED:
        return f"; known: {', '.join(file_names) or 'none'}"
    return f"; {listing}{f', and {_NEW_WORKLOAD}' if folder == 'workloads' and not path else ''}"


def command_that_lists(folder: str) -> str:
    """Return the part of a message that names the command for all entries of *folder*."""
    return f"'python -m sim list {folder.rpartition('/')[2]}' lists all {len(catalog(folder))}"


_NEW_WORKLOAD: Final = "'python -m sim new workload --help' shows how to describe another model"
_TORCH: Final = frozenset({"torch", "pytorch", "ddp", "torchddp", "pytorchddp", "distributeddataparallel"})
"""Names by which users look for the default stack."""
_LAYOUTS: Final = {
    **dict.fromkeys(("fsdp", "fullysharded", "zero"), "--shard parameters"),
    **dict.fromkeys(("tp", "tensorparallel", "megatron", "megatronlm"), "--tp N"),
    **dict.fromkeys(("pp", "pipeline", "pipelineparallel"), "--pp N"),
    **dict.fromkeys(("cp", "contextparallel"), "--cp N"),
    **dict.fromkeys(("ep", "expertparallel"), "--ep N"),
}
"""Options that select a layout, by the names that users look for among stacks."""


def gpu_like(name: str) -> str:
    """Return the first words of a GPU of the catalog that *name* spells, such as H100-SXM for ``8x NVIDIA h100 sxm``; empty if none.

    Of the words after the first, two letters are enough.
    """
    word = re.sub(r"^\d+ ?x ?|^(nvidia|tesla|geforce)[-_ ]?|(?<=\d)[-_ ]?x ?\d+$", "", name.lower())
    given = re.sub(r"[-_ ]", "", word)
    for gpu in catalog("hardware/parts/gpus"):
        words = gpu.split("-")
        starts = ["".join(words[: count + 1]) for count in range(len(words))]
        number = starts[0].removeprefix("rtx") if len(words) == 1 else starts[0]  # 4090 names one GPU, 6000 several
        enough = len(given) >= len(starts[0]) + 2
        if given in (starts[0], starts[-1], number) or (enough and starts[-1].startswith(given)):
            count = next(count for count, start in enumerate(starts, 1) if len(start) >= len(given))
            return "-".join(words[:count]).upper()
    return ""


def _with_gpu_in(name: str, most: int = 3) -> list[str]:
    """Return up to *most* machines with the GPU that is a word of *name*, as in ``hgx-mi300x``: those with the most similar names."""
    gpus = {each.partition("-")[0].lower() for each in catalog("hardware/parts/gpus")}
    gpu_words = [word for word in re.split(r"[-_ ]", name.lower()) if word in gpus]
    if not gpu_words:
        return []
    has = re.compile(rf"gpu: *{re.escape(gpu_words[0])}\b", re.IGNORECASE)
    machines = [machine for machine, file in catalog("hardware").items() if has.search(file.read_text(encoding="utf-8"))]
    orders = _orders(name.lower())

    def likeness(machine: str) -> float:
        return max(difflib.SequenceMatcher(None, order, machine.lower()).ratio() for order in orders)

    return sorted(machines, key=likeness, reverse=True)[:most]


def advice_on_unused_gpu(name: str) -> str:
    """Return advice on the GPU *name* if no machine of the catalog has it; empty if one has, or there is no such GPU."""
    gpu = gpu_like(name)
    if not gpu or _has_machine(gpu):
        return ""
    return f"it is a GPU, but no machine in the catalog has it; put it into one, such as g5.12xlarge with --set node.gpu={gpu}"


def _has_machine(gpu: str) -> bool:
    """Return whether a machine of the catalog has *gpu*."""
    return any(gpu.lower() in file.read_text(encoding="utf-8").lower() for file in catalog("hardware").values())


def _provider_like(name: str) -> str:
    """Return the provider with *name*, as it is spelled in the catalog; empty if there is none."""
    pattern = re.compile(rf"^provider: *({re.escape(name)})$", re.IGNORECASE | re.MULTILINE)
    matched = (pattern.search(file.read_text(encoding="utf-8")) for file in catalog("hardware").values())
    return next((match[1] for match in matched if match), "")


def suggestions(name: str, candidates: list[str], most: int = 3) -> list[str]:
    """Return up to *most* of *candidates* that resemble *name* with its words in any order, contain it, or are its beginning.

    If one differs from it only in hyphens and the like, it is the only one.
    """
    if len(same := [known_name for known_name in candidates if _joined(known_name) == _joined(name)]) == 1:
        return same
    lower_name, by_lower = name.lower(), {known_name.lower(): known_name for known_name in candidates}
    close = [lower for order in _orders(lower_name) for lower in difflib.get_close_matches(order, by_lower, n=most, cutoff=0.6)]
    inside = [
        lower for lower in by_lower if (len(lower_name) >= 2 and lower_name in lower) or (len(lower) >= 3 and lower_name.startswith(lower))
    ]
    return [by_lower[lower] for lower in list(dict.fromkeys([*close, *inside]))[:most]]


def _joined(name: str) -> str:
    """Return *name* in lower case without what separates words."""
    return re.sub(r"[-_ ]", "", name.lower())


def likely_or_all(name: str, candidates: list[str]) -> str:
    """Return which of *candidates* was meant by *name*, or all of them where none is like it."""
    near = suggestions(name, candidates, most=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(candidates)}"


def _orders(name: str) -> list[str]:
    """Return *name* with its words in every order, the original first; only the original if it has many words."""
    return ["-".join(words) for words in permutations(name.split("-"))] if name.count("-") <= MOST_TURNED else [name]


@lru_cache(maxsize=4096)
def _read_unchanged(path: Path, stamp: int, size: int, before: str | None) -> Document:
    return yaml.read(path) if before is None else yaml.read_head(path, before)


def shown(name: str) -> str:
    """Return *name* as messages show it: as it is, or cut and quoted if it is long, empty or not printable."""
    longest = 255 if is_path(name) else 80
    return name if 0 < len(name) <= longest and name.isprintable() else shorten(name, longest)


def is_path(name: str) -> bool:
    """Tell whether *name* is a path of a file, and no name of the catalog."""
    return name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


def _file_at(name: str, folder: str, written_in: Path | None) -> Path:
    path = written_in.parent / name if written_in is not None else elsewhere.user_path(name)
    if is_file(path):
        if path.suffix == ".py" and written_in is None:
            raise UnknownName(
                f"{shown(name)}: is a Python file; extract a layer table from its model: python -m sim extract "
                f"{shlex.quote(name)}:FUNCTION --input 3x224x224 -o model.yaml"
            )
        if written_in is None and _is_configuration(path):
            raise UnknownName(
                f"{shown(name)}: is a model configuration; create a workload from it: python -m sim new workload {shlex.quote(name)} -o "
                "mine.yaml"
            )
        if written_in is None and _is_launch_file(path):
            raise UnknownName(
                f"{shown(name)}: is a launch file; create a workload from it: python -m sim new workload {shlex.quote(name)} -o mine.yaml "
                "(with the model's config.json or catalog name behind it, if it does not name its model)"
            )
        return path
    if is_folder(path):
        raise UnknownName(f"{shown(name)} is a folder; write the path of a YAML file{_example_in(path)} or a name from the catalog")
    if exists(path):
        raise UnknownName(f"{shown(name)} is not a regular file; write the path of a YAML file")
    if islink(path):
        raise UnknownName(f"{shown(name)}: this link leads to no file; write the path of a YAML file")
    neighbors = {file.stem: Path(name).with_name(file.name) for file in _descriptions_in(path.parent)}
    near = [str(neighbors[stem]) for stem in suggestions(path.stem, list(neighbors))]
    meant = f"; did you mean {any_of(near)}?" if near else ""
    if _OF_HUB.fullmatch(name) and not is_folder(path.parent):  # as in ViT-B/16, a name rather than a file
        raise UnknownName(
            f"{shown(name)}: no such file, nor a name in the catalog ({folder}/){unknown_name_hint(name.replace('/', '-'), folder)}"
        )
    raise UnknownName(f"{shown(name)}: no such file{meant or unknown_name_hint(Path(name).stem, folder, path=True)}")


def _descriptions_in(folder: Path) -> list[Path]:
    """Return the YAML files of *folder*, at most MOST_BESIDE; none if it cannot be read."""
    try:
        return list(islice(folder.glob("*.y*ml"), MOST_BESIDE))
    except OSError:
        return []


MOST_BESIDE: Final = 500
"""Maximum number of files in a folder among which a name similar to a missing file's is searched."""


def _is_configuration(path: Path) -> bool:
    """Return whether *path* is the ``config.json`` of a model, under any name."""
    if path.name == "config.json":
        return True
    if path.suffix == ".json" and is_file(path):
        with contextlib.suppress(OSError), path.open("rb") as file:
            return b'"model_type"' in file.read(_BEGINNING)
    return False


def _is_launch_file(path: Path) -> bool:
    """Return whether *path* is a script, a torchtitan TOML or a DeepSpeed JSON, from which `new workload` reads a layout."""
    if path.suffix == ".json":
        with contextlib.suppress(OSError), path.open("rb") as file:
            return b'"zero_optimization"' in file.read(_BEGINNING)
    return path.suffix in _LAUNCH


_LAUNCH: Final = frozenset((".slurm", ".sbatch", ".sh", ".bash", ".toml"))
_BEGINNING: Final = 1 << 16
"""Bytes at the beginning of a JSON file that are searched for the key that identifies it."""


def _example_in(folder: Path) -> str:
    """Return the first YAML file of *folder* as an example; empty if there is none, or the folder cannot be read."""
    try:
        first = min(folder.glob("*.yaml"), default=None)
    except OSError:
        first = None
    return f" in it, such as {first}," if first else ""


def is_file(path: Path) -> bool:
    """Return whether *path* is a file; False for a name that the system rejects."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long for the file system, or with a null character
        return False


def is_folder(path: Path) -> bool:
    """Return whether *path* is a folder; False for a name that the system rejects."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=1024)
def _own_folders(written_in: Path | None, tail: str) -> tuple[str, ...]:
    """Return where a file may have its own parts: folders *tail* (``parts/gpus``) next to it and above it, then its own folder."""
    if written_in is None:
        return ()
    around = (written_in.parent, *written_in.parent.parents[:3])
    return (*(f"{place}/{tail}" for place in around), str(written_in.parent))


def named_beside(name: str, written_in: Path) -> str:
    """Return a hint at the file in the folder of *written_in* with the ``name`` *name*; empty if there is none but *written_in*."""
    for file in sorted(written_in.parent.glob("*" + SUFFIX)):
        with contextlib.suppress(SpecError):
            if file != written_in and isinstance(value := read(file).value, dict) and value.get("name") == name:
                return f"; {file} has this name: write {file.stem}, the file's name"
    return ""


def _by_alias(name: str, files: dict[str, Path]) -> Path | None:
    wanted = name.lower()
    text = wanted.encode(errors="replace")
    for path in files.values():
        try:
            stat = os.stat(path)
            if text in _with_aliases(path, stat.st_mtime_ns, stat.st_size) and wanted in map(str.lower, aliases_of(path)):
                return path
        except (OSError, SpecError):  # a broken file has no aliases; the problem is reported when it is loaded
            continue
    return None


@lru_cache(maxsize=4096)
def _with_aliases(path: Path, modified: int, size: int) -> bytes:
    """Return the contents of *path* in lower case, until it changes; empty if it has no aliases, as tables of layers, which are large."""
    contents = path.read_bytes().lower()
    return contents if b"aliases" in contents else b""


def all_names(folder: str) -> list[str]:
    """Return all names of the files of *folder*, with their aliases."""
    files = all_files(folder)
    return [*files, *(alias for path in files.values() for alias in aliases_of(path))]


def aliases_of(path: Path) -> list[str]:
    """Return the other names under which the description in *path* can be found."""
    value = read(path).value
    aliases = value.get("aliases") if isinstance(value, dict) else None
    return [str(alias) for alias in aliases] if isinstance(aliases, list) else []
