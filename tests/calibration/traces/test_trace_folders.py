"""Are the traces of a folder read? Oracle: the same traces, named one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.cli import main
from calibration.traces.import_trace import import_traces
from tests.calibration.traces.test_import_trace import profile


def test_a_folder_stands_for_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As TensorBoard's handler of torch.profiler and ``run --trace`` write one."""
    files = [profile(tmp_path, 0, 2), profile(tmp_path, 1, 2, late=4000.0)]
    (tmp_path / "notes.txt").write_text("no trace")
    assert import_traces([tmp_path]).by_rank == import_traces(files).by_rank
    (tmp_path / "empty").mkdir()
    assert main(["import-trace", str(tmp_path / "empty")]) == 2
    assert "empty: is a folder without traces; their names end in .json or .json.gz" in capsys.readouterr().err
