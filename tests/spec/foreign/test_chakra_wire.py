"""Oracles: bytes written by hand, Google's protobuf library, and that what is written is read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.spec.foreign.chakra_wire import _SCALARS, Malformed, TraceNode, messages, metadata_bytes, node_bytes

ALL_REDUCE = (
    b"\x07\x0a\x050.0.4"  # GlobalMetadata of 7 bytes: version
    b"\x40"  # a Node of 64 bytes
    b"\x08\x01"  # id 1
    b"\x12\x0aall_reduce"  # name
    b"\x18\x07"  # COMM_COLL_NODE
    b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x00"  # bool_val false
    b"\x52\x0d\x0a\x09comm_type\x48\x00"  # int64_val 0: ALL_REDUCE
    b"\x52\x0f\x0a\x09comm_size\x48\x80\x80\x40"  # int64_val 1 MiB
)
"""The second rank of ASTRA-sim's all-reduce microbenchmark of 1 MB, by the rules of protobuf's encoding."""
NODE = TraceNode(1, "all_reduce", 7, attributes={"is_cpu_op": False, "comm_type": 0, "comm_size": 1 << 20})

JSON = """{"version": "0.0.4"}{"id": "7", "name": "gemm", "type": "COMP_NODE", "ctrlDeps": ["3"], "dataDeps": ["1", "2"],
"durationMicros": "12", "inputs": {"values": "[]"}, "attr": [{"name": "is_cpu_op", "boolVal": false}, {"name": "num_ops", "int64Val": "99"},
{"name": "involved_dim", "boolList": {"values": [true, false]}}, {"name": "scale", "doubleVal": 1.5}]}"""

attributes = st.dictionaries(
    st.text(min_size=1, max_size=8), st.booleans() | st.integers(0, 2**63 - 1) | st.floats(allow_nan=False) | st.text(), max_size=4
)
nodes = st.builds(
    TraceNode,
    st.integers(0, 2**64 - 1),
    st.text(),
    st.integers(0, 7),
    st.just(()),
    st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.just(""),
    attributes,
)


def test_bytes_by_hand() -> None:
    assert messages(ALL_REDUCE) == [NODE]
    assert metadata_bytes() + node_bytes(NODE) == ALL_REDUCE


@given(st.lists(nodes, max_size=4))
def test_what_is_written_is_read(written: list[TraceNode]) -> None:
    data = metadata_bytes(producer="test") + b"".join(map(node_bytes, written))
    assert messages(data) == written


def test_json_says_the_same() -> None:
    said = {"is_cpu_op": False, "num_ops": 99, "involved_dim": [True, False], "scale": 1.5}
    assert messages(JSON.encode()) == [TraceNode(7, "gemm", 4, (3,), (1, 2), 0, 12, "[]", said)]


@pytest.mark.parametrize("kept", range(1, len(ALL_REDUCE)))
def test_a_file_that_is_cut_off_is_refused(kept: int) -> None:
    if kept == 8:  # the metadata alone is whole
        assert messages(ALL_REDUCE[:kept]) == []
    else:
        with pytest.raises(Malformed, match=r"is truncated|is not a Chakra trace"):
            messages(ALL_REDUCE[:kept])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"hello, this is not a trace at all", "is not a Chakra trace: expected length-prefixed protobuf messages, or JSON"),
        (b"\x02\x18\x07", "its first message is not Chakra's GlobalMetadata"),
        (metadata_bytes() + b"\x04\x08\x05\x12\x09", r"message 1 \(node 5\) is not a Chakra node: field 2 extends beyond its message"),
        (metadata_bytes() + b"\x01\x0b", "message 1 is not a Chakra node: field 1 has wire type 3"),
        (b"{} {", "is not a Chakra trace in JSON"),
        (b"{} []", "object 1 is not a Chakra node"),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(Malformed, match=what):
        messages(data)


@given(st.binary(max_size=64))
def test_no_bytes_crash(data: bytes) -> None:
    for tail in (data, metadata_bytes() + data):
        try:
            messages(tail)
        except Malformed:
            continue


# --- Google's library as the oracle ------------------------------------------------------------------------------------


def _declared() -> Any:
    """The schema as mlcommons/chakra schema/protobuf/et_def.proto declares it, made at run time."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="chakra", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for field, number, kind, many in fields:
            own = made.field.add(name=field, number=number, label=kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL)
            if hasattr(kinds, f"TYPE_{kind.upper()}"):
                own.type = getattr(kinds, f"TYPE_{kind.upper()}")
            else:
                own.type, own.type_name = kinds.TYPE_MESSAGE, f".chakra.{kind}"

    for kind in _SCALARS:
        message(f"{kind}_list", ("values", 1, kind, True))
    values = [(f"{kind}_val", 3 + 2 * place, kind, False) for place, kind in enumerate(_SCALARS)]
    lists = [(f"{kind}_list", 4 + 2 * place, f"{kind}_list", False) for place, kind in enumerate(_SCALARS)]
    message("Attribute", ("name", 1, "string", False), ("doc_string", 2, "string", False), *values, *lists)
    one_of = file.message_type[-1]
    one_of.oneof_decl.add(name="value")
    for field in one_of.field[2:]:
        field.oneof_index = 0
    message("IOInfo", *((name, place, "string", False) for place, name in enumerate(("values", "shapes", "types"), 1)))
    message(
        "Node", ("id", 1, "uint64", False), ("name", 2, "string", False), ("type", 3, "int32", False), ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True), ("start_time_micros", 6, "uint64", False), ("duration_micros", 7, "uint64", False),
        ("inputs", 8, "IOInfo", False), ("outputs", 9, "IOInfo", False), ("attr", 10, "Attribute", True),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("chakra.Node"))


