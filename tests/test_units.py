"""Oracles: the definitions of the units, and that what `show` writes reads back as the same number to its last digit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import units

MEANINGS = [
    ("25 Gbps", "bandwidth", 25e9 / 8),
    ("25Gbps", "bandwidth", 25e9 / 8),
    ("200 Gbit/s", "bandwidth", 25e9),
    ("3.2 Tbps", "bandwidth", 4e11),
    ("10 GB/s", "bandwidth", 1e10),
    ("250 MiB/s", "bandwidth", 250 * 2**20),
    ("16 GiB", "size", 16 * 2**30),
    ("16 GB", "size", 16e9),
    ("256 KiB", "size", 2**18),
    ("5 KB", "size", 5e3),
    ("5 kB", "size", 5e3),
    ("30 us", "time", 30e-6),
    ("  30   us ", "time", 30e-6),
    ("1.5 h", "time", 5400.0),
    ("2 d", "time", 172800.0),
    ("15.7 TFLOP/s", "compute rate", 15.7e12),
    ("15.7 TFLOPS", "compute rate", 15.7e12),
    ("236027904 FLOP", "work", 236027904.0),
    ("4.1 GFLOP", "work", 4.1e9),
    ("2.7 GHz", "frequency", 2.7e9),
    ("3000 IOPS", "rate", 3000.0),
    ("1,234.5 GB", "size", 1234.5e9),
    ("80 kIOPS", "rate", 80e3),
    ("5 1/s", "rate", 5.0),
    ("36 USD/h", "price", 0.01),
    ("300 W", "power", 300.0),
    ("0.45 s/GB", "time per byte", 0.45e-9),
    ("84%", "fraction", 0.84),
    ("0.84", "fraction", 0.84),
    (0.84, "fraction", 0.84),
    (1, "fraction", 1.0),
    ("1_000 MB", "size", 1e9),
    ("1e3 MB", "size", 1e9),
    (".5 GB", "size", 5e8),
    ("-3 GB", "size", -3e9),
]


@pytest.mark.parametrize(("text", "dimension", "meaning"), MEANINGS)
def test_a_quantity_means_its_definition(text: object, dimension: str, meaning: float) -> None:
    assert units.parse(text, dimension) == pytest.approx(meaning, rel=1e-12)


def test_short_decimals_stay_what_they_are() -> None:
    assert units.parse("10 us", "time") == 1e-5
    assert units.parse("84%", "fraction") == 0.84
    assert units.parse("0.3 ms", "time") == 0.0003


SIZES = "write for example '16 GiB' (units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)"
BANDWIDTHS = "write for example '25 Gbps' (units: Mbps, Gbps are bits, MB/s, GB/s, MiB/s, GiB/s bytes)"
COMPLAINTS = [
    (3, "bandwidth", f"the number 3 has no unit; {BANDWIDTHS}"),
    ("1,5 Gbps", "bandwidth", f"'1,5 Gbps' is not a bandwidth; {BANDWIDTHS}"),
    ("3", "bandwidth", f"'3' has no unit; {BANDWIDTHS}"),
    ("3 GB", "bandwidth", f"'GB' is a unit of size, expected a bandwidth; {BANDWIDTHS}"),
    ("3 gbps", "bandwidth", f"unknown unit 'gbps' (did you mean Gbps?), expected a bandwidth; {BANDWIDTHS}"),
    ("10 Gb/s", "bandwidth", f"unknown unit 'Gb/s' (did you mean Gbps?), expected a bandwidth; {BANDWIDTHS}"),
    ("10 GbE", "bandwidth", f"unknown unit 'GbE' (did you mean Gbps?), expected a bandwidth; {BANDWIDTHS}"),
    ("10 Gbit", "bandwidth", f"unknown unit 'Gbit' (did you mean Gbps?), expected a bandwidth; {BANDWIDTHS}"),
    ("10 gb/s", "bandwidth", f"unknown unit 'gb/s' (did you mean Gbps or GB/s?), expected a bandwidth; {BANDWIDTHS}"),
    ("10 GBps", "bandwidth", f"unknown unit 'GBps' (did you mean GB/s?), expected a bandwidth; {BANDWIDTHS}"),
    ("GB", "size", f"'GB' is not a size; {SIZES}"),
    ("", "size", f"'' is not a size; {SIZES}"),
    ("1,5 GB", "size", f"'1,5 GB' is not a size; {SIZES}"),
    ("1_ GB", "size", f"'1_ GB' is not a size; {SIZES}"),
    ("1__0 GB", "size", f"'1__0 GB' is not a size; {SIZES}"),
    ("nan GB", "size", f"'nan GB' is not a size; {SIZES}"),
    ("1e999 GB", "size", "'1e999 GB' is not a finite number"),
    (True, "size", f"expected a size, not True; {SIZES}"),
    (None, "size", f"expected a size, not null; {SIZES}"),
    ([16, "GiB"], "size", f"expected a size, not [16, 'GiB']; {SIZES}"),
    (math.nan, "fraction", "nan is not a finite number"),
    (10**400, "fraction", "1000000000000000000000000000000000000... is too large for a fraction"),
    (10**5000, "fraction", "an enormous number is too large for a fraction"),
    ("x" * 100, "time", f"'{'x' * 36}... is not a time; write for example '20 ms' (units: s, ms, us, ns, min, h, d)"),
]


@pytest.mark.parametrize(("value", "dimension", "message"), COMPLAINTS, ids=range(len(COMPLAINTS)))
def test_what_is_no_quantity_is_refused_with_what_is_accepted(value: object, dimension: str, message: str) -> None:
    with pytest.raises(units.UnitError) as caught:
        units.parse(value, dimension)
    assert str(caught.value) == message


@pytest.mark.parametrize("dimension", units.UNITS)
def test_every_unit_stands_for_its_factor_and_examples_are_valid(dimension: str) -> None:
    for unit, factor in units.UNITS[dimension].items():
        assert units.parse(f"1 {unit}", dimension) == pytest.approx(factor, rel=1e-15)
    example = units.example(dimension).split("'")[1]
    assert units.parse(example, dimension) > 0


SHOWN = [
    (25e9 / 8, "bit rate", "25 Gbps"),
    (999.9e9, "bandwidth", "1 TB/s"),
    (12.34e9, "bandwidth", "12.3 GB/s"),
    (16 * 2**30, "binary size", "16 GiB"),
    (16e9, "size", "16 GB"),
    (0.0, "time", "0 s"),
    (0.99996, "time", "1 s"),
    (1e-12, "time", "0.001 ns"),
    (4.2e-4, "time", "420 µs"),
    (5400.0, "time", "1.5 h"),
    (1e7, "time", "2,778 h"),
    (24.48 / 3600, "price", "24.5 USD/h"),
    (123456789.0, "rate", "123,456,789 /s"),
    (-3e9, "size", "-3 GB"),
    (0.5, "fraction", "50%"),
]


@pytest.mark.parametrize(("value", "dimension", "text"), SHOWN)
def test_a_number_is_shown_in_the_largest_fitting_unit(value: float, dimension: str, text: str) -> None:
    assert units.show(value, dimension) == text


PARSED = {"binary size": "size", "bit rate": "bandwidth"}


@given(st.sampled_from(["time", "size", "binary size", "bandwidth", "bit rate", "work", "compute rate", "frequency", "price", "fraction"]),
       st.floats(1e-6, 1e15), st.integers(2, 8))  # fmt: skip
def test_what_is_shown_reads_back_to_its_last_digit(dimension: str, value: float, digits: int) -> None:
    text = units.show(value, dimension, digits)
    again = units.parse(text, PARSED.get(dimension, dimension))
    assert again == pytest.approx(value, rel=0.5001 * 10.0 ** (1 - digits))


@given(st.text() | st.from_regex(r"[-+0-9._eE ]{0,8}[A-Za-z/%0-9 ]{0,6}"), st.sampled_from(sorted(units.UNITS)))
def test_any_text_is_a_finite_number_or_a_unit_error(text: str, dimension: str) -> None:
    try:
        assert math.isfinite(units.parse(text, dimension))
    except units.UnitError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [
        ([8.0, 9.0, 112.0], "seconds"),
        ([59.0], "seconds"),
        ([60.0], "minutes"),
        ([5.0, 203.0, 3e5], "minutes"),
        ([3600.0, 7200.0], "hours"),
        ([], "seconds"),
    ],
)
def test_an_axis_of_times_has_the_unit_that_half_of_them_reach(seconds: list[float], unit: str) -> None:
    name, length = units.axis_unit(seconds)
    assert (name, length) == (unit, {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}[unit])


def test_choices_are_said_as_one_reads_them() -> None:
    assert [units.any_of(numbers) for numbers in ((1,), (1, 2), (1, 2, 4))] == ["1", "1 or 2", "1, 2 or 4"]


@pytest.mark.parametrize(
    ("usd", "text"),
    [(1234.5, "1,234.50"), (0.1, "0.10"), (0.0999, "0.10"), (0.05, "0.05"), (0.0123, "0.012"), (0.0003, "0.0003"), (3.14e-7, "0.00000031"),
     (0.0, "0.00"), (-0.0003, "-0.0003")],
)  # fmt: skip
def test_costs_below_a_cent_keep_their_digits(usd: float, text: str) -> None:
    assert units.dollars(usd) == text


@given(st.floats(1e-12, 1e12))
def test_amounts_read_back_to_two_digits(usd: float) -> None:
    assert float(units.dollars(usd).replace(",", "")) == pytest.approx(usd, rel=0.055)


def test_predicted_amounts_have_three_digits_from_100_on() -> None:
    """Oracle: by hand; cents below, as in prices."""
    amounts = {0.0003: "0.0003", 4.944: "4.94", 99.99: "99.99", 99.996: "100", 437.2: "437", 999.7: "1,000", 27_853_155.27: "27,900,000"}
    assert {usd: units.rounded_dollars(usd) for usd in amounts} == amounts
    assert units.rounded_dollars(-7434.1) == "-7,430"


def test_the_order_of_a_sum_changes_no_text() -> None:
    """Layouts of equal steps: 124.5 ms, summed in other orders, were 124 and 125."""
    sums = (0.12449999999999989, 0.1245, 0.12450000000000006, 0.12450000000000011)
    assert len({units.show(each, "time") for each in sums}) == 1
    assert units.rounded(123_456_789_012.0) == "123,456,789,012"


@pytest.mark.parametrize("text", ["2.10 USD/GPU-hour", "2.10 USD/GPU/h", "2.10 USD per GPU"])
def test_a_price_per_gpu_is_refused_in_favor_of_the_node_s(text: str) -> None:
    with pytest.raises(units.UnitError, match=r"is the price of a GPU; write that of a node with all its GPUs, for example '24\.48 USD/h'"):
        units.parse(text, "price")
