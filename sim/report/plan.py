"""How is a plan reported? As a JSON document and as text: the best layouts, what limits each, and what is proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sim import __version__
from sim.analysis.energy import KWH, GridIntensity, grid_of
from sim.events import Cause
from sim.mesh import LayoutRun, worker_node
from sim.report.document import run_document
from sim.report.energy import grid_text, power_cap_figures
from sim.report.expected_error import expected_job_error, extrapolation_reason
from sim.report.goodput import goodput_of
from sim.report.layouts.layout import layout_document, layout_name
from sim.report.layouts.layout_error import expected_layout_error
from sim.report.layouts.layout_files import run_command
from sim.report.prices import price_lines, price_rows
from sim.report.validated import ExpectedError
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.layout import LayoutAnswer
from sim.study.not_validated import not_validated
from sim.study.options import Weeks
from sim.study.plan.data_parallel import job_of, run_replicas
from sim.study.plan.flips import Flip
from sim.study.plan.question import LayoutPlan, cost_of_step, headroom
from sim.study.plan.search import EQUAL, THRASH, Outcome
from sim.study.plan.sensitivity import ChangeEffect
from sim.study.plan.space import LayoutCandidate, cut_parts, fsdp_left_out
from sim.study.power_cap import slower_runs
from sim.study.saving import slowdown_by_store
from sim.study.scenario import sorted_overrides
from sim.study.weeks import with_reliability
from sim.units import any_of, pluralized, show

SCHEMA: Final = 1
PARTS: Final[Mapping[str, str]] = {
    "compute": "compute",
    "data": "gradient reduction",
    "shard": "gathering of shards",
    "tensor": "tensor-parallel messages",
    "pipeline": "pipeline bubble and messages",
    "context": "context-parallel messages",
    "expert": "expert messages",
    "norm": "gradient norm",
    "input": "waiting for input",
    "straggler": "stragglers",
    "launch": "launches",
}
"""The parts of a step's time in words."""


PRICED: Final = "--set price.on_demand='10 USD/h'"
TIE: Final = 0.05
"""Share of a step within which layouts count as equal if no validated error applies (estimate: the spread of repeated runs)."""


def tie(outcome: Outcome) -> float:
    """Return the median expected error of the prediction of *outcome*, as a share of the step."""
    expected = _expected_error(outcome)
    return TIE if expected is None else float(expected["median"])


def _expected_error(outcome: Outcome) -> ExpectedError | None:
    """Return the expected error of the prediction of *outcome*: that of `run` for the same layout."""
    run, (setting, candidate) = outcome.run, outcome.placed_layout
    if run.workload.training.has_layout:
        return expected_layout_error(run)
    error = expected_job_error(job_of(setting, candidate), [run.node], outcome.step_time)
    return None if error is None else error | {"not_validated": []}


def tie_between(one: Outcome, best: Outcome) -> float:
    """Return the share of a step within which *one* ties with the *best*: the larger of their expected errors."""
    return max(tie(one), tie(best))


def _extrapolated(outcome: Outcome) -> str | None:
    """Return in what *outcome* is beyond the measured runs, empty if it is not; None if nothing like it was measured."""
    expected = _expected_error(outcome)
    return None if expected is None else extrapolation_reason(expected)


def _ties(one: Outcome, best: Outcome) -> bool:
    return one.value <= best.value * (1.0 + tie_between(one, best))


def plan_document(
    plan: LayoutPlan,
    turns: Sequence[ChangeEffect] = (),
    with_failures: bool = False,
    reliability: str | None = None,
    spares: int | None = None,
) -> dict[str, Any]:
    """Return the document of *plan*, layouts best first; *with_failures* adds weeks of the best, at a level of *reliability*.

    Raise SpecError if failures are requested but the number of tokens of the job is not specified.
    """
    tally, setting = plan.tally, plan.layouts[0][0]
    front = plan.front()
    best = tally.outcomes[0]
    rows = [_row(plan, each, best, on) for each, on in zip(tally.outcomes, front, strict=True)]
    question = plan.question
    return {
        "schema": SCHEMA,
        "hardware": setting.hardware.name,
        "workload": setting.workload.name,
        "nodes": sorted({each.nodes for each, _ in plan.layouts}),
        "gpus": sorted({each.nodes * each.gpus_per_node for each, _ in plan.layouts}),
        "global_batch": plan.global_batch,
        "sequence": plan.sequence,
        "tokens": plan.tokens,
        "objective": question.limits.objective,
        "fixed": dict(question.fixed),
        "candidates": tally.candidates,
        "infeasible": tally.infeasible,
        "excluded_by_bound": tally.excluded if tally.complete else 0,
        "open": 0 if tally.complete else tally.excluded,
        "evaluated": tally.bounded,
        "simulated": len(tally.outcomes),
        "complete": tally.complete,
        "gap": tally.gap,
        "interrupted": tally.interrupted,
        "tie": tie(best),
        "ties": sum(row["tie"] for row in rows),
        "verdict": verdict(plan, rows),
        "layouts": rows,
        "sensitivity": [_turn(turn, tie(best)) for turn in turns],
        "expected_error": _expected_error(best),
        "with_failures": _with_failures(plan, reliability, spares) if with_failures else None,
        "power_cap": None if best.limit is None else power_cap_figures(best.limit),
        "assumptions": _assumptions(plan),
        "warnings": _warnings(plan),
        "version": __version__,
        "inputs_sha256": dict(plan.inputs),
    }


