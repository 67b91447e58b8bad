"""What is ResNet-18 for CIFAR-10 in the catalog? As kuangliu/pytorch-cifar codes it and Pollux, Sia and Gavel ran it.

He et al. (CVPR 2016) for images of 32 x 32: a first convolution of 3 x 3 with stride 1, no pooling until the end, four groups of two basic
blocks with 64 to 512 channels, 10 classes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two convolutions of 3 x 3 with batch norm, added to the input, which a 1 x 1 convolution adapts where sizes differ."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        same = stride == 1 and before == after
        self.shortcut = nn.Sequential() if same else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(inputs)))))
        out += self.shortcut(inputs)
        return functional.relu(out)


class CifarResNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """ResNet-18 for 32 x 32 images."""

    def __init__(self, blocks: tuple[int, ...] = (2, 2, 2, 2), classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.group = nn.ModuleList(
            nn.Sequential(Block(before, after, stride), *(Block(after, after, 1) for _ in range(count - 1)))
            for (before, after, stride), count in zip(sizes, blocks, strict=True)
        )
        self.linear = nn.Linear(512, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the classes' scores."""
        hidden = functional.relu(self.bn1(self.conv1(image)))
        for group in self.group:
            hidden = group(hidden)
        result: torch.Tensor = self.linear(functional.avg_pool2d(hidden, 4).flatten(1))
        return result
