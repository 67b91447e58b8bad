"""Push and pull: every update everywhere, PHub's bandwidth bounds from the schedule's own bytes, and the closed form is attained."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.study.server_bound import bandwidth_bound, host_bytes
from tests.oracle.collectives.parameter_server import parameter_server, parameter_server_time
from tests.oracle.collectives.ports import in_turn, paced, port_loads, received, sent, shared
from tests.oracle.collectives.schedule import replay

sizes = st.floats(1, 1e10)
pieces = st.integers(1, 4)
latencies = st.sampled_from([0.0, 1e-6, 1e-3])


@st.composite
def hosts(draw):
    """Workers, servers, and whether servers stand on the workers' hosts."""
    n, colocated = draw(st.integers(1, 6)), draw(st.booleans())
    workers = draw(st.permutations(range(n)))
    m = draw(st.integers(1, n if colocated else 5))
    return workers, list(workers[:m]) if colocated else list(range(100, 100 + m)), colocated


@given(hosts(), sizes, pieces)
def test_every_worker_ends_with_every_update(hosts, nbytes, pieces):
    """Oracle: set replay with servers as reducers; one on a separate host holds nothing at first."""
    workers, servers, _ = hosts
    chunks = pieces * len(servers)
    held = replay(parameter_server(workers, servers, nbytes, pieces), workers, chunks, reducers=servers)
    assert {held[worker, chunk] for worker in workers for chunk in range(chunks)} == {frozenset(workers)}
    assert all(held[server, chunk] == set(workers) for place, server in enumerate(servers) for chunk in range(place, chunks, len(servers)))


@given(hosts(), sizes, pieces)
def test_bytes_per_worker_and_server(hosts, nbytes, pieces):
    """Closed forms of every host, as many in as out."""
    workers, servers, colocated = hosts
    transfers = parameter_server(workers, servers, nbytes, pieces)
    wanted = host_bytes(len(workers), len(servers), nbytes, colocated)
    for moved in (sent(transfers), received(transfers)):
        assert [moved[server] for server in servers] == pytest.approx([wanted.server] * len(servers))
        others = [moved[worker] for worker in workers if worker not in servers]
        assert others == pytest.approx([wanted.worker] * len(others))
    summed = sum(transfer.reduce_bytes for transfer in transfers)
    assert summed == pytest.approx((len(workers) - colocated) * nbytes)


@given(hosts(), sizes, pieces, st.floats(1e6, 1e12), latencies)
def test_the_schedule_attains_the_closed_form(hosts, nbytes, pieces, bandwidth, latency):
    """Oracle: the list scheduler, pulls after pushes or beside them; either way no port is asked for more than it has."""
    workers, servers, colocated = hosts
    n, m = len(workers), len(servers)
    transfers = parameter_server(workers, servers, nbytes, pieces)
    streams = max(n + m - 2, 1) if colocated else max(n, m)
    in_phase = max(n - 1, 1) if colocated else max(n, m)
    pushes, pulls = ([transfer for transfer in transfers if transfer.channel == channel] for channel in (0, 1))
    for together, share in ((transfers, streams), (pushes, in_phase), (pulls, in_phase)):
        loads = port_loads(together, lambda _, share=share: bandwidth / share)
        assert all(load <= bandwidth * (1 + 1e-9) for load in loads.values())
    beside = paced(transfers, lambda _: bandwidth / streams, lambda _: latency)
    after = paced(in_turn(transfers), lambda _: bandwidth / in_phase, lambda _: latency)
    expected = parameter_server_time(n, m, nbytes, bandwidth, latency, pieces, colocated)
    assert min(beside, after) == pytest.approx(expected, rel=1e-9)


@given(hosts(), st.integers(1, 3), latencies)
def test_fair_ports_are_no_slower_and_never_beyond_their_bandwidth(hosts, pieces, latency):
    """Oracle: ports that share themselves max-min among all that want them."""
    workers, servers, colocated = hosts
    played = shared(parameter_server(workers, servers, 1e9, pieces), 1e10, latency)
    expected = parameter_server_time(len(workers), len(servers), 1e9, 1e10, latency, pieces, colocated)
    least = max(host_bytes(len(workers), len(servers), 1e9, colocated)) / 1e10
    assert max(least, 0.8 * expected) * (1 - 1e-9) <= played <= expected * (1 + 1e-9)
    if not colocated or len(servers) == 1:
        assert played == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 16])
@pytest.mark.parametrize(
    ("placement", "bound"),
    [
        ("NCS", lambda n: 2),
        ("NCC", lambda n: 2 * n),
        ("CC", lambda n: 2 * (n - 1)),
        ("CS", lambda n: 4 * (n - 1) / n),
    ],
)
def test_phubs_bounds_are_the_busiest_hosts_bytes(placement, bound, n):
    """Oracles: PHub's four formulas (arXiv:1805.07891), and bytes in and out of the busiest host in the schedule itself."""
    workers = list(range(n))
    m = n if placement.endswith("S") else 1
    servers = workers[:m] if placement in ("CC", "CS") else list(range(100, 100 + m))
    transfers = parameter_server(workers, servers, 1.0, 3)
    busiest = max((sent(transfers)[host] + received(transfers)[host] for host in (*workers, *servers)), default=0)
    model, compute_time = 88e9 / 8, 0.5
    assert bandwidth_bound(placement, n, model, compute_time) == pytest.approx(bound(n) * model / compute_time, rel=1e-15)
    assert busiest == pytest.approx(bound(n))


def test_central_servers_grow_with_the_workers_and_sharded_ones_do_not():
    """PHub on AlexNet (88 Gbps for the model in one compute time), 8 workers: 176 / 1408 / 1232 / 308 Gbps."""
    gbps = [bandwidth_bound(placement, 8, 88e9 / 8, 1.0) * 8 / 1e9 for placement in ("NCS", "NCC", "CC", "CS")]
    assert gbps == pytest.approx([176, 1408, 1232, 308])


def test_one_worker_with_its_own_server_sends_nothing():
    assert parameter_server([0], [0], 8) == []
    assert parameter_server_time(1, 1, 8, 1, 1, colocated=True) == 0


def test_one_worker_with_a_server_elsewhere():
    """Oracle: by hand. 8 bytes there and back at 1 byte/s, 1 s each way."""
    assert parameter_server_time(1, 1, 8, 1, 1) == 18


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: host_bytes(2, 3, 8, True), "3 colocated servers do not fit on 2 worker hosts: use at most 2"),
        (lambda: host_bytes(2, 0, 8, False), "at least one worker and one server, not 2 and 0"),
        (lambda: parameter_server([0, 1], [1, 2], 8), r"servers \[2\] are not workers"),
        (lambda: parameter_server([0, 1], [], 8), "each of its ranks once"),
        (lambda: parameter_server([0, 1], [2], 0), "more than 0 bytes"),
        (lambda: parameter_server([0, 1], [2], 8, 0), "at least one piece"),
        (lambda: bandwidth_bound("central", 8, 8, 1), "one of NCS, NCC, CC, CS, not central"),
        (lambda: bandwidth_bound("CC", 8, 8, 0), "compute_time must be above 0"),
    ],
)
def test_hosts_that_cannot(ask, words):
    with pytest.raises(ValueError, match=words):
        ask()
