"""Does the search end at the shortest step of all shares, with few simulated? Oracles: every share, of drawn costs and of real machines."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from sim.study.batch_search import BatchShare, GroupBatches, Search, all_choices, find_shortest_step
from sim.study.batches import batches, since_waits
from sim.study.scenario import Scenario
from sim.training.step_plan import plan_step

COLOCATED = ("training.stack.servers.placement=colocated", "training.stack.servers.count=1")
THREE = "name: three\ngroups:\n  - {node: p2.xlarge, count: 1}\n  - {node: p3.2xlarge, count: 1}\n  - {node: g4dn.xlarge, count: 1}\n"


def drawn(draw: random.Random, falls: bool) -> Search:
    """Return a search whose steps wait for work, loaders and an exchange; with *falls* some work is shorter at a larger batch."""
    gpus = [draw.choice((1, 2, 3)) for _ in range(draw.choice((2, 3)))]
    rates, loads, idle = ([draw.uniform(low, high) for _ in gpus] for low, high in ((0.5, 5.0), (0.1, 4.0), (0.0, 20.0)))
    shared, cheap = draw.uniform(0.0, 50.0), {(draw.randrange(len(gpus)), draw.randrange(2, 13)) for _ in range(5 * falls)}

    def parts(group: int, batch: int) -> list[float]:
        forward = max(idle[group], batch * rates[group]) * (0.6 if (group, batch) in cheap else 1.0)
        return [forward, forward + 2.0 * batch * rates[group]]

    def work(group: int, batch: int) -> float:
        return parts(group, batch)[-1]

    def step_time(sizes: GroupBatches) -> float:
        ready = max(parts(group, batch)[0] for group, batch in enumerate(sizes)) + shared
        computed = max(work(group, batch) for group, batch in enumerate(sizes))
        loaded = max(batch * load for batch, load in zip(sizes, loads, strict=True))
        return max(ready, computed, 4.0 * loaded) + 0.01 * sum(sizes)

    return Search([BatchShare(count, 12) for count in gpus], sum(gpus) * 5, step_time, work, parts)


@pytest.mark.parametrize("falls", [False, True])
def test_few_steps_prove_the_shortest(falls: bool) -> None:
    """Also where work is shorter at some larger batch, which bounds by smaller steps must not be taken to."""
    draw, few = random.Random(11), 0
    for case in range(60):
        search = find_shortest_step(drawn(draw, falls))
        every = all_choices(search)
        assert search.simulated_times[search.best] == min(map(search.step_time, every)), case
        assert not search.simulations_left
        few += search.simulated < max(12, len(every) // 3)
    assert few > 40


def test_a_limit_leaves_shares_open_and_says_how_many() -> None:
    search = drawn(random.Random(3), False)
    search.limit = 3
    find_shortest_step(search)
    assert search.simulated_times and 0 < search.simulations_left < len(all_choices(search))


@pytest.mark.parametrize(
    ("stack", "sets"),
    [
        (None, ()),
        pytest.param("horovod-0.21", (), marks=pytest.mark.nightly),
        pytest.param("tf-parameter-server-sync", COLOCATED, marks=pytest.mark.nightly),
    ],
)
def test_three_kinds_share_a_batch_as_every_share_shows(tmp_path: Path, stack: str | None, sets: tuple[str, ...]) -> None:
    """Oracle: all 28 shares of nine samples simulated. Horovod's buckets are others at other batches: fewer samples bound nothing there."""
    path = tmp_path / "three.yaml"
    path.write_text(THREE)
    search = batches(Scenario(str(path), "resnet50", ("input.loader=synthetic", *sets), stack=stack), 9).search
    every = all_choices(search)
    times = {sizes: search.step_time(sizes) for sizes in every}
    assert len(every) == 28 and not search.simulations_left
    assert search.simulated_times[search.best] == pytest.approx(min(times.values()), rel=1e-12), stack  # several shares tie
    assert bool(search.smaller_times) == (stack != "horovod-0.21")
    for sizes, other in itertools.product(every, search.smaller_times):
        if all(more >= less for more, less in zip(sizes, other, strict=True)):
            assert times[sizes] >= search.smaller_times[other] * (1 - 1e-9), (stack, sizes, other)


def test_of_thousands_of_shares_few_are_simulated(tmp_path: Path) -> None:
    """Of 120 samples in 7,021 ways twenty steps are enough."""
    path = tmp_path / "three.yaml"
    path.write_text(THREE)
    large = batches(Scenario(str(path), "resnet50"), 120).search
    assert len(all_choices(large)) == 7021 and not large.simulations_left and large.simulated <= 20


@pytest.mark.nightly
def test_an_array_of_many_boards_needs_few_steps() -> None:
    """127 steps were simulated before; their shortest is the answer."""
    search = batches(Scenario("256x-tpu-v2-v3", "resnet50", precision="amp_bf16"), 65536).search
    assert (search.best, search.simulations_left) == ((51, 77), 0)
    assert search.simulated <= 12


def test_parts_end_where_a_gpu_waits() -> None:
    """Conservation: what is computed since the last wait before the optimizer is forward and backward; the last part is the update."""
    from sim.spec.library import load_hardware, load_workload

    workload, node = load_workload("resnet18").spec, load_hardware("p3.2xlarge").spec.groups[0].node
    plan = plan_step(workload, node.gpu, node.host.cpu.speed, 4)
    computed = sum(segment.compute for segment in plan.segments if segment)
    assert max(since_waits(plan)) + plan.optimizer.compute == pytest.approx(computed, rel=0.02)
    assert since_waits(plan)[-1] < 0.2 * computed
