"""What does the page show for a choice? The outcome and its parts as HTML, the equivalent command, and the meaning of empty controls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from sim.analysis.cost import node_price
from sim.mesh import LayoutRun
from sim.report.document import run_document
from sim.report.figures import figures_csv
from sim.report.layouts.layout import flat_figures, layout_document
from sim.report.page.frame import PagePart
from sim.report.page.layout import layout_page, layout_parts
from sim.report.page.markup import Html, join
from sim.report.page.run import run_page, run_parts
from sim.report.page.words import as_money, as_number, as_time
from sim.report.rows import run_csv
from sim.simulate import Run
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.layout import checked_hardware, layout_answer
from sim.study.scenario import Scenario, answer, has_layout, loaded_hardware, prepare, sorted_overrides
from sim.terminal import named_as_called, program
from sim.ui.choice import KEYS, Choice, choice_of, command_of, query_of, quote_words, scenario_of

View = dict[str, Any]
"""The plain data that is sent to the page."""
_OPTION: Final = re.compile(r"(--[a-z][a-z-]*) ([\w.+=-]*\w)")
_SUGGESTED: Final = re.compile(rf"(?:{_OPTION.pattern}(?: (?=--)|(?! (?=--))))+")
"""Options in a sentence; consecutive options are one match."""
_OF_GROUP: Final = re.compile(r"groups\.\d+\.count=")
_FIRST: Final = ("time", "steps", "stages", "memory", "job")
"""Parts that the page shows before the machines."""
_GBPS: Final = 1e9 / 8
"""1 Gbit/s in bytes per second."""


@dataclass(frozen=True)
class ViewOutcome:
    """A finished run of either kind, and its document."""

    run: Run | LayoutRun
    document: dict[str, Any]

    @property
    def parts(self) -> tuple[Html, list[PagePart]]:
        """Return the outcome and the parts of its page."""
        if isinstance(self.run, LayoutRun):
            return layout_parts(self.run, self.document)
        hero, parts, _ = run_parts(self.run, self.document)
        return hero, parts

    @property
    def report(self) -> str:
        """Return the page that ``--html`` writes."""
        if isinstance(self.run, LayoutRun):
            return layout_page(self.run, self.document)
        return run_page(self.run, self.document)

    @property
    def csv(self) -> str:
        """Return what ``--csv`` prints."""
        if isinstance(self.run, LayoutRun):
            return figures_csv([flat_figures(self.document)])
        return run_csv(jobs_of(self.document))


def outcome_of(scenario: Scenario) -> ViewOutcome:
    """Return the finished run of *scenario*, as of ``run --fast``. Raise SpecError listing everything that is wrong."""
    if has_layout(scenario):
        laid_out = layout_answer(scenario)
        return ViewOutcome(laid_out.run, layout_document(laid_out))
    finished = answer(scenario, keep_rates=True)
    return ViewOutcome(
        finished.run, run_document(finished.run, finished.inputs, finished.warnings, finished.bottlenecks, finished.market, finished.plan)
    )


def view_of(choice: Choice) -> View:
    """Return what the page shows for *choice*; if it cannot run, the simulator's messages and the remedies that they suggest."""
    view: View = {"command": f"{program()} {quote_words(command_of(choice))}", "query": query_of(choice), "described": {}, "fixed": {}}
    try:
        scenario = scenario_of(choice)
        view |= {"described": described_values(choice), "fixed": ineffective_controls(choice)}
        outcome = outcome_of(scenario)
    except SpecError as error:
        problems = [named_as_called(problem) for problem in error.problems]
        return view | {"problems": problems, "remedies": [remedy for problem in problems for remedy in remedies(choice, problem)]}
    hero, parts = outcome.parts
    return view | {
        "title": f"{outcome.document['workload']} on {outcome.document['hardware']}",
        "brief": summary_line(outcome.document),
        "verdict": jobs_of(outcome.document)[0]["verdict"],
        "result": hero,
        "parts": join(*(part.html for part in parts if part.ident in _FIRST)),
        "more": join(*(part.html for part in parts if part.ident not in _FIRST)),
        "problems": [],
    }


def fitting(choice: Choice) -> Choice:
    """Return *choice*; if it does not fit into GPU memory, with up to `_CHANGES` of the changes that messages suggest, if it fits then."""
    return _fitting(choice, _CHANGES) or choice


_CHANGES: Final = 3


