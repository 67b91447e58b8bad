"""Hybrids. Oracles: Mamba-2 in torch, as a recurrence and by chunks, with the products that torch counts; layers counted by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.quantizing import quantizing_bytes
from sim.events import Cause
from sim.parallel.shares import rank_share
from sim.parallel.split import LayerPiece, split
from sim.parallel.units import units
from sim.spec.decoder import decoder_layers, model_flop, parameter_count
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_part
from sim.spec.model import Model
from sim.spec.parallel import Parallel
from sim.spec.stack import Stack
from sim.spec.state_space import scan_cost
from sim.spec.transformer import DeltaNet, Mamba, Transformer
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer, not_validated
from sim.study.scenario import Scenario
from tests.late import torch

MAMBA = Mamba(heads=8, head_dim=16, state=32, groups=2, conv=4, chunk=16)
HYBRID: dict[str, Any] = {"layers": 5, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 256, "vocab": 100}
HYBRID |= {"activation": "relu2", "positions": "none", "pattern": "M-M*-", "mamba": MAMBA.model_dump()}
SPARSE = {**HYBRID, "pattern": "MEM*E", "experts": 8, "experts_per_token": 2, "expert_ffn": 32}
SPARSE |= {"shared_experts": 1, "shared_expert_ffn": 48}
TOKENS = 64


def hybrid(**fields: Any) -> Transformer:
    return Transformer.model_validate(HYBRID | fields)


def named(layers: tuple[Layer, ...], name: str) -> Layer:
    return next(layer for layer in layers if layer.name.endswith(name))


def recurrence(values: Any, decay: Any, inputs: Any, outputs: Any) -> Any:
    """Return y of h' = decay h + inputs x, y = outputs h', token by token; heads of a group share inputs and outputs."""
    tokens, heads, size = values.shape
    each = heads // inputs.shape[1]
    state, results = torch.zeros(heads, size, inputs.shape[2], dtype=values.dtype), []
    for token in range(tokens):
        into, out = (rows[token].repeat_interleave(each, 0) for rows in (inputs, outputs))
        state = decay[token][:, None, None] * state + values[token][:, :, None] * into[:, None, :]
        results.append((state * out[:, None, :]).sum(-1))
    return torch.stack(results)


def by_chunks(values: Any, decay: Any, inputs: Any, outputs: Any, chunk: int) -> Any:
    """Return the same by chunks of *chunk* tokens, in products alone but for the recurrence over the states of chunks."""
    tokens, heads, size = values.shape
    groups, width = inputs.shape[1:]
    count, each = tokens // chunk, heads // groups
    sums = decay.log().reshape(count, chunk, heads).cumsum(1).permute(0, 2, 1)  # chunks, heads, tokens
    x = values.reshape(count, chunk, heads, size).permute(0, 2, 1, 3)
    into, out = (rows.reshape(count, chunk, groups, width).permute(0, 2, 1, 3) for rows in (inputs, outputs))
    scores = torch.matmul(out, into.transpose(-1, -2)).repeat_interleave(each, 1)
    steps = (sums[..., :, None] - sums[..., None, :]).exp().tril()
    inside = torch.matmul(scores * steps, x)
    held = (x * (sums[..., -1:] - sums).exp()[..., None]).transpose(-1, -2)
    states = torch.matmul(held, into.repeat_interleave(each, 1))
    before, state = [], torch.zeros_like(states[0])
    for number in range(count):
        before.append(state)
        state = sums[number, :, -1].exp()[:, None, None] * state + states[number]
    decayed = out.repeat_interleave(each, 1) * sums.exp()[..., None]
    return (inside + torch.matmul(decayed, torch.stack(before).transpose(-1, -2))).permute(0, 2, 1, 3).reshape(tokens, heads, size)


@pytest.mark.needs("torch")
def test_products_of_the_scan_are_those_of_mamba_2_in_torch() -> None:
    """By chunks it gives what the recurrence gives. torch counts the full square inside a chunk, of which kernels compute half."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    values, decay = torch.randn(TOKENS, 8, 16, dtype=torch.float64), torch.rand(TOKENS, 8, dtype=torch.float64)
    inputs, outputs = (torch.randn(TOKENS, 2, 32, dtype=torch.float64) for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        chunked = by_chunks(values, decay, inputs, outputs, MAMBA.chunk)
    assert torch.allclose(chunked, recurrence(values, decay, inputs, outputs))
    halves = MAMBA.chunk * (MAMBA.groups * MAMBA.state + MAMBA.inner)
    assert counter.get_total_flops() == TOKENS * (scan_cost(MAMBA).flop[0] + halves)
    for tensor in (values, inputs, outputs):
        tensor.requires_grad_(True)
    result = by_chunks(values, decay, inputs, outputs, MAMBA.chunk)
    with FlopCounterMode(display=False) as counter:
        result.sum().backward()
    again = MAMBA.chunk * MAMBA.groups * MAMBA.state + 2.0 * MAMBA.inner * MAMBA.state  # what backward computes again
    halves = 2.0 * halves  # torch's two gradients of each product, full squares
    assert counter.get_total_flops() == TOKENS * (scan_cost(MAMBA).flop[1] - again + halves)


def delta_rule(queries: Any, keys: Any, values: Any, decay: Any, rate: Any) -> Any:
    """Return o = S' q of S' = S exp(g) (1 - b k k') + b v k', token by token, for heads of their own."""
    tokens, heads, size = values.shape
    state, results = torch.zeros(heads, size, keys.shape[2], dtype=values.dtype), []
    for token in range(tokens):
        key, value, step = keys[token], values[token], rate[token][:, None]
        state = state * decay[token].exp()[:, None, None]
        state = state + (step * (value - (state * key[:, None, :]).sum(-1)))[:, :, None] * key[:, None, :]
        results.append((state * queries[token][:, None, :]).sum(-1))
    return torch.stack(results)


def delta_rule_by_chunks(queries: Any, keys: Any, values: Any, decay: Any, rate: Any, chunk: int) -> Any:
    """Return the same by chunks (Yang and others, arXiv 2412.06464, section 3.3): products alone but for an inverse and the recurrence."""
    tokens, heads, size = values.shape
    count = tokens // chunk
    q, k, v = (rows.reshape(count, chunk, heads, -1).permute(0, 2, 1, 3) for rows in (queries, keys, values))
    sums = decay.reshape(count, chunk, heads).cumsum(1).permute(0, 2, 1)
    step = rate.reshape(count, chunk, heads).permute(0, 2, 1)[..., None]
    steps = (sums[..., :, None] - sums[..., None, :]).exp().tril()
    lower = (step * torch.matmul(k, k.transpose(-1, -2)) * steps).tril(-1)
    inverse = torch.linalg.inv(torch.eye(chunk, dtype=values.dtype) + lower)
    from_keys, from_values = torch.matmul(inverse, step * k * sums.exp()[..., None]), torch.matmul(inverse, step * v)
    scores = torch.matmul(q, k.transpose(-1, -2)) * steps
    state, results = torch.zeros(heads, keys.shape[2], size, dtype=values.dtype), []
    for number in range(count):
        new = from_values[number] - torch.matmul(from_keys[number], state)
        results.append(torch.matmul(q[number] * sums[number].exp()[..., None], state) + torch.matmul(scores[number], new))
        held = k[number] * (sums[number, :, -1:] - sums[number]).exp()[..., None]
        state = state * sums[number, :, -1].exp()[:, None, None] + torch.matmul(held.transpose(-1, -2), new)
    return torch.stack(results).permute(0, 2, 1, 3).reshape(tokens, heads, size)


@pytest.mark.needs("torch")
def test_products_of_the_scan_are_those_of_a_gated_delta_rule_in_torch() -> None:
    """By chunks it gives what the recurrence gives; torch counts the full square inside a chunk, and no product for the inverse."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    delta = DeltaNet(key_heads=4, value_heads=4, key_dim=16, value_dim=24, chunk=16)
    queries, keys = (torch.nn.functional.normalize(torch.randn(TOKENS, 4, 16, dtype=torch.float64), dim=-1) for _ in range(2))
    values, rate = torch.randn(TOKENS, 4, 24, dtype=torch.float64), torch.rand(TOKENS, 4, dtype=torch.float64)
    decay = -torch.rand(TOKENS, 4, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        chunked = delta_rule_by_chunks(queries, keys, values, decay, rate, delta.chunk)
    assert torch.allclose(chunked, delta_rule(queries, keys, values, decay, rate))
    halves = delta.value_heads * delta.chunk * (3 * delta.key_dim + 2 * delta.value_dim)
    assert counter.get_total_flops() == TOKENS * (scan_cost(delta).flop[0] + halves)


@pytest.mark.needs("torch")
def test_parameters_are_those_of_modules() -> None:
    """in_proj makes gate, values, both projections of the state, and the steps; A, D and the steps' bias have one element a head."""
    inner, wide = MAMBA.inner, MAMBA.inner + 2 * MAMBA.groups * MAMBA.state
    modules = torch.nn.ModuleList(
        [
            torch.nn.RMSNorm(64),
            torch.nn.Linear(64, inner + wide + MAMBA.heads, bias=False),
            torch.nn.Conv1d(wide, wide, 4, groups=wide),
            torch.nn.RMSNorm(inner),
            torch.nn.Linear(inner, 64, bias=False),
        ]
    )
    expected = sum(parameter.numel() for parameter in modules.parameters()) + 3 * MAMBA.heads
    layers = [layer for layer in decoder_layers(hybrid(), TOKENS) if layer.name.startswith("layers.0.")]
    assert sum(sum(layer.gradients) for layer in layers) == expected
    assert parameter_count(hybrid()) == sum(sum(layer.gradients) for layer in decoder_layers(hybrid(), TOKENS))


def test_each_letter_is_a_layer_with_its_norm_and_residual() -> None:
    layers = decoder_layers(hybrid(), TOKENS)
    kinds = []
    for number in range(5):
        own = [layer.name.split(".", 2)[2] for layer in layers if layer.name.startswith(f"layers.{number}.")]
        kinds.append({re.split(r"[._]", name)[0] for name in own})
    assert kinds == [{"mamba"}, {"ffn", "feed"}, {"mamba"}, {"attention"}, {"ffn", "feed"}]
    plain = hybrid(layers=4, pattern=None, mamba=None)
    alike = decoder_layers(hybrid(layers=8, pattern="*-*-*-*-", mamba=None), TOKENS)
    ordinary = decoder_layers(plain, TOKENS)
    assert [layer.model_copy(update={"name": ""}) for layer in alike] == [layer.model_copy(update={"name": ""}) for layer in ordinary]
    assert parameter_count(hybrid(layers=8, pattern="*-*-*-*-", mamba=None)) == parameter_count(plain)


def test_experts_in_a_latent_space_have_two_more_products() -> None:
    usual, latent = (decoder_layers(Transformer.model_validate({**SPARSE, "expert_latent": width}), TOKENS) for width in (None, 16))
    assert named(latent, "experts.gate_up").channels == (16, 32) and named(usual, "experts.gate_up").channels == (64, 32)
    assert named(latent, "experts_down").gradients == (64 * 16,) and named(latent, "experts_up").gradients == (16 * 64,)
    assert named(latent, "experts.dispatch").write == 2 * 16 * 4 * TOKENS
    assert model_flop(latent) < model_flop(usual)


def test_tensor_ranks_project_their_own_tokens_into_the_latent_space() -> None:
    """Megatron-LM's fc1_latent_proj and fc2_latent_proj (transformer/moe/moe_layer.py) have parallel_mode duplicated, between
    tokens that sequence parallelism splits."""
    table = decoder_layers(Transformer.model_validate({**SPARSE, "expert_latent": 16}), TOKENS)
    for name in ("experts_down", "experts_up"):
        own = rank_share(named(table, name), Parallel(tensor=2))
        assert (own.tokens, own.forward) == (TOKENS / 2, named(table, name).forward / 2)
        assert own.gradients == named(table, name).gradients and own.channels == named(table, name).channels


def test_norms_in_front_of_scans_quantize_for_the_first_product() -> None:
    """As in front of q, k and v: Megatron-LM's TELayerNormColumnParallelLinear is also in_proj."""
    gpu, stack = load_hardware("hgx-h100").spec.worker_groups[0].node.gpu, load_part(Stack, "megatron-core")
    product = named(decoder_layers(hybrid(), TOKENS), "mamba.input")
    alike = product.model_copy(update={"name": "layers.0.attention.qkv"})
    assert quantizing_bytes(product, 64, gpu, "fp8", stack, False) == quantizing_bytes(alike, 64, gpu, "fp8", stack, False)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"pattern": "M-M*X"}, r"pattern has X; write M \(Mamba-2\), G \(gated delta net\), \* \(attention\), - \(feed-forward\), E"),
        ({"pattern": "M-M*"}, "pattern has 4 layers, not 5; write layers: 4"),
        ({"mamba": None}, "add their sizes, such as mamba: {heads: 64}"),
        ({"pattern": "MEM*E"}, "add experts and experts_per_token"),
        ({"experts": 8, "experts_per_token": 2}, "no layer with experts"),
        ({"pattern": None}, "mamba needs a pattern"),
        ({"pattern": "M-G*-"}, "add their sizes, such as delta_net: {key_heads: 16, value_heads: 32}"),
        ({"pattern": None, "mamba": None, "delta_net": {"key_heads": 2, "value_heads": 4}}, "delta_net needs a pattern"),
        ({"pattern": "M-G*-", "delta_net": {"key_heads": 4, "value_heads": 6}}, "write as many key_heads"),
        ({"mamba": {"heads": 7, "groups": 2}}, r"mamba.heads \(7\) is not a multiple of mamba.groups \(2\); write groups: 1"),
        ({"parallel": True}, "write parallel: false"),
        ({"pattern": ""}, "pattern is empty; write a letter for each layer, or leave it out"),
        ({**SPARSE, "moe_every": 2}, "leave first_dense_layers and moe_every out"),
        ({**SPARSE, "first_dense_layers": 1}, "leave first_dense_layers and moe_every out"),
        ({"norms_per_layer": 4}, "layers of state spaces and convolutions have one norm, before them; write norms_per_layer: 2"),
        ({"attention_gate": True, "mla": {"kv_rank": 8, "nope_dim": 8, "rope_dim": 8, "value_dim": 8}}, "attention_gate with mla is not"),
    ],
)
def test_what_contradicts_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        hybrid(**fields)


