"""Oracle: which numbers of the toy documents say ``estimate``, read off by eye."""

from __future__ import annotations

from sim.check import count_estimates
from sim.spec.fields import curve_value
from sim.spec.library import load_hardware

DEFAULTS = ["node.page_cache.memory_share", "node.page_cache.lru_share", "fabric.latency", "fabric.path_efficiency"]
"""Numbers of blocks that the toy machine leaves to their defaults, whose own source is an estimate."""


def keys(*overrides: str) -> list[str]:
    loaded = load_hardware("toy", overrides)
    return [estimate.key for estimate in count_estimates(loaded.spec, loaded.document)]


def test_estimates_of_single_keys_and_of_default_blocks_are_found() -> None:
    assert sorted(keys()) == sorted(["node.gpu.memory_efficiency", "node.gpu.efficiency.gemm.fp32", *DEFAULTS])


def test_an_estimate_has_a_reason_and_a_value() -> None:
    loaded = load_hardware("toy")
    estimates = {estimate.key: estimate for estimate in count_estimates(loaded.spec, loaded.document)}
    assert estimates["node.gpu.memory_efficiency"].reason == "no stream benchmark"
    assert estimates["node.gpu.memory_efficiency"].value == 0.8
    assert str(estimates["node.gpu.memory_efficiency"]) == "node.gpu.memory_efficiency: estimate (no stream benchmark)"
    assert estimates["node.gpu.memory_efficiency"].file.endswith("toy-gpu.yaml")
    assert curve_value(estimates["node.gpu.efficiency.gemm.fp32"].value, 1e9) == 0.4


def test_a_block_that_is_all_estimate_counts_every_number_written_there() -> None:
    more = set(keys("node.nic.source=estimate", "node.storage.volume.source=estimate (a guess)")) - set(keys())
    volume = ["size", "bandwidth", "io_size", "baseline_iops", "max_iops"]
    assert more == {"node.nic.bandwidth", *(f"node.storage.volume.{name}" for name in volume)}


def test_the_rest_may_be_an_estimate() -> None:
    more = set(keys("node.host.source={'*': estimate (why), memory: datasheet}")) - set(keys())
    assert more == {"node.host.sockets", "node.host.physical_cores", "node.host.vcpus"}


def test_a_number_set_in_a_default_block_is_the_users_own() -> None:
    assert "node.page_cache.memory_share" not in keys("node.page_cache.memory_share=0.5")
    assert "node.page_cache.lru_share" in keys("node.page_cache.memory_share=0.5")


def test_a_missing_reason_is_said() -> None:
    loaded = load_hardware("toy", ["node.nic.source=estimate"])
    assert {estimate.reason for estimate in count_estimates(loaded.spec) if estimate.key.startswith("node.nic.")} == {"no reason given"}


def test_every_estimate_can_be_set_by_its_key() -> None:
    for key in keys():
        load_hardware("toy", [f"{key}={'1 ns' if 'latency' in key else '0.5'}"])
