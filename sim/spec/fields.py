"""Which kinds of value may stand in a description? Quantities with units, sources, curves; and the frozen base of all specs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from sim import units

Precision = Literal["fp32", "tf32", "amp_fp16", "amp_bf16", "fp16", "bf16", "fp8"]
OperatorClass = Literal["conv", "depthwise_conv", "gemm", "attention", "rnn", "norm", "elementwise", "pool", "softmax", "embedding", "loss"]


class Spec(BaseModel):
    """A frozen description; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=False)


def _quantity(dimension: str) -> Any:
    def read(value: object) -> float:
        try:
            return units.parse(value, dimension)
        except units.UnitError as error:
            raise ValueError(str(error)) from None

    schema: dict[str, Any] = {"type": "string", "description": f"a {dimension} with its unit; {units.accepted(dimension)}"}
    if dimension == "fraction":
        schema = {"type": ["number", "string"], "description": "a fraction such as 0.84 or '84 %'"}
    return (BeforeValidator(read), WithJsonSchema(schema))


def _bounded(check: Callable[[float], bool], rule: str) -> AfterValidator:
    def verify(value: float) -> float:
        if not check(value):
            raise ValueError(f"{value:g} is not {rule}")
        return value

    return AfterValidator(verify)


_positive = _bounded(lambda value: value > 0, "greater than zero")
_not_negative = _bounded(lambda value: value >= 0, "zero or more")

Seconds = Annotated[float, *_quantity("time"), _not_negative]
Bytes = Annotated[float, *_quantity("size"), _not_negative]
Bandwidth = Annotated[float, *_quantity("bandwidth"), _positive]
Work = Annotated[float, *_quantity("work"), _not_negative]
ComputeRate = Annotated[float, *_quantity("compute rate"), _positive]
TimePerByte = Annotated[float, *_quantity("time per byte"), _not_negative]
Frequency = Annotated[float, *_quantity("frequency"), _positive]
Rate = Annotated[float, *_quantity("rate"), _positive]
Price = Annotated[float, *_quantity("price"), _not_negative]
Power = Annotated[float, *_quantity("power"), _positive]
Fraction = Annotated[float, *_quantity("fraction"), _bounded(lambda value: 0 <= value <= 1, "between 0 and 1")]
Factor = Annotated[float, *_quantity("fraction"), _positive]
Count = Annotated[int, Field(gt=0)]
Whole = Annotated[int, Field(ge=0)]

Source = str | dict[str, str]
"""Where the numbers of a block come from: one text, or one text per key (``"*"`` for the rest). ``estimate (reason)`` marks a guess."""


def _curve(value: object) -> tuple[tuple[float, float], ...]:
    """Read a constant, or a list of ``[size, value]`` points with growing sizes."""
    if isinstance(value, tuple) and all(isinstance(point, tuple) for point in value):
        return value  # already read
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return ((1.0, units.parse(value, "fraction")),)
        except units.UnitError as error:
            raise ValueError(str(error)) from None
    if not isinstance(value, list) or not value:
        raise ValueError("a number, or a list of [size, value] points is due, for example [[1e6, 0.1], [1e9, 0.8]]")
    points = []
    for point in value:
        if not isinstance(point, list) or len(point) != 2:
            raise ValueError(f"{point!r} is not a [size, value] point")
        try:
            points.append((float(point[0]), float(point[1])))
        except (TypeError, ValueError):
            raise ValueError(f"{point!r} is not a [size, value] point of two numbers") from None
    sizes = [size for size, _ in points]
    if any(later <= earlier for earlier, later in zip(sizes, sizes[1:], strict=False)) or sizes[0] <= 0:
        raise ValueError("the sizes of a curve must be positive and grow from point to point")
    if any(not (0 < level < 10) for _, level in points):
        raise ValueError("the values of a curve must lie between 0 and 10")
    return tuple(points)


Curve = Annotated[
    tuple[tuple[float, float], ...],
    BeforeValidator(_curve),
    WithJsonSchema({"type": ["number", "string", "array"], "description": "a constant, or [[size, value], ...]"}),
]
"""A value that depends on size: constant, or interpolated over the logarithm of the size, flat beyond the ends."""


def at(curve: tuple[tuple[float, float], ...], size: float) -> float:
    """Return the value of *curve* at *size*."""
    index = bisect_left(curve, (size, -math.inf))
    if index == 0:
        return curve[0][1]
    if index == len(curve):
        return curve[-1][1]
    (size0, level0), (size1, level1) = curve[index - 1], curve[index]
    position = math.log(size / size0) / math.log(size1 / size0)
    return level0 + position * (level1 - level0)
