"""Which kinds of value may a description contain? Quantities with units, sources, curves; and the frozen base class of all specs."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sim import units

Key = tuple[str | int, ...]
"""Path of a value inside a description, for example ``("node", "nic", "bandwidth")``."""

Precision = Literal["fp32", "tf32", "amp_fp16", "amp_bf16", "fp16", "bf16", "fp8", "nvfp4"]
OperatorClass = Literal[
    "conv",
    "pointwise_conv",
    "direct_conv",
    "depthwise_conv",
    "gemm",
    "attention",
    "scan",
    "delta_scan",
    "causal_conv",
    "rnn",
    "norm",
    "elementwise",
    "pool",
    "softmax",
    "embedding",
    "loss",
]
CONVOLUTIONS: tuple[OperatorClass, ...] = ("conv", "pointwise_conv", "direct_conv", "depthwise_conv")
SCANS: frozenset[OperatorClass] = frozenset({"scan", "delta_scan"})
"""Chunked scans: those of Mamba-2, and of gated delta rules."""


Peak = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]
"""Arithmetic units of a GPU, by the data type that they multiply."""
Fp8Recipe = Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"]
"""How FP8 tensors are scaled, by the names of Transformer Engine, Megatron-LM and torchtitan."""
Dtype = Literal["fp64", "fp32", "fp16", "bf16", "fp8", "int8", "complex64"]


def _one_line(name: str) -> str:
    if not name.strip():
        raise ValueError("is empty; write a name")
    if not name.isprintable():
        raise ValueError("has a line break or another control character; write a name on one line")
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"has {len(name):,} characters; write a name of at most {_LONGEST_NAME}")
    return name


_LONGEST_NAME = 200
"""Characters of the longest name: files and titles are named after it."""
Label = Annotated[str, AfterValidator(_one_line)]
"""The name of a description, which reports print in one line."""


class Spec(BaseModel):
    """Base class of all descriptions: frozen; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


@dataclass(frozen=True)
class Dimension:
    """Marks a field as a quantity with this dimension of ``sim.units``."""

    name: str


class Reader:
    """Reads the value of a field with *read*, and describes it by *json_schema*; error messages say 'write' and its description.

    The same as pydantic's BeforeValidator and WithJsonSchema, but without inspecting the signature of *read* for each of 300 fields.
    """

    def __init__(self, read: Callable[[object], Any], json_schema: Mapping[str, Any]) -> None:
        self.read = read
        self.json_schema = json_schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.json_schema)


def _quantity(dimension: str, fits: Callable[[float], bool], rule: str, usual: str = "") -> Any:
    def read(value: object) -> float:
        try:
            number = units.parse(value, dimension, usual)
        except units.UnitError as error:
            raise ValueError(str(error)) from None
        if not fits(number):
            raise ValueError(f"{units.shorten(value)} is out of range; write a {dimension} {rule}")
        return number

    kind: dict[str, Any] = {"type": ["number", "string"]} if dimension == "fraction" else {"type": "string", "pattern": "^ *[-+.0-9]"}
    return (
        Reader(read, kind | {"description": f"a {dimension} {rule}, for example {units.example(dimension, usual)}"}),
        Dimension(dimension),
    )


def _above_zero(value: float) -> bool:
    return value > 0


def _not_negative(value: float) -> bool:
    return value >= 0


_MOST = 10**15
"""Upper limit of whole numbers: beyond it, sums of bytes and FLOP are no longer exact."""


def _whole(least: int, most: int = _MOST) -> Any:
    rule = "zero or more" if least == 0 else f"{least} or more"

    def read(value: object) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, bool) or not isinstance(number, int):
            ambiguous = units.ambiguous_count(value) if isinstance(value, str) else ""
            raise ValueError(f"{units.shorten(value)} {ambiguous or f'is not a whole number; write a whole number, {rule}'}")
        if number < least:
            raise ValueError(f"{number} is too small; write a whole number, {rule}")
        if number > most:
            raise ValueError(f"{units.shorten(number)} is too large; write a whole number up to {most:,}")
        return number

    return Reader(read, {"type": "integer", "minimum": least, "description": f"a whole number, {rule}"})


Latency = Annotated[float, *_quantity("time", _not_negative, "zero or more", "30 us")]
"""Time of a kernel, a launch or a message."""
Seconds = Annotated[float, *_quantity("time", _not_negative, "zero or more", "20 ms")]
"""Time of a sample, a step, or the start of something."""
Duration = Annotated[float, *_quantity("time", _not_negative, "zero or more", "1 h")]
"""Time of a stop, a repair or a machine's life."""


