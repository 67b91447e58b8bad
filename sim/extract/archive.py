"""Is it safe to load a ``.pt2`` file with torch? Not if it contains pickles or compiled code, which torch would run.

`torch.export.load` unpickles the entries that an archive marks as pickled, and loads the libraries of AOTInductor. The check does not need
torch. The rest of an archive, tensors and a graph, is data, but torch evaluates the graph's symbolic sizes. So do not load files from
untrusted sources in any case.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sim.spec.strict import parse_json
from sim.spec.yaml import SpecError

EXPORTED: Final = ".pt2"
_OBJECTS: Final = ("custom_obj", "opaque_obj")
"""Prefixes of the names of constants that are pickled objects."""
_MOST: Final = 64 * 2**20
"""Maximum size (bytes) of the file that lists an archive's tensors."""


def check_archive(path: Path) -> None:
    """Raise SpecError if *path* is not an archive written by ``torch.export.save``, or contains more than tensors and a graph."""
    if not path.is_file():
        raise SpecError(f"{path}: no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_member(path, archive, member)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{path}: is not a program written by torch.export.save: {error}") from None


def _check_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = member.filename
    if "/aotinductor/" in f"/{name}" or name.endswith((".so", ".cubin")):
        raise SpecError(f"{path}: holds compiled code ({name}), which loading would run; export the model with torch.export.save")
    if name.endswith(".pt") and "sample_inputs" not in name:
        raise SpecError(f"{path}: holds pickled tensors ({name}); save it again with torch.export.save of torch 2.8 or later")
    if not name.endswith("_config.json"):
        return
    if member.file_size > _MOST:
        raise SpecError(f"{path}: {name} is larger than {_MOST // 2**20} MiB")
    text = archive.read(member).decode("utf-8", "replace")
    pickled = next(_pickled(parse_json(text, f"{path}: {name}")), None)
    if pickled is not None:
        raise SpecError(
            f"{path}: {name} lists {pickled} as a pickled object, which would run code when loaded; export a model without tensor "
            "subclasses or custom objects"
        )


def _pickled(value: Any) -> Iterator[str]:
    """Yield the names of the entries that *value*, the list of an archive's tensors, marks as pickled."""
    entries = value.get("config") if isinstance(value, dict) else None
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if not isinstance(entry, dict) or entry.get("use_pickle") is not False or str(entry.get("path_name")).startswith(_OBJECTS):
            yield str(name)


@contextmanager
def without_pickles() -> Iterator[None]:
    """Return a context in which torch loads only tensors: its fallback to unpickling arbitrary objects fails."""
    import torch

    load = torch.load

    def tensors_only(*arguments: Any, **options: Any) -> Any:
        return load(*arguments, **(options | {"weights_only": True}))

    torch.load = tensors_only
    try:
        yield
    finally:
        torch.load = load
