"""Oracle: torch's ``parallelize_module`` with torchtitan's plan sends what the tensor plan of a decoder says, of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sim.parallel.split import Unit, split
from sim.spec.decoder import decoder_layers
from sim.spec.transformer import Transformer
from tests.parallel.layouts import model, parallel

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

HIDDEN, HEADS, INNER, VOCAB, TOKENS, BLOCKS = 64, 8, 128, 64, 32, 2
_OPS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "all_reduce": "all_reduce"}
Sent = list[tuple[str, float]]


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


class Recorder(TorchDispatchMode):
    """Writes down each collective: what, and bytes of a gather's output or a reduction's input."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Sent = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # what it does with local tensors comes here again
        name = func._overloadpacket.__name__
        if func.namespace == "_c10d_functional" and name in _OPS:
            width = args[1] if name == "all_gather_into_tensor" else 1
            self.seen.append((_OPS[name], float(width * args[0].numel() * args[0].element_size())))
        return func(*args, **(kwargs or {}))


class Attention(nn.Module):
    """One fused product for q, k and v of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.output = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, HIDDEN // HEADS)).permute(3, 0, 2, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(heads.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER, bias=False), nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.silu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.feed = Attention(), Feed()

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.ffn_norm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.tokens(x)
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x))


def parallelized(ranks: int, sequence: bool) -> Decoder:
    """Return the decoder with torchtitan's plan (models/llama3/infra/parallelize.py), with or without sequence parallelism."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = DeviceMesh("cpu", torch.arange(ranks))
    net, stream = Decoder(), Shard(1) if sequence else Replicate()
    ends: dict[str, Any] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    inner: dict[str, Any] = {"attention.qkv": ColwiseParallel(), "feed.up": ColwiseParallel()}
    inner |= {name: RowwiseParallel(output_layouts=stream) for name in ("attention.output", "feed.down")}
    if sequence:
        gathered = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        inner |= {name: PrepareModuleInput(**gathered) for name in ("attention", "feed")}
        inner |= {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}
        ends["norm"] = SequenceParallel()
    parallelize_module(net, mesh, ends)
    for block in net.layers:
        parallelize_module(block, mesh, inner)
    return net


def of_torch(ranks: int, sequence: bool) -> tuple[Sent, Sent]:
    """Return what forward and backward of one sequence send."""
    from torch.distributed.tensor.parallel import loss_parallel

    net = parallelized(ranks, sequence)
    with loss_parallel():
        numbers = torch.zeros(1, TOKENS, dtype=torch.long)
        with Recorder() as forward:
            loss = nn.functional.cross_entropy(net(numbers).flatten(0, 1), numbers.flatten())
        with Recorder() as backward:
            loss.backward()
    return forward.seen, backward.seen


def ours(ranks: int, sequence: bool) -> tuple[Sent, Sent]:
    shape = {"layers": BLOCKS, "hidden": HIDDEN, "heads": HEADS, "ffn": INNER, "vocab": VOCAB, "activation": "silu", "positions": "none"}
    table = model(decoder_layers(Transformer.model_validate(shape), TOKENS))
    units = split(table, parallel(tensor=ranks, sequence=sequence), regathers=False)

    def pieces(unit: Unit, direction: str) -> Sent:
        chosen = unit.pieces if direction == "forward" else unit.pieces[::-1]
        return [(each.op, each.nbytes) for piece in chosen for each in getattr(piece, direction)]

    forward = [each for unit in units for each in pieces(unit, "forward")]
    return forward, [each for unit in reversed(units) for each in pieces(unit, "backward")]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_sends_what_parallelize_module_sends() -> None:
    wrong = []
    for ranks, sequence in ((2, True), (4, False), (8, True)):
        for direction, theirs, own in zip(("forward", "backward"), of_torch(ranks, sequence), ours(ranks, sequence), strict=True):
            if theirs != own:
                wrong.append(f"{ranks} ranks, sequence {sequence}, {direction}: {own} in place of {theirs}")
    assert not wrong, "\n".join(wrong)
