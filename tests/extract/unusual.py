"""Nets that people bring and that are unlike a plain feed-forward one; named by the tests as ``unusual.py:CALLABLE``."""

from __future__ import annotations

import torch
from torch import nn


def recurrent(kind: str) -> nn.Module:
    """Words through a recurrent module of this kind, in both directions, two deep."""
    return Recurrent(kind)


class Recurrent(nn.Module):
    """The net above."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 16), nn.Linear(32, 5)
        self.steps = getattr(nn, kind)(16, 16, 2, batch_first=True, bidirectional=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, sequence, 5)."""
        result: torch.Tensor = self.out(self.steps(self.words(tokens))[0])
        return result


class Adversarial(nn.Module):
    """A generator and a discriminator that is used twice; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.generate = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12))
        self.judge = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, noise: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the discriminator thinks of what is generated and of what is real."""
        return self.judge(self.generate(noise)), self.judge(real)


class LowRank(nn.Module):
    """A frozen matrix with a trained product of two thin ones beside it, as LoRA adds them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.out = nn.Linear(32, 32).requires_grad_(False), nn.Linear(32, 3)
        self.down, self.up = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        result: torch.Tensor = self.out(torch.relu(self.frozen(inputs) + self.up(self.down(inputs))))
        return result


class SelfAttention(nn.Module):
    """torch's own attention module, which keeps its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, sequence, 5)."""
        result: torch.Tensor = self.out(self.attention(hidden, hidden, hidden)[0])
        return result


def encoder() -> nn.Module:
    """torch's own Transformer encoder, with fused attention."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False)


class Mixture(nn.Module):
    """Four experts that all run, weighted by the two best of a softmax: scatter, top-k and einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 4), nn.Parameter(torch.zeros(4, 16, 16))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the experts (batch, sequence, 16)."""
        share = self.gate(hidden).softmax(-1)
        best, places = share.topk(2, -1)
        return torch.einsum("bte,btd,edf->btf", torch.zeros_like(share).scatter(-1, places, best), hidden, self.experts)


class Routed(Mixture):
    """The same where each expert takes only its own samples, whose number depends on data."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return each sample multiplied by the matrix of its expert."""
        chosen = self.gate(hidden).argmax(-1)
        return torch.cat([hidden[chosen == number] @ expert for number, expert in enumerate(self.experts)])


class Scan(nn.Module):
    """A recurrence written as a loop over time, behind a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.mix, self.decay = nn.Conv1d(16, 16, 4, padding=3, groups=16), nn.Parameter(torch.zeros(16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (batch, sequence, 8)."""
        steps = self.mix(self.widen(inputs).transpose(1, 2))[..., : inputs.shape[1]].unbind(-1)
        state, states = torch.zeros_like(steps[0]), []
        for step in steps:
            state = torch.exp(-torch.exp(self.decay)) * state + step
            states.append(state)
        result: torch.Tensor = self.narrow(torch.stack(states, 1))
        return result


class Normalized(nn.Module):
    """Weights that are normalized anew in every forward, by their norm and by their largest singular value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (batch, 8)."""
        result: torch.Tensor = self.second(self.first(inputs))
        return result


class Hourglass(nn.Module):
    """Down and up again with a connection across: every kind of norm, average pooling, bilinear and transposed up-sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 3, 1)
        self.instance, self.group, self.layer = nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(2, 8), nn.LayerNorm(3)
        self.down, self.up, self.back = nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.ConvTranspose2d(8, 8, 2, stride=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return three scores for every pixel."""
        wide = nn.functional.silu(self.instance(self.enter(images)))
        deep = nn.functional.gelu(self.group(self.inner(self.down(wide))))
        joined = self.leave(torch.cat([wide, self.up(deep) + self.back(deep)], 1))
        result: torch.Tensor = self.layer(joined.permute(0, 2, 3, 1))
        return result


class Spectral(nn.Module):
    """Goes to frequencies and back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (batch, 8)."""
        return torch.fft.irfft(torch.fft.rfft(self.linear(inputs)))


def bag() -> nn.Module:
    """A sum of looked-up rows with sparse gradients."""
    return nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True, mode="sum"), nn.Linear(8, 1))


def lazy() -> nn.Module:
    """Takes its width from the first inputs."""
    return nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))


def replicated() -> nn.Module:
    """Wrapped for several GPUs of one process."""
    return nn.DataParallel(nn.Linear(8, 3))


def compiled() -> nn.Module:
    """Compiled by torch.compile."""
    return torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))


def detector() -> nn.Module:
    """Faster R-CNN, which chooses its boxes by value."""
    from torchvision.models import detection

    return detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)


def labeled_images(batch: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Return example inputs of the detector."""
    labels = {"boxes": torch.zeros(1, 4), "labels": torch.zeros(1, dtype=torch.long)}
    return [torch.zeros(3, 64, 64)] * batch, [labels] * batch
