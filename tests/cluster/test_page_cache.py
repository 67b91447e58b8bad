"""Oracles: the closed form evaluated by hand, and simulated caches fed with permutations."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import page_cache
from sim.spec.hardware import PageCache

SAMPLES = 3000

fractions = st.floats(0, 1, allow_nan=False)
node_counts = st.integers(1, 64)
epochs = st.none() | st.integers(0, 50)


class SimulatedCache:
    """A cache of *capacity* samples that evicts the least recently used one, or nothing."""

    def __init__(self, capacity: int, evicts: bool) -> None:
        self.capacity, self.evicts = capacity, evicts
        self.held: OrderedDict[int, None] = OrderedDict()

    def read(self, sample: int) -> bool:
        if sample in self.held:
            self.held.move_to_end(sample)
            return True
        if len(self.held) < self.capacity:
            self.held[sample] = None
        elif self.evicts and self.capacity:
            self.held.popitem(last=False)
            self.held[sample] = None
        return False


def simulated_epochs(fraction: float, nodes: int, evicts: bool, epochs: int, seed: int) -> list[float]:
    """Hit ratio of one of *nodes* in each of *epochs*: its shard is the first part of a fresh permutation of everything."""
    order = np.random.default_rng(seed)
    cache = SimulatedCache(round(fraction * SAMPLES), evicts)
    shard = SAMPLES // nodes
    return [sum(cache.read(sample) for sample in order.permutation(SAMPLES)[:shard].tolist()) / shard for _ in range(epochs)]


@pytest.mark.parametrize(("fraction", "by_hand"), [(0.35, 0.070), (0.5, 0.153), (0.65, 0.283), (0.9, 0.670)])
def test_lru_on_one_node_is_the_known_closed_form(fraction: float, by_hand: float) -> None:
    """c + (1-c) ln(1-c): 0.35 - 0.65 x 0.4308, 0.5 - 0.5 x 0.6931, 0.65 - 0.35 x 1.0498, 0.9 - 0.1 x 2.3026."""
    assert page_cache.lru_hit_ratio(fraction) == pytest.approx(by_hand, abs=5e-4)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9])
def test_lru_matches_a_simulated_lru(fraction: float, nodes: int) -> None:
    """Steady state over the later epochs; about 3 000 samples an epoch give the mean to better than 0.01."""
    warm_up, measured = 12 * nodes, 24 * nodes
    ratios = simulated_epochs(fraction, nodes, True, warm_up + measured, seed=1)[warm_up:]
    assert page_cache.lru_hit_ratio(fraction, nodes) == pytest.approx(np.mean(ratios), abs=0.01)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9])
def test_never_evict_matches_a_simulated_cache(fraction: float, nodes: int) -> None:
    warm_up, measured = 24 * nodes, 12 * nodes
    ratios = simulated_epochs(fraction, nodes, False, warm_up + measured, seed=2)[warm_up:]
    assert page_cache.never_evict_hit_ratio(fraction, nodes) == pytest.approx(np.mean(ratios), abs=0.01)


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("evicts", [True, False])
def test_first_epochs_match_a_simulated_cache(nodes: int, evicts: bool) -> None:
    """Epochs 0..5 from an empty cache, mean of 30 seeds."""
    simulated = np.mean([simulated_epochs(0.6, nodes, evicts, 6, seed) for seed in range(30)], axis=0)
    model = page_cache.lru_hit_ratio if evicts else page_cache.never_evict_hit_ratio
    assert [model(0.6, nodes, epoch) for epoch in range(6)] == pytest.approx(list(simulated), abs=0.01)


@given(fraction=fractions, nodes=node_counts, epoch=epochs)
def test_lru_never_beats_never_evict(fraction: float, nodes: int, epoch: int | None) -> None:
    """Keeping a fixed set is optimal under a fresh random order; both lie in 0..c."""
    lru = page_cache.lru_hit_ratio(fraction, nodes, epoch)
    never = page_cache.never_evict_hit_ratio(fraction, nodes, epoch)
    assert -1e-12 <= lru <= never + 1e-9
    assert never <= fraction


@given(smaller=fractions, larger=fractions, nodes=node_counts, epoch=epochs)
def test_a_larger_cache_never_hits_less(smaller: float, larger: float, nodes: int, epoch: int | None) -> None:
    smaller, larger = sorted((smaller, larger))
    assert page_cache.lru_hit_ratio(smaller, nodes, epoch) <= page_cache.lru_hit_ratio(larger, nodes, epoch) + 1e-9


@given(fraction=fractions, nodes=node_counts)
def test_early_epochs_grow_into_the_steady_state(fraction: float, nodes: int) -> None:
    ratios = [page_cache.lru_hit_ratio(fraction, nodes, epoch) for epoch in (0, 1, 2, 10, 10_000, None)]
    assert ratios[0] == 0.0
    assert ratios == sorted(ratios)
    assert ratios[-2] == pytest.approx(ratios[-1], abs=1e-9)


def test_many_nodes_read_as_if_at_random() -> None:
    """Under independent random reads LRU hits exactly the cached share (the limit of the sum for many nodes)."""
    assert page_cache.lru_hit_ratio(0.35, nodes=4096) == pytest.approx(0.35, abs=1e-3)


def test_policies_mix_linearly() -> None:
    lru, never = page_cache.lru_hit_ratio(0.5), page_cache.never_evict_hit_ratio(0.5)
    assert page_cache.hit_ratio(PageCache(policy="lru"), 0.5) == lru
    assert page_cache.hit_ratio(PageCache(policy="never_evict"), 0.5) == never
    assert page_cache.hit_ratio(PageCache(policy="linux", lru_share=0.25), 0.5) == pytest.approx(0.25 * lru + 0.75 * never)


@pytest.mark.parametrize("policy", ["linux", "lru", "never_evict"])
def test_cold_epoch_hits_nothing_and_a_data_set_that_fits_is_read_once(policy: str) -> None:
    cache = PageCache.model_validate({"policy": policy})
    assert page_cache.hit_ratio(cache, 1.0, epoch=0) == 0.0
    assert page_cache.hit_ratio(cache, 1.0, epoch=1) == 1.0


def test_capacity_and_fraction() -> None:
    """ImageNet (141 GB) in a p3.2xlarge's 61 GiB: 0.85 x 65.5 GB is 55.7 GB, 0.395 of it."""
    capacity = page_cache.capacity(61 * 2**30, PageCache(memory_share=0.85))
    assert capacity == pytest.approx(55.67e9, rel=1e-3)
    assert page_cache.cached_fraction(capacity, 141e9) == pytest.approx(0.395, abs=1e-3)
    assert page_cache.cached_fraction(2 * 141e9, 141e9) == 1.0


