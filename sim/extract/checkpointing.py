"""Which parts of a model does its own code recompute in backward? Each call of ``torch.utils.checkpoint.checkpoint`` is one segment.

During tracing, both checkpoint implementations of torch (reentrant and non-reentrant) run their function once, as if it were not
checkpointed, inside a context that numbers the segment. So the layer table has the cost of every layer, the bytes that it would save, and
the segment that it belongs to. The cost and the savings of recomputation follow from these. Limits: selective checkpointing counts as full
checkpointing.
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
