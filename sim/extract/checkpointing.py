"""Which part of a model does its code recompute in backward? What runs inside ``torch.utils.checkpoint.checkpoint`` is one segment.

While a model is traced, torch's two ways to checkpoint (with and without re-entering autograd) run their function once, as if it were not
checkpointed, inside a context that numbers the segment. So the layer table holds what every layer costs and would save, and which layers
form a segment; what recomputing costs and spares follows from that. Limits: selective checkpointing counts as whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from torch.utils import checkpoint


@contextmanager
def checkpointing(segment: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Run checkpointed functions inside the context that *segment* returns."""

    def unentered(*_: Any, **__: Any) -> Iterator[None]:
        with segment():
            yield

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], _: bool, *arguments: Any) -> Any:
            with segment():
                return function(*arguments)

    with (
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", unentered),
        patch.object(checkpoint, "CheckpointFunction", Reentrant),
    ):
        yield
