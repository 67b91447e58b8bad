"""What does a file contain that is not YAML? JSON, JSON lines, TOML or CSV, plain or gzip, with size limits and strict types.

Every trace, record, journal, result document and table is read here, with the same restrictions as descriptions in `sim.spec.yaml`:
limits on bytes, values and depth, no NaN or Infinity, no duplicate keys, UTF-8 only. Each problem is one sentence with its place.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from sim.spec.yaml import SpecError, read_error_text, require_regular
from sim.units import shorten

MAX_BYTES: Final = 64 * 2**20
"""Maximum size of a document or table. The largest that the program writes, the document of a study, has 1 MB."""
MAX_DEPTH: Final = 40
MAX_VALUES: Final = 4_000_000
"""Maximum number of values in one document; each takes about 100 bytes of memory."""
_CHUNK: Final = 2**20
_GZIP: Final = b"\x1f\x8b"

Typed = TypeVar("Typed")


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """Return the content of *path*, unpacked if it is gzip. Raise SpecError if it cannot be read or is larger than *most* bytes."""
    return b"".join(read_parts(path, most))


def read_parts(path: Path, most: int = MAX_BYTES) -> Iterator[bytes]:
    """Yield the content of *path*, as `read_bytes` returns it, in parts of at most a MiB."""
    with _opened(path) as file:
        yield from _within(path, _unpacked(path, file), most)


def read_packed(path: Path, most: int = MAX_BYTES) -> bytes:
    """Return the bytes of *path* as they are. Raise SpecError if it cannot be read, is no regular file or has more than *most* bytes."""
    with _opened(path) as file:
        return b"".join(_within(path, iter(lambda: file.read(_CHUNK), b""), most))


def unpacked(path: Path, content: bytes, most: int = MAX_BYTES) -> bytes:
    """Return the bytes of all gzip members of *content*, or *content* if it is not gzip. Raise SpecError if they are over *most* bytes."""
    return b"".join(_within(path, _unpacked(path, io.BytesIO(content)), most))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open *path*; whatever prevents reading it becomes a SpecError."""
    require_regular(path)
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; expected a file")
    try:
        with path.open("rb") as file:
            yield file
    except SpecError:
        raise
    except OSError as error:
        raise SpecError(f"{path}: {read_error_text(error)}") from None
    except ValueError as error:
        raise SpecError(f"{str(path)!r}: is not a file name: {error}") from None


