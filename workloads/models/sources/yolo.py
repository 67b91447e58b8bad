"""What is YOLOv3 in the catalog? Darknet-53 with three detection heads for the 20 classes of PASCAL VOC, as Sia ran it.

Redmon and Farhadi (arXiv 1804.02767): 52 convolutions with batch norm and leaky ReLU, then three heads of five convolutions each, the
second and third fed by an upsampled map; three boxes a position with 25 numbers each. Limits: images of one size (multi-scale training
takes the mean area), the loss counts as cross-entropy over those numbers.
"""

from __future__ import annotations

import torch
from torch import nn


def _convolution(before: int, after: int, window: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, window, stride, window // 2, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.1, inplace=True)
    )


class Residual(nn.Module):  # type: ignore[misc, unused-ignore]
    """Halve the channels, restore them, add the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.restore = _convolution(channels, channels // 2, 1), _convolution(channels // 2, channels, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        result: torch.Tensor = inputs + self.restore(self.reduce(inputs))
        return result


class Yolo3(nn.Module):  # type: ignore[misc, unused-ignore]
    """The backbone and its three heads."""

    def __init__(self, classes: int = 20) -> None:
        super().__init__()
        self.stem = _convolution(3, 32, 3)
        self.stage = nn.ModuleList(
            nn.Sequential(_convolution(channels, 2 * channels, 3, 2), *(Residual(2 * channels) for _ in range(count)))
            for channels, count in zip((32, 64, 128, 256, 512), (1, 2, 8, 8, 4), strict=True)
        )
        self.neck = nn.ModuleList(_neck(before, after) for before, after in ((1024, 512), (768, 256), (384, 128)))
        self.head = nn.ModuleList(
            nn.Sequential(_convolution(size, 2 * size, 3), nn.Conv2d(2 * size, 3 * (5 + classes), 1)) for size in (512, 256, 128)
        )
        self.lateral = nn.ModuleList(_convolution(size, size // 2, 1) for size in (512, 256))
        self.upsample = nn.Upsample(scale_factor=2)

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        """Return for each scale (batch, 3, rows, columns, 5 + classes)."""
        maps = []
        hidden = self.stem(image)
        for stage in self.stage:
            hidden = stage(hidden)
            maps.append(hidden)
        found = []
        for index, source in enumerate((maps[4], maps[3], maps[2])):
            joined = source if index == 0 else torch.cat((self.upsample(self.lateral[index - 1](hidden)), source), 1)
            hidden = self.neck[index](joined)
            found.append(self.head[index](hidden).unflatten(1, (3, -1)).permute(0, 1, 3, 4, 2))
        return found


def _neck(before: int, after: int) -> nn.Sequential:
    """Return five convolutions that end with *after* channels."""
    sizes = [(before, after, 1), (after, 2 * after, 3), (2 * after, after, 1), (after, 2 * after, 3), (2 * after, after, 1)]
    return nn.Sequential(*(_convolution(*size) for size in sizes))
