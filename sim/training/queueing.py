"""How many others does a worker meet at a server? Exact mean value analysis of a closed queueing network.

*n* equal workers cycle by themselves: they compute (nobody waits for a GPU of another), then visit servers, whose processors and
ports serve all present alike. By the arrival theorem a worker that comes to a station finds there, in the mean, what n - 1 workers
would leave there (Reiser and Lavenberg, JACM 27(2), 1980):

    R_v(k) = d_v (1 + Q_s(k-1)),   X(k) = k / (Z + sum of R_v),   Q_s(k) = X(k) * sum of R_v over the visits to s

with service times d, compute time Z, throughput X. Exact for stations shared evenly, whatever the distributions, where visits follow
one another; visits side by side (several servers, a port and a processor in one pipeline) last as long as the longest, which leaves
out that the longest of several random times is longer than the longest mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Visit = Mapping[str, float]
"""Seconds that one worker alone takes at each station that it visits side by side."""


def mean_others(workers: int, think: float, stages: Sequence[Visit], near: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return how many of the other workers one of *workers* meets at each station, in the mean.

    *think* is the time (s) of a cycle outside the *stages*, which follow one another. *near* gives the share of the others that use the
    same station where not all do (the port of a node).
    """
    if workers < 1 or not think >= 0:
        raise ValueError(f"{workers} workers that compute for {think} s: at least one worker, and a time of zero or more, are due")
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
