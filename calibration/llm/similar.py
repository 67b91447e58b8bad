"""How much of one measured run's error do other runs share? More, the more they have in common with it.

The share is the correlation of log errors between two runs of one source that agree in that many of six `traits`; each source has one vote.
Errors beyond `LARGEST` count as that: repeats of a run can differ several times over, and no other run shares such an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from calibration.llm.case import Case

TRAITS: Final = 6
LARGEST: Final = 0.2
"""Log error that larger ones are cut to: about the 90th percentile of errors."""
SCALES: Final = (("to 8 GPUs", 8), ("to 64 GPUs", 64), ("to 256 GPUs", 256))

PairSums = Sequence[tuple[float, float]]
"""By number of common traits: mean over all pairs of the product of both errors, and of the mean of their squares."""


def scale_of(case: Case) -> str:
    """Return the class of the number of GPUs of *case*."""
    return next((name for name, most in SCALES if case.gpus <= most), "above 256 GPUs")


def traits(case: Case) -> tuple[str, ...]:
    """Return what is compared between two runs: family, model, GPU, precision, axes and scale."""
    return (case.model_family, case.row.text["model"], case.chip.name, case.precision, case.axes, scale_of(case))


def common_traits(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return the number of `traits` that are equal."""
    return sum(a == b for a, b in zip(one, other, strict=True))


def cut(error: float) -> float:
    """Return the log error *error*, at most `LARGEST` from 0."""
    return max(-LARGEST, min(LARGEST, error))


def pair_sums(runs: Sequence[tuple[Case, float]]) -> PairSums:
    """Return the sums over pairs of *runs* of one source, each with its log error."""
    sums = [(0.0, 0.0)] * (TRAITS + 1)
    errors = [(traits(case), cut(error)) for case, error in runs]
    for at, (first, a) in enumerate(errors):
        for second, b in errors[:at]:
            count = common_traits(first, second)
            products, squares = sums[count]
            sums[count] = (products + a * b, squares + (a * a + b * b) / 2)
    pairs = max(1, len(runs) * (len(runs) - 1) // 2)
    return [(products / pairs, squares / pairs) for products, squares in sums]


def shared_error(sources: Iterable[PairSums]) -> tuple[float, ...]:
    """Return the share of a run's log error that another run has, by number of common traits; it never falls with more of them."""
    votes = list(sources)
    shares = []
    for count in range(TRAITS + 1):
        products, squares = (sum(sums[count][part] for sums in votes) for part in (0, 1))
        shares.append(min(1.0, products / squares) if squares else 0.0)
    return tuple(accumulate(shares, max, initial=0.0))[1:]
