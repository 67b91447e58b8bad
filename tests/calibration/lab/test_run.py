"""Is a plan measured point by point? Oracles: bytes over the rate as bound on a step, the files on disk, and what is left after the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.lab.plan import plan_points, read_plan
from calibration.lab.run import run_plan
from calibration.run_records import read_records
from sim.spec.yaml import SpecError
from tests.calibration.lab.laboratory import left_of, needs_laboratory

pytestmark = pytest.mark.needs("torch")

STEP_MODELS = str(Path(__file__).parents[1] / "step_models.py")
RATE = 100e6 / 8
WEIGHTS = 784 * 64 + 64 * 64 + 64 * 10 + 64 + 64 + 10
PLAN = """\
name: tiny
hardware: lab-two-cores
models:
  mlp: {{model: "{model}", inputs: ["784"], arguments: {arguments}, workload: lab-mlp}}
seconds: 0 s
steps: {steps}
points:
  - {{model: mlp, batch: 4, hosts: 2, rate: 100 Mbps}}
"""


def plan(folder: Path, model: str = "calibration.lab.models:mlp", arguments: str = "[width=64, depth=2]", steps: int = 2) -> Path:
    path = folder / "plan.yaml"
    path.write_text(PLAN.format(model=model, arguments=arguments, steps=steps))
    return path


@pytest.mark.nightly
@needs_laboratory
def test_two_hosts_train_and_are_recorded_once(tmp_path: Path) -> None:
    """Every step carries 4 bytes of each weight over a line of the rate, in each direction; a second run finds nothing to do."""
    rows, messages = tmp_path / "lab.csv", list[str]()
    lab_plan = read_plan(plan(tmp_path))
    (line,) = run_plan(lab_plan, rows, messages.append)
    assert line["state"] == "measured"
    assert len(line["ranks"]) == 2 and all(len(rank["times_s"]) == 2 for rank in line["ranks"])
    assert line["step_time_s"] > 0.9 * 4 * WEIGHTS / RATE
    (record,) = read_records(rows).records
    assert (record.nodes, record.role, record.overrides) == (2, "prediction", "node.nic.bandwidth=100 Mbps")
    assert record.step_time == pytest.approx(line["step_time_s"], rel=1e-5)
    assert left_of(os.getpid()) == []
    assert run_plan(lab_plan, rows, messages.append)[0]["step_time_s"] == line["step_time_s"]
    assert messages[-1] == "1 point, 1 of them already measured"


@pytest.mark.nightly
@needs_laboratory
def test_a_rank_that_dies_fails_its_point_alone(tmp_path: Path) -> None:
    rows = tmp_path / "lab.csv"
    path = plan(tmp_path, f"{STEP_MODELS}:Weight", "[dies=1]")
    (line,) = run_plan(read_plan(path), rows, lambda text: None)
    assert line["state"] == "failed" and "rank 1 was killed by signal 9" in line["reason"]
    assert rows.read_text().count("\n") == 1  # the header
    assert left_of(os.getpid()) == []


@contextmanager
def training(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A laboratory whose point never ends, once a rank has said that it trains: then its network is there."""
    trains = folder / "0"
    os.mkfifo(trains)
    command = [sys.executable, "-m", "calibration", "lab", str(plan(folder, f"{STEP_MODELS}:Weight", "[]", 1000000))]
    lab = subprocess.Popen(
        [*command, "-o", str(folder / "lab.csv")], env=os.environ | {"STEP_MODELS_LOG": str(folder)}, stderr=subprocess.DEVNULL
    )
    try:
        with trains.open() as log:
            log.readline()
            assert left_of(lab.pid) != []
            yield lab
    finally:
        lab.kill()


def processes_of(folder: Path) -> list[str]:
    """Processes, ranks among them, that the laboratory which logs into *folder* has started."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended since
            if f"STEP_MODELS_LOG={folder}\0".encode() in (process / "environ").read_bytes():
                pids.append(process.name)
    return pids


@pytest.mark.nightly
@needs_laboratory
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(tmp_path: Path, stop: signal.Signals) -> None:
    with training(tmp_path) as lab:
        lab.send_signal(stop)
        assert lab.wait(timeout=60) == 130
    assert left_of(lab.pid) == []
    assert processes_of(tmp_path) == []


@pytest.mark.nightly
@needs_laboratory
def test_what_kill_9_leaves_the_next_run_removes(tmp_path: Path) -> None:
    """Also one whose time is up before its first point."""
    with training(tmp_path) as lab:
        lab.kill()
        lab.wait(timeout=60)
        assert left_of(lab.pid) != [] and processes_of(tmp_path) != []
        assert run_plan(read_plan(plan(tmp_path)), tmp_path / "lab.csv", lambda text: None, limit=1e-9) == []
    assert left_of(lab.pid) == []
    assert processes_of(tmp_path) == []


def test_without_root_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["lab", str(plan(tmp_path)), "-o", str(tmp_path / "lab.csv")]) == 2
    assert capsys.readouterr().err == "lab: building networks needs root; run it as root, for example with sudo\n"
    assert not (tmp_path / "lab.csv").exists()


def test_without_torch_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["lab", str(plan(tmp_path)), "-o", str(tmp_path / "lab.csv")]) == 2
    assert capsys.readouterr().err == "lab: torch is not installed: pip install torch\n"
    assert not (tmp_path / "lab.csv").exists()


@pytest.mark.parametrize(("was", "now"), [("lab-two-cores", "nosuch"), ("calibration.lab.models:mlp", "models:nothing")])
def test_what_a_plan_names_wrongly_is_said_before_the_first_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], was: str, now: str
) -> None:
    monkeypatch.setattr("calibration.lab.run.measure", lambda *_: pytest.fail("a point was measured"))
    path = plan(tmp_path)
    path.write_text(path.read_text().replace(was, now))
    assert main(["lab", str(path), "-o", str(tmp_path / "lab.csv")]) == 2
    assert now in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]


@needs_laboratory
def test_files_in_the_way_are_kept(tmp_path: Path) -> None:
    rows = tmp_path / "lab.csv"
    rows.write_text("mine\n")
    with pytest.raises(SpecError, match=r"already exists, but its lab\.jsonl does not"):
        run_plan(read_plan(plan(tmp_path)), rows, lambda text: None)
    rows.with_suffix(".jsonl").write_text('{"schema": 7}\n')
    with pytest.raises(SpecError, match=r"lab\.jsonl:1: is not a point of schema 1"):
        run_plan(read_plan(plan(tmp_path)), rows, lambda text: None)
    assert rows.read_text() == "mine\n"


@needs_laboratory
def test_nothing_is_measured_for_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        run_plan(read_plan(plan(tmp_path)), tmp_path / "none" / "lab.csv", lambda text: pytest.fail(text))


def test_listing_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plan(tmp_path)
    assert main(["lab", str(path), "--list"]) == 0
    assert capsys.readouterr().out.split() == ["prediction", "mlp,", "batch", "4,", "2", "hosts,", "100", "Mbps"]
    assert len(plan_points(read_plan(path))) == 1
