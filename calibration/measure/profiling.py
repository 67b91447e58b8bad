"""How is a machine measured? Ask the questions of each probe one at a time, write the record as answers arrive, and show progress.

Questions that the record already answers are skipped. Ctrl-C, a signal, a full disk or a rank that dies end the question or the run. All
answers so far are kept, and the record states that it is partial and why.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calibration.measure.machine_record import AnswerRow, MachineRecord, ProbeRecord, read_record, round_numbers, write_record
from calibration.measure.probes.probe import Bench, Probe, is_out_of_memory
from calibration.measure.processor_use import ProcessorUse
from calibration.measure.team import TorchrunTeam
from sim.spec.yaml import SpecError

WRITE_INTERVAL: Final = 2.0
"""Interval (s) at which answers are written while a probe runs."""
STOP_REASON: Final = "stopped before it finished"


class ProfileProgress:
    """Shows the progress of a run; this base class shows nothing."""

    def begin(self, probe: Probe, count: int) -> None:
        """Show that *probe* begins and will ask *count* questions."""

    def step(self, question: AnswerRow) -> None:
        """Show the next question."""

    def end(self, probe: Probe, record: ProbeRecord) -> None:
        """Show how *probe* ended."""


@dataclass(frozen=True)
class MeasuringPlan:
    """The probes to run and the path of the record; *again* discards earlier answers of these probes."""

    path: Path
    probes: Sequence[Probe]
    again: bool = False


def open_record(path: Path, fresh: MachineRecord, ignored: Sequence[str] = ()) -> MachineRecord:
    """Return the record at *path*, to be continued, or *fresh* if there is no such file.

    Raise SpecError if the record is of another machine or other versions; facts named in *ignored* are not compared.
    """
    if not path.exists():
        return fresh
    record = read_record(path)
    for name, here in (fresh.machine | fresh.versions).items():
        there = (record.machine | record.versions).get(name, 1 if name == "nodes" else None)  # older records do not have nodes
        if name not in ("clock_hz", *ignored) and there != round_numbers(here):
            raise SpecError(f"{path}: was measured with {name} {there}, but here it is {here}; measure into another file")
    record.state = "partial"
    return record


def measure(plan: MeasuringPlan, record: MachineRecord, bench: Bench, progress: ProfileProgress) -> list[str]:
    """Run the probes of *plan* and add the answers to *record*. Return failures. The file is written as answers arrive."""
    write_record(plan.path, record)
    failures: list[str] = []
    for probe in plan.probes:
        answers = record.probes[probe.name] = _started_record(record, probe, plan.again)
        try:
            _run_probe(probe, answers, bench, progress, lambda: write_record(plan.path, record))
        except Exception as error:
            answers.state, answers.reason = "failed", str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
            failures.append(f"{probe.name}: {answers.reason}")
            if isinstance(bench.team, TorchrunTeam) and "rank" in str(error):
                break  # the remaining ranks cannot measure without it
        except BaseException as error:
            answers.state, answers.reason = "partial", str(error) or "interrupted"
            raise
        finally:
            bench.clear()
            progress.end(probe, answers)
            write_record(plan.path, record)
    if not any(probe.state in ("partial", "failed") for probe in record.probes.values()):
        record.state = "complete"
        write_record(plan.path, record)
    return failures


def _started_record(record: MachineRecord, probe: Probe, again: bool) -> ProbeRecord:
    """Return the results of *probe* so far, or an empty record if there are none or *again* is set."""
    before = record.probes.get(probe.name)
    return ProbeRecord("partial", now(), STOP_REASON) if before is None or again else before


def _run_probe(probe: Probe, record: ProbeRecord, bench: Bench, progress: ProfileProgress, write: Callable[[], None]) -> None:
    reason = probe.skip_reason(bench)
    if reason:
        record.state, record.reason = "skipped", reason
        return
    record.state, record.reason = "partial", STOP_REASON
    start = written = time.monotonic()
    before = ProcessorUse.now(bench.team.processor_time())
    questions = probe.questions(bench)
    missing = unanswered_questions(questions, record.rows)
    progress.begin(probe, len(missing))
    too_large: list[AnswerRow] = []
    for question in missing:
        progress.step(question)
        bench.gather()
        try:
            record.rows.append(round_numbers(question | probe.answer(bench, question)))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            too_large.append(question)
            bench.clear()
        record.date = now()
        if time.monotonic() - written > WRITE_INTERVAL:
            write()
            written = time.monotonic()
    duration, others = time.monotonic() - start, ProcessorUse.now(bench.team.processor_time()).others_since(before)
    if duration > 0:
        record.others_cores = (record.others_cores * record.duration_s + others * duration) / (record.duration_s + duration)
    record.duration_s += duration
    if too_large and not record.rows:
        raise SpecError(f"no case fits into memory, not even {_question_text(too_large[-1])}")
    record.state, record.reason = "done", _left_out(too_large)


def _left_out(questions: Sequence[AnswerRow]) -> str:
    """Return a text on the questions that did not fit into memory."""
    return f"{len(questions)} did not fit into memory: {'; '.join(map(_question_text, questions[:3]))}" if questions else ""


def _question_text(question: AnswerRow) -> str:
    return " ".join(f"{value}" for value in question.values() if value not in ([], ""))


def unanswered_questions(questions: Sequence[AnswerRow], rows: Sequence[AnswerRow]) -> list[AnswerRow]:
    """Return the *questions* that no row answers. A row answers a question if they agree in all keys that occur in any question."""
    names = {name for question in questions for name in question}
    answered: list[AnswerRow] = [{name: row[name] for name in names & row.keys()} for row in rows]
    return [question for question in questions if round_numbers(question) not in answered]


def now() -> str:
    """Return the current date and time in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