def kept_by_torch(run: Callable[[], Any]) -> float:
    """Return the elements of the tensors that autograd keeps for backward of *run*, each storage once."""
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return float(sum(kept.values()))


@pytest.mark.needs("torch")
def test_gated_attention_keeps_what_its_output_product_reads() -> None:
    """torch keeps attention's result, the sigmoid of its gate (a fused kernel keeps the gate), their product, and the weights."""
    width, (result, gate) = 4 * 16, (torch.randn(TOKENS, 4 * 16, requires_grad=True) for _ in range(2))
    weight = torch.randn(64, width, requires_grad=True)
    expected = kept_by_torch(lambda: torch.nn.functional.linear(result * gate.sigmoid(), weight)) - weight.numel()
    layers = decoder_layers(hybrid(attention_gate=True), TOKENS)
    own = (named(layers, "attention.gate").saved + named(layers, "attention.output").saved) / 4.0
    own += named(layers, "attention.core").saved / 4.0 - (2 * 4 + 4 * 16 + 2 * 2 * 16) * TOKENS  # its result alone
    assert own == expected
    assert named(decoder_layers(hybrid(), TOKENS), "attention.output").saved == 0


def test_mamba_2_keeps_what_megatron_s_kernels_keep() -> None:
    """What the first product makes (gate, channels, steps), the scan's result with and without the gate, and the norm's result.

    Megatron-LM's core/ssm/mamba_mixer.py has the norm outside of mamba_split_conv1d_scan_combined, which saves zxbcdt and out_x.
    """
    layers = [layer for layer in decoder_layers(hybrid(), TOKENS) if layer.name.startswith("layers.0.mamba.")]
    statistics = 2 * TOKENS * 1
    own = sum(layer.saved for layer in layers if not layer.name.endswith("input")) / 4.0 - statistics
    made = 2 * MAMBA.inner + 2 * MAMBA.groups * MAMBA.state + MAMBA.heads
    assert named(tuple(layers), "mamba.input").channels == (64, made)
    assert own == TOKENS * (made + 3 * MAMBA.inner)


