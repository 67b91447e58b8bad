"""Oracle: torch counts what operators of Megatron and torchtitan around experts read and write, forward and backward."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sim.analysis.kept_activations import saved_bytes
from sim.cluster.gpu import memory_time
from sim.cluster.kernels import indexed_time
from sim.events import Cause
from sim.mesh import run_layout
from sim.parallel.routing import PassCount, bias_operations, permuted_passes, unfused_launches, unfused_passes
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_workload
from sim.spec.transformer import Mla

torch = pytest.importorskip("torch")
TRACE = Path("calibration/records/blind/2026-11-27-h200-operators.csv")
ROWS, WIDTH = 512, 256


def counted(work: Callable[[], Any]) -> tuple[PassCount, Any]:
    """Return over how many elements the operators of *work* pass, views left out, and what it returns.

    Element-wise operators with a broadcast or strided operand are counted by their elements, all others by what they read and write.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counted(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        nbytes = indexed = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            read, written = ([each for each in tree_leaves(part) if isinstance(each, torch.Tensor)] for part in ((args, kwargs), out))
            shared = {each.untyped_storage().data_ptr() for each in read} & {each.untyped_storage().data_ptr() for each in written}
            if shared and not func._schema.is_mutable:
                return out
            operands = [each for each in read if each.numel() > 1]
            broadcast = func._overloadpacket.__name__ == "mul" and any(each.numel() < out.numel() for each in operands)
            if broadcast or not all(each.is_contiguous() for each in operands):
                self.indexed += out.numel()
            else:
                self.nbytes += sum(each.numel() * each.element_size() for each in (*read, *written))
            return out

    with Counted() as counter:
        made = work()
    return PassCount(counter.nbytes / 2, counter.indexed), made


def launched(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many operators of *work* launch a kernel, and what it returns."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        operators = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operators += not func.is_view and "empty" not in str(func)
            return func(*args, **(kwargs or {}))

    with Counted() as counted:
        made = work()
    return counted.operators, made


def both(work: Callable[[], Any], inputs: Sequence[Any]) -> tuple[PassCount, PassCount]:
    """Return the passes of the forward of *work*, and of its backward down to *inputs*."""
    forward, out = counted(work)
    comes = torch.ones_like(out)
    return forward, counted(lambda: torch.autograd.grad(out, inputs, comes))[0]


SHAPE = load_workload("gpt-oss-20b").spec.model.transformer
assert SHAPE is not None
PLAIN = SHAPE.model_copy(update={"clamped": False, "rope_scaled": False})
MEGATRON = load_workload("gpt-oss-20b", ["training.stack=megatron-core"]).spec.training.stack.mesh
assert MEGATRON is not None
UNFUSED = MEGATRON.model_copy(update={"fused_latents": False, "fused_squares": False})


@pytest.mark.parametrize("one_copy", [False, True])
def test_biases_are_added_expert_by_expert_and_weighted(one_copy: bool) -> None:
    """What `TEGroupedMLP._apply_bias` of Megatron-LM does: each expert's bias times its tokens' probabilities, added, put together."""
    tokens = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    probabilities = torch.randn(ROWS, 1, dtype=torch.float32 if one_copy else torch.bfloat16, requires_grad=True)
    biases = [torch.randn(WIDTH, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    inputs = tokens * 1.0

    def apply() -> Any:
        parts = zip(torch.split(inputs, ROWS // 2), biases, torch.split(probabilities, ROWS // 2), strict=True)
        return torch.cat([part + bias * share for part, bias, share in parts]).to(torch.bfloat16)

    down = Layer.model_construct(name="0.experts.down", op="gemm", write=4.0 * ROWS * WIDTH, gradients=(2 * WIDTH, 2 * WIDTH * WIDTH))
    passes = both(apply, [inputs, *biases, probabilities])
    options = MEGATRON.model_copy(update={"one_copy": one_copy})
    for backward in (False, True):
        assert unfused_passes(down, PLAIN, backward, options) == pytest.approx(passes[backward], rel=0.02)
    assert unfused_passes(down.model_copy(update={"gradients": (2 * WIDTH * WIDTH,)}), SHAPE, False, MEGATRON) == (0.0, 0.0)


@pytest.mark.parametrize("one_copy", [False, True])
def test_the_host_starts_operators_for_the_biases_of_each_expert(one_copy: bool) -> None:
    """One more expert in what `_apply_bias` does; its two biases are also added to their 32-bit gradients."""

    def operators(experts: int) -> tuple[int, int]:
        tokens = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True) * 1.0
        probabilities = torch.randn(ROWS, 1, dtype=torch.float32 if one_copy else torch.bfloat16, requires_grad=True)
        biases = [torch.randn(WIDTH, dtype=torch.bfloat16, requires_grad=True) for _ in range(experts)]

        def apply() -> Any:
            parts = zip(torch.split(tokens, ROWS // experts), biases, torch.split(probabilities, ROWS // experts), strict=True)
            return torch.cat([part + bias * share for part, bias, share in parts]).to(torch.bfloat16)

        forward, out = launched(apply)
        return forward, launched(lambda: torch.autograd.grad(out, [tokens, *biases, probabilities], torch.ones_like(out)))[0]

    (few, few_back), (more, more_back) = operators(2), operators(4)
    assert bias_operations(SHAPE, False, one_copy) == (more - few) / 2
    assert bias_operations(SHAPE, True, one_copy) == (more_back - few_back) / 2 + 2
    assert bias_operations(SHAPE.model_copy(update={"bias": "none"}), True, one_copy) == 0


def test_queries_are_rotated_operator_by_operator_if_multiplied_by_a_factor() -> None:
    """What `_apply_rotary_pos_emb_bshd` of Megatron-LM does; the layer table counts one read and one write, as a fused kernel."""
    heads, size = 64, 64
    queries = torch.randn(ROWS, heads, size, dtype=torch.bfloat16, requires_grad=True) * 1.0
    angles = torch.randn(ROWS, 1, size)
    cosine, sine = ((function(angles) * 1.35).to(queries.dtype) for function in (torch.cos, torch.sin))  # one head's work: not counted

    def rotate() -> Any:
        turned, passed = queries[..., :size], queries[..., size:]
        first, second = torch.chunk(turned, 2, dim=-1)
        turned = turned * cosine + torch.cat((-second, first), dim=-1) * sine
        return torch.cat((turned, passed), dim=-1)

    rope = Layer.model_construct(name="0.attention.rope", op="elementwise", read=4.0 * ROWS * heads * size)
    passes = both(rotate, [queries])
    for backward in (False, True):
        own = unfused_passes(rope, SHAPE, backward, MEGATRON)
        assert (own.moved + 2 * queries.numel(), own.indexed) == pytest.approx(tuple(passes[backward]), rel=0.001)
        assert unfused_passes(rope, PLAIN, backward, MEGATRON) == (0.0, 0.0)


def latent_heads(tokens: int, heads: int, mla: Mla) -> tuple[Callable[[], Any], list[Any]]:
    """Return what `qkv_up_proj_and_rope_apply` of Megatron-LM does after its up projections without a fused rotation, and its inputs."""
    widths = (heads * (mla.nope_dim + mla.rope_dim), heads * (mla.nope_dim + mla.value_dim), mla.rope_dim)
    queries, latents, shared = (torch.randn(tokens, 1, width, dtype=torch.bfloat16, requires_grad=True) * 1.0 for width in widths)
    angles = torch.randn(tokens, 1, 1, mla.rope_dim)

    def turned(part: Any) -> Any:
        part, passed = part[..., : mla.rope_dim], part[..., mla.rope_dim :]
        part = torch.cat((part[..., 0::2], part[..., 1::2]), dim=-1)
        cosine, sine = ((function(angles) * 1.0).to(part.dtype) for function in (torch.cos, torch.sin))
        first, second = torch.chunk(part, 2, dim=-1)
        part = part * cosine + torch.cat((-second, first), dim=-1) * sine
        return torch.cat((part, passed), dim=-1)

    def work() -> Any:
        plain, with_position = torch.split(queries.view(tokens, 1, heads, -1), [mla.nope_dim, mla.rope_dim], -1)
        keys, values = torch.split(latents.view(tokens, 1, heads, -1), [mla.nope_dim, mla.value_dim], -1)
        query = torch.cat([plain, turned(with_position)], -1)
        key = torch.cat([keys, turned(shared.unsqueeze(-2)).expand(-1, -1, heads, -1)], -1)
        return query.contiguous(), key.contiguous(), values.contiguous()

    return work, [queries, latents, shared]


@pytest.mark.parametrize("sizes", [(128, 64, 128), (64, 32, 64), (64, 64, 128)])
def test_latent_attention_splits_rotates_and_joins_operator_by_operator(sizes: tuple[int, int, int]) -> None:
    """The layer table counts one read and one write of queries and keys, as a fused kernel; a part that all heads share is small."""
    tokens, heads = 4, 512
    mla = Mla(kv_rank=512, nope_dim=sizes[0], rope_dim=sizes[1], value_dim=sizes[2])
    shape = PLAIN.model_copy(update={"mla": mla})
    rope = Layer.model_construct(
        name="0.attention.rope", op="elementwise", read=4.0 * 2 * tokens * heads * (mla.nope_dim + mla.rope_dim), gradients=()
    )
    work, inputs = latent_heads(tokens, heads, mla)
    forward, out = counted(work)
    comes = [torch.ones_like(part) for part in out]
    backward, _ = counted(lambda: torch.autograd.grad(out, inputs, comes))
    for again, passes in ((False, forward), (True, backward)):
        own = unfused_passes(rope, shape, again, UNFUSED)
        assert (own.moved + rope.read / 2.0, own.indexed) == pytest.approx(tuple(passes), rel=0.03)
        assert unfused_passes(rope, shape, again, MEGATRON) == (0.0, 0.0)
    operators, out = launched(work)
    more, _ = launched(lambda: torch.autograd.grad(out, inputs, comes))
    assert [unfused_launches(rope, shape, again, UNFUSED) + 1 for again in (False, True)] == [operators, more]
    assert unfused_launches(rope, shape, False, MEGATRON) == 0


def test_a_squared_relu_is_two_operators_in_nemo() -> None:
    """What `squared_relu` of NeMo 2 does: the layer table counts one kernel that reads and writes, and one with a further read."""
    entering = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True) * 1.0
    squared = PLAIN.model_copy(update={"activation": "relu2"})
    activation = Layer.model_construct(name="0.feed.activation", op="elementwise", read=4.0 * ROWS * WIDTH, write=4.0 * ROWS * WIDTH)

    def square() -> Any:
        return torch.pow(torch.nn.functional.relu(entering), 2)

    passes = both(square, [entering])
    operators, out = launched(square)
    comes = torch.ones_like(out)
    more, _ = launched(lambda: torch.autograd.grad(out, [entering], comes))
    for backward, table in ((False, 2), (True, 3)):
        own = unfused_passes(activation, squared, backward, UNFUSED)
        assert (own.moved + table * ROWS * WIDTH, own.indexed) == passes[backward]
        assert unfused_passes(activation, squared, backward, MEGATRON) == unfused_passes(activation, PLAIN, backward, UNFUSED) == (0.0, 0.0)
    assert [unfused_launches(activation, squared, backward, UNFUSED) + 1 for backward in (False, True)] == [operators, more]


@pytest.mark.parametrize("batch", [1, 2])
def test_scans_copy_what_enters_and_leaves_them_unless_there_is_one_sample(batch: int) -> None:
    """What `_ssm_training` of Megatron-LM does around its scan, which takes samples before tokens."""
    given = load_workload("nemotron-3-nano-30b-a3b", ["model.sequence=64"]).spec
    scan = next(each for each in given.model.layers if each.name.endswith("mamba.scan"))
    shape = given.model.transformer
    assert shape is not None and shape.mamba is not None
    inner, width = shape.mamba.inner, shape.mamba.inner + shape.mamba.channels + shape.mamba.steps
    entering = torch.randn(64, batch, width, dtype=torch.bfloat16, requires_grad=True) * 1.0
    result = torch.randn(batch, 64, inner, dtype=torch.bfloat16)

    def forward() -> Any:
        return entering.transpose(0, 1).contiguous(), result.transpose(0, 1).contiguous()

    passes, (samples, _) = counted(forward)
    comes = torch.ones_like(samples)
    again, _ = counted(lambda: torch.autograd.grad(samples, [entering], comes)[0].contiguous())
    own = [unfused_passes(scan, shape, backward, MEGATRON, batch) for backward in (False, True)]
    assert own == [(0.0, passes.indexed / batch), (0.0, again.indexed / batch)]
    launches = [unfused_launches(scan, shape, backward, MEGATRON, batch) for backward in (False, True)]
    assert launches == ([2, 1] if batch > 1 else [0, 0])


def test_halves_are_clamped_apart_and_put_together() -> None:
    """What `weighted_bias_quick_geglu_impl` of Megatron-LM does before its fused kernel: one side is bound above, one on both sides."""
    entering = torch.randn(ROWS, 2 * WIDTH, dtype=torch.bfloat16, requires_grad=True) * 1.0

    def clamp() -> Any:
        gate, linear = entering.chunk(2, -1)
        return torch.cat((gate.clamp(min=None, max=7.0), linear.clamp(min=-7.0, max=7.0)), -1)

    activation = Layer.model_construct(name="0.experts.activation", op="elementwise", read=4.0 * 2 * ROWS * WIDTH)
    passes = both(clamp, [entering])
    for backward in (False, True):
        assert unfused_passes(activation, SHAPE, backward, MEGATRON) == pytest.approx(passes[backward], rel=0.02)
        assert unfused_passes(activation, PLAIN, backward, MEGATRON) == (0.0, 0.0)


def test_they_take_memory_time_in_megatron_alone() -> None:
    """A step of gpt-oss without biases of experts and clamps is shorter by their passes over memory; FSDP2's kernels are compiled."""
    hardware = load_hardware("hgx-h100").spec
    gpu = hardware.groups[0].node.gpu
    own = ["batch=1", "precision=bf16", "activation_checkpointing=none", "stack.mesh.expert_host=0 s", "stack.mesh.shares_device=false"]
    steps = {}
    for stack in ("megatron-core", "torchtitan-2.x"):
        sets = [f"training.{each}" for each in (f"stack={stack}", "parallel.expert=8", *own)]
        for clamped in (True, False):
            given = load_workload("gpt-oss-20b", [*sets, f"model.transformer.clamped={str(clamped).lower()}"]).spec
            steps[stack, clamped] = run_layout(hardware, given).stalls[Cause.COMPUTE]
    assert steps["torchtitan-2.x", True] == steps["torchtitan-2.x", False]
    shape = given.model.transformer
    assert shape is not None and shape.expert_ffn is not None
    rows = (given.model.sequence or 0) * shape.experts_per_token
    elements = shape.layers * rows * 2 * shape.expert_ffn
    expected = 2.0 * (2.0 + 2.75) * elements / (gpu.memory_bandwidth * gpu.memory_efficiency)
    expected += indexed_time((1.0 + 2.5) * elements, gpu)
    assert steps["megatron-core", True] - steps["megatron-core", False] == pytest.approx(expected, rel=0.01)


OPERATORS = {
    "experts.down": (
        {
            ("aten::mul", "2880; 4096x1"), ("aten::add", "4096x2880; 4096x2880"),
            ("aten::cat", "4096x2880; 4096x2880; 4096x2880; 4096x2880"), ("aten::to > aten::copy_", "16384x2880; 16384x2880"),
        },
        {
            ("MulBackward0 > aten::mul", "4096x2880; 2880"), ("MulBackward0 > aten::mul", "4096x2880; 4096x1"),
            ("MulBackward0 > aten::sum", "4096x2880"), ("AddBackward0 > aten::copy_", "4096x2880; 4096x2880"),
            ("SplitWithSizesBackward0 > aten::cat", "4096x2880; 4096x2880; 4096x2880; 4096x2880"),
            ("ToCopyBackward0 > aten::copy_", "16384x2880; 16384x2880"),
        },
    ),
    "experts.activation": (
        {("aten::clamp", "16384x2880"), ("aten::cat", "16384x2880; 16384x2880")},
        {
            ("ClampBackward1 > aten::where", "16384x2880; 16384x2880"), ("ClampBackward1 > aten::le", "16384x2880"),
            ("ClampBackward1 > aten::ge", "16384x2880"), ("ClampBackward1 > aten::logical_and", "16384x2880; 16384x2880; 16384x2880"),
            ("SplitBackward0 > aten::cat", "16384x2880; 16384x2880"),
        },
    ),
}  # fmt: skip
"""Operators of gpt-oss's biases and clamps in the trace, forward and backward, and their shapes."""


@pytest.mark.parametrize("name", OPERATORS)
def test_passes_outside_fused_kernels_take_as_long_as_on_an_h200(name: str) -> None:
    """The trace has four blocks of four experts with 4096 tokens each, and probabilities in 32 bits."""
    rows = list(csv.DictReader(line for line in TRACE.read_text().splitlines() if not line.startswith("#")))
    gpu = load_hardware("gpu-h200-sxm_1gpu-16vcpu-200gb").spec.groups[0].node.gpu
    sent, inner = 4.0 * 4 * 4096 * 2880, 4.0 * 4 * 4096 * 2 * 2880
    layer = Layer.model_construct(name=f"0.{name}", op="gemm", write=sent, read=inner, gradients=(4 * 2880, 4 * 2880 * 2880))
    for backward in (False, True):
        chosen = OPERATORS[name][backward]
        traced = [float(row["seconds"]) for row in rows if "gpt-oss" in row["training"] and (row["operator"], row["shapes"]) in chosen]
        assert len(traced) >= len(chosen)
        passes = unfused_passes(layer, SHAPE, backward, MEGATRON.model_copy(update={"one_copy": True}))
        modeled = 4 * (memory_time(2.0 * passes.moved, gpu) + indexed_time(passes.indexed, gpu))
        assert modeled == pytest.approx(sum(traced), rel=0.25), backward


def test_clamping_keeps_what_it_clamps_unless_the_activation_runs_again() -> None:
    """Autograd saves the clamp's input beside the fused activation's, which is as large; ``moe_act`` computes both again."""
    kept = {}
    for stack, modules in (("megatron-core", "[]"), ("megatron-core", "[moe_act]"), ("torchtitan-2.x", "[]")):
        given = load_workload("gpt-oss-20b", [f"training.stack={stack}", f"training.recompute_modules={modules}"]).spec
        activation = next(each for each in given.model.layers if each.name.endswith("experts.activation"))
        kept[stack, modules] = saved_bytes(activation, given)
    assert kept["megatron-core", "[]"] == 2.0 * kept["torchtitan-2.x", "[]"] == 2.0 * kept["megatron-core", "[moe_act]"]


# --- torchtitan -------------------------------------------------------------------------------------------------------

COPIES, EXPERTS = 4, 8
PADDING = 8


PUT, ADD, PRODUCT = 1.5, 2.0, 2.5
"""Time of three kernels over rows in indexed operators (calibration/records/blind/2026-11-27-h200-kernels.csv): rows are written by index
or added by index, and the gradient of a product with scores is formed for the rows of each token."""


def kernel_passes(work: Callable[[], Any]) -> tuple[PassCount, Any]:
    """Return the passes of the kernels of *work* over all rows on a GPU, and what it returns."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def size(part: Any) -> int:
        rows = (each for each in tree_leaves(part) if isinstance(each, torch.Tensor) and each.numel() >= ROWS * WIDTH)
        return sum(each.numel() * each.element_size() for each in rows)

    class Kernels(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        nbytes = indexed = 0.0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            match func._overloadpacket.__name__:
                case "new_empty" | "view" | "slice" | "transpose" | "squeeze" | "unsqueeze" | "detach" | "expand":
                    pass
                case "zeros" | "new_zeros":
                    self.nbytes += size(out)
                case "index_put_" | "index_put" | "_index_put_impl_":
                    added = args[3] if len(args) > 3 else (kwargs or {}).get("accumulate", False)
                    self.indexed += (ADD if added else PUT) * args[2].numel()
                case "bmm" if args[0].shape[1] > 1 and args[1].shape[1] == 1:
                    self.indexed += PRODUCT * out.numel()
                case "slice_backward":
                    self.nbytes += size(out) + size(args) * 2  # zeros, and a copy
                case _:
                    self.nbytes += size(args) + size(out)
            return out

    with Kernels() as kernels:
        made = work()
    return PassCount(kernels.nbytes / 2, kernels.indexed), made


def test_torchtitan_permutes_tokens_in_separate_kernels() -> None:
    """What `MoE.forward` and `indices_padding_wrapper` of torchtitan do around the experts, beside the layer table's passes.

    The table counts a gather of copies and their sum: tokens and copies once each, forward and backward.
    """
    rows = ROWS * COPIES
    x = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    scores = torch.rand(ROWS, COPIES, requires_grad=True)
    order = torch.argsort(torch.arange(rows) % EXPERTS, stable=True)
    padded = torch.cat([torch.arange(rows), torch.full((PADDING,), -1)])

    def dispatch() -> Any:
        routed = x[order // COPIES]
        return torch.vstack((routed, routed.new_zeros(WIDTH)))[padded, :]

    def combine() -> Any:
        unpadded = outputs.new_empty((rows + 1, WIDTH))
        unpadded[padded, :] = outputs
        restored = torch.zeros((rows, WIDTH), dtype=outputs.dtype)
        restored[order] = unpadded[:-1]
        restored = restored.reshape(-1, COPIES, WIDTH)
        return torch.bmm(scores.reshape(-1, 1, COPIES), restored.float()).to(x.dtype).squeeze(1)

    table = ROWS * WIDTH * (1 + COPIES)
    tokens, copies = 4.0 * ROWS * WIDTH, 4.0 * rows * WIDTH
    sent, routed = kernel_passes(dispatch)
    returned, _ = kernel_passes(lambda: torch.autograd.grad(routed, [x], torch.ones_like(routed)))
    outputs = routed.detach().requires_grad_(True)
    gathered, out = kernel_passes(combine)
    scattered, _ = kernel_passes(lambda: torch.autograd.grad(out, [outputs, scores], torch.ones_like(out)))
    ones = {"0.experts.dispatch": 2 * routed.numel(), "0.experts.combine": 2 * out.numel()}
    for name, shape, passes in (
        ("0.experts.dispatch", {"read": tokens, "write": copies}, (sent, returned)),
        ("0.experts.combine", {"read": copies, "write": tokens}, (gathered, scattered)),
    ):
        layer = Layer.model_construct(name=name, op="elementwise", **shape)
        for backward in (False, True):
            own = permuted_passes(layer, backward)
            moved = passes[backward].moved - (ones[name] if backward else 0)
            assert (own.moved + table, own.indexed) == pytest.approx((moved, passes[backward].indexed), rel=0.01), (name, backward)
    assert permuted_passes(Layer.model_construct(name="0.feed.activation", op="elementwise"), False) == (0.0, 0.0)


def test_torchtitans_passes_take_their_time_in_a_step() -> None:
    """A step of experts is longer by them, in dispatch and combine, forward and backward."""
    hardware = load_hardware("hgx-h100", ["node.gpu.compute_cv=0", "node.gpu.persistent_cv=0", "node.gpu.kernels.sustained_cv=0"]).spec
    gpu = hardware.groups[0].node.gpu
    own = ["batch=1", "precision=bf16", "activation_checkpointing=none", "parallel.shard=parameters", "stack.mesh.shares_device=false"]
    steps = {}
    for permutes in (True, False):
        sets = [f"training.{each}" for each in ("stack=torchtitan-0.2", *own, f"stack.mesh.permutes_tokens={str(permutes).lower()}")]
        given = load_workload("qwen3-30b-a3b", sets).spec
        steps[permutes] = run_layout(hardware, given).stalls[Cause.COMPUTE]
    layers = [layer for layer in given.model.layers if layer.name.endswith(("experts.dispatch", "experts.combine"))]
    passes = [permuted_passes(layer, backward) for layer in layers for backward in (False, True)]
    assert all(each.moved or each.indexed for each in passes)
    expected = memory_time(2.0 * sum(each.moved for each in passes), gpu) + indexed_time(sum(each.indexed for each in passes), gpu)
    assert steps[True] - steps[False] == pytest.approx(expected * given.training.compute_factor, rel=0.01)


def test_torchtitan_keeps_the_experts_outputs_in_32_bits() -> None:
    """The product with the scores needs them for its gradient."""
    fused, permuted = (
        load_workload("qwen3-30b-a3b", ["training.stack=torchtitan-0.2", "training.batch=2", f"training.stack.mesh.permutes_tokens={each}"])
        for each in ("false", "true")
    )
    layer = next(each for each in fused.spec.model.layers if each.name.endswith("experts.combine"))
    more = saved_bytes(layer, permuted.spec) - saved_bytes(layer, fused.spec)
    shape = fused.spec.model.transformer
    assert shape is not None and shape.experts_per_token == 8
    assert more == 2 * fused.spec.model.sequence * 8 * shape.hidden * 4