EXAMPLES: dict[str, list[Any]] = {
    "double": [1.2345, -0.0], "float": [1.5, -2.25], "int32": [12345, -7], "int64": [9876543210, -1], "uint32": [5, 2**32 - 1],
    "uint64": [7, 2**64 - 1], "sint32": [-12345, 3], "sint64": [9876543210, -(2**62)], "fixed32": [1, 2], "fixed64": [3, 2**63],
    "sfixed32": [-5, 5], "sfixed64": [-(2**40), 6], "bool": [True, False], "string": ["a", ""], "bytes": [b"\xff", b""],
}  # fmt: skip


def test_the_library_writes_what_is_read_here() -> None:
    """Every kind of attribute, as chakra's own generator of test traces has it."""
    made = _declared()(id=3, name="all", type=1, ctrl_deps=[1, 300], data_deps=[2], duration_micros=9, inputs={"values": "[{}]"})
    for kind, (one, other) in EXAMPLES.items():
        made.attr.add(name=kind, **{f"{kind}_val": one})
        getattr(made.attr.add(name=f"{kind}s"), f"{kind}_list").values.extend([one, other])
    body = made.SerializeToString()
    length = bytes([len(body) & 0x7F | 0x80, len(body) >> 7])
    (message,) = messages(metadata_bytes() + length + body)
    assert message[:8] == (3, "all", 1, (1, 300), (2,), 0, 9, "[{}]")
    lists = {f"{name}s": values for name, values in EXAMPLES.items()}
    assert message.attributes == lists | {name: values[0] for name, values in EXAMPLES.items()}


@given(nodes)
def test_the_library_reads_what_is_written_here(node: TraceNode) -> None:
    kind = _declared()
    data = node_bytes(node)
    start = next(place for place, byte in enumerate(data) if byte < 0x80) + 1
    read = kind.FromString(data[start:])
    assert (read.id, read.name, read.type, tuple(read.data_deps), read.duration_micros) == (*node[:3], node.data_deps, node.duration_micros)
    values = {each.name: getattr(each, each.WhichOneof("value")) for each in read.attr}
    assert json.dumps(values, sort_keys=True) == json.dumps(dict(node.attributes), sort_keys=True)
