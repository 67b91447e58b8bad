"""What would torch.autocast("cuda") cast? The same on the meta device, which autocast leaves alone: its lists, and its cache of weights.

The lists are those of torch's documentation ("CUDA Op-Specific Behavior"), as far as the catalogue's models run them. Limits: recurrent
modules, which cuDNN runs on casts of all weights at once, are not cast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

NARROW = {
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul", "__matmul__", "mm"),
    *("bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "einsum", "scaled_dot_product_attention", "prelu"),
}
FULL = {
    *("softmax", "log_softmax", "softmin", "layer_norm", "group_norm", "nll_loss", "cross_entropy", "mse_loss", "smooth_l1_loss"),
    *("binary_cross_entropy_with_logits", "l1_loss", "exp", "expm1", "log", "log10", "log2", "log1p", "pow", "__pow__", "rsqrt"),
    *("reciprocal", "norm", "sum", "prod", "cumsum", "cumprod", "softplus", "erfinv", "acos", "cosh", "sinh", "tan", "square"),
}
WIDEST = {"cat", "stack", "addcdiv", "addcmul", "bilinear", "cross", "dot", "index_put", "scatter_add", "where"}


class Autocast(TorchFunctionMode):
    """Casts what goes into torch's functions; the casts of trained weights live as long as the mode."""

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        self._dtype = dtype
        self._weights: dict[int, torch.Tensor] = {}

    def __exit__(self, *raised: Any) -> None:
        self._weights.clear()
        super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if name in NARROW:
            args, given = self._cast((args, given), self._dtype)
        elif name in FULL:
            args, given = self._cast((args, given), torch.float32)
        elif name in WIDEST and any(leaf.dtype is torch.float32 for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)):
            args, given = self._cast((args, given), torch.float32)
        return func(*args, **given)

    def _cast(self, given: Any, dtype: torch.dtype) -> Any:
        def cast(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is dtype:
                return value
            if not (value.is_leaf and value.requires_grad):
                return value.to(dtype)
            if id(value) not in self._weights:
                self._weights[id(value)] = value.to(dtype)
            return self._weights[id(value)]

        return tree_map(cast, given)
