"""Oracle: torch's ``parallelize_module`` on the catalog's GPT-2 and on torchvision's ViT block sends what their tables' plans say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sim.extract import extract
from sim.extract.target import load_target
from sim.parallel.lower.layouts import program
from sim.parallel.program import Start, Work
from sim.parallel.shares import rank_share
from sim.parallel.split import split
from sim.spec.layer import Layer
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.parallel import Parallel
from sim.spec.tensor_plan import with_tensor_plan
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from tests.parallel.layouts import layout

torch = pytest.importorskip("torch")

from tests.parallel.recorder import fake_group  # noqa: E402
from tests.parallel.test_parallelize_module import Recorder, Sent, _pieces  # noqa: E402

GPT2 = "workloads/models/sources/gpt.py:Gpt2"
SIZES = {"width": 32, "depth": 2, "heads": 8, "vocabulary": 64, "positions": 16}
TOKENS = 16
RANKS = 8
GPT2_PLAN: Mapping[str, Any] = {
    "tokens": "rowwise", "positions": "sequence", "block.*.attention_norm": "sequence", "block.*.project": "colwise",
    "block.*.output": "rowwise", "block.*.norm": "sequence", "block.*.feed": "colwise", "block.*.feed_output": "rowwise",
    "norm": "sequence", "output": "colwise",
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with fake_group(RANKS):
        yield


def plan_of(name: str) -> Mapping[str, Any]:
    return load_part(Workload, name).model.tensor_plan


def with_plan(table: Model, plan: Mapping[str, Any]) -> Model:
    return table.model_copy(update={"tensor_plan": plan, "layers": with_tensor_plan(table.layers, plan)})


def recorded(net: Any, *inputs: Any) -> tuple[Sent, Sent]:
    """Return what the tensor group sends in forward and in backward of *net*."""
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel():
        with Recorder() as forward:
            output = net(*inputs)
            loss = output if output.ndim == 0 else output.sum()
        with Recorder() as backward:
            loss.backward()
    return forward.seen, backward.seen


def ours(table: Model, ranks: int, sequence: bool) -> tuple[Sent, Sent]:
    """Return the same of a layout of *table*."""
    made = layout(table, ranks, regathers=False, tensor=ranks, sequence=sequence, shard="none")
    forward: Sent = []
    backward: Sent = []
    for each in program(made, 0):
        if isinstance(each, Work):
            numbers = range(each.first, each.last + 1)
            for number in numbers if each.part == "F" else reversed(numbers):
                direction = "forward" if each.part == "F" else "backward"
                (forward if each.part == "F" else backward).extend(_pieces(made.units[number], direction, narrow=False))
        elif isinstance(each, Start) and each.axis == "tensor":
            backward += [(message.op, message.nbytes) for message in each.messages]
    return forward, backward


def styles(plan: Mapping[str, Any], net: Any, sequence: bool) -> dict[str, Any]:
    """Return torch's styles of *plan*'s words: streams are split by tokens with *sequence*, the head's scores by vocabulary."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    stream = Shard(1) if sequence else Replicate()
    made: dict[str, Any] = {}
    for path, word in plan.items():
        if word == "colwise" and path == "output":
            made[path] = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)
        elif word == "colwise":
            made[path] = ColwiseParallel(input_layouts=stream)
        elif word == "rowwise" and isinstance(net.get_submodule(path.replace("*", "0")), torch.nn.Embedding):
            made[path] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
        elif word == "rowwise":
            made[path] = RowwiseParallel(output_layouts=stream)
        elif word == "sequence" and sequence:
            made[path] = SequenceParallel(sequence_dim=0 if path == "positions" else 1, use_local_output=True)
    return made


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("ranks", "sequence"), [(2, False), (2, True), (8, True)])
def test_gpt2_sends_what_parallelize_module_sends(ranks: int, sequence: bool) -> None:
    """A whole plan of a small GPT-2, traced by ``sim extract``."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import parallelize_module

    plan = GPT2_PLAN
    net = load_target(GPT2)(**SIZES)
    for block in net.block:
        block.heads //= ranks
    if sequence:  # each rank looks up the positions of its own tokens
        net.positions.register_forward_pre_hook(lambda _, given: (given[0][: TOKENS // ranks],))
    parallelize_module(net, DeviceMesh("cpu", torch.arange(ranks)), styles(plan, net, sequence))
    net.output.weight = net.tokens.weight
    theirs = recorded(net, torch.zeros(1, TOKENS, dtype=torch.long))
    table = extract(GPT2, [f"input_ids={TOKENS}:int64"], "gpt2", SIZES)
    own = ours(with_plan(table, plan), ranks, sequence)
    assert own == theirs
    assert len(own[0]) == 1 + 4 // (1 if sequence else 2) * SIZES["depth"] + sequence + 3  # tokens, blocks, head, loss


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_feed_forward_of_vit_sends_what_parallelize_module_sends() -> None:
    """torch's ``nn.MultiheadAttention`` takes no plan, so that the catalog's has the feed-forward products alone."""
    vision = pytest.importorskip("torchvision").models.vision_transformer
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64, "num_classes": 10}
    net = vision.VisionTransformer(**sizes)
    plan = plan_of("vit_b_16")
    made = {path: {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}[word]() for path, word in plan.items()}
    parallelize_module(net, DeviceMesh("cpu", torch.arange(2)), made)
    theirs = recorded(net, torch.zeros(1, 3, 32, 32))
    table = extract("torchvision.models.vision_transformer:VisionTransformer", ["3x32x32"], "vit", sizes)
    assert ours(with_plan(table, plan), 2, False) == theirs
    assert [len(sent) for sent in theirs] == [2, 2]


PLANNED = ("llama-7b", "bert-base-seq128", "bert-large-seq384", "vit_b_16")


@pytest.mark.parametrize("name", PLANNED)
def test_parameters_and_products_of_all_ranks_add_up(name: str) -> None:
    """Conservation: split tensors of all ranks are the table's, whole ones are everywhere; one rank has the table as it was traced."""
    table = load_part(Workload, name).model
    traced = load_part(Model, name)
    bare = {"share": "", "tokens": 0}
    assert [layer.model_copy(update=bare) for layer in table.layers] == [layer.model_copy(update=bare) for layer in traced.layers]
    assert all(rank_share(layer, Parallel()) is layer for layer in table.layers)
    ranks = 4
    sequence = "sequence" in table.tensor_plan.values()
    pieces = [piece.layer for unit in split(table, Parallel(tensor=ranks, sequence=sequence)) for piece in unit.pieces]
    for full, part in zip(table.layers, pieces, strict=True):
        split_up = full.share in ("colwise", "rowwise", "vocabulary", "heads")
        most = 1.0  # of 50,257 columns the first of four ranks has 12,565, all have as many at most
        if full.share in ("colwise", "rowwise") and len(full.channels) == 2:
            size = full.channels[full.share == "colwise"]
            most = math.ceil(size / ranks) * ranks / size
            assert most == 1.0 or size == 50_257
        assert ranks * part.forward == pytest.approx(full.forward * (most if split_up else ranks))
        assert ranks * part.backward == pytest.approx(full.backward * (most if split_up else ranks))
        for own, all_ in zip(part.gradients, full.gradients, strict=True):
            bias = full.share == "rowwise" and len(full.gradients) == 2 and all_ == full.gradients[0]
            least = all_ if split_up and not bias else ranks * all_
            # a table of 50,257 rows has one that does not divide
            assert ranks * own == pytest.approx(least, abs=ranks * full.channels[0] if full.channels else ranks * all_ / max(full.rows, 1))
    assert sum(layer.share in ("colwise", "rowwise") for layer in table.layers) >= 24


