"""Oracles: errors counted by hand, sources that are left out, and the command on a handful of rows."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibration.cli import app, main
from calibration.llm import closed_form
from calibration.llm.constants import fitted_constants
from calibration.llm.score import quantile, sweeps
from calibration.llm.validate import llm_document, llm_table, validate_tables
from calibration.validate.validation_report import counted
from sim.spec.yaml import SpecError
from tests.calibration.llm.tables import table

SWEEP = [{"tp": str(tp), "dp": str(8 // tp), "step_time_s": str(step)} for tp, step in ((1, 14.0), (2, 15.0), (4, 17.0), (8, 21.0))]


def test_the_document_has_what_was_agreed(tmp_path: Path) -> None:
    rows = [*SWEEP, {"step_time_s": "14.2", "micro_batch": "2"}, {"gpu": "Abacus"}, {"micro_batch": "few"}]
    failed = table(tmp_path, [{"micro_batch": "16", "step_time_s": "", "status": "oom_or_crash"}], name="failed.csv")
    document = llm_document(validate_tables([table(tmp_path, rows)], failed))
    for key in ("memory", "feasibility", "ranking", "coverage", "not_described", "baselines", "groups", "overall", "sources"):
        assert key in document
    assert (document["rows"], document["scored"], len(document["not_described"])) == (7, 6, 1)
    assert document["not_described"][0]["line"] == 7
    assert document["unread"] == ["runs.csv:8: micro_batch is 'few', not a whole number above 0"]
    assert document["feasibility"]["failed"] == 1
    assert document["feasibility"]["called_does_not_fit"] == 1.0
    assert document["ranking"]["sweeps"] == 1
    assert document["overall"]["predicted"]["median"] < document["overall"]["constant_mfu"]["median"] + 0.5


@pytest.mark.parametrize(("share", "rows", "said"), [(2 / 18, 18, "2 of 18 (11.1%)"), (1.0, 1, "1 of 1 (100.0%)"), (None, 0, "0 of 0")])
def test_shares_are_said_with_the_rows_that_they_are(share: float | None, rows: int, said: str) -> None:
    assert counted(share, rows) == said


def test_the_text_counts_runs_that_fail(tmp_path: Path) -> None:
    failed = table(tmp_path, [{"micro_batch": "16", "step_time_s": "", "status": "oom_or_crash"}], name="failed.csv")
    text = llm_table(validate_tables([table(tmp_path, SWEEP)], failed))
    assert "failed runs predicted as does_not_fit: 1 of 1 (100.0%)" in text


def test_ranking_against_a_hand_count(tmp_path: Path) -> None:
    rows = [*SWEEP, {"step_time_s": "13.0", "micro_batch": "2"}]
    scored = validate_tables([table(tmp_path, rows)]).scored
    (sweep,) = sweeps(scored)
    predicted = [row.step_times["predicted"] for row in scored]
    measured = [row.measured for row in scored]
    agree = [(predicted[i] - predicted[j]) * (measured[i] - measured[j]) for i in range(5) for j in range(i)]
    assert sweep["kendall_tau"] == pytest.approx((sum(x > 0 for x in agree) - sum(x < 0 for x in agree)) / 10)
    assert sweep["regret"] == pytest.approx(measured[predicted.index(min(predicted))] / 13.0 - 1)
    assert quantile([1.0, 2.0, 3.0], 0.75) == 2.5


def test_a_scored_source_is_left_out() -> None:
    source = "mosaicml/llm-foundry"
    assert "fsdp1" not in fitted_constants(source).known_runs.families  # which no other source used
    assert "fsdp1" in fitted_constants(source, leave_out=False).known_runs.families
    assert fitted_constants(source).law != fitted_constants(source, leave_out=False).law
    assert fitted_constants(source).constants != fitted_constants(source, leave_out=False).constants
    assert fitted_constants("someone/new").constants == fitted_constants(source, leave_out=False).constants


def test_the_command(tmp_path: Path) -> None:
    runner = CliRunner()
    path, out = table(tmp_path, SWEEP), tmp_path / "out"
    result = runner.invoke(app, ["validate", str(path), "--json", "-o", str(out)])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["scored"] == 4
    written = list(csv.DictReader((out / "predictions.csv").read_text(encoding="utf-8").splitlines()))
    assert [float(row["step_time_s"]) for row in written] == [14.0, 15.0, 17.0, 21.0]
    assert all(float(row["low95_s"]) < float(row["predicted_s"]) < float(row["high95_s"]) for row in written)
    text = runner.invoke(app, ["validate", str(path)])
    assert "4 of 4 rows scored" in text.stdout and re.search(
        r"^  cover +percent of rows inside their 95% interval", text.stdout, re.MULTILINE
    )
    for bound, code in {"overall.calibrated.median>0": 1, "memory.fitted.called_does_not_fit>0.5": 0, "ranking.sweeps<1": 1}.items():
        assert runner.invoke(app, ["validate", str(path), "--predictor", "closed-form", "--fail-if", bound]).exit_code == code


def test_a_condition_names_scores_of_transformer_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(table(tmp_path, [{}])), "--fail-if", "clusters.points>0"]) == 2
    assert re.search("there is no 'clusters'; keys here: .*memory, feasibility, ranking", capsys.readouterr().err)


def test_a_table_of_which_no_row_can_be_predicted_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table of data-parallel runs does: the reasons in one message, and nothing written."""
    path, out = table(tmp_path, [{"gpu": "H10O"}, {"kv_heads": "7"}, {"hidden": "-4096", "model": "mine"}]), tmp_path / "out"
    assert main(["validate", str(path), "-o", str(out)]) == 2
    shown = capsys.readouterr()
    assert not shown.out and not out.exists()
    assert "no row can be predicted:" in shown.err
    unknown, negative = "no description of the GPU 'H10O'; did you mean H100", "hidden is '-4096', not a whole number above 0"
    for reason in (f"runs.csv:2 (Llama 3.1 8B): {unknown}", "kv_heads (7)", f"runs.csv:4 (mine): {negative}"):
        assert reason in shown.err