def _row(plan: LayoutPlan, outcome: Outcome, best: Outcome, on_front: bool) -> dict[str, Any]:
    run, candidate = outcome.run, outcome.placed_layout.candidate
    tokens = None if plan.tokens_per_sample is None else plan.tokens_per_sample * run.global_batch
    money = cost_of_step(outcome)
    steps = plan.steps
    slower = outcome.step_time / run.step_time
    own = run.mesh.parallel.model_dump(mode="json")
    parallel = {**own, "schedule": candidate.schedule if candidate.pipeline > 1 else None, "data": candidate.data}
    parallel["sequence"] = run.mesh.parallel.sequence_parallel
    return {
        "name": candidate_name(candidate),
        "parallel": parallel,
        "nodes": run.nodes,
        "gpus": run.gpus,
        "batch_per_gpu": candidate.batch,
        "micro_batches": candidate.micro_batches,
        "activation_checkpointing": candidate.checkpointing,
        "stack": candidate.stack,
        "precision": candidate.precision,
        "step_time_s": outcome.step_time,
        "penalized_step_time_s": outcome.time,
        "bound_s": outcome.bound,
        "samples_per_s_per_gpu": run.throughput / run.gpus / slower,
        "tokens_per_s_per_gpu": None if tokens is None else tokens / outcome.step_time / run.gpus,
        "model_flops_utilization": None if run.model_flops_utilization is None else run.model_flops_utilization / slower,
        "memory_peak_bytes": run.memory_peak_bytes,
        "memory_headroom_bytes": headroom(outcome),
        "memory_verdict": run.memory_verdict,
        "cost_per_step_usd": money,
        **_energy_of(plan, outcome, tokens),
        "cost_per_sample_usd": None if money is None else money / run.global_batch,
        "cost_per_token_usd": None if money is None or not tokens else money / tokens,
        "job_time_s": None if steps is None else steps * outcome.step_time,
        "job_cost_usd": None if steps is None or money is None else steps * money,
        "seconds": parts(outcome),
        "limit": limit_text(outcome),
        "why": reasons_text(outcome, best),
        "not_validated": not_validated(run),
        "extrapolated": _extrapolated(outcome),
        "tie_within": tie_between(outcome, best),
        "tie": _ties(outcome, best),
        "pareto": on_front,
        "command": run_command(plan, outcome.placed_layout),
    }


def _energy_of(plan: LayoutPlan, outcome: Outcome, tokens: float | None) -> dict[str, float | None]:
    """Return the energy per step, sample, token and job, and the job's CO2; None if the power of the GPU is not specified."""
    if outcome.run.node.gpu.power is None:
        return dict.fromkeys(("energy_per_step_j", "energy_per_sample_j", "energy_per_token_j", "job_energy_kwh", "job_co2_kg"))
    joules = outcome.joules
    return {
        "energy_per_step_j": joules,
        "energy_per_sample_j": joules / outcome.run.global_batch,
        "energy_per_token_j": joules / tokens if tokens else None,
        "job_energy_kwh": None if plan.steps is None else plan.steps * joules / KWH,
        "job_co2_kg": None if plan.steps is None else plan.steps * joules * _grid(outcome.run).intensity,
    }


def _best_document(plan: LayoutPlan) -> dict[str, Any]:
    return layout_document(LayoutAnswer(plan.tally.outcomes[0].run, plan.inputs, market=plan.question.scenario.market))


