"""The ResNets of Stash's micro study, which are in no library.

The variants that Stash compares (github.com/aakash-sharma/DS-Analyzer, vision/mytorchvision/models), as coded there. Without
batch norm: the stem's and the basic blocks' norms go, down-sampling and bottleneck blocks keep theirs. Without residuals: the
basic block does not add its input; the down-sampled input is still computed and its three tensors get no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_BASIC = {10: (1, 1, 1, 1), 12: (1, 1, 1, 2), 16: (1, 2, 2, 2), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_BOTTLENECK = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks of each stage by depth; 10, 12 and 16 are Stash's."""


def resnet(depth: int, batch_norm: bool = True, residual: bool = True) -> Any:
    """Return a ResNet of 10, 12, 16, 18, 34, 50, 101 or 152 layers, whole or without batch norm or residual connections."""
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    if depth not in _BASIC | _BOTTLENECK:
        raise ValueError(f"depth {depth}: one of {', '.join(map(str, _BASIC | _BOTTLENECK))} is due")
    model = ResNet(BasicBlock, list(_BASIC[depth])) if depth in _BASIC else ResNet(Bottleneck, list(_BOTTLENECK[depth]))
    blocks = [block for block in model.modules() if isinstance(block, BasicBlock)]
    if not batch_norm:
        model.bn1 = nn.Identity()
        for block in blocks:
            block.bn1, block.bn2 = nn.Identity(), nn.Identity()
    if not residual:
        for block in blocks:
            block.forward = _without_residual.__get__(block)
    return model


def _without_residual(block: Any, inputs: torch.Tensor) -> Any:
    """Run a basic block without adding its input; the down-sampling runs for nothing, as in Stash's code."""
    out = block.relu(block.bn1(block.conv1(inputs)))
    out = block.bn2(block.conv2(out))
    if block.downsample is not None:
        block.downsample(inputs)
    return block.relu(out)
