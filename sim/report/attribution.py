"""Why do the two stall measurements of a profile differ? All figures come from its runs; the reasons follow from what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.analysis.attribution import Gap
from sim.events import STALLS, Cause
from sim.study.profile import Profile
from sim.units import show

RUNS = {"interconnect": ("RUN0", "RUN1"), "network": ("RUN1", "the two nodes"), "prep": ("RUN1", "RUN3"), "fetch": ("RUN3", "RUN2")}
"""The two runs that define each stall: subtraction subtracts the first from the second."""
_WORTH = 0.05
"""Smallest gap that is reported, as a share of the larger of the two measurements of the stall."""
_SEEN = 1e-3
"""Smallest stall that is reported, as a share of the step."""


def apart_document(profile: Profile) -> dict[str, Any]:
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
            for name, both in profile.apart.items()
        },
        "all": {
            "subtraction_s": cold.step_time - first.step_time,
            "direct_s": cold.step_time - cold.stalls[Cause.COMPUTE],
            "run0_waits_s": first.step_time - first.stalls[Cause.COMPUTE],
            "run0_waits_for": [cause.value for cause in STALLS if cause != Cause.COMPUTE and first.stalls[cause] > _SEEN * first.step_time],
            "compute_grows_s": cold.stalls[Cause.COMPUTE] - first.stalls[Cause.COMPUTE],
        },
    }


def _why(profile: Profile, stall: str, gap: Gap) -> str:
    before, after = RUNS[stall]
    if gap.kind == "as well":
        cached = profile.real.jobs[0].hit_ratio
        cache = f", whose page cache has {100 * cached:.0f}% of the reads" if stall == "fetch" else ""
        return f"{before}{cache}, waits for {stall} as well: subtraction does not see that part"
    change = "" if gap.cause == Cause.COMPUTE else f"{_time(gap.before)} in {before}, {_time(gap.after)} in {after}"
    if gap.kind == "hidden":
        same = stall == "network" and gap.cause == Cause.INTERCONNECT
        hidden = (
            "the same exchange, whose waits are the network's there" if same else "it passes unseen during other waits, which count once"
        )
        return f"{change}: {hidden}" if change else "kernels are shorter"
    parts = [part for part in (change, _reason(profile, stall, gap.cause)) if part]
    return f"{': '.join(parts) or 'kernels are longer'}; no wait for {stall}"


def _reason(profile: Profile, stall: str, cause: Cause) -> str:
    """Return why *cause* takes longer in the second run of *stall*; empty if there is no specific reason."""
    job, (fewer, more) = profile.real.jobs[0].job, (profile.one_gpu.jobs[0].job.ranks, profile.synthetic.jobs[0].job.ranks)
    if stall == "interconnect" and more > fewer:
        return {
            Cause.COPY: f"{more} GPUs copy at once, not {fewer}",
            Cause.STRAGGLER: f"the slowest of {more} ranks, not of {fewer}",
            Cause.COMPUTE: "gradients are copied to and from buckets, and exchanged beside kernels",
        }.get(cause, "")
    jitter = job.workload.input.jitter
    if stall == "prep" and cause == Cause.STRAGGLER and jitter and job.workload.training.noise.compute_cv is None:
        return f"steps on real data spread by {100 * jitter:.0f}% more (input.compute_cv)"
    if stall == "prep" and cause == Cause.FETCH:
        return f"the page cache has {100 * profile.real.jobs[0].hit_ratio:.0f}% of the reads, and RUN3 is not warm"
    return ""


def apart_lines(document: Mapping[str, Any]) -> list[str]:
    """Return lines that tell where the two methods of an `apart_document` differ noticeably, and why."""
    lines = []
    for name, both in document["stalls"].items():
        gaps = [both["gaps"][place] for place in noticed(document, name)]
        if gaps:
            lines.append(
                f"  {name}: {_time(both['subtraction_s'])} by subtraction, {_time(both['direct_s'])} waited for in {RUNS[name][1]}"
            )
            lines += [f"    {_signed(gap['difference_s'])} {gap['cause']}: {gap['why']}" for gap in gaps]
    return [*(["why the two differ (a step):"] if lines else []), *lines, _sum(document["all"])]


def noticed(document: Mapping[str, Any], stall: str) -> list[int]:
    """Return the indices of the gaps of *stall* in an `apart_document` that are large enough to report."""
    both, totals = document["stalls"][stall], document["all"]
    largest = max(abs(both["subtraction_s"]), both["direct_s"])
    if largest <= _SEEN * (totals["direct_s"] + totals["subtraction_s"]):
        return []
    return [place for place, gap in enumerate(both["gaps"]) if abs(gap["difference_s"]) > _WORTH * largest]


def _sum(totals: Mapping[str, Any]) -> str:
    waits = f", waits {_time(totals['run0_waits_s'])} itself ({', '.join(totals['run0_waits_for'])})" if totals["run0_waits_for"] else ""
    grows = totals["compute_grows_s"]
    more = (
        f"; compute itself is {_time(abs(grows))} {'longer' if grows > 0 else 'shorter'}" if abs(grows) > _SEEN * totals["direct_s"] else ""
    )
    both = f"{_time(totals['subtraction_s'])} a step; RUN2 waits {_time(totals['direct_s'])}"
    reasons = f": RUN0, which subtraction takes for compute{waits}{more}" if waits or more else ""
    return f"interconnect, prep and fetch together are RUN2 - RUN0, {both}{reasons}"


def _time(seconds: float) -> str:
    return show(seconds, "time")


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{_time(abs(seconds))}"