def test_a_delta_net_keeps_queries_and_keys_of_each_value_head() -> None:
    """Both transformers and Megatron-LM repeat them in front of chunk_gated_delta_rule, which keeps its inputs and products of keys."""
    sizes = {"key_heads": 2, "value_heads": 6, "key_dim": 16, "value_dim": 24, "chunk": 16}
    scan = named(decoder_layers(hybrid(pattern="G-G*-", mamba=None, delta_net=sizes), TOKENS), "delta.scan")
    assert scan.saved == 4.0 * TOKENS * 6 * (2 * 16 + 24 + 16 + 2)


@pytest.mark.parametrize("trained", ["model.lora={rank: 16}", "model.frozen=[layers.0, layers.1]"])
def test_tensor_ranks_split_scans_without_trained_weights(trained: str) -> None:
    shape = ("model.transformer.layers=4", "model.transformer.pattern=M-M*", "training.activation_checkpointing=blocks")
    scenario = Scenario("hgx-h100", "nemotron-h-8b", (*shape, "training.parallel.tensor=2", trained), stack="megatron-core", nodes=1)
    assert layout_answer(scenario).run.step_time > 0


@pytest.mark.parametrize(
    ("model", "sizes", "sentence"),
    [
        ("nemotron-h-8b", "mamba.groups=2", r"4 ranks do not divide mamba.groups \(2\), as Megatron-LM requires; use 2"),
        ("qwen3.5-9b", "delta_net.key_heads=2", r"4 ranks do not divide delta_net.key_heads \(2\), as Megatron-LM requires; use 2"),
    ],
)
def test_tensor_ranks_divide_groups_of_heads(model: str, sizes: str, sentence: str) -> None:
    """As core/ssm/mamba_mixer.py and gated_delta_net.py of Megatron-LM assert; the heads alone would divide."""
    sets = (f"model.transformer.{sizes}", "training.parallel.tensor=4", "training.activation_checkpointing=blocks")
    with pytest.raises(SpecError, match=sentence):
        layout_answer(Scenario("hgx-h100", model, sets, stack="megatron-core", nodes=1))


