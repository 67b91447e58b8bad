"""How many pictures a second are decoded and augmented, by how many workers? Pillow inside torch's DataLoader.

JPEG decoding, random resized crop to 224, flip, normalisation; pictures are in memory, so no disk is asked. Without workers one process
does it all; with workers the rate is that of whole batches arriving at a process that does nothing else, after the queue is warm.
"""

from __future__ import annotations

import random
import time
import warnings
from typing import Any, Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.pictures import Encoded, decoded, jpeg, prepared
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.probes.timing import repeated

PICTURES: Final = 16
BATCH: Final = 16
"""Small, so that there are many in a second; what a batch costs beside its pictures is little."""


def no_pillow(bench: Bench) -> str:
    """Say what is missing to decode pictures."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        return "no Pillow: pip install pillow"
    return ""


def loading_questions(bench: Bench) -> list[AnswerRow]:
    """Return stages in one process, then numbers of workers up to twice the cores."""
    counts = [count for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if count <= 2 * bench.cores]
    workers = [{"stage": "loader", "workers": count} for count in (counts[:2] if bench.quick else counts)]
    return [{"stage": "decode", "workers": 0}, {"stage": "prepare", "workers": 0}, *workers]


def loading_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time pictures: one after another in this process, or batches of a loader; seconds of one picture each."""
    import torch

    torch.set_num_threads(1)  # as in a worker
    pictures = bench.once("pictures", lambda: [jpeg(seed) for seed in range(PICTURES)])
    size = sum(map(len, pictures)) / len(pictures)
    if question["stage"] == "loader":
        times = _loader_times(pictures, question["workers"], bench.seconds)
    else:
        generator = random.Random(0)
        make: Any = decoded if question["stage"] == "decode" else lambda picture: prepared(picture, generator)
        times = [seconds / PICTURES for seconds in repeated(lambda: [make(picture) for picture in pictures], "cpu", bench.seconds)]
    return {"picture_bytes": size, "times_s": times}


def _loader_times(pictures: list[bytes], workers: int, seconds: float) -> list[float]:
    """Return the seconds a picture takes, of one round of *workers* batches after another."""
    from torch.utils.data import DataLoader

    rounds = 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that more workers than cores were asked for, as is meant
        loader = DataLoader(Encoded(pictures, BATCH * workers * rounds), batch_size=BATCH, num_workers=workers)
        batches = iter(loader)
    for _ in range(3 * workers):  # two batches a worker are made ahead
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


LOADING = Probe("loading", "JPEG decoding and augmentation by workers", loading_questions, loading_answer, no_pillow)
