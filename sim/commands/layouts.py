"""How are runs with a layout printed? One run or a table of several, as text, JSON, CSV, HTML page and trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.scenario import Scenario
from sim.terminal import messages, show_table, write_report, wrote_trace

if TYPE_CHECKING:
    from sim.mesh import LayoutRun
    from sim.report.extras import RunExtras
    from sim.study.layout import LayoutAnswer


def show_layouts(
    scenario: Scenario,
    nodes: Sequence[int],
    gpus: Sequence[int],
    shown: tuple[bool, bool, bool],
    output: Path | None,
    html: Path | None,
    trace: Path | None,
    chakra: Path | None,
    extras: RunExtras,
) -> None:
    """Simulate *scenario* for each number of *nodes* or *gpus* and print the results, with the requested additions of *extras*."""
    from sim.report.document import infeasible_document
    from sim.report.figures import figures_csv
    from sim.report.layouts.layout import flat_figures, layout_document, layout_scaling_text, layout_text
    from sim.study.layout import layout_answer
    from sim.study.scaling import not_on_size, scaling

    as_json, as_csv, verbose = shown
    scenarios = scaling(scenario, nodes, gpus)
    _require_one(len(scenarios), trace, chakra)
    answers: list[LayoutAnswer] = []
    documents: list[dict[str, Any]] = []
    refused: list[SpecError] = []
    done = messages.counter("runs")
    for each in scenarios:
        try:
            given = layout_answer(each, _notice_long)
            documents.append(layout_document(given))
            answers.append(given)
        except SpecError as error:
            if len(scenarios) == 1:
                raise
            refused += [] if isinstance(error, Infeasible) else [error]
            point = error if isinstance(error, Infeasible) else not_on_size(each, error)
            documents.append(infeasible_document(each.hardware, each.workload, point.nodes, point.gpus, str(point), point.brief))
        done(len(documents), len(scenarios))
    messages.progress("")
    if len(refused) == len(scenarios):  # the question is at fault, not a size
        raise refused[0]
    one = len(scenarios) == 1
    if one:
        documents[0] = extras.add_to(documents[0], answers[0].run, scenario.plan)
    shown_document: dict[str, Any] = documents[0] if one else {"schema": 1, "runs": documents}
    text = layout_text(answers[0].run, documents[0], verbose) if one else layout_scaling_text(documents)
    if "with_failures" in shown_document:
        from sim.report.goodput import goodput_text

        text += "\n\n" + goodput_text(shown_document["with_failures"])

    def plots() -> Mapping[str, str | bytes]:
        from sim.report.layouts.layout_plot import layout_plot

        return layout_plot(answers[0].run, documents[0]).files("step") if one else {}

    table = figures_csv([flat_figures(document) for document in documents])
    _write_traces(answers, trace, chakra)
    write_report(html, output, (shown_document, text, table), lambda: _page(answers[0].run if one else None, shown_document), plots)
    show_table(shown_document, text, table, as_json, as_csv)
    if not answers:
        raise typer.Exit(1)


_MANY = 5_000
"""Micro-batches of a step from which a run takes so long that a message says so."""


def _notice_long(micro_batches: int) -> None:
    if micro_batches >= _MANY:
        messages(
            f"simulating all {micro_batches:,} micro-batches of a step, which takes minutes; a larger --batch or a smaller --global-batch "
            "takes fewer"
        )


def _page(run: LayoutRun | None, document: dict[str, Any]) -> str:
    from sim.report.page.layout import layout_page

    return layout_page(run, document)


def _require_one(runs: int, trace: Path | None, chakra: Path | None) -> None:
    """Raise SpecError for traces of several *runs*."""
    for option, path in (("--trace", trace), ("--chakra", chakra)):
        if path is not None and runs > 1:
            raise SpecError(f"{option}: a trace shows one run; write one number of nodes or GPUs")


def _write_traces(answers: Sequence[LayoutAnswer], trace: Path | None, chakra: Path | None) -> None:
    if trace is not None:
        from sim.report.trace.layout_trace import write_layout_trace

        wrote_trace(trace, write_layout_trace(answers[0].run, trace))
    if chakra is not None:
        from sim.report.trace.layout_chakra import write_layout

        messages(f"wrote {write_layout(answers[0].run, chakra)}")
