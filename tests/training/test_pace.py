"""How do drawn steps differ? Oracles: n draws for n ranks, the closed-form expected maximum, the unfolded simulation."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest

from sim.cluster.build import Placement
from sim.epoch import ENOUGH_PRECISION, LEAST_DRAWN_STEPS, MOST_DRAWN_STEPS
from sim.simulate import Run, simulate
from sim.spec.hardware import Hardware
from sim.training.job import Job
from sim.training.pace import drawn_paces, maxima, mean_pace, stream
from sim.training.spread import expected_maximum
from tests.harness import layer, machine, place, toy_node, toy_workload

DRAWS = 4000


def drawn(gpus: int, nodes: int = 1, *, jitter: float = 0.1, persistent: float = 0.0, samples: int = 4000, **keys: object) -> Run:
    """Steps of 1 s of compute that are drawn; nothing else takes time worth mentioning."""
    workload = toy_workload((layer(0.4, 0.6, 1000),), samples=samples * gpus * nodes)
    noise = workload.training.noise.model_copy(update={"draw": True, "compute_cv": jitter, "persistent_cv": persistent})
    hardware = machine(gpus, nodes, nvlink=1e15, nic=1e15, pcie=1e15)
    return simulate(hardware, [Job(workload.with_training(noise=noise), place(hardware))], **keys)  # type: ignore[arg-type]


def durations(simulated: Run, job: int = 0) -> list[float]:
    """Seconds from the start of one forward pass to the next, of the first rank of *job*."""
    first = next(rank.number for rank in simulated.log.ranks if rank.job == job)
    starts = [work.t0 for work in simulated.log.work if work.rank == first and work.name == "forward"]
    return [end - start for start, end in pairwise(starts)]


def same_law(one: Any, other: Any) -> bool:
    """Tell whether Kolmogorov and Smirnov's test does not tell two samples apart at 1%."""
    from scipy.stats import ks_2samp

    return bool(ks_2samp(one, other).pvalue > 0.01)


@pytest.mark.parametrize("count", [1, 2, 8, 300])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_one_draw_is_distributed_as_the_maximum_of_n(count: int, spread: float) -> None:
    """Kolmogorov-Smirnov against the maximum of n numbers; means differ by *spread* deviations."""
    numbers = np.random.default_rng(5)
    means = np.sort(spread * numbers.standard_normal(count))
    direct = (means + numbers.standard_normal((DRAWS, count))).max(axis=1)
    one = list(islice(maxima(list(means), 1.0, stream(1, "test")), DRAWS))
    assert same_law(one, direct)


@pytest.mark.parametrize("count", [1, 2, 32, 16384])
def test_the_mean_of_the_maxima_is_the_expected_maximum(count: int) -> None:
    """Closed form; the mean of 4000 draws is known to about 0.016 deviations."""
    mean = sum(islice(maxima([0.0] * count, 1.0, stream(2, "test")), DRAWS)) / DRAWS
    assert mean == pytest.approx(expected_maximum(count), abs=0.06)


def test_persistent_and_passing_differences_add_as_variances() -> None:
    """Closed form over many seeds: the mean pace is m(n) times the root of the sum of squares."""
    late = [next(drawn_paces(8, 0.03, 0.04, seed, "x")) for seed in range(DRAWS // 2)]
    assert sum(pace.speed - 1 + pace.lag for pace in late) / len(late) == pytest.approx(expected_maximum(8) * 0.05, rel=0.03)
    assert next(mean_pace(8, 0.03, 0.04)).lag == pytest.approx(expected_maximum(8) * 0.05)


def test_persistent_differences_persist() -> None:
    """Without jitter every step of a run is alike; runs of other seeds differ."""
    assert len(set(islice(drawn_paces(8, 0.03, 0.0, 1, "x"), 5))) == 1
    assert next(drawn_paces(8, 0.03, 0.0, 1, "x")) != next(drawn_paces(8, 0.03, 0.0, 2, "x"))


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (4, 1), (2, 3)])
def test_folded_steps_are_distributed_as_unfolded_ones(gpus: int, nodes: int) -> None:
    """Kolmogorov-Smirnov at fixed seeds: one class of n ranks, and n classes of one."""
    folded, unfolded = (durations(drawn(gpus, nodes, samples=1500, exact=True, fold=fold, seed=3 + fold)) for fold in (True, False))
    assert same_law(folded, unfolded)
    assert np.mean(folded) == pytest.approx(1 + 0.1 * expected_maximum(gpus * nodes), abs=0.01)


