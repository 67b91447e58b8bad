"""What torch sends under a fake process group, which takes any number of ranks in one process and moves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from tests.late import torch

_OPS = {"_allgather_base_": "all_gather", "allgather_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}


@contextmanager
def fake_group(ranks: int, rank: int = 0) -> Iterator[None]:
    """Run as *rank* of *ranks*."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    yield
    dist.destroy_process_group()


_COPIES = {"_foreach_copy_": "shards", "all_gather_copy_in": "shards", "split_with_sizes_copy": "weights", "chunk_cat": "gradients"}
"""FSDP2's kernels that copy, by what."""
_FLAT_COPIES = {"copy_": "shards", "cat": "gradients", "_to_copy": "divided", "div_": "divided"}
"""Those of FSDP1, whose parameters are one flat tensor."""


class Dispatched:
    """Sees each operator of its block: torch calls it through `_called`."""

    def __enter__(self) -> Self:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
            def __torch_dispatch__(_, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return self._called(func, args, kwargs or {})

        self._mode = Mode()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call *func*, and return what it makes."""
        raise NotImplementedError


class Recorder(Dispatched):
    """Writes down each collective of its block: what, among how many ranks, and bytes of a gather's output or a reduction's input.

    It adds up what FSDP copies as well: bytes that are read and written, by what they are.
    """

    def __init__(self, flat: bool = False) -> None:
        self.seen: list[tuple[str, int, float]] = []
        self.copied: dict[str, float] = {}
        self._kinds = _FLAT_COPIES if flat else _COPIES
        self._reducing = False
        """Whether gradients have been put together, and are not reduced yet."""

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call *func*, and write down what it sends or copies."""
        name = func._overloadpacket.__name__ if func.namespace == "c10d" else ""
        if name in _OPS:
            tensors = args[0] if name == "allreduce_" else args[:2]
            sizes = [sum(map(_nbytes, args[0][0]))] if name == "allgather_" else map(_nbytes, tensors)
            group = next(torch.distributed.ProcessGroup.unbox(each) for each in args if _is_group(each))
            self.seen.append((_OPS[name], group.size(), float(max(sizes))))
            self._reducing = False
        copies = func._overloadpacket.__name__
        made = func(*args, **kwargs)
        if copies in self._kinds:
            self._copy(self._kinds[copies], copies, args, kwargs, made)
        return made

    def _copy(self, what: str, kernel: str, args: Any, kwargs: Any, made: Any) -> None:
        """Add up the bytes that *kernel* reads and writes."""
        self._reducing |= kernel == "cat"
        if what == "divided" and not self._reducing:
            return  # inputs that are cast, shards behind a reduction
        if kernel == "all_gather_copy_in":
            pair = args[0], args[0]  # into a rank's part of what is gathered
        elif kernel in ("split_with_sizes_copy", "chunk_cat"):
            pair = args[0], kwargs["out"]
        elif kernel in ("cat", "_to_copy"):
            pair = args[0], made
        else:
            pair = args[0], args[1] if len(args) > 1 and nbytes_of(args[1]) else args[0]
        self.copied[what] = self.copied.get(what, 0.0) + sum(map(nbytes_of, pair))


def nbytes_of(tensors: Any) -> float:
    """Return the bytes of a tensor, or of several; 0 of anything else."""
    each = tensors if isinstance(tensors, list | tuple) else [tensors]
    return float(sum(_nbytes(tensor) for tensor in each if isinstance(tensor, torch.Tensor)))


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_group(value: Any) -> bool:
    try:
        return torch.distributed.ProcessGroup.unbox(value) is not None
    except (RuntimeError, TypeError):
        return False
