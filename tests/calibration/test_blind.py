"""Is a GPU predicted before it is measured, and compared honestly? Oracle: the committed tables, and errors worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from calibration.blind import rounds, table
from calibration.blind.questions import questions
from calibration.cli import main
from sim.spec.yaml import SpecError

BLIND = Path("calibration/records/blind")
RECORDS = [BLIND / "2026-11-23-h100.csv", BLIND / "2026-11-23-h200.csv"]
"""Those that hold all questions of the first day."""
SECOND = BLIND / "2026-11-26-h200.csv"
THIRD = [BLIND / "2026-11-26-h200-torchtitan.csv", BLIND / "2026-11-27-h200-megatron.csv"]
LONG = BLIND / "2026-11-27-h200-megatron-long.csv"


def test_every_question_is_asked_once() -> None:
    keys = [(question.kind, question.name, question.precision, question.batch) for question in questions()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_committed_tables_hold_predictions_made_before_the_measurement(path: Path) -> None:
    rows = table.read_table(path)
    answered = [row for row in rows if row["predicted"] and row["measured"]]
    assert len(answered) > 100
    assert {row["kind"] for row in answered} >= {"step", "memory", "product", "attention"}


@pytest.mark.parametrize("path", [*RECORDS, SECOND, *THIRD, LONG, BLIND / "2026-11-23-h200-others.csv"], ids=lambda path: path.stem)
def test_committed_tables_ask_what_can_be_asked_again(path: Path) -> None:
    question_keys = {(question.kind, question.name, question.precision, str(question.batch)) for question in questions()}
    row_keys = [table.row_key(row) for row in table.read_table(path)]
    assert set(row_keys) <= question_keys and len(set(row_keys)) == len(row_keys)


def test_a_score_is_the_median_error_and_the_share_inside_the_intervals() -> None:
    def row(predicted: str, low: str, high: str, measured: str) -> dict[str, str]:
        cells = dict.fromkeys(table.COLUMNS, "")
        return cells | {"kind": "step", "precision": "fp32", "predicted": predicted, "low": low, "high": high, "measured": measured}

    rows = [row("1.1", "1.05", "1.2", "1"), row("1.3", "0.9", "1.4", "1"), row("0.8", "0.7", "1.1", "1"), row("5", "4", "6", "")]
    (score,) = table.score_rows(rows)
    assert score.rows == 3
    assert score.median == pytest.approx(0.2)
    assert score.inside == pytest.approx(2 / 3)


def test_predictions_of_products_are_those_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    selected = [question for question in questions() if question.kind in ("product", "pass")]
    monkeypatch.setattr(rounds, "questions", lambda: selected)
    path = tmp_path / "predicted.csv"
    assert main(["blind", "gpu-h200-sxm_1gpu-16vcpu-200gb", "-o", str(path)]) == 0
    rows = {(row["name"], row["precision"]): float(row["predicted"]) for row in table.read_table(path) if row["predicted"]}
    operations = 2 * 8192**3
    assert 0.4e15 < operations / rows["8192x8192x8192", "bf16"] < 0.99e15  # below the data sheet's 989 TFLOP/s
    assert rows["8192x8192x8192", "fp32"] > 5 * rows["8192x8192x8192", "tf32"] > 5 * rows["8192x8192x8192", "bf16"]


def test_cases_that_a_machine_cannot_run_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A K80 has 12 GiB, VGG-16 needs more at this batch, and K80's attention is not described: they have notes, others are predicted."""
    large = next(question for question in questions() if (question.kind, question.name, question.batch) == ("step", "vgg16", 128))
    attention = next(question for question in questions() if question.kind == "attention")
    product = next(question for question in questions() if question.kind == "product" and question.precision == "fp32")
    monkeypatch.setattr(rounds, "questions", lambda: [large, attention, product])
    path = tmp_path / "predicted.csv"
    assert main(["blind", "p2.xlarge", "-o", str(path)]) == 0
    notes = [row["note"] for row in table.read_table(path)]
    assert (
        notes[0].startswith("not predicted: batch=128: batch 128 per GPU needs")
        and notes[1].startswith("not predicted: K80 has no kernels block")
        and notes[2] == ""
    )


def test_the_page_says_the_errors_as_they_came_out() -> None:
    """Oracle: the committed tables, all precisions of a kind together where the page names none."""
    page = Path("docs/trust/blind.md").read_text(encoding="utf-8")
    first, _, rest = page.partition("## What was learned")
    second, _, rest = rest.partition("## A second day")[2].partition("## A third day")
    third, _, longer = rest.partition("## Megatron-Core with long sequences")
    for section, tables, count in ((first, RECORDS[::-1], 15), (second, [SECOND], 7), (third, THIRD, 3), (longer, [LONG], 4)):
        page_rows = dict(re.findall(r"^\| (.+?) \| (\d.*?%) \|[^|]*\|$", section, flags=re.MULTILINE))
        assert len(page_rows) == count
        for title, figures in page_rows.items():
            kind, _, precision = title.partition(", ")
            assert figures == " | ".join(_error(path, kind, precision) for path in tables), title


def _error(path: Path, kind: str, precision: str) -> str:
    rows = [row for row in table.read_table(path) if row["kind"] == kind and precision in ("", row["precision"])]
    rows = [row for row in rows if row["predicted"] and row["measured"]]
    errors = [abs(float(row["predicted"]) / float(row["measured"]) - 1) for row in rows]
    return f"{100 * np.median(errors):.0f} / {100 * np.percentile(errors, 90):.0f}%"


def test_scores_of_a_committed_table_are_shown_and_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blind", str(RECORDS[0])]) == 0
    shown = capsys.readouterr().out
    assert "step" in shown and "fp32" in shown
    assert main(["blind", str(RECORDS[0]), "--json"]) == 0
    assert {row["kind"] for row in json.loads(capsys.readouterr().out)["rows"]} >= {"step", "memory"}


def test_a_table_that_was_not_measured_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "predicted.csv"
    table.write_table(path, [row | {"measured": ""} for row in table.read_table(SECOND)], "Predicted.")
    assert main(["blind", str(path)]) == 0
    assert "nothing in this table has been measured yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hgx-h200"], "-o is missing"),
        (["hgx-h200", "--measure", "-o", "measured.csv"], "expected the table"),
        (["absent.csv"], "absent.csv: no such file"),
    ],
)
def test_wrong_input_is_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blind", *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("kind,name\nstep,resnet50\n")
    with pytest.raises(SpecError, match="the columns are not kind, name"):
        table.read_table(path)
