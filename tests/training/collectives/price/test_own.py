"""Is an all-reduce of the user's own proven and priced rightly? Oracles: closed forms, the built-in algorithms, `schedule.replay`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stallsim
from sim.report.collective_error import collective_error, unmeasured
from sim.spec import extensions
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.training.collectives.price.collective_plan import Tuning
from sim.training.collectives.price.own import OwnSend, OwnSteps, transfers, verified_steps
from sim.training.job import EXECUTORS
from stallsim.protocols import CollectiveAlgorithm
from tests.examples import examples
from tests.harness import Rig, machine
from tests.oracle.collectives.halving_doubling import halving_doubling_time
from tests.oracle.collectives.ring import ring_all_reduce_time
from tests.oracle.collectives.schedule import ScheduleError, replay

executors = pytest.mark.parametrize("executor", EXECUTORS)
sizes = st.floats(1e4, 1e9)


class Ring:
    name = "MyRing"

    def all_reduce(self, ranks: int, per_node: int) -> Any:
        steps = [
            [(rank, (rank + 1) % ranks, [(rank - step) % ranks], step < ranks - 1) for rank in range(ranks)]
            for step in range(2 * (ranks - 1))
        ]
        return ranks, steps


class HalvingDoubling:
    name = "MyHalvingDoubling"

    def all_reduce(self, ranks: int, per_node: int) -> Any:
        rounds = ranks.bit_length() - 1
        if ranks != 1 << rounds:
            raise ValueError(f"{ranks} ranks are not a power of two; take Ring")
        bits = [*((bit, True) for bit in range(rounds)), *((bit, False) for bit in reversed(range(rounds)))]

        def chunks(owner: int, bit: int) -> list[int]:
            return [chunk for chunk in range(ranks) if (chunk ^ owner) % (2 << bit) == 0]

        return ranks, [
            [(rank, rank ^ 1 << bit, chunks(rank ^ 1 << bit if adds else rank, bit), adds) for rank in range(ranks)] for bit, adds in bits
        ]


class Star:
    """All send to the first rank, which sends the sum back."""

    name = "Star"

    def all_reduce(self, ranks: int, per_node: int) -> Any:
        return 1, [[(rank, 0, [0], True) for rank in range(1, ranks)], [(0, rank, [0], False) for rank in range(1, ranks)]]


class Own:
    """A schedule of given steps."""

    name = "Mine"

    def __init__(self, chunks: Any, steps: Any) -> None:
        self.chunks, self.steps = chunks, steps

    def all_reduce(self, ranks: int, per_node: int) -> Any:
        return self.chunks, self.steps


@pytest.fixture(autouse=True, scope="module")
def _given() -> Iterator[None]:
    algorithms: list[CollectiveAlgorithm] = [Ring(), HalvingDoubling(), Star()]
    for each in algorithms:
        extensions.register(extensions.COLLECTIVES, each)
    yield
    extensions._given[extensions.COLLECTIVES.group].clear()


def alone(toys: Any, executor: str, nbytes: float, algorithm: str) -> float:
    rig = Rig(toys, executor, algorithm=algorithm, fold=executor == "phase")
    rig.ring("it", nbytes)
    rig.env.run()
    return float(rig.ends["it"])


@executors
@examples(20, None, n=st.integers(2, 12), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_a_ring_between_nodes(executor: str, n: int, nbytes: float, nic: float, latency: float) -> None:
    """Closed form: 2(n-1)(S/(nB) + l)."""
    toys = machine(1, n, nic=nic, network_latency=latency, pcie=1e15)
    assert alone(toys, executor, nbytes, "MyRing") == pytest.approx(ring_all_reduce_time(n, nbytes, nic, latency), rel=1e-9)


@executors
@examples(8, None, power=st.integers(1, 4), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_halving_doubling_between_nodes(executor: str, power: int, nbytes: float, nic: float, latency: float) -> None:
    """Closed form: 2 log2(n) l + 2(n-1)/n S/B."""
    toys = machine(1, 2**power, nic=nic, network_latency=latency, pcie=1e15)
    assert alone(toys, executor, nbytes, "MyHalvingDoubling") == pytest.approx(
        halving_doubling_time(2**power, nbytes, nic, latency), rel=1e-9
    )


@executors
@examples(20, None, n=st.integers(2, 9), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_what_all_send_to_one_waits_for_its_port(executor: str, n: int, nbytes: float, nic: float, latency: float) -> None:
    """Closed form: 2((n-1) S/B + l). Equal nodes are folded into one, of which the busiest stands for all."""
    toys = machine(1, n, nic=nic, network_latency=latency, pcie=1e15)
    assert alone(toys, executor, nbytes, "Star") == pytest.approx(2 * ((n - 1) * nbytes / nic + latency), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("p3.16xlarge", 1), ("p3.16xlarge", 4), ("hgx-h100", 2),
        pytest.param("128x-hgx-h100-oversubscribed", None, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_said_again_it_costs_what_the_built_in_one_costs(name: str, nodes: int | None) -> None:
    ways = {
        algorithm: collective_table(name, "all_reduce", [2**10, 2**20, 2**30], nodes=nodes, tuning=Tuning("2.30", algorithm))
        for algorithm in ("MyHalvingDoubling", "HalvingDoubling")
    }
    mine, expected = ([row.time for row in table.rows] for table in ways.values())
    assert mine == pytest.approx(expected, rel=1e-12)


def test_a_run_with_it_is_that_with_the_built_in_one_and_says_that_it_is_not_validated() -> None:
    own = stallsim.run("p3.16xlarge", "resnet50", nodes=2, collective=HalvingDoubling()).document
    built_in = stallsim.run("p3.16xlarge", "resnet50", nodes=2, overrides={"training.stack.nccl_algo": "HalvingDoubling"}).document
    assert own["step_time_s"] == pytest.approx(built_in["step_time_s"], rel=1e-9)
    assert own["stalls_s"] == pytest.approx(built_in["stalls_s"], rel=1e-6, abs=1e-9)
    warning = "collective MyHalvingDoubling is user-defined and not validated; the expected error shown is that of the built-in algorithms"
    assert warning in own["warnings"] and warning not in built_in["warnings"]
    table = collective_table("hgx-h100", "all_reduce", [2**20], tuning=Tuning("2.30", "MyRing"))
    assert collective_error(table) is None and "no measurements of MyRing" in unmeasured(table)[0]


def test_layouts_take_it_too() -> None:
    layout = {"tp": 8, "shard": "optimizer"}
    own = stallsim.run("hgx-h100", "llama-3.2-1b", parallel=layout, nodes=2, collective=HalvingDoubling())
    built_in = stallsim.run("hgx-h100", "llama-3.2-1b", parallel=layout, nodes=2, overrides={"training.stack.nccl_algo": "HalvingDoubling"})
    left = stallsim.run("hgx-h100", "llama-3.2-1b", parallel=layout, nodes=2)
    assert own.step_time == pytest.approx(built_in.step_time, rel=1e-9)
    assert own.step_time > left.step_time
    assert [text for text in own.document["warnings"] if text.startswith("collective MyHalvingDoubling is user-defined and not validated")]


@pytest.mark.parametrize("algorithm", [Ring(), HalvingDoubling(), Star()])
def test_what_is_proven_replays_to_all_sums(algorithm: CollectiveAlgorithm) -> None:
    """Oracle: `schedule.replay`, where the star's first rank adds in any order, as a server does."""
    for ranks in (2, 4, 8):
        chunks, steps = algorithm.all_reduce(ranks, ranks)
        own_steps = OwnSteps(chunks, tuple(tuple(OwnSend(src, dst, tuple(of), adds) for src, dst, of, adds in step) for step in steps))
        verified_steps(algorithm.name, own_steps, ranks)
        held = replay(transfers(own_steps, 64.0), range(ranks), chunks, reducers=[0] if algorithm.name == "Star" else ())
        assert set(held.values()) == {frozenset(range(ranks))}


