"""How fast is the cluster layer? Reported, never asserted: activities per second through the network, and one solution of 50 flows."""

from __future__ import annotations

import math
import random

import simpy

from sim.cluster.fairshare import Flow, max_min_rates
from sim.cluster.network import Network
from sim.events import EventLog

SHARING = 8
ACTIVITIES = 2000


def churn(activities: int, sharing: int) -> float:
    """Run *activities* one after another in *sharing* streams, each over one shared and one private link; return when they end."""
    env = simpy.Environment()
    network = Network(env, EventLog(lambda: env.now))
    network.add_link("shared", 10.0)

    def stream(number: int):  # type: ignore[no-untyped-def]
        for _ in range(activities // sharing):
            yield network.start("x", 1.0 + 0.1 * number, {"shared": 1.0, f"own{number}": 1.0}).done

    for number in range(sharing):
        network.add_link(f"own{number}", 3.0)
        env.process(stream(number))
    env.run()
    return env.now


def test_activities_through_the_network(benchmark):
    """8 streams share one link: every end re-rates the other seven."""
    benchmark.extra_info |= {"label": "flows through the network, 8 sharing a link", "count": ACTIVITIES, "unit": "flows/s"}
    ended = benchmark(churn, ACTIVITIES, SHARING)
    assert ended > sum(1.0 + 0.1 * number for number in range(SHARING)) * ACTIVITIES / SHARING / 10.0 * (1 - 1e-9)


def test_activities_alone(benchmark):
    """One stream: what an activity costs where nothing is shared."""
    benchmark.extra_info |= {"label": "flows through the network, one at a time", "count": ACTIVITIES, "unit": "flows/s"}
    assert math.isclose(benchmark(churn, ACTIVITIES, 1), ACTIVITIES / 3.0, rel_tol=1e-9)


def test_rates_of_50_flows(benchmark):
    """On 20 links, 1 to 4 each, half of them capped: about as many rounds of filling as there are links."""
    chance = random.Random(1)
    capacity = {f"l{number}": chance.uniform(1, 10) for number in range(20)}
    flows = [
        Flow({link: chance.choice([1.0, 2.0]) for link in chance.sample(sorted(capacity), chance.randint(1, 4))}, 1.0, cap)
        for cap in [math.inf] * 25 + [chance.uniform(0.1, 1) for _ in range(25)]
    ]
    benchmark.extra_info |= {"label": "max-min fair shares of 50 flows on 20 links", "count": 1, "unit": "solutions/s"}
    assert len(benchmark(max_min_rates, flows, capacity)) == 50
