"""Is a data set throttled as asked? Oracle: the closed form of a token bucket without savings."""

from __future__ import annotations

import pytest

from calibration.lab.disk import Disk, Samples, TokenBucket

pytestmark = pytest.mark.needs("torch")


def test_a_bucket_serves_one_after_another_and_saves_nothing() -> None:
    """100 bytes at 1000 bytes/s take 0.1 s; who comes meanwhile waits; a pause earns nothing."""
    bucket = TokenBucket(1000.0)
    assert [bucket.due(100, 5.0), bucket.due(100, 5.02)] == pytest.approx([5.1, 5.2])
    assert bucket.due(50, 9.0) == pytest.approx(9.05)


def test_a_sample_becomes_numbers_of_its_bytes() -> None:
    """Bytes count up from 0; the tensor repeats them where it has more numbers than the sample bytes."""
    samples = Samples(Disk(1e12, 4, (2, 3), 1, 0))
    assert samples[0].mul(255).round().int().tolist() == [[0, 1, 2], [3, 0, 1]]
