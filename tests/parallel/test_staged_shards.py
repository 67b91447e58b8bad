"""Oracle: torch's own schedules over stages that ``fully_shard`` wraps send the same shards in the same order, of the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest

from sim.parallel.schedule import position
from sim.spec.model import Model
from sim.spec.parallel import Schedule
from tests.parallel.layouts import block_model, layout, sent
from tests.parallel.test_schedule import TORCH

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.parallel.recorder import Recorder, fake_group  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
WIDTH, TOKENS, VOCABULARY = 16, 2, 32
Operation = tuple[str, int, float]


# --- a decoder whose blocks hold modules, of which a stage keeps a part --------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.output(nn.functional.scaled_dot_product_attention(q, k, v))


class Block(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Body(nn.Module):
    """Numbered blocks, some of which are on this stage."""

    def __init__(self, inner: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Block(each) for number, each in enumerate(inner)})

    def forward(self, x: Any) -> Any:
        for block in self.layers.values():
            x = block(x)
        return x


class Net(nn.Module):
    def __init__(self, inner: Sequence[int]) -> None:
        super().__init__()
        self.tokens: Any = nn.Embedding(VOCABULARY, WIDTH)
        self.body = Body(inner)
        self.norm: Any = nn.LayerNorm(WIDTH)
        self.head: Any = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.body(self.tokens(x) if self.tokens is not None else x)
        return self.head(self.norm(x)) if self.head is not None else x


INNER = (32, 64, 16, 48, 32, 80, 96, 16)


def _table() -> Model:
    """Return the layer table of the whole net: a row for each module that holds parameters."""
    sizes = {}
    for name, module in Net(INNER).named_modules():
        if own := list(module.parameters(recurse=False)):
            sizes[name] = [parameter.numel() for parameter in own]
    return block_model(sizes)


def _part(blocks: Sequence[int], first: bool, last: bool) -> Net:
    """Return what a stage with these *blocks* keeps, as torchtitan's ``pipeline_module_split`` prunes the whole model."""
    part = Net(INNER)
    for name in list(part.body.layers):
        if int(name) not in blocks:
            del part.body.layers[name]
    if not first:
        part.tokens = None
    if not last:
        part.norm = part.head = None
    return part


# --- what torch sends ----------------------------------------------------------------------------------------------------


