"""Is a table of transformer runs described to who has one? Oracle: the columns that the reader needs."""

from __future__ import annotations

from pathlib import Path

from calibration.llm.table import REQUIRED_COLUMNS, is_llm_table, read_table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "calibrate.md"


def test_the_page_names_every_column_that_is_needed(tmp_path: Path) -> None:
    paragraph = PAGE.read_text(encoding="utf-8").split("This kind of table is for plain data parallelism")[1].split("\n\n")[0]
    assert not [name for name in REQUIRED_COLUMNS if f"`{name}`" not in paragraph]
    made = tmp_path / "my-llm-runs.csv"
    made.write_text(",".join(REQUIRED_COLUMNS) + "\n" + "," * (len(REQUIRED_COLUMNS) - 1) + "\n")
    assert is_llm_table(made) and len(read_table(made)) == 1
