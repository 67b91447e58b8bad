"""How often do the machines of a fleet fail, and how long does each stage of the recovery take? Rates per node with their intervals.

One file describes one level of failure rate (``hardware/parts/reliability``: low, middle, high), because the differences between fleets
outweigh any refinement of the model. `sim.analysis.course` draws runs from it; `sim.analysis.renewal` has the closed form.
"""

from typing import Any, Self

from pydantic import Field, model_validator

from sim.spec.fields import Count, Duration, Factor, FailureRate, Fraction, Source, Span, Spec


class Interval(Spec):
    """A rate with the interval that contains 95% of the fleets of this level."""

    value: FailureRate
    """Rate of the median fleet."""
    low: FailureRate
    """Lower end of the 95% interval."""
    high: FailureRate
    """Upper end of the 95% interval."""
    degrees_of_freedom: Count | None = None
    """Degrees of freedom of the spread between fleets: one less than the number of fleets from which it is estimated. Rates then follow
    Student's t (of the logarithm), with 95% of fleets in the interval. None: log-normal."""
    source: Source

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not 0 < self.low <= self.value <= self.high:
            raise ValueError("a rate must be inside its interval; write 0 < low <= value <= high")
        return self


def _around(value: float, interval: tuple[float, float] | None) -> None:
    """Raise ValueError if *value*, the middle, is outside its *interval*."""
    if interval is not None and not 0 < interval[0] <= value <= interval[1]:
        raise ValueError("the middle must be inside its interval; write 0 < low <= middle <= high")


class ShareOfFleets(Spec):
    """A share that differs between fleets."""

    share: Fraction
    interval: tuple[Fraction, Fraction] | None = None
    """95% interval of the share (low, high), from which each fleet's share is drawn. The source says whether it covers different fleets or
    only the counting error of one. None: all fleets have the same share."""
    degrees_of_freedom: Count | None = None
    """Degrees of freedom of the spread between fleets, if it is estimated from a few: the share then follows Student's t (of the
    logarithm). None: log-normal."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        _around(self.share, self.interval)
        return self


class RateOfFleets(Spec):
    """A rate that differs between fleets."""

    rate: FailureRate
    interval: tuple[FailureRate, FailureRate] | None = None
    """95% interval of the rate (low, high), from which each fleet's rate is drawn. The source says whether it covers different fleets or
    only the counting error of one. None: all fleets have the same rate."""
    degrees_of_freedom: Count | None = None
    """Degrees of freedom of the spread between fleets, if it is estimated from a few: the rate then follows Student's t (of the logarithm).
    None: log-normal."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        _around(self.rate, self.interval)
        return self


class FaultCause(ShareOfFleets):
    """One cause of interruptions, and the stages of the recovery from it."""

    name: str
    share: Fraction
    """Share of this cause in all unexpected interruptions."""
    detection: Span
    """Time from the fault until the job has stopped."""
    timed_out: bool = False
    """Whether a timeout of the collectives stops the job: the stack's ``collective_timeout`` then replaces *detection*, if it has one."""
    localization: Span
    """Time from then until the faulty node is identified."""
    replaces: Fraction
    """Share of these faults after which the node leaves the job."""
    silent_for: Duration = 0.0
    """For silent corruption: work done in this time before the detection is lost, so an older checkpoint is loaded. 0: not silent."""
    source: Source


class Repeats(ShareOfFleets):
    """Repeated faults of the same node: a *share* of faults is followed by another one, *after* this time on average."""

    share: Fraction
    """Share of faults that recur on the node after it has returned."""
    after: Duration
    """Mean time until the fault recurs."""
    source: Source

    @model_validator(mode="after")
    def _end(self) -> Self:
        if self.share == 1:
            raise ValueError("with a share of 1, every fault would be followed by another one without end; write a share below 1")
        return self


class Correlated(RateOfFleets):
    """Rare events that stop several nodes at once, such as the failure of a rack or a switch; all these nodes return together."""

    rate: FailureRate
    """Rate of such events, per node of the job."""
    nodes: Count
    """Number of nodes that one event stops."""
    repair: Span
    """Time until the nodes return."""
    source: Source


class NewFleet(ShareOfFleets):
    """Early failures, in addition to the constant rate: a *share* of the GPUs of a new fleet fails *within* this time on average."""

    share: Fraction
    """Share of the GPUs that fail early."""
    within: Duration
    """Mean time until an early failure."""
    source: Source

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if not self.within:
            raise ValueError("early failures need a time above zero; for example, write within: 30 d")
        return self