def _row(name: str, op: str = "gemm", **fields: Any) -> Layer:
    sizes: dict[str, Any] = {"channels": (8, 8), "gradients": (64,)} if op == "gemm" else {}
    return Layer.model_validate({"name": name, "op": op} | sizes | fields)


ROWS = (_row("block.0.norm", "norm", gradients=(8,)), _row("block.0.up"), _row("block.0.gelu", "elementwise"), _row("block.0.down"))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"block.*.upp": "colwise"},
            r"no layer matches block\.\*\.upp; modules with weights are block\.0\.norm, block\.0\.up, block\.0\.down",
        ),
        ({"block.*.up": "columns"}, "'colwise', 'rowwise'"),
        ({"block.*.gelu": "colwise"}, r"block\.0\.gelu \(elementwise\) is not a matrix product with known input and output channels"),
        ({"block.*.norm": "vocabulary"}, r"block\.0\.norm \(norm\) has no table with known rows"),
        ({"block.*.up": "colwise"}, r"block\.0\.down \(gemm\) is between a colwise and a rowwise product and has weights"),
        ({"block.*.down": "colwise"}, "the last colwise product is followed by no rowwise product"),
        ({"block.*.norm": "sequence"}, r"block\.0\.up \(gemm\) has weights and receives tokens split over ranks"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(plan: dict[str, str], message: str) -> None:
    said = {"name": "toy", "parameters": 136, "input": "1 B", "layers": ROWS, "source": "test", "tensor_plan": plan}
    with pytest.raises(ValueError, match=message):
        Model.model_validate(said)


def test_what_cannot_be_divided_is_told() -> None:
    bert = load_part(Workload, "bert-base-seq128").model
    with pytest.raises(SpecError, match="5 ranks do not divide 12 attention heads; use 4 or 6"):
        split(bert, Parallel(tensor=5, sequence=False))
    with pytest.raises(SpecError, match="tensor_plan of bert-base-seq128 has no sequence layers"):
        split(bert, Parallel(tensor=2))
