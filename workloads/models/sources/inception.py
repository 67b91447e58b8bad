"""What is Inception v4 in the catalog? The network of the paper (Szegedy et al., arXiv 1602.07261, figures 3 to 9) for 299 x 299 pixels.

Every convolution has no bias and is followed by a batch norm and ReLU. The number of each kind of block and the widths are the paper's:
four A at 35 x 35, seven B at 17 x 17, three C at 8 x 8, with a reduction between (k, l, m, n = 192, 224, 256, 384). Limits: without
dropout's 20% before the classifier, whose mask costs nothing beside the rest.
"""

from __future__ import annotations

import torch
from torch import nn

Kernel = int | tuple[int, int]


class _Conv(nn.Sequential):  # type: ignore[misc, unused-ignore]
    """A convolution, its norm and ReLU; *keeps_size* pads so that the map keeps its size."""

    def __init__(self, before: int, after: int, kernel: Kernel, stride: int = 1, keeps_size: bool = True) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if keeps_size else (0, 0)
        convolution = nn.Conv2d(before, after, (height, width), stride, padding, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(after, eps=1e-3), nn.ReLU(inplace=True))


class _Branches(nn.Module):  # type: ignore[misc, unused-ignore]
    """Joins the channels of all branches."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the maps of the branches, one after the other."""
        return torch.cat([branch(inputs) for branch in self.branches], 1)


def _chain(before: int, *steps: tuple[int, Kernel]) -> nn.Sequential:
    """Return convolutions that keep the map's size, one for each width and kernel of *steps*."""
    layers: list[nn.Module] = []
    for width, kernel in steps:
        layers.append(_Conv(before, width, kernel))
        before = width
    return nn.Sequential(*layers)


def _halving(before: int, width: int) -> _Conv:
    return _Conv(before, width, 3, stride=2, keeps_size=False)


def _pooled(before: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), _Conv(before, width, 1))


def _stem() -> list[nn.Module]:
    """Return the layers up to 384 channels at 35 x 35 (figure 3)."""
    narrow = nn.Sequential(_chain(160, (64, 1)), _Conv(64, 96, 3, keeps_size=False))
    wide = nn.Sequential(_chain(160, (64, 1), (64, (7, 1)), (64, (1, 7))), _Conv(64, 96, 3, keeps_size=False))
    return [
        _halving(3, 32), _Conv(32, 32, 3, keeps_size=False), _Conv(32, 64, 3),
        _Branches(nn.MaxPool2d(3, 2), _halving(64, 96)), _Branches(narrow, wide), _Branches(_halving(192, 192), nn.MaxPool2d(3, 2)),
    ]  # fmt: skip


def _block_a() -> nn.Module:
    return _Branches(_pooled(384, 96), _chain(384, (96, 1)), _chain(384, (64, 1), (96, 3)), _chain(384, (64, 1), (96, 3), (96, 3)))


def _reduction_a() -> nn.Module:
    return _Branches(
        nn.MaxPool2d(3, 2), _halving(384, 384), nn.Sequential(_chain(384, (192, 1), (224, 3)), _halving(224, 256))
    )  # fmt: skip


def _block_b() -> nn.Module:
    long = _chain(1024, (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1)))
    return _Branches(_pooled(1024, 128), _chain(1024, (384, 1)), _chain(1024, (192, 1), (224, (1, 7)), (256, (7, 1))), long)


def _reduction_b() -> nn.Module:
    short = nn.Sequential(_chain(1024, (192, 1)), _halving(192, 192))
    long = nn.Sequential(_chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1))), _halving(320, 320))
    return _Branches(nn.MaxPool2d(3, 2), short, long)


def _block_c() -> nn.Module:
    short = nn.Sequential(_Conv(1536, 384, 1), _Branches(_Conv(384, 256, (1, 3)), _Conv(384, 256, (3, 1))))
    long = nn.Sequential(_chain(1536, (384, 1), (448, (1, 3)), (512, (3, 1))), _Branches(_Conv(512, 256, (3, 1)), _Conv(512, 256, (1, 3))))
    return _Branches(_pooled(1536, 256), _chain(1536, (256, 1)), short, long)


def inception_v4(classes: int = 1000) -> nn.Sequential:
    """Return Inception v4 with a linear layer of *classes* classes."""
    blocks = [*_stem(), *(_block_a() for _ in range(4)), _reduction_a(), *(_block_b() for _ in range(7)), _reduction_b()]
    return nn.Sequential(*blocks, *(_block_c() for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1536, classes))
