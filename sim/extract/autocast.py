"""What does torch.autocast add to a model's work? This module finds the casts of activations and the bytes kept for backward.

torch's autocast ignores meta tensors, so this module does the same casts one level higher, when Python calls torch's functions. Autocast
casts the arguments of some functions to 16 bits, of others to 32 bits, and of some to the widest type among them (torch.amp documentation,
"CUDA Op-Specific Behavior"). It keeps the casts of trained weights until the forward pass ends. Each matrix product of a 32-bit activation
therefore keeps its own 16-bit copy of the activation.

Limits: functions that C++ calls inside other functions are cast only if the outer functions are listed here; both 16-bit types keep the
same number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from sim.extract.checkpointing import checkpointing
from sim.extract.fused import as_on_cuda

_PRODUCTS: Final = {
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul", "__matmul__", "mm"),
    *("bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "einsum", "scaled_dot_product_attention"),
}
_NARROW: Final = _PRODUCTS | {"prelu", "lstm", "gru", "rnn_tanh", "rnn_relu"}
_FULL: Final = {
    *("softmax", "log_softmax", "softmin", "layer_norm", "group_norm", "nll_loss", "cross_entropy", "mse_loss", "smooth_l1_loss"),
    *("binary_cross_entropy_with_logits", "l1_loss", "exp", "expm1", "log", "log10", "log2", "log1p", "pow", "__pow__", "rsqrt"),
    *("reciprocal", "norm", "sum", "prod", "cumsum", "cumprod", "softplus", "erfinv", "acos", "cosh", "sinh", "tan", "square"),
}
_WIDEST: Final = {"cat", "stack", "addcdiv", "addcmul", "bilinear", "cross", "dot", "index_put", "scatter_add", "where"}


class Autocast(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Casts the arguments of torch's functions; the casts of trained weights live as long as the mode."""

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        self._dtype = dtype
        self._weights: dict[int, torch.Tensor] = {}
        self._depth = 0
        self.narrowed: list[int] = []
        """Number of activation elements cast for each matrix product, in the order of the products."""

    def __enter__(self) -> Any:
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._weights.clear()
        super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, keywords = getattr(func, "__name__", ""), kwargs or {}
        if func is functional.multi_head_attention_forward:
            return self._run_inside(func, args, keywords)
        if name in _PRODUCTS:
            self.narrowed.append(sum(leaf.numel() for leaf in tree_leaves((args, keywords)) if self._casts(leaf, self._dtype)))
        if name in _NARROW:
            args, keywords = self._cast((args, keywords), self._dtype)
        elif name in _FULL or (
            name in _WIDEST and any(leaf.dtype is torch.float32 for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
        ):
            args, keywords = self._cast((args, keywords), torch.float32)
        return func(*args, **keywords)

    def _run_inside(self, func: Any, args: Any, keywords: Any) -> Any:
        """Run *func*, a Python function, and cast the arguments of torch's functions inside it instead of its own.

        *func* checks whether a mode overrides it, which would lead back here, so the check is replaced by one that returns False. Functions
        inside that use the same check are not cast; none of them is a matrix product or softmax.
        """
        names = vars(functional)
        original = names["has_torch_function"]
        names["has_torch_function"] = lambda arguments: False
        try:
            with self:
                return func(*args, **keywords)
        finally:
            names["has_torch_function"] = original

    @staticmethod
    def _casts(value: Any, dtype: torch.dtype) -> bool:
        """Return whether *value* is an activation with a gradient that is cast to *dtype*."""
        castable = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not dtype
        return castable and value.requires_grad and not value.is_leaf

    def _cast(self, values: Any, dtype: torch.dtype) -> Any:
        def cast(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is dtype:
                return value
            if not (value.is_leaf and value.requires_grad):
                return value.to(dtype)
            if id(value) not in self._weights:
                self._weights[id(value)] = value.to(dtype)
            return self._weights[id(value)]

        return tree_map(cast, values)


class ForwardResult(NamedTuple):
    """Result of a forward pass under autocast."""

    kept: int
    """Bytes kept for backward, including casts of weights but not the inputs."""
    narrowed: tuple[int, ...]
    """Number of activation elements cast to 16 bits for each matrix product, in the order of the products."""


def run_forward(
    model: torch.nn.Module, positional: Sequence[Any], named: Mapping[str, Any], loss_of: Callable[[Any], torch.Tensor]
) -> ForwardResult:
    """Run a forward pass, including the loss, under autocast."""
    of_inputs = {tensor.untyped_storage()._cdata for tensor in tree_leaves((positional, named)) if isinstance(tensor, torch.Tensor)}
    storages: list[Any] = []  # kept alive so that no address is reused

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in of_inputs:
            of_inputs.add(storage._cdata)
            storages.append(storage)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    autocast_on_cpu = torch.autocast("cpu", torch.bfloat16)  # casts nothing here, but modules check whether any autocast is on
    with torch.device("meta"), as_on_cuda(), checkpointing(nullcontext), hooks, autocast_on_cpu, Autocast() as autocast:
        loss = loss_of(model(*positional, **named))
    nbytes: int = sum(storage.nbytes() for storage in storages)
    del loss
    return ForwardResult(nbytes, tuple(autocast.narrowed))
