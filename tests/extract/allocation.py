"""How many bytes does one training step hold at most? Counts the storages that torch makes on the meta device and when they die.

Independent of ``sim.extract``: every storage is counted once, when the first operator returns it, and dropped when torch frees it, so
views, in-place operators, saved tensors and temporaries need no rules. What a GPU's allocator adds (rounding, fragments, workspaces) is
not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Bytes held now, and the most that were held."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                self.add(tensor)
        return result

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())

    def _freed(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.held -= nbytes


def step_peak(model: Any, positional: Sequence[Any], named: Mapping[str, Any], loss_of: Any) -> int:
    """Return the bytes that activations and temporaries take at most during a step that finds its gradients allocated."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    counted = Allocations()
    for tensor in [*model.parameters(), *model.buffers(), *tree_leaves((positional, named))]:
        if isinstance(tensor, torch.Tensor):
            counted._known.add(tensor.untyped_storage()._cdata)
    for parameter in model.parameters():
        if parameter.grad is not None:
            counted._known.add(parameter.grad.untyped_storage()._cdata)
    with torch.device("meta"), counted:
        loss = loss_of(model(*positional, **named))
        loss.backward()
    return counted.peak
