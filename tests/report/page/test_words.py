"""Are figures said as readers expect? Oracles: figures written down by hand."""

from __future__ import annotations

import pytest

from sim.report.page.words import as_expected, as_money, as_number, as_plain, as_price, as_rate, as_tenths, as_time, unbroken
from sim.units import pluralized


def test_numbers_stay_with_their_units() -> None:
    assert unbroken("at 3,117 samples/s, 61% of 302 ms") == "at 3,117\u00a0samples/s, 61% of 302\u00a0ms"
    assert unbroken("1 GiB in 2 h") == "1\u00a0GiB in 2\u00a0h"
    assert unbroken("Rent 4 x p3.2xlarge") == "Rent 4\u00a0x\u00a0p3.2xlarge"
    assert unbroken("2 nodes and 8 GPUs") == "2 nodes and 8 GPUs"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (as_money(11.417), "$11.42"), (as_money(0.3), "$0.30"), (as_money(0.00234), "$0.0023"), (as_price(24.48), "$24.48/h"),
        (as_time(0.25), "250 ms"), (as_number(1079518.4), "1,079,518"), (as_rate(2547.3), "2,547 samples/s"), (as_tenths(13.97), "14.0"),
       
        (as_expected(0.4525), "0.45"), (as_expected(0.0), "0"), (as_expected(12.6), "13"),
        (as_plain(0.5), "0.5"), (as_plain(4.0), "4"), (pluralized(1, "GPU"), "1 GPU"), (pluralized(2, "GPU"), "2 GPUs"),
        (pluralized(0, "GPU"), "0 GPUs"),
    ],
)  # fmt: skip
def test_figures_are_said_with_their_unit(said: str, words: str) -> None:
    assert said == words
