"""Oracle: torch's ``parallelize_module`` with torchtitan's plan sends what the tensor plan of a decoder says, of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sim.parallel.lower.layouts import program
from sim.parallel.program import Start, Work
from sim.parallel.split import Unit, split
from sim.spec.decoder import decoder_layers
from sim.spec.parallel import Parallel
from sim.spec.transformer import Transformer
from tests.parallel.layouts import layout, model

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.parallel.decoders import Decoder  # noqa: E402
from tests.parallel.recorder import Recorder as Sharding  # noqa: E402
from tests.parallel.recorder import fake_group  # noqa: E402

HIDDEN, HEADS, INNER, VOCAB, TOKENS, BLOCKS = 64, 16, 128, 64, 32, 2
RANKS = 16
_OPS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "all_reduce": "all_reduce"}
Sent = list[tuple[str, float]]


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with fake_group(RANKS):
        yield


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


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"activation": "silu"},
    "llama": {"activation": "swiglu", "kv_heads": 8},
    "opt": {"activation": "relu", "norm": "layernorm", "bias": "all"},
    "qwen": {"activation": "swiglu", "kv_heads": 8, "bias": "qkv", "qk_norm": "head"},
    "gemma": {"activation": "geglu", "norms_per_layer": 4, "kv_heads": 8},
    "neox": {"activation": "gelu", "norm": "layernorm", "bias": "all", "parallel": True},
    "falcon": {"activation": "gelu", "norm": "layernorm", "parallel": True, "norms_per_layer": 1, "kv_heads": 8},
}
MESHES = ((1, 2), (1, 4), (1, 8), (2, 2), (2, 8), (4, 2), (4, 4))
"""Data-parallel ranks, which shard weights where there are several, and tensor-parallel ranks."""


def shape_of(name: str, sizes: Mapping[str, int] = {}) -> Transformer:
    usual = {"layers": BLOCKS, "hidden": HIDDEN, "heads": HEADS, "ffn": INNER, "vocab": VOCAB, "positions": "none"}
    return Transformer.model_validate(usual | SHAPES[name] | dict(sizes))


def parallelized(name: str, mesh: tuple[int, int], sequence: bool, sizes: Mapping[str, int] = {}) -> Any:
    """Return the decoder with torchtitan's plan (models/llama3/infra/parallelize.py), with or without sequence parallelism, then FSDP2."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    data, ranks = mesh
    both = DeviceMesh("cpu", torch.arange(data * ranks).reshape(mesh), mesh_dim_names=("data", "tensor"))
    net, stream = Decoder(shape_of(name, sizes)), Shard(1) if sequence else Replicate()
    ends: dict[str, Any] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    named = [path for path, _ in net.layers[0].named_modules()]
    columns = ("attention.q", "attention.k", "attention.v", "feed.gate", "feed.up")
    inner: dict[str, Any] = {path: ColwiseParallel() for path in columns if path in named}
    inner |= {path: RowwiseParallel(output_layouts=stream) for path in ("attention.output", "feed.down")}
    entering = {"input_layouts": (stream,), "desired_input_layouts": (Replicate(),)}
    inner |= {path: PrepareModuleInput(**entering) for path in ("attention", "feed")}
    if sequence:
        norms = [path for path in named if path.endswith("_norm") and "." not in path]
        inner |= {path: SequenceParallel(use_local_output=path.startswith("post_")) for path in norms}
        ends["norm"] = SequenceParallel()
    inner |= {
        path: SequenceParallel(sequence_dim=2, use_local_output=True)
        for path in named
        if path.startswith("attention.") and path.endswith("_norm")
    }
    parallelize_module(net, both["tensor"], ends)
    for block in net.layers:
        parallelize_module(block, both["tensor"], inner)
    if data > 1:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        keys: dict[str, Any] = {"mesh": both["data"], "mp_policy": policy}
        fully_shard(net.tokens, **keys)
        for block in net.layers:
            fully_shard(block, **keys)
        fully_shard([net.norm, net.head], reshard_after_forward=False, **keys)
        fully_shard(net, **keys)
    return net


