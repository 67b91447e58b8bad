"""How do runs scale with the number of nodes or GPUs? One point per size; a point that cannot run states why, and the others continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sim.analysis.bottleneck import Bottleneck
from sim.analysis.cost import Market
from sim.analysis.whole_job import JobPlan
from sim.simulate import Run
from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.pool import Progress
from sim.study.scenario import Answer, CheckedScenario, Scenario, answer, answer_to, loaded_hardware, prepare, requested_gpus


def scaling(scenario: Scenario, nodes: Sequence[int], gpus: Sequence[int]) -> list[Scenario]:
    """Return one scenario for each number of *nodes* or *gpus*; at most one list has several numbers, an empty one keeps the default."""
    if len(nodes) > 1 and len(gpus) > 1:
        raise SpecError("a scaling table varies --nodes or --gpus, not both at once")
    return [replace(scenario, nodes=count, gpus=total) for count in (nodes or (None,)) for total in (gpus or (None,))]


def not_on_size(scenario: Scenario, error: SpecError) -> Infeasible:
    """Return *error*, the reason why the layout of *scenario* does not suit its number of nodes and GPUs, for a cell of a table."""
    hardware = loaded_hardware(scenario).spec
    return Infeasible(error.problems, hardware.worker_nodes, requested_gpus(hardware, scenario))


@dataclass(frozen=True)
class SizePoint:
    """One size: its run, or why it cannot run, in full (``problem``) and in a few words (``brief``)."""

    hardware: str
    workload: str
    nodes: int = 0
    gpus: int = 0
    run: Run | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    bottlenecks: Sequence[Bottleneck] = ()
    problem: str = ""
    brief: str = ""
    market: Market = "on_demand"
    plan: JobPlan | None = None


def answers(
    scenarios: Sequence[Scenario],
    thorough: bool = False,
    progress: Progress = lambda done, of: None,
    keep_rates: bool = False,
    trying: Progress | None = None,
) -> list[SizePoint]:
    """Run *scenarios* and return a point for each; *progress* gets the number done, *trying* the number of runs that vary estimates.

    A single scenario must be able to run. Several are all checked before the first one runs, and those that cannot run state why.
    *thorough* also finds what bounds the last one that runs, and which estimates decide its result; *keep_rates* is for plots of a single
    scenario. Raise SpecError for bad input.
    """
    if len(scenarios) == 1:
        first = answer(scenarios[0], thorough, keep_rates, trying)
        return [_ran(scenarios[0], first)]
    questions = [(scenario, _question_of(scenario)) for scenario in scenarios]
    _require_different([question for _, question in questions if isinstance(question, CheckedScenario)])
    last = max((place for place, (_, question) in enumerate(questions) if isinstance(question, CheckedScenario)), default=-1)
    points = []
    for place, (scenario, question) in enumerate(questions):
        if isinstance(question, Infeasible):
            point = SizePoint(
                scenario.hardware, scenario.workload, question.nodes, question.gpus, problem=str(question), brief=question.brief
            )
        else:
            point = _ran(scenario, answer_to(question, scenario, thorough=thorough and place == last, progress=trying))
        points.append(point)
        progress(len(points), len(questions))
    return points


def _require_different(questions: Sequence[CheckedScenario]) -> None:
    """Raise SpecError if different numbers of nodes give the same run: jobs that are placed explicitly leave other nodes idle."""
    placements = [[job.placement for job in question.jobs] for question in questions]
    if any(placement in placements[:index] for index, placement in enumerate(placements)):
        raise SpecError("--nodes: the placement fixes the jobs' nodes, so the number of nodes has no effect; write one number")


def _ran(scenario: Scenario, finished: Answer) -> SizePoint:
    return SizePoint(
        scenario.hardware, scenario.workload, run=finished.run, inputs=finished.inputs, warnings=finished.warnings,
        bottlenecks=finished.bottlenecks, market=finished.market, plan=finished.plan,
    )  # fmt: skip


def _question_of(scenario: Scenario) -> CheckedScenario | Infeasible:
    try:
        return prepare(scenario)
    except Infeasible as problem:
        return problem
