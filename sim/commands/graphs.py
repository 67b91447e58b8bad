"""How is a simulated Chakra trace printed? As text, JSON, CSV, HTML page and Chrome trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario
from sim.terminal import show_table, write_report, wrote_trace

if TYPE_CHECKING:
    from sim.study.graph import GraphRun


def show_graph(
    scenarios: Sequence[Scenario],
    groups: Path | None,
    shown: tuple[bool, bool],
    output: Path | None,
    html: Path | None,
    trace: Path | None,
) -> None:
    """Simulate the trace named by the only one of *scenarios*, and print the outcome; *groups* is the file of its communicators."""
    if len(scenarios) > 1:
        raise SpecError(f"{scenarios[0].workload}: a Chakra trace has a fixed number of ranks; write one number of nodes or GPUs")
    from sim.report.figures import figures_csv
    from sim.report.graph import graph_document, graph_text, rank_rows
    from sim.study.graph import graph_run

    run = graph_run(scenarios[0], groups)
    document = graph_document(run)
    text, table = graph_text(run, document), figures_csv(rank_rows(document))
    if trace is not None:
        from sim.report.trace.graph_trace import write_graph_trace

        wrote_trace(trace, write_graph_trace(run, trace))
    write_report(html, output, (document, text, table), lambda: _page(run, document))
    show_table(document, text, table, *shown)


def _page(run: GraphRun, document: dict[str, Any]) -> str:
    from sim.report.page.graph import graph_page

    return graph_page(run, document)


def only_of_workloads(scenario: Scenario, others: Mapping[str, object]) -> None:
    """Raise SpecError if *scenario* or *others* (values by option) set an option that a trace determines itself."""
    plan = scenario.plan
    values = {
        "--batch": scenario.batch,
        "--global-batch": scenario.global_batch,
        "--sequence": scenario.sequence,
        "--epochs": plan and plan.epochs,
        "--hours": plan and plan.time,
        "--tokens": plan and plan.tokens,
        "--seed": scenario.seed,
        **{option: value for option, _, value in scenario.layout},
        **others,
    }
    for option, value in values.items():
        if value:
            raise SpecError(f"{option}: {scenario.workload} is a Chakra trace, which fixes what each rank does; leave {option} out")
