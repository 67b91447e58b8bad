"""How fast does the disk read? Sequential and random reads of a file of random bytes that is not in the page cache.

Before each question the page cache is dropped if that is permitted (root, /proc/sys/vm/drop_caches). Otherwise reads bypass it (O_DIRECT).
If neither works, the kernel is advised to drop the file (posix_fadvise), and the row records that. Random reads are made by one thread
and by eight, like several loader workers.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe
from sim.spec.yaml import SpecError

Cache = Literal["dropped", "direct", "advised"]

SIZE, QUICK_SIZE = 2**29, 2**26
"""Size (bytes) of the file: larger than the cache of most disk controllers."""
CHUNK: Final = 2**23
"""Bytes per repetition of a sequential read."""
_ALIGNED: Final = 4096
_DROP: Final = Path("/proc/sys/vm/drop_caches")


def disk_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per access pattern, block size and number of threads."""
    places = [{"way": "random", "block_bytes": block, "threads": threads} for block in (4096, 2**17, 2**20) for threads in (1, 8)]
    return [{"way": "sequential", "block_bytes": CHUNK, "threads": 1}, *places]


def disk_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time reads of the file; each time is of one block, or of one block per thread if there are several threads."""
    path = bench.once("file", lambda: _random_file(bench))
    cache = drop_page_cache(path)
    if question["way"] == "sequential":
        offsets = list(range(0, path.stat().st_size - CHUNK + 1, CHUNK))
    else:
        offsets = _random_offsets(path.stat().st_size, question["block_bytes"], seed=question["block_bytes"] + question["threads"])
    return {"cache": cache, "times_s": _read_all(path, offsets, question["block_bytes"], question["threads"], cache, bench.seconds)}


def _random_offsets(size: int, block: int, seed: int) -> list[int]:
    """Return the offsets of blocks in random order, each once, spaced so that reading ahead of one block does not reach another."""
    offsets = list(range(0, size - block + 1, max(block, 2**17)))
    random.Random(seed).shuffle(offsets)
    return offsets


def _random_file(bench: Bench) -> Path:
    """Return a new file of random bytes, which is deleted when the probe ends."""
    size, folder = QUICK_SIZE if bench.quick else SIZE, bench.folder
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise SpecError(
            f"{folder}: {free / 1e6:.0f} MB are free, but {2 * size / 1e6:.0f} MB are needed; name a folder on another disk with --folder"
        )
    temporary = bench.resources.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".stallsim-disk-"))
    path = Path(temporary) / "bytes"
    with path.open("wb") as file:
        for _ in range(size // CHUNK):
            file.write(os.urandom(CHUNK))
        file.flush()
        os.fsync(file.fileno())
    return path


def drop_page_cache(*paths: Path) -> Cache:
    """Drop the page cache, or at least the pages of *paths*, and return how this was done or whether reads must bypass the cache."""
    with suppress(OSError):
        os.sync()
        _DROP.write_text("3\n", encoding="ascii")
        return "dropped"
    if all(_supports_direct(path) for path in paths):
        return "direct"
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return "advised"


def _supports_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except (OSError, AttributeError):  # the file system or operating system does not support it
        return False
    return True


def _read_all(path: Path, offsets: Sequence[int], block: int, threads: int, cache: Cache, seconds: float) -> list[float]:
    """Return the times (s) of successive rounds of reads, one of *block* bytes by each thread, for about twice *seconds*."""
    flags = os.O_RDONLY | (os.O_DIRECT if cache == "direct" else 0)
    opened = [os.open(path, flags) for _ in range(threads)]
    buffers = [mmap.mmap(-1, max(block, _ALIGNED)) for _ in range(threads)]
    times: list[float] = []
    end = time.perf_counter() + 2 * seconds
    try:
        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, len(offsets) - threads + 1, threads):
                start = time.perf_counter()
                list(pool.map(os.preadv, opened, [[buffer] for buffer in buffers], offsets[first : first + threads]))
                times.append(time.perf_counter() - start)
                if times[-1] + start > end and len(times) >= 3:
                    break
    finally:
        for file in opened:
            os.close(file)
    return times[:400]


DISK = Probe("disk", "sequential and random reads of the disk", disk_questions, disk_answer, needs_torch=False)
