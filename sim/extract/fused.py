"""Which operators run as fused kernels on a GPU, but are decomposed on torch's meta device? Attention and dropout.

Meta tensors decompose attention and dropout into elementary operators. Inside ``as_on_cuda`` they use the fused kernels of CUDA
tensors. Limits: attention is torch's memory-efficient kernel, which supports every GPU and data type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["as_on_cuda"]


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Return a context in which meta tensors use the fused attention and dropout kernels of CUDA tensors."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
    library.impl("dropout", _dropout, "AutogradMeta")
    try:
        yield
    finally:
        library._destroy()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run torch's memory-efficient attention, which supports every GPU and data type, unlike flash attention."""
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        repeat = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    fused = torch.ops.aten._scaled_dot_product_efficient_attention
    attended: torch.Tensor = fused(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]
    return attended


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0:
        return tensor
    dropped: torch.Tensor = torch.ops.aten.native_dropout(tensor, p, train)[0]
    return dropped
