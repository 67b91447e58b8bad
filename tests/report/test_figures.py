"""Do rows come back from their files? Oracles: the csv module and pyarrow as independent readers."""

from __future__ import annotations

import csv
import io

import pytest

from sim.report.figures import figures_csv, figures_table, flat
from sim.spec.yaml import SpecError

ROWS = [{"name": "a", "stalls_s": {"copy": 0.5}, "first": {"time_s": 1.0}}, {"name": "b", "cost_usd": None}]


def test_nested_figures_become_columns_with_their_unit_last() -> None:
    assert flat(ROWS[0]) == {"name": "a", "copy_s": 0.5, "first_time_s": 1.0}


def test_deeper_figures_become_columns_as_well() -> None:
    row = {"parts_s": {"start_up": 2.0}, "expected_error": {"median": 0.1, "measured_over_predicted_95": {"low": 0.9}}}
    assert flat(row) == {"parts_start_up_s": 2.0, "expected_error_median": 0.1, "expected_error_measured_over_predicted_95_low": 0.9}


def test_every_column_of_any_row_is_there() -> None:
    rows = list(csv.DictReader(io.StringIO(figures_csv(ROWS))))
    assert rows == [
        {"name": "a", "copy_s": "0.5", "first_time_s": "1.0", "cost_usd": ""},
        {"name": "b", "copy_s": "", "first_time_s": "", "cost_usd": ""},
    ]


def test_parquet_holds_the_same() -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the parquet extra")
    content = figures_table(ROWS, ".parquet")
    assert isinstance(content, bytes)
    assert parquet.read_table(io.BytesIO(content)).to_pylist()[0] == {"name": "a", "copy_s": 0.5, "first_time_s": 1.0, "cost_usd": None}


def test_other_kinds_are_refused() -> None:
    with pytest.raises(SpecError, match=r"a table in a file '\*\.xls': write \.csv or \.parquet"):
        figures_table(ROWS, ".xls")