class SlowNodes(RateOfFleets):
    """Episodes in which one slow node makes the steps of the job longer by *factor*; they last *duration* on average."""

    rate: FailureRate
    """Rate of episodes per node."""
    factor: Factor
    """Step time of the job during an episode, relative to the normal step time; at least 1."""
    duration: Duration
    """Mean time until an episode ends or is noticed."""
    source: Source

    @model_validator(mode="after")
    def _slows(self) -> Self:
        if self.factor < 1:
            raise ValueError(f"a slow node makes steps longer, which a factor of {self.factor:g} does not; write 1 or more")
        return self


class Planned(RateOfFleets):
    """Planned stops of the job, before which all work is saved. Training continues after *duration* and a restart."""

    rate: FailureRate
    """Rate of stops of a job of *nodes* nodes or more, whatever its size."""
    nodes: Count
    """Nodes from which on a job stops this often; smaller jobs stop less, in proportion."""
    duration: Duration
    """Duration of one stop, before the restart in place."""
    source: Source

    @model_validator(mode="before")
    @classmethod
    def _of_a_job(cls, data: Any) -> Any:
        if isinstance(data, dict) and "rate" in data and "nodes" not in data:  # as in files of earlier versions, with another rate
            raise ValueError(
                "nodes is missing; stops are those of a job of so many nodes, not of a node: for 0.0004 /d per node, for example, write "
                "rate: 0.4 /d and nodes: 1000"
            )
        return data


class Quantile(Spec):
    """A quantile of the repair time: a *share* of repairs takes at most *time*."""

    share: Fraction
    """Share of repairs."""
    time: Duration
    """Time within which they are done."""


class Restart(Spec):
    """Time from the placement of a job to its first process: a constant for each doubling of its GPUs, with a minimum."""

    base: Duration
    """Time at 2048 GPUs."""
    per_doubling: Duration
    """Additional time for each doubling of the GPUs (less for each halving)."""
    least: Duration
    """Minimum time, for any number of GPUs."""
    source: Source


class Reliability(Spec):
    """Failures of the nodes of a fleet, and the recovery from them."""

    name: str
    gpus_per_node: Count
    """GPUs of the nodes to which the rates refer; rates of other nodes are proportional to their GPUs."""
    rate: Interval
    """Rate of unexpected interruptions of a job, per node."""
    spread_of_nodes: Factor
    """Shape parameter of the gamma distribution (mean 1) of the rates of single nodes: low if few nodes fail often."""
    repeats: Repeats
    """Faults that recur on the same node."""
    correlated: Correlated
    """Faults of a rack or switch, which stop several nodes."""
    new_fleet: NewFleet
    """Early failures in a fleet's first months."""
    causes: tuple[FaultCause, ...] = Field(min_length=1)
    """Causes of unexpected interruptions; their shares add up to 1."""
    repair: tuple[Quantile, ...]
    """Quantiles of the time until a node returns, from share 0 to share 1."""
    repair_interval: tuple[Factor, Factor] | None = None
    """Factor on all times of ``repair`` that covers 95% of fleets: low, high; none: unknown, so all fleets have the times as written."""
    spare: Span
    """Time until a warm spare takes the place of a node."""
    requeue: Restart
    """Restart time of a job that goes through the scheduler again."""
    in_place: Restart
    """Restart time of a job that keeps its nodes."""
    communicators: Span
    """Time until all process groups are up. The stack's ``compilation`` at each start is added to this."""
    slow: SlowNodes
    """Nodes that slow the job down without failing."""
    planned: Planned
    """Planned stops, for example for maintenance."""
    source: Source

    @model_validator(mode="after")
    def _complete(self) -> Self:
        total = sum(cause.share for cause in self.causes)
        if abs(total - 1) > 0.005:
            raise ValueError(f"the shares of the causes add up to {total:.3g}; write shares that add up to 1")
        if len({cause.name for cause in self.causes}) < len(self.causes):
            raise ValueError("two causes have the same name; give each its own name")
        if self.correlated.rate > self.rate.value:
            raise ValueError("rate includes the faults that affect several nodes; write a correlated.rate of at most rate.value")
        _around(1.0, self.repair_interval)
        levels, times = [step.share for step in self.repair], [step.time for step in self.repair]
        if len(levels) < 2 or levels != sorted(levels) or times != sorted(times) or levels[0] != 0 or levels[-1] != 1:
            raise ValueError(
                "repair must list increasing times by quantile, from 0 to 1; for example, write [{share: 0, time: 1 min}, "
                "{share: 1, time: 90 d}]"
            )
        return self
