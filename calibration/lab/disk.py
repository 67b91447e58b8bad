"""How does a rank read its samples from a slow disk? Through a token bucket that all loader processes of its host share.

    python -m calibration.lab.disk STEPS DISK

runs one rank (`calibration.measure.ddp_steps`, with the same STEPS) that is fed by torch's DataLoader. A sample's bytes are in memory; each
read waits until the bucket has released them. The only preparation is their conversion to numbers between 0 and 1.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibration.measure import ddp_steps


@dataclass(frozen=True)
class Disk:
    """A throttled data set of one host."""

    rate: float
    """Bytes/s."""
    sample: int
    """Bytes of one sample."""
    sizes: tuple[int, ...]
    """Shape of the tensor built from it."""
    batch: int
    workers: int
    """Processes; 0 reads in the training process."""


class TokenBucket:
    """Limits all processes that share it to *rate* bytes/s in total; unused rate does not accumulate."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = multiprocessing.Value("d", 0.0)

    def due(self, nbytes: int, now: float) -> float:
        """Return the time when a read of *nbytes* requested at *now* ends."""
        with self._free.get_lock():
            self._free.value = max(now, self._free.value) + nbytes / self.rate
            return float(self._free.value)

    def wait(self, nbytes: int) -> None:
        """Wait until *nbytes* have been let through."""
        now = time.monotonic()
        time.sleep(max(0.0, self.due(nbytes, now) - now))


class Samples:
    """A data set for torch's DataLoader: samples read through *bucket*."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._bucket = TokenBucket(disk.rate)
        self._stored = bytes(range(256)) * math.ceil(disk.sample / 256)

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> Any:
        import torch

        self._bucket.wait(self._disk.sample)
        raw = torch.frombuffer(bytearray(self._stored[: self._disk.sample]), dtype=torch.uint8)
        numbers = math.prod(self._disk.sizes)
        return raw.repeat(math.ceil(numbers / len(raw)))[:numbers].reshape(self._disk.sizes).float() / 255


def main(arguments: Sequence[str]) -> int:
    """Run one rank; see the module."""
    from torch.utils.data import DataLoader

    fields = json.loads(arguments[1])
    disk = Disk(**fields | {"sizes": tuple(fields["sizes"])})
    loader = DataLoader(Samples(disk), batch_size=disk.batch, num_workers=disk.workers)  # type: ignore[arg-type, unused-ignore]
    batches = [iter(loader)]
    try:
        return ddp_steps.main(arguments[:1], lambda: ((next(batches[0]),), {}))
    finally:
        batches.clear()  # this ends the workers


if __name__ == "__main__":
    ddp_steps.exit_now(main(sys.argv[1:]))
