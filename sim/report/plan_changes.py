"""How is it written what would change the answer of a plan? The winner under each change, and where another layout takes the lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.study.plan.sensitivity import SHARE
from sim.units import rounded, show


def turn_text(turn: Mapping[str, Any]) -> str:
    """Return which layout wins under the change *turn*, and by how much."""
    if turn["best"] is None:
        return f"{turn['change']}: {turn['problem']}"
    if turn["same"]:
        return f"{turn['change']}: the same layout wins, at {show(turn['step_time_s'], 'time')} per step"
    if turn["tie"]:
        kept = f"the same layout, {show(turn['plan_step_time_s'], 'time')} per step, is within the expected error of the best"
        best = f"{turn['best']} [{turn['stack']}] at {show(turn['step_time_s'], 'time')}"
        return f"{turn['change']}: {kept}, {best}"
    of_plan = (
        ", because the planned layout does not fit"
        if turn["plan_step_time_s"] is None
        else f" against {show(turn['plan_step_time_s'], 'time')} with the planned layout"
    )
    return f"{turn['change']}: {turn['best']} [{turn['stack']}] wins, {show(turn['step_time_s'], 'time')} per step{of_plan}"


def flip_lines(turn: Mapping[str, Any]) -> list[str]:
    """Return a line for each pair of values between which another layout takes the lead, and how far there is no such flip."""
    if turn["least_times"] is None:
        return []
    if turn["least_times"] == turn["most_times"]:
        return ["no layout can run at other values"]
    if not turn["flips"]:
        return [f"no flip within {_times(turn['least_times'])}x to {_times(turn['most_times'])}x"]
    lines = [_flip_text(flip, turn["unit"]) for flip in turn["flips"]]
    rises = [flip["lost"] > flip["holds"] for flip in turn["flips"]]
    lines += [f"no flip down to {_times(turn['least_times'])}x"] if False not in rises and turn["least_times"] < 1 else []
    return [*lines, f"no flip up to {_times(turn['most_times'])}x"] if True not in rises and turn["most_times"] > 1 else lines


def _flip_text(flip: Mapping[str, Any], unit: str) -> str:
    holds, lost, end = (f"{100 * flip[key]:.0f}%" if unit == SHARE else f"{flip[key]:,.0f}" for key in ("holds", "lost", "end"))
    what = f"flips between {holds} and {lost} {unit}: {flip['best']} [{flip['stack']}] is best beyond that"
    if flip["behind"] is None:
        return f"{what}; the planned layout is not among those searched at {end}"
    tie = ", within the expected error" if flip["tie"] else ""
    return f"{what}; at {end} the planned layout is {rounded(100 * flip['behind'], 2)}% worse{tie}"


def _times(times: float) -> str:
    return f"1/{1 / times:g}" if times < 1 else f"{times:g}"
