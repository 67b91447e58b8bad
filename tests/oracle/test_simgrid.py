"""Independent tool: SimGrid's max-min network gives the same completion times as ours, on the same random flows.

SimGrid runs in its plain form (model CM02, no latency, no TCP window, no acknowledgments). Caps are links of a flow's own there.
"""

from __future__ import annotations

import json
import math
import random
import subprocess

import pytest
import simpy

from sim.cluster.network import Network
from sim.events import EventLog
from tests.oracle import simgrid_times

PYTHON = "/usr/bin/python3"  # Debian's python3-simgrid is built for Debian's interpreter


@pytest.fixture(scope="module", autouse=True)
def _simgrid():
    try:
        available = subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        available = False
    if not available:
        pytest.skip(f"SimGrid is not there: {PYTHON} cannot import simgrid (Debian: apt install python3-simgrid)")


def their_times(cases):
    played = subprocess.run([PYTHON, simgrid_times.__file__], input=json.dumps(cases), capture_output=True, text=True, timeout=300)
    assert played.returncode == 0, played.stderr
    return json.loads(played.stdout)


def our_times(case):
    env = simpy.Environment()
    network = Network(env, EventLog(lambda: env.now))
    for link, capacity in case["capacity"].items():
        network.add_link(link, capacity)
    times = [math.nan] * len(case["flows"])

    def send(place, flow):
        yield env.timeout(flow["start"])
        caps = [case["capacity"][link] for link in flow["links"] if link.startswith("cap")]
        links = [link for link in flow["links"] if not link.startswith("cap")]
        usage = {link: float(links.count(link)) for link in links}
        yield network.start(str(place), flow["volume"], usage, cap=min(caps, default=math.inf)).done
        times[place] = env.now

    for place, flow in enumerate(case["flows"]):
        env.process(send(place, flow))
    env.run()
    return times


def flow(*links, volume=10_000_000, start=0.0):
    return {"links": links, "volume": volume, "start": start}


def random_case(chance, most_links, most_flows):
    """Flows over one to four links of a few, some twice, some capped, some later than others; many figures are round."""
    capacity = {
        f"l{number}": chance.choice([1e8, 1.25e8, 5e8, chance.uniform(1e7, 1e9)]) for number in range(chance.randint(1, most_links))
    }
    shared, flows = sorted(capacity), []
    for number in range(chance.randint(1, most_flows)):
        links = chance.sample(shared, chance.randint(1, min(4, len(shared))))
        if chance.random() < 0.2:
            links.append(links[0])
        if chance.random() < 0.3:
            capacity[f"cap{number}"] = chance.choice([2e7, chance.uniform(1e7, 3e8)])
            links.append(f"cap{number}")
        volume = chance.choice([10**8, 2 * 10**8, chance.randint(10**7, 10**10)])
        flows.append(flow(*links, volume=volume, start=chance.choice([0.0, 0.0, 1.0, chance.uniform(0, 10)])))
    return {"capacity": capacity, "flows": flows}


def test_worked_cases():
    """By hand: x at 8 MB/s on a, y and z at 2 MB/s on b; a flow that crosses a link twice beside one that crosses it once."""
    cases = [
        {"capacity": {"a": 10e6, "b": 4e6}, "flows": [flow("a"), flow("a", "b"), flow("b")]},
        {"capacity": {"a": 9e6}, "flows": [flow("a", volume=3_000_000), flow("a", "a", volume=6_000_000)]},
        {"capacity": {"a": 9e6, "cap0": 1e6}, "flows": [flow("a", "cap0", volume=3_000_000), flow("a", volume=8_000_000, start=1.0)]},
    ]
    by_hand = [[1.25, 5.0, 5.0], [1.0, 1.0 + 3 / 4.5], [3.0, 2.0]]
    for ours, theirs, expected in zip(map(our_times, cases), their_times(cases), by_hand, strict=True):
        assert ours == pytest.approx(expected, rel=1e-12)
        assert theirs == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("count", "most_links", "most_flows"), [(300, 6, 10), (10, 20, 60)], ids=["small", "large"])
def test_random_flow_sets_end_at_the_same_times(count, most_links, most_flows):
    chance = random.Random(1)
    cases = [random_case(chance, most_links, most_flows) for _ in range(count)]
    for case, theirs in zip(cases, their_times(cases), strict=True):
        assert our_times(case) == pytest.approx(theirs, rel=1e-6), case
