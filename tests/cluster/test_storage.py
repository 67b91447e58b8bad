"""Oracles: figures of the Amazon EBS user guide for gp2 and of instance ceilings; conservation of credits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import storage
from sim.spec.hardware import Storage, Volume
from sim.spec.input import Dataset

MIB = 2.0**20


def samples(nbytes: float, files: str = "per_sample") -> Dataset:
    size = f"{nbytes!r} B"
    text = {"name": "d", "samples": 1000, "sample": size, "prepared": size, "prep": "1 ms", "files": files, "source": "test"}
    return Dataset.model_validate(text)


IMAGE = 110e3
IMAGES = samples(IMAGE)


def gp2(size: int, **own: object) -> Volume:
    """Amazon EBS gp2 as its user guide describes it, of *size* GiB."""
    return Volume.model_validate(
        {
            "name": "gp2",
            "size": f"{size} GiB",
            "bandwidth": "250 MiB/s",
            "small": {"size": "170 GiB", "bandwidth": "128 MiB/s"},
            "io_size": "256 KiB",
            "baseline_iops": "100 IOPS",
            "iops_per_gib": 3,
            "max_iops": "16000 IOPS",
            "burst_iops": "3000 IOPS",
            "burst_credits": 5_400_000,
            "source": "EBS user guide",
            **own,
        }
    )


def on(volume: Volume, **ceilings: str) -> Storage:
    return Storage.model_validate({"volume": volume, "source": "test", **ceilings})


@pytest.mark.parametrize(("size", "iops"), [(1, 100), (33, 100), (100, 300), (500, 1500), (1000, 3000), (5334, 16000), (16384, 16000)])
def test_gp2_baseline_iops(size: int, iops: float) -> None:
    """EBS user guide: 3 IOPS per GiB, at least 100 (to 33.33 GiB), at most 16 000 (from 5 334 GiB)."""
    assert storage.baseline_iops(gp2(size)) == iops


@pytest.mark.parametrize(
    ("size", "empty", "burst"),
    [(100, 75, 128), (170, 127.5, 128), (200, 150, 250), (333, 249.75, 250), (334, 250, 250), (500, 250, 250), (5000, 250, 250)],
)
def test_gp2_throughput(size: int, empty: float, burst: float) -> None:
    """EBS user guide, MiB/s: 128 to 170 GiB; 250 above, below 334 GiB only with credits; without them baseline IOPS x 256 KiB."""
    disk, whole_ios = on(gp2(size)), samples(256 * 2.0**10)
    assert storage.read_rate(disk, whole_ios, burst=False) == pytest.approx(empty * MIB)
    assert storage.read_rate(disk, whole_ios, burst=True) == pytest.approx(burst * MIB)


def test_gp2_bursts_to_3000_iops_below_1000_gib() -> None:
    assert storage.burst_iops(gp2(500)) == 3000
    assert storage.burst_iops(gp2(2000)) == 6000, "the baseline is already above the burst"


def time_to_empty(credits: storage.Credits, iops: float) -> float:
    """By hand: credits are used at *iops* and refilled at the baseline."""
    return credits.level / (iops - credits.baseline) if iops > credits.baseline else math.inf


def test_a_full_bucket_lasts_30_minutes_at_full_burst() -> None:
    """EBS user guide: 5.4 million credits sustain 3 000 IOPS for 30 minutes, refill aside; at 100 GiB (300 IOPS) for 2 000 s."""
    no_refill = storage.Credits(gp2(500))
    no_refill.baseline = 0.0  # the guide's 30 minutes leave the refill out
    assert time_to_empty(no_refill, 3000) == 30 * 60
    assert time_to_empty(storage.Credits(gp2(100)), 3000) == 2000


def test_small_files_are_bound_by_iops_and_packed_ones_by_bandwidth() -> None:
    """110 KB images on an empty 500 GiB volume: 1 500 a second, 165 MB/s; packed 256 KiB I/Os would reach the 250 MiB/s."""
    disk = on(gp2(500))
    assert storage.read_rate(disk, IMAGES, burst=False) == pytest.approx(1500 * IMAGE)
    assert storage.read_rate(disk, samples(IMAGE, "packed"), burst=False) == pytest.approx(250 * MIB)


@pytest.mark.parametrize(("sample", "ios"), [(1, 1), (256 * 2**10, 1), (256 * 2**10 + 1, 2), (1e6, 4)])
def test_ios_per_sample(sample: float, ios: int) -> None:
    assert storage.ios_per_sample(gp2(500), samples(sample)) == ios
    assert storage.ios_per_sample(gp2(500), samples(sample, "packed")) == sample / (256 * 2**10)


def test_the_node_has_ceilings_of_its_own() -> None:
    """A p2.xlarge passes 93.75 MB/s and 6 000 IOPS to EBS (AWS, EBS-optimized instances), whatever the volume."""
    assert storage.read_rate(on(gp2(5000), bandwidth="93.75 MB/s"), IMAGES, burst=True) == 93.75e6
    assert storage.read_rate(on(gp2(5000), iops="600 IOPS"), IMAGES, burst=True) == 600 * IMAGE


def test_stripes_add_up() -> None:
    one, four = gp2(500), gp2(500, count=4)
    assert storage.bandwidth(four) == 4 * storage.bandwidth(one)
    assert storage.baseline_iops(four) == 4 * storage.baseline_iops(one)
    assert storage.burst_iops(four) == 4 * storage.burst_iops(one)
    assert time_to_empty(storage.Credits(four), 12000) == time_to_empty(storage.Credits(one), 3000)


def test_credits_drain_and_return() -> None:
    """500 GiB, 1 500 IOPS baseline: 1 000 s at 3 000 IOPS take 1.5 million; 1 000 idle seconds return them."""
    credits = storage.Credits(gp2(500))
    credits.advance(1000, 3000)
    assert credits.level == pytest.approx(5.4e6 - 1.5e6)
    credits.advance(1000, 0)
    assert credits.level == credits.capacity
    credits.advance(time_to_empty(credits, 3000), 3000)
    assert not credits.can_burst
    assert credits.level == 0.0


def test_a_volume_that_cannot_burst_has_no_credits() -> None:
    assert not storage.Credits(gp2(1000)).can_burst
    assert not storage.Credits(gp2(500, burst_iops=None)).can_burst


@given(steps=st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 3000)), max_size=20), size=st.integers(1, 999))
def test_credits_are_conserved_between_empty_and_full(steps: list[tuple[float, float]], size: int) -> None:
    """Away from both ends, the level changes by what was refilled less what was used."""
    credits = storage.Credits(gp2(size))
    for duration, iops in steps:
        before = credits.level
        expected = before + (credits.baseline - iops) * duration
        credits.advance(duration, iops)
        assert 0.0 <= credits.level <= credits.capacity
        assert credits.level == pytest.approx(min(max(expected, 0.0), credits.capacity), abs=1e-8 * credits.capacity)


@given(level=st.floats(0.01, 1), iops=st.floats(0, 3000), size=st.integers(1, 999))
def test_the_bucket_is_empty_exactly_then(level: float, iops: float, size: int) -> None:
    credits = storage.Credits(gp2(size))
    credits.level *= level
    until = time_to_empty(credits, iops)
    if math.isinf(until):
        assert iops <= credits.baseline
        return
    credits.advance(until * 0.99, iops)
    assert credits.can_burst
    credits.advance(time_to_empty(credits, iops), iops)
    assert not credits.can_burst


@given(sample=st.floats(1, 1e8), size=st.integers(1, 16384), files=st.sampled_from(["per_sample", "packed"]))
def test_no_read_exceeds_any_ceiling(sample: float, size: int, files: str) -> None:
    disk, dataset = on(gp2(size), bandwidth="218.75 MB/s", iops="10000 IOPS"), samples(sample, files)
    for burst in (False, True):
        rate = storage.read_rate(disk, dataset, burst)
        assert 0 < rate <= min(218.75e6, storage.bandwidth(disk.volume))
        assert rate / dataset.sample * storage.ios_per_sample(disk.volume, dataset) <= 10000 * (1 + 1e-12)
    assert storage.read_rate(disk, dataset, False) <= storage.read_rate(disk, dataset, True)


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        storage.read_rate(on(gp2(500)), samples(0), burst=True)
    with pytest.raises(ValueError, match="negative"):
        storage.Credits(gp2(500)).advance(-1, 0)


@pytest.mark.parametrize(
    ("before", "after", "epochs"), [(300, 220, 3), (240, 160, 2), (80, 0, 0), (300, 300, None), (220, 300, None), (0, 0, None)]
)
def test_epochs_until_a_bucket_is_empty(before: float, after: float, epochs: int | None) -> None:
    """By hand: 300, 220, 140, 60, empty in the third epoch after that of 300 to 220; 240, 160, 80, 0 exactly in the second."""
    assert storage.epochs_until_empty(before, after) == epochs


def test_an_emptied_bucket_leaves_the_full_one_as_it_was() -> None:
    full = storage.Credits(gp2(500))
    assert full.empty_copy().level == 0
    assert full.level == full.capacity > 0
