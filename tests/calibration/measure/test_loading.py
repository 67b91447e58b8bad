"""Are the pictures that are decoded like ImageNet's, and are all of them made? Oracles: its average size; what Pillow reads back."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from calibration.measure.probes.loading import loading_answer, loading_questions
from calibration.measure.probes.pictures import HEIGHT, PICTURE_EDGE, WIDTH, EncodedPictures, PictureFiles, crop, decode, jpeg, prepare
from calibration.measure.probes.probe import Bench
from calibration.measure.team import SpawnedTeam

pytestmark = pytest.mark.needs("PIL", "torch")


def bench(folder: Path) -> Bench:
    return Bench("cpu", 1, 1, 0.02, folder, SpawnedTeam(1, "cpu", 1), quick=True)


def test_pictures_are_as_large_as_imagenets() -> None:
    """ILSVRC2012: 138 to 150 GB in 1,281,167 files, 500 x 375 the most frequent size."""
    sizes = [len(jpeg(seed)) for seed in range(4)]
    assert 138e9 / 1281167 * 0.9 < sum(sizes) / 4 < 150e9 / 1281167 * 1.1
    assert decode(jpeg(0)).size == (WIDTH, HEIGHT) == (500, 375)


def test_what_training_takes_has_its_shape_and_scale() -> None:
    made = prepare(jpeg(1), random.Random(0))
    assert tuple(made.shape) == (3, PICTURE_EDGE, PICTURE_EDGE)
    assert -2.2 < float(made.min()) < float(made.max()) < 2.7  # of 0 and 255 after ImageNet's mean and spread


def test_crops_lie_inside_the_picture_and_vary() -> None:
    generator = random.Random(3)
    boxes = [crop(generator) for _ in range(200)]
    assert all(0 <= left < right <= WIDTH and 0 <= top < bottom <= HEIGHT for left, top, right, bottom in boxes)
    areas = sorted((right - left) * (bottom - top) / WIDTH / HEIGHT for left, top, right, bottom in boxes)
    assert areas[0] < 0.15 and areas[-1] > 0.8


def test_files_and_memory_give_the_same_pictures(tmp_path: Path) -> None:
    encoded = jpeg(5)
    (tmp_path / "0.jpg").write_bytes(encoded)
    assert bool((PictureFiles([tmp_path / "0.jpg"])[0] == EncodedPictures([encoded], 3)[0]).all())
    assert len(EncodedPictures([encoded], 3)) == 3


def test_every_stage_is_timed_picture_by_picture(tmp_path: Path) -> None:
    rows = [row for row in loading_questions(bench(tmp_path)) if row["workers"] == 0]
    assert [row["stage"] for row in rows] == ["decode", "prepare"]
    for row in rows:
        row_answer = loading_answer(bench(tmp_path), row)
        assert len(row_answer["times_s"]) >= 3 and all(time > 0 for time in row_answer["times_s"])
        assert 50e3 < row_answer["picture_bytes"] < 200e3


def test_one_picture_is_read_by_others_too() -> None:
    from PIL import Image

    assert Image.open(io.BytesIO(jpeg(2))).format == "JPEG"
