"""How do batch and sequence change over a pre-training run? Regimes of a number of tokens each, before and after the workload's own.

``batch_ramp`` grows the global batch in equal steps, each for the same number of tokens (like Megatron-LM's ``rampup-batch-size``, which
counts samples; Brown et al., arXiv 2005.14165; BLOOM, arXiv 2211.05100). ``first`` and ``last`` are other parts, such as short sequences
at the beginning and long ones at the end (Llama 3, arXiv 2407.21783, section 3.4.2).
"""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from sim.spec.fields import Count, Reader, Spec

_TOKENS: Final = re.compile(r"(\d{1,15}(?:\.\d{1,12})?(?:[eE]\+?\d{1,2})?)([KMBTkmbt])?", re.ASCII)


def tokens_in(text: str) -> float | None:
    """Return the number of tokens in *text*, such as ``300B``, ``1.5T`` or ``3e11``; None if it is not a number above 0."""
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
    Reader(_tokens, {"type": ["number", "string"], "description": "a number of tokens above 0, for example 12B"}),
]


class Regime(Spec):
    """A part of pre-training with its own global batch, sequence or other settings; everything else is as in the workload."""

    tokens: Tokens
    """Tokens of this part."""
    global_batch: Count | None = None
    """Samples of one step over all GPUs; None: as in the workload."""
    sequence: Count | None = None
    """Tokens of one sample; None: as in the workload."""
    set: tuple[str, ...] = ()
    """Other changes, in the form of ``--set``, such as ``training.parallel.context=16``."""

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.global_batch is None and self.sequence is None and not self.set:
            raise ValueError("a part of pre-training that changes nothing; set global_batch, sequence or set, or leave the part out")
        return self


class BatchRamp(Spec):
    """A global batch that grows from *start* in increments of *step* to the workload's own, over *tokens* in equal parts."""

    start: Count
    """Global batch of the first steps, in samples."""
    step: Count
    """Increment of the global batch, in samples."""
    tokens: Tokens
    """Tokens until the global batch reaches the workload's own."""

    def regimes(self, global_batch: int) -> Iterator[Regime]:
        """Yield the parts before *global_batch* is reached. Raise ValueError if the increments do not reach it exactly."""
        if self.start >= global_batch:
            raise ValueError(
                f"start {self.start} is not below the global batch of {global_batch}; use a smaller start, or leave batch_ramp out"
            )
        many, rest = divmod(global_batch - self.start, self.step)
        if rest:
            gap = global_batch - self.start
            raise ValueError(
                f"the batch never reaches {global_batch} from {self.start} in steps of {self.step}; use a step that divides {gap}"
            )
        for number in range(many):
            yield Regime(tokens=self.tokens / many, global_batch=self.start + number * self.step)


class Pretraining(Spec):
    """The parts of a token budget before and after the steps that the workload describes."""

    batch_ramp: BatchRamp | None = None
    """How the global batch grows at the beginning; None: it does not."""
    first: tuple[Regime, ...] = ()
    """Parts after ``batch_ramp`` and before the workload's own steps, in order."""
    last: tuple[Regime, ...] = Field(default=())
    """Parts after the workload's own steps, in order."""

    @property
    def least_tokens(self) -> float:
        """Return the tokens of all parts except the workload's own steps."""
        return (self.batch_ramp.tokens if self.batch_ramp else 0.0) + sum(part.tokens for part in (*self.first, *self.last))

    def before(self, global_batch: int) -> list[Regime]:
        """Return the parts before the workload's own steps, with *global_batch* samples. Raise ValueError if a ramp does not reach it."""
        return [*(self.batch_ramp.regimes(global_batch) if self.batch_ramp else ()), *self.first]
