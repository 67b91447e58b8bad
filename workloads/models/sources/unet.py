"""What is U-Net in the catalog? The paper's, with one channel and two classes (Ronneberger et al., arXiv 1505.04597, figure 1).

Four levels halve the map and double the channels, from 64 to 1,024. Each has two 3 x 3 convolutions without padding; on the way up a 2 x 2
transposed convolution halves the channels, and the cropped map of the same level is joined. 572 x 572 pixels become 388 x 388. The model
returns its loss, the cross-entropy of each pixel. NVIDIA's UNet_Medical (DeepLearningExamples) trains this network. Limits: without the
paper's weight of each pixel.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_CHANNELS = (64, 128, 256, 512, 1024)
_CLASSES = 2


def _convolutions(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3), nn.ReLU(inplace=True), nn.Conv2d(after, after, 3), nn.ReLU(inplace=True))


class Unet(nn.Module):  # type: ignore[misc, unused-ignore]
    """The levels on the way down, those on the way up, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_convolutions(*sizes) for sizes in zip((1, *_CHANNELS), _CHANNELS, strict=False))
        ways = list(zip(_CHANNELS[:0:-1], _CHANNELS[-2::-1], strict=True))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(below, above, 2, stride=2) for below, above in ways)
        self.up = nn.ModuleList(_convolutions(below, above) for below, above in ways)
        self.head = nn.Conv2d(_CHANNELS[0], _CLASSES, 1)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the loss of the classes predicted for the pixels of *image* against their *label* (batch, 388, 388)."""
        maps = [self.down[0](image)]
        for level in list(self.down)[1:]:
            maps.append(level(functional.max_pool2d(maps[-1], 2)))
        result = maps.pop()
        for widen, level in zip(self.widen, self.up, strict=True):
            wide, beside = widen(result), maps.pop()
            edge = (beside.shape[-1] - wide.shape[-1]) // 2
            size = wide.shape[-1]
            result = level(torch.cat([beside[..., edge : edge + size, edge : edge + size], wide], 1))
        return functional.cross_entropy(self.head(result), label)
