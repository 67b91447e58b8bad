"""Oracle: runs one by one; an uninterrupted sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import stallsim
from sim.cli import main
from sim.documents import comparison_rows, row
from sim.spec.yaml import SpecError
from sim.study.pool import each
from sim.study.scenario import Scenario
from sim.study.space import axis, grid
from sim.study.sweep import scenario_at, sweep, sweep_rows

BASE = Scenario("p3.8xlarge", "resnet18")
POINTS = grid([axis("node.nic.bandwidth=10,40 Gbps"), axis("batch=32,64")])


class Counting:
    """A run that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[Scenario] = []

    def __call__(self, scenario: Scenario) -> dict[str, Any]:
        self.asked.append(scenario)
        return {"step_time_s": float(len(scenario.overrides)), "batch": scenario.batch}


def test_rows_are_those_of_runs_one_by_one() -> None:
    swept = sweep(BASE, POINTS, row)
    for point, swept_row in zip(POINTS, swept, strict=True):
        alone = row(scenario_at(BASE, point))
        assert {key: swept_row[key] for key in alone} == alone
        assert swept_row["problem"] == ""


@pytest.mark.parametrize(
    "axes",
    [
        ["node.gpu=K80,V100-SXM2-16GB", "node.nic.bandwidth=10,100 Gbps", "nodes=1,2,16"],
        pytest.param(
            ["training.stack=torch-1.13-ddp,gloo-ddp,horovod-0.21", "training.noise.draw=false,true", "dataset.samples=500,90000"],
            marks=pytest.mark.nightly,
        ),
        ["workload=resnet18,alexnet", "hardware=p2.xlarge,p3.8xlarge", "input.num_workers=1,4"],
    ],
)
def test_what_a_sweep_remembers_changes_no_row(axes: list[str]) -> None:
    """Oracle: runs one by one, to the last digit, whatever has been read, planned and priced for other points before."""
    points = grid([axis(text) for text in axes])
    for order in (points, points[::-1]):
        for point, swept_row in zip(order, sweep(BASE, order, row, processes=1), strict=True):
            alone = row(scenario_at(BASE, point))
            assert {key: swept_row[key] for key in alone} == alone


def test_another_sweep_reads_what_has_changed_since(tmp_path: Path) -> None:
    """By hand: twice the price in the file, twice the cost."""
    path, costs = tmp_path / "mine.yaml", []
    for price in (1, 2):
        path.write_text(f"extends: p3.2xlarge\nname: mine\nprice: {{on_demand: {price} USD/h, source: test}}\n")
        costs.append(sweep(Scenario(str(path), "resnet18"), grid([axis("batch=16")]), row, processes=1)[0]["cost_per_epoch_usd"])
    assert costs[1] == pytest.approx(2 * costs[0], rel=1e-12)


def test_several_processes_give_the_same_rows_in_the_same_order() -> None:
    points = grid([axis("batch=16,24,32,40,48,64")])
    assert sweep(BASE, points, row, processes=2) == sweep(BASE, points, row, processes=1)


def test_a_killed_sweep_goes_on_and_computes_nothing_twice(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.journal"
    complete = sweep(BASE, POINTS, Counting(), journal=journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])  # what kill -9 in the middle of a line leaves
    again, reports = Counting(), list[tuple[int, int]]()
    assert sweep(BASE, POINTS, again, journal=journal, progress=lambda done, of: reports.append((done, of))) == complete
    assert len(again.asked) == 2
    assert reports == [(3, 4), (4, 4)]
    third = Counting()
    assert sweep(BASE, POINTS, third, journal=journal) == complete
    assert not third.asked


