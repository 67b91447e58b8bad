"""What is in the bytes of a Chakra execution trace? Messages of one rank: nodes with dependencies and attributes.

A file is a sequence of protobuf messages, each preceded by its length as a varint: one GlobalMetadata, then a Node for each operation
(MLCommons Chakra, ``et_def.proto`` 0.0.4). Alternatively it is their JSON, as written by ``chakra_jsonizer``. Chakra
uses only two message types with flat fields, so this module implements the wire format (protobuf.dev, "Encoding") directly. The protobuf
library would need declarations of the types of the same length, and would be another dependency.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from sim.spec.strict import STRICT

WireValue = bool | int | float | str | bytes | list[Any]

NODE_TYPES: Final = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
"""Names of node types, by number."""
COLLECTIVES: Final = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)  # fmt: skip
"""Names of collectives, by number."""
VERSION: Final = "0.0.4"

_SCALARS: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "bool",
    "string", "bytes",
)  # fmt: skip
"""Kinds of attributes: kind k is field 3 + 2k for a single value and 4 + 2k for a list."""
_FIXED: Final = {"double": "<d", "float": "<f", "fixed32": "<I", "fixed64": "<Q", "sfixed32": "<i", "sfixed64": "<q"}
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
"""Wire types."""
_NO_SPACE: Final = re.compile(r"\S")


class Malformed(ValueError):
    """Bytes that are not a valid trace; the message has the place and the reason."""


class TraceNode(NamedTuple):
    """One node of a trace, as stored in the file."""

    id: int
    name: str = ""
    type: int = 0
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_micros: int = 0
    duration_micros: int = 0
    inputs: str = ""
    """Values of the inputs; JSON for PyTorch's process groups."""
    attributes: Mapping[str, WireValue] = {}


def messages(data: bytes) -> list[TraceNode]:
    """Return the nodes of a trace. Raise Malformed if *data* is not a valid trace."""
    if data.lstrip()[:1] == b"{":
        return _nodes_of_json(data)
    parts = list(_delimited(data))
    if not parts:
        raise Malformed("is empty; a trace must begin with its metadata")
    _metadata(parts[0])
    return [_node(part, number) for number, part in enumerate(parts[1:], 1)]


# --- reading ----------------------------------------------------------------------------------------------------------


