"""Are layers and steps measured as they run? Oracles: the layers of a small network, sums against wholes, Stash's formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.cli import main
from calibration.measure.machine_record import read_record
from calibration.measure.probes.stash import stalls

pytestmark = pytest.mark.needs("torch")


def test_layers_of_a_small_network(tmp_path: Path) -> None:
    """Layers one after another take no longer than the whole pass that runs them, and every layer that has work takes some."""
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--quick", "--only", "layers"]) == 0
    wide, deep = read_record(path).rows("layers")
    assert [layer["type"] for layer in wide["layers"]] == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert sum(layer["type"] == "Conv2d" for layer in deep["layers"]) == 7
    for row in (wide, deep):
        for turn, whole_pass in enumerate(row["whole_s"]):
            assert sum(layer[way][turn] for layer in row["layers"] for way in ("forward_s", "backward_s")) < whole_pass
        assert all(time > 0 for layer in row["layers"] if layer["type"] in ("Linear", "Conv2d") for time in layer["backward_s"])


@pytest.mark.nightly
def test_steps_and_the_four_runs_on_two_ranks(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    model = ["--model", "calibration.measure.probes.small_nets:deep", "--arg", "blocks=1", "--input", "3x224x224", "--batch", "2"]
    assert main(["profile", "-o", str(path), "--quick", "--only", "steps,stash", *model]) == 0
    machine_record = read_record(path)
    assert [row["exchange"] for row in machine_record.rows("steps")] == [True, False]
    # 3 x 32 x 16 + 32 of the stem, 9 x 32 x 32 and 2 x 32 of each block, 32 x 10 + 10 of the last layer
    assert {row["parameters"] for row in machine_record.rows("steps")} == {1568 + 9280 + 330}
    assert [len(row["times_by_rank_s"]) for row in machine_record.rows("stash")] == [1, 2, 2, 2]
    assert set(stalls(machine_record.rows("stash"))) == {"interconnect", "prep", "fetch"}
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]


def test_stalls_are_those_of_stash() -> None:
    """T0 = 1, T1 = 2, T2 = 4, T3 = 3 s: half of RUN1 is interconnect, a third of RUN3 prep, a quarter of RUN2 fetch."""
    rows = [{"run": f"RUN{number}", "times_by_rank_s": [[time, time]]} for number, time in enumerate((1.0, 2.0, 4.0, 3.0))]
    stall_times = stalls(rows)
    assert {name: (stall.time, stall.share) for name, stall in stall_times.items()} == {
        "interconnect": (1.0, 0.5),
        "prep": (1.0, pytest.approx(1 / 3)),
        "fetch": (1.0, 0.25),
    }
    assert stalls(rows[:3]) == {}


def test_a_model_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--only", "layers", "--model", "math:sqrt", "--input", "3"]) == 2
    assert "math:sqrt: calling it failed" in capsys.readouterr().err
    assert read_record(path).probes["layers"].state == "failed"