def _with_failures(plan: LayoutPlan, reliability: str | None, spares: int | None) -> dict[str, Any]:
    """Return the document of the weeks of training with the best layout."""
    best = plan.tally.outcomes[0]
    if plan.tokens is None:
        raise SpecError("--with-failures: set the length of the job with --tokens")
    machine, workload = best.run.hardware, best.run.workload
    weeks = with_reliability(Weeks(tokens=plan.tokens, power_cap=plan.question.limits.power_cap, spares=spares), reliability)
    if workload.training.has_layout:
        return goodput_of(_best_document(plan), machine, workload, weeks, changes=False, slowed=slowdown_by_store(best.run))
    run = run_replicas(*best.placed_layout)
    document, slowed = run_document(run, plan.inputs, market=plan.question.scenario.market), slowdown_by_store(run)
    return goodput_of(document, machine, workload, weeks, changes=False, slowed=slowed, slower=slower_runs(run))


def candidate_name(candidate: LayoutCandidate) -> str:
    """Return the name of the layout of *candidate*."""
    parallel = candidate.parallel.model_dump(mode="json")
    named = layout_name({"parallel": {**parallel, "schedule": candidate.schedule, "data": candidate.data}})
    more = []
    if candidate.reshard is False:
        more.append("weights kept after forward")
    if candidate.near:
        more.append("stages side by side")
    if candidate.precision in ("fp8", "nvfp4"):
        more.append(candidate.precision)
    if candidate.checkpointing not in ("none", "model"):
        more.append(f"{candidate.checkpointing} recomputed")
    return ", ".join([named, f"{candidate.micro_batches} x {candidate.batch}", *more])


def parts(outcome: Outcome) -> dict[str, float]:
    """Return the seconds of a step by the keys of `PARTS`, averaged over ranks."""
    run = outcome.run
    read = sum(run.stalls.get(cause, 0.0) for cause in (Cause.FETCH, Cause.PREP, Cause.COPY))
    own = {"compute": run.stalls[Cause.COMPUTE] + outcome.step_time - run.step_time, **run.exposed, "input": read}
    return {**own, "straggler": run.stalls[Cause.STRAGGLER], "launch": run.stalls[Cause.LAUNCH]}


def limit_text(outcome: Outcome) -> str:
    """Return the shares of a step as text: compute, then the largest waits (at most two) of more than 2% of it."""
    shares = {name: seconds / outcome.step_time for name, seconds in parts(outcome).items()}
    waits = sorted((name for name in shares if name != "compute" and shares[name] > 0.02), key=lambda name: -shares[name])
    return ", ".join(f"{PARTS[name]} {100 * shares[name]:.0f}%" for name in ("compute", *waits[:2]))


def reasons_text(outcome: Outcome, best: Outcome) -> str:
    """Return why *outcome* is worse than *best*: the parts of a step that take longer."""
    if outcome is best:
        return "the best"
    if outcome.run.memory_verdict == "thrashes" and best.run.memory_verdict == "fits":
        return f"memory is nearly full, so steps may take up to {THRASH:.0f} times as long"
    scale = outcome.run.gpus / best.run.gpus if outcome.run.gpus != best.run.gpus else 1.0
    own, other = parts(outcome), parts(best)
    more = sorted(((scale * own[name] - other[name], name) for name in own), reverse=True)
    lost = outcome.value / best.value - 1.0
    if abs(lost) < EQUAL:
        return "equal to the best"
    named = [f"{PARTS[name]} +{show(seconds, 'time')}" for seconds, name in more[:2] if seconds > 0.1 * lost * best.step_time]
    return f"+{100 * lost:.1f}%: {', '.join(named) or 'a little in every part'}"


