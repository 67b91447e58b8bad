"""Oracles: factors, votes and errors by hand, and a page and a summary that are written from a handful of runs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pandas as pd
import pytest

from calibration import FOLDER
from calibration.llm import closed_form, engine
from calibration.llm.case import Case
from calibration.llm.constants import fitted_constants
from calibration.llm.published import PAGE, factor_table, factors_of_others, publish, scored_runs, step_table
from calibration.llm.published_runs import PREDICTIONS, kept_steps
from calibration.llm.simulated import SimulatedRun, simulated_runs
from calibration.llm.table import repository
from sim.report.layouts.layout_error import SUMMARY
from sim.spec.yaml import SpecError
from tests.calibration.llm.test_choice import cases


def runs_of(folder: Path, steps: Sequence[tuple[str, float, float, float]]) -> list[SimulatedRun]:
    """Return runs of (source, measured, simulated, computed seconds)."""
    rows = [{"source": source, "step_time_s": str(measured)} for source, measured, _, _ in steps]
    return [SimulatedRun(case, step, compute) for case, (_, _, step, compute) in zip(cases(folder, rows), steps, strict=True)]


def test_each_source_gets_the_factor_that_the_others_ask_for(tmp_path: Path) -> None:
    """Of steps of 10 s, 8 s are compute, so 12 s need a factor of 1.25, 14 s 1.5, 10 s 1; one vote per source, however many rows it
    has."""
    steps = [("a/a", 12.0, 10.0, 8.0), ("b/b", 14.0, 10.0, 8.0), ("b/b", 14.0, 10.0, 8.0), ("c/c", 10.0, 10.0, 8.0)]
    runs = runs_of(tmp_path, steps)
    assert factors_of_others(runs) == pytest.approx({("a/a", "hopper"): 1.25, ("b/b", "hopper"): 1.125, ("c/c", "hopper"): 1.375})
    assert factors_of_others(runs[:1]) == {("a/a", "hopper"): 1.0}
    first = scored_runs(runs)[0]
    closed = closed_form.predict(runs[0].case, fitted_constants("a/a").constants).step_time
    assert first.step_times["simulator"] == pytest.approx(10.0 + 0.25 * 8.0)
    assert first.step_times["both"] == pytest.approx(sqrt(closed * 12.0)) == pytest.approx(first.step_times["predicted"])


def test_two_other_sources_speak_for_a_generation(tmp_path: Path) -> None:
    """H100s of three sources need 1.25, A100s of three need 1, and each uses those of its generation; one source with a B200 uses all."""
    rows = [{"source": f"{name}/{name}", "step_time_s": "12.0"} for name in "abc"]
    rows += [{"source": f"{name}/{name}", "step_time_s": "10.0", "gpu": "A100 80GB"} for name in "efg"]
    rows += [{"source": "i/i", "step_time_s": "11.0", "gpu": "B200"}]
    factors = factors_of_others([SimulatedRun(case, 10.0, 8.0) for case in cases(tmp_path, rows)])
    assert {factors[f"{name}/{name}", "hopper"] for name in "abc"} == {1.25}
    assert {factors[f"{name}/{name}", "ampere"] for name in "efg"} == {1.0}
    assert factors["i/i", "blackwell"] == pytest.approx(1.125)
    assert "a hopper                                1   1.25   1.25" in factor_table(
        [SimulatedRun(case, 10.0, 8.0) for case in cases(tmp_path, rows)]
    )


def test_mixtures_of_experts_have_no_vote_but_hear_the_others(tmp_path: Path) -> None:
    """a/a's mixture would need 2.25, its dense model needs 1; b/b has only a mixture; all use the dense models of other sources."""
    rows = [{"source": "a/a", "step_time_s": "20.0", "model": "mixtral-8x7b"}, {"source": "a/a", "step_time_s": "10.0"}]
    rows += [{"source": "b/b", "step_time_s": "20.0", "model": "mixtral-8x7b"}, {"source": "c/c", "step_time_s": "12.0"}]
    runs = [SimulatedRun(case, 10.0, 8.0) for case in cases(tmp_path, rows)]
    assert [bool(run.case.shape.experts) for run in runs] == [True, False, True, False]
    assert factors_of_others(runs) == pytest.approx({("a/a", "hopper"): 1.25, ("b/b", "hopper"): 1.125, ("c/c", "hopper"): 1.0})
    assert "b hopper" not in factor_table(runs)


def test_the_table_votes_by_source(tmp_path: Path) -> None:
    """Runs of two sources that are 10 and 30% off come to 20%, though one has twice as many."""
    rows = scored_runs(runs_of(tmp_path, [("a/a", 10.0, 10.0, 8.0)] * 20 + [("b/b", 10.0, 10.0, 8.0)] * 10))
    rows = [replace(row, step_times={**row.step_times, "simulator": 11.0 if row.case.row.source == "a/a" else 13.0}) for row in rows]
    text = step_table(rows)
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "10.0 / 10.0" in lines["a/a"] and "30.0 / 30.0" in lines["b/b"]
    assert "20.0 / 20.0" in lines["one vote per source"]
    assert max(map(len, text.splitlines())) < 110