def _delimited(data: bytes) -> Iterator[bytes]:
    """Yield the messages, each of which is preceded by its length."""
    at, number = 0, 0
    while at < len(data):
        try:
            size, start = _varint(data, at)
        except Malformed:
            raise Malformed(f"is truncated: it ends inside the length of message {number} (byte {at} of {len(data)})") from None
        if start + size > len(data):
            if number == 0:
                raise Malformed("is not a Chakra trace: expected length-prefixed protobuf messages, or JSON")
            raise Malformed(
                f"is truncated: message {number} at byte {at} has {size} bytes, but the file holds only {len(data) - start} of them"
            )
        yield data[start : start + size]
        at, number = start + size, number + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at *at* and the position after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("found a number without an end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field, wire type, value) of one message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        value: int | bytes
        if wire == _VARINT:
            value, at = _varint(data, at)
        elif wire in (_LENGTH, _EIGHT, _FOUR):
            size, at = _varint(data, at) if wire == _LENGTH else (8 if wire == _EIGHT else 4, at)
            if at + size > len(data):
                raise Malformed(f"field {field} extends beyond its message")
            value, at = data[at : at + size], at + size
        else:
            raise Malformed(f"field {field} has wire type {wire}, which protobuf 3 does not have")
        if field == 0:
            raise Malformed("found a field with number 0")
        yield field, wire, value


def _metadata(data: bytes) -> None:
    try:
        for field, wire, _ in _fields(data):
            if wire != _LENGTH or field > 2:
                raise Malformed(f"field {field}")
    except Malformed:
        raise Malformed("is not a Chakra trace: its first message is not Chakra's GlobalMetadata") from None


def _node(data: bytes, number: int) -> TraceNode:
    values: dict[int, Any] = {4: [], 5: [], 10: {}}
    try:
        for field, wire, value in _fields(data):
            if field in (1, 3, 6, 7):
                values[field] = _as_int(value)
            elif field == 2:
                values[2] = _as_bytes(value).decode(errors="replace")
            elif field in (4, 5):
                values[field] += _packed(value) if wire == _LENGTH else [_as_int(value)]
            elif field == 8:
                values[8] = next((_as_bytes(text).decode(errors="replace") for at, _, text in _fields(_as_bytes(value)) if at == 1), "")
            elif field == 10:
                name, content = _attribute(_as_bytes(value))
                values[10][name] = content
    except (Malformed, struct.error) as error:
        named = f" (node {values[1]})" if 1 in values else ""
        raise Malformed(f"message {number}{named} is not a Chakra node: {error}") from None
    return TraceNode(
        values.get(1, 0), values.get(2, ""), values.get(3, 0), tuple(values[4]), tuple(values[5]), values.get(6, 0), values.get(7, 0),
        values.get(8, ""), values[10],
    )  # fmt: skip


def _as_int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise Malformed("expected a number, found bytes")
    return value


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Malformed("expected bytes, found a number")
    return value


def _packed(value: int | bytes) -> list[int]:
    data, at, numbers = _as_bytes(value), 0, []
    while at < len(data):
        number, at = _varint(data, at)
        numbers.append(number)
    return numbers


def _attribute(data: bytes) -> tuple[str, WireValue]:
    name, content = "", None
    for field, _, value in _fields(data):
        if field == 1:
            name = _as_bytes(value).decode(errors="replace")
        elif 3 <= field < 3 + 2 * len(_SCALARS):
            kind = _SCALARS[(field - 3) // 2]
            content = _scalar(kind, value) if field % 2 else _list_values(kind, _as_bytes(value))
    return name, content if content is not None else ""


def _scalar(kind: str, value: int | bytes) -> WireValue:
    if kind in _FIXED:
        number: WireValue = struct.unpack(_FIXED[kind], _as_bytes(value))[0]
        return number
    if kind in ("string", "bytes"):
        raw = _as_bytes(value)
        return raw.decode(errors="replace") if kind == "string" else raw
    number = _as_int(value)
    if kind == "bool":
        return bool(number)
    if kind in ("sint32", "sint64"):
        return number >> 1 ^ -(number & 1)
    return number - (1 << 64) if kind in ("int32", "int64") and number >= 1 << 63 else number


def _list_values(kind: str, data: bytes) -> list[Any]:
    values: list[Any] = []
    for field, wire, value in _fields(data):
        if field != 1:
            continue
        if wire != _LENGTH or kind in ("string", "bytes"):
            values.append(_scalar(kind, value))
        elif kind in _FIXED:
            values += [each for (each,) in struct.iter_unpack(_FIXED[kind], _as_bytes(value))]
        else:
            values += [_scalar(kind, each) for each in _packed(value)]
    return values


# --- JSON -------------------------------------------------------------------------------------------------------------


def _nodes_of_json(data: bytes) -> list[TraceNode]:
    """Return the nodes of concatenated JSON objects; the first object is the metadata."""
    objects, at = [], 0
    try:
        text = data.decode()
        while (begin := _NO_SPACE.search(text, at)) is not None:
            value, at = STRICT.raw_decode(text, begin.start())
            objects.append(value)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not a Chakra trace in JSON: {error}") from None
    return [_json_node(value, number) for number, value in enumerate(objects[1:], 1)]


def _json_node(value: Any, number: int) -> TraceNode:
    try:
        return TraceNode(
            int(value.get("id", 0)),
            str(value.get("name", "")),
            _json_type(value.get("type", 0)),
            tuple(map(int, value.get("ctrlDeps", ()))),
            tuple(map(int, value.get("dataDeps", ()))),
            int(value.get("startTimeMicros", 0)),
            int(value.get("durationMicros", 0)),
            str(value.get("inputs", {}).get("values", "")),
            dict(_json_attribute(each) for each in value.get("attr", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Malformed(f"object {number} is not a Chakra node: {error}") from None


def _json_type(value: Any) -> int:
    if not isinstance(value, str):
        return int(value)
    return NODE_TYPES.index(value) if value in NODE_TYPES else len(NODE_TYPES)


def _json_attribute(value: Mapping[str, Any]) -> tuple[str, WireValue]:
    """Return the name and value of an attribute; in JSON, 64-bit numbers are text."""
    key = next((key for key in value if key not in ("name", "docString")), None)
    if key is None:
        return value["name"], ""
    kind = key.removesuffix("Val").removesuffix("List")
    if key.endswith("List"):
        return value["name"], [_json_scalar(kind, each) for each in value[key].get("values", ())]
    return value["name"], _json_scalar(kind, value[key])


def _json_scalar(kind: str, written: Any) -> WireValue:
    if kind in ("bool", "string", "bytes"):
        value: WireValue = written
        return value
    return float(written) if kind in ("double", "float") else int(written)


# --- writing ----------------------------------------------------------------------------------------------------------


def metadata_bytes(**texts: str) -> bytes:
    """Return the first message of a trace, preceded by its length, with *texts* as attributes."""
    body = _text(1, VERSION) + b"".join(_block(2, _text(1, name) + _text(29, text)) for name, text in texts.items())
    return _number(len(body)) + body


def node_bytes(node: TraceNode) -> bytes:
    """Return the message of *node*, preceded by its length."""
    body = b"".join(
        (
            _integer(1, node.id),
            _text(2, node.name) if node.name else b"",
            _integer(3, node.type),
            _integers(4, node.ctrl_deps),
            _integers(5, node.data_deps),
            _integer(6, node.start_micros),
            _integer(7, node.duration_micros),
            *(_block(10, _text(1, name) + _value(value)) for name, value in node.attributes.items()),
        )
    )
    return _number(len(body)) + body


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _integer(field: int, value: int) -> bytes:
    return _number(field << 3 | _VARINT) + _number(value) if value else b""


def _integers(field: int, values: Sequence[int]) -> bytes:
    return _block(field, b"".join(map(_number, values))) if values else b""


def _block(field: int, content: bytes) -> bytes:
    return _number(field << 3 | _LENGTH) + _number(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _block(field, text.encode())


def _value(value: WireValue) -> bytes:
    """Return the bytes of an attribute's value; whole numbers are written as int64 and must not be negative."""
    if isinstance(value, str):
        return _text(29, value)
    if isinstance(value, float):
        return _number(3 << 3 | _EIGHT) + struct.pack("<d", value)
    if isinstance(value, int):
        field: Literal[27, 9] = 27 if isinstance(value, bool) else 9
        return _number(field << 3 | _VARINT) + _number(int(value))
    raise TypeError(f"an attribute cannot be {value!r}")
