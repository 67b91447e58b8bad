"""How many others does a worker meet? Oracles: closed forms, the operational laws, and a random simulation of the same network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.queueing import mean_others

times = st.floats(1e-3, 10)


def cycle(workers: int, think: float, stages: list[dict[str, float]]) -> float:
    others = mean_others(workers, think, stages)
    return think + sum(max(time * (1 + others[station]) for station, time in stage.items()) for stage in stages)


def test_one_worker_meets_nobody() -> None:
    assert mean_others(1, 3.0, [{"cpu": 1.0}]) == {"cpu": 0.0}


def test_two_workers_by_hand() -> None:
    """One worker is at the station for D/(Z+D) of the time, and so the second finds it there."""
    assert mean_others(2, 3.0, [{"cpu": 1.0}]) == {"cpu": pytest.approx(0.25)}


@given(st.integers(1, 30), times, times)
def test_without_thinking_all_others_are_there(workers: int, service: float, _: float) -> None:
    assert mean_others(workers, 0.0, [{"cpu": service}])["cpu"] == pytest.approx(workers - 1)


@given(st.integers(1, 40), times, times, times)
def test_the_bounds_of_operational_analysis(workers: int, think: float, one: float, two: float) -> None:
    """Throughput is at most n/(Z+D) and 1/the busiest station, and at least n/(Z + nD) (Lazowska et al. 1984, chapter 5)."""
    throughput = workers / cycle(workers, think, [{"a": one}, {"b": two}])
    assert throughput <= min(workers / (think + one + two), 1 / max(one, two)) * (1 + 1e-9)
    assert throughput >= workers / (think + workers * (one + two)) * (1 - 1e-9)


@given(st.integers(2, 20), times, times)
def test_visits_to_one_station_add_up(workers: int, think: float, service: float) -> None:
    split = mean_others(workers, think, [{"cpu": service / 4}, {"cpu": 3 * service / 4}])["cpu"]
    assert split == pytest.approx(mean_others(workers, think, [{"cpu": service}])["cpu"])


def test_a_station_of_ones_own_node_holds_only_neighbors() -> None:
    assert mean_others(8, 1.0, [{"port": 1.0}], {"port": 0.0}) == {"port": 0.0}


def simulated(workers: int, think: float, service: float, cv: float, seed: int) -> float:
    """Cycle time of a random network: think times exponential, one server shared evenly by all present, gamma service times."""
    draw = np.random.default_rng(seed)

    def work() -> float:
        return service if cv == 0 else float(draw.gamma(1 / cv**2, service * cv**2))

    away = sorted(draw.exponential(think, workers).tolist())
    present: list[float] = []
    now, done = 0.0, 0
    for _ in range(60_000):
        finish = now + min(present) * len(present) if present else np.inf
        arrival = away[0] if away else np.inf
        until = min(finish, arrival)
        present = [left - (until - now) / len(present) for left in present]
        now = until
        if finish <= arrival:
            present.remove(min(present))
            done += 1
            away = sorted([*away, now + draw.exponential(think)])
        else:
            present.append(work())
            away.pop(0)
    return workers * now / done


@pytest.mark.parametrize("cv", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_random_simulation_agrees_whatever_the_spread_of_service_times(workers: int, cv: float) -> None:
    assert cycle(workers, 3.0, [{"cpu": 1.0}]) == pytest.approx(simulated(workers, 3.0, 1.0, cv, seed=workers), rel=0.03)


@pytest.mark.parametrize(("workers", "think"), [(0, 1.0), (3, -1.0), (3, float("nan"))])
def test_what_is_no_network_is_refused(workers: int, think: float) -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        mean_others(workers, think, [{"cpu": 1.0}])