def test_numbers_of_a_row_that_contradict_each_other_are_noted(tmp_path: Path) -> None:
    """By hand: 1 x 2 x 8 is not 128, 8 GPUs are not on 3 nodes, and the sizes of the columns are 8.03 billion parameters, not 70."""
    rows = [{}, {"grad_accum": "2"}, {"nodes": "3"}, {"params": "70B"}, {"params": "70B"}, {"grad_accum": "", "params": "8"}]
    document = llm_document(validate_tables([table(tmp_path, rows)], predictor=closed_form.predict))
    assert document["notes"] == [
        "line 3: micro_batch x grad_accum x data-parallel ranks is not global_batch, which is used",
        "line 4: nodes do not divide gpus, which are used",
        "lines 5, 6: params are not those of layers, hidden, ffn_hidden and vocab, which are used",
    ]


def test_cells_that_are_read_in_words_are_not_listed_as_unread(tmp_path: Path) -> None:
    sizes = {"model": "ours", "ffn_hidden": "1408", "params": "", "topk": "top-6"}
    rows = [{"zero_stage": "ZeRO-1"}, {**sizes, "experts": "64 + 2 shared"}, {**sizes, "experts": "1+64"}, {"virtual_pp": "many"}]
    document = llm_document(validate_tables([table(tmp_path, rows)], predictor=closed_form.predict))
    assert document["described"] == 4
    assert document["unread"] == ["runs.csv:5: virtual_pp is 'many', not a whole number above 0"]


def test_times_that_cannot_be_are_noted(tmp_path: Path) -> None:
    """Eight H100 do at most 7.9 PFLOP/s: a step of 8 billion parameters and 1,048,576 tokens takes at least 5.7 s."""
    rows = [{}, {"step_time_s": "14000"}, {"step_time_s": "5"}, {"step_time_s": "7"}]
    document = llm_document(validation := validate_tables([table(tmp_path, rows)], predictor=closed_form.predict))
    assert document["notes"] == [
        "line 3: measured step is over 100 times as long as predicted: step_time_s is in seconds; milliseconds need 'ms' after them",
        "line 4: measured step is shorter than the GPUs' peak rate allows: check gpus, global_batch, seq_len, precision and the time",
    ]
    assert all(note in llm_table(validation) for note in document["notes"])


def test_a_missing_file_of_failed_runs_is_known_before_anything_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibration.llm.validate._predicted", None)
    assert main(["validate", str(table(tmp_path, [{}])), "--memory", str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'none.csv'}: no such file\n"


def test_commas_without_quotes_and_columns_twice(tmp_path: Path) -> None:
    """A cell too many shifts all that follow, even if the last one is blank."""
    path = table(tmp_path, [{"framework": "NeMo"}])
    text = path.read_text()
    path.write_text(text.replace(",NeMo,", ",NeMo, Megatron,"))
    assert validate_error(path).endswith("1 more values than columns; put values that contain a comma in quotes")
    path.write_text("\n".join(line + ",," for line in text.splitlines()))  # as spreadsheets write blank columns
    assert len(validate_tables([path], predictor=closed_form.predict).scored) == 1
    path.write_text(text.replace("node_type", "gpu", 1))
    assert validate_error(path) == f"{path}:1: column 'gpu' appears twice"


def validate_error(path: Path) -> str:
    with pytest.raises(SpecError) as error:
        validate_tables([path], predictor=closed_form.predict)
    return str(error.value)


def test_few_runs_are_listed_with_their_times(tmp_path: Path) -> None:
    validated = validate_tables([table(tmp_path, SWEEP)])
    lines = [line for line in llm_table(validated).splitlines() if line.startswith("line ")]
    assert len(lines) == len(validated.scored) == len(SWEEP)
    for line, row in zip(lines, validated.scored, strict=True):
        assert line.startswith(f"line {row.case.row.line} ") and f"{100 * row.error():+.1f}%" in line
        assert f"{row.measured:.3g} s" in line and f"{row.step_times['predicted']:.3g} s" in line
    assert not [line for line in llm_table(validate_tables([table(tmp_path, SWEEP * 6)])).splitlines() if line.startswith("line ")]
