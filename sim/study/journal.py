"""Which points of a sweep are computed already? A file grows by one JSON line per point, so that a sweep that was killed can resume.

In ``{"key": ..., "figures": {...}, "sum": ...}`` the key identifies the question, the figures are those of the row, and the sum is a
checksum of the line. Each line is flushed before the next point counts; a line that was truncated by a kill, or changed, is ignored.
Only the offsets of lines are held in memory: figures are read from the file when they are needed. While one sweep has the file open, no
other may. Without a file, figures are held in memory instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sim.spec.strict import decode, parse_json
from sim.spec.yaml import SpecError

RowFigures = Mapping[str, Any]
"""The row of one run: figures by column."""


class Journal:
    """Figures by key, kept in the file *path* from one sweep to the next; only in memory if it is None.

    *of_output*: whether *path* is that of a table, with ``.journal`` added, rather than a file that the user named.
    """

    def __init__(self, path: Path | None, of_output: bool = False) -> None:
        self._path = path
        self._of_output = of_output
        self._held: dict[str, RowFigures] = {}
        self._place: dict[str, int] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Journal:
        if self._path is not None:
            self._file = _locked(self._path, self._of_output)
            self._place = dict(_places(self._file))
            if not self._place and not _is_journal(self._file):
                self._file.close()
                raise SpecError(f"{self._path}: is not a journal; name another file, or remove this one")
            self._file.seek(0, os.SEEK_END)
            if self._file.tell():
                self._write(b"\n")  # ends a line that a kill may have truncated
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._path is not None and self._file is not None:
            if not self._place:  # no point was written
                self._path.unlink(missing_ok=True)
            with suppress(OSError):  # a full disk has been reported already
                self._file.close()

    def remove(self) -> None:
        """Remove the file, when its points are no longer needed; while this journal is still open, no other sweep finds the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def others(self, keys: Collection[str]) -> int:
        """Return how many of the kept points are not among *keys*."""
        return len(self._place.keys() - set(keys))

    def __contains__(self, key: str) -> bool:
        return key in self._place or key in self._held

    def __getitem__(self, key: str) -> RowFigures:
        if self._file is None:
            return self._held[key]
        self._file.seek(self._place[key])
        entry = _entry(self._file.readline())
        if entry is None or entry[0] != key:
            raise SpecError(f"{self._path}: was changed by another program while this one used it; run the same command again")
        return entry[1]

    def note(self, key: str, figures: RowFigures) -> None:
        """Keep the *figures* of the point *key*. Raise SpecError if the file cannot be written."""
        if self._file is None:
            self._held[key] = figures
            return
        place = self._file.seek(0, os.SEEK_END)
        self._write(_line(key, figures))
        self._place[key] = place

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise SpecError(
                f"{self._path}: cannot be written: {error.strerror}; "
                f"the points so far ({len(self._place)}) are kept; run the same command again"
            ) from None


def _locked(path: Path, of_output: bool) -> IO[bytes]:
    """Return *path*, opened and locked. Raise SpecError if another process has it locked, or if it cannot be written."""
    while True:
        try:
            file = path.open("a+b")
        except OSError as error:
            raise SpecError(f"{path}, the journal of unfinished points: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            if not of_output:
                why = "another command is writing this journal; wait until it ends, or write --journal FILE with another"
                raise SpecError(f"{path}: {why}") from None
            output = path.with_suffix("") if path.suffix == ".journal" else path
            raise SpecError(f"{output}: another sweep is writing this file; wait until it ends, or write to another file with -o") from None
        except OSError:
            return file  # a file system without locks
        if _is_at(file, path):
            return file
        file.close()  # the sweep that held it ended and removed it


def _is_journal(file: IO[bytes]) -> bool:
    """Return whether *file*, which has no complete line, may be a journal: empty, or with a first line that a kill truncated."""
    file.seek(0)
    first_line = file.readline(_LONGEST)
    return not first_line.strip() or first_line.startswith(_FIRST[: len(first_line)])


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


_LONGEST = 2**20
"""Maximum bytes of a line; a row of figures has a few thousand."""
_FIRST = b'{"key": '
_SUM = b', "sum": "'


def _line(key: str, figures: RowFigures) -> bytes:
    text = json.dumps({"key": key, "figures": figures}, allow_nan=False).encode()[:-1]
    return text + _SUM + _sum(text) + b'"}\n'


def _sum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()


def _entry(line: bytes) -> tuple[str, RowFigures] | None:
    """Return key and figures of *line*, or None if it is not intact."""
    text, mark, rest = line.rpartition(_SUM)
    if not mark or rest.rstrip() != _sum(text) + b'"}':
        return None
    try:
        entry = parse_json(decode(text + b"}", "line"), "line")
    except SpecError:
        return None
    key, figures = (entry.get("key"), entry.get("figures")) if isinstance(entry, dict) else (None, None)
    return (key, figures) if isinstance(key, str) and isinstance(figures, dict) else None


def _places(file: IO[bytes]) -> Iterator[tuple[str, int]]:
    """Yield key and offset of each intact line of *file*, which is left at its end."""
    file.seek(0)
    place = 0
    while line := file.readline(_LONGEST):
        if (entry := _entry(line)) is not None:
            yield entry[0], place
        place += len(line)