@pytest.mark.parametrize(("fraction", "nodes", "epoch"), [(-0.1, 1, None), (1.1, 1, None), (0.5, 0, None), (0.5, 1, -1)])
def test_impossible_questions_are_refused(fraction: float, nodes: int, epoch: int | None) -> None:
    with pytest.raises(ValueError, match=r"expected 0\.\.1, 1 or more, 0 or more"):
        page_cache.lru_hit_ratio(fraction, nodes, epoch)
    with pytest.raises(ValueError, match="data set"):
        page_cache.cached_fraction(1e9, 0)


@given(st.floats(0, 1), st.integers(1, 8))
def test_a_partitioned_cache_holds_what_all_nodes_hold(fraction, nodes):
    """Closed form: min(1, N c) in all, 1/N of it in a node's own memory; one node is never-evict; cold epochs hit nothing."""
    cache = PageCache(policy="partitioned")
    hits = page_cache.hit_ratio(cache, fraction, nodes)
    assert hits == min(1.0, nodes * fraction)
    assert page_cache.remote_hit_ratio(cache, hits, nodes) == pytest.approx(hits * (nodes - 1) / nodes)
    assert page_cache.hit_ratio(cache, fraction) == page_cache.hit_ratio(PageCache(policy="never_evict"), fraction)
    assert page_cache.hit_ratio(cache, fraction, nodes, epoch=0) == 0
    assert page_cache.remote_hit_ratio(PageCache(policy="never_evict"), hits, nodes) == 0
