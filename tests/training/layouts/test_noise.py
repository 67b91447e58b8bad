"""How late are the slowest ranks of a layout? Oracles: Monte Carlo of maxima, a pipeline rank by rank in numpy, means of drawn steps."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sim.events import Cause
from sim.mesh import layout_scene, prepare, run_layout
from sim.spec.lengths import Lengths
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer
from sim.training.layouts.bound import least_time
from sim.training.layouts.noise import RankVariation, slowest
from sim.training.layouts.play import play
from sim.training.spread import expected_maximum
from tests.harness import machine
from tests.training.layouts.toys import BACKWARD, FORWARD, blocks, free, split_block, workload

DRAWS = 20_000
SLOT = FORWARD + BACKWARD


def noisy(given: Workload, persistent: float, jitter: float, draw: bool = False) -> Workload:
    noise = given.training.noise.model_copy(update={"persistent_cv": persistent, "compute_cv": jitter, "draw": draw})
    return given.with_training(noise=noise)


# --- closed forms ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def drawn_groups(groups: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how late the slowest rank of each of *groups* groups is, and how late each group, in standard deviations, by draw."""
    numbers = np.random.default_rng(1)
    return numbers.standard_normal((DRAWS, groups, size)).max(axis=2), numbers.standard_normal((DRAWS, groups))


@pytest.mark.parametrize(("groups", "size"), [(1, 4), (4, 1), (4, 8), (64, 8)])
@pytest.mark.parametrize("shared", [0.0, 0.5, 2.0, 19.0, 25.0])
def test_the_slowest_of_groups_that_share_a_part(groups: int, size: int, shared: float) -> None:
    """Monte Carlo, known to about 0.01 deviations."""
    slowest_of_group, of_group = drawn_groups(groups, size)
    every = (slowest_of_group + shared * of_group).max(axis=1)
    assert slowest(groups, size, 1.0, shared) == pytest.approx(every.mean(), abs=4 * every.std() / math.sqrt(DRAWS))


def test_a_shared_part_alone_is_the_maximum_over_groups() -> None:
    assert slowest(8, 4, 0.0, 0.3) == pytest.approx(0.3 * expected_maximum(8), rel=1e-12)
    assert slowest(8, 4, 1e-6, 0.3) == pytest.approx(0.3 * expected_maximum(8), rel=1e-3)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(RankVariation(8, 8, 4, 4, 0.02, 0.01), marks=pytest.mark.nightly),
        RankVariation(1, 1, 8, 1, 0.0, 0.02, 0.03),
        RankVariation(4, 2, 8, 2, 0.01, 0.01, 0.02),
        RankVariation(2, 2, 1, 4, 0.03, 0.0),
    ],
)
def test_drawn_steps_have_the_mean_of_the_closed_form(ranks: RankVariation) -> None:
    """Of runs with seeds of their own, as the persistent part is drawn once a run: within four standard errors."""
    runs = [[each for _, each in zip(range(4), ranks.draw(seed), strict=False)] for seed in range(1500)]
    expected = ranks.expected()
    for name in ("inside", "data", "all"):
        value = [
            np.mean([getattr(stage, name) + (stage.speed - 1.0) * (name == "inside") for step in run for stage in step]) for run in runs
        ]
        assert np.mean(value) == pytest.approx(getattr(expected, name), abs=4 * float(np.std(value)) / math.sqrt(len(value)) + 1e-12), name


