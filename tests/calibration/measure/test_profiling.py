"""Does a run resume where it stopped, and keep its results? Oracles: the questions that reach a probe; the file left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.measure.machine_record import AnswerRow, MachineRecord, read_record
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.profiling import MeasuringPlan, ProfileProgress, measure, open_record, unanswered_questions
from calibration.measure.team import SpawnedTeam
from sim.spec.yaml import SpecError


def bench(folder: Path) -> Bench:
    return Bench("cpu", 1, 1, 0.01, folder, SpawnedTeam(1, "cpu", 1))


def fresh() -> MachineRecord:
    return MachineRecord("box", {"cpu": "some"}, {"torch": "2"})


class Counted:
    """A probe of four questions; *fails* raises at the one it names."""

    def __init__(self, name: str = "counted", fails: tuple[int, BaseException] | None = None) -> None:
        self.asked: list[int] = []
        self.fails = fails
        self.probe = Probe(name, "", lambda bench: [{"size": size} for size in range(4)], self.answer, needs_torch=False)

    def answer(self, bench: Bench, question: AnswerRow) -> AnswerRow:
        self.asked.append(question["size"])
        if self.fails and question["size"] == self.fails[0]:
            raise self.fails[1]
        return {"times_s": [0.5]}


def test_a_whole_run_is_complete_and_is_not_asked_again(tmp_path: Path) -> None:
    path, probe = tmp_path / "r.json", Counted()
    assert measure(MeasuringPlan(path, [probe.probe]), fresh(), bench(tmp_path), ProfileProgress()) == []
    machine_record = read_record(path)
    assert machine_record.state == "complete" and [row["size"] for row in machine_record.rows("counted")] == [0, 1, 2, 3]
    measure(MeasuringPlan(path, [probe.probe]), open_record(path, fresh()), bench(tmp_path), ProfileProgress())
    assert probe.asked == [0, 1, 2, 3]
    measure(MeasuringPlan(path, [probe.probe], again=True), open_record(path, fresh()), bench(tmp_path), ProfileProgress())
    assert probe.asked == [0, 1, 2, 3] * 2 and len(read_record(path).rows("counted")) == 4


def test_an_interrupted_run_keeps_its_answers_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        measure(MeasuringPlan(path, [Counted(fails=(2, KeyboardInterrupt())).probe]), fresh(), bench(tmp_path), ProfileProgress())
    machine_record = read_record(path)
    assert (
        machine_record.state == "partial"
        and machine_record.probes["counted"].state == "partial"
        and len(machine_record.rows("counted")) == 2
    )
    later = Counted()
    measure(MeasuringPlan(path, [later.probe]), machine_record, bench(tmp_path), ProfileProgress())
    assert later.asked == [2, 3] and read_record(path).state == "complete"


def test_a_probe_that_fails_leaves_the_others_and_its_reason(tmp_path: Path) -> None:
    path, other = tmp_path / "r.json", Counted("other")
    failed = Counted(fails=(1, SpecError("the disk is full")))
    assert measure(MeasuringPlan(path, [failed.probe, other.probe]), fresh(), bench(tmp_path), ProfileProgress()) == [
        "counted: the disk is full"
    ]
    machine_record = read_record(path)
    assert (
        machine_record.state == "partial"
        and machine_record.probes["counted"].reason == "the disk is full"
        and machine_record.probes["other"].state == "done"
    )


def test_before_the_first_answer_the_file_says_that_it_is_partial(tmp_path: Path) -> None:
    """Whatever ends the run, a power cut included."""
    path = tmp_path / "r.json"

    def look(bench: Bench, question: AnswerRow) -> AnswerRow:
        states.append(read_record(path).state)
        return {}

    states: list[str] = []
    measure(MeasuringPlan(path, [Probe("look", "", lambda bench: [{"size": 1}], look)]), fresh(), bench(tmp_path), ProfileProgress())
    assert states == ["partial"] and read_record(path).state == "complete"


def test_a_probe_that_does_not_apply_is_skipped_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    probe = Probe("gpu", "", lambda bench: [{"size": 1}], lambda bench, question: {}, skip_reason=lambda bench: "no GPU")
    assert measure(MeasuringPlan(path, [probe]), fresh(), bench(tmp_path), ProfileProgress()) == []
    machine_record = read_record(path)
    assert machine_record.state == "complete" and (machine_record.probes["gpu"].state, machine_record.probes["gpu"].reason) == (
        "skipped",
        "no GPU",
    )


def test_a_record_of_another_machine_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    measure(MeasuringPlan(path, []), fresh(), bench(tmp_path), ProfileProgress())
    before = path.read_text()
    with pytest.raises(SpecError, match="measured with cpu some, but here it is other; measure into another file"):
        open_record(path, MachineRecord("box", {"cpu": "other"}, {"torch": "2"}))
    assert path.read_text() == before


def test_a_row_answers_only_what_was_asked() -> None:
    """The same size over two machines, or beside products, is another question."""
    rows: list[AnswerRow] = [
        {"ranks": 2, "bytes": 8},
        {"ranks": 2, "nodes": 2, "bytes": 8},
        {"ranks": 2, "bytes": 8, "beside": "products"},
    ]
    for row in rows:
        assert unanswered_questions(rows, [row | {"times_s": [1.0]}]) == [other for other in rows if other is not row]
    assert unanswered_questions(rows, []) == rows
