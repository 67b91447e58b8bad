"""What torch sends under a fake process group, which takes any number of ranks in one process and moves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OPS = {"_allgather_base_": "all_gather", "allgather_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}


@contextmanager
def fake_group(ranks: int, rank: int = 0) -> Iterator[None]:
    """Run as *rank* of *ranks*."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    yield
    dist.destroy_process_group()


class Recorder(TorchDispatchMode):
    """Writes down each collective: what, among how many ranks, and bytes of a gather's output or a reduction's input."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__ if func.namespace == "c10d" else ""
        if name in _OPS:
            tensors = args[0] if name == "allreduce_" else args[:2]
            sizes = [sum(map(_nbytes, args[0][0]))] if name == "allgather_" else map(_nbytes, tensors)
            group = next(torch.distributed.ProcessGroup.unbox(each) for each in args if _is_group(each))
            self.seen.append((_OPS[name], group.size(), float(max(sizes))))
        return func(*args, **(kwargs or {}))


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_group(value: Any) -> bool:
    try:
        return torch.distributed.ProcessGroup.unbox(value) is not None
    except (RuntimeError, TypeError):
        return False
