"""How often do machines of a fleet fail, and how long does each stage of the recovery take? Rates per node with their intervals.

One file describes one level of a fleet (``hardware/parts/reliability``: low, middle, high failure rate), since fleets differ by more than
any refinement of the model. `sim.analysis.course` draws runs from it; `sim.analysis.renewal` has the closed form.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from sim.spec.fields import Count, Factor, FailureRate, Fraction, Seconds, Source, Span, Spec


class Interval(Spec):
    """A rate with the interval that holds 95% of the fleets of this level."""

    value: FailureRate
    """The middle."""
    low: FailureRate
    """95% of fleets have more."""
    high: FailureRate
    """95% of fleets have less."""
    source: Source

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not 0 < self.low <= self.value <= self.high:
            raise ValueError("a rate lies inside its interval: write 0 < low <= value <= high")
        return self


def _around(value: float, interval: tuple[float, float] | None) -> None:
    """Raise ValueError where *value*, the middle, is outside its *interval*."""
    if interval is not None and not 0 < interval[0] <= value <= interval[1]:
        raise ValueError("the middle lies inside its interval: write 0 < low <= middle <= high")


class ShareOfFleets(Spec):
    """A share that differs between fleets."""

    share: Fraction
    interval: tuple[Fraction, Fraction] | None = None
    """Of the share: drawn between the two (95%), of fleets or of one fleet's count as its source says; none: the middle."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        _around(self.share, self.interval)
        return self


class RateOfFleets(Spec):
    """A rate that differs between fleets."""

    rate: FailureRate
    interval: tuple[FailureRate, FailureRate] | None = None
    """Of the rate: drawn between the two (95%), of fleets or of one fleet's count as its source says; none: the middle."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        _around(self.rate, self.interval)
        return self


class FaultCause(ShareOfFleets):
    """One cause of interruptions and what it takes to get over it."""

    name: str
    share: Fraction
    """Of all unexpected interruptions."""
    detection: Span
    """From the fault until the job has stopped."""
    localisation: Span
    """Until the faulty node is known."""
    replaces: Fraction
    """Share of these faults after which the node leaves the job."""
    silent_for: Seconds = 0.0
    """Work up to this long before the detection is worthless, so that older checkpoints are taken."""
    source: Source


class Repeats(ShareOfFleets):
    """Faults that follow on the same node: a *share* of faults is followed by one more, *after* this time on average."""

    share: Fraction
    """Of faults that come back on a node just returned."""
    after: Seconds
    """Mean time until they do."""
    source: Source

    @model_validator(mode="after")
    def _end(self) -> Self:
        if self.share == 1:
            raise ValueError("each fault would be followed by another for ever; write a share below 1")
        return self


class Correlated(RateOfFleets):
    """Rare events that take several nodes at once, such as a rack or a switch; all of them return together."""

    rate: FailureRate
    """Events per node."""
    nodes: Count
    """That one such fault stops."""
    repair: Span
    """Mean time to repair."""
    source: Source


class NewFleet(ShareOfFleets):
    """Early failures: a *share* of the GPUs of a new fleet fails *within* this time on average, beside the constant rate."""

    share: Fraction
    """Of the GPUs, those that fail early."""
    within: Seconds
    """Mean time until they do."""
    source: Source

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if not self.within:
            raise ValueError("early failures come within some time; write for example within: 30 d")
        return self


class SlowNodes(RateOfFleets):
    """Episodes in which one node slows the job by *factor*, until they end or are noticed after *duration* on average."""

    rate: FailureRate
    """Episodes per node."""
    factor: Factor
    """Step time of the job while it lasts, over the usual."""
    duration: Seconds
    """Until it ends or is noticed, on average."""
    source: Source

    @model_validator(mode="after")
    def _slows(self) -> Self:
        if self.factor < 1:
            raise ValueError(f"a slow node makes steps longer, not {self.factor:g} times as long; write a factor of 1 or more")
        return self


class Planned(RateOfFleets):
    """Planned stops of the job: *rate* per job, each without rework; training goes on after *duration* and a restart."""

    rate: FailureRate
    """Stops of one job."""
    duration: Seconds
    """Of one stop, before the restart."""
    source: Source


class Quantile(Spec):
    """A *share* of repairs takes no longer than *time*."""

    share: Fraction
    """Of repairs."""
    time: Seconds
    """In which they are done."""


class Restart(Spec):
    """Time from a placed job to the first process: *base* at 2048 GPUs and *per_doubling* more for each doubling; at least *least*."""

    base: Seconds
    """At 2048 GPUs."""
    per_doubling: Seconds
    """More for each doubling of GPUs."""
    least: Seconds
    """However few the GPUs are."""
    source: Source


class Reliability(Spec):
    """Failures of the nodes of a fleet, and the recovery from them."""

    name: str
    gpus_per_node: Count
    """Of the nodes that the rates speak of; nodes with fewer GPUs fail in proportion."""
    rate: Interval
    """Unexpected interruptions of one job, per node."""
    spread_of_nodes: Factor
    """Shape of the gamma distribution of the rates of single nodes (mean 1): small where few nodes fail often."""
    repeats: Repeats
    """Faults that come back on the same node."""
    correlated: Correlated
    """Faults of a rack or switch, which stop many nodes."""
    new_fleet: NewFleet
    """More faults in a fleet's first months."""
    causes: tuple[FaultCause, ...] = Field(min_length=1)
    """Of unexpected interruptions, with what each takes."""
    repair: tuple[Quantile, ...]
    """Quantiles of the time until a node returns."""
    repair_interval: tuple[Factor, Factor] | None = None
    """All times of ``repair`` in 95% of fleets, over those written: low and high; none: not known, they are as written."""
    spare: Span
    """Until a warm spare takes the place of a node."""
    requeue: Restart
    """Of a job that goes through the scheduler again."""
    in_place: Restart
    """Of a job that keeps its nodes."""
    communicators: Span
    """Until all process groups are up. What a stack compiles at each start comes on top (``compilation`` of a stack)."""
    slow: SlowNodes
    """Nodes that slow the job without failing."""
    planned: Planned
    """Stops for maintenance."""
    source: Source

    @model_validator(mode="after")
    def _complete(self) -> Self:
        total = sum(cause.share for cause in self.causes)
        if abs(total - 1) > 0.005:
            raise ValueError(f"the shares of the causes add up to {total:.3g}; write shares that add up to 1")
        if len({cause.name for cause in self.causes}) < len(self.causes):
            raise ValueError("two causes have the same name; write each once")
        if self.correlated.rate > self.rate.value:
            raise ValueError("rate counts the faults that take several nodes as well; write a correlated.rate no higher than rate.value")
        _around(1.0, self.repair_interval)
        levels, times = [step.share for step in self.repair], [step.time for step in self.repair]
        if len(levels) < 2 or levels != sorted(levels) or times != sorted(times) or levels[0] != 0 or levels[-1] != 1:
            raise ValueError(
                "repair lists times by quantile, growing from 0 to 1; write for example [{share: 0, time: 1 min}, {share: 1, time: 90 d}]"
            )
        return self
