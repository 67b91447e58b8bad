"""Are steps of ranks that divide a model measured, kept and compared with predictions? Oracles: `fake_cuda`, Gloo, the simulator
itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibration.machines import fit_run
from calibration.machines.predicted_steps import predicted_layout
from calibration.machines.step_comparison import compare, comparison_table
from calibration.measure import ddp_steps, layout_steps
from calibration.measure.division import Division
from calibration.measure.machine_record import AnswerRow, MachineRecord, ProbeRecord, read_record, write_record
from calibration.measure.probes.layouts import LAYOUTS, divisions
from calibration.measure.probes.probe import Bench
from calibration.measure.profiling import MeasuringPlan, ProfileProgress, measure
from calibration.measure.team import SpawnedTeam, TeamTask
from tests.calibration.fake_cuda import FakeCuda, install
from tests.calibration.machine_records import CPU, cpu_record

pytestmark = pytest.mark.needs("torch")
Patch = pytest.MonkeyPatch


def bench(folder: Path, ranks: int = 2) -> Bench:
    return Bench("cpu", 1, 2, 0.05, folder, SpawnedTeam(ranks, "cpu", 1), quick=True)


class Here:
    """A team whose ranks all run in this process, one after another."""

    nodes = 1

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def ask(self, task: TeamTask, *arguments: Any) -> list[Any]:
        return [task(SimpleNamespace(rank=rank), *arguments) for rank in range(self.ranks)]

    def used(self) -> float:
        return 0.0

    def close(self) -> None: ...


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_divide_what_is_asked_of_them(ranks: int, tmp_path: Path) -> None:
    """Heads, words, tokens and blocks are multiples of the ranks; each layout has one axis, and the simulator has the same."""
    rows = LAYOUTS.questions(replace(bench(tmp_path, ranks), quick=False))
    assert [Division.model_validate(each["layout"]) for each in rows] == divisions(ranks)
    for each in rows:
        arguments = {name: int(value) for name, value in (text.split("=") for text in each["arguments"])}
        assert [arguments["width"] % (64 * ranks), arguments["depth"] % ranks, arguments["vocabulary"] % ranks] == [0, 0, 0]
        assert int(each["inputs"][0].split(":")[0]) % ranks == 0
    assert LAYOUTS.skip_reason(bench(tmp_path, 1)) and not LAYOUTS.skip_reason(bench(tmp_path, 2))


def test_steps_are_timed_to_the_end_of_the_device_s_work(tmp_path: Path, monkeypatch: Patch) -> None:
    """Steps of three kernels of 4 ms, which cost the host 5 us each: 12 ms a step on every rank."""
    cuda = install(monkeypatch, FakeCuda(), count=2)
    monkeypatch.setattr(ddp_steps, "time", SimpleNamespace(perf_counter=cuda.perf_counter, process_time=cuda.perf_counter))

    class Kernels:
        is_isolated = False
        parameters = ()

        def __init__(self, *_: Any) -> None: ...

        def step(self) -> None:
            for _ in range(3):
                cuda.kernel(4e-3)

    monkeypatch.setattr(layout_steps, "LayoutRank", Kernels)
    on_gpus = replace(bench(tmp_path), device="cuda", team=Here(2))
    row = LAYOUTS.answer(on_gpus, LAYOUTS.questions(on_gpus)[0])
    assert [len(times) for times in row["times_by_rank_s"]] == [3, 3]
    assert all(time == pytest.approx(12e-3, rel=1e-2) for times in row["times_by_rank_s"] for time in times)


@pytest.mark.nightly
def test_every_layout_runs_over_gloo(tmp_path: Path) -> None:
    """Two ranks: one row a layout, a time for every step of each; the record is read again as it was written."""
    machine_record = MachineRecord("two-ranks", CPU | {"nodes": 1}, {})
    here = bench(tmp_path)
    try:
        assert measure(MeasuringPlan(tmp_path / "r.json", [LAYOUTS]), machine_record, here, ProfileProgress()) == []
    finally:
        here.team.close()
    rows = read_record(tmp_path / "r.json").rows("layouts")
    assert [Division.model_validate(row["layout"]) for row in rows] == divisions(2)
    for row in rows:
        assert [len(times) for times in row["times_by_rank_s"]] == [3, 3]
        assert all(used > 0 for used in row["cpu_s"])
        assert all(0 < time < 60 for times in row["times_by_rank_s"] for time in times)


def layout_row(layout: Division) -> AnswerRow:
    named = {"model": "calibration.measure.decoder:decoder", "inputs": ["64:int64"], "batch": 8, "ranks": 2}
    return named | {"arguments": ["width=256", "depth=4", "vocabulary=2048"], "layout": layout.model_dump()}


def test_a_fit_sets_them_beside_what_it_predicts(tmp_path: Path) -> None:
    """A record whose steps take what the simulator says of the fitted machine, or twice as long: no error, or a half."""
    write_record(tmp_path / "r.json", cpu_record())
    fitted = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml")
    rows = []
    for factor, layout in zip((1.0, 2.0, 1.0, 2.0), divisions(2), strict=True):
        seconds = factor * predicted_layout(layout_row(layout), fitted.files)
        rows.append(layout_row(layout) | {"cpu_s": [0.1, 0.1], "times_by_rank_s": [[seconds] * 3, [seconds / 2] * 3]})
    record = cpu_record()
    record.probes["layouts"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=rows)
    write_record(tmp_path / "r.json", record)
    fitted = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml")
    comparisons, notes = compare(fitted.records, fitted.files, fitted.step_ratios)
    assert not any("decoder" in note for note in notes)
    assert [row.error for row in comparisons] == pytest.approx([0.0, -0.5, 0.0, -0.5], abs=1e-3)
    assert "decoder, tensor 2 + sequence" in comparison_table(comparisons)


def test_what_ranks_compute_and_send_is_what_is_predicted(tmp_path: Path) -> None:
    """A step takes longer than its share of the products; a pipeline's bubble, and messages that tensor ranks wait for, come on top."""
    write_record(tmp_path / "r.json", cpu_record())
    written = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml").files
    sharded, split, sequence, staged = (predicted_layout(layout_row(layout), written) for layout in divisions(2))
    elements = 256 * 2048 * 2 + 4 * (12 * 256 * 256)
    products = 6 * 8 * 64 * (elements - 256 * 2048) / 80e9  # the record's GFLOP/s
    assert sharded > products
    assert split > products / 2 and sequence > products / 2
    assert staged > 4 * products * (4 + 1) / 4 / 2  # four micro-batches of as many samples, on two stages
