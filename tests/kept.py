"""What do tests keep for each other, and when not? Files of the catalog as they are loaded, and warnings about the estimates of equal runs.

Most tests load the same few files, and run the same few jobs on the command line. A result is kept under everything that it depends on:
arguments, the catalog's folders and files, the current folder, the path of Python's packages (entry points), and the day. While a test has
replaced something with `pytest.MonkeyPatch` or registered an extension, or if overrides name files, nothing is kept, or taken from what is.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Hashable
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import pytest

from sim.spec import catalog, elsewhere, extensions
from sim.spec.days import TODAY
from sim.spec.fields import Spec
from sim.spec.hardware import Hardware
from sim.spec.identity import content
from sim.spec.sections import blocks, written_keys
from sim.training.job import Job

_patching: Final[WeakSet[pytest.MonkeyPatch]] = WeakSet()
"""Those that have replaced something, and not restored it."""
_WORDS: Final = re.compile(r"""[\s=:;,{}\[\]'"]+""")
_PATH: Final = re.compile(r"[/\\]|\.ya?ml\b")
MOST: Final = 2048
"""Maximum number of descriptions that are kept."""


def watch_patches() -> None:
    """Let `is_plain` know what a `pytest.MonkeyPatch` has replaced. Variables of the environment are part of keys instead."""
    plain = pytest.MonkeyPatch

    def watched(name: str) -> Callable[..., None]:
        own = getattr(plain, name)

        def replace(self: pytest.MonkeyPatch, target: Any, *others: Any, **keys: Any) -> None:
            if target is not os.environ and not isinstance(target, pytest.Config):  # pytest's own folders
                _patching.add(self)
            own(self, target, *others, **keys)

        return replace

    undo = plain.undo

    def restored(self: pytest.MonkeyPatch) -> None:
        undo(self)
        _patching.discard(self)

    for name in ("setattr", "delattr", "setitem", "delitem"):
        setattr(plain, name, watched(name))
    plain.undo = restored  # type: ignore[method-assign]


def is_plain() -> bool:
    """Return whether the program is as it is installed: nothing is replaced, registered, or read from a copy on another machine."""
    return not _patching and not extensions.has_registered() and elsewhere.user_path("") == Path()


def once_per_text(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return *parse*, which parses each text once; what reads a document does not change it."""
    once = lru_cache(maxsize=512)(parse)
    return lambda *arguments, **keys: (once if is_plain() else parse)(*arguments, **keys)


def once_per_catalog_file(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return *load*, which loads a file of the catalog once for each set of written overrides, as long as no file that it read changes."""
    prefixes = tuple(f"{root}/{folder}/" for root in catalog.roots() for folder in ("hardware", "workloads"))
    kept: dict[Hashable, tuple[Any, dict[Path, object]]] = {}

    def loaded(kind: type, path: Path, overrides: tuple[Any, ...], folders: Any) -> Any:
        if folders is not None or not str(path).startswith(prefixes) or not is_plain() or any(map(_may_name_file, overrides)):
            return load(kind, path, overrides, folders)
        key = kind, path, overrides, _surroundings()
        if key in kept:
            description, files = kept[key]
            if all(_stamp(file) == before for file, before in files.items()):
                for file in files:
                    elsewhere.record_read(file)
                return description
        with elsewhere.read_files() as read:
            description = load(kind, path, overrides, folders)
        if all(str(file).startswith(prefixes) for file in read):
            kept[key] = description, {file: _stamp(file) for file in read}
        if len(kept) > MOST:
            del kept[next(iter(kept))]
        return description

    loaded.each_time = load  # type: ignore[attr-defined]
    return loaded


def _stamp(file: Path) -> object:
    """Return what changes if *file* is written; None if there is no such file any more."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _may_name_file(override: object) -> bool:
    """Return whether *override* is no text, or may name a file that is not the catalog's."""
    return not isinstance(override, str) or bool(_PATH.search(override)) or any(map(os.path.lexists, filter(None, _WORDS.split(override))))


def _surroundings() -> Hashable:
    """Return what a description depends on apart from its files: where they and extensions are looked for, and the day."""
    return tuple(catalog.roots()), os.getcwd(), tuple(sys.path), os.environ.get(TODAY) or date.today()


def once_per_description(warnings: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return *warnings*, which simulates a job on hardware some forty times, once for each job and hardware with the same contents.

    Progress is repeated to whoever listens.
    """
    kept: dict[Hashable, tuple[list[str], list[tuple[int, int]]]] = {}

    def of(hardware: Hardware, job: Job, progress: Callable[[int, int], None] | None = None) -> list[str]:
        if not is_plain():
            return warnings(hardware, job, progress)
        fields = {each.name: getattr(job, each.name) for each in dataclasses.fields(job)}
        specs = [each for each in (hardware, *fields.values()) if isinstance(each, Spec)]
        key = content(hardware), content(fields), tuple(map(_written, specs)), progress is None, tuple(sys.path)
        if key not in kept:
            heard: list[tuple[int, int]] = []

            def hear(done: int, of: int) -> None:
                heard.append((done, of))
                if progress is not None:
                    progress(done, of)

            kept[key] = warnings(hardware, job, None if progress is None else hear), heard
            return list(kept[key][0])
        sentences, heard = kept[key]
        for done, total in heard:
            if progress is not None:
                progress(done, total)
        return list(sentences)

    return of


def _written(spec: Spec) -> Hashable:
    """Return which fields of *spec* were written: the source of a block covers those, or else its defaults (`sim.check.estimates`)."""
    return tuple((key, frozenset(written_keys(block))) for key, block in blocks(spec))
