"""Are collectives asked of the right ranks and sizes, and timed? Oracles: the lists; a sweep on two ranks of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.cli import main
from calibration.measure.machine_record import read_record
from calibration.measure.probes.exchange import SIZES, SMALL_SIZES, exchange_questions, repetitions_and_calls
from calibration.measure.probes.probe import Bench
from calibration.measure.team import SpawnedTeam

pytestmark = pytest.mark.needs("torch")


def test_two_ranks_and_all_are_asked_from_8_bytes_to_256_megabytes(tmp_path: Path) -> None:
    bench = Bench("cuda", 1, 8, 0.1, tmp_path, SpawnedTeam(8, "cuda", 1), memory=4 * 2.0**30)
    rows = exchange_questions(bench)
    for ranks in (2, 8):
        sizes = [row["bytes"] for row in rows if (row["op"], row["ranks"]) == ("all_reduce", ranks) and "beside" not in row]
        assert sizes == list(SIZES) and sizes[0] == 8 and sizes[-1] == 2**28
        assert [row["bytes"] for row in rows if (row["op"], row["ranks"]) == ("all_gather", ranks)] == list(SMALL_SIZES)
    assert sum("beside" in row for row in rows) == 1


@pytest.mark.nightly
def test_a_sweep_on_two_ranks(tmp_path: Path) -> None:
    """Every question is answered; if products run during an exchange, they end no later than both together."""
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--quick", "--only", "all_reduce"]) == 0
    rows = read_record(path).rows("all_reduce")
    reduces = [row["bytes"] for row in rows if row["op"] == "all_reduce" and "beside" not in row]
    assert reduces == [size for size in SIZES[::2] if size <= max(reduces)] and max(reduces) >= 2**18
    assert all(time > 0 for row in rows for time in row["times_s"])
    beside = next(row for row in rows if "beside" in row)
    assert set(beside) >= {"exchange_s", "products_s", "beside_s", "times_s"}
    assert all(both >= part for both, part in zip(beside["times_s"], beside["beside_s"], strict=True))


@pytest.mark.parametrize(("once", "repetitions", "calls"), [(1e-4, 11, 200), (1e-3, 11, 22), (0.2, 11, 1), (0.5, 5, 1), (11.0, 3, 1)])
def test_slow_collectives_are_repeated_less(once: float, repetitions: int, calls: int) -> None:
    """A quarter of a second a question: eleven repetitions while they take ten times that at most, and never fewer than three."""
    assert repetitions_and_calls(once, 0.25) == (repetitions, calls)
