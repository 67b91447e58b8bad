"""Which activations are live between one operator and the next? The ones that an earlier operator made and a later operator reads.

If the model is cut at that point, the next pipeline stage receives these activations (``torch.distributed.pipelining`` passes a stage
the values that it and later stages read). A tensor counts with the bytes that are read: views that begin at different offsets of a storage
add up, to at most the size of the storage. (torch passes both a tensor and a view of it.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class DataFlow:
    """Records what operators read and make, in order. Only *given* tensors and results of operators count, not parameters or buffers."""

    def __init__(
        self, given: Iterable[torch.Tensor], nbytes: Callable[[torch.Tensor], int], element: Callable[[torch.Tensor], int]
    ) -> None:
        """Begin with *given* tensors; *nbytes* returns the bytes that a read of a tensor touches, *element* the bytes of one element."""
        self._nbytes, self._element = nbytes, element
        self._sizes: dict[int, int] = {}  # bytes of the recorded storages, by address
        self._held: list[torch.UntypedStorage] = []  # keeps storages alive so that no address is reused
        self._operators: list[tuple[list[tuple[int, int, int]], list[int]]] = []  # reads (storage, offset, bytes) and storages made
        for tensor in given:
            self._add_storage(tensor)

    def record(self, arguments: Any, result: Any) -> None:
        """Record an operator that reads the tensors in *arguments* and returns the tensors in *result*."""
        read, returned = _strided(arguments), _strided(result)
        reads = [(_address(tensor), tensor.storage_offset(), self._nbytes(tensor)) for tensor in read]
        own = {address for address, _, _ in reads}
        made = [tensor for tensor in returned if _address(tensor) not in own and _address(tensor) not in self._sizes]
        for tensor in made:
            self._add_storage(tensor)
        self._operators.append((reads, [_address(tensor) for tensor in made]))

    def entering(self) -> list[int]:
        """Return for each operator the bytes that were made before it and are read by it or by a later operator."""
        views: dict[int, dict[int, int]] = {}
        alive: dict[int, int] = {}
        total, entering = 0, []
        for reads, made in reversed(self._operators):
            for address, offset, nbytes in reads:
                if address in self._sizes:
                    of_storage = views.setdefault(address, {})
                    of_storage[offset] = max(of_storage.get(offset, 0), nbytes)
                    total -= alive.get(address, 0)
                    alive[address] = min(sum(of_storage.values()), self._sizes[address])
                    total += alive[address]
            for address in made:
                total -= alive.pop(address, 0)
                views.pop(address, None)
            entering.append(total)
        return entering[::-1]

    def _add_storage(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._held.append(storage)
        self._sizes[storage._cdata] = storage.nbytes() // tensor.element_size() * self._element(tensor)


def _strided(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
