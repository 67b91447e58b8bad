"""Which activations are there between one operator and the next? Those that something before made and something after reads.

That is what a stage of a pipeline receives where the model is cut there (``torch.distributed.pipelining`` hands a stage the values that
it and later ones read). A tensor counts with what is read of it: views that begin at different places of a storage add up, to no more
than the storage. (torch hands over a tensor and a view of it both.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class DataFlow:
    """What operators read and make, in their order. Parameters, buffers and what else no operator makes are not in it but for *given*."""

    def __init__(
        self, given: Iterable[torch.Tensor], nbytes: Callable[[torch.Tensor], int], element: Callable[[torch.Tensor], int]
    ) -> None:
        """Begin with *given* tensors; *nbytes* are those that a read of a tensor touches, *element* those of one element."""
        self._nbytes, self._element = nbytes, element
        self._sizes: dict[int, int] = {}  # of storages that the flow knows, by address
        self._held: list[torch.UntypedStorage] = []  # so that no address is used again
        self._operators: list[tuple[list[tuple[int, int, int]], list[int]]] = []  # reads: storage, where in it, bytes; storages made
        for tensor in given:
            self._know(tensor)

    def note(self, arguments: Any, result: Any) -> None:
        """Note an operator that reads the tensors in *arguments* and returns those in *result*."""
        read, returned = _strided(arguments), _strided(result)
        reads = [(_address(tensor), tensor.storage_offset(), self._nbytes(tensor)) for tensor in read]
        own = {address for address, _, _ in reads}
        made = [tensor for tensor in returned if _address(tensor) not in own and _address(tensor) not in self._sizes]
        for tensor in made:
            self._know(tensor)
        self._operators.append((reads, [_address(tensor) for tensor in made]))

    def entering(self) -> list[int]:
        """Return for each operator the bytes that were made before it and are read by it or later."""
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

    def _know(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._held.append(storage)
        self._sizes[storage._cdata] = storage.nbytes() // tensor.element_size() * self._element(tensor)


def _strided(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
