"""Are the steps of a script timed and kept? Oracles: a loop whose batches are counted; the record it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.measure.machine_record import read_record
from calibration.steps import StepTimes
from sim.spec.yaml import SpecError


def test_a_loop_is_timed_and_its_batches_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with StepTimes(path, batch=32, warmup=2) as steps:
        assert list(steps(range(7))) == list(range(7))
    [row] = read_record(path).rows("script")
    assert (row["batch"], row["ranks"]) == (32, 1)
    [waits], [times] = row["wait_by_rank_s"], row["times_by_rank_s"]
    assert len(waits) == len(times) == 5 and all(0 <= wait <= time for wait, time in zip(waits, times, strict=True))
    assert read_record(path).state == "complete"


def test_scripts_are_kept_side_by_side_and_renewed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for name, count in (("one", 4), ("two", 5), ("one", 6)):
        with StepTimes(path, batch=8, name=name, warmup=0) as steps:
            assert len(list(steps(range(count)))) == count
    step_counts = {row["name"]: len(row["times_by_rank_s"][0]) for row in read_record(path).rows("script")}
    assert step_counts == {"one": 6, "two": 5}


def test_what_is_cut_short_is_kept_as_partial(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt), StepTimes(path, batch=8, warmup=0) as steps:
        for number in steps(range(10)):
            if number == 3:
                raise KeyboardInterrupt
    machine_record = read_record(path)
    assert (machine_record.state, machine_record.probes["script"].reason) == ("partial", "stopped: KeyboardInterrupt")
    assert len(machine_record.rows("script")[0]["times_by_rank_s"][0]) == 3


def test_a_loop_of_warm_up_alone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with StepTimes(path, batch=8) as steps:
        assert len(list(steps(range(2)))) == 2
    assert read_record(path).probes["script"].reason == "only the 3 warm-up steps ran"


def test_a_record_that_cannot_be_gone_on_with_is_told_before_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    with pytest.raises(SpecError, match="is not a machine record"), StepTimes(path, batch=8):
        raise AssertionError("the block has begun")
    with pytest.raises(SpecError, match="batch is 0"):
        StepTimes(path, batch=0)
