"""Does ``calibration profile`` measure a machine, and refuse what it cannot? Oracles: the record it leaves; exit codes and sentences."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.machine_record import read_record
from calibration.probes import disk
from calibration.probes.catalogue import PROBES

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def page_cache_of_others_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_DROP", Path("/proc/absent"))


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(["profile", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    return said.err


def test_the_list_names_every_probe(capsys: Capture) -> None:
    assert main(["profile", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [probe.name for probe in PROBES]


def test_the_disk_is_measured_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Each read takes time, and none reads more than the file holds; nothing but the record stays."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(disk, "QUICK_SIZE", 4 * disk.CHUNK)
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--only", "disk", "--quick"]) == 0
    found = read_record(path)
    assert found.state == "complete" and len(found.rows("disk")) == 7
    assert all(time > 0 for row in found.rows("disk") for time in row["times_s"])
    assert len(found.rows("disk")[0]["times_s"]) == 4
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]
    assert f"{path}: {found.name}, complete" in capsys.readouterr().out


def test_products_and_launches_are_measured(tmp_path: Path) -> None:
    """A product of twice the edge is 8 times the work: on any machine it takes longer."""
    pytest.importorskip("torch")
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--only", "gemm,launch,host_copy", "--quick"]) == 0
    found = read_record(path)
    rows = [row for row in found.rows("gemm") if row["precision"] == "fp32" and len(set(row["shape"])) == 1]
    square = {row["shape"][0]: min(row["times_s"]) for row in rows}
    assert square[64] < square[384]
    assert [row["clock"] for row in found.rows("launch")] == ["device", "host"]


def test_wrong_wishes_are_refused(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "r.json")
    assert "there is no such probe; choose from" in refused(capsys, "-o", path, "--only", "gem")
    assert "write cpu or cuda" in refused(capsys, "-o", path, "--device", "tpu")
    assert "--model and --input belong together" in refused(capsys, "-o", path, "--model", "a:b")
    assert "no such folder" in refused(capsys, "-o", path, "--only", "disk", "--folder", str(tmp_path / "absent"))
    assert "cannot be written" in refused(capsys, "-o", str(tmp_path / "absent" / "r.json"), "--only", "disk", "--folder", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch is not installed" in refused(capsys, "-o", path, "--only", "gemm")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_and_the_record_kept(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "QUICK_SIZE", 2**60)
    path = tmp_path / "r.json"
    assert "--folder names another disk" in refused(capsys, "-o", str(path), "--only", "disk", "--quick")
    assert read_record(path).probes["disk"].state == "failed" and read_record(path).state == "partial"
