"""Oracles: samples and regrets by hand, memory of a whole simulated run, runs that need more or less than a GPU has."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from calibration.llm.__main__ import main
from calibration.llm.case import Case
from calibration.llm.choice import RankedRun, choice_document, choice_text, rank_runs, sample_sweeps, search_time
from calibration.llm.closed_form import predict
from calibration.llm.constants import fitted_constants
from calibration.llm.describe import describe
from calibration.llm.engine import memory_of, simulate_case
from calibration.llm.prediction import LlmPrediction
from calibration.llm.table import read_table
from tests.calibration.llm.tables import table


def cases(folder: Path, rows: Sequence[dict[str, str]]) -> list[Case]:
    described = [describe(row) for row in read_table(table(folder, list(rows)))]
    assert all(isinstance(case, Case) for case in described)
    return [case for case in described if isinstance(case, Case)]


def test_a_sample_is_taken_evenly_whatever_runs_took(tmp_path: Path) -> None:
    """Of 10 runs 5 are every second; a set of four is no sweep; the order of times changes nothing."""
    sweep = [{"set": "a", "step_time_s": str(10.0 + step)} for step in range(10)]
    every = cases(tmp_path, [*sweep, *[{"set": "b"}] * 4])
    (taken,) = sample_sweeps(every, 5).values()
    assert [case.measured for case in taken] == [10.0, 12.0, 14.0, 16.0, 18.0]
    (other,) = sample_sweeps([*every[9::-1], *every[10:]], 5).values()
    assert [case.measured for case in other] == [19.0, 17.0, 15.0, 13.0, 11.0]
    assert list(map(len, sample_sweeps(every, 20).values())) == [10]


def test_regret_by_hand(tmp_path: Path) -> None:
    """Of steps of 10 to 14 s the least by the simulator is the second, by the closed form a tie of which the slower counts."""
    every = cases(tmp_path, [{"step_time_s": str(10.0 + step)} for step in range(5)])
    simulator, closed = (3.0, 2.0, 4.0, 5.0, 7.0), (1.0, 2.0, 1.0, 5.0, 6.0)
    rows = [
        RankedRun(case, *(LlmPrediction(time, 1.0, "fits") for time in times))
        for case, *times in zip(every, simulator, closed, strict=True)
    ]
    document = choice_document({("sweep",): rows})
    assert document["simulator"]["regret_median"] == pytest.approx(0.1)
    assert document["simulator"]["kendall_tau_median"] == pytest.approx(8 / 10)
    assert document["closed_form"]["regret_median"] == pytest.approx(0.2)
    assert document["chance"]["regret_median"] == pytest.approx(0.2)
    assert (document["closed_form"]["above_10_percent"], document["runs"]) == (1, 5)
    assert "tau 0.80" in choice_text(document)
    rows[1] = rows[1]._replace(simulated=LlmPrediction(2.0, 1.0, "thrashes"))
    assert choice_document({("sweep",): rows})["as_searched"]["regret_median"] == pytest.approx(0.0)
    assert [search_time(LlmPrediction(2.0, 1.0, verdict)) for verdict in ("fits", "thrashes", "does_not_fit")] == [2.0, 6.0, math.inf]


def test_runs_are_ranked_as_they_are_simulated(tmp_path: Path) -> None:
    """Oracles: the simulated step itself; memory asked alone is that of the simulated run."""
    (case,) = cases(tmp_path, [{}])
    constants = fitted_constants(case.row.source).constants
    run = simulate_case(case, constants)
    alone = memory_of(case)
    assert (alone.nbytes, alone.verdict) == (run.memory_peak_bytes, run.memory_verdict)
    progress: list[int] = []

    def played(one: Case, at: object) -> LlmPrediction:
        return LlmPrediction(run.step_time, run.memory_peak_bytes, run.memory_verdict)

    (ranked_run,) = rank_runs([case], played, lambda: progress.append(1))
    assert ranked_run.simulated.step_time == run.step_time and len(progress) == 1


def test_failed_runs_that_would_be_proposed_are_listed(tmp_path: Path) -> None:
    """A batch that no GPU holds is not proposed; one that surely fits is, and counts as a crash."""
    small, large = cases(tmp_path, [{"seq_len": "2048"}, {"micro_batch": "512", "global_batch": "4096"}])
    predicted = [(case, predict(case, fitted_constants(case.row.source).constants)) for case in (small, large)]
    failed = choice_document({}, predicted)["failed"]
    assert (failed["runs"], failed["does_not_fit"]) == (2, 1)
    assert [one["line"] for one in failed["proposed"]] == [small.row.line]
    assert failed["fit_below_30_GiB"] == (predicted[0][1].memory < 30 * 2**30)


def test_the_command_lists_failed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, [{"seq_len": "2048"}, {"micro_batch": "512", "global_batch": "4096"}])
    monkeypatch.setattr("sys.argv", ["calibration.llm", "--failed", str(path), "--json"])
    main()
    document = json.loads(capsys.readouterr().out)
    assert (document["failed"]["runs"], document["runs"], len(document["failed"]["proposed"])) == (2, 0, 1)
    monkeypatch.setattr("sys.argv", ["calibration.llm", "--failed", str(path)])
    main()
    assert "2 failed runs: 1 do not fit" in capsys.readouterr().out
