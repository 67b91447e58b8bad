"""Oracle: torch runs the operators of decoders' code one by one; bytes that they move over those of the layer table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.spec.decoder import decoder_layers
from sim.spec.layer import Layer
from sim.spec.library import load_part
from sim.spec.stack import Stack
from sim.spec.transformer import Transformer
from tests.late import torch

pytestmark = pytest.mark.needs("torch")
TOKENS, HEADS, HEAD = 64, 32, 64
SHAPE = Transformer(layers=1, hidden=HEADS * HEAD, heads=HEADS, ffn=512, vocab=128)


def bytes_moved(work: Callable[[], None]) -> float:
    """Return the bytes that the operators of *work* read and write; views move none."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counted(TorchDispatchMode):  # type: ignore[misc]
        moved = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            read, written = ([each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)] for tree in ((args, kwargs), out))
            if not {each.untyped_storage().data_ptr() for each in written} & {each.untyped_storage().data_ptr() for each in read}:
                self.moved += sum(each.numel() * each.element_size() for each in (*read, *written))
            return out

    mode = Counted()
    with mode:
        work()
    return float(mode.moved)


def rotated() -> None:
    """Rotate queries and keys as complex numbers in 32 bits (torchtitan models/llama3/model/model.py, apply_rotary_emb)."""
    turns = torch.polar(torch.ones(TOKENS, 1, HEAD // 2), torch.rand(TOKENS, 1, HEAD // 2))
    for _ in range(2):
        entering = torch.rand(TOKENS, HEADS, HEAD, dtype=torch.bfloat16).requires_grad_()
        pairs = torch.view_as_complex(entering.float().reshape(TOKENS, HEADS, HEAD // 2, 2))
        turned = torch.view_as_real(pairs * turns).flatten(2).type_as(entering)
        turned.backward(entering.detach())


def rotated_by_halves() -> None:
    """Rotate queries and keys in 16 bits (transformers models/llama/modeling_llama.py, apply_rotary_pos_emb)."""
    cosines, sines = (torch.rand(1, TOKENS, HEAD, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(2):
        entering = torch.rand(HEADS, TOKENS, HEAD, dtype=torch.bfloat16).requires_grad_()
        first, second = entering[..., : HEAD // 2], entering[..., HEAD // 2 :]
        turned = entering * cosines + torch.cat((-second, first), dim=-1) * sines
        turned.backward(entering.detach())


def gated() -> None:
    """Multiply up with the activated gate (the same file, FeedForward)."""
    gate, up = (torch.rand(TOKENS, 512, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    (torch.nn.functional.silu(gate) * up).backward(up.detach())


def table_row(name: str) -> Layer:
    return next(layer for layer in decoder_layers(SHAPE, TOKENS) if layer.name.endswith(name))


@pytest.mark.parametrize(
    ("stack", "name", "work", "made"),
    [
        *((f"torchtitan-{version}-eager", "attention.rope", rotated, 0.05) for version in ("2.x", "0.2")),
        *((f"torchtitan-{version}-eager", "feed.activation", gated, 0.0) for version in ("2.x", "0.2")),
        *((stack, "attention.rope", rotated_by_halves, 0.05) for stack in ("hf-fsdp1", "hf-deepspeed")),
        ("hf-fsdp1", "feed.activation", gated, 0.0),
    ],
)
def test_operators_move_as_many_bytes_as_the_stack_says(stack: str, name: str, work: Callable[[], None], made: float) -> None:
    """The table's bytes are for four an element; *made*: share of the bytes that are not of the operators, such as the angles."""
    row, kernels = table_row(name), load_part(Stack, stack).kernels
    setup = bytes_moved(lambda: inputs(name, work))
    counted = (bytes_moved(work) - setup) / ((row.read + row.write + row.backward_traffic) / 2)
    assert counted == pytest.approx(kernels.operator_traffic[name.rpartition(".")[2]], rel=0.02 + made)


def inputs(name: str, work: Callable[[], None]) -> None:
    """Make the tensors that the operators of *name* start with."""
    if name == "feed.activation":
        torch.rand(TOKENS, 512, dtype=torch.bfloat16), torch.rand(TOKENS, 512, dtype=torch.bfloat16)
        return
    if work is rotated:
        torch.polar(torch.ones(TOKENS, 1, HEAD // 2), torch.rand(TOKENS, 1, HEAD // 2))
    for _ in range(2):
        torch.rand(TOKENS, HEADS, HEAD, dtype=torch.bfloat16)