def verdict(plan: LayoutPlan, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which layout to use and how certain that is, in a sentence or two."""
    tally, best = plan.tally, rows[0]
    better = f"a better layout may exist, by at most {100 * tally.gap:.1f}%" if tally.open_bound > 0.0 else "not all layouts were bounded"
    proof = "optimal under the model" if tally.complete else better
    ties = sum(row["tie"] for row in rows) - 1
    widest = max(row["tie_within"] for row in rows if row["tie"])
    beside = f"; {pluralized(ties, 'more layout')} tie{'s' * (ties == 1)} within the expected error ({100 * widest:.0f}%)" if ties else ""
    unproven = "".join(f" {sentence[:1].upper()}{sentence[1:]}." for sentence in best["not_validated"])
    thrashes = best["memory_verdict"] == "thrashes"
    full = f" Its memory is nearly full, so steps may take up to {THRASH:.0f} times as long." if thrashes else ""
    step = f"{best['name']} ({best['stack']}): {show(best['step_time_s'], 'time')} per step, {proof}{beside}."
    return f"{step}{full}{unproven}{_beyond_text(rows)}"


def _beyond_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in what the best of *rows* is beyond the measured runs, and which layout that ties with it is not; empty if it is within them.

    The model cannot tell the two apart, but errors of layouts like the second are known.
    """
    best = rows[0]
    if not best["extrapolated"]:
        return ""
    place = measured_tie(rows)
    why = "" if best["not_validated"] else f" ({best['extrapolated']})"
    if place is None:
        return f" Its error is extrapolated{why}, as are those of all simulated layouts that tie with it."
    lost = rows[place]["step_time_s"] / best["step_time_s"] - 1.0
    return f" Its error is extrapolated{why}; row {place + 1}, the best within the sizes measured, ties with it at {100 * lost:+.1f}%."


def measured_tie(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the place of the first of *rows* that ties with the best, fits, and is like measured runs; None if there is none."""
    within = (place for place, row in enumerate(rows) if row["tie"] and row["extrapolated"] == "" and row["memory_verdict"] == "fits")
    return next(within, None)


NOT_VALIDATED: Final = " (not validated)"
"""Marks layouts with a feature that no measured run has; a separate sentence names it."""


def _turn(turn: ChangeEffect, within: float) -> dict[str, Any]:
    """Return the document of *turn*; at a flip, layouts tie if they differ by at most the share *within*."""
    best, flips = turn.best, turn.flips
    return {
        "change": turn.change,
        "same": turn.same,
        "best": None if best is None else candidate_name(best.placed_layout.candidate),
        "stack": None if best is None else best.placed_layout.candidate.stack,
        "step_time_s": None if best is None else best.step_time,
        "plan_step_time_s": None if turn.of_plan is None else turn.of_plan.step_time,
        "tie": best is not None and turn.of_plan is not None and _ties(turn.of_plan, best),
        "flips_at": turn.flips_at,
        "unit": turn.unit,
        "least_times": None if flips is None else flips.least / flips.planned_value,
        "most_times": None if flips is None else flips.most / flips.planned_value,
        "flips": [] if flips is None else [_flip(flip, within) for flip in flips.flips],
        "problem": turn.problem,
    }


def _flip(flip: Flip, within: float) -> dict[str, Any]:
    return {
        "holds": flip.holding_value,
        "lost": flip.losing_value,
        "best": candidate_name(flip.winner),
        "stack": flip.winner.stack,
        "end": flip.end,
        "behind": flip.deficit,
        "tie": flip.deficit is not None and flip.deficit <= within,
    }


def _assumptions(plan: LayoutPlan) -> list[str]:
    named = plan.question.scenario.global_batch is not None
    texts = [
        f"the global batch is {plan.global_batch:,} samples in every layout"
        + ("" if named else ", the workload's batch on every GPU (--global-batch)"),
        *_uneven_batch(plan),
        _batches_text(plan),
        "bounds assume steps without contention, and the expected variation between ranks",
        "ties: layouts within the median prediction error of similar layouts, or of layouts similar to the best",
    ]
    if plan.question.scenario.stack is None:
        stacks = sorted({setting.workload.training.stack.name for setting, _ in plan.layouts})
        several, own = "s" * (len(stacks) > 1), _own_stack(plan, stacks)
        texts.append(f"stack{several} {', '.join(stacks)}, each with the layouts that it supports (--stack){own}")
    texts += fsdp_left_out([setting.workload for setting, _ in plan.layouts], plan.question.fixed)
    texts += _cuts_assumed(plan)
    texts += _sizes_left_out(plan)
    run = plan.tally.outcomes[0].run
    texts += price_lines(price_rows(run.hardware, (plan.question.scenario.market,)))
    return texts if plan.steps is None or run.node.gpu.power is None else [*texts, grid_text(_grid(run))]


def _own_stack(plan: LayoutPlan, stacks: Sequence[str]) -> str:
    """Return that the workload's own stack is not among *stacks*, and how to plan it; empty if it is."""
    scenario = plan.question.scenario
    own = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.training.stack.name
    return "" if own in stacks else f"; the workload's own stack holds the whole model on each GPU: --stack {own} plans it"


def _uneven_batch(plan: LayoutPlan) -> list[str]:
    """Return that the GPUs do not divide the global batch, which excludes data parallelism over all of them, and the next batch up.

    On 72 GPUs, 256 samples need another axis that divides by 9, such as 9 stages; 288 samples do not. A batch smaller than
    the number of GPUs is split by other axes in any case.
    """
    sizes = sorted({setting.nodes * setting.gpus_per_node for setting, _ in plan.layouts})
    uneven = [ranks for ranks in sizes if plan.global_batch > ranks and plan.global_batch % ranks]
    if not uneven:
        return []
    even = -(-plan.global_batch // uneven[-1]) * uneven[-1]
    return [
        f"{uneven[-1]:,} GPUs do not divide {plan.global_batch:,} samples, which leaves out layouts that may be faster, such as plain data "
        f"parallelism; --global-batch {even} allows them"
    ]


def _cuts_assumed(plan: LayoutPlan) -> list[str]:
    """Return which layouts use the cuts of the workload's own layout, if it has any."""
    own = plan.layouts[0][0].workload.training.parallel
    parts = cut_parts(own)
    if not parts:
        return []
    field = "cuts" if own.cuts else "layers_per_stage"
    any_match = any(setting.has_own_cuts(each) for setting, every in plan.layouts for each in every)
    effect = (
        f"applies to layouts of {parts} chunks; others are cut evenly" if any_match else f"is not used: no layout here has {parts} chunks"
    )
    return [f"training.parallel.{field} {effect}"]


def _sizes_left_out(plan: LayoutPlan) -> list[str]:
    """Return which numbers of nodes have no simulated layout, and how to see the best one there."""
    tried = sorted({setting.nodes for setting, _ in plan.layouts})
    simulated = {outcome.placed_layout.setting.nodes for outcome in plan.tally.outcomes}
    left = [nodes for nodes in tried if nodes not in simulated]
    if not left or not plan.tally.complete:
        return []
    return [f"no layout on {any_of(left)} node{'s' * (left != [1])} is among the best; --nodes {left[-1]} shows the best one there"]


def _grid(run: LayoutRun) -> GridIntensity:
    """Return the carbon intensity of the grid in the region of the price of *run*."""
    own = run.hardware.first_workers.price
    return grid_of(own.region if own else None, run.hardware.provider)


def _batches_text(plan: LayoutPlan) -> str:
    """Return how to read the batches in a layout's name, with the best layout as an example."""
    best = plan.tally.outcomes[0].placed_layout.candidate
    each = f"{best.micro_batches:,} micro-batch{'es' * (best.micro_batches != 1)} of {pluralized(best.batch, 'sample')}"
    parallel = best.parallel
    chunks = f"; 'pipeline {parallel.pipeline} x {parallel.chunks}': {parallel.chunks} virtual stages on each of {parallel.pipeline} stages"
    chunks_text = chunks if parallel.pipeline > 1 and parallel.chunks > 1 else ""
    return f"'{best.micro_batches} x {best.batch}' in a layout's name: {each} per step on each data-parallel rank{chunks_text}"


def _warnings(plan: LayoutPlan) -> list[str]:
    texts = []
    if plan.tally.interrupted:
        rank = "none of the others is better, but the next best may be missing" if plan.tally.complete else "this is the best of them"
        texts.append(f"interrupted: {pluralized(len(plan.tally.outcomes), 'layout')} simulated so far; {rank}")
    if not plan.tally.complete:
        texts.append(f"not proven: {plan.tally.excluded:,} layouts that may be better were not simulated (--simulate)")
    memory, own = plan.question.limits.memory, min(worker_node(setting.hardware).gpu.memory for setting, _ in plan.layouts)
    if memory is not None and memory >= own:
        texts.append(f"a GPU has {show(own, 'binary size')}, so the limit of {show(memory, 'binary size')} has no effect (--max-memory)")
    if plan.question.limits.objective == "cost" and not plan.has_prices:
        texts.append(f"no price for this hardware, so cost counts node-seconds; set a price with {PRICED}")
    if plan.layouts[0][0].workload.pretraining is not None:
        counted_alike = "; time and cost of --tokens assume that all steps are like this" if plan.tokens is not None else ""
        texts.append(
            f"planned for the workload's own steps, global batch {plan.global_batch:,} of {plan.tokens_per_sample or 0:,.0f} tokens each"
            f"{counted_alike}: 'run' and 'goodput' with --tokens simulate ramps and other parts of pretraining separately"
        )
    others = {sentence for outcome in plan.tally.outcomes[1:] for sentence in not_validated(outcome.run)}
    texts += sorted(others - {*not_validated(plan.tally.outcomes[0].run)})  # the verdict has those of the best
    for placed_layout in plan.refused_schedules:
        schedule, command = placed_layout.candidate.schedule, run_command(plan, placed_layout)
        texts.append(f"the schedule {schedule} cannot run any of these pipelines; '{command}' shows why")
    return texts
