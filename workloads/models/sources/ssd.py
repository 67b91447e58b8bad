"""What is SSD300 in the catalog? NVIDIA's, on ResNet-50 (DeepLearningExamples PyTorch/Detection/SSD), as Lambda ran it.

ResNet-50 up to its fourth group, whose first block keeps the resolution: 38 x 38 with 1024 channels. Five more blocks halve it down to
1 x 1. Each of the six maps predicts four to six boxes a position, 8,732 in all, with 81 classes (Liu et al., ECCV 2016). The model returns
its loss. Limits: mining of hard negatives counts as the class loss alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

_MAPS = (1024, 512, 512, 256, 256, 256)
_INNER = (256, 256, 128, 128, 128)
_BOXES = (4, 6, 6, 6, 4, 4)
"""Channels of the maps, of the blocks between them, and boxes for each position (the model's own constants)."""
_CLASSES = 81


class Ssd300(nn.Module):  # type: ignore[misc, unused-ignore]
    """The backbone, the further blocks and the two heads of each map."""

    def __init__(self) -> None:
        from torchvision.models import resnet50

        super().__init__()
        whole = resnet50()
        for part in (whole.layer3[0].conv1, whole.layer3[0].conv2, whole.layer3[0].downsample[0]):
            part.stride = (1, 1)
        self.backbone = nn.Sequential(*list(whole.children())[:7])
        steps = zip(_MAPS, _INNER, _MAPS[1:], strict=False)
        self.block = nn.ModuleList(_block(*sizes, halved=index < 3) for index, sizes in enumerate(steps))
        self.location = nn.ModuleList(nn.Conv2d(size, 4 * boxes, 3, padding=1) for size, boxes in zip(_MAPS, _BOXES, strict=True))
        self.confidence = nn.ModuleList(nn.Conv2d(size, _CLASSES * boxes, 3, padding=1) for size, boxes in zip(_MAPS, _BOXES, strict=True))

    def forward(self, image: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of the predictions for *image* against the *boxes* (batch, 4, 8732) and their *labels*."""
        maps = [self.backbone(image)]
        for block in self.block:
            maps.append(block(maps[-1]))
        found = torch.cat([head(features).view(len(image), 4, -1) for head, features in zip(self.location, maps, strict=True)], 2)
        scores = torch.cat([head(features).view(len(image), _CLASSES, -1) for head, features in zip(self.confidence, maps, strict=True)], 2)
        loss: torch.Tensor = functional.smooth_l1_loss(found, boxes) + functional.cross_entropy(scores, labels)
        return loss


def _block(before: int, inner: int, after: int, halved: bool) -> Any:
    """Return the layers from one map to the next: stride 2, or a 3 x 3 window without padding where the map is small."""
    window = {"padding": 1, "stride": 2} if halved else {}
    return nn.Sequential(
        nn.Conv2d(before, inner, 1, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        nn.Conv2d(inner, after, 3, bias=False, **window),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )
