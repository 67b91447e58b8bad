"""Oracle: torch itself runs the losses of each stack; bytes of a logit that are held at the fullest moment of forward and backward."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sim.spec.library import load_part
from sim.spec.stack import Stack
from tests.late import Late, torch

pytestmark = pytest.mark.needs("torch")
VOCABULARY, TOKENS = 4096, 512
distributed: Any = Late("torch.distributed")
tensors: Any = Late("torch.distributed.tensor")


def stack_named(name: str) -> Stack:
    stack = load_part(Stack, name)
    assert isinstance(stack, Stack)
    return stack


def held(context: Any, work: Callable[[], None]) -> float:
    """Return the bytes of a logit that tensors made by *work* hold at most."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Held(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.sizes: dict[int, int] = {}
            self.most = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in self.sizes:
                        self.sizes[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
            self.most = max(self.most, sum(self.sizes.values()))
            return out

    mode = Held()
    with mode, context:
        work()
    return mode.most / (TOKENS * VOCABULARY)


def head() -> Any:
    """Return logits in 16 bits."""
    return torch.nn.functional.linear(
        torch.randn(TOKENS, 8, dtype=torch.bfloat16), torch.randn(VOCABULARY, 8, dtype=torch.bfloat16, requires_grad=True)
    )


def of_torch() -> None:
    labels = torch.zeros(TOKENS, dtype=torch.long)
    logits = head().float()
    loss = torch.nn.functional.cross_entropy(logits, labels)
    del logits  # torchtitan train.py
    loss.backward()


def of_split_torch() -> None:
    mesh = tensors.init_device_mesh("cpu", (2,))
    logits = tensors.DTensor.from_local(head(), mesh, [tensors.Shard(-1)]).float()
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(TOKENS, dtype=torch.long))
    del logits
    loss.backward()


def sharded_loss(in_place: bool) -> Callable[[], None]:
    """Return Megatron-LM's loss, which subtracts the maximum *in_place* (core/tensor_parallel/cross_entropy.py), or nanotron's."""

    def run() -> None:
        class Loss(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(context: Any, logits: Any) -> Any:
                most = logits.max(dim=-1)[0].unsqueeze(-1)
                own = logits.sub_(most) if in_place else logits - most
                torch.exp(own, out=own)
                total = own.sum(dim=-1)
                own.div_(total.unsqueeze(-1))
                context.save_for_backward(own)
                return total.log().sum()

            @staticmethod
            def backward(context: Any, above: Any) -> Any:
                (softmax,) = context.saved_tensors
                return softmax.mul_(above)

        if in_place:
            logits = head()  # stays to the end of the model's forward
            loss = Loss.apply(logits.float())
            del logits
        else:
            loss = Loss.apply(head().float())
        loss.backward()

    return run


@pytest.fixture
def two_ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("stack", "work"), [("torchtitan-2.x", of_torch), ("nanotron", sharded_loss(False)), ("megatron-core", sharded_loss(True))]
)
def test_logits_take_what_the_stack_says(stack: str, work: Callable[[], None]) -> None:
    assert held(nullcontext(), work) == pytest.approx(stack_named(stack).kernels.logit_bytes, rel=0.01)


def test_logits_of_a_split_vocabulary(two_ranks: None) -> None:
    from torch.distributed.tensor.parallel import loss_parallel

    assert held(loss_parallel(), of_split_torch) == pytest.approx(stack_named("torchtitan-2.x").kernels.split_logit_bytes, rel=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("stack", ["torchtitan-0.2"])
def test_logits_of_a_compiled_loss(stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's code of forward and backward has one buffer of the logits' size, their gradient in 16 bits; the logits are its input."""
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    cross_entropy = torch.nn.functional.cross_entropy

    def of_titan(scores: Any, labels: Any) -> Any:  # torchtitan components/loss.py
        return cross_entropy(scores.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum", ignore_index=-100)

    loss = torch.compile(of_titan)
    scores = torch.randn(1, TOKENS, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    _, codes = run_and_get_code(lambda: loss(scores, torch.zeros(1, TOKENS, dtype=torch.long)).backward())
    allocated = re.findall(rf"empty_strided_\w+\(\({TOKENS}, {VOCABULARY}\), .*?(torch\.\w+)\)", "".join(codes))
    assert len(codes) == 2 and allocated == ["torch.bfloat16"]
    assert stack_named(stack).kernels.logit_bytes == scores.element_size() + 2
    assert not stack_named(stack).kernels.freed_logit_bytes
