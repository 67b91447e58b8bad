"""Which of the project's aims do predictions of the committed measurements meet? A table of aims and results.

An aim selects prediction rows and sets limits for them: the median error, the 90th percentile of errors, or the skill. Aims were set before
the simulator was written; missed ones stay in the table. Those of single sources are in `aims.yaml`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from calibration.validate.carry_over import FAR, NEAR
from calibration.validate.groups import by_novelty
from calibration.validate.scores import ScoredRow, quantile, scores
from sim.report.expected_error import traffic
from sim.spec.yaml import read

FILE: Final = Path(__file__).with_name("aims.yaml")


@dataclass(frozen=True)
class RowFilter:
    """Selects prediction rows that meet all conditions."""

    source: str = ""
    hardware: Sequence[str] = ()
    workload: str = ""
    """The first letters of the workload's name."""
    stacks: Sequence[str] = ()
    """The first letters of the stack's name, any of these."""
    most_nodes: int | None = None
    any_of: Sequence[Mapping[str, Any]] = ()
    """Other conditions, of which one must be met."""

    def selects(self, row: ScoredRow) -> bool:
        """Return whether *row* meets all conditions."""
        question, record = row.question, row.question.record
        return (
            (not self.source or record.source == self.source)
            and (not self.hardware or record.hardware in self.hardware)
            and record.workload.startswith(self.workload)
            and (not self.stacks or question.workload.training.stack.name.startswith(tuple(self.stacks)))
            and (self.most_nodes is None or question.nodes <= self.most_nodes)
            and (not self.any_of or any(RowFilter(**conditions).selects(row) for conditions in self.any_of))
        )


@dataclass(frozen=True, kw_only=True)
class Aim(RowFilter):
    """Sets limits for the errors (fractions) of the predictions in *column* for the rows that it selects."""

    name: str
    median: float
    p90: float | None = None
    column: str = "calibrated"


@cache
def aims() -> tuple[Aim, ...]:
    """Return the aims of `aims.yaml`."""
    return tuple(Aim(**fields) for fields in read(FILE).value["aims"])


LEAST_SKILL: Final = 0.5
"""Least skill over all rows with exposed communication."""
COVERAGE_RANGE: Final = (0.90, 0.99)
LEFT_OUT_LIMITS: Final = {"zero_shot": (0.05, 0.15), "calibrated": (0.03, 0.10)}
"""Largest median and 90th percentile of errors with each source left out."""
LEAST_SOURCE_SKILL: Final = 0.2
MOST_HARM: Final = (0.005, 0.02)
"""Largest increase of a cluster's median and 90th percentile of errors by calibration."""
MOST_GROWTH: Final = 1.3
"""Largest ratio of the 90th percentile of errors at the scales left out to that at the other scales."""


def aims_table(rows: Sequence[ScoredRow], left_out: Mapping[str, Sequence[ScoredRow]] = MappingProxyType({})) -> str:
    """Return a line for each aim that applies to the prediction *rows*: number of rows, result, aim, and whether it is missed.

    *left_out* holds rows that were predicted with something left out (`calibration.validate.carry_over`), which have their own aims.
    """
    lines = [f"{'aim':66} {'rows':>5}  {'reached':>12}  {'aim':>12}"]
    for aim in aims():
        chosen = [row for row in rows if aim.selects(row)]
        if chosen:
            lines.append(_error_line(aim, len(chosen), scores(chosen)[aim.column]))
    lines += _other_aims(rows)
    if source := left_out.get("source"):
        lines += _without_source(source)
    if split := left_out.get("nodes"):
        lines += _growth(split)
    return "\n".join(lines)


