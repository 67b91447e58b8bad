"""Which ResNets are the catalog's for CIFAR-10? Those of the paper (He et al., arXiv 1512.03385, section 4.2), of 6n + 2 layers.

A 3 x 3 convolution of 16 channels, three stages of n blocks with 16, 32 and 64 channels, global average pooling and a linear layer. Where
a stage begins, the shortcut takes every second pixel and adds channels of zeros, without parameters (option A). TensorFlow's
tf_cnn_benchmarks calls these networks resnet20, resnet32, resnet44, resnet56 and resnet110.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_CLASSES = 10
_WIDTHS = (16, 32, 64)


class _Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two 3 x 3 convolutions with norms; the input, or every second pixel of it with *out* channels, is added before the last ReLU."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.more = out - width
        stride = 2 if self.more else 1
        self.conv1, self.norm1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the maps (batch, *out*, height, width), halved in size if the channels double."""
        result = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(inputs)))))
        shortcut = functional.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more // 2)) if self.more else inputs
        final: torch.Tensor = self.relu(result + shortcut)
        return final


def cifar_resnet(layers: int) -> nn.Sequential:
    """Return the ResNet of *layers* layers, 6n + 2, for images of 32 x 32 pixels."""
    stack: list[nn.Module] = [nn.Conv2d(3, _WIDTHS[0], 3, 1, 1, bias=False), nn.BatchNorm2d(_WIDTHS[0]), nn.ReLU(inplace=True)]
    before = _WIDTHS[0]
    for width in _WIDTHS:
        for _ in range((layers - 2) // 6):
            stack.append(_Block(before, width))
            before = width
    return nn.Sequential(*stack, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, _CLASSES))
