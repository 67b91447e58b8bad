"""Does the play of a ring's blocks repeat itself as its reading by hand says?"""

from __future__ import annotations

import pytest

from tests.oracle.collectives.blocks import SLICES, seconds_of_loop


@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize(("network", "host"), [(5.5, 9.7), (1.0, 9.7), (1e9, 9.7)])
def test_the_network_waits_for_the_last_chunk_of_a_single_gpu(nodes: int, network: float, host: float) -> None:
    """By hand: the next loop's first slice follows the last one's read, so reading one slice and writing another are in nobody's shade."""
    bare = 2 * (nodes - 1) * SLICES / min(network, host)
    assert seconds_of_loop(nodes, 1, network, host, 40.0) == pytest.approx(bare + SLICES / host, rel=1e-6)


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 4), (2, 8), (4, 4)])
def test_buffers_hide_the_last_chunk_if_the_first_comes_from_another_gpu(nodes: int, gpus: int) -> None:
    """By hand: whoever sends to the network receives over NVLink, and is ahead by the places of its buffer."""
    assert seconds_of_loop(nodes, gpus, 1.0, 9.7, 40.0) == pytest.approx(2 * (nodes * gpus - 1) * SLICES, rel=1e-6)
