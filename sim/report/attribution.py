"""Why do the two stall measurements of a profile differ? All figures come from its runs; the reasons follow from what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.analysis.attribution import StallGap
from sim.events import STALLS, Cause
from sim.study.profile import Profile
from sim.units import show

RUNS = {"interconnect": ("RUN0", "RUN1"), "network": ("RUN1", "the two nodes"), "prep": ("RUN1", "RUN3"), "fetch": ("RUN3", "RUN2")}
"""The two runs that define each stall: subtraction subtracts the first from the second."""
_WORTH = 0.05
"""Smallest gap that is reported, as a share of the larger of the two measurements of the stall."""
_SEEN = 1e-3
"""Smallest stall that is reported, as a share of the step."""


def gaps_document(profile: Profile) -> dict[str, Any]:
    """Return each stall (seconds per step) by subtraction and by direct attribution, the gaps between the two, and the totals."""
    first, cold = profile.one_gpu.jobs[0].warm, profile.real.jobs[0].first
    return {
        "stalls": {
            name: {
                "subtraction_s": both.subtraction,
                "direct_s": both.direct,
                "gaps": [
                    {"cause": gap.cause.value, "kind": gap.kind, "difference_s": gap.seconds, "before_s": gap.before, "after_s": gap.after}
                    | {"why": _why(profile, name, gap)}
                    for gap in both.gaps
                ],
            }
            for name, both in profile.comparisons.items()
        },
        "all": {
            "subtraction_s": cold.step_time - first.step_time,
            "direct_s": cold.step_time - cold.stalls[Cause.COMPUTE],
            "run0_waits_s": first.step_time - first.stalls[Cause.COMPUTE],
            "run0_waits_for": [cause.value for cause in STALLS if cause != Cause.COMPUTE and first.stalls[cause] > _SEEN * first.step_time],
            "compute_grows_s": cold.stalls[Cause.COMPUTE] - first.stalls[Cause.COMPUTE],
        },
    }


def _why(profile: Profile, stall: str, gap: StallGap) -> str:
    before, after = RUNS[stall]
    if gap.kind == "as well":
        cached = profile.real.jobs[0].hit_ratio
        cache = f" ({100 * cached:.0f}% of reads from the page cache)" if stall == "fetch" else ""
        return f"{before}{cache} also waits for {stall}, which subtraction does not count"
    change = "" if gap.cause == Cause.COMPUTE else f"{_time(gap.before)} in {before}, {_time(gap.after)} in {after}"
    if gap.kind == "hidden":
        same = stall == "network" and gap.cause == Cause.INTERCONNECT
        hidden = "the same exchange, counted as network there" if same else "overlaps with other waits, and overlapping waits count once"
        return f"{change}: {hidden}" if change else "kernels are shorter"
    parts = [part for part in (change, _reason(profile, stall, gap.cause)) if part]
    return f"{': '.join(parts) or 'kernels are longer'}; not a wait for {stall}"


def _reason(profile: Profile, stall: str, cause: Cause) -> str:
    """Return why *cause* takes longer in the second run of *stall*; empty if there is no specific reason."""
    job, (fewer, more) = profile.real.jobs[0].job, (profile.one_gpu.jobs[0].job.ranks, profile.synthetic.jobs[0].job.ranks)
    if stall == "interconnect" and more > fewer:
        return {
            Cause.COPY: f"{more:,} GPUs copy at once, not {fewer:,}",
            Cause.STRAGGLER: f"the slowest of {more:,} ranks, not of {fewer:,}",
            Cause.COMPUTE: "gradients are copied to and from buckets, and exchanged while kernels run",
        }.get(cause, "")
    jitter = job.workload.loader_jitter
    if stall == "prep" and cause == Cause.STRAGGLER and jitter and job.workload.training.noise.compute_cv is None:
        return f"step times on real data vary by {100 * jitter:.0f}% more (input.compute_cv)"
    if stall == "prep" and cause == Cause.FETCH:
        return f"only {100 * profile.real.jobs[0].hit_ratio:.0f}% of the reads come from the page cache: RUN3 is not warm"
    return ""


def gaps_lines(document: Mapping[str, Any]) -> list[str]:
    """Return lines that tell where the two methods of an `gaps_document` differ noticeably, and why."""
    lines = []
    for name, both in document["stalls"].items():
        gaps = [both["gaps"][place] for place in notable_gaps(document, name)]
        if gaps:
            lines.append(f"  {name}: {_time(both['subtraction_s'])} by subtraction, {_time(both['direct_s'])} of waits in {RUNS[name][1]}")
            lines += [f"    {_signed(gap['difference_s'])} {gap['cause']}: {gap['why']}" for gap in gaps]
    return [*(["why the two methods differ (per step):"] if lines else []), *lines, _sum(document["all"])]


def notable_gaps(document: Mapping[str, Any], stall: str) -> list[int]:
    """Return the indices of the gaps of *stall* in an `gaps_document` that are large enough to report."""
    both, totals = document["stalls"][stall], document["all"]
    largest = max(abs(both["subtraction_s"]), both["direct_s"])
    if largest <= _SEEN * (totals["direct_s"] + totals["subtraction_s"]):
        return []
    return [place for place, gap in enumerate(both["gaps"]) if abs(gap["difference_s"]) > _WORTH * largest]


def _sum(totals: Mapping[str, Any]) -> str:
    reasons = []
    if totals["run0_waits_for"]:
        waits = f"{_time(totals['run0_waits_s'])} ({', '.join(totals['run0_waits_for'])})"
        reasons.append(f"RUN0, which subtraction counts as compute, waits {waits}")
    grows = totals["compute_grows_s"]
    if abs(grows) > _SEEN * totals["direct_s"]:
        reasons.append(f"compute takes {_time(abs(grows))} {'longer' if grows > 0 else 'less'} than in RUN0")
    both = f"{_time(totals['subtraction_s'])} per step; RUN2 waits {_time(totals['direct_s'])}"
    why = f": {'; '.join(reasons)}" if reasons else ""
    return f"interconnect, prep and fetch add up to RUN2 - RUN0, {both}{why}"


def _time(seconds: float) -> str:
    return show(seconds, "time")


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{_time(abs(seconds))}"
