"""Is JSON that is read in parts the same as JSON that is read whole, with the same place of an error, and little memory?"""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import sim.spec.strict
from sim.spec.json_stream import MAX_VALUE, JsonText
from sim.spec.yaml import SpecError
from tests.examples import examples

_MOST = 2**30
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def text(path: Path, content: bytes, density: int = 1) -> JsonText:
    path.write_bytes(content)
    return JsonText(path, _MOST, density, "again")


def only_value(path: Path, content: bytes) -> Any:
    """The one value of *content*."""
    stream = text(path, content)
    value = stream.value(json.JSONDecoder())
    stream.end()
    return value


@examples(
    100, None, value=_VALUES, part=st.integers(2, 9), indent=st.none() | st.integers(0, 2), ascii_only=st.booleans(), packed=st.booleans()
)  # fmt: skip
def test_parts_make_the_whole(
    value: Any, part: int, indent: int | None, ascii_only: bool, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: json.loads."""
    monkeypatch.setattr(sim.spec.strict, "_CHUNK", part)
    content = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert only_value(tmp_path / "x.json", gzip.compress(content) if packed else content) == json.loads(content)
    listed = json.dumps([value, value, 1], indent=indent, ensure_ascii=ascii_only).encode()
    stream = text(tmp_path / "x.json", listed + b" \n")
    assert list(stream.elements(json.JSONDecoder())) == [value, value, 1]
    stream.end()


@examples(100, None, value=_VALUES, part=st.integers(2, 9), data=st.data())
def test_an_error_is_where_it_is(value: Any, part: int, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the line, column and message of json.loads."""
    monkeypatch.setattr(sim.spec.strict, "_CHUNK", part)
    written = json.dumps(value, indent=1)
    place = data.draw(st.integers(0, len(written)))
    broken = written[:place] + data.draw(st.sampled_from(["", "x", "}", ",", '"', "\\", "\x01"])) + written[place + 1 :]
    try:
        right = json.loads(broken)
    except json.JSONDecodeError as error:
        with pytest.raises(SpecError) as said:
            only_value(tmp_path / "x.json", broken.encode())
        line = f"x.json:{error.lineno}:{error.colno}: the JSON is truncated or invalid ({error.msg}); again"
        assert str(said.value) == f"{tmp_path}/{line}"
    else:
        assert only_value(tmp_path / "x.json", broken.encode()) == right


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[1, \xc3\x28]", r"is not UTF-8 text \(byte 4\)"),
        (b"[" * 10**6, "is nested too deeply"),
        (b"[0,0" + b",0" * 4_000_000 + b"]", "holds more than 4,000,000 values"),
        (b'"' + b"a" * (2 * MAX_VALUE + 2**21), "holds a value of more than 16 MiB"),
        (b"[1] 2", "x.json:1:5: .*Extra data"),
        (gzip.compress(b"[" + b"1," * 99, mtime=0)[:-9], "the gzip file is truncated"),
        (gzip.compress(b"[1]", mtime=0)[:10] + b"\xff" * 9, "the gzip file is corrupt"),
        (b"", "x.json:1:1: .*Expecting value"),
    ],
    ids=["not UTF-8", "deep", "dense", "a long value", "more than a value", "truncated gzip", "corrupt gzip", "empty"],
)
def test_limits(content: bytes, said: str, tmp_path: Path) -> None:
    stream = text(tmp_path / "x.json", content, density=8)
    with pytest.raises(SpecError, match=said):
        stream.value(json.JSONDecoder())
        stream.end()


@pytest.mark.parametrize("unit", [b" ", b'"' + 1000 * b"k" + b'",'])
def test_what_was_read_takes_no_memory(unit: bytes, tmp_path: Path) -> None:
    """Oracle: the most memory that Python objects take, against the 64 MB of the file."""
    path = tmp_path / "x.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.writelines([b"[", *[unit * (2**20 // len(unit))] * 64, b"0]"])
    tracemalloc.start()
    last = 0
    for last in JsonText(path, _MOST, 1, "").elements(json.JSONDecoder()):  # noqa: B007
        pass
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert last == 0 and used < 8e6