def test_page_and_summary_are_written(tmp_path: Path) -> None:
    described: list[Case] = cases(tmp_path, [{"step_time_s": str(9.0 + number)} for number in range(6)])
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / SUMMARY).parent.mkdir(parents=True)
    (tmp_path / PREDICTIONS).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text("before\n<!-- validated -->\nof last year\n<!-- end -->\nbehind\n", encoding="utf-8")
    progress: list[tuple[int, int]] = []
    used = publish(described, lambda done, of: progress.append((done, of)), 1, tmp_path)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert used == {"predicted": 6, "refused": 0, "quoted": 6}
    assert progress == [(1, 1)]  # the six runs differ in what was measured only
    assert page.startswith("before\n<!-- validated -->\n```\n") and page.endswith("<!-- end -->\nbehind\n") and "of last year" not in page
    groups = json.loads((tmp_path / SUMMARY).read_text(encoding="utf-8"))["groups"]
    simulated = engine.predict(described[0], fitted_constants(described[0].row.source).constants).step_time
    assert next(iter(groups.values()))["high"] == pytest.approx(14.0 / simulated, rel=0.03)
    rows = list(csv.DictReader((tmp_path / PREDICTIONS).read_text(encoding="utf-8").splitlines()))
    assert [float(row["step_time_s"]) for row in rows] == [case.measured for case in described]
    assert {float(row["simulated_s"]) for row in rows} == {simulated}
    for row in rows:
        assert float(row["predicted_s"]) == pytest.approx(sqrt(float(row["closed_form_s"]) * float(row["simulator_s"])), rel=1e-4)
        assert float(row["low95_s"]) < float(row["closed_form_s"]) < float(row["high95_s"])


def test_kept_steps_are_those_of_equal_machines_and_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page written again simulates nothing; a run with another sequence length is simulated."""
    before = cases(tmp_path, [{"step_time_s": "9.0"}, {"step_time_s": "10.0"}])
    for file in (PAGE, SUMMARY, PREDICTIONS):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / PAGE).write_text("<!-- validated -->\n<!-- end -->\n", encoding="utf-8")
    publish(before, lambda done, of: None, 1, tmp_path)
    written = [(tmp_path / file).read_text(encoding="utf-8") for file in (PAGE, PREDICTIONS)]
    after = [*before, *cases(tmp_path, [{"step_time_s": "9.0", "seq_len": "1024"}])]
    kept = kept_steps(tmp_path / PREDICTIONS)
    simulated: list[int] = []
    new = simulated_runs(after, lambda done, of: simulated.append(of), 1, kept)
    assert simulated == [1] and new[0].step == new[1].step != new[2].step
    monkeypatch.setattr(engine, "simulate_case", None)
    publish(before, lambda done, of: None, 1, tmp_path, keep_steps=True)
    assert [(tmp_path / file).read_text(encoding="utf-8") for file in (PAGE, PREDICTIONS)] == written


def test_kept_steps_need_a_file_with_steps(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="without --keep-steps, all runs are simulated"):
        kept_steps(tmp_path / "predictions.csv")
    (tmp_path / "predictions.csv").write_text("line,simulated_s\n2,1.5\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"predictions.csv:2: has no simulated step"):
        kept_steps(tmp_path / "predictions.csv")


def test_the_page_follows_from_the_predictions_of_every_run() -> None:
    """Oracle: medians, 90th percentiles, biases and shares inside, computed by pandas from the file of predictions."""
    table = pd.read_csv(FOLDER.parent / PREDICTIONS)
    lines = (FOLDER.parent / PAGE).read_text(encoding="utf-8").splitlines()
    table["repository"] = table["source"].map(repository)
    shown = 0
    for source, runs in table.groupby("repository"):
        line = next((line for line in lines if line.startswith(f"{source[-34:]} ") and line.count("/") >= 4), None)
        if line is None:  # pooled with others
            continue
        off = {name: runs[f"{name}_s"] / runs["step_time_s"] - 1.0 for name in ("closed_form", "simulator", "predicted")}
        pairs = [figure for size in map(abs, off.values()) for figure in (size.median(), size.quantile(0.9))]
        inside = (runs["low95_s"] <= runs["step_time_s"]) & (runs["step_time_s"] <= runs["high95_s"])
        percents = [100 * figure for figure in (*pairs, off["predicted"].median(), inside.mean())]
        count, *figures = re.findall(r"-?[\d.,]+", line.removeprefix(source[-34:]))
        assert count == f"{len(runs):,}"
        assert [float(figure) for figure in figures] == pytest.approx(percents, abs=0.0505)  # the file has six digits, the page one decimal
        shown += 1
    assert shown == 7
