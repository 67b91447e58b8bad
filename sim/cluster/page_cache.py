"""How many reads does the page cache serve? A closed form in the cached fraction, for a new random order in each epoch.

A node caches c = min(1, capacity / data set); each epoch distributes a new uniform permutation to N nodes (torch's DistributedSampler).
Policies: never evict (MinIO of CoorDL, arXiv 2007.06775), LRU, partitioned (CoorDL: each node keeps its own part and serves it to the
others), and Linux, a weighted mean of the first two whose weight must be calibrated. Equations: docs/model/input.md.

Limits: samples of equal size, large data sets (no 1/samples terms), means over an epoch, no readahead, nothing else uses the cache;
transfers between caches use NICs and cores, but no links between switches.
"""

from __future__ import annotations

import math

from sim.spec.hardware import PageCache

_NEGLIGIBLE = 1e-12
"""Probability below which the sum omits older last uses."""


def capacity(memory: float, cache: PageCache) -> float:
    """Return the bytes available to file pages in *memory* bytes of DRAM."""
    return cache.memory_share * memory


def cached_fraction(capacity: float, dataset: float) -> float:
    """Return the share of a *dataset* (bytes) that *capacity* bytes hold. Raise ValueError for an empty data set."""
    if dataset <= 0 or capacity < 0:
        raise ValueError(f"a data set of {dataset:g} bytes in a cache of {capacity:g} bytes: sizes must be positive")
    return min(1.0, capacity / dataset)


def hit_ratio(cache: PageCache, fraction: float, nodes: int = 1, epoch: int | None = None) -> float:
    """Return the share of reads served from memory under *cache*'s policy.

    *fraction* of the data set fits into each node's cache; *nodes* read disjoint shards. *epoch* counts from 0, the cold epoch,
    which hits nothing; None is the steady state. For a partitioned cache, hits in other nodes' memory count as well (`remote_hit_ratio`).
    """
    if cache.policy == "partitioned":
        _check(fraction, nodes, epoch)
        return 0.0 if epoch == 0 else min(1.0, nodes * fraction)
    lru = {"lru": 1.0, "never_evict": 0.0, "linux": cache.lru_share}[cache.policy]
    return lru * lru_hit_ratio(fraction, nodes, epoch) + (1 - lru) * never_evict_hit_ratio(fraction, nodes, epoch)


def remote_hit_ratio(cache: PageCache, hits: float, nodes: int) -> float:
    """Return the share of reads served from the memory of other nodes; *hits* is the share served from any memory."""
    return hits * (1.0 - 1.0 / nodes) if cache.policy == "partitioned" else 0.0


def never_evict_hit_ratio(fraction: float, nodes: int = 1, epoch: int | None = None) -> float:
    """Return the hit ratio of a cache of *fraction* of the data set that never evicts; *nodes*, *epoch* as in `hit_ratio`."""
    _check(fraction, nodes, epoch)
    seen = 1.0 if epoch is None else 1.0 - (1.0 - 1.0 / nodes) ** epoch
    return min(fraction, seen)


def lru_hit_ratio(fraction: float, nodes: int = 1, epoch: int | None = None) -> float:
    """Return the hit ratio of a least-recently-used cache of *fraction* of the data set; *nodes*, *epoch* as in `hit_ratio`."""
    _check(fraction, nodes, epoch)
    if fraction == 1.0:
        return never_evict_hit_ratio(fraction, nodes, epoch)
    share = 1.0 / nodes
    hits, not_read, age = 0.0, 1.0, 0  # not_read = q^age: share of samples not read during age whole epochs in between
    while (epoch is None or age < epoch) and not_read > max(1.0 - fraction, _NEGLIGIBLE):
        hits += share * not_read * _product_exceeds((1.0 - fraction) / not_read, 1.0 - share)
        not_read *= 1.0 - share
        age += 1
    return hits


def _product_exceeds(threshold: float, lowest: float) -> float:
    """Return P[A B > threshold] for A and B independent and uniform on [lowest, 1]: the area under a hyperbola."""
    if threshold <= lowest * lowest:
        return 1.0
    if threshold >= 1.0:
        return 0.0
    width = 1.0 - lowest
    if threshold >= lowest:
        area = 1.0 - threshold + threshold * math.log(threshold)
    else:
        kink = threshold / lowest  # beyond it every B exceeds threshold / A
        area = kink - lowest - threshold * math.log(kink / lowest) + width * (1.0 - kink)
    return area / (width * width)


def _check(fraction: float, nodes: int, epoch: int | None) -> None:
    if not 0.0 <= fraction <= 1.0 or nodes < 1 or (epoch is not None and epoch < 0):
        raise ValueError(f"a cache of {fraction} of the data set, {nodes} nodes, epoch {epoch}: expected 0..1, 1 or more, 0 or more")