def side_by_side(fold: bool, gpus: list[list[int]], slow: int, shared: bool, seed: int) -> Run:
    """Jobs that draw their steps: which GPUs each has on each node, one node slower, on NICs that two jobs' exchanges fill a third of."""
    good = toy_node(4, wiring={"0-1": 1, "1-2": 1, "2-3": 1, "0-3": 1}, nvlink=1e12, nic=1e9, pcie=1e12)
    weak = good.model_copy(update={"gpu": good.gpu.model_copy(update={"peak": {"fp32": 0.9e12}})})
    broken = toy_node(4, wiring={"0-1": 1, "2-3": 1, "0-3": 1}, nvlink=1e12, nic=1e9, pcie=1e12)
    groups = [{"node": node, "count": 1} for node in (weak if number == slow else good for number in range(3))]
    hardware = Hardware.model_validate({"name": "mixed", "groups": [*groups, {"node": broken, "count": 1}]})
    jobs = []
    for own in gpus:
        placement = tuple(
            Placement(node, tuple(range(4))[-count:] if shared and jobs else tuple(range(count))) for node, count in enumerate(own) if count
        )
        workload = toy_workload((layer(0.2, 0.3, 10**7), layer(0.2, 0.3, 10**7)), samples=500 * sum(own), stack={"bucket_cap": "1 MB"})
        noise = workload.training.noise.model_copy(update={"draw": True, "compute_cv": 0.1, "persistent_cv": 0.0})
        jobs.append(Job(workload.with_training(noise=noise), placement))
    return simulate(hardware, jobs, exact=True, fold=fold, seed=seed, cold=False)


@pytest.mark.parametrize(
    ("gpus", "slow", "shared"),
    [
        pytest.param([[4, 4, 0, 0]], 2, False, marks=pytest.mark.nightly),  # alike
        pytest.param([[4, 4, 2, 4]], 1, False, marks=pytest.mark.nightly),  # uneven, one node slow, one with a broken link
        ([[2, 2, 0, 0], [2, 2, 2, 0]], 2, True),  # two jobs on common NICs, one of them on a slow node as well
        pytest.param([[4, 4, 0, 0], [0, 0, 3, 3]], 2, False, marks=pytest.mark.nightly),  # side by side
    ],
)
def test_jobs_on_mixed_clusters_are_distributed_as_unfolded_ones(gpus: list[list[int]], slow: int, shared: bool) -> None:
    """Kolmogorov-Smirnov at fixed seeds, job by job."""
    folded, unfolded = (side_by_side(fold, gpus, slow, shared, 11 + fold) for fold in (True, False))
    assert len(folded.log.ranks) < len(unfolded.log.ranks)
    for job in range(len(gpus)):
        one, other = (durations(simulated, job) for simulated in (folded, unfolded))
        assert min(len(one), len(other)) > 400
        assert same_law(one, other)


def test_as_many_steps_are_drawn_as_the_interval_needs() -> None:
    """Little noise needs few steps, much noise the most; the rest of the epoch is extrapolated, and the interval told."""
    calm, wild = drawn(4, jitter=0.02).jobs[0].warm, drawn(4, jitter=0.9).jobs[0].warm
    assert (calm.steps, wild.steps) == (4000, 4000)
    assert LEAST_DRAWN_STEPS <= calm.drawn_steps < wild.drawn_steps <= MOST_DRAWN_STEPS + 2
    assert calm.interval is not None
    assert wild.interval is not None
    assert calm.interval <= ENOUGH_PRECISION * calm.step_time < wild.interval
    assert calm.time == pytest.approx(4000 * calm.step_time, rel=0.01)
    assert sum(calm.stalls.values()) == pytest.approx(calm.step_time)


def test_the_seed_decides_what_is_drawn_and_nothing_else() -> None:
    """Same seed, same log; another seed, another run; without drawing, no seed matters."""
    assert drawn(4, seed=1).log.waits == drawn(4, seed=1).log.waits
    assert drawn(4, seed=1).jobs[0].warm.step_time != drawn(4, seed=2).jobs[0].warm.step_time
    hardware = machine(4, compute_cv=0.1)
    jobs = [Job(toy_workload(), place(hardware))]
    assert simulate(hardware, jobs, seed=1).log.waits == simulate(hardware, jobs, seed=2).log.waits
