"""Oracle: torch's first FSDP, ``FullyShardedDataParallel``, sends the same in the same order and copies the same bytes; closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest

from sim.analysis.layout_memory import memory_by_stage, memory_timeline
from sim.parallel.lower.layouts import Layout, program
from sim.parallel.program import Start
from sim.spec.model import Model
from sim.spec.parallel import MeshOptions
from tests.harness import machine, toy_node, toy_workload
from tests.late import torch
from tests.parallel.layouts import block_model, copied, layout, sent
from tests.parallel.recorder import Recorder, fake_group
from tests.training.layouts.toys import BACKWARD as EACH
from tests.training.layouts.toys import block, run, workload

pytestmark = pytest.mark.needs("torch")
RANKS = 4


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with fake_group(RANKS):
        yield


def _net(ends: bool) -> Any:
    """Return products in a row, between an embedding and a head or not, of sizes that tell them apart."""
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(24, 16) if ends else nn.Linear(16, 16, bias=False)
            pairs = ((nn.Linear(16, width, bias=False), nn.Linear(width, 16)) for width in (16, 32, 48, 64))
            self.layers = nn.ModuleList([nn.Sequential(*pair) for pair in pairs])
            self.head = nn.Linear(16, 24, bias=False) if ends else nn.Identity()

        def forward(self, x: Any) -> Any:
            x = self.tokens(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Net()


def _of_torch(net: Any, numbers: Any, backward: str, forward: bool, reduced: float = 4.0) -> Recorder:
    """Return what the second step sends and copies: the first records the order in which modules run."""
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import CustomPolicy

    named = {module: name for name, module in net.named_modules()}
    policy = CustomPolicy(lambda module: named[module].count(".") == 1 and named[module].startswith("layers."))
    when = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}[backward]
    reduce_dtype = torch.float32 if reduced == 4.0 else torch.bfloat16
    types = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype, buffer_dtype=torch.bfloat16)
    keys: dict[str, Any] = {"mixed_precision": types, "device_id": torch.device("cpu"), "limit_all_gathers": True}
    wrapped = FullyShardedDataParallel(net, auto_wrap_policy=policy, backward_prefetch=when, forward_prefetch=forward, **keys)
    for _ in range(2):
        with Recorder(flat=True) as recorder:
            wrapped(numbers).float().sum().backward()
        wrapped.zero_grad()
    return recorder


def _table(net: Any) -> Model:
    sizes = {name: [each.numel() for each in module.parameters(recurse=False)] for name, module in net.named_modules()}
    return block_model({name: own for name, own in sizes.items() if own})


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_sends_what_torchs_first_fsdp_sends() -> None:
    wrong = []
    for ends in (True, False):
        for backward in ("pre", "post", "none"):
            for forward in (False, True):
                net = _net(ends)
                table = _table(net)
                numbers = torch.zeros(1, 4, dtype=torch.long) if ends else torch.zeros(1, 16)
                theirs = _of_torch(net, numbers, backward, forward).seen
                stack = {"framework": "fsdp1", "root": True, "backward_prefetch": backward, "forward_prefetch": forward}
                ours = sent(layout(table, RANKS, shard="parameters", stack=stack))
                if ours != theirs:
                    wrong.append(f"ends {ends}, {backward}, forward {forward}:\n{ours}\nin place of\n{theirs}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("reduced", [4.0, 2.0])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_copies_what_torchs_first_fsdp_copies(reduced: float) -> None:
    net = _net(ends=True)
    made = layout(_table(net), RANKS, shard="parameters", reduced=reduced, stack={"framework": "fsdp1", "root": True})
    theirs = _of_torch(net, torch.zeros(1, 4, dtype=torch.long), "pre", False, reduced)
    assert copied(made) == pytest.approx(theirs.copied)


ELEMENTS, LINK = 1_000_000, 1e8
GATHER = 4.0 * ELEMENTS * (RANKS - 1) / RANKS / LINK
"""Seconds of a gather, and of a reduce-scatter."""


def _step(**switches: Any) -> float:
    """Return the gathers that a step takes as long as: a first block of five, others of half a gather forward; backward of four each."""
    layers = [block(0, 5 * GATHER, 4 * GATHER, ELEMENTS), *(block(number, GATHER / 2, 4 * GATHER, ELEMENTS) for number in range(1, 5))]
    mesh = {"framework": "fsdp1", "forward_prefetch": False, **switches}
    given = workload(layers, mesh=mesh, shard="parameters")
    layout_run = run(machine(RANKS, nvlink=LINK, nic=1e18), given)
    return layout_run.step_time / GATHER


BACKWARD = 1 + 5 * 4 + 1
"""The first gather, five blocks, and the last reduce-scatter."""


@pytest.mark.parametrize(
    ("switches", "gathers"),
    [
        ({}, 1 + 5 + 3 + 0.5 + BACKWARD),  # each gather begins with the block before its own
        ({"limit_all_gathers": False}, 1 + 5 + 4 * 0.5 + BACKWARD),  # all are there when the first block ends
        ({"forward_prefetch": True}, 1 + 5 + 0.5 + 0.5 + 1 + 0.5 + BACKWARD + 1),  # two ahead; two reduce-scatters are left at the end
        ({"backward_prefetch": "post"}, 1 + 5 + 3 + 0.5 + BACKWARD),  # the host is ahead, so nothing changes
        ({"backward_prefetch": "none"}, 1 + 5 + 3 + 0.5 + BACKWARD + 4 * 2),  # a reduce-scatter, then a gather, between blocks
    ],
)
def test_a_step_takes_what_its_switches_expose(switches: dict[str, Any], gathers: float) -> None:
    assert _step(**switches) == pytest.approx(gathers, rel=2e-3)


def test_a_host_that_waits_for_memory_launches_late() -> None:
    """The third block, of 80 kernels, is launched once the first has ended, and not meanwhile."""
    launch, first, second, third = 0.1, 10.0, 0.01, 1.0
    layers = [block(0, first), block(1, second), block(2, third, forward_kernels=80)]
    limited, free = (
        run(
            machine(RANKS, nvlink=1e18, nic=1e18),
            workload(
                layers,
                {"launch_cpu": f"{launch} s"},
                {"framework": "fsdp1", "forward_prefetch": False, "limit_all_gathers": limit},
                shard="parameters",
            ),
        ).step_time
        for limit in (True, False)
    )
    assert free == pytest.approx(launch + first + second + third + 3 * EACH, rel=1e-3)
    # backward launches a kernel of each block, too, and one that puts its gradients together
    assert limited == pytest.approx(launch + first + (80 + 2 * 3) * launch, rel=1e-3)


def test_gathers_without_a_limit_are_in_memory_together() -> None:
    """All five blocks at the end of the first, in place of two."""
    table = block_model({f"layers.{number}.product": [1000] for number in range(5)})

    def most(limit: bool) -> float:
        stack = {"framework": "fsdp1", "root": True, "forward_prefetch": False, "limit_all_gathers": limit}
        (own,) = memory_by_stage(layout(table, RANKS, shard="parameters", stack=stack), toy_workload(), toy_node(1).gpu)
        return own.gathered + own.cached

    assert most(False) - most(True) == pytest.approx(3 * 1000 * 2.0, rel=0.35)


@pytest.mark.parametrize("prefetch", ["pre", "post", "none"])
def test_a_reduce_scatter_is_over_when_the_gather_behind_it_is(prefetch: str) -> None:
    """One queue: the gather for a block ends behind the reduce-scatter of the last block but one, so that two hold inputs, in 32 bits."""

    def made(blocks: int) -> Layout:
        table = block_model({f"layers.{number}.product": [1000] for number in range(blocks)})
        stack = {"framework": "fsdp1", "root": True, "forward_prefetch": False, "backward_prefetch": prefetch}
        return layout(table, RANKS, shard="parameters", stack=stack)

    for blocks in (4, 12):
        course = memory_timeline(made(blocks), toy_workload(), toy_node(1).gpu, 0)
        reduced = accumulate(isinstance(each, Start) and each.op == "reduce_scatter" for each in program(made(blocks), 0))
        shards = 4 * 1000 / RANKS
        moving = [moment.gathered + moment.gradients - done * shards for moment, done in zip(course, reduced, strict=True)]
        # gradients of two blocks beside weights and gradients of one that computes, and the next one's gather
        assert 4 * 1000 + 2 * 1000 <= max(moving) <= (2 * 4 + 2 + 4 + 2) * 1000


def test_switches_of_fsdp1_are_refused_elsewhere() -> None:
    with pytest.raises(ValueError, match="options of FSDP1, but framework is fsdp2"):
        MeshOptions.model_validate({"framework": "fsdp2", "source": "test", "backward_prefetch": "post"})
