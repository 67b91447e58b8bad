"""Which networks are measured without torchvision? A small one with many parameters and little work, and one with the reverse."""

from __future__ import annotations

from typing import Any


def wide() -> Any:
    """Return fully connected layers on 3x32x32 pictures: 17 million parameters."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 10))


def deep(blocks: int = 6, channels: int = 32) -> Any:
    """Return convolutions with batch norms on pictures of 3x32x32 or more: 60 thousand parameters."""
    from torch import nn

    layers: list[Any] = [nn.Conv2d(3, channels, 4, stride=4)]
    for _ in range(blocks):
        layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
