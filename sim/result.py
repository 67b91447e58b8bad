"""What does a notebook user get from a run? A `Result`: figures, stalls as a DataFrame, pictures, a trace and a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.causes import COLORS, MEANINGS
from sim.events import causes_of
from sim.report.document import run_document
from sim.report.extras import RunExtras
from sim.report.picture import Picture
from sim.simulate import Run
from sim.spec.whole_file import write_file
from sim.study.argument_names import names_arguments
from sim.study.arguments import Name
from sim.study.scenario import Answer, Scenario, answer
from sim.units import pluralized, rate_text, show

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Result:
    """One finished run: the scenario and its answer; a notebook shows it as a table."""

    scenario: Scenario
    answer: Answer
    extras: RunExtras = field(default_factory=RunExtras)

    @property
    def run(self) -> Run:
        """Return the run itself: epochs, event log, specs."""
        return self.answer.run

    @cached_property
    @names_arguments()
    def document(self) -> dict[str, Any]:
        """Return what ``sim run --json`` prints; several jobs are listed under ``jobs``."""
        document = run_document(
            self.run, self.answer.inputs, self.answer.warnings, self.answer.bottlenecks, self.answer.market, self.answer.plan
        )
        return self.extras.add_to(document, self.run, self.answer.plan)

    @property
    def step_time(self) -> float:
        """Return the duration of a warm step of the first job in seconds."""
        return float(self._first["step_time_s"])

    @property
    def throughput(self) -> float:
        """Return the samples per second of all ranks of the first job."""
        return float(self._first["throughput_samples_per_s"])

    @property
    def _first(self) -> Mapping[str, Any]:
        """Return the document of the first job."""
        first: Mapping[str, Any] = self.document.get("jobs", [self.document])[0]
        return first

    @property
    def stalls(self) -> DataFrame:
        """Return where the time of a warm step goes, largest first: ``job``, ``cause``, ``resource``, ``time_s`` and its ``share``.

        A power limit is not included; ``document["stalls_s"]`` includes it.
        """
        import pandas

        rows = [
            {
                "job": number,
                "cause": row.cause.value,
                "resource": row.resource,
                "time_s": row.seconds,
                "share": row.seconds / job.warm.step_time,
            }
            for number, job in enumerate(self.run.jobs)
            for row in job.warm.resources
        ]
        return pandas.DataFrame(rows)

    def plot(self, job: int = 0) -> Picture:
        """Plot the stalls of a warm epoch and of the first epoch, and the timeline of one warm step."""
        from sim.report.plots import stall_plot

        bottlenecks = self.answer.bottlenecks
        return stall_plot(self.run, job, bottlenecks[job] if bottlenecks else None)

    def trace(self, path: Name, steps: int = 3) -> str:
        """Write a Chrome trace of *steps* warm steps to *path* (.json, .json.gz, or a folder); return a description of it.

        The run is simulated again to record the use of links. Raise `SpecError` if the trace cannot be written.
        """
        from sim.report.trace.run_trace import write_trace

        return write_trace(answer(self.scenario, keep_rates=True).run, Path(path), steps)

    def page(self, path: Name) -> None:
        """Write the result to *path* as one self-contained HTML page, which needs no network. Raise `SpecError` if that fails.

        The run is simulated again to record the use of links.
        """
        from sim.report.page.run import run_page

        again = answer(self.scenario, keep_rates=True)
        write_file(Path(path), run_page(again.run, self.document, self.answer.bottlenecks))

    def __repr__(self) -> str:
        return "\n".join(_line(document) for document in self.document.get("jobs", [self.document]))

    def _repr_html_(self) -> str:
        return "".join(_section(document) for document in self.document.get("jobs", [self.document]))


def _line(document: Mapping[str, Any]) -> str:
    """Return a one-line summary of one job: workload, machine, speed and verdict."""
    rate = rate_text(document["throughput_samples_per_s"])
    gpus = pluralized(document["gpus"], "GPU")
    speed = f"step {show(document['step_time_s'], 'time')}, {rate} samples/s"
    return f"<{document['workload']} on {document['hardware']}, {gpus}: {speed}. {document['verdict']}>"


def _section(document: Mapping[str, Any]) -> str:
    """Return a heading, the verdict and the stall table of one job as self-contained HTML."""
    step = document["step_time_s"]
    head = f"{document['workload']} on {document['hardware']}, {pluralized(document['gpus'], 'GPU')}, {document['stack']}"
    rows = [
        f"<tr><td>{cause.value}</td><td style='text-align:right'>{show(seconds, 'time')}</td>"
        f"<td style='text-align:right'>{100 * seconds / step:.1f}%</td><td><div title='{MEANINGS[cause]}' style='height:0.8em;"
        f"width:{16 * seconds / step:.2f}em;background:{COLORS[cause]}'></div></td></tr>"
        for cause in causes_of(document["stalls_s"])
        if (seconds := document["stalls_s"][cause.value]) > 1e-12
    ]
    rate = rate_text(document["throughput_samples_per_s"])
    return (
        f"<h4>{escape(head)}</h4><p>step {show(step, 'time')}, {rate} samples/s. {escape(document['verdict'])}</p>"
        f"<table><thead><tr><th>cause</th><th>time</th><th>share</th><th></th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
