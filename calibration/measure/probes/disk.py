"""How fast does the disk read? A file of random bytes, from begin to end and at random places, nothing of it in memory.

Before each question the page cache is emptied where that is allowed (root, /proc/sys/vm/drop_caches); else reads go past it (O_DIRECT);
where neither works the kernel is asked to forget the file (posix_fadvise), and the row says so. Random reads are made by one thread, and
by eight, as many workers would.
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
"""Bytes of the file: beyond the cache of most disks' controllers."""
CHUNK: Final = 2**23
"""Bytes of one repetition of a sequential read."""
_ALIGNED: Final = 4096
_DROP: Final = Path("/proc/sys/vm/drop_caches")


def disk_questions(bench: Bench) -> list[AnswerRow]:
    """Return ways of reading."""
    places = [{"way": "random", "block_bytes": block, "threads": threads} for block in (4096, 2**17, 2**20) for threads in (1, 8)]
    return [{"way": "sequential", "block_bytes": CHUNK, "threads": 1}, *places]


def disk_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Read the file in one way; times are of one block each, sequential and by one thread, else of rounds of all threads."""
    path = bench.once("file", lambda: _file(bench))
    cache = forget(path)
    if question["way"] == "sequential":
        places = list(range(0, path.stat().st_size - CHUNK + 1, CHUNK))
    else:
        places = _random_places(path.stat().st_size, question["block_bytes"], seed=question["block_bytes"] + question["threads"])
    return {"cache": cache, "times_s": _read_all(path, places, question["block_bytes"], question["threads"], cache, bench.seconds)}


def _random_places(size: int, block: int, seed: int) -> list[int]:
    """Return places of blocks in random order, each once: what was read ahead of one is not another."""
    places = list(range(0, size - block + 1, max(block, 2**17)))
    random.Random(seed).shuffle(places)
    return places


def _file(bench: Bench) -> Path:
    """Return a new file of random bytes, which goes when the probe ends."""
    size, folder = QUICK_SIZE if bench.quick else SIZE, bench.folder
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise SpecError(
            f"{folder}: {free / 1e6:.0f} MB are free, but {2 * size / 1e6:.0f} MB are needed; name a folder on another disk with --folder"
        )
    made = bench.made.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".stallsim-disk-"))
    path = Path(made) / "bytes"
    with path.open("wb") as file:
        for _ in range(size // CHUNK):
            file.write(os.urandom(CHUNK))
        file.flush()
        os.fsync(file.fileno())
    return path


def forget(*paths: Path) -> Cache:
    """Empty the page cache, or of *paths* at least, and say how reads are to get past it."""
    with suppress(OSError):
        os.sync()
        _DROP.write_text("3\n", encoding="ascii")
        return "dropped"
    if all(_direct(path) for path in paths):
        return "direct"
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return "advised"


def _direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except (OSError, AttributeError):  # a file system, or an operating system, without it
        return False
    return True


def _read_all(path: Path, places: Sequence[int], block: int, threads: int, cache: Cache, seconds: float) -> list[float]:
    """Return the seconds of one read of *block* bytes after another, or of rounds of one by each thread, while time lasts."""
    flags = os.O_RDONLY | (os.O_DIRECT if cache == "direct" else 0)
    opened = [os.open(path, flags) for _ in range(threads)]
    buffers = [mmap.mmap(-1, max(block, _ALIGNED)) for _ in range(threads)]
    times: list[float] = []
    end = time.perf_counter() + 2 * seconds
    try:
        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, len(places) - threads + 1, threads):
                start = time.perf_counter()
                list(pool.map(os.preadv, opened, [[buffer] for buffer in buffers], places[first : first + threads]))
                times.append(time.perf_counter() - start)
                if times[-1] + start > end and len(times) >= 3:
                    break
    finally:
        for file in opened:
            os.close(file)
    return times[:400]


DISK = Probe("disk", "sequential and random reads of the disk", disk_questions, disk_answer, needs_torch=False)
