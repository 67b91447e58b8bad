"""What do workers and servers send? Every worker pushes each server its share of the gradients, and pulls the updated share.

Each of m servers keeps S/m of the model's S bytes, in P pieces; a piece goes back once all n workers have pushed it (Luo et al., PHub, SoCC
2018, arXiv:1805.07891). Pushes (channel 0) and pulls (channel 1) run side by side. The busiest port sends W bytes, W_1 of them in pushes::

    on separate hosts    W = W_1 = max(1, n/m) S,        colocated    W = (n + m - 2)/m S,  W_1 = (n - 1)/m S
    T = min(2 W_1/B,  (P + 1) W/(PB)) + 2 l              port of B bytes/s, hop latency l

What a colocated worker pushes to itself crosses no wire. Ports shared fairly take as long on separate hosts or with one server, and up to a
fifth less otherwise. A server's processor, and sharding by whole variables: `sim.training.server_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.study.server_bound import host_bytes
from tests.oracle.collectives.schedule import Transfer, check_collective, check_timed, pipeline_time


def parameter_server(workers: Sequence[int], servers: Sequence[int], nbytes: float, pieces: int = 1) -> list[Transfer]:
    """Return push and pull of *nbytes*; a server that is also in *workers* is colocated; chunk ``piece * m + k`` is of server k.

    ValueError unless all servers are colocated or none is.
    """
    check_collective(workers, nbytes, pieces)
    m = check_collective(servers, nbytes)
    if set(servers) & set(workers) and not set(servers) <= set(workers):
        raise ValueError(f"servers {sorted(set(servers) - set(workers))} are not workers, the others are: colocate all servers or none")
    size = nbytes / m / pieces
    transfers: list[Transfer] = []
    for chunk in range(m * pieces):
        server = servers[chunk % m]
        others = [worker for worker in workers if worker != server]
        pushes = tuple(range(len(transfers), len(transfers) + len(others)))
        transfers += [Transfer(worker, server, size, (chunk,), (), size) for worker in others]
        transfers += [Transfer(server, worker, size, (chunk,), pushes, 0.0, 1) for worker in others]
    return transfers


def parameter_server_time(
    workers: int, servers: int, nbytes: float, bandwidth: float, latency: float, pieces: int = 1, colocated: bool = False
) -> float:
    """Return the seconds of push and pull of *nbytes*; one full-duplex port of *bandwidth* (bytes/s) per host, hops of *latency* (s)."""
    check_timed(workers, nbytes, bandwidth, latency, pieces)
    busiest = max(host_bytes(workers, servers, nbytes, colocated))
    if not busiest:
        return 0.0
    pushed = (workers - 1) / servers * nbytes if colocated else busiest
    return min(2 * (pushed / bandwidth + latency), pipeline_time(2, pieces, busiest / pieces / bandwidth, latency))
