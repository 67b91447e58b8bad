"""How long does pre-training with ramps take? One step of each part is simulated, and multiplied by the steps of the part.

Parts are those of `sim.spec.pretraining`; each takes the least number of whole steps that hold its tokens. Limits: layouts only; parts
follow each other without a restart; all steps of a part take the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sim.mesh import LayoutRun
from sim.spec.pretraining import Pretraining, Regime
from sim.spec.yaml import SpecError
from sim.study.one_batch import without_micro_batches
from sim.study.scenario import Scenario, with_overrides, without_keys
from sim.units import show_tokens


@dataclass(frozen=True)
class PretrainingPart:
    """A part of pre-training, and its simulated step."""

    tokens: float
    global_batch: int
    sequence: int
    tokens_per_sample: float
    """The mean; without padding below ``sequence``."""
    step_time: float
    changes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Return the number of whole steps that hold the tokens."""
        return math.ceil(round(self.tokens / (self.global_batch * self.tokens_per_sample), 9))

    @property
    def time(self) -> float:
        """Return the seconds of all steps."""
        return self.steps * self.step_time


def parts_of(scenario: Scenario, run: LayoutRun, tokens: float, simulate: Callable[[Scenario], LayoutRun]) -> tuple[PretrainingPart, ...]:
    """Return the parts of a pre-training of *tokens* tokens; *run* is the step of the main part, and *simulate* runs the other parts.

    Return an empty tuple without ramps. Raise SpecError if *tokens* are too few for the parts, or if a part cannot run.
    """
    ramps = run.workload.pretraining
    sequence, each = run.workload.sequence, run.workload.tokens_per_sample
    if ramps is None or sequence is None or each is None:
        return ()
    left = round(tokens - ramps.least_tokens)
    if left < 0:
        raise SpecError(
            f"--tokens {show_tokens(tokens)}: the parts of pretraining already need {show_tokens(ramps.least_tokens)}; write at least "
            "that many, or shorter parts"
        )
    one = run.global_batch * each
    if 0 < left < one:
        raise SpecError(
            f"--tokens {show_tokens(tokens)}: the parts of pretraining leave {left:,.0f} for the workload's own steps of {one:,.0f} each; "
            f"write {show_tokens(ramps.least_tokens)}, or {show_tokens(ramps.least_tokens + one)} and more"
        )
    own_batch = replace(without_micro_batches(scenario), plan=None, global_batch=run.global_batch)
    own = PretrainingPart(left, run.global_batch, sequence, each, run.step_time)
    before = [_part(own_batch, regime, name, simulate) for name, regime in _named(ramps, run.global_batch)]
    after = [_part(own_batch, regime, f"last[{number}]", simulate) for number, regime in enumerate(ramps.last)]
    return (*before, *([own] if left else []), *after)


def _named(pretraining: Pretraining, global_batch: int) -> list[tuple[str, Regime]]:
    try:
        regimes = pretraining.before(global_batch)
    except ValueError as error:
        raise SpecError(f"pretraining.batch_ramp: {error}") from None
    ramp = len(regimes) - len(pretraining.first)
    return [
        (f"first[{number - ramp}]" if number >= ramp else f"batch_ramp, global batch {each.global_batch}", each)
        for number, each in enumerate(regimes)
    ]


def _part(scenario: Scenario, regime: Regime, name: str, simulate: Callable[[Scenario], LayoutRun]) -> PretrainingPart:
    """Return the part *regime* of *scenario*. Raise SpecError with its *name* if it cannot run."""
    bare = scenario if regime.sequence is None else replace(without_keys(scenario, ["model.sequence"]), sequence=regime.sequence)
    changed = replace(with_overrides(bare, regime.set), global_batch=regime.global_batch or scenario.global_batch)
    try:
        run = simulate(changed)
    except SpecError as error:
        raise SpecError([f"pretraining.{name}: {problem}" for problem in error.problems]) from None
    sequence, each = run.workload.sequence, run.workload.tokens_per_sample
    assert sequence is not None and each is not None
    one = run.global_batch * each
    if regime.tokens < one:
        raise SpecError(
            f"pretraining.{name}: {regime.tokens:,.0f} tokens are less than one step of {one:,.0f} ({run.global_batch} samples of "
            f"{each:,.0f}); write at least that many"
        )
    return PretrainingPart(regime.tokens, run.global_batch, sequence, each, run.step_time, regime.set)
