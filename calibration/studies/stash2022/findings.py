"""Which of Stash's published findings reappear in the simulated study, and with which figures? All verdicts are computed.

The abstract (arXiv 2208.14344) gives directions and two headline figures: up to 90% of training time lost to the interconnect, and up to
5 times slower over the network. A headline reappears if the peak over the same models, batches and machines lies in its band; otherwise
only its direction may reappear. Limits: the models and batches behind the headlines are not published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, NamedTuple

from calibration.studies.stash2022.study import SLICES, SLOWDOWN_THRESHOLD, STALL_THRESHOLD, Crossing, StashRow, StashStudy
from sim.analysis import differential

FindingVerdict = Literal["yes", "in direction", "no"]
STALL_BAND = (STALL_THRESHOLD, 0.95)
SLOWDOWN_BAND = (4.0, 6.0)
"""Bands of a peak that counts as "up to 90%" and as "up to 5x"."""
EQUAL_BYTES = 1.02
"""Largest ratio of gradient bytes at which two networks count as equal."""
_EQUAL_TENSORS = 1.1
"""Largest ratio of gradient tensors at which two networks count as equal."""
_MORE = 1.5
"""Least ratio of tensors, or bytes, at which one network of a pair has clearly more."""
PRICES = {
    "p2.xlarge": 0.90, "p2.8xlarge": 7.20, "p2.16xlarge": 14.40, "2x-p2.8xlarge": 14.40, "p3.2xlarge": 3.06, "p3.8xlarge": 12.24,
    "p3.16xlarge": 24.48, "2x-p3.8xlarge": 24.48,
}  # fmt: skip
"""USD/h in Stash's code (aakash-sharma/DS-Analyzer analyze.py, cost_map)."""


@dataclass(frozen=True)
class Finding:
    """One published finding with the verdict of the simulation."""

    check: str
    claim: str
    verdict: FindingVerdict
    evidence: tuple[str, ...]
    figures: dict[str, float | None] = field(default_factory=dict)


def findings(study: StashStudy) -> list[Finding]:
    """Return each published finding with its verdict."""
    return [_interconnect(study), _network(study), _price(study), _slices(study), _costs(study), _layers(study)]


def case_name(row: StashRow) -> str:
    """Return a case as text."""
    return f"{row.case.model} at {row.case.batch} on {row.case.machine}"


def single_machine_rows(study: StashStudy) -> list[StashRow]:
    """Return the rows of machines with one node."""
    return [row for row in study.rows if row.nodes == 1]


def _interconnect(study: StashStudy) -> Finding:
    worst = max(single_machine_rows(study), key=lambda row: row.interconnect)
    real = max((row for row in single_machine_rows(study) if row.case.machine not in SLICES), key=lambda row: row.interconnect)
    peak = worst.interconnect
    return Finding(
        "A1",
        "the interconnect inside a machine adds up to 90% of training time",
        _verdict(STALL_BAND, peak, peak > 0.5),
        (
            f"peak {100 * peak:.1f}%: {case_name(worst)}; without hypothetical slices {100 * real.interconnect:.1f}%: {case_name(real)}",
            f"{100 * STALL_THRESHOLD:.0f}% on {worst.case.machine} needs {_batches(study.stall_crossings, 'or fewer')}",
        ),
        {"peak_percent": 100 * peak, "peak_without_slices_percent": 100 * real.interconnect},
    )


def _network(study: StashStudy) -> Finding:
    rows = [(row.network, row) for row in study.rows if row.network is not None]
    peak, worst = max(rows, key=lambda pair: pair[0])
    low, high = SLOWDOWN_BAND
    inside = [f"{row.case.model} at {row.case.batch} ({slowdown:.1f})" for slowdown, row in rows if low <= slowdown <= high]
    beyond = [f"{row.case.model} at {row.case.batch} ({slowdown:.1f})" for slowdown, row in rows if slowdown > high]
    return Finding(
        "A2",
        "two instances over the network are up to 5 times slower than one with the same number of GPUs",
        _verdict(SLOWDOWN_BAND, peak, peak > 2),
        (
            f"peak {peak:.1f} times: {case_name(worst)}; slower in {sum(slowdown > 1 for slowdown, _ in rows)} of {len(rows)} cases",
            f"{low:.0f} to {high:.0f} times: {_listed(inside)}; more: {_listed(beyond)}",
            f"at most {SLOWDOWN_THRESHOLD:.0f} times slower on P3 needs {_batches(study.slowdown_crossings, 'or more')}",
        ),
        {"peak_slowdown": peak},
    )


def _verdict(band: tuple[float, float], peak: float, direction: bool) -> FindingVerdict:
    return "yes" if band[0] <= peak <= band[1] else "in direction" if direction else "no"