def _without_source(rows: Sequence[ScoredRow]) -> Iterator[str]:
    """Yield the lines of aims for *rows* that were predicted without their source."""
    score_of = scores(rows)
    for name, (median, p90) in LEFT_OUT_LIMITS.items():
        met = score_of[name]["median"] <= median and score_of[name]["p90"] <= p90
        both = f"{_percent(score_of[name]['median'])} / {_percent(score_of[name]['p90'])}%"
        yield _line(f"source left out, {name.replace('_', '-')}", len(rows), both, f"{100 * median:g} / {100 * p90:g}%", met)
    for part, score in (("", score_of["calibrated"]), (", exposed rows", score_of["calibrated"]["exposed"])):
        if score["skill"] is not None:
            met = score["skill"] >= LEAST_SKILL
            yield _line(f"source left out, skill{part}", score["points"], f"{score['skill']:.2f}", f"{LEAST_SKILL:g}", met)
    sources: dict[str, list[ScoredRow]] = defaultdict(list)
    clusters: dict[str, list[ScoredRow]] = defaultdict(list)
    for row in rows:
        sources[row.question.record.source].append(row)
        clusters[row.cluster].append(row)
    skill, worst = min((scores(same)["calibrated"]["skill"] or 0.0, name) for name, same in sources.items())
    wanted = f"above {LEAST_SOURCE_SKILL:g}"
    yield _line(f"source left out, skill of the worst ({worst})", len(rows), f"{skill:.2f}", wanted, skill > LEAST_SOURCE_SKILL)
    for name, share, most in (("median", 0.5, MOST_HARM[0]), ("p90", 0.9, MOST_HARM[1])):
        harm, worst = max((quantile(same, "calibrated", share) - quantile(same, "zero_shot", share), of) for of, same in clusters.items())
        yield _line(
            f"calibrated {name} above zero-shot's ({worst})", len(clusters[worst]), f"{100 * harm:.1f}", f"{100 * most:g}", harm <= most
        )
    low, high = COVERAGE_RANGE
    for entry in by_novelty(rows):
        inside = entry["calibrated"]["coverage"]
        wanted = f"{100 * low:g}-{100 * high:g}%"
        yield _line(f"source left out, inside, {entry['novelty']}", entry["points"], f"{_percent(inside)}%", wanted, low <= inside <= high)


def _growth(rows: Sequence[ScoredRow]) -> Iterator[str]:
    """Yield the line of the growth of errors beyond the scales that calibrate."""
    far, near = ([row for row in rows if side in row.novelty] for side in (FAR, NEAR))
    if far and near:
        growth = quantile(far, "calibrated", 0.9) / quantile(near, "calibrated", 0.9)
        yield _line("3+ nodes left out, p90 over that within", len(far), f"{growth:.2f}", f"{MOST_GROWTH:g}", growth <= MOST_GROWTH)


def _error_line(aim: Aim, count: int, score: Mapping[str, Any]) -> str:
    met = score["median"] <= aim.median and (aim.p90 is None or score["p90"] <= aim.p90)
    both = f"{_percent(score['median'])} / {_percent(score['p90'])}%"
    wanted = f"{100 * aim.median:g}{'' if aim.p90 is None else f' / {100 * aim.p90:g}'}%"
    return _line(f"{aim.name}{', zero-shot' if aim.column == 'zero_shot' else ''}", count, both, wanted, met)


def _other_aims(rows: Sequence[ScoredRow]) -> Iterator[str]:
    """Yield the lines of aims other than errors: skill, coverage, and exposed communication over PCIe."""
    score = scores(rows)["calibrated"]
    aim = read(FILE).value["exposed"]
    exposed = scores([row for row in rows if row.question.record.source == aim["source"] and _without_nvlink(row)])["calibrated"]["exposed"]
    if exposed["points"]:
        part = exposed["part_median"]
        yield _line(aim["name"], exposed["points"], f"{part:.2f}", f"{aim['most']:g} of free", part <= aim["most"])
    skill, points = score["exposed"]["skill"], score["exposed"]["points"]
    if points:
        yield _line("skill, rows with at least 10% exposed", points, f"{skill:.2f}", f"{LEAST_SKILL:g}", skill >= LEAST_SKILL)
    sources = {row.question.record.source for row in rows}
    skills = {name: scores([row for row in rows if row.question.record.source == name])["calibrated"]["skill"] or 0.0 for name in sources}
    worst = min(skills, key=lambda name: skills[name])
    yield _line(f"skill of the worst source ({worst})", len(rows), f"{skills[worst]:.2f}", "above 0", skills[worst] > 0.0)
    low, high = COVERAGE_RANGE
    inside = low <= score["coverage"] <= high
    yield _line("rows inside their 95% interval", len(rows), f"{_percent(score['coverage'])}%", f"{100 * low:g}-{100 * high:g}%", inside)


def _line(name: str, rows: int, reached: str, wanted: str, met: bool) -> str:
    return f"{name:66} {rows:5,}  {reached:>12}  {wanted:>12}{'' if met else '  missed'}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _without_nvlink(row: ScoredRow) -> bool:
    return traffic(row.question.hardware.groups[0].node, row.question.job) in ("PCIe", "host memory")
