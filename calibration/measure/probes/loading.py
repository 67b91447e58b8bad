"""How many pictures per second are decoded and augmented, by number of workers? Pillow inside torch's DataLoader.

Each picture is decoded from JPEG, randomly cropped, resized to 224, flipped and normalized. Pictures are in memory, so no disk is read.
Without workers, one process does everything. With workers, the rate is that of whole batches arriving at an otherwise idle process, after
the queue has filled.
"""

from __future__ import annotations

import random
import time
import warnings
from typing import Any, Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.pictures import EncodedPictures, decode, jpeg, prepare
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.probes.timing import repetition_times

PICTURES: Final = 16
BATCH: Final = 16
"""Small, so that many batches arrive per second; the overhead per batch is low."""


def missing_pillow(bench: Bench) -> str:
    """Return what is missing to decode pictures, or an empty text."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        return "no Pillow: pip install pillow"
    return ""


def loading_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per stage in one process, then one per number of workers, up to twice the cores."""
    counts = [count for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if count <= 2 * bench.cores]
    workers = [{"stage": "loader", "workers": count} for count in (counts[:2] if bench.quick else counts)]
    return [{"stage": "decode", "workers": 0}, {"stage": "prepare", "workers": 0}, *workers]


def loading_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time pictures, sequentially in this process or in batches of a loader, in seconds per picture."""
    import torch

    torch.set_num_threads(1)  # as in a worker
    pictures = bench.once("pictures", lambda: [jpeg(seed) for seed in range(PICTURES)])
    size = sum(map(len, pictures)) / len(pictures)
    if question["stage"] == "loader":
        times = _loader_times(pictures, question["workers"], bench.seconds)
    else:
        generator = random.Random(0)
        make: Any = decode if question["stage"] == "decode" else lambda picture: prepare(picture, generator)
        times = [seconds / PICTURES for seconds in repetition_times(lambda: [make(picture) for picture in pictures], "cpu", bench.seconds)]
    return {"picture_bytes": size, "times_s": times}


def _loader_times(pictures: list[bytes], workers: int, seconds: float) -> list[float]:
    """Return the time (s) per picture for successive rounds of *workers* batches."""
    from torch.utils.data import DataLoader

    rounds = 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns if there are more workers than cores, which is intended
        loader = DataLoader(EncodedPictures(pictures, BATCH * workers * rounds), batch_size=BATCH, num_workers=workers)
        batches = iter(loader)
    for _ in range(3 * workers):  # each worker prefetches two batches
        next(batches)
    times: list[float] = []
    end = time.perf_counter() + 3 * seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < rounds - 6):
        start = time.perf_counter()
        for _ in range(workers):
            next(batches)
        times.append((time.perf_counter() - start) / (BATCH * workers))
    del batches  # ends the workers
    return times


LOADING = Probe("loading", "JPEG decoding and augmentation by workers", loading_questions, loading_answer, missing_pillow)