def test_a_journal_of_another_question_is_not_used(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.journal"
    sweep(BASE, POINTS, Counting(), journal=journal)
    other = Counting()
    sweep(Scenario("p3.16xlarge", "resnet18"), POINTS, other, journal=journal)
    assert len(other.asked) == len(POINTS)


def test_a_point_that_cannot_run_keeps_its_row() -> None:
    swept = sweep(BASE, grid([axis("batch=32,100000")]), row)
    assert swept[0]["problem"] == ""
    assert "GPU memory" in swept[1]["problem"]


def test_options_must_be_numbers_where_numbers_are_due() -> None:
    with pytest.raises(SpecError, match="whole number"):
        scenario_at(BASE, (("nodes", "two"),))


def test_a_journal_is_not_used_once_a_file_has_changed(tmp_path: Path) -> None:
    """The machine's own file, and one that a value names."""
    machine, other, journal = tmp_path / "mine.yaml", tmp_path / "other.yaml", tmp_path / "sweep.journal"
    machine.write_text("extends: p3.2xlarge\nname: mine\n")
    other.write_text("extends: p3.2xlarge\nname: other\n")
    points = grid([axis(f"hardware={machine},{other}")])
    counts = []
    for changed in (None, None, machine, other):
        if changed:
            changed.write_text(changed.read_text() + "description: changed\n")
        run = Counting()
        sweep(Scenario(str(machine), "resnet18"), points, run, journal=journal)
        counts.append(len(run.asked))
    assert counts == [2, 0, 2, 2]


def test_rows_may_be_read_again_and_are_not_held(tmp_path: Path) -> None:
    """Oracle: the same in memory. For each point, Rows keeps only its key and its position in the journal."""
    with sweep_rows(BASE, POINTS, Counting(), tmp_path / "sweep.journal") as rows:
        assert list(rows) == list(rows) == sweep(BASE, POINTS, Counting()) and len(rows) == len(POINTS)


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("node.nic.bandwith=10,20 Gbps", r"--vary node\.nic\.bandwith=10 Gbps: unknown key; did you mean 'bandwidth'\?"),
        ("node.nic.bandwidth=10..20 parsec:3", r"--vary node\.nic\.bandwidth=10 parsec: unknown unit 'parsec'"),
        ("node.nic.bandwidth=10..20:3", r"--vary node\.nic\.bandwidth=10: the number 10 has no unit"),
        ("tp=1,2", r"--vary tp=1: unknown key 'tp'; did you mean 'training\.parallel\.tensor'\?"),
        (
            "micro_batches=1,2",
            r"--vary micro_batches=1: unknown key 'micro_batches'; did you mean 'training\.gradient_accumulation_steps'\?",
        ),
        ("btach=16..64", r"--vary btach=16: unknown key 'btach'; did you mean 'batch'\?"),
        ("flavor=1,2", r"--vary flavor=1: unknown key 'flavor'; keys start with one of"),
        ("batch=16,32.5", r"--vary batch=32\.5: expected a whole number"),
        ("nodes=0,1", r"--vary nodes=0: write 1 or more"),
        ("stack=gloo", r"--vary stack=gloo: "),
    ],
)
def test_messages_name_what_was_typed(vary: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"^{said}"):
        sweep(BASE, grid([axis(vary)]), row, journal=tmp_path / "sweep.journal")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--vary batch=16,32 --batch 8", "--vary batch and --batch 8: write one of the two"),
        ("--vary training.batch=16,32 --batch 8", "--vary training.batch and --batch 8: write one of the two"),
        ("--vary batch=16,32 --set training.batch=8", "--vary batch and --set training.batch=8: write one of the two"),
        ("--vary nodes=1,2 --nodes 3", "--vary nodes and --nodes 3: write one of the two"),
        ("--vary precision=fp32,amp_fp16 --precision fp32", "--vary precision and --precision fp32: write one of the two"),
        ("--vary node.nic.count=1,2 --set node.nic.count=1", "--vary node.nic.count and --set node.nic.count=1: write one of the two"),
        ("--vary tp=1,2 --parallel tp=4", "--vary tp and --parallel tp: write one of the two"),
    ],
)
def test_a_varied_field_is_set_by_nothing_else(options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "p3.8xlarge", "resnet50", *options.split(), "-o", str(tmp_path / "a.csv")]) == 2
    assert said in capsys.readouterr().err