def _within(path: Path, parts: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield *parts* of *path*. Raise SpecError once they have more than *most* bytes."""
    size = 0
    for part in parts:
        size += len(part)
        if size > most:
            raise SpecError(f"{path}: is larger than {most // 2**20} MiB, the limit for files of this kind")
        yield part


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of all gzip members of *file*, or of *file* if it is not gzip."""
    packed = file.read(_CHUNK)
    if packed[:2] != _GZIP:
        while packed:
            yield packed
            packed = file.read(_CHUNK)
    while packed:
        unpacker = zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            try:
                part = unpacker.decompress(packed, _CHUNK)
            except zlib.error:
                raise SpecError(f"{path}: the gzip file is corrupt; export it again") from None
            if part:
                yield part
            packed = unpacker.unconsumed_tail
            if not (part or packed or unpacker.eof or (packed := file.read(_CHUNK))):
                raise SpecError(f"{path}: the gzip file is truncated; export the trace again")
        packed = unpacker.unused_data.lstrip(b"\0")
        while not packed and (more := file.read(_CHUNK)):
            packed = more.lstrip(b"\0")


def decode(content: bytes, file: str, hint: str = "") -> str:
    """Return *content* as text. Raise SpecError, with *hint*, if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: is not UTF-8 text (byte {error.start}){_hint_suffix(hint)}") from None


# --- JSON ------------------------------------------------------------------------------------------------------------


def read_json(path: Path, hint: str = "", most: int = MAX_BYTES) -> Any:
    """Return the JSON value in *path*. Raise SpecError if it is not JSON, with *hint* on how such a file is made."""
    return parse_json(decode(read_bytes(path, most), str(path), hint), str(path), hint)


def parse_json(text: str, file: str, hint: str = "") -> Any:
    """Return the JSON value of *text*; *file* is its name in messages. Raise SpecError, with *hint*, if it is not JSON."""
    if not text.strip():
        raise SpecError(f"{file}: is empty{_hint_suffix(hint)}")
    check_density(text, file)
    try:
        value = STRICT.decode(text)
    except RecursionError:
        raise SpecError(f"{file}: is nested more than {MAX_DEPTH} levels deep{_hint_suffix(hint)}") from None
    except json.JSONDecodeError as error:
        place = f"{file}:{error.lineno}:{error.colno}"
        raise SpecError(f"{place}: the JSON is truncated or invalid ({error.msg}){_hint_suffix(hint)}") from None
    except ValueError as error:
        raise SpecError(f"{file}: {error}{_hint_suffix(hint)}") from None
    _check_depth(value, file, hint)
    return value


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Return the table that the TOML *text* holds; *file* is its name in messages. Raise SpecError if it is not TOML."""
    check_density(text, file)
    try:
        value = tomllib.loads(text, parse_float=json_float)
    except RecursionError:
        raise SpecError(f"{file}: is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:  # of TOML, and of numbers
        raise SpecError(f"{file}: is not TOML: {error}") from None
    _check_depth(value, file, "")
    _check_integers(value, text, file)
    return value


def _check_integers(value: Any, text: str, file: str) -> None:
    """Raise SpecError for an integer of *value*, read from the TOML *text*, that does not fit into 64 bits, which TOML has for one."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        digits = str(abs(value))
        lines = (number for number, line in enumerate(text.splitlines(), start=1) if digits in line.replace("_", ""))
        place = next((f"{file}:{number}" for number in lines), file)  # written in hexadecimal: no such line
        raise SpecError(f"{place}: {shorten(value)} is too large for a whole number")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_integers(inner, text, file)


def check_density(text: str, file: str) -> None:
    """Raise SpecError if *text* has more than MAX_VALUES values and would take more memory than any real file of its size."""
    if len(text) > MAX_VALUES and text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
        raise SpecError(f"{file}: holds more than {MAX_VALUES:,} values, which is the limit")


def json_float(text: str) -> float:
    """Return the number in *text*. Raise ValueError if it is too large for a float, or none."""
    value = float(text)
    if math.isnan(value):
        raise ValueError(f"{text} is not a number")
    if math.isinf(value):
        raise ValueError(f"the number {shorten(text)} is too large")
    return value


def reject_constant(name: str) -> float:
    """Raise ValueError for NaN, Infinity and -Infinity, which are not valid JSON."""
    raise ValueError(f"{name} is not a JSON number")


def json_integer(text: str) -> int:
    """Return the whole number in *text*. Raise ValueError if it has more than 20 characters."""
    if len(text) > 20:
        raise ValueError(f"the number {shorten(text)} is too large")
    return int(text)


def is_series(text: str) -> bool:
    """Return whether *text* is several whole numbers: a range such as ``16..64:4``, or a list such as ``16,32``."""
    return re.fullmatch(r"\d{1,9}(\.\.\d{1,9}(:(log)?\d{1,9})?|(,\d{1,9}){1,9})", text) is not None


def whole_number(text: str) -> int | None:
    """Return the whole number in *text*: up to 20 digits 0 to 9, with optional spaces around them; None for any other text."""
    text = text.strip()
    return int(text) if len(text) <= 20 and text.isascii() and text.isdigit() else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shorten(twice)} appears twice in one object")
    return value


class TextDecoder(json.JSONDecoder):
    """Decoder of JSON whose texts are text: half of a surrogate pair, which no file or terminal takes, is a ValueError."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        """Return the value of *s* at *idx*, and where it ends."""
        value, end = super().raw_decode(s, idx)
        if _SURROGATE.search(s, idx, end):
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"a text holds {error.object[error.start]!r}, which is half of a character") from None
        return value, end


_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
STRICT: Final = TextDecoder(parse_float=json_float, parse_int=json_integer, parse_constant=reject_constant, object_pairs_hook=_unique)
"""Decoder of JSON without NaN, Infinity, numbers that are too large and keys that appear twice."""


def _check_depth(value: Any, file: str, hint: str) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += [held for held in one.values() if isinstance(held, dict | list)]
            elif isinstance(one, list):
                inner += [held for held in one if isinstance(held, dict | list)]
        if not inner:
            return
        level = inner
    raise SpecError(f"{file}: is nested more than {MAX_DEPTH} levels deep{_hint_suffix(hint)}")


# --- typed fields ----------------------------------------------------------------------------------------------------


def check_type(kind: type[Typed], value: Any, where: str, hint: str = "") -> Typed:
    """Return *value* as *kind* (a TypedDict or pydantic model), checked strictly; keys that are not in *kind* are ignored.

    Raise SpecError with the first field that is wrong, prefixed by *where*, the file and the place in it.
    """
    try:
        adapter: TypeAdapter[Typed] = _adapter(cast(Any, kind))
        checked = adapter.validate_python(value, strict=True)
        return checked
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        shown = "" if first["type"] == "missing" else f", not {shorten(first['input'])}"
        message = "is missing" if first["type"] == "missing" else f"{_lower(first['msg'])}{shown}"
        raise SpecError(f"{where}: {f'{place}: ' if place else ''}{message}{_hint_suffix(hint)}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _lower(message: str) -> str:
    return (
        message.replace("Input should be a valid", "expected a").replace("Input should be", "expected").replace(" a integer", " an integer")
    )


def _hint_suffix(hint: str) -> str:
    return f"; {hint}" if hint else ""


# --- CSV -------------------------------------------------------------------------------------------------------------

CsvRow = tuple[int, list[str]]
"""The line on which a row begins, and its cells."""


def csv_rows(lines: Sequence[tuple[int, str]], file: str) -> Iterator[CsvRow]:
    """Yield the rows of numbered *lines*; a quoted cell may span several lines. Raise SpecError if they are not CSV."""
    reader = csv.reader((line + "\n" for _, line in lines), strict=True)
    read = 0
    try:
        for cells in reader:
            yield lines[read][0], [cell.strip() for cell in cells]
            read = reader.line_num
    except csv.Error as error:
        reason = f"a cell has more than {csv.field_size_limit():,} characters" if "field limit" in str(error) else error
        raise SpecError(f"{file}:{lines[min(read, len(lines) - 1)][0]}: is not CSV: {reason}") from None


def csv_lines(path: Path, most: int = MAX_BYTES) -> list[tuple[int, str]]:
    """Return the numbered lines of *path* that are neither comments (``#``) nor blank, as lines of commas are in a spreadsheet's table.

    Raise SpecError if it has over *most* bytes.
    """
    lines = decode(read_bytes(path, most), str(path), "save the table as CSV in UTF-8").splitlines()
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip(", \t") and not line.startswith("#")]


def csv_number(text: str, where: str, wanted: str, valid: Callable[[float], bool]) -> float:
    """Return the finite number in *text*. Raise SpecError, with what is *wanted*, if it is not a number or not *valid*."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not valid(value):
        raise SpecError(f"{where}: {shorten(text)} is not {wanted}")
    return value
