"""Oracle: torch's own ring attention under a fake process group sends the same messages, and its operators move the same bytes."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sim.parallel.layer_messages import LayerMessage
from sim.parallel.ring import RankElements, Ring, engine_passes, ring_messages, ring_passes

torch = pytest.importorskip("torch")

from tests.parallel.recorder import Dispatched, fake_group, nbytes_of  # noqa: E402

HEADS, HEAD, TOKENS = 3, 24, 32
"""Heads, their size, and a rank's tokens."""
ELEMENTS = HEADS * HEAD * TOKENS
OWN = RankElements(queries=ELEMENTS, results=ELEMENTS, keys=2 * ELEMENTS)
WIDTH = 2.0
METHODS = {"all_gather": "allgather", "ring": "alltoall"}
_SENT = {"all_gather_into_tensor": "all_gather", "all_to_all_single": "send_recv"}
_VIEWS = {"_unsafe_view", "_wrap_tensor_autograd", "wait_tensor"}
"""Operators that move nothing, beside those that torch says are views."""


class Counts(Dispatched):
    """Adds up the bytes of elements of heads that torch's operators read and write, apart from attention's; and notes what is sent.

    Log-sum-exps, of which there is one for each head and token, are left out: their last axis is not a head's.
    """

    def __init__(self) -> None:
        self.moved = 0.0
        self.sent: list[tuple[str, float]] = []

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        made = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        if name in _SENT:
            self.sent.append((_SENT[name], nbytes_of(made)))
        elif not func.is_view and "flash" not in name and name not in _VIEWS:
            tensors = [each for each in _flat((args, made)) if isinstance(each, torch.Tensor)]
            tensors = tensors[1:] if name.endswith("_like") else tensors  # of which only the shape is read
            self.moved += nbytes_of([each for each in tensors if each.dim() == 1 or each.shape[-1] == HEAD])
        return made


def _flat(args: Any) -> list[Any]:
    return [inner for each in args for inner in (_flat(each) if isinstance(each, list | tuple) else [each])]