def test_runs_of_delta_nets_say_that_none_was_measured() -> None:
    sets = ("training.parallel.tensor=8", "training.activation_checkpointing=blocks")
    for model, said in (
        ("qwen3.5-9b", ["gated delta nets are not validated: no measured run in the records has them"]),
        ("nemotron-h-8b", []),
    ):
        assert not_validated(layout_answer(Scenario("hgx-h100", model, sets, stack="megatron-core", nodes=1)).run) == said


def test_tensor_ranks_divide_a_scan() -> None:
    base = ("model.transformer.layers=4", "model.transformer.pattern=M-M*", "training.activation_checkpointing=blocks")

    def compute(*sets: str) -> float:
        scenario = Scenario("hgx-h100", "nemotron-h-56b", (*base, *sets), stack="megatron-core", nodes=1)
        return layout_answer(scenario).run.stalls[Cause.COMPUTE]

    two, four = (compute(f"training.parallel.tensor={ranks}") for ranks in (2, 4))
    assert 0.45 * two < four < 0.75 * two


def _scan_of(layers: int, **parallel: int) -> LayerPiece:
    """Return a rank's piece of the scan of a Mamba-2 layer with 16 heads of 8 elements, and 4 groups of a state of 32."""
    sizes = {"heads": 16, "head_dim": 8, "state": 32, "groups": 4, "conv": 4, "chunk": 16}
    shape = hybrid(pattern="M" * layers + "*", layers=layers + 1, mamba=sizes)
    units = split(Model(name="m", transformer=shape, sequence=TOKENS, source="a test"), Parallel(**parallel))
    return next(piece for unit in units for piece in unit.pieces if piece.layer.op == "scan")


