"""Which points of a sweep are there already? A file that grows by one JSON line a point, so that a sweep that was killed goes on.

``{"key": ..., "figures": {...}}``: the key tells one question from any other, the figures are the row's. Each line has left this
process before the next point counts; one that a kill cut off is no point. Only the places of the lines are held in memory: figures are read
from the file whenever they are asked for. Without a file, figures are held in memory instead.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from sim.spec.yaml import SpecError

Figures = Mapping[str, Any]
"""The row of one run: figures by column."""


class Journal:
    """Figures by key, kept in the file *path* from one sweep to the next; in memory only where it is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._held: dict[str, Figures] = {}
        self._place: dict[str, int] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> Journal:
        if self._path is not None:
            try:
                self._file = self._path.open("a+b")
            except OSError as error:
                raise SpecError(f"{self._path}, where points are kept until all are there: cannot be written: {error.strerror}") from None
            self._place = dict(_places(self._file))
            if self._file.tell():
                self._file.write(b"\n")  # ends a line that a kill may have cut off
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._path is not None and self._file is not None:
            empty = not self._place
            self._file.close()
            if empty:  # nothing came of it
                self._path.unlink()

    def others(self, keys: Collection[str]) -> int:
        """Return how many points are kept that are none of *keys*."""
        return len(self._place.keys() - set(keys))

    def __contains__(self, key: str) -> bool:
        return key in self._place or key in self._held

    def __getitem__(self, key: str) -> Figures:
        if self._file is None:
            return self._held[key]
        self._file.seek(self._place[key])
        figures: Figures = json.loads(self._file.readline())["figures"]
        return figures

    def note(self, key: str, figures: Figures) -> None:
        """Keep the *figures* of the point *key*."""
        if self._file is None:
            self._held[key] = figures
            return
        self._place[key] = self._file.seek(0, 2)
        self._file.write(json.dumps({"key": key, "figures": figures}).encode() + b"\n")
        self._file.flush()


def _places(file: BinaryIO) -> Iterator[tuple[str, int]]:
    """Yield key and place of each whole line of *file*, which is left at its end."""
    file.seek(0)
    place = 0
    for line in file:
        try:
            entry = json.loads(line)
            if isinstance(entry["figures"], dict):
                yield entry["key"], place
        except (ValueError, TypeError, KeyError):
            pass
        place += len(line)
