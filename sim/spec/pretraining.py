"""How do batch and sequence change over a pre-training run? Regimes, each for so many tokens, before and after the workload's own.

``batch_ramp`` grows the global batch in equal steps, each for equally many tokens (as Megatron-LM's ``rampup-batch-size``, which counts
samples; Brown et al., arXiv 2005.14165; BLOOM, arXiv 2211.05100). ``first`` and ``last`` are further parts, such as short sequences at
the beginning and long ones at the end (Llama 3, arXiv 2407.21783, section 3.4.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from sim.spec.fields import Count, Spec

_TOKENS: Final = re.compile(r"(\d{1,15}(?:\.\d{1,12})?(?:[eE]\+?\d{1,2})?)([KMBTkmbt])?", re.ASCII)


def tokens_in(text: str) -> float | None:
    """Return the tokens that *text* says, such as ``300B``, ``1.5T`` or ``3e11``; None where it says none."""
    match = _TOKENS.fullmatch(text)
    if match is None or not float(match[1]):
        return None
    return float(match[1]) * 1000.0 ** " KMBT".index((match[2] or " ").upper())


def _tokens(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18:
        return float(value)
    tokens = tokens_in(value) if isinstance(value, str) else None
    if tokens is None:
        raise ValueError(f"{str(value)[:40]!r} is not a number of tokens above 0; write one such as 12B or 1.5T")
    return tokens


Tokens = Annotated[
    float,
    BeforeValidator(_tokens),
    WithJsonSchema({"type": ["number", "string"], "description": "a number of tokens above 0, for example 12B"}),
]


class Regime(Spec):
    """So many tokens with a global batch or a sequence of their own; what is left out is as in the workload."""

    tokens: Tokens
    """Tokens of this part."""
    global_batch: Count | None = None
    """Samples of one step."""
    sequence: Count | None = None
    """Tokens of one sample."""
    set: tuple[str, ...] = ()
    """What else changes, as after ``--set``, such as ``training.parallel.context=16``."""

    @model_validator(mode="after")
    def _changes(self) -> Regime:
        if self.global_batch is None and self.sequence is None and not self.set:
            raise ValueError("a part of pre-training that changes nothing; write global_batch, sequence or set, or leave it out")
        return self


class BatchRamp(Spec):
    """A global batch that grows from *start* by *step* to the workload's own, in equal parts of *tokens*."""

    start: Count
    """Samples of the first steps."""
    step: Count
    """Samples by which the batch grows."""
    tokens: Tokens
    """Tokens until the batch is the workload's own."""

    def regimes(self, global_batch: int) -> Iterator[Regime]:
        """Yield the parts before *global_batch*. Raise ValueError where the steps do not come to it."""
        if self.start >= global_batch:
            raise ValueError(f"start {self.start} is not below the global batch of {global_batch}; write less, or leave batch_ramp out")
        many, rest = divmod(global_batch - self.start, self.step)
        if rest:
            gap = global_batch - self.start
            raise ValueError(f"from {self.start} in steps of {self.step} the batch never is {global_batch}; take a step that divides {gap}")
        for number in range(many):
            yield Regime(tokens=self.tokens / many, global_batch=self.start + number * self.step)


class Pretraining(Spec):
    """What comes before and after the steps that the workload describes, of a budget of tokens."""

    batch_ramp: BatchRamp | None = None
    """How the global batch grows at the beginning."""
    first: tuple[Regime, ...] = ()
    """Parts before the workload's own steps, in order; behind ``batch_ramp``."""
    last: tuple[Regime, ...] = Field(default=())
    """Parts after them."""

    @property
    def least_tokens(self) -> float:
        """Return the tokens of all parts but the workload's own."""
        return (self.batch_ramp.tokens if self.batch_ramp else 0.0) + sum(part.tokens for part in (*self.first, *self.last))

    def before(self, global_batch: int) -> list[Regime]:
        """Return the parts before the workload's own steps of *global_batch* samples. Raise ValueError where a ramp does not come to it."""
        return [*(self.batch_ramp.regimes(global_batch) if self.batch_ramp else ()), *self.first]
