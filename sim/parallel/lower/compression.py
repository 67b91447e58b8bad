"""What does one bucket weigh on the wire, and what does making it lighter cost the GPU?

As it is: one all-reduce of its bytes. ``wire_dtype``: fewer bytes an element, and a cast before and after (torch
ddp_comm_hooks/default_hooks.py). ``top_k`` with error feedback (Lin et al., Deep Gradient Compression, ICLR 2018): the values and the
4-byte places of a share of the elements, gathered from all ranks. ``power_sgd`` (Vogels et al., NeurIPS 2019; torch
ddp_comm_hooks/powerSGD_hook.py): of each n x m matrix of gradients M the factors P = MQ (n x r), made orthogonal, and Q = M'P (m x r),
one all-reduce each; vectors, and matrices that would not shrink to less than half, travel whole. Sparse: the rows of an embedding
touched by any sample, and their 8-byte numbers, gathered from all ranks and added up.

Limits: gathered parts of all ranks have the same size; rows are counted as if no sample touched a row twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.parallel.program import Message
from sim.spec.stack import Stack

_INDEX = 4.0
"""Bytes of an element's place: 32 bits suffice for a bucket."""
_ROW_NUMBER = 8.0
"""Bytes of a row's number: torch's sparse tensors hold int64."""
_SELECTION_PASSES = 5.0
"""Reads of all elements to find the largest: four digits of 8 bits, and a gathering (aten/native/cuda/TensorTopK.cu)."""
_LEAST_GAIN = 2.0
"""min_compression_rate of powerSGD_hook.py."""
_FEEDBACK_PASSES = 3.0
"""Adding last step's error to a gradient, or storing this step's: two reads and a write."""


class Tensor(NamedTuple):
    """A gradient tensor as a matrix: its elements and its rows (1 for a vector), and how many rows a step touches if it is sparse."""

    elements: float
    rows: float = 1.0
    touched: float | None = None


class Payload(NamedTuple):
    """What a bucket sends, *values* gradient elements a rank, and the GPU's work: bytes of memory before and after, FLOP, kernels."""

    messages: tuple[Message, ...]
    values: float
    before: float = 0.0
    after: float = 0.0
    flop: float = 0.0
    kernels: float = 0.0


def payload(tensors: Sequence[Tensor], element: float, width: float, stack: Stack, ranks: int) -> Payload:
    """Return what a bucket of *tensors*, *element* bytes a gradient, sends between *ranks*, *width* bytes each."""
    if tensors[0].touched is not None:
        sent = _rows(tensors[0], width, ranks)
    elif stack.compression is None:
        elements = sum(tensor.elements for tensor in tensors)
        sent = Payload((Message("all_reduce", width * elements),), elements)
    elif stack.compression.method == "top_k":
        sent = _top_k(sum(tensor.elements for tensor in tensors), element, width, stack.compression.density or 0.0, ranks)
    else:
        sent = _power_sgd(tensors, element, width, stack.compression.rank or 1)
    cast = sent.values * (element + width) if width != element else 0.0
    return sent._replace(before=sent.before + cast, after=sent.after + cast)


def _rows(tensor: Tensor, width: float, ranks: int) -> Payload:
    touched = tensor.touched or 0.0
    values = touched * tensor.elements / tensor.rows
    messages = (Message("all_gather", ranks * values * width), Message("all_gather", ranks * touched * _ROW_NUMBER))
    return Payload(messages, values, after=3.0 * ranks * values * width)  # each row is read, and added to what is there


def _top_k(elements: float, element: float, width: float, density: float, ranks: int) -> Payload:
    sent = density * elements
    messages = (Message("all_gather", ranks * sent * width), Message("all_gather", ranks * sent * _INDEX))
    before = elements * element * (_FEEDBACK_PASSES + _SELECTION_PASSES)
    after = elements * element + ranks * sent * (_INDEX + width + 2 * element)  # zeroed, then each value read and added in its place
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
