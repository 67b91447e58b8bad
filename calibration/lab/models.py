"""Which models does the laboratory train? Small ones in plain torch, with different kinds of gradients, whose steps are short on one core.

``mlp``: few large matrices, little compute. ``vgg``: convolutions, most gradients in one product. ``resnet``: many medium convolutions with
batch norm. ``mobile``: many small tensors, depthwise. ``transformer``: matrices of one size and an embedding. They are scaled-down
versions of VGG (arXiv 1409.1556), ResNet (1512.03385), MobileNetV2 (1801.04381) and the encoder of 1706.03762.
"""

from __future__ import annotations

import torch
from torch import nn


def mlp(width: int = 1024, depth: int = 3) -> nn.Module:
    """Return layers of *width* neurons on 784 numbers."""
    layers: list[nn.Module] = [nn.Linear(784, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def vgg(width: int = 32) -> nn.Module:
    """Return pairs of 3x3 convolutions and two large products, for 3x32x32."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(3):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width << stage, 3, padding=1), nn.ReLU()]
            channels = width << stage
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 16, 1024), nn.ReLU(), nn.Linear(1024, 10))


class _Residual(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two 3x3 convolutions with batch norm, added to their input."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.short = nn.Identity() if stride == 1 and channels == width else nn.Conv2d(channels, width, 1, stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        output: torch.Tensor = self.relu(self.inner(inputs) + self.short(inputs))
        return output


def resnet(width: int = 32) -> nn.Module:
    """Return four stages of two residual blocks, for 3x32x32."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        for block in range(2):
            layers.append(_Residual(channels, width << stage, 2 if block == 0 and stage else 1))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class _Inverted(nn.Module):  # type: ignore[misc, unused-ignore]
    """Widen six times, a depthwise 3x3 convolution, narrow again; added to the input where shapes allow."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        hidden = 6 * channels
        self.inner = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.adds = stride == 1 and channels == width

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        output: torch.Tensor = self.inner(inputs)
        return output + inputs if self.adds else output


def mobile() -> nn.Module:
    """Return ten inverted residual blocks, for 3x32x32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    channels = 16
    for width, stride in ((24, 2), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1), (96, 1), (96, 1), (160, 2), (160, 1)):
        layers.append(_Inverted(channels, width, stride))
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class _LabTransformer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Embedding, encoder layers, and a product onto the vocabulary."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next token at every position."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        output: torch.Tensor = self.head(hidden)
        return output


def transformer(width: int = 256, depth: int = 3, vocabulary: int = 2000) -> nn.Module:
    """Return an encoder of *depth* layers on rows of token numbers."""
    return _LabTransformer(width, depth, vocabulary)