@given(seed=st.randoms(use_true_random=False))
def test_what_is_not_an_all_reduce_is_refused(seed: Any) -> None:
    """A send left out, sent elsewhere, of another chunk, or added where it should replace: refused wherever replaying is not whole."""
    chunks, steps = Ring().all_reduce(4, 4)
    step = seed.randrange(len(steps))
    place = seed.randrange(4)
    src, dst, of, adds = steps[step][place]
    change = seed.choice(["drop", "to", "chunk", "adds"])
    if change == "drop":
        del steps[step][place]
    else:
        steps[step][place] = {
            "to": (src, (dst + 1) % 4 if (dst + 1) % 4 != src else (dst + 2) % 4, of, adds),
            "chunk": (src, dst, [(of[0] + 1) % 4], adds),
            "adds": (src, dst, of, not adds),
        }[change]
    own_steps = OwnSteps(chunks, tuple(tuple(OwnSend(src, dst, tuple(of), adds) for src, dst, of, adds in each) for each in steps))
    try:
        complete = set(replay(transfers(own_steps, 4.0), range(4), 4).values()) == {frozenset(range(4))}
    except ScheduleError:
        complete = False
    if complete:
        verified_steps("Mine", own_steps, 4)
        return
    with pytest.raises(SpecError, match=r"^collective Mine: [^\n]*$"):
        verified_steps("Mine", own_steps, 4)


