"""Does ``calibration profile`` measure a machine, and refuse what it cannot? Oracles: the record it leaves; exit codes and sentences."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.machines.machine_fit import median_time
from calibration.measure.machine_record import AnswerRow, read_record
from calibration.measure.probes import catalog, disk
from calibration.measure.probes.catalog import PROBES
from calibration.measure.probes.probe import Bench

ROOT = Path(__file__).resolve().parents[3]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def page_cache_of_others_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_DROP", Path("/proc/absent"))


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(["profile", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "Traceback" not in output.err
    return output.err


def test_the_list_names_every_probe(capsys: Capture) -> None:
    assert main(["profile", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [probe.name for probe in PROBES]


def test_the_disk_is_measured_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Each read takes time, and none reads more than the file holds; nothing but the record stays."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(disk, "QUICK_SIZE", 4 * disk.CHUNK)
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--only", "disk", "--quick"]) == 0
    machine_record = read_record(path)
    assert machine_record.state == "complete" and len(machine_record.rows("disk")) == 7
    assert all(time > 0 for row in machine_record.rows("disk") for time in row["times_s"])
    assert len(machine_record.rows("disk")[0]["times_s"]) in (3, 4)  # of four chunks, as long as time lasts
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]
    assert f"{path}: {machine_record.name}, complete" in capsys.readouterr().out


def test_products_and_launches_are_measured(tmp_path: Path) -> None:
    """Work of a product: two operations for each of rows x columns x depth."""
    pytest.importorskip("torch")
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--only", "gemm,launch,host_copy", "--quick"]) == 0
    machine_record = read_record(path)
    for row in machine_record.rows("gemm"):
        assert row["flop"] == 2 * row["shape"][0] * row["shape"][1] * row["shape"][2]
        assert median_time(row) > 0
    assert [row["clock"] for row in machine_record.rows("launch")] == ["device", "host"]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(bench: Bench, question: AnswerRow) -> AnswerRow:
        if question["way"] == "random":
            raise KeyboardInterrupt
        return {"times_s": [1.0]}

    path = tmp_path / "r.json"
    monkeypatch.setattr(catalog, "PROBES", (replace(disk.DISK, answer=interrupted),))
    assert main(["profile", "-o", str(path), "--only", "disk"]) == 130
    assert f"stopped; {path} has 1 answer, marked partial: repeat the command to continue" in capsys.readouterr().err
    assert (read_record(path).state, read_record(path).probes["disk"].reason) == ("partial", "interrupted")


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_was_measured_and_says_so(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, stop: signal.Signals
) -> None:
    def ended(bench: Bench, question: AnswerRow) -> AnswerRow:
        if question["way"] == "random":
            signal.raise_signal(stop)
        return {"times_s": [1.0]}

    path = tmp_path / "r.json"
    monkeypatch.setattr(catalog, "PROBES", (replace(disk.DISK, answer=ended),))
    message = refused(capsys, "-o", str(path), "--only", "disk")
    assert "terminated (SIGTERM or SIGHUP)" in message
    assert f"stopped; {path} has 1 answer, marked partial: repeat the command to continue" in message
    assert (read_record(path).state, len(read_record(path).rows("disk"))) == ("partial", 1)


@pytest.mark.nightly
def test_ranks_of_torchrun_measure_together(tmp_path: Path) -> None:
    """Rank 0 alone writes and tells; the record says how many there were."""
    pytest.importorskip("torch")
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "calibration"]
    arguments = ["profile", "-o", str(tmp_path / "r.json"), "--quick", "--only", "launch,all_reduce"]
    done = subprocess.run([*ranks, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    machine_record = read_record(tmp_path / "r.json")
    assert (machine_record.state, machine_record.machine["ranks"], machine_record.machine["backend"]) == ("complete", 2, "gloo")
    assert done.stdout.count(", complete") == 1


def test_wrong_wishes_are_refused(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("torch")
    path = str(tmp_path / "r.json")
    assert "no such probe; choose from" in refused(capsys, "-o", path, "--only", "gem")
    assert "write cpu or cuda" in refused(capsys, "-o", path, "--device", "tpu")
    assert "--model and --input must be used together" in refused(capsys, "-o", path, "--model", "a:b")
    assert "absent.py: no such file" in refused(capsys, "-o", path, "--model", "absent.py:net", "--input", "3x5")
    assert "write [NAME=]SHAPE[:TYPE]" in refused(capsys, "-o", path, "--model", "math:sqrt", "--input", "3,5")
    assert "no such folder" in refused(capsys, "-o", path, "--only", "disk", "--folder", str(tmp_path / "absent"))
    assert "cannot be written" in refused(capsys, "-o", str(tmp_path / "absent" / "r.json"), "--only", "disk", "--folder", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_needs_torch_says_so(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch is not installed" in refused(capsys, "-o", str(tmp_path / "r.json"), "--only", "gemm")
    assert not list(tmp_path.iterdir())


def test_more_ranks_than_gpus_are_refused(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that reports one GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    message = refused(capsys, "-o", str(tmp_path / "r.json"), "--ranks", "2", "--only", "launch")
    assert "2 ranks for 1 GPU(s): NCCL supports one rank per GPU; start fewer, or write --device cpu" in message


def test_a_full_disk_is_told_and_the_record_kept(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "QUICK_SIZE", 2**60)
    path = tmp_path / "r.json"
    assert "name a folder on another disk with --folder" in refused(capsys, "-o", str(path), "--only", "disk", "--quick")
    assert read_record(path).probes["disk"].state == "failed" and read_record(path).state == "partial"