def test_several_jobs_are_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "out.csv"
    assert main(["sweep", "p3.16xlarge", "resnet18-and-vgg16", "--vary", "node.host.cpu.speed=1,2", "-o", str(table)]) == 2
    assert "resnet18-and-vgg16: lists several jobs; expected one workload" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_first_point_that_cannot_run_stops_no_other() -> None:
    swept = sweep(BASE, grid([axis("gpus=8,4")]), row)
    assert swept[0]["problem"].startswith("--vary gpus=8: 1 x p3.8xlarge has 4 GPUs")
    assert swept[1]["problem"] == ""


_SWEEP = """
import sys
from pathlib import Path
from sim.documents import row
from sim.study.sweep import sweep
from tests.study.test_sweep import BASE, KILLED
sweep(BASE, KILLED, row, journal=Path(sys.argv[1]), processes=2, progress=lambda done, of: print(done, flush=True))
"""
KILLED = grid([axis("node.nic.bandwidth=10,40 Gbps"), axis("batch=16..64:25")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "swept"),
    [
        pytest.param("1,2,4", [1, 2, 4], marks=pytest.mark.nightly),
        pytest.param("1..4", [1, 2, 4], marks=pytest.mark.nightly),
        ("1..3:3", [1, 2, 3]),
        ("2", []),
    ],
)
def test_nodes_of_a_sweep_are_one_more_axis(nodes: str, swept: list[int], tmp_path: Path) -> None:
    """The same table as with --vary nodes=..., and for one number, as with that number."""
    same = ["--nodes", "2"] if not swept else ["--vary", f"nodes={','.join(map(str, swept))}"]
    for name, options in (("one.csv", ["--nodes", nodes]), ("other.csv", same)):
        command = ["sweep", BASE.hardware, BASE.workload, *options, "--vary", "batch=16,32", "--jobs", "1", "-q"]
        assert main([*command, "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "other.csv").read_text()


@pytest.mark.parametrize("nodes", ["1,,2", "1;2", "4..1", "0,1"])
def test_nodes_of_a_sweep_that_are_no_numbers(nodes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", BASE.hardware, BASE.workload, "--nodes", nodes, "-o", str(tmp_path / "a.csv")]) == 2
    assert capsys.readouterr().err.startswith("--nodes ")


@pytest.mark.nightly
def test_a_sweep_killed_with_its_processes_at_work_ends_with_the_same_file(tmp_path: Path) -> None:
    """Oracle: the file of an uninterrupted sweep. kill -9 after the third point; what had been kept is not computed again."""
    options = ["sweep", BASE.hardware, BASE.workload, "--vary", "node.nic.bandwidth=10,40 Gbps", "--vary", "batch=16..64:25", "--jobs", "1"]
    assert main([*options, "-o", str(tmp_path / "whole.csv")]) == 0
    journal = tmp_path / "killed.csv.journal"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.Popen([sys.executable, "-c", _SWEEP, str(journal)], stdout=subprocess.PIPE, text=True, env=environment)
    assert killed.stdout is not None
    with killed.stdout:
        assert [killed.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
        killed.kill()
        assert killed.wait(240) == -signal.SIGKILL
    kept = sum(line.startswith(b"{") and line.endswith(b"}\n") for line in journal.read_bytes().splitlines(keepends=True))
    assert 3 <= kept < len(KILLED)
    copy = tmp_path / "copy.journal"
    copy.write_bytes(journal.read_bytes())
    again = Counting()
    sweep(BASE, KILLED, again, journal=copy, processes=1)
    assert len(again.asked) == len(KILLED) - kept
    assert main([*options, "-o", str(tmp_path / "killed.csv")]) == 0
    assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not journal.exists()


KILLS = 50
MANY = 300
"""Points, more than the lives before the last kill can finish."""


@pytest.mark.nightly
def test_fifty_random_kills_leave_the_same_table(tmp_path: Path) -> None:
    """Oracle: the uninterrupted sweep. Each life is killed at a random moment: before, while or after it notes some points.

    Where one ends before it can be killed, on a machine that holds this test up, its table must be whole; the next begins anew.
    """
    options = ["sweep", "p3.2xlarge", "resnet18", "--vary", f"batch=1..{MANY}:{MANY}", "-q"]
    assert main([*options, "-o", str(tmp_path / "whole.csv")]) == 0
    journal = tmp_path / "killed.csv.journal"
    chance = Random(17)
    command = [sys.executable, "-m", "sim", *options, "--jobs", "1", "-o", str(tmp_path / "killed.csv")]
    kills = 0
    while kills < KILLS:
        kill_size = (journal.stat().st_size if journal.exists() else 0) + chance.choice([0, 1, 300, 900, 1500])
        with subprocess.Popen(command, start_new_session=True) as killed:
            time.sleep(chance.uniform(0.0, 0.5))
            while killed.poll() is None and not (journal.exists() and journal.stat().st_size >= kill_size) and kill_size:
                time.sleep(0.001)
            time.sleep(chance.uniform(0.0, 0.02))
            if killed.poll() is None:
                os.killpg(killed.pid, signal.SIGKILL)
        if killed.returncode == -signal.SIGKILL:
            kills += 1
            continue
        assert killed.returncode == 0
        assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
        (tmp_path / "killed.csv").unlink()
    assert main([*options, "-o", str(tmp_path / "killed.csv")]) == 0
    assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.csv", "whole.csv"]


def test_journal_lines_are_json(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.journal"
    sweep(BASE, POINTS[:1], Counting(), journal=journal)
    assert set(json.loads(journal.read_text())) == {"key", "figures", "sum"}


def test_pool_refuses_no_processes() -> None:
    with pytest.raises(SpecError, match="1 or more"):
        list(each(str, [1, 2], 0))


CAUSES = ("compute", "fetch", "prep", "copy", "interconnect", "network", "straggler", "launch")


def test_a_power_cap_may_vary() -> None:
    """Oracle: `compare --power-cap`, whose row has the same steps and energy."""
    table = stallsim.sweep("p3.8xlarge", "resnet50", {"power_cap": ["200 W", "250 W"]}, batch=64)
    for cap, line in zip(("200 W", "250 W"), table.to_dict("records"), strict=True):
        (row,) = comparison_rows(Scenario("", "resnet50", batch=64), ["p3.8xlarge"], power_cap=cap)
        assert row.document is not None and line["power_cap"] == cap
        assert line["step_time_s"] == pytest.approx(row.document["step_time_s"])
        assert line["energy_per_sample_j"] == pytest.approx(row.document["energy"]["energy_per_sample_j"])
    free = stallsim.sweep("p3.8xlarge", "resnet50", {"batch": [64]}).to_dict("records")[0]
    capped = table.to_dict("records")[0]
    for name in ("step_time_s", "compute_s"):  # a step of the first epoch computes as much
        assert capped[f"first_{name}"] - free[f"first_{name}"] == pytest.approx(capped[name] - free[name])
    assert sum(capped[f"first_{cause}_s"] for cause in CAUSES) == pytest.approx(capped["first_step_time_s"])
    one = stallsim.sweep("p3.8xlarge", "resnet50", {"batch": [64]}, power_cap="200 W")
    assert one["step_time_s"][0] == table["step_time_s"][0] > table["step_time_s"][1]
    low = stallsim.sweep("p3.8xlarge", "resnet50", {"power_cap": ["20 W"]}, batch=64)["problem"]
    assert low[0].startswith("vary['power_cap']=20 W: no measurements cover limits so far below")
    laid = stallsim.sweep("hgx-h100", "llama-3.2-1b", {"power_cap": ["400 W", "3000 W"]}, parallel={"shard": "parameters"})
    assert laid["step_time_s"][0] > laid["step_time_s"][1] and laid["energy_per_token_j"][0] < laid["energy_per_token_j"][1]