def _least_first(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError("the shorter time must come first; for example, write [30 s, 10 min]")
    return span


Span = Annotated[
    tuple[Duration, Duration],
    Field(description="the shortest and the longest time, for example [30 s, 10 min]"),
    AfterValidator(_least_first),
]
"""A time that is drawn uniformly between two values."""
Bytes = Annotated[float, *_quantity("size", _not_negative, "zero or more")]
Bandwidth = Annotated[float, *_quantity("bandwidth", _above_zero, "above zero")]
WorkQuantity = Annotated[float, *_quantity("work", _not_negative, "zero or more")]
ComputeRate = Annotated[float, *_quantity("compute rate", _above_zero, "above zero")]
TimePerByte = Annotated[float, *_quantity("time per byte", _not_negative, "zero or more")]
Frequency = Annotated[float, *_quantity("frequency", _above_zero, "above zero")]
Rate = Annotated[float, *_quantity("rate", _above_zero, "above zero")]
Price = Annotated[float, *_quantity("price", _not_negative, "zero or more")]
FailureRate = Annotated[float, *_quantity("failure rate", _not_negative, "zero or more")]
CarbonIntensity = Annotated[float, *_quantity("carbon intensity", _not_negative, "zero or more")]
Power = Annotated[float, *_quantity("power", _above_zero, "above zero")]
Fraction = Annotated[float, *_quantity("fraction", lambda value: 0 <= value <= 1, "between 0 and 1")]
Share = Annotated[float, *_quantity("fraction", lambda value: 0 < value <= 1, "above zero, at most 1")]
Factor = Annotated[float, *_quantity("fraction", _above_zero, "above zero")]
Count = Annotated[int, _whole(1)]
Whole = Annotated[int, _whole(0)]
Depth = Annotated[int, _whole(1, 10_000)]
"""Number of layers of a model; limited because each one is processed individually."""
Devices = Annotated[int, _whole(0, 4096)]
"""Number of devices in one node; limited because each one is drawn and linked to others."""
Trays = Annotated[int, _whole(1, 256)]
"""Number of machines that NVLink joins; limited as `Devices` is."""

_SPAN = re.compile(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?")


def _numbers(value: object) -> tuple[tuple[int, int], ...]:
    """Read a number, ``A..B`` (both included), or a list or ``+``-joined text of these, as spans (first, last)."""
    if isinstance(value, tuple):
        return value  # already read
    parts = value if isinstance(value, list) else value.split("+") if isinstance(value, str) else [value]
    if not parts:
        raise ValueError("is empty; write a number of 0 or more, a range such as 4..7, or a list of these")
    return tuple(_span(part) for part in parts)


def _span(part: object) -> tuple[int, int]:
    match = _SPAN.fullmatch(str(part)) if isinstance(part, str | int) and not isinstance(part, bool) else None
    if match is None:
        raise ValueError(f"{units.shorten(part)} is neither a number of 0 or more nor a range; for example, write 3, 4..7 or [0, 4..7]")
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    if last < first:
        raise ValueError(f"{first}..{last} is decreasing; write {last}..{first}")
    return first, last


Numbers = Annotated[
    tuple[tuple[int, int], ...],
    Reader(_numbers, {"type": ["integer", "string", "array"], "description": "numbers of 0 or more: 3, 4..7 (both included), or a list"}),
]
"""Numbers of nodes, GPUs and the like, as spans (first, last), both included."""


def _counts(value: object) -> object:
    """Read the number of GPUs on each node; a single number needs no quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Counts = Annotated[str, Reader(_counts, {"type": ["integer", "string"], "description": "GPUs of each node, such as 4 or 1+2"})]
"""Number of GPUs on each node in turn."""


def _source(value: object) -> object:
    """Check that *value* states where numbers come from."""
    texts = list(value.values()) if isinstance(value, dict) else [value]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError("state where the numbers come from: one text, or one text per key of the block ('*' for the rest)")
    return value


Source = Annotated[
    str | dict[str, str],
    Reader(
        _source,
        {
            "type": ["string", "object"],
            "additionalProperties": {"type": "string"},
            "description": "where the numbers come from: a text, or one text per key; 'estimate (reason)' marks a guess",
        },
    ),
]
"""Where the numbers of a block come from: one text, or one text per key (``"*"`` for the rest). ``estimate (reason)`` marks a guess."""


def _curve(value: object) -> tuple[tuple[float, float], ...]:
    """Read a constant, or a list of ``[size, value]`` points with increasing sizes; a size may have a unit of bytes, FLOP or time."""
    if isinstance(value, tuple) and value and all(isinstance(point, tuple) and len(point) == 2 for point in value):
        return value  # already read
    points = tuple(_point(point) for point in value) if isinstance(value, list) else ((1.0, _level(value)),)
    sizes = [size for size, _ in points]
    if not points or sizes[0] <= 0 or any(later <= earlier for earlier, later in pairwise(sizes)):
        raise ValueError("the sizes of a curve's points must be above zero and increasing")
    if any(not (0 < level < 10) for _, level in points):
        raise ValueError("the values of a curve must be between 0 and 10")
    return points


def _point(point: object) -> tuple[float, float]:
    if not isinstance(point, list) or len(point) != 2:
        raise ValueError(f"{units.shorten(point)} is not a [size, value] point, for example [1 MB, 0.8]")
    return _size(point[0]), _level(point[1])


def _size(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and (size := _size_of(value)) is not None:
        return size
    raise ValueError(f"{units.shorten(value)} is not the size of a point; write bytes, FLOP or time, for example 1 MB, 2 GFLOP or 10 us")


@lru_cache(maxsize=1024)
def _size_of(text: str) -> float | None:
    for dimension in ("size", "work", "time"):
        with suppress(units.UnitError):
            return units.parse(text, dimension)
    return None


def _level(value: object) -> float:
    try:
        return units.parse(value, "fraction")
    except units.UnitError:
        raise ValueError(f"{units.shorten(value)} is not a curve; write a number, or a list of [size, value] points") from None


Curve = Annotated[
    tuple[tuple[float, float], ...],
    Reader(_curve, {"type": ["number", "string", "array"], "description": "a number, or a list of [size, value] points"}),
]
"""A value that depends on a size: constant, or interpolated over the logarithm of the size and constant beyond the ends."""


def curve_value(curve: tuple[tuple[float, float], ...], size: float) -> float:
    """Return the value of *curve* at *size*."""
    index = bisect_left(curve, (size, -math.inf))
    if index == 0:
        return curve[0][1]
    if index == len(curve):
        return curve[-1][1]
    (size0, level0), (size1, level1) = curve[index - 1], curve[index]
    position = math.log(size / size0) / math.log(size1 / size0)
    return level0 + position * (level1 - level0)
