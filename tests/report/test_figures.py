"""Do rows come back from their files? Oracles: the csv module and pyarrow as independent readers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from sim.report.figures import check_table, figures_csv, flatten, write_table
from sim.spec.yaml import SpecError

ROWS = [{"name": "a", "stalls_s": {"copy": 0.5}, "first": {"time_s": 1.0}}, {"name": "b", "cost_usd": None}]


def test_nested_figures_become_columns_with_their_unit_last() -> None:
    assert flatten(ROWS[0]) == {"name": "a", "copy_s": 0.5, "first_time_s": 1.0}


def test_deeper_figures_become_columns_as_well() -> None:
    row = {"parts_s": {"start_up": 2.0}, "expected_error": {"median": 0.1, "measured_over_predicted_95": {"low": 0.9}}}
    assert flatten(row) == {"parts_start_up_s": 2.0, "expected_error_median": 0.1, "expected_error_measured_over_predicted_95_low": 0.9}


def test_every_column_of_any_row_is_there() -> None:
    rows = list(csv.DictReader(io.StringIO(figures_csv(ROWS))))
    assert rows == [
        {"name": "a", "copy_s": "0.5", "first_time_s": "1.0", "cost_usd": ""},
        {"name": "b", "copy_s": "", "first_time_s": "", "cost_usd": ""},
    ]


def test_parquet_holds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In row groups of one row, each of which lacks columns of the other."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the parquet extra")
    monkeypatch.setattr("sim.report.figures.ROW_GROUP", 1)
    rows = [*ROWS, {"name": 3, "cost_usd": 2, "first": {"time_s": 2}, "ok": True}]
    write_table(tmp_path / "x.parquet", rows)
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == [
        {"name": "a", "copy_s": 0.5, "first_time_s": 1.0, "cost_usd": None, "ok": None},
        {"name": "b", "copy_s": None, "first_time_s": None, "cost_usd": None, "ok": None},
        {"name": "3", "copy_s": None, "first_time_s": 2.0, "cost_usd": 2, "ok": True},
    ]
    assert parquet.ParquetFile(tmp_path / "x.parquet").num_row_groups == 3


def test_a_csv_file_is_the_csv_text(tmp_path: Path) -> None:
    write_table(tmp_path / "x.csv", ROWS)
    assert (tmp_path / "x.csv").read_bytes().decode() == figures_csv(ROWS)


def test_what_cannot_become_a_table_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "taken.csv").mkdir()
    for name, said in (
        ("x.xls", r"x\.xls: write FILE\.csv or FILE\.parquet"),
        ("taken.csv", "is a folder"),
        ("missing/x.csv", r"missing/x\.csv: cannot be written: there is no folder"),
    ):
        with pytest.raises(SpecError, match=said):
            check_table(tmp_path / name)
    check_table(tmp_path / "x.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.csv"]