def attention(exchange: str) -> tuple[Any, Any]:
    """Return torch's ring over its attention on a CPU: forward of (q, k, v), and backward of these, result and log-sum-exp."""
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel import _attention as cp

    cp.set_rotate_method(METHODS[exchange])
    forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    group = dist.group.WORLD

    def backward_op(grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool) -> Any:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        return op(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)  # Dynamo takes a keyword named out for an output

    def forward(*qkv: Any) -> Any:
        return cp._templated_ring_attention(group, 2, forward_op, *qkv, is_causal=True, dropout_p=0.0)[:2]

    def backward(gradient: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> Any:
        return cp._templated_ring_attention_backward(group, 2, backward_op, gradient, "grad_out", q, k, v, out, lse, is_causal=True)[:3]

    return forward, backward


def tensors() -> list[Any]:
    """Return queries, keys and values of a rank as a block computes them: by token, then head."""
    return [torch.randn(1, TOKENS, HEADS, HEAD, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]


def counted(ranks: int, exchange: str) -> tuple[Counts, Counts]:
    """Return what the last of *ranks* moves and sends in forward and in backward, operator by operator."""
    with fake_group(ranks, ranks - 1), torch.no_grad():
        forward, backward = attention(exchange)
        qkv = tensors()
        with Counts() as ahead:
            out, lse = forward(*qkv)
        gradient = torch.randn_like(out)
        with Counts() as back:
            backward(gradient, *qkv, out, lse)
    return ahead, back


def sent(messages: Sequence[LayerMessage]) -> Counter[tuple[str, float]]:
    """Return the messages by operation and bytes; those that go together are one with torch's two sizes."""
    each: Counter[tuple[str, float]] = Counter()
    for message in messages:
        for nbytes in (message.nbytes * WIDTH / 4.0, message.wide):
            if nbytes:
                each[message.op, nbytes] += message.times
    return each


@pytest.mark.parametrize("exchange", ["all_gather", "ring"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_operators_one_by_one_move_and_send_what_torch_does(ranks: int, exchange: str) -> None:
    ahead, back = counted(ranks, exchange)
    ring = Ring(sends=exchange == "ring", compiled=False, repeats_keys=False, keeps_keys=False)
    for counts, is_backward in ((ahead, False), (back, True)):
        assert counts.moved == ring_passes(OWN, ranks, WIDTH, ring, is_backward)
        messages = ring_messages(4.0 * OWN.keys, ranks, ring, is_backward)
        assert Counter(counts.sent) == sent(messages)


# --- Transformer Engine --------------------------------------------------------------------------------------------------


class Moves:
    """Counts the bytes of steps as Transformer Engine's context_parallel.py lists them, on halves of a rank's tokens."""

    def __init__(self) -> None:
        self.moved = 0.0

    def copy(self, elements: float) -> None:
        self.moved += 2 * WIDTH * elements

    def add(self, elements: float) -> None:
        self.moved += 3 * WIDTH * elements


def engine_steps(ranks: int, causal: bool) -> tuple[float, float]:
    """The last rank's bytes of forward and backward, step by step: `rank` is ranks - 1, so that no step has half of the queries."""
    ahead, back, rank = Moves(), Moves(), ranks - 1
    ahead.copy(OWN.keys)  # torch.cat of k and v
    ahead.copy(OWN.results)  # flash_attn_fwd_out_correction_init
    for _ in range(1, ranks):
        ahead.add(OWN.results)  # flash_attn_fwd_out_correction
    back.copy(OWN.keys)  # p2p_comm_buffers[0][0].copy_(kv)
    for i in range(ranks):
        (back.copy if i == 0 else back.add)(OWN.queries)  # dq
        halves = 1 if causal and i >= ranks - rank - 1 and i != ranks - 1 else 2
        back.copy(halves * OWN.keys / 2)  # torch.cat of dk_ and dv_
        (back.copy if i == 0 else back.add)(halves * OWN.keys / 2)  # dkv
    return ahead.moved, back.moved


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_transformer_engine_merges_the_results_of_each_step(ranks: int, causal: bool) -> None:
    passes = tuple(engine_passes(OWN, ranks, WIDTH, causal, backward) for backward in (False, True))
    assert passes == pytest.approx(engine_steps(ranks, causal))


# --- compiled -----------------------------------------------------------------------------------------------------------


def compiled(ranks: int, exchange: str, checkpointing: str) -> tuple[list[str], list[float]]:
    """Return the code of forward and backward of the last rank's compiled ring, and the bytes of each kernel beside attention's.

    *checkpointing* is ``none``, ``blocks`` or ``operators``, which saves the results of attention (torchtitan's selective mode).
    """
    from functools import partial

    from torch._inductor import compile_fx, config, metrics
    from torch._inductor.ir import ComputedBuffer
    from torch._inductor.utils import run_fw_bw_and_get_code
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(_: Any, op: Any, *args: Any, **__: Any) -> CheckpointPolicy:
        attends = op == torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return CheckpointPolicy.MUST_SAVE if attends else CheckpointPolicy.PREFER_RECOMPUTE

    with fake_group(ranks, ranks - 1), pytest.MonkeyPatch.context() as patch:
        forward, backward = attention(exchange)

        class Attend(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
            @staticmethod
            def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
                out, lse = forward(q, k, v)
                ctx.save_for_backward(q, k, v, out, lse)
                return out

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                return backward(gradient, *ctx.saved_tensors)

        def block(*qkv: Any) -> Any:
            if checkpointing == "none":
                return Attend.apply(*qkv)
            saves = {"context_fn": partial(create_selective_checkpoint_contexts, policy)} if checkpointing == "operators" else {}
            return checkpoint(Attend.apply, *qkv, use_reentrant=False, preserve_rng_state=False, **saves)

        qkv = [each.detach().requires_grad_() for each in tensors()]
        torch._dynamo.reset()
        metrics.reset()
        patch.setattr(compile_fx.inductor_metrics_log, "isEnabledFor", lambda level: True)  # counts the bytes of kernels then
        patch.setattr(compile_fx.inductor_metrics_log, "info", lambda *args: None)
        with config.patch(force_disable_caches=True):
            run = torch.compile(block, fullgraph=True)
            _, codes = run_fw_bw_and_get_code(lambda: run(*qkv).sum())
        nodes = [(node.get_nodes(), 4.0 * elements) for node, elements in metrics.nodes_num_elem]
    return codes, [nbytes for inner, nbytes in nodes if all(isinstance(each.node, ComputedBuffer) for each in inner)]


def order(code: str) -> list[str]:
    """Return what a compiled graph calls, in order: messages, their waits, and ``attention``."""
    message, wait = r"= torch\.ops\._c10d_functional\.(\w+)\.default\(", r"_c10d_functional\.(wait_tensor)\.default\("
    calls = re.findall(rf"{message}|{wait}|flash_attention_for_cpu(?:_backward)?\.default(?=[(,])", code)
    return [_SENT.get(name, name) or waited or "attention" for name, waited in calls]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize(
    ("exchange", "checkpointing"), [("all_gather", "none"), ("all_gather", "blocks"), ("ring", "blocks"), ("all_gather", "operators")]
)
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_wait_for_each_message_and_fuse_merges(exchange: str, checkpointing: str) -> None:
    """Inductor counts the bytes of its kernels. Here, keys are made contiguous in addition, which a block does as it computes them."""
    ranks = 4
    (ahead, back), moved = compiled(ranks, exchange, checkpointing)
    ring = Ring(sends=exchange == "ring", compiled=True, repeats_keys=False, keeps_keys=checkpointing != "operators")
    forward, backward = (ring_messages(4.0 * OWN.keys, ranks, ring, is_backward) for is_backward in (False, True))
    for code, messages in ((ahead, forward), (back, [*forward, *backward] if checkpointing == "blocks" else backward)):
        calls = order(code)
        sends = [number for number, call in enumerate(calls) if call in _SENT.values()]
        assert all(calls[number + 1] == "wait_tensor" for number in sends)
        assert Counter(calls[number] for number in sends) == sum((Counter({each.op: each.times}) for each in messages), Counter())
        assert not any(each.overlaps for each in messages)
    assert order(back).count("attention") == ranks * (2 if checkpointing == "blocks" else 1)
    if checkpointing == "none":
        passes = sum(ring_passes(OWN, ranks, WIDTH, ring, is_backward) for is_backward in (False, True))
        assert sum(moved) == pytest.approx(passes + 2 * WIDTH * OWN.keys, rel=0.02)
