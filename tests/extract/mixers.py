"""A small decoder whose blocks are letters of ``Transformer.pattern``, in torch: the oracle of their rows in a decoder's table.

Its layers follow transformers' modeling_lfm2.py (C), modeling_falcon_h1.py (P) and modeling_apertus.py (xIELU). A product
with the parameters of a scan stands for it: the table's own is compared elsewhere (tests/spec/test_state_space.py).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, GROUPS, SIZE, INNER, KERNEL = 64, 4, 2, 16, 96, 3
SCAN_HEADS, STATE, CONV = 6, 8, 4
SCANNED = SCAN_HEADS * SIZE


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    """Causal attention with grouped keys, norms of each head of queries and keys if *normed*, and rotary positions."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, GROUPS * SIZE, bias=False) for _ in range(2))
        self.output = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(SIZE, eps=1e-6) if normed else nn.Identity() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attended values of (batch, sequence, width)."""
        query, key, value = (each(x).unflatten(-1, (-1, SIZE)) for each in (self.query, self.key, self.value))
        angles = torch.arange(x.shape[1])[:, None] * 0.1 ** torch.arange(SIZE // 2).repeat(2)
        query, key = (
            norm(each).transpose(1, 2) * angles.cos() + norm(each).transpose(1, 2).flip(-1) * angles.sin()
            for norm, each in zip(self.norms, (query, key), strict=True)
        )
        key, value = key.repeat_interleave(HEADS // GROUPS, 1), value.transpose(1, 2).repeat_interleave(HEADS // GROUPS, 1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result


class ShortConvolution(nn.Module):  # type: ignore[misc, unused-ignore]
    """A depthwise convolution between two gates."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.conv = nn.Conv1d(WIDTH, WIDTH, KERNEL, groups=WIDTH, padding=KERNEL - 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolved sequence of (batch, sequence, width)."""
        into, out, values = self.input(x).transpose(1, 2).chunk(3, dim=1)
        result: torch.Tensor = self.output((out * self.conv(into * values)[..., : x.shape[1]]).transpose(1, 2))
        return result


class Mamba2(nn.Module):  # type: ignore[misc, unused-ignore]
    """Mamba-2 without a norm after its scan, for which a product with its parameters stands."""

    def __init__(self) -> None:
        super().__init__()
        channels = SCANNED + 2 * STATE
        self.input, self.output = nn.Linear(WIDTH, SCANNED + channels + SCAN_HEADS, bias=False), nn.Linear(SCANNED, WIDTH, bias=False)
        self.conv = nn.Conv1d(channels, channels, CONV, groups=channels, padding=CONV - 1)
        self.decay, self.skip, self.bias = (nn.Parameter(torch.ones(SCAN_HEADS)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated values of (batch, sequence, width)."""
        gate, channels, steps = self.input(x).split((SCANNED, SCANNED + 2 * STATE, SCAN_HEADS), dim=-1)
        values = functional.silu(self.conv(channels.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)[..., :SCANNED]
        scanned = values.unflatten(-1, (SCAN_HEADS, SIZE)) * ((steps + self.bias) * self.decay + self.skip)[..., None]
        result: torch.Tensor = self.output(scanned.flatten(-2) * functional.silu(gate))
        return result


class Beside(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention and Mamba-2 on the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mamba = Attention(normed=False), Mamba2()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both."""
        result: torch.Tensor = self.attention(x) + self.mamba(x)
        return result


class Xielu(nn.Module):  # type: ignore[misc, unused-ignore]
    """The activation of Apertus, with one weight on either side of 0 (arXiv 2411.13010)."""

    def __init__(self) -> None:
        super().__init__()
        self.positive, self.negative = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation of each element."""
        above, below = functional.softplus(self.positive), 0.5 + functional.softplus(self.negative)
        return torch.where(x > 0, above * x * x + 0.5 * x, (torch.expm1(x.clamp_max(-1e-6)) - x) * below + 0.5 * x)


class Feed(nn.Module):  # type: ignore[misc, unused-ignore]
    """A feed-forward block, gated by SiLU or with xIELU."""

    def __init__(self, weighted: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.gate = Xielu() if weighted else nn.Linear(WIDTH, INNER, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result for (batch, sequence, width)."""
        inner = self.gate(self.up(x)) if isinstance(self.gate, Xielu) else functional.silu(self.gate(x)) * self.up(x)
        result: torch.Tensor = self.down(inner)
        return result


class Decoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Blocks of *pattern*, with a norm before each, between an embedding and a head that shares its table if *tied*."""

    def __init__(self, pattern: str = "C-*-", vocabulary: int = 200, weighted: int = 0, normed: int = 1, tied: int = 1) -> None:
        super().__init__()
        makers = {
            "C": ShortConvolution, "P": Beside, "*": lambda: Attention(bool(normed)), "-": lambda: Feed(bool(weighted)),
        }  # fmt: skip
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-6) for _ in pattern)
        self.blocks = nn.ModuleList(makers[letter]() for letter in pattern)
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting each token of (batch, sequence) from those before it."""
        hidden = self.tokens(input_ids)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            hidden = hidden + block(norm(hidden))
        scores = self.head(self.norm(hidden))
        loss: torch.Tensor = functional.cross_entropy(scores[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        return loss
