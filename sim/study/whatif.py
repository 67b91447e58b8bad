"""How much would more of one resource help? The step with each resource slightly, twice and infinitely faster, and the value of that.

Every figure is a separate run (`sim.study.faster`), so overlap counts. ``T(k)`` is the warm step with *k* times of one resource::

    shadow price = T(1) - T(1.01)             s per step for 1% more: zero if overlap hides the resource
    enough       = least k with T(k) <= 1.01 T(infinite), by bisection: beyond it, more gains less than 1%
    break-even   = epoch(1) / epoch(k) - 1    price increase at which an epoch costs the same as before
    on the path  = the resource's s per step on the critical path of the run as it is (`sim.analysis.critical_path`)

Limits: warm epochs; one resource at a time; at the edge of overlap, 5% less may delay the step although 5% more does not help.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from sim.analysis.bottleneck import RESOURCES
from sim.analysis.critical_path import critical_path
from sim.causes import Resource
from sim.cluster.storage import read_rate
from sim.events import Cause
from sim.simulate import JobRun, Run, simulate
from sim.spec.hardware import Hardware, Node
from sim.spec.yaml import SpecError
from sim.study.faster import INFINITE, faster, resources_behind
from sim.study.faster_machines import FasterMachine, faster_machines
from sim.study.needs import GONE, least_sufficient_factor
from sim.study.pool import Progress
from sim.study.scenario import Scenario, prepare
from sim.training.job import Job

PERCENT = 1.01
_EDGE = 1.05
"""Factor of more and less of a resource with which an edge is detected."""
_KINK = 0.25
"""Difference of the two one-sided elasticities above which the step is on an edge: a quarter of the step changes its bound."""
_DIGITS = 6
"""Decimals of a share of the step to which two runs are compared: beyond is rounding of the simulated state."""
_NOTHING = 10.0**-_DIGITS
_LESS = 1.001
"""Minimum ratio of the step with infinitely much of a resource to the step with twice of it for a loss to be reported."""
_SAME = 1.01
"""Maximum ratio of the increase of one cause to the lost time for the cause to explain the loss."""


class StepOutcome(NamedTuple):
    """Seconds of a warm step, and of the steps of a warm epoch."""

    step_time: float
    epoch_time: float
    stalls: Mapping[Cause, float] = MappingProxyType({})
    """Seconds of a warm step by cause."""


class Crowding(NamedTuple):
    """Why infinitely much of a resource gains less than twice of it: *cause* takes *longer* seconds more per step, mostly at *at*."""

    cause: Cause
    longer: float
    at: str


class UpgradeUnit(NamedTuple):
    """The unit of a resource: its *name*, the *amount* on each node, and the seconds of a step that one more saves."""

    name: str
    amount: float
    shadow_price: float


@dataclass(frozen=True)
class Upgrade:
    """The effect of more of one resource."""

    resource: Resource
    twice: StepOutcome
    infinite: StepOutcome
    shadow_price: float
    """Seconds of a step that 1% more saves."""
    on_path: float
    """Seconds of the current step on the critical path that the resource would shorten: 101 shadow prices, to first order."""
    unit: UpgradeUnit | None
    enough: float | None
    """Factor of the resource beyond which more gains less than 1%: 1 if there is enough now; None if more always helps."""
    less: float
    """Step time (s) with the resource 5% slower."""
    more: float
    """Step time (s) with the resource 5% faster."""
    crowded: Crowding | None = None
    """Why infinitely much gains less than twice as much; None if it does not."""

    def bound(self, step_time: float) -> tuple[float, float]:
        """Return the shares of *step_time* that scale with the resource when it is slower, and when it is faster."""
        return (self.less / step_time - 1.0) / (_EDGE - 1.0), (1.0 - self.more / step_time) / (1.0 - 1.0 / _EDGE)

    def on_edge(self, step_time: float) -> bool:
        """Return whether *step_time* is at the point where the resource begins to bound it."""
        slower, faster = self.bound(step_time)
        return slower - faster > _KINK


@dataclass(frozen=True)
class WhatIf:
    """The run as it is, and the effect of more of each resource, best first."""

    run: Run
    inputs: Mapping[str, str]
    upgrades: tuple[Upgrade, ...]
    first_epoch_time: float
    """Seconds of the first epoch, for which nothing is cached."""
    machines: tuple[FasterMachine, ...] = ()
    """Machines with faster GPUs, if these help most."""

    @property
    def job(self) -> JobRun:
        """Return the only job."""
        return self.run.jobs[0]

    @property
    def now(self) -> StepOutcome:
        """Return the times of the run as it is."""
        return _outcome(self.run)


def break_even(now: StepOutcome, then: StepOutcome) -> float:
    """Return the relative price increase at which an epoch costs the same *then* as *now*."""
    return now.epoch_time / then.epoch_time - 1.0


def whatif(scenario: Scenario, progress: Progress | None = None) -> WhatIf:
    """Return the effect of more of each resource on the only job of *scenario*; *progress* gets the resources done and their total."""
    question = prepare(scenario)
    if len(question.jobs) != 1:
        raise SpecError(f"{scenario.workload}: lists {len(question.jobs)} jobs; what-if takes one workload")
    job = question.jobs[0].averaged  # compare means, not draws
    trials = _ResourceTrials(question.hardware, job)
    upgrades = []
    for resource in RESOURCES:
        upgrades.append(_upgrade(trials, resource))
        if progress is not None:
            progress(len(upgrades), len(RESOURCES))
    now = _outcome(trials.run).step_time
    upgrades.sort(key=lambda upgrade: [round(outcome.step_time / now, _DIGITS) for outcome in (upgrade.twice, upgrade.infinite)])
    machines = faster_machines(scenario, trials.run) if upgrades[0].resource == "gpu" and upgrades[0].twice.step_time < now else []
    first = simulate(question.hardware, [job], keep_log=False).jobs[0].first.time
    return WhatIf(trials.run, question.inputs, tuple(upgrades), first, tuple(machines))


class _ResourceTrials:
    """Simulations of one job with one resource changed."""

    def __init__(self, hardware: Hardware, job: Job) -> None:
        self._hardware, self._job = hardware, job
        self.run = simulate(hardware, [job], cold=False)
        self.on_path: dict[Resource, float] = defaultdict(float)
        """Seconds of a step on the critical path, by the resource that would shorten them."""
        for row in critical_path(self.run.log, self.run.jobs[0].warm.windows):
            for resource in resources_behind(row.cause, row.resource, job.workload.input.loader):
                self.on_path[resource] += row.seconds

    def outcome(self, resource: Resource, factor: float) -> StepOutcome:
        """Return the times of the job with *factor* times of *resource*."""
        return _outcome(self.with_more(resource, factor))

    def with_more(self, resource: Resource, factor: float) -> Run:
        """Return the run with *factor* times of *resource*."""
        hardware, jobs = faster(self._hardware, [self._job], [resource], factor)
        return simulate(hardware, jobs, cold=False, credits=self.run.credits)

    def step_time(self, change: Callable[[Node], Node]) -> float:
        """Return the step time with *change* applied to each node."""
        groups = tuple(group.model_copy(update={"node": change(group.node)}) for group in self._hardware.groups)
        hardware = self._hardware.model_copy(update={"groups": groups})
        return _outcome(simulate(hardware, [self._job], cold=False, credits=self.run.credits)).step_time


def _outcome(run: Run) -> StepOutcome:
    warm = run.jobs[0].warm
    return StepOutcome(warm.step_time, warm.time, warm.stalls)


def _upgrade(trials: _ResourceTrials, resource: Resource) -> Upgrade:
    now = _outcome(trials.run)
    infinite, less = trials.outcome(resource, INFINITE), trials.outcome(resource, 1.0 / _EDGE).step_time
    if abs(now.step_time - infinite.step_time) < _NOTHING * now.step_time:
        on_path, unit = trials.on_path[resource], _unit(trials, resource, 0.0)
        return Upgrade(resource, now, now, 0.0, on_path, unit, 1.0, less, now.step_time)
    percent = now.step_time - trials.outcome(resource, PERCENT).step_time
    twice = trials.outcome(resource, 2.0)
    return Upgrade(
        resource,
        twice,
        infinite,
        percent,
        trials.on_path[resource],
        _unit(trials, resource, percent),
        _enough(trials, resource, now.step_time, infinite.step_time),
        less,
        trials.outcome(resource, _EDGE).step_time,
        _crowded(trials, resource, twice, infinite),
    )


def _crowded(trials: _ResourceTrials, resource: Resource, twice: StepOutcome, infinite: StepOutcome) -> Crowding | None:
    """Return what gets longer if infinitely much of *resource* gains less than twice of it: work that shares a link with faster work."""
    lost = infinite.step_time - twice.step_time
    if infinite.step_time <= _LESS * twice.step_time or infinite.step_time >= _outcome(trials.run).step_time:
        return None
    longer = {cause: seconds - twice.stalls[cause] for cause, seconds in infinite.stalls.items()}
    cause = max(longer, key=lambda name: longer[name])
    if longer[cause] > _SAME * lost:  # it also replaces waits that ended, so it need not be crowded
        return None
    spent: dict[str, float] = defaultdict(float)
    for work in trials.with_more(resource, INFINITE).log.work:
        if work.cause is cause:
            spent[work.resource] += work.t1 - work.t0
    return Crowding(cause, longer[cause], max(spent, key=lambda at: spent[at], default=""))


def _enough(trials: _ResourceTrials, resource: Resource, now: float, infinite: float) -> float | None:
    if now <= GONE * infinite:
        return 1.0
    return least_sufficient_factor(lambda factor: trials.outcome(resource, factor).step_time, infinite)


def _unit(trials: _ResourceTrials, resource: Resource, percent: float) -> UpgradeUnit | None:
    """Return the unit of *resource*, of which 1% more saves *percent* seconds of a step; None if it has none, or if nodes differ in it."""
    units = {_unit_of(trials, resource, percent, node) for node in trials.run.nodes()}
    return units.pop() if len(units) == 1 else None


def _unit_of(trials: _ResourceTrials, resource: Resource, percent: float, node: Node) -> UpgradeUnit | None:
    job, share = trials.run.jobs[0].job, PERCENT - 1.0
    if resource == "cpu":
        cores = float(node.host.physical_cores)
        return UpgradeUnit("core", cores, percent / (share * cores))
    if resource == "disk" and node.storage is not None and job.workload.input.loader != "synthetic":
        rate = read_rate(node.storage, job.workload.dataset, burst=False) / 1e6
        return UpgradeUnit("MB/s", rate, percent / (share * rate))
    if resource == "network" and len(job.placement) > 1:
        rate = node.nic.count * node.nic.bandwidth * 8 / 1e9
        saved = _outcome(trials.run).step_time - trials.step_time(_wider) if percent else 0.0
        return UpgradeUnit("Gbps", rate, saved / (share * rate))
    return None


def _wider(node: Node) -> Node:
    """Return *node* with 1% more bandwidth of its NICs, at unchanged latency."""
    transport = node.nic.transport
    transport = transport.model_copy(update={"total_efficiency": PERCENT * transport.total_efficiency})
    return node.model_copy(update={"nic": node.nic.model_copy(update={"transport": transport})})
