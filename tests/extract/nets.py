"""Small nets whose layers can be worked out by hand; named by the tests as ``nets.py:CALLABLE``."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def convolutions() -> nn.Module:
    """Every kind of convolution: strided with bias, grouped, depthwise, 1x1, transposed."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        nn.Conv2d(8, 16, 1, bias=False),
        nn.Conv2d(16, 16, (1, 5), padding=(0, 2), groups=4, bias=False),
        nn.ConvTranspose2d(16, 4, 2, stride=2),
        nn.Flatten(),
        nn.Linear(4 * 16 * 16, 10),
    )


def ungrouped() -> nn.Module:
    """Convolutions that torch's own counter books rightly in backward (it counts every group in full)."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 16, 1),
        nn.ConvTranspose2d(16, 4, 2, stride=2),
        nn.Flatten(),
        nn.Linear(1024, 9),
    )


def normed() -> nn.Module:
    """Convolution, batch norm, in-place ReLU, pooling, dropout, linear: the memory-bound operators of a ResNet."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 5),
    )


class Shared(nn.Module):
    """One linear layer used twice, a branch, and an embedding tied to the output, so that gradients complete late."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.twice = nn.Linear(6, 6)
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.scale = nn.Parameter(torch.ones(6))
        self.out = nn.Linear(6, 11)
        self.out.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, sequence, words)."""
        hidden = self.twice(self.words(tokens))
        hidden = self.left(hidden) + self.right(hidden)
        result: torch.Tensor = self.out(self.twice(hidden) * self.scale)
        return result


class Attention(nn.Module):
    """Fused attention between two projections."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Attend with 4 heads of width 8 over the sequence."""
        query, key, value = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.project(hidden).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
        result: torch.Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return result


class ReusedLater(nn.Module):
    """A net in the shape of a U: what the first layers make is read by the last ones, half of it as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.up = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ConvTranspose2d(16, 8, 2, stride=2),
        )
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(inplace=True))
        self.leave = nn.Conv2d(12, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return three scores for every pixel."""
        wide = self.first(images)
        deep = self.down(wide)
        wider = self.up(deep + self.inner(deep))
        result: torch.Tensor = self.leave(torch.cat([wide.chunk(2, 1)[1], wider], 1))
        return result


class Narrow(nn.Module):
    """A trained layer in 16 bits, a frozen one, and one in 32."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(6, 6).to(torch.bfloat16), nn.Linear(6, 3)
        self.frozen = nn.Linear(6, 6, bias=False).to(torch.bfloat16).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        result: torch.Tensor = self.wide(self.frozen(self.narrow(inputs.to(torch.bfloat16))).float())
        return result


def partly_used() -> nn.Module:
    """Computes a second layer's output for nothing."""
    return Wasteful(lambda hidden: hidden)


class Frozen(nn.Module):
    """A frozen layer below a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(7, 7).requires_grad_(False), nn.Linear(7, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        result: torch.Tensor = self.above(self.below(inputs))
        return result


class Forward(nn.Module):
    """A linear layer whose output goes through any function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(5, 5), function

    def forward(self, inputs: torch.Tensor) -> Any:
        """Return what the function makes of the layer's output."""
        return self.function(self.linear(inputs))


