"""How many bytes does one bucket send, and how much GPU work does compression cost?

Uncompressed: one all-reduce of its bytes. ``wire_dtype``: fewer bytes per element, and a cast before and after (torch
ddp_comm_hooks/default_hooks.py). ``top_k`` with error feedback (Lin et al., Deep Gradient Compression, ICLR 2018): the values and 4-byte
indices of a share of the elements, gathered from all ranks. ``power_sgd`` (Vogels et al., NeurIPS 2019; torch
ddp_comm_hooks/powerSGD_hook.py): for each n x m gradient matrix M, the factors P = MQ (n x r), orthogonalized, and Q = M'P (m x r), with
one all-reduce each; vectors, and matrices that would not shrink to less than half, are sent whole. Sparse: the embedding rows touched
by any sample and their 8-byte indices, gathered from all ranks and summed.

Limits: gathered parts of all ranks have the same size; rows are counted as if no row were touched twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.parallel.program import Message
from sim.spec.stack import Compression

_INDEX = 4.0
"""Bytes of an element's index: 32 bits suffice for a bucket."""
_ROW_NUMBER = 8.0
"""Bytes of a row's index: torch's sparse tensors use int64."""
_SELECTION_PASSES = 5.0
"""Reads of all elements to find the largest: one for each of four 8-bit digits, and one to gather (aten/native/cuda/TensorTopK.cu)."""
_LEAST_GAIN = 2.0
"""min_compression_rate of powerSGD_hook.py."""
_FEEDBACK_PASSES = 3.0
"""Memory passes to add the last step's error to a gradient, or to store this step's error: two reads and one write."""


class Tensor(NamedTuple):
    """A gradient tensor as a matrix: its elements, its rows (1 for a vector), and the rows *touched_rows* in a step if it is sparse."""

    elements: float
    rows: float = 1.0
    touched_rows: float | None = None


class Payload(NamedTuple):
    """The messages of a bucket with *values* gradient elements per rank, and the GPU work: memory bytes before and after, FLOP, kernels."""

    messages: tuple[Message, ...]
    values: float
    bytes_before: float = 0.0
    bytes_after: float = 0.0
    flop: float = 0.0
    kernels: float = 0.0


def payload(tensors: Sequence[Tensor], element: float, width: float, compression: Compression | None, ranks: int) -> Payload:
    """Return the payload of a bucket of *tensors* between *ranks*: *element* bytes per gradient in memory, *width* bytes when sent."""
    if tensors[0].touched_rows is not None:
        sent = _rows(tensors[0], width, ranks)
    elif compression is None:
        elements = sum(tensor.elements for tensor in tensors)
        sent = Payload((Message("all_reduce", width * elements),), elements)
    elif compression.method == "top_k":
        sent = _top_k(sum(tensor.elements for tensor in tensors), element, width, compression.density or 0.0, ranks)
    else:
        sent = _power_sgd(tensors, element, width, compression.rank or 1)
    cast = sent.values * (element + width) if width != element else 0.0
    return sent._replace(bytes_before=sent.bytes_before + cast, bytes_after=sent.bytes_after + cast)


def _rows(tensor: Tensor, width: float, ranks: int) -> Payload:
    touched = tensor.touched_rows or 0.0
    values = touched * tensor.elements / tensor.rows
    messages = (Message("all_gather", ranks * values * width), Message("all_gather", ranks * touched * _ROW_NUMBER))
    return Payload(messages, values, bytes_after=3.0 * ranks * values * width)  # each row is read and added to the existing value


def _top_k(elements: float, element: float, width: float, density: float, ranks: int) -> Payload:
    sent = density * elements
    messages = (Message("all_gather", ranks * sent * width), Message("all_gather", ranks * sent * _INDEX))
    before = elements * element * (_FEEDBACK_PASSES + _SELECTION_PASSES)
    after = elements * element + ranks * sent * (_INDEX + width + 2 * element)  # zeroed, then each value is read and added at its index
    return Payload(messages, sent, before, after)


def _power_sgd(tensors: Sequence[Tensor], element: float, width: float, rank: int) -> Payload:
    shrunk = [tensor for tensor in tensors if _shrinks(tensor, rank)]
    matrices = sum(tensor.elements for tensor in shrunk)
    vectors = sum(tensor.elements for tensor in tensors) - matrices
    left = rank * sum(tensor.rows for tensor in shrunk)
    right = rank * sum(tensor.elements / tensor.rows for tensor in shrunk)
    messages = tuple(Message("all_reduce", width * part) for part in (vectors, left, right) if part)
    before = matrices * element * (_FEEDBACK_PASSES + 2.0)  # error added; M read for P and for Q
    after = matrices * element * (1.0 + _FEEDBACK_PASSES)  # PQ' written, error stored
    flop = 6.0 * rank * matrices + 2.0 * rank * left  # three products with M, Gram-Schmidt on P
    return Payload(messages, vectors + left + right, before, after, flop, 3.0 * rank * len(shrunk))  # three kernels a column of each P


def _shrinks(tensor: Tensor, rank: int) -> bool:
    rows, columns = tensor.rows, tensor.elements / tensor.rows
    return rows > 1 and tensor.elements > _LEAST_GAIN * rank * (rows + columns)
