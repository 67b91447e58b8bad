"""Small models whose casts and attention are known."""

from __future__ import annotations

import math
from typing import Any

import torch


class NormAndTwo(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A norm whose output two products take, one of which feeds a third."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.left, self.right, self.after = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, given: Any) -> Any:
        normed = self.norm(given)
        return self.left(normed) + self.after(self.right(normed))


class Attending(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Fused attention of two heads, causal, or under a mask."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked, self.inner = masked, torch.nn.Linear(8, 8)

    def forward(self, given: Any) -> Any:
        heads = self.inner(given).unflatten(-1, (2, 4)).transpose(1, 2)
        mask = torch.ones(5, 5, dtype=torch.bool, device=given.device) if self.masked else None
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask, is_causal=not self.masked)


class RmsNorm(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A root mean square norm behind a product, operator by operator as Hugging Face transformers writes it (LlamaRMSNorm)."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.before = torch.nn.Linear(4096, 4096, bias=False)
        self.weight = torch.nn.Parameter(torch.ones(4096), requires_grad=not frozen)

    def forward(self, given: Any) -> Any:
        entered = self.before(given)
        hidden = entered.to(torch.float32)
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * hidden.to(entered.dtype)


class Gelu(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """GELU as Hendrycks and Gimpel approximate it (arXiv 1606.08415), between two products: operator by operator, or torch's own kernel."""

    def __init__(self, composed: bool) -> None:
        super().__init__()
        self.composed = composed
        self.before, self.activation, self.after = torch.nn.Linear(64, 256), torch.nn.GELU("tanh"), torch.nn.Linear(256, 8)

    def forward(self, image: Any) -> Any:
        entered = self.before(image)
        if not self.composed:
            return self.after(self.activation(entered))
        inside = math.sqrt(2.0 / math.pi) * (entered + 0.044715 * torch.pow(entered, 3.0))
        return self.after(0.5 * entered * (1.0 + torch.tanh(inside)))
