"""How many other workers does a worker meet at a server? Exact mean value analysis of a closed queueing network.

*n* equal workers cycle independently: they compute, each on its own GPU, and then visit servers, which share their processors and ports
equally among all workers present. By the arrival theorem, a worker that arrives at a station finds there the mean number of workers of
the same network with n - 1 workers (Reiser and Lavenberg, JACM 27(2), 1980):

    R_v(k) = d_v (1 + Q_s(k-1)),   X(k) = k / (Z + sum of R_v),   Q_s(k) = X(k) * sum of R_v over the visits to s

with service times d, compute time Z and throughput X. If visits are sequential, this is exact for evenly shared stations with any
distributions. Parallel visits (several servers, or a port and a processor in one pipeline) are taken to last as long as the longest mean.
This is an approximation: the maximum of several random times has a larger mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Visit = Mapping[str, float]
"""Service time (s) of one worker without others, at each station that it visits in parallel."""


def mean_others(workers: int, think: float, stages: Sequence[Visit], near: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the mean number of other workers that one of *workers* meets at each station.

    *think* is the time (s) of a cycle outside the *stages*, which are sequential. *near* specifies the share of the other workers that use
    a station, for stations that not all of them use (the port of a node).
    """
    if workers < 1 or not think >= 0:
        raise ValueError(f"{workers} workers that compute for {think} s: expected at least one worker and a time of zero or more")
    others = {station: 0.0 for stage in stages for station in stage}
    for present in range(1, workers):
        times = [{station: service * (1 + others[station]) for station, service in stage.items()} for stage in stages]
        cycle = think + sum(max(stage.values(), default=0.0) for stage in times)
        if not cycle > 0:
            return others
        others = dict.fromkeys(others, 0.0)
        for stage in times:
            for station, time in stage.items():
                others[station] += present / cycle * time * (near or {}).get(station, 1.0)
    return others