def _fitting(choice: Choice, changes: int) -> Choice | None:
    try:
        scenario = scenario_of(choice)
        _ = checked_hardware(scenario) if has_layout(scenario) else prepare(scenario)
        return choice
    except Infeasible as error:
        tries = [remedy["query"] for problem in error.problems for remedy in remedies(choice, problem)] if changes else []
        return next(filter(None, (_fitting(choice_of(parse_qsl(query)), changes - 1) for query in tries)), None)
    except SpecError:
        return None


def remedies(choice: Choice, problem: str) -> list[dict[str, str]]:
    """Return the changes of *choice* that *problem* suggests: the options in its text, with the query that each of them leads to.

    If the word after an option is not a value of it, as in "--nodes needs one group", there is no suggestion.
    """
    changes = []
    for words in dict.fromkeys(match[0].strip() for match in _SUGGESTED.finditer(problem) if match.start() > 0):
        values, sets = dict(choice.values), choice.sets
        for option, value in _OPTION.findall(words):
            if option == "--set":
                sets = (*sets, value)
                if _OF_GROUP.match(value):  # it sets for one group what --nodes sets for all
                    values.pop("nodes", None)
            elif option in KEYS:
                values[KEYS[option]] = value
        changed = Choice(values, sets)
        if changed != choice and _readable(changed):
            changes.append({"text": words, "query": query_of(changed)})
    return changes


def _readable(choice: Choice) -> bool:
    """Return whether every control of *choice* has a valid value."""
    try:
        scenario_of(choice)
        described_values(choice)
    except SpecError:
        return False
    return True


def jobs_of(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the documents of the jobs in *document*, usually one."""
    jobs: Sequence[Mapping[str, Any]] = document.get("jobs", [document])
    return jobs


def summary_line(document: Mapping[str, Any]) -> str:
    """Return the main figures of *document* in one line: step time, throughput, and the cost of an epoch or the whole job."""
    first = jobs_of(document)[0]
    tokens = first.get("tokens_per_s")
    speed = f"{as_number(tokens)} tokens/s" if tokens else f"{as_number(first['throughput_samples_per_s'])} samples/s"
    job = first["whole_job"]
    cost, unit = (job["cost_usd"], "whole job") if job else (first["cost_per_epoch_usd"], "epoch")
    return ", ".join([f"step {as_time(first['step_time_s'])}", speed, *([] if cost is None else [f"{as_money(cost)} per {unit}"])])


def ineffective_controls(choice: Choice) -> dict[str, str]:
    """Return, by control, the reason why it has no effect on this machine or workload."""
    scenario = scenario_of(choice.without("nodes", "batch", "nic", "price", "sequence"))
    workers = [group for group in loaded_hardware(scenario).spec.groups if group.role == "worker"]
    _, of_workload = sorted_overrides(scenario)
    reasons = {}
    if len(workers) > 1:
        reasons["nodes"] = f"{len(workers)} groups of nodes: write groups.0.count=N and so on under any other field"
    if load_workload(scenario.workload, of_workload).spec.model.transformer is None:
        reasons["sequence"] = "the model is a layer table, traced with a fixed length"
    return reasons


def described_values(choice: Choice) -> dict[str, str]:
    """Return, by control, the value of an empty one: that of the machine's or the workload's description.

    Raise SpecError if one of the two cannot be read with the settings of *choice*.
    """
    scenario = scenario_of(choice.without("nodes", "batch", "nic", "price"))
    hardware = loaded_hardware(scenario).spec
    _, of_workload = sorted_overrides(scenario)
    workload = load_workload(scenario.workload, of_workload).spec
    workers = [group for group in hardware.groups if group.role == "worker"]
    price = node_price(workers[0], scenario.market)
    training, layout = workload.training, workload.training.parallel
    defaults = {
        "nodes": sum(group.count for group in workers),
        "batch": training.batch,
        "precision": training.precision,
        "sequence": workload.model.sequence or "",
        "stack": training.stack.name,
        "nic": f"{workers[0].node.nic.bandwidth / _GBPS:g}",
        "price": "" if price is None else f"{price * 3600:g}",
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "cp": layout.context,
        "ep": layout.expert,
        "shard": layout.shard,
        "schedule": layout.schedule or "1f1b",
        "micro_batches": training.gradient_accumulation_steps,
        "checkpointing": training.activation_checkpointing,
    }
    return {name: str(value) for name, value in defaults.items()}