class Wasteful(Forward):
    """Has a second layer that it does not use."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(function)
        self.second = nn.Linear(5, 5)

    def forward(self, inputs: torch.Tensor) -> Any:
        """Return what the first makes of the inputs."""
        self.second(inputs)
        return super().forward(inputs)


def branching() -> nn.Module:
    """Needs a value to choose a branch."""
    return Forward(lambda hidden: hidden * 2 if hidden.sum() > 0 else hidden)


def choosing() -> nn.Module:
    """Needs values to know a size."""
    return Forward(lambda hidden: hidden[hidden[:, 0] > 0])


def batch_dependent() -> nn.Module:
    """Runs another operator when the batch is odd."""
    return Forward(lambda hidden: hidden.exp() if hidden.shape[0] % 2 else hidden.sin())


def contrastive() -> nn.Module:
    """Compares every sample with every other: quadratic in the batch."""
    return Forward(lambda hidden: hidden @ hidden.t())


def unknown_operator() -> nn.Module:
    """Runs an operator that the program does not know."""
    return Forward(lambda hidden: torch.linalg.qr(hidden)[0])


def leaving() -> nn.Module:
    """Ends the program while it runs."""
    return Forward(lambda hidden: sys.exit(3))


def own_loss() -> nn.Module:
    """Returns its loss itself, beside other things."""
    return Forward(lambda hidden: {"loss": hidden.square().mean(), "hidden": hidden})


def nothing_to_train() -> nn.Module:
    """Returns numbers without gradients."""
    return Forward(lambda hidden: hidden.argmax(-1))


def without_parameters() -> nn.Module:
    """Has no parameter at all."""
    return nn.ReLU()


def raising(depth: int = 1) -> nn.Module:
    """Fails while it is built."""
    raise ValueError(f"depth {depth} is not supported")


def not_a_model() -> str:
    """Return something else."""
    return "a model"


def no_tensor(batch: int) -> list[int]:
    """Return the inputs as what they are not."""
    return [batch]


def ill_fitting() -> nn.Module:
    """Its second block does not take what the first gives."""
    return nn.Sequential(OrderedDict(blocks=nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(9, 8)))))


def scripted() -> nn.Module:
    """A model below Python."""
    return torch.jit.script(nn.Sequential(nn.Linear(8, 3)))


def on_cuda() -> nn.Module:
    """Fails as a model does that sends its tensors to a GPU which is not there."""

    def send(hidden: torch.Tensor) -> torch.Tensor:
        raise AssertionError("Torch not compiled with CUDA enabled")

    return Forward(send)


def four_pictures(batch: int) -> torch.Tensor:
    return torch.zeros(4, 3, 8, 8)


def token_batch(batch: int) -> dict[str, torch.Tensor]:
    """Return example inputs of Shared."""
    return {"tokens": torch.zeros(batch, 3, dtype=torch.long)}


def lstm() -> nn.Module:
    """Two recurrent layers, the sequence first."""
    return nn.LSTM(4, 8, 2)


class Checkpointed(nn.Module):
    """Four linear layers, the middle two each checkpointed in one of torch's two *way*s, or not."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers, self.way = nn.ModuleList(nn.Linear(6, 6) for _ in range(4)), way

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        hidden = self.layers[0](inputs)
        for layer in (self.layers[1], self.layers[2]):
            hidden = layer(hidden) if self.way == "none" else checkpoint(layer, hidden, use_reentrant=self.way == "reentrant")
        result: torch.Tensor = self.layers[3](hidden)
        return result


def checkpointed(way: str) -> nn.Module:
    """Name the net above."""
    return Checkpointed(way)


def partly_frozen() -> nn.Module:
    """A sparse embedding, a frozen matrix and a trained one."""
    net = nn.Sequential(nn.Embedding(11, 6, sparse=True), nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False))
    net[1].weight.requires_grad_(False)
    return net


class ThroughNumpy(nn.Linear):
    """Leaves torch in the middle of its forward."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(super().forward(input).detach().numpy()) * self.weight.sum()


def through_numpy() -> nn.Module:
    """Name the net above."""
    return ThroughNumpy(5, 5)


def named_device() -> nn.Module:
    """Makes a tensor on a device that the code names."""
    return Forward(lambda hidden: hidden + torch.ones(5, device="cpu"))


class Experts(nn.Module):
    """Three experts, each for the rows that a router gives it, as one grouped product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 8, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the experts make of their rows."""
        ends = torch.ones(3, dtype=torch.int32, device=inputs.device)
        result: torch.Tensor = torch._grouped_mm(inputs, self.weight, offs=ends)
        return result


def experts() -> nn.Module:
    """Name the net above."""
    return Experts()


def own_operator(name: str, shaped: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an operator that torch does not have, registered once; *shaped* tells torch which shapes it returns."""
    registered = getattr(torch.ops.netsown, name, None)
    if registered is not None:
        return registered  # type: ignore[no-any-return, unused-ignore]

    @torch.library.custom_op(f"netsown::{name}", mutates_args=())
    def tripled(hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 3

    if shaped:
        tripled.register_fake(torch.empty_like)
        tripled.register_autograd(lambda context, gradient: gradient * 3)
    return tripled


def shapeless() -> nn.Module:
    """Runs a custom operator whose shapes torch does not know."""
    return Forward(own_operator("doubled", False))


def custom() -> nn.Module:
    """Runs a custom operator."""
    return Forward(own_operator("tripled", True))