@pytest.mark.parametrize(("tensor", "context", "repeats"), [(1, 2, 1), (2, 2, 1), (1, 8, 2), (2, 8, 4)])
def test_context_ranks_exchange_what_enters_and_leaves_a_scan(tensor: int, context: int, repeats: int) -> None:
    """Elements of a rank's tokens, counted from ``pre_conv_ssm`` and ``post_conv_ssm`` of Megatron-LM: gate, values, both projections with
    groups repeated until each rank has one, steps; and the result. Backward exchanges their gradients.
    """
    piece = _scan_of(2, tensor=tensor, context=context)
    tokens, inner, projections = TOKENS // context, 16 * 8 // tensor, repeats * 4 * 32 // tensor
    expected = [4.0 * tokens * width for width in (inner, inner, projections, projections, 16 // tensor, inner)]
    for messages in (piece.forward, piece.backward):
        assert [message.nbytes for message in messages if message.axis == "context"] == pytest.approx(expected)
        assert {message.op for message in messages if message.axis == "context"} == {"all_to_all"}
    assert piece.layer.forward == pytest.approx(_scan_of(2).layer.forward / tensor / context)


def test_context_ranks_of_scans_say_that_none_was_measured() -> None:
    sets = ("training.parallel.context=2", "training.parallel.tensor=4", "training.activation_checkpointing=blocks")
    run = layout_answer(Scenario("hgx-h100", "nemotron-h-8b", sets, stack="megatron-core", nodes=1)).run
    assert not_validated(run) == ["context ranks of state-space layers are not validated: no measured run in the records has them"]


@pytest.mark.parametrize(
    ("stack", "model", "sizes", "sentence"),
    [
        ("megatron-core", "nemotron-h-8b", "mamba.heads=4", r"8 ranks do not divide mamba.heads of a tensor rank \(4\)"),
        ("megatron-core", "nemotron-h-8b", "mamba={heads: 48, groups: 12}", r"8 ranks do not divide mamba.groups of a tensor rank \(12\)"),
        ("megatron-core", "qwen3.5-9b", "tied=false", "gated delta nets of qwen3.5-9b over context ranks are not modeled; use context: 1"),
        ("torchtitan-2.x", "nemotron-h-8b", "tied=false", "state-space layers of nemotron-h-8b over context ranks that attend around"),
    ],
)
def test_context_ranks_that_no_software_has_are_refused(stack: str, model: str, sizes: str, sentence: str) -> None:
    sets = ["training.parallel.context=8", "training.activation_checkpointing=blocks", f"model.transformer.{sizes}"]
    sets += ["model.transformer.mamba.groups=4"] if sizes == "mamba.heads=4" else []
    with pytest.raises(SpecError, match=sentence):
        layout_answer(Scenario("hgx-h100", model, tuple(sets), stack=stack, nodes=1))


def test_a_layer_with_a_delta_net_is_one_block() -> None:
    """Recomputation and pipelines divide models between the layers of their code, of which each has a mixer and a feed-forward block."""
    shape = load_part(Model, "qwen3-next-80b-a3b").transformer
    assert shape is not None and (shape.letters_per_block, shape.block_count) == (2, 48)
    blocks = [name for name, kind, _ in units(Model(name="m", transformer=shape, sequence=TOKENS, source="a test")) if kind == "block"]
    assert blocks == [f"layers.{number}" for number in range(48)]
    nemotron = load_part(Model, "nemotron-h-8b").transformer
    assert nemotron is not None and nemotron.block_count == nemotron.layers == 52, "Megatron-LM's Mamba models have a letter for each layer"
    assert hybrid(layers=4, pattern="G-M-", delta_net={"key_heads": 2, "value_heads": 4}).letters_per_block == 1
    uneven = {"layers": 3, "pattern": "G-*", "delta_net": {"key_heads": 2, "value_heads": 4}, "mamba": None}
    assert hybrid(**uneven).letters_per_block == 1


BESIDE = HYBRID | {"pattern": "P-P-", "layers": 4, "block_letters": 2}
SHORT: dict[str, Any] = {name: size for name, size in HYBRID.items() if name != "mamba"} | {"pattern": "C-*-", "layers": 4, "short_conv": 3}


def test_mixers_that_were_not_measured_say_so(tmp_path: Path) -> None:
    for shape, sentence in ((BESIDE, "attention beside Mamba-2 is not"), (SHORT, "short convolutions are not")):
        said = not_validated(layout_answer(Scenario("hgx-h100", _written(tmp_path, shape), (), stack="torchtitan-2.x", nodes=1)).run)
        assert said == [f"{sentence} validated: no measured run in the records has {'it' if 'beside' in sentence else 'them'}"]


@pytest.mark.parametrize(
    ("shape", "sets", "sentence"),
    [
        (SHORT, "training.parallel.context=2", "short convolutions of mine over context ranks are not modeled; use context: 1"),
        (BESIDE, "training.parallel.tensor=4", r"4 ranks do not divide mamba\.groups \(2\), as Megatron-LM requires"),
    ],
)
def test_layouts_of_other_mixers_that_no_software_has_are_refused(tmp_path: Path, shape: dict[str, Any], sets: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        layout_answer(Scenario("hgx-h100", _written(tmp_path, shape), (sets,), stack="megatron-core", nodes=1))


def _written(folder: Path, shape: dict[str, Any]) -> str:
    """Write a workload with a decoder of *shape*, and return its path."""
    (folder / "mine.yaml").write_text(
        json.dumps({"name": "mine", "model": {"name": "mine", "transformer": shape, "sequence": 64, "source": "test"}})
    )
    return str(folder / "mine.yaml")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (BESIDE | {"mamba": None}, "add their sizes, such as mamba: {heads: 64}"),
        (SHORT | {"short_conv": None}, "pattern has short convolutions (C); add their width, such as short_conv: 3"),
        (SHORT | {"block_letters": 3}, "block_letters (3) does not divide the 4 letters of pattern; write block_letters: 1"),
        (HYBRID | {"pattern": None, "mamba": None, "short_conv": 3}, "short_conv needs a pattern"),
        (HYBRID | {"pattern": None, "mamba": None, "block_letters": 2}, "block_letters needs a pattern; leave it out"),
        (HYBRID | {"pattern": None, "mamba": None, "causal": False, "window": 8, "chunked": True}, "chunked windows of an encoder are not"),
        (HYBRID | {"pattern": None, "mamba": None, "causal": False, "prediction_layers": 1}, "an encoder predicts no later tokens"),
    ],
)
def test_what_contradicts_other_mixers_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Transformer.model_validate(fields)


def test_letters_of_a_block_are_one_unit_for_pipelines_and_recomputation() -> None:
    assert (hybrid(**BESIDE).block_count, hybrid(**{**BESIDE, "block_letters": None}).block_count) == (2, 4)
    names = [layer.name for layer in decoder_layers(hybrid(**BESIDE), TOKENS) if layer.name.startswith("layers.")]
    assert {name.split(".")[1] for name in names} == {"0", "1"}
