"""Oracles: the definitions of the units, exact messages, and linear interpolation over the logarithm of the size by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sim.spec import fields
from sim.spec.fields import curve_value
from sim.spec.hardware import NvLink
from sim.spec.sections import blocks


def read(kind: Any, value: object) -> Any:
    return TypeAdapter(kind).validate_python(value)


def complaint(kind: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        read(kind, value)
    return str(caught.value.errors()[0]["msg"]).removeprefix("Value error, ")


def test_quantities_are_read_in_si() -> None:
    assert read(fields.Bytes, "16 GiB") == 16 * 2**30
    assert read(fields.Bandwidth, "25 Gbps") == 3.125e9
    assert read(fields.Price, "36 USD/h") == pytest.approx(0.01)
    assert read(fields.Fraction, "84%") == pytest.approx(0.84)


MESSAGES = [
    (fields.Bytes, "-3 GiB", "'-3 GiB' is out of range; write a size zero or more"),
    (fields.Bandwidth, "0 Gbps", "'0 Gbps' is out of range; write a bandwidth above zero"),
    (fields.Fraction, 1.2, "1.2 is out of range; write a fraction between 0 and 1"),
    (fields.Fraction, "120%", "'120%' is out of range; write a fraction between 0 and 1"),
    (fields.Latency, 3, "the number 3 has no unit; write for example '30 us' (units: s, ms, us, ns, min, h, d)"),
    (fields.Seconds, "3", "'3' has no unit; write for example '20 ms' (units: s, ms, us, ns, min, h, d)"),
    (fields.Duration, 3, "the number 3 has no unit; write for example '1 h' (units: s, ms, us, ns, min, h, d)"),
    (fields.Count, 0, "0 is too small; write a whole number, 1 or more"),
    (fields.Whole, -1, "-1 is too small; write a whole number, zero or more"),
    (fields.Count, 2.5, "2.5 is not a whole number; write a whole number, 1 or more"),
    (fields.Count, "8", "'8' is not a whole number; write a whole number, 1 or more"),
    (fields.Count, True, "True is not a whole number; write a whole number, 1 or more"),
    (fields.Count, [1], "[1] is not a whole number; write a whole number, 1 or more"),
    (fields.Source, 3, "state where the numbers come from: one text, or one text per key of the block ('*' for the rest)"),
    (fields.Source, "  ", "state where the numbers come from: one text, or one text per key of the block ('*' for the rest)"),
    (fields.Source, {}, "state where the numbers come from: one text, or one text per key of the block ('*' for the rest)"),
    (fields.Source, {"a": 1}, "state where the numbers come from: one text, or one text per key of the block ('*' for the rest)"),
    (fields.Curve, "fast", "'fast' is not a curve; write a number, or a list of [size, value] points"),
    (fields.Curve, {"a": 1}, "{'a': 1} is not a curve; write a number, or a list of [size, value] points"),
    (fields.Curve, [3], "3 is not a [size, value] point, for example [1 MB, 0.8]"),
    (fields.Curve, [["x", 1]], "'x' is not the size of a point; write bytes, FLOP or time, for example 1 MB, 2 GFLOP or 10 us"),
    (fields.Curve, [], "the sizes of a curve's points must be above zero and increasing"),
    (fields.Curve, [[2, 0.1], [1, 0.2]], "the sizes of a curve's points must be above zero and increasing"),
    (fields.Curve, [[0, 0.1]], "the sizes of a curve's points must be above zero and increasing"),
    (fields.Curve, 0, "the values of a curve must be between 0 and 10"),
    (fields.Curve, [[1, -1]], "the values of a curve must be between 0 and 10"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "message"), MESSAGES, ids=range(len(MESSAGES)))
def test_messages_say_what_is_wrong_and_what_is_accepted(kind: Any, value: object, message: str) -> None:
    assert complaint(kind, value) == message


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert read(fields.Count, 1.0e6) == 1_000_000
    assert type(read(fields.Count, 1.0e6)) is int


def test_a_source_may_be_a_text_or_a_text_per_key() -> None:
    assert read(fields.Source, "datasheet") == "datasheet"
    assert read(fields.Source, {"*": "datasheet", "speed": "estimate (why)"}) == {"*": "datasheet", "speed": "estimate (why)"}


def test_sizes_of_curve_points_may_carry_units() -> None:
    assert read(fields.Curve, [["1 MB", 0.1], [1e9, 0.5]]) == ((1e6, 0.1), (1e9, 0.5))
    assert read(fields.Curve, [["1 GFLOP", "50%"]]) == ((1e9, 0.5),)
    assert read(fields.Curve, 0.7) == ((1.0, 0.7),)


def test_a_curve_is_linear_over_the_logarithm_of_size_and_flat_beyond_its_ends() -> None:
    curve = ((1e3, 0.2), (1e5, 0.6), (1e6, 0.5))
    expected = {1.0: 0.2, 1e3: 0.2, 1e4: 0.4, 1e5: 0.6, 10**5.5: 0.55, 1e6: 0.5, 1e12: 0.5}
    assert {size: curve_value(curve, size) for size in expected} == pytest.approx(expected)


@given(st.dictionaries(st.floats(1e-3, 1e15), st.floats(0.01, 9.9), min_size=1, max_size=6), st.floats(1e-6, 1e18))
def test_a_curve_never_leaves_the_span_of_its_points(points: dict[float, float], size: float) -> None:
    curve = tuple(sorted(points.items()))
    level = curve_value(curve, size)
    assert min(points.values()) * (1 - 1e-12) <= level <= max(points.values()) * (1 + 1e-12)
    assert math.isfinite(level)


def test_blocks_are_found_with_their_keys() -> None:
    wire = {"name": "wire", "bandwidth": "1 GB/s", "efficiency": 1.0, "nccl_bandwidth": "1 GB/s", "source": "tests"}
    nvlink = NvLink.model_validate({"link": wire, "pairs": {"0-1": 2}})
    assert list(blocks(nvlink, ("topology",))) == [(("topology",), nvlink), (("topology", "link"), nvlink.link)]
