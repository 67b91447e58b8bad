"""Oracles: waves counted, bytes over what is left of the bandwidth, and the bytes that NCCL's primitives read and write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.gpu import memory_time
from sim.cluster.kernels import ProductShape, product_time
from sim.cluster.shared_gpu import LEAST, remaining_gpu, traffic_of
from sim.spec.hardware import Gpu
from sim.spec.library import load_part


def h100() -> Gpu:
    return load_part(Gpu, "h100-sxm5-80gb")


@given(st.integers(0, 200), st.floats(0, 5e12))
def test_what_is_left_is_never_more(blocks: int, rate: float) -> None:
    """Multiprocessors less blocks, bandwidth less bytes; a tenth of each stays."""
    gpu = h100()
    left = remaining_gpu(gpu, blocks, rate)
    assert gpu.kernels and left.kernels
    assert left.kernels.sm_count == max(round(LEAST * gpu.kernels.sm_count), gpu.kernels.sm_count - blocks)
    assert left.memory_bandwidth == pytest.approx(max(LEAST * gpu.memory_bandwidth, gpu.memory_bandwidth - rate))
    assert remaining_gpu(gpu, 0, 0.0) == gpu


def test_a_pass_takes_its_bytes_over_what_is_left() -> None:
    """A large element-wise pass beside a collective that takes a quarter of the bandwidth: 4/3 of the time."""
    gpu = h100()
    left = remaining_gpu(gpu, 0, gpu.memory_bandwidth / 4)
    assert memory_time(1e9, left) / memory_time(1e9, gpu) == pytest.approx(4 / 3, rel=0.02)


WAVES = [(124, 8, 1, 1), (132, 8, 1, 2), (248, 8, 2, 2), (264, 8, 2, 3), (1000, 32, 8, 10)]


@pytest.mark.parametrize(("tiles", "blocks", "before", "after"), WAVES)
def test_a_product_takes_the_waves_that_fit_beside_a_collective(
    tiles: int, blocks: int, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: ceil(tiles / multiprocessors left) waves as long as before, of one size of tile, the last wave's idle time lost."""
    monkeypatch.setattr("sim.cluster.kernels.TILES", ((128, 128),))
    hopper = h100()
    assert hopper.kernels and hopper.kernels.sm_count == 132
    rigid = hopper.kernels.model_copy(update={"wave_loss": 1.0, "split_time": 1.0, "sharpness": 64.0})
    gpu = hopper.model_copy(update={"kernels": rigid, "memory_bandwidth": 1e18})
    one = product_time(gpu, "bf16", ProductShape(128 * 132, 128, 8192))
    taken = [product_time(each, "bf16", ProductShape(128 * tiles, 128, 8192)) / one for each in (gpu, remaining_gpu(gpu, blocks, 0.0))]
    assert taken == pytest.approx([before, after], rel=1e-6)


def test_moved_bytes_are_those_of_the_primitives() -> None:
    """A reduce-scatter then an all-gather moves what an all-reduce moves; alone a rank passes nothing on."""
    assert traffic_of("reduce_scatter", 8, 1e6) + traffic_of("all_gather", 8, 1e6) == traffic_of("all_reduce", 8, 1e6)
    assert traffic_of("all_gather", 8, 1e6) == 2 * 7 / 8 * 1e6
    assert traffic_of("all_reduce", 1, 1e6) == 0.0
