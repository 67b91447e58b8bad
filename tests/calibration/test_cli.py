"""Does ``python -m calibration`` keep the manners of ``python -m sim``? Oracle: its exit codes and streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.run_records import read_table


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("stallsim-calibrate ")


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["records", str(tmp_path / "absent.csv")]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == f"{tmp_path}/absent.csv: no such file\n"


def test_a_folder_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "runs.csv").write_text("hardware,workload,step_time_s\np3.2xlarge,resnet50,0.2\n")
    for folder, says in ((tmp_path / "absent", "no such folder"), (file, "is a file; expected a folder")):
        assert main(["validate", str(file), "--hardware-dir", str(folder)]) == 2
        assert capsys.readouterr().err == f"{folder}: {says}\n"


def test_json_stands_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("hardware,workload,role,throughput_samples_per_s\na,b,network,5\n")
    assert main(["records", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": [{"hardware": "a", "workload": "b", "role": "network", "rows": 1}]}


def test_records_reads_the_columns_that_validate_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `read_table`, which validate reads with; a row that it leaves out is an error here."""
    path = tmp_path / "runs.csv"
    path.write_text("machine,model,world_size,step_time_ms\na,b,8,110\n")
    assert main(["records", str(path), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["rows"] == [{"hardware": "a", "workload": "b", "role": "prediction", "rows": 1}]
    assert shown.err.splitlines() == list(read_table(path).notes)
    path.write_text("machine,model,world_size,step_time_ms\na,b,8,110\na,b,8,-4\n")
    assert main(["records", str(path)]) == 2
    [skipped] = read_table(path).skipped
    assert capsys.readouterr().err.splitlines()[-1] == f"{skipped.where}: {skipped.reason}"


def test_the_module_runs() -> None:
    assert subprocess.run([sys.executable, "-m", "calibration", "--version"], capture_output=True, check=False, timeout=240).returncode == 0
