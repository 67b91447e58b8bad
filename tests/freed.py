"""Is a simulation freed as soon as it ends? Weak references to its networks tell."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sim.cluster.network import Network


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Assert that each network made inside the block is gone at its end, without a garbage collection: no circle of references keeps it."""
    networks: list[weakref.ref[Network]] = []
    initialize, collects = Network.__init__, gc.isenabled()

    def made(network: Network, *arguments: Any) -> None:
        initialize(network, *arguments)
        networks.append(weakref.ref(network))

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Network, "__init__", made)
            yield
        assert networks and [network() for network in networks] == [None] * len(networks)
    finally:
        if collects:
            gc.enable()