def _stage(part: Net, number: int, count: int, mesh: Any, case: Mapping[str, Any]) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.pipelining import PipelineStage

    wanted = case["reshard"] if case["reshard"] is not None else False  # as torchtitan where there are stages
    shards = mesh["replicate", "shard"] if case["replicate"] > 1 else mesh["shard"]
    keys: dict[str, Any] = {"mesh": shards, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for path, module in reversed(list(part.named_modules())):
        if any(_matched(pattern, path) for pattern in case["wrap"]):
            fully_shard(module, reshard_after_forward=wanted, **keys)
    fully_shard(part, reshard_after_forward=wanted is True, **keys)
    hidden = torch.empty(1, TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    entering = torch.zeros(1, TOKENS, dtype=torch.long) if number == 0 else hidden
    leaving = torch.empty(1, TOKENS, VOCABULARY, dtype=torch.bfloat16) if number == count - 1 else hidden
    stage = PipelineStage(
        part, number, count, torch.device("cpu"), input_args=entering, output_args=leaving, group=mesh["pipeline"].get_group()
    )
    agreed = lambda *given, **named: torch.ones(1, dtype=torch.int32)  # noqa: E731
    stage._warmup_forward_vote = stage._warmup_backward_result = agreed  # type: ignore[method-assign,assignment]
    return stage


def _matched(pattern: str, path: str) -> bool:
    return path.count(".") == pattern.count(".") and fnmatchcase(path, pattern)


def _of_torch(case: Mapping[str, Any], stage: int, chunks: Sequence[Sequence[int]]) -> list[tuple[str, int, float]]:
    """Return what one rank of *stage* sends, whose *chunks* hold these blocks, by number of the chunk in the model."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining import schedules

    pipeline, each = case["pipeline"], case["replicate"] * case["shards"]
    with fake_group(pipeline * each, rank=stage * each):
        ranks = torch.arange(pipeline * each).reshape(pipeline, case["replicate"], case["shards"])
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("pipeline", "replicate", "shard"))
        count = len(chunks)
        own = [position(case["schedule"], pipeline, stage, local) for local in range(count // pipeline)]
        stages = [_stage(_part(chunks[number], number == 0, number == count - 1), number, count, mesh, case) for number in own]
        loss: Any = lambda scores, targets: scores.float().sum()  # noqa: E731
        many = case["micro_batches"]
        build = getattr(schedules, TORCH[case["schedule"]])
        schedule: Any = build(stages[0] if case["schedule"] in ("gpipe", "1f1b") else stages, many, loss_fn=loss)
        numbers = torch.zeros(many, TOKENS, dtype=torch.long)
        ends = count - 1 in own
        with Recorder() as recorder:
            schedule.step(*((numbers,) if stage == 0 else ()), target=numbers if ends else None, **({"losses": []} if ends else {}))
    return recorder.seen


# --- the comparison ------------------------------------------------------------------------------------------------------

PATTERNS: tuple[tuple[str, ...], ...] = (
    ("body.layers.*",),
    ("tokens", "body.layers.*", "head"),
    ("body.layers.*", "body.layers.*.attention"),
    ("body", "body.layers.*.up", "body.layers.*.attention"),
    ("body.layers.[024]", "body.layers.*.attention.*"),
)

SCHEDULES: tuple[tuple[Schedule, int, int, int], ...] = (
    ("1f1b", 2, 1, 4), ("gpipe", 2, 1, 3), ("1f1b", 3, 1, 3), ("zb_h1", 2, 1, 3), ("interleaved_1f1b", 2, 2, 4),
    ("interleaved_1f1b", 2, 4, 2), ("zbv", 2, 2, 3), ("dualpipev", 2, 2, 4),
)  # fmt: skip
"""Schedule, stages, chunks on each, micro-batches."""


def _cases(every: int) -> Iterator[dict[str, Any]]:
    """Yield every pattern under some of all schedules, one of *every*, freed after forward or not, among replicas or not.

    Where backward is cut in halves and weights are freed, torch loses gradients: `test_freed_weights_lose_their_gradients_in_torch`.
    """
    for number, wrap in enumerate(PATTERNS):
        for index, (schedule, pipeline, virtual, many) in enumerate(SCHEDULES):
            reshard = None if schedule.startswith("zb") or (index + number) % 2 else True
            shared = {"replicate": 1 + (index == 1), "shards": (2, 4)[number % 2], "reshard": reshard, "virtual": virtual}
            if (index + number) % every == 0:
                yield {"wrap": wrap, "schedule": schedule, "pipeline": pipeline, "micro_batches": many, **shared}


def _wrong(case: Mapping[str, Any], compared: Callable[[list[Operation]], list[Operation]] = list) -> list[str]:
    """Return where our stages of *case* send something else than torch's, of what is *compared*."""
    fields = {"shard": "parameters", "wrap": case["wrap"], "pipeline": case["pipeline"], "virtual_stages": case["virtual"]}
    fields |= {"replicate": case["replicate"], "reshard_after_forward": case["reshard"], "schedule": case["schedule"]}
    gpus = case["pipeline"] * case["replicate"] * case["shards"]
    made = layout(_table(), gpus, micro_batches=case["micro_batches"], **fields)
    names = [sorted({made.units[unit].name for unit in chunk if made.units[unit].kind == "block"}) for chunk in made.chunks]
    chunks = [[int(name.rpartition(".")[2]) for name in each] for each in names]
    problems = []
    for stage in range(case["pipeline"]):
        theirs, ours = compared(_of_torch(case, stage, chunks)), compared(sent(made, stage))
        if ours != theirs:
            at = next((index for index, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), len(ours))
            where = f"{case}, stage {stage}: of {len(ours)}, {len(theirs)} operation {at}"
            problems.append(f"{where} is {ours[at : at + 3]}, torch's {theirs[at : at + 3]}")
    return problems


@pytest.mark.parametrize("every", [5, pytest.param(3, marks=pytest.mark.nightly)])
def test_stages_send_what_fully_shard_sends_on_the_same_modules(every: int) -> None:
    wrong = [text for case in _cases(every) for text in _wrong(case)]
    assert not wrong, "\n".join(wrong)


def _gathers(operations: list[Operation]) -> list[Operation]:
    return [each for each in operations if each[0] == "all_gather"]


@pytest.mark.nightly
def test_freed_weights_lose_their_gradients_in_torch() -> None:
    """Gathers are torch's own; reductions lack there, since halves of backward find no weights.

    ``stage_backward_input`` (pipelining/_backward.py) looks for ``submod.parameters()`` in the graph before a hook of FSDP has gathered
    them: what it finds are shards, which are not in it, so that ``stage_backward_weight`` makes no gradients, but on the first stage,
    whose second half runs the whole backward. Ours are those of a step that trains.
    """
    wrong = []
    for number, wrap in enumerate(PATTERNS):
        for schedule, virtual in (("zb_h1", 1), ("zbv", 2)):
            case = {"wrap": wrap, "schedule": schedule, "pipeline": 2, "micro_batches": 3 + number % 2, "virtual": virtual}
            wrong += _wrong(case | {"replicate": 1, "shards": (2, 4)[number % 2], "reshard": True}, _gathers)
    assert not wrong, "\n".join(wrong)
    case = {"wrap": PATTERNS[0], "schedule": "zb_h1", "pipeline": 2, "micro_batches": 3, "replicate": 1, "shards": 2, "virtual": 1}
    blocks = [range(4), range(4, 8)]
    reduced = [
        [sum(op == "reduce_scatter" for op, _, _ in _of_torch(case | {"reshard": reshard}, stage, blocks)) for stage in (0, 1)]
        for reshard in (True, False)
    ]
    assert reduced == [[5, 0], [5, 5]]  # four blocks and the root


def test_wrapped_blocks_in_a_pipeline_are_what_the_stack_wraps_by_itself() -> None:
    """Patterns of the blocks alone leave the same to the root as a stack that wraps no more than blocks."""
    for stage in (0, 1):
        fields = {"shard": "parameters", "pipeline": 2, "micro_batches": 4}
        said = layout(_table(), 8, wrap=("body.layers.*",), **fields)  # type: ignore[arg-type]
        assert sent(said, stage) == sent(layout(_table(), 8, stack={"root": True}, **fields), stage)  # type: ignore[arg-type]