def of_torch(name: str, mesh: tuple[int, int], sequence: bool) -> tuple[Sent, Sent, list[tuple[str, int, float]]]:
    """Return what the tensor group sends in forward and in backward of one sequence, and what FSDP sends."""
    from torch.distributed.tensor.parallel import loss_parallel

    net = parallelized(name, mesh, sequence)
    with loss_parallel():
        numbers = torch.zeros(1, TOKENS, dtype=torch.long)
        with Recorder() as forward, Sharding() as sharding:
            logits = net(numbers)
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), numbers.flatten())
        with Recorder() as backward, sharding:
            loss.backward()
    return forward.seen, backward.seen, sharding.seen


def ours(name: str, mesh: tuple[int, int], sequence: bool) -> tuple[Sent, Sent, list[tuple[str, int, float]]]:
    """Return the same of the decoder's table and the layout's program: activations in 16 bits beside FSDP, whose policy casts them."""
    data, ranks = mesh
    table = model(decoder_layers(shape_of(name), TOKENS))
    shard = "parameters" if data > 1 else "none"
    made = layout(table, data * ranks, regathers=False, tensor=ranks, sequence=sequence, shard=shard)
    seen: dict[str, Sent] = {"forward": [], "backward": []}
    for each in program(made, 0):
        if isinstance(each, Work):
            numbers = range(each.first, each.last + 1)
            for number in numbers if each.part == "F" else reversed(numbers):
                direction = "forward" if each.part == "F" else "backward"
                seen[direction] += _pieces(made.units[number], direction, data > 1)
        elif isinstance(each, Start) and each.axis == "tensor":
            seen["backward"] += [(message.op, message.nbytes) for message in each.messages]
    among_data = [each for each in program(made, 0) if isinstance(each, Start) and each.axis == "shard"]
    return seen["forward"], seen["backward"], [(each.op, data, each.nbytes) for each in among_data]


def _pieces(unit: Unit, direction: str, narrow: bool) -> Sent:
    chosen = unit.pieces if direction == "forward" else unit.pieces[::-1]
    return [
        (each.op, each.nbytes * (0.5 if narrow and piece.layer.op != "loss" else 1.0))
        for piece in chosen
        for each in getattr(piece, direction)
    ]


def _compared(name: str, mesh: tuple[int, int], sequence: bool) -> list[str]:
    wrong = []
    theirs, own = of_torch(name, mesh, sequence), ours(name, mesh, sequence)
    for direction, his, mine in zip(("forward", "backward", "FSDP"), theirs, own, strict=True):
        if his != mine:
            at = next((at for at, (one, other) in enumerate(zip(his, mine, strict=False)) if one != other), -1)
            case = f"{name} on {mesh}, sequence {sequence}, {direction}"
            wrong.append(f"{case}: {len(mine)}, {len(his)}; operation {at}: {mine[at : at + 3]} in place of {his[at : at + 3]}")
    return wrong


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_sends_what_parallelize_module_sends() -> None:
    """Each model on one mesh, alone and beside FSDP, with and without sequence parallelism in turn."""
    cases = [(name, MESHES[(3 * number) % len(MESHES)], number % 2 == 0) for number, name in enumerate(SHAPES)]
    wrong = [text for case in cases for text in _compared(*case)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_sends_what_parallelize_module_sends_on_every_mesh() -> None:
    wrong = [text for name in SHAPES for mesh in MESHES for sequence in (True, False) for text in _compared(name, mesh, sequence)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("ranks", "sizes"), [(4, {"vocab": 67}), (8, {"vocab": 97}), (8, {"vocab": 50_257})])
def test_the_first_rank_holds_what_torch_gives_it_of_uneven_vocabularies(ranks: int, sizes: dict[str, int]) -> None:
    """Oracle: shards of torch's DTensor on rank 0, which has the most."""
    held = sum(parameter.to_local().numel() for parameter in parallelized("llama", (1, ranks), True, sizes).parameters())
    table = model(decoder_layers(shape_of("llama", sizes), TOKENS))
    pieces = [piece.layer for unit in split(table, Parallel(tensor=ranks)) for piece in unit.pieces]
    assert sum(sum(layer.gradients) for layer in pieces) == held
    rows = {layer.name: layer.rows for layer in pieces}
    assert rows["tokens"] == -(-sizes["vocab"] // ranks)