def _batches(crossings: Iterable[Crossing], way: str) -> str:
    met = [f"{crossing.model} {crossing.batch} {way}" for crossing in crossings if crossing.batch is not None]
    never = [crossing.model for crossing in crossings if crossing.batch is None]
    return f"batches of {_listed(met)}" + (f"; at no batch that fits: {', '.join(never)}" if never else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _price(study: StashStudy) -> Finding:
    """Return whether a more expensive machine is slower in some cases, and which is cheapest per epoch."""
    cases = by_case(study)
    beaten = {key: pair for key, rows in cases.items() if (pair := _dearer_but_slower(rows))}
    models = sorted({model for model, _ in beaten})
    cheapest = [min(rows, key=lambda row: row.cost) for rows in cases.values()]
    single = sum(row.gpus == 1 for row in cheapest)
    far = max(beaten.values(), key=lambda pair: pair[0].times.warm / pair[1].times.warm, default=None)
    alone = [key for key, rows in cases.items() if _dearer_but_slower([row for row in rows if row.nodes == 1])]
    lines = [
        f"a more expensive machine trains more slowly than a cheaper one in {len(beaten)} of {len(cases)} cases ({_listed(models)}), "
        f"without several machines in {len(alone)} ({_listed(sorted({model for model, _ in alone}))})"
    ]
    if far:
        dear, cheap = far
        lines.append(
            f"most: {case_name(dear)} (${3600 * dear.price:.2f}/h) takes {dear.times.warm / cheap.times.warm:.1f} times as long as "
            f"{cheap.case.machine} (${3600 * cheap.price:.2f}/h)"
        )
    lines.append(f"per epoch, a machine with one GPU is cheapest in {single} of {len(cases)} cases")
    return Finding(
        "A3",
        "more expensive GPU instances are not the most performant for every model",
        "yes" if beaten else "no",
        tuple(lines),
        {"cases_percent": 100 * len(beaten) / len(cases), "one_gpu_cheapest_percent": 100 * single / len(cases)},
    )


def by_case(study: StashStudy) -> dict[tuple[str, int], list[StashRow]]:
    """Return the rows of machines that can be rented, by model and batch, if there are at least two."""
    cases: dict[tuple[str, int], list[StashRow]] = {}
    for row in study.rows:
        if row.case.machine not in SLICES:
            cases.setdefault((row.case.model, row.case.batch), []).append(row)
    return {key: rows for key, rows in cases.items() if len(rows) > 1}


def _dearer_but_slower(rows: Sequence[StashRow]) -> tuple[StashRow, StashRow] | None:
    """Return the pair of a more expensive and a cheaper machine with the largest gain in warm epoch time; None if there is none."""
    pairs = [(dear, cheap) for dear in rows for cheap in rows if dear.price > cheap.price and dear.times.warm > cheap.times.warm]
    return max(pairs, key=lambda pair: pair[0].times.warm / pair[1].times.warm, default=None)


def _slices(study: StashStudy) -> Finding:
    good = {(row.case.model, row.case.batch): row for row in study.rows_on("p3.8xlarge")}
    rises = [
        (row.interconnect - good[row.case.model, row.case.batch].interconnect, row)
        for machine in SLICES
        for row in study.rows_on(machine)
        if (row.case.model, row.case.batch) in good
    ]
    most, worst = max(rises, key=lambda pair: pair[0])
    clear = [row for rise, row in rises if rise > 0.05]
    return Finding(
        "A4",
        "AWS can allocate the interconnect of an instance sub-optimally",
        "yes" if clear else "no",
        (
            f"a worse slice adds over 5 points of interconnect stall in {len(clear)} of {len(rises)} cases "
            f"({_listed(sorted({row.case.model for row in clear}))}), most {100 * most:.0f} points: {case_name(worst)}",
        ),
        {"most_points": 100 * most},
    )


def _costs(study: StashStudy) -> Finding:
    """Compare prices with those in Stash's code; if they are equal, costs follow from times as in the study."""
    prices = {row.case.machine: 3600 * row.price for row in study.rows if row.case.machine in PRICES}
    wrong = [machine for machine, price in prices.items() if abs(price / PRICES[machine] - 1) > 1e-6]
    off = [f"{machine} {prices[machine]:.2f} for {PRICES[machine]:.2f}" for machine in wrong]
    return Finding(
        "A5",
        "cost of an epoch = time x price, at the prices of Stash's code",
        "no" if off else "yes",
        (f"{len(prices) - len(off)} of {len(prices)} prices are equal" + (f"; not {', '.join(off)} USD/h" if off else ""),),
    )


# --- layers and gradients --------------------------------------------------------------------------------------------


class LeastSquares(NamedTuple):
    """Time (s) of communication per step as ``start + per_tensor * tensors + per_byte * bytes``, by least squares."""

    start: float
    per_tensor: float
    per_byte: float
    r2: float


def fit(rows: Sequence[StashRow]) -> LeastSquares:
    """Fit the communication times of *rows* to their gradient tensors and bytes."""
    import numpy as np

    causes = np.array([[1.0, row.tensors, row.gradient_bytes] for row in rows])
    times = np.array([row.communication for row in rows])
    solution, *_ = np.linalg.lstsq(causes, times, rcond=None)
    residuals = times - causes @ solution
    start, per_tensor, per_byte = map(float, solution)
    return LeastSquares(start, per_tensor, per_byte, 1.0 - float(residuals @ residuals) / float(((times - times.mean()) ** 2).sum()))


def count_slower_pairs(
    rows: Sequence[StashRow], more: Callable[[StashRow], float], alike: Callable[[StashRow], float], within: float
) -> tuple[int, int]:
    """Count the pairs of networks in which the one with clearly *more* communicates longer; return this count and that of all pairs.

    Only pairs are counted that differ by at most a factor of *within* in *alike* and by at least `_MORE` in *more*.
    """
    longer = [
        (more(one) > more(other)) == (one.communication > other.communication)
        for one, other in combinations(rows, 2)
        if max(alike(one), alike(other)) <= within * min(alike(one), alike(other))
        and max(more(one), more(other)) >= _MORE * min(more(one), more(other))
    ]
    return sum(longer), len(longer)


def _layers(study: StashStudy) -> Finding:
    lines: list[str] = []
    figures: dict[str, float | None] = {}
    agree = True
    for machine in dict.fromkeys(row.case.machine for row in study.micro):
        rows = [row for row in study.micro if row.case.machine == machine]
        tensors = count_slower_pairs(rows, lambda row: row.tensors, lambda row: row.gradient_bytes, EQUAL_BYTES)
        nbytes = count_slower_pairs(rows, lambda row: row.gradient_bytes, lambda row: row.tensors, _EQUAL_TENSORS)
        fitted = fit(rows)
        agree &= tensors[0] == tensors[1] > 0 and nbytes[0] == nbytes[1] > 0 and min(fitted.per_tensor, fitted.per_byte) > 0
        lines.append(
            f"{machine}: with equal gradient bytes, more tensors take longer in {tensors[0]} of {tensors[1]} pairs; with equal numbers "
            f"of tensors, more bytes take longer in {nbytes[0]} of {nbytes[1]}; {1e6 * fitted.per_tensor:.0f} us per tensor and "
            f"{1e9 * fitted.per_byte * 1e3:.1f} ms per GB (least squares, R2 {fitted.r2:.2f})"
        )
        figures |= {f"{machine}_us_per_tensor": 1e6 * fitted.per_tensor, f"{machine}_ms_per_gb": 1e12 * fitted.per_byte}
    claim = "communication stalls grow with the number of layers and with the number of gradients"
    return Finding("A6", claim, "yes" if agree else "in direction" if _grows(study) else "no", tuple(lines), figures)


def _grows(study: StashStudy) -> bool:
    """Return whether both coefficients are positive on two nodes, where communication is not hidden by compute."""
    return min(fit([row for row in study.micro if row.nodes > 1])[1:3]) > 0


# --- other observations ----------------------------------------------------------------------------------------------


def observations(study: StashStudy) -> list[str]:
    """Return sentences on processor and disk stalls and on the effect of normalization and residuals, which the abstract does not cover."""
    lines = [
        _spread("processor (prep) stalls with DALI on the GPU", study.rows, lambda row: differential.prep_stall(row.times).share),
        _spread(
            "disk (fetch) stalls of the cold epoch, one gp2 volume per node",
            study.rows,
            lambda row: differential.fetch_stall(row.times).share,
        ),
    ]
    lines += _budget(study)
    rows = {row.case.model: row for row in study.micro if row.nodes == 1}
    for variant, words in (("_nobn", "without batch normalization"), ("_noresidue", "without residuals")):
        changes = [rows[model].interconnect - rows[model.removesuffix(variant)].interconnect for model in rows if model.endswith(variant)]
        if changes:
            lines.append(f"{words} the interconnect stall changes by {100 * min(changes):+.1f} to {100 * max(changes):+.1f} points")
    return lines


def _budget(study: StashStudy) -> list[str]:
    """Return a sentence on the savings with a time budget of twice the fastest machine's time, as in the paper's recommendations."""
    savings = []
    for rows in by_case(study).values():
        fastest = min(rows, key=lambda row: row.times.warm)
        cheapest = min((row for row in rows if row.times.warm <= 2 * fastest.times.warm), key=lambda row: row.cost)
        savings.append(1.0 - cheapest.cost / fastest.cost)
    if not savings:
        return []
    saved = sorted(savings)
    return [
        f"an epoch that may take twice as long as on the fastest machine costs {100 * saved[len(saved) // 2]:.0f}% less in the median, "
        f"{100 * saved[-1]:.0f}% at most; over 1% less in {sum(saving > 0.01 for saving in saved)} of {len(saved)} cases"
    ]


def _spread(what: str, rows: Sequence[StashRow], share: Callable[[StashRow], float]) -> str:
    ordered = sorted(rows, key=share)
    least, middle, most = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    return f"{what}: {100 * share(least):.0f} to {100 * share(most):.0f}%, median {100 * share(middle):.0f}%; most: {case_name(most)}"
