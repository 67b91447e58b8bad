"""What a bucket weighs on the wire, and what that costs the GPU: closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.lower.compression import Tensor, payload
from sim.parallel.program import Message
from tests.harness import toy_workload

tensors = st.lists(st.floats(1, 1e8).map(Tensor), min_size=1, max_size=20)


def own(**keys):
    return toy_workload(stack=keys).training.stack.exchange.compression


def compression(method, **keys):
    return {"compression": {"method": method, "source": "test"} | keys}


@given(tensors, st.sampled_from([2.0, 4.0]), st.integers(2, 512))
def test_plain_gradients_travel_as_they_are(gradients, element, ranks):
    """Conservation: one all-reduce of every byte, and no work."""
    (message,) = payload(gradients, element, element, own(), ranks).messages
    assert message == Message("all_reduce", pytest.approx(element * sum(tensor.elements for tensor in gradients)))
    assert payload(gradients, element, element, own(), ranks)[2:] == (0.0, 0.0, 0.0, 0.0)


@given(tensors)
def test_a_narrow_wire_halves_the_bytes_for_two_passes(gradients):
    """Closed form: half the bytes; each way the whole gradients and their half are read and written."""
    full, half = (payload(gradients, 4.0, width, own(), 8) for width in (4.0, 2.0))
    nbytes = full.messages[0].nbytes
    assert half.messages == (Message("all_reduce", pytest.approx(nbytes / 2)),)
    assert (half.bytes_before, half.bytes_after) == (pytest.approx(1.5 * nbytes),) * 2


def test_top_k_gathers_values_and_places():
    """Closed form: a hundredth of 1000 elements from each of 4 ranks, four bytes a value and four a place."""
    compressed = payload([Tensor(600), Tensor(400)], 4.0, 4.0, own(**compression("top_k", density=0.01)), 4)
    assert compressed.messages == (Message("all_gather", 4 * 10 * 4), Message("all_gather", 4 * 10 * 4))
    assert compressed.bytes_before == 8 * 4000  # error fed back in 3 passes, 5 to select
    assert compressed.bytes_after == 4000 + 4 * 10 * (4 + 4 + 8)
    narrow = payload([Tensor(1000)], 4.0, 2.0, own(**compression("top_k", density=0.01)), 4)
    assert [message.nbytes for message in narrow.messages] == [4 * 10 * 2, 4 * 10 * 4]  # places are not cast


def test_power_sgd_sends_two_factors_of_each_matrix():
    """Closed form (powerSGD_hook.py): a 100 x 50 matrix at rank 2 is 200 and 100 elements; a vector travels whole."""
    compressed = payload([Tensor(5000, 100), Tensor(100)], 4.0, 4.0, own(**compression("power_sgd", rank=2)), 16)
    assert compressed.messages == tuple(Message("all_reduce", 4.0 * elements) for elements in (100, 200, 100))
    assert compressed.flop == 6 * 2 * 5000 + 2 * 2 * 200
    assert compressed.kernels == 3 * 2
    assert (compressed.bytes_before, compressed.bytes_after) == (5 * 20000, 4 * 20000)


def test_power_sgd_leaves_small_matrices_whole():
    """powerSGD_hook.py: min_compression_rate 2, so a 10 x 10 matrix shrinks at rank 2 (40 of 100 elements), not at 3 (60)."""
    shrunk, uncompressed = (payload([Tensor(100, 10)], 4.0, 4.0, own(**compression("power_sgd", rank=rank)), 2) for rank in (2, 3))
    assert [message.nbytes for message in shrunk.messages] == [80, 80]
    assert uncompressed.messages == (Message("all_reduce", 400),)
    assert uncompressed.flop == uncompressed.bytes_before == 0


def test_rows_of_an_embedding_are_gathered():
    """Closed form: 30 touched rows of 8 elements from each of 4 ranks, and their 8-byte numbers."""
    compressed = payload([Tensor(8000, 1000, 30)], 4.0, 4.0, own(sparse_embeddings=True), 4)
    assert compressed.messages == (Message("all_gather", 4 * 30 * 8 * 4), Message("all_gather", 4 * 30 * 8))
    assert compressed.bytes_after == 3 * 4 * 30 * 8 * 4
