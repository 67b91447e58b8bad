"""Which pictures are decoded? Generated JPEGs with as many pixels and bytes as the average of ImageNet.

They consist of smooth colors and enough noise for about 110 KB at 500 x 375 (ImageNet-1k: 138 to 150 GB over 1,281,167 images). Decoding
time depends on pixels and bytes, and both match. Real pictures vary more in both.
"""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any, Final

WIDTH, HEIGHT = 500, 375
PICTURE_EDGE: Final = 224
"""Size of a prepared picture."""
_NOISE: Final = 30.0
"""Standard deviation of the noise, on a scale to 255; it gives about 110 KB at quality 90."""
_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels (torchvision, references/classification)."""


def jpeg(seed: int) -> bytes:
    """Return one picture as JPEG bytes."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    coarse = generator.uniform(0, 255, (8, 8, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.float32)
    grain = generator.normal(0.0, _NOISE, (HEIGHT // 2 + 1, WIDTH // 2 + 1, 1)).repeat(2, axis=0).repeat(2, axis=1)
    noisy = np.clip(smooth + grain[:HEIGHT, :WIDTH], 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def decode(encoded: bytes) -> Any:
    """Return the decoded picture in full size."""
    from PIL import Image

    return Image.open(io.BytesIO(encoded)).convert("RGB")


def prepare(encoded: bytes, generator: random.Random) -> Any:
    """Return the tensor that training needs: the picture decoded, randomly cropped, resized, randomly flipped and normalized.

    Crop and flip match torchvision's RandomResizedCrop (area 0.08 to 1, aspect ratio 3/4 to 4/3) and RandomHorizontalFlip.
    """
    import numpy as np
    import torch
    from PIL import Image

    picture = decode(encoded).resize((PICTURE_EDGE, PICTURE_EDGE), Image.Resampling.BILINEAR, box=crop(generator))
    if generator.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scaled = torch.from_numpy(np.array(picture)).permute(2, 0, 1).to(torch.float32).div_(255.0)
    return scaled.sub_(torch.tensor(_MEAN)[:, None, None]).div_(torch.tensor(_SPREAD)[:, None, None])


def crop(generator: random.Random) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a random crop."""
    for _ in range(10):
        area, aspect = WIDTH * HEIGHT * generator.uniform(0.08, 1.0), generator.uniform(3 / 4, 4 / 3)
        width, height = (area * aspect) ** 0.5, (area / aspect) ** 0.5
        if width <= WIDTH and height <= HEIGHT:
            left, top = generator.uniform(0, WIDTH - width), generator.uniform(0, HEIGHT - height)
            return left, top, left + width, top + height
    return 0.0, 0.0, float(WIDTH), float(HEIGHT)


class EncodedPictures:
    """A data set of *length* samples that repeat a few pictures in memory."""

    def __init__(self, pictures: list[bytes], length: int) -> None:
        self._pictures, self._length = pictures, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return prepare(self._pictures[index % len(self._pictures)], random.Random(index))


class PictureFiles:
    """A data set of pictures on disk."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        return prepare(self._paths[index].read_bytes(), random.Random(index))
