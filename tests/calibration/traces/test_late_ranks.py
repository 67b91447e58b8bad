"""Do replayed ranks wait for late ones as in the profile? Oracles: closed forms of the mean maximum, and maxima of the spans themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from numpy.typing import NDArray

from calibration.lab.layout_score import COMMITTED_POINTS, HARDWARE
from calibration.lab.plan import WORKLOADS
from calibration.questions import Folders, machine_named
from calibration.traces.import_trace import ImportedJob, import_traces
from calibration.traces.kineto import CPU, RankTrace, TraceSpan
from calibration.traces.late_ranks import WorkVariation, lost_time, work_variation
from calibration.traces.layout_passes import rank_work
from calibration.traces.pass_times import measure_passes
from calibration.traces.replay import JobDescription, replay_text, unseen_variation
from sim.analysis.stalls import Window
from sim.cluster.build import with_nodes
from sim.events import EventLog
from sim.mesh import run_layout
from sim.spec.library import load_workload
from sim.spec.sections import with_fields
from sim.spec.workload import Workload
from sim.study.scenario import Scenario, answer
from sim.training.spread import expected_maximum
from tests.calibration.traces.test_import_trace import Event, profile
from tests.calibration.traces.test_replay import torch_step

STEPS = 4000


def predicted_loss(variation: WorkVariation, ranks: int) -> float:
    """Return what the simulator loses in a step (`sim.training.layouts.noise`)."""
    assert variation.persistent_cv is not None and variation.compute_cv is not None
    cv = math.hypot(variation.persistent_cv, variation.compute_cv * math.sqrt(variation.intervals))
    return expected_maximum(ranks) * cv * variation.step_work


def drawn(jitter: NDArray[np.float64]) -> list[list[list[float]]]:
    """Return the work of ranks whose intervals have a mean of 10 ms, of which *jitter* (rank, step, interval) is added as a share."""
    return [[[0.01 * (1.0 + float(each)) for each in step] for step in rank] for rank in jitter]


@pytest.mark.parametrize("intervals", [1, 6])
@pytest.mark.parametrize("kind", ["normal", "exponential"])
def test_two_ranks_lose_the_mean_of_maxima(kind: str, intervals: int) -> None:
    """Closed forms: of two normal variables s / sqrt(pi) above the mean, of two exponential ones half their mean.

    The simulator's formula gives the loss of these very steps exactly, and the closed form within four standard errors.
    """
    numbers, shape = np.random.default_rng(7), (2, STEPS, intervals)
    jitter = 0.1 * numbers.standard_normal(shape) if kind == "normal" else 0.1 * numbers.standard_exponential(shape)
    expected = 0.01 * 0.1 * (1 / math.sqrt(math.pi) if kind == "normal" else 0.5) * intervals
    group = drawn(jitter)
    shown = work_variation([group])
    assert predicted_loss(shown, 2) == pytest.approx(lost_time(group), rel=1e-9)
    assert lost_time(group) == pytest.approx(expected, rel=4 / math.sqrt(STEPS * intervals))
    if kind == "normal":
        assert shown.compute_cv == pytest.approx(0.1 / math.sqrt(intervals), rel=0.05)
        assert shown.persistent_cv == pytest.approx(0.0, abs=0.005) and shown.intervals == pytest.approx(intervals, rel=0.1)


def test_persistent_spread_and_jitter_are_told_apart() -> None:
    """300 pairs with deviations of 4% of their own and 3% in each of four intervals, over 30 steps: within 10%."""
    numbers = np.random.default_rng(3)
    pairs = [drawn(0.04 * numbers.standard_normal((2, 1, 1)) + 0.03 * numbers.standard_normal((2, 30, 4))) for _ in range(300)]
    shown = work_variation(pairs)
    assert (shown.persistent_cv, shown.compute_cv) == (pytest.approx(0.04, rel=0.1), pytest.approx(0.015, rel=0.1))
    assert shown.intervals == pytest.approx(4.0, rel=0.1)
    assert predicted_loss(shown, 2) == pytest.approx(fmean(map(lost_time, pairs)), rel=0.01)


def test_what_slows_all_ranks_of_a_step_makes_nobody_wait() -> None:
    numbers = np.random.default_rng(5)
    common = np.broadcast_to(0.3 * numbers.random((1, 20, 3)), (4, 20, 3))
    shown = work_variation([drawn(common)])
    assert (shown.persistent_cv, shown.compute_cv) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.0, abs=1e-9))


def test_ranks_that_take_turns_lose_by_the_interval_and_not_by_the_step() -> None:
    """Each is late once in a step: 2 ms in each interval, although their steps are equal."""
    turns = [[[0.012, 0.008]] * 3, [[0.008, 0.012]] * 3]
    assert [lost_time(turns), predicted_loss(work_variation([turns]), 2)] == pytest.approx([0.004, 0.004])
    uneven = [[[0.012, 0.008], [0.02]], [[0.008, 0.012], [0.02]]]  # the intervals cannot be compared
    assert predicted_loss(work_variation([uneven]), 2) == pytest.approx(0.0, abs=1e-12)


def test_few_steps_or_ranks_show_less() -> None:
    """One step: all that ranks differ by counts as theirs. One rank: its steps' variation, from three on (10% here), and no other's."""
    one_step = work_variation([[[[0.011]], [[0.009]]]])
    assert one_step.compute_cv == 0.0 and predicted_loss(one_step, 2) == pytest.approx(0.001)
    alone = work_variation([[[[0.009], [0.010], [0.011]]]])
    assert (alone.persistent_cv, alone.compute_cv) == (None, pytest.approx(0.1))
    assert work_variation([[[[0.009], [0.011]]]]).compute_cv is None
    assert work_variation([[[[0.0]], [[0.0]]]]) == WorkVariation(None, None)


# --- replays -----------------------------------------------------------------------------------------------------------


def sharded(rank: int, work: Sequence[Sequence[float]]) -> RankTrace:
    """A profile of a rank over Gloo: *work* by step and interval, with a collective of 0.2 s between intervals.

    Forward has the first half of the intervals, and the last 1 ms of a step is the optimizer's.
    """
    trace = RankTrace("rank.json", rank, 2, "host", CPU, layout_event="gloo:all_gather")
    at = 0.0
    for number, intervals in enumerate(([*work[0]], *work)):  # the first step does not count
        begin = at
        for place, seconds in enumerate(intervals):
            if place:
                trace.collectives.append(TraceSpan("gloo:all_gather", at, at + 0.2))
                at += 0.2
            if place == len(intervals) // 2:
                trace.backward.append(TraceSpan("backward", at, at + 1e-4))
            last = place == len(intervals) - 1
            trace.compute.append(TraceSpan("aten::mm", at, at + seconds - 0.001 * last, at, at))
            at += seconds
        trace.optimizer.append(TraceSpan("SGD", at - 0.001, at))
        trace.compute.append(TraceSpan("aten::add_", at - 0.001, at, at - 0.001, at - 0.001))
        trace.steps[number] = TraceSpan(f"ProfilerStep#{number}", begin, at)
    return trace


def job_of(traces: Sequence[RankTrace]) -> ImportedJob:
    return ImportedJob(traces, EventLog(lambda: 0.0), [Window(0.0, 1.0, 2) for _ in traces], 1.0, (), [{} for _ in traces])


def test_work_is_cut_at_collectives() -> None:
    work = [[0.05, 0.02, 0.04], [0.06, 0.01, 0.03]]
    assert rank_work(sharded(0, work)) == [pytest.approx(step) for step in work]
    messages = sharded(0, work)
    messages.collectives = [span._replace(name="gloo:recv") for span in messages.collectives]
    assert rank_work(messages) == [pytest.approx([0.11]), pytest.approx([0.1])]


def with_free_messages(workload: Workload) -> Workload:
    stack = workload.training.stack
    assert stack.library.gloo_transport is not None
    sockets = stack.library.gloo_transport.model_copy(update={"launch": 0.0, "cpu_time_per_byte": 0.0, "hop_latency": 0.0})
    return workload.with_training(stack=with_fields(stack, gloo_transport=sockets))


@pytest.mark.parametrize("layout", ["{shard: parameters}", "{tensor: 2, sequence: true}"])
@pytest.mark.parametrize("kind", ["persistent", "of steps", "of intervals"])
def test_replayed_ranks_of_a_divided_model_wait_at_every_collective(kind: str, layout: str, tmp_path: Path) -> None:
    """Oracle: mean over the steps of the sum of maxima over both ranks, if messages are free: within 1% of a step that loses 5 to 12%."""
    intervals, numbers = 8, np.random.default_rng(11)
    shapes = {"persistent": (2, 1, 1), "of steps": (2, 12, 1), "of intervals": (2, 12, intervals)}
    shares = np.broadcast_to(1.0 + 0.15 * numbers.standard_normal(shapes[kind]), (2, 12, intervals))
    work = [[[0.05 * float(share) for share in step] for step in rank] for rank in shares]
    due = fmean(math.fsum(max(pair) for pair in zip(*steps, strict=True)) for steps in zip(*work, strict=True))
    mean = fmean(math.fsum(step) for rank in work for step in rank)
    by, mine = tmp_path / "by.yaml", tmp_path / "mine.yaml"
    by.write_text(f"extends: lab-decoder\nname: by\ntraining: {{stack: lab-gloo-mesh, parallel: {layout}}}\n")
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    job = job_of([sharded(rank, own) for rank, own in enumerate(work)])
    mine.write_text(replay_text(job, JobDescription(machine, str(by), batch=8, folders=Folders(None, WORKLOADS)), mine))
    fast = with_nodes(machine_named(HARDWARE, ("node.nic.bandwidth=10 Tbps",)), 2)
    replayed = run_layout(fast, with_free_messages(load_workload(str(mine), library=WORKLOADS).spec)).step_time
    assert due > 1.04 * mean
    assert replayed == pytest.approx(due, rel=0.01)


def stretched(number: int, factor: float) -> list[Event]:
    """The events of `torch_step` with kernels *factor* times as long, each at its place, and the exchange as before."""
    events = torch_step(number)
    for each in events:
        if each.get("cat") == "kernel" and "nccl" not in each["name"]:
            each["dur"] *= factor
    return events


def test_replayed_data_parallel_ranks_wait_for_the_latest(tmp_path: Path) -> None:
    """Oracle: of the kernels' 76 ms a step, the mean of the maxima of both ranks' factors, minus their mean."""
    factors = [[0.8, 0.5, 0.9, 0.6], [0.7, 0.9, 0.6, 0.5]]
    files = [
        profile(tmp_path, rank, 2, [each for number, factor in enumerate([1.0, *own]) for each in stretched(number, factor)])
        for rank, own in enumerate(factors)
    ]
    imported, mine = import_traces(files), tmp_path / "mine.yaml"
    mine.write_text(replay_text(imported, JobDescription("a2-highgpu-2g", batch=16), mine))
    assert measure_passes(imported).variation.step_work == pytest.approx(76e-3 * fmean(factors[0] + factors[1]))
    none = ("training.noise.compute_cv=0", "training.noise.persistent_cv=0")
    late, alike = (answer(Scenario("a2-highgpu-2g", str(mine), given)).run.jobs[0].warm.step_time for given in ((), none))
    lost = 76e-3 * (fmean(max(pair) for pair in zip(*factors, strict=True)) - fmean(factors[0] + factors[1]))
    assert late - alike == pytest.approx(lost, rel=0.01)


def test_what_the_profile_does_not_show_of_late_ranks_is_said() -> None:
    work = [[0.05, 0.02]] * 3
    assert unseen_variation(job_of([sharded(0, work), sharded(1, work)])) == []
    (one,) = unseen_variation(job_of([sharded(0, work)]))
    assert "one rank" in one and "add the trace of another" in one
    short_job = replace(job_of([sharded(0, work[:1]), sharded(1, work[:1])]), windows=[Window(0.0, 1.0, 1)] * 2)
    (short,) = unseen_variation(short_job)
    assert "one step" in short and "profile several" in short