@pytest.mark.parametrize(
    ("chunks", "steps", "message"),
    [
        (1, [], "collective Mine: rank 0 ends without the contribution of rank 7 to chunk 0; send it"),
        (0, [], "collective Mine: cuts the payload into 0 chunks; write 1 or more"),
        (1, [[]], "collective Mine: step 0 sends nothing; leave it out"),
        (1, [[(0, 8, [0], True)]], "collective Mine: step 0 sends from rank 0 to rank 8; write two different ranks below 8"),
        (1, [[(3, 3, [0], True)]], "collective Mine: step 0 sends from rank 3 to rank 3; write two different ranks below 8"),
        (2, [[(0, 1, [0, 2], True)]], "collective Mine: step 0 sends the chunks [0, 2]; write different ones below 2"),
        (2, [[(0, 1, [0], True), (1, 2, [0, 1], True)]], "collective Mine: step 0 has sends of 1 and 2 chunks; write two steps"),
        (
            1,
            [[(0, 1, [0], True)], [(0, 1, [0], True)]],
            "collective Mine: step 1 adds the contribution of rank 0 to chunk 0 of rank 1 twice",
        ),
        (1, [[(0, 2, [0], False), (1, 2, [0], True)]], "collective Mine: step 0 has two sends to chunk 0 of rank 2"),
        (1, [(0, 1)], "collective Mine: TypeError: "),
        (1, None, "collective Mine: TypeError: "),
    ],
)
def test_wrong_steps_are_refused_in_a_sentence(chunks: Any, steps: Any, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.run("p3.16xlarge", "resnet50", collective=Own(chunks, steps))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("collective", "gpus", "message"),
    [
        (HalvingDoubling(), 6, "collective MyHalvingDoubling: 6 ranks are not a power of two; take Ring"),
        (
            7,
            None,
            "the collective 7: does not follow CollectiveAlgorithm: it lacks name and all_reduce; see docs/develop/own-collective.md "
            "for an example",
        ),
        (type("Taken", (Star,), {"name": "ring"}), None, "collective ring: a built-in collective has this name"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(collective: object, gpus: int | None, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.run("p3.16xlarge", "resnet50", gpus=gpus, collective=collective)
    assert str(refused.value).startswith(message)


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    with pytest.raises(SpecError, match=r"HalvingDoubling, .*MyHalvingDoubling, MyRing, Star"):
        collective_table("p3.16xlarge", "all_reduce", [2**20], tuning=Tuning("2.30", "Rings"))
    assert math.isfinite(collective_table("p3.16xlarge", "all_reduce", [2**20], tuning=Tuning("2.30", "Star")).rows[0].time)
