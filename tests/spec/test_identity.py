"""Are parts compared by identity, and kept while a cache keeps them? Oracle: Python's own."""

from __future__ import annotations

from functools import lru_cache

from sim.spec.identity import IdentityKey, content, field_identities
from tests.harness import toy_node


def test_a_copy_shares_what_it_does_not_change() -> None:
    gpu = toy_node().gpu
    slower = gpu.model_copy(update={"memory_bandwidth": gpu.memory_bandwidth / 2})
    assert field_identities(gpu) == field_identities(gpu.model_copy())
    assert field_identities(gpu) != field_identities(slower)
    assert field_identities(gpu, {"memory_bandwidth"}) == field_identities(slower, {"memory_bandwidth"})


def test_contents_are_equal_if_descriptions_are() -> None:
    node = toy_node()
    assert content(node) == content(node.model_copy(deep=True)) == content(toy_node())
    hash(content(node))
    cpu = node.host.cpu.model_copy(update={"speed": 2 * node.host.cpu.speed})
    assert content(node.model_copy(update={"host": node.host.model_copy(update={"cpu": cpu})})) != content(node)
    assert content(node.gpu) != content(node.host)
    assert content(None) is None


def test_a_cache_keeps_alive_what_its_keys_name() -> None:
    """Were they let go, their identities would come again, in other objects."""
    computed_keys = []

    @lru_cache(maxsize=1000)
    def find(same: IdentityKey) -> float:
        computed_keys.append(same)
        return float(same.held[0].memory_bandwidth)

    for bandwidth in range(1, 200):
        gpu = toy_node().gpu.model_copy(update={"memory_bandwidth": float(bandwidth)})
        assert find(IdentityKey(field_identities(gpu), gpu)) == bandwidth
    assert len(computed_keys) == 199
    gpu = toy_node().gpu
    assert find(IdentityKey(field_identities(gpu), gpu)) == find(IdentityKey(field_identities(gpu.model_copy()), gpu.model_copy()))
    assert len(computed_keys) == 200
    assert IdentityKey(1) != 1
