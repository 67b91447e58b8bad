"""Which CIFAR-10 models did CM-DARE train? Tensor2Tensor's residual nets and Shake-Shake, parameter tensor for parameter tensor.

Tensor2Tensor (``models/resnet.py``, ``models/shake_shake.py``), with the widths that give CM-DARE's counts of parameters and tensors
(cake-lab/CM-DARE, tfprof): ResNet-15 and 32 have 2 and 5 residual blocks a stage of 32, 64 and 128 channels behind a 7x7 convolution
of 16, norm before convolution, no biases; Shake-Shake (Gastaldi, arXiv 1705.07485) has 26 layers, two branches, every convolution
with a bias and a norm. Dropout, which is zero there, is left out, as are the spatial shift and the average pool of the skip
path's second half that only move pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CLASSES = 10


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels)


class _Residual(nn.Module):  # type: ignore[misc, unused-ignore]
    """Norm, ReLU, convolution, twice; the first block of a stage projects its normed input."""

    def __init__(self, width: int, out: int, stride: int, project: bool) -> None:
        super().__init__()
        self.norm1, self.relu = _norm(width), nn.ReLU()
        self.project = nn.Conv2d(width, out, 1, stride, bias=False) if project else None
        self.project_norm = _norm(out) if project else None
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm2 = _norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)

    def forward(self, inputs: torch.Tensor) -> Any:
        normed = self.relu(self.norm1(inputs))
        shortcut = inputs if self.project is None or self.project_norm is None else self.project_norm(self.project(normed))
        return self.conv2(self.relu(self.norm2(self.conv1(normed)))) + shortcut


def resnet(blocks: int) -> nn.Module:
    """Return Tensor2Tensor's residual net for 32x32 images with *blocks* blocks a stage: 2 for CM-DARE's ResNet-15, 5 for ResNet-32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 7, 1, 3, bias=False), _norm(16), nn.ReLU()]
    width = 16
    for stage, out in enumerate((32, 64, 128)):
        for block in range(blocks):
            layers.append(_Residual(width, out, 2 if stage and not block else 1, project=not block))
            width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


class _Branch(nn.Module):  # type: ignore[misc, unused-ignore]
    """ReLU, convolution, norm, twice; scaled by one random number an image."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1, self.norm1 = nn.Conv2d(width, out, 3, stride, 1), _norm(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1), _norm(out)

    def forward(self, inputs: torch.Tensor) -> Any:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(self.relu(inputs))))))
        return out * torch.ones(out.shape[0], 1, 1, 1, device=out.device)


class _Shake(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two branches and the input, halved and widened where the shape changes."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.branch1, self.branch2 = _Branch(width, out, stride), _Branch(width, out, stride)
        self.stride = stride
        changes = width != out
        self.path1 = nn.Conv2d(width, out // 2, 1) if changes else None
        self.path2 = nn.Conv2d(width, out // 2, 1) if changes else None
        self.path_norm = _norm(out) if changes else None

    def forward(self, inputs: torch.Tensor) -> Any:
        return self._skip(inputs) + self.branch1(inputs) + self.branch2(inputs)

    def _skip(self, inputs: torch.Tensor) -> Any:
        if self.path1 is None or self.path2 is None or self.path_norm is None:
            return inputs
        kept = inputs[:, :, :: self.stride, :: self.stride]
        return self.path_norm(torch.cat([self.path1(kept), self.path2(kept)], 1))


def shake_shake(filters: int) -> nn.Module:
    """Return the 26-layer Shake-Shake whose first stage has *filters* channels: 32 for CM-DARE's small one, 96 for its big one."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1), _norm(16)]
    width = 16
    for stage in range(3):
        for block in range(4):
            layers.append(_Shake(width, filters << stage, 2 if stage and not block else 1))
            width = filters << stage
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))