@pytest.mark.parametrize(
    "ranks",
    [
        RankVariation(8, 8, 4, 2, 0.02, 0.01, 0.0, 16),
        RankVariation(4, 4, 16, 1, 0.0, 0.01, 0.0, 8),
        RankVariation(2, 4, 8, 2, 0.01, 0.02, 0.0, 64),
    ],
)
def test_jitter_that_changes_within_a_step_is_lost_at_every_meeting(ranks: RankVariation) -> None:
    """Oracle: each rank of 2,000 steps in numpy, whose groups go as slowly as their slowest in each interval: within 2, 6 and 8% of cv."""
    draw = np.random.default_rng(5)
    shape = (ranks.stages, ranks.stage // ranks.inside, ranks.inside)
    lost = []
    for _ in range(2000):
        own = ranks.persistent_cv * draw.standard_normal(shape)
        jitter = ranks.compute_cv * math.sqrt(ranks.intervals) * draw.standard_normal((int(ranks.intervals), *shape))
        groups = (own + jitter).max(axis=3).mean(axis=0)
        lost.append([groups.mean(), groups.max(axis=1).mean(), groups.max()])
    inside, stage, every = np.mean(lost, axis=0)
    expected, cv = ranks.expected(), math.hypot(ranks.persistent_cv, ranks.compute_cv)
    assert expected.inside == pytest.approx(inside, abs=0.02 * cv)
    assert expected.inside + expected.data == pytest.approx(stage, abs=0.06 * cv)
    assert expected.inside + expected.data + expected.all == pytest.approx(every, abs=0.08 * cv)


def test_tensor_ranks_lose_more_the_sooner_jitter_changes() -> None:
    """Closed form: of a step of T, jitter that lasts T / k costs sqrt(k) times as much; not more often than ranks meet."""
    given = workload([each for number in range(2) for each in split_block(number)], tensor=4, micro_batches=8)
    plain = run_layout(free(4), noisy(given, 0.0, 0.0))
    compute = plain.step_time

    def lost(lasts: float | None) -> float:
        noise = given.training.noise.model_copy(update={"compute_cv": 0.02, "persistent_cv": 0.0, "compute_correlation": lasts})
        changed = given.with_training(noise=noise)
        return run_layout(free(4), changed).step_time - plain.step_time

    constant = lost(None)
    assert constant == pytest.approx(0.02 * expected_maximum(4) * compute, rel=0.02)
    assert lost(10 * compute) == pytest.approx(constant, rel=1e-9)
    assert lost(compute / 4) == pytest.approx(2 * constant, rel=0.02)
    least = lost(1e-12)
    assert least > lost(compute / 16) > lost(compute / 4)
    assert least == pytest.approx(lost(1e-15), rel=1e-12)  # as often as they meet


@pytest.mark.parametrize("inside", [1, 2])
@pytest.mark.parametrize("stage_intervals", [1, 4, 16])
def test_jitter_is_lost_whenever_a_stage_meets(stage_intervals: int, inside: int) -> None:
    """Oracle: 16 intervals of 4,000 steps in numpy, all ranks of a stage meeting after each of *stage_intervals* groups of them."""
    ranks = RankVariation(inside, inside, 8, 1, 0.01, 0.02, 0.0, 16, stage_intervals)
    draw = np.random.default_rng(6)
    lost = []
    for _ in range(4000):
        own = ranks.persistent_cv * draw.standard_normal((8, inside))
        jitter = ranks.compute_cv * math.sqrt(16) * draw.standard_normal((stage_intervals, 16 // stage_intervals, 8, inside))
        lost.append((own + jitter).max(axis=-1).mean(axis=1).max(axis=-1).mean())
    expected = ranks.expected()
    assert expected.inside + expected.data == pytest.approx(np.mean(lost), rel=0.03)


def test_ranks_of_a_stage_lose_more_if_the_host_waits_for_every_operation() -> None:
    """Of a sharded model: where the host waits for none, a deviation counts once a step; where it waits for all, k times."""
    lost = {}
    for waits in ("nothing", "everything"):
        mesh = {"host_waits": waits, "framework": "fsdp2"}
        given = workload(blocks(8), mesh=mesh, shard="parameters", micro_batches=4)
        plain = run_layout(free(4), noisy(given, 0.0, 0.0))
        for parts in (1, 4):
            noise = {"compute_cv": 0.02, "persistent_cv": 0.0, "compute_correlation": plain.stalls[Cause.COMPUTE] / parts}
            changed = given.training.noise.model_copy(update=noise)
            late = given.with_training(noise=changed)
            lost[waits, parts] = run_layout(free(4), late).step_time - plain.step_time
            scene = layout_scene(free(4), late, prepare(free(4), late))
            assert least_time(scene) <= play(scene).time * (1 + 1e-9)
    once = 0.02 * expected_maximum(4) * plain.stalls[Cause.COMPUTE]
    assert [lost[each] for each in (("nothing", 1), ("nothing", 4), ("everything", 1))] == pytest.approx([once] * 3, rel=0.02)
    assert lost["everything", 4] == pytest.approx(2 * once, rel=0.02)


def test_jitter_that_changes_within_a_step_is_refused_where_it_is_not_simulated() -> None:
    with pytest.raises(SpecError, match="applies only to layouts, whose ranks synchronize within units"):
        answer(Scenario("p3.16xlarge", "resnet50", ("training.noise.compute_correlation=10 ms",)))
    with pytest.raises(SpecError, match="draw samples one deviation per step"):
        load_workload("resnet50", ["training.noise={draw: true, compute_correlation: 10 ms}"])
    with pytest.raises(SpecError, match="a time above zero"):
        load_workload("resnet50", ["training.noise.compute_correlation=0 s"])


# --- whole steps -------------------------------------------------------------------------------------------------------


def pipeline(late: NDArray[np.float64], micro_batches: int, steps: int, meets: bool) -> NDArray[np.float64]:
    """Return seconds of GPipe steps whose stages (..., replica, stage) take 1 + *late* of their mean; *meets*: all wait for all."""
    stages, every = late.shape[-1], (-2, -1)
    free_at, before = np.zeros(late.shape), np.zeros(late.shape[:-2])
    for _ in range(steps):
        before = free_at.max(axis=every)
        for cost, order in ((FORWARD, range(stages)), (BACKWARD, range(stages - 1, -1, -1))):
            for _ in range(micro_batches):
                handed = np.zeros(late.shape[:-1])
                for stage in order:
                    handed = free_at[..., stage] = np.maximum(free_at[..., stage], handed) + cost * (1 + late[..., stage])
        free_at[:] = free_at.max(axis=every if meets else -2, keepdims=True)
    return np.asarray(free_at.max(axis=every) - before)


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize(
    ("tensor", "stages", "replicas", "micro_batches"),
    [
        pytest.param(1, 4, 1, 16, marks=pytest.mark.nightly),
        (2, 4, 2, 16),
        (4, 2, 4, 8),
        (1, 1, 8, 1),
        pytest.param(8, 1, 1, 2, marks=pytest.mark.nightly),
    ],
)
def test_lateness_of_a_step_is_that_of_a_pipeline_rank_by_rank(
    tensor: int, stages: int, replicas: int, micro_batches: int, clips: bool
) -> None:
    """The mean of 400 drawn pipelines: within 15% of the time lost, or three standard errors."""
    cv = 0.03
    layers = blocks(stages) if tensor == 1 else [each for number in range(stages) for each in split_block(number)]
    given = workload(
        layers, stack={"gradient_clipping": clips}, tensor=tensor, pipeline=stages, micro_batches=micro_batches,
        **({"schedule": "gpipe"} if stages > 1 else {}),
    )  # fmt: skip
    hardware = free(tensor * stages * replicas)
    plain, late = (run_layout(hardware, noisy(given, each, 0.0)).step_time for each in (0.0, cv))
    numbers, scale = np.random.default_rng(3), plain / float(pipeline(np.zeros((1, stages)), micro_batches, 3, clips))
    drawn = cv * numbers.standard_normal((400, replicas, stages, tensor)).max(axis=3)
    lost = scale * pipeline(drawn, micro_batches, 3, clips) - plain
    assert late - plain == pytest.approx(np.mean(lost), rel=0.15, abs=3 * float(np.std(lost)) / 20)
    scene = layout_scene(hardware, noisy(given, cv, 0.0), prepare(hardware, noisy(given, cv, 0.0)))
    assert least_time(scene) <= play(scene).time * (1 + 1e-9)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize(
    ("framework", "shard", "micro_batches"),
    [
        ("fsdp2", "parameters", 1), ("fsdp2", "parameters", 4), ("fsdp1", "parameters", 1), ("megatron", "optimizer", 1),
        ("megatron", "optimizer", 4), ("deepspeed", "gradients", 2),
    ],
)  # fmt: skip
def test_what_compute_hides_makes_no_rank_faster(framework: str, shard: str, micro_batches: int, clips: bool, shares: bool) -> None:
    """The slowest of 16 ranks computes m(16) cv longer, and no step is shorter than its compute, however its exchange overlaps.

    Blocks of operations that wait for it slow the others, and not the step.
    """
    cv, table = 0.03, blocks(16, elements=200_000)
    hardware = machine(8, 2, nvlink=1e9, nic=4e8, launch=0.0)
    mesh = {"framework": framework, "shares_device": shares}
    given = workload(table, mesh=mesh, stack={"gradient_clipping": clips}, shard=shard, micro_batches=micro_batches)
    plain, late = (run_layout(hardware, noisy(given, each, 0.0)) for each in (0.0, cv))
    assert late.step_time - plain.step_time == pytest.approx(expected_maximum(16) * cv * plain.stalls[Cause.COMPUTE], rel=0.02)
    assert math.fsum(late.stalls.values()) == pytest.approx(late.step_time, rel=1e-9)
    scene = layout_scene(hardware, noisy(given, cv, 0.0), prepare(hardware, noisy(given, cv, 0.0)))
    assert least_time(scene) <= late.step_time * (1 + 1e-9)


def test_drawn_steps_have_the_mean_step_and_differ() -> None:
    given = workload(blocks(2), pipeline=2, micro_batches=4)
    mean = run_layout(free(8), noisy(given, 0.0, 0.05))
    runs = [run_layout(free(8), noisy(given, 0.0, 0.05, draw=True), seed=seed) for seed in range(5)]
    for run in runs:
        assert len(run.played.drawn_times) == 100 and run.half_width is not None
        assert run.step_time == pytest.approx(sum(run.played.drawn_times) / 100, rel=1e-9)
        assert run.step_time == pytest.approx(mean.step_time, abs=2 * run.half_width)
        for stage in run.played.stages:
            assert math.fsum(stage.stalls.values()) == pytest.approx(stage.time, rel=1e-9)
    assert len({run.step_time for run in runs}) == 5
    again = run_layout(free(8), noisy(given, 0.0, 0.05, draw=True), seed=3)
    assert again.played.drawn_times == runs[3].played.drawn_times
    assert mean.half_width is None and mean.played.drawn_times == ()


def test_one_field_of_noise_leaves_the_other_as_the_gpu_has_it() -> None:
    decoder = load_workload("gpt2").spec.model

    def ranks(sustained_cv: float = 0.0, decodes: bool = True, **fields: Any) -> tuple[float, float]:
        from sim.mesh import _ranks

        given = workload(blocks(2))
        given = (
            given.model_copy(update={"model": given.model.model_copy(update={"transformer": decoder.transformer})}) if decodes else given
        )
        noise = given.training.noise.model_copy(update={"persistent_cv": None, "compute_cv": None} | fields)
        given = given.with_training(noise=noise)
        hardware = free(2)
        kernels = load_hardware("hgx-h100").spec.groups[0].node.gpu.kernels
        assert kernels is not None
        own = kernels.model_copy(update={"sustained_cv": sustained_cv})
        gpu = hardware.groups[0].node.gpu.model_copy(update={"persistent_cv": 0.04, "compute_cv": 0.03, "kernels": own})
        rank_noise = _ranks(gpu, given, prepare(hardware, given).mesh)
        return rank_noise.persistent_cv, rank_noise.compute_cv

    assert ranks() == (0.04, 0.03)
    assert ranks(compute_cv=0.01) == (0.04, 0.01)
    assert ranks(persistent_cv=0.0) == (0.0, 0.03)
    assert ranks(sustained_cv=0.03) == (0.05, 0.03)
    assert ranks(sustained_cv=0.03, persistent_cv=0.0) == (0.0, 0.03)
    assert ranks(sustained_cv=0.03, decodes=False) == (0.04, 0.03)  # as in data parallelism: its products do not keep boards at their limit


@pytest.mark.parametrize("imbalance", [0.0, 1.0])
def test_replicas_with_longer_sequences_are_late(imbalance: float) -> None:
    """Four replicas of two tensor ranks, four sequences each: m(4) times the variation of their mean length, shared by tensor ranks."""
    lengths = Lengths(mean=0.5, square=0.3, source="test")
    given = workload([each for number in range(2) for each in split_block(number)], tensor=2, micro_batches=4)
    model = given.model.model_copy(update={"lengths": lengths, "padding": "unpadded"})
    stack = given.training.stack.model_copy(update={"length_imbalance": imbalance})
    uneven = given.model_copy(update={"model": model, "training": given.training.model_copy(update={"stack": stack})})
    plain, late = run_layout(free(8), given), run_layout(free(8), uneven)
    compute = 4 * 2 * SLOT / 2
    lost = imbalance * expected_maximum(4) * math.sqrt(0.3 / 0.5**2 - 1.0) / 2 * compute
    assert late.step_time - plain.step_time == pytest.approx(lost, rel=1e-3, abs=1e-9)


def test_kernels_that_leave_padding_out_of_a_decoder_are_refused() -> None:
    given = load_workload("llama-3.2-1b", ["training.parallel.shard=parameters", "training.stack.unpadded=true"]).spec
    with pytest.raises(SpecError, match="for a decoder write padding: unpadded and lengths in the model"):
        prepare(free(2), given)
