"""What does a notebook user get from a run with a layout? A `LayoutResult`: figures, stalls and memory as DataFrames, a page, a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sim.mesh import LayoutRun
from sim.report.extras import RunExtras
from sim.report.layouts.layout import layout_document, layout_text, waits
from sim.report.trace.layout_trace import write_layout_trace
from sim.spec.whole_file import write_file
from sim.study.argument_names import names_arguments
from sim.study.arguments import Name, price_source, scenario_of, with_own_parts
from sim.study.layout import LayoutAnswer, layout_answer
from sim.study.layout_options import layout_of, texts_of
from sim.study.options import ExtrasOptions, RunOptions, SimulationOptions, WholeJobOptions, keywords, select_options
from sim.study.whole_job import plan_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from sim.report.picture import Picture


@names_arguments()
@keywords(RunOptions)
def simulate_layout(
    hardware: Name,
    workload: Name,
    parallel: Mapping[str, object],
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    batch: int | None = None,
    micro_batches: int | None = None,
    prices: object = None,
    collective: object = None,
    **options: Unpack[RunOptions],
) -> LayoutResult:
    """Simulate one step of *workload* on *hardware* in the layout *parallel* and return the result.

    *parallel* has the keys of ``training.parallel``, or their short forms: ``{"tp": 8, "pp": 4, "shard": "optimizer"}``. *batch* is the
    number of samples per micro-batch. *epochs*, *hours* or *tokens* add time and cost of the whole job; *with_failures* adds failures to
    it, at a level of *reliability* (``"high"``, or a file) and with the given number of *spares*. *store* adds a checkpoint written to
    that store, *power_cap* (``"500 W"``) a limit on the power of each GPU. *prices* is a price source and *collective* your own
    all-reduce algorithm, a name or an object. *seed* is for randomly drawn steps. *exact* simulates ranks individually even if nodes are
    spread unevenly over switches.
    Raise `SpecError` with what is wrong, including insufficient GPU memory.
    """
    scenario = scenario_of(
        hardware, workload, with_own_parts(overrides, collective=collective), options["market"], nodes=nodes, gpus=gpus, batch=batch,
        plan=plan_of(**select_options(options, WholeJobOptions)),
        layout=layout_of(texts_of(parallel), micro_batches=micro_batches), prices=price_source(prices),
        **select_options(options, SimulationOptions),
    )  # fmt: skip
    extras = RunExtras(**select_options(options, ExtrasOptions))
    extras.check(scenario.plan)
    return LayoutResult(layout_answer(scenario), extras)


@dataclass(frozen=True)
class LayoutResult:
    """One simulated step of a layout; a notebook shows its text."""

    answer: LayoutAnswer
    extras: RunExtras = field(default_factory=RunExtras)

    @property
    def run(self) -> LayoutRun:
        """Return the run itself: mesh, programs, event log."""
        return self.answer.run

    @cached_property
    @names_arguments()
    def document(self) -> dict[str, Any]:
        """Return what ``sim run --json`` prints."""
        return self.extras.add_to(layout_document(self.answer), self.run, self.answer.plan)

    @property
    def step_time(self) -> float:
        """Return the duration of an optimizer step in seconds."""
        return float(self.document["step_time_s"])

    @property
    def throughput(self) -> float:
        """Return samples per second of all ranks."""
        return float(self.document["throughput_samples_per_s"])

    @property
    def stalls(self) -> DataFrame:
        """Return where the time of a step goes, mean over ranks, largest first: ``cause``, ``resource``, ``time_s`` and its ``share``.

        A power limit is not included; ``document["stalls_s"]`` includes it.
        """
        import pandas

        rows = [
            {"cause": cause.value, "resource": resource, "time_s": seconds, "share": seconds / self.run.step_time}
            for cause, resource, seconds in waits(self.run)
        ]
        return pandas.DataFrame(rows)

    @property
    def memory(self) -> DataFrame:
        """Return the memory of one rank of each stage in bytes, broken down by use: one row per stage."""
        import pandas

        return pandas.DataFrame(self.document["memory_by_stage"])

    def memory_over_time(self, stage: int = 0) -> DataFrame:
        """Return the memory of one rank of *stage* over one step: ``begin_s``, ``end_s``, then the bytes of each use in its own column.

        A row is one instruction of the stage's program, at the moment when it uses most memory.
        """
        import pandas

        course = self.run.completed().memory_over_time(stage)
        start = course[0][0] if course else 0.0
        return pandas.DataFrame([{"begin_s": begin - start, "end_s": end - start, **memory.by_use()} for begin, end, memory in course])

    def plot(self) -> Picture:
        """Plot the time of a step by cause, and the memory of one rank of each stage."""
        from sim.report.layouts.layout_plot import layout_plot

        return layout_plot(self.run, self.document)

    def trace(self, path: Name) -> str:
        """Write a Chrome trace of one step to *path* (.json, .json.gz, or a folder); return what was written."""
        return write_layout_trace(self.run, Path(path))

    def page(self, path: Name) -> None:
        """Write the result to *path* as one self-contained HTML page, which needs no network."""
        from sim.report.page.layout import layout_page

        write_file(Path(path), layout_page(self.run, self.document))

    def __repr__(self) -> str:
        return layout_text(self.run, self.document)
