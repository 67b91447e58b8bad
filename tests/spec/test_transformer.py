"""Oracles: published parameter counts; Korthikanti et al. (arXiv 2205.05198); Narayanan et al. (arXiv 2104.04473); torch's own count."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from sim.spec.adapters import Lora, trained_layers
from sim.spec.decoder import attended_pairs, decoder_layers, model_flop, parameter_count
from sim.spec.layer import Layer
from sim.spec.lengths import with_lengths
from sim.spec.library import load_workload
from sim.spec.model import Model
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError

DECODERS = Path(__file__).with_name("decoders.csv")
GPT = {"layers": 3, "hidden": 512, "heads": 8, "vocab": 1000, "activation": "gelu", "norm": "layernorm", "positions": "learned"}
GPT |= {"max_seq": 256, "bias": "all", "tied": True}
LLAMA = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 2, "ffn": 1408, "vocab": 1000, "max_seq": 4096}
SPARSE = {**LLAMA, "experts": 8, "experts_per_token": 2, "shared_experts": 1, "expert_ffn": 256, "first_dense_layers": 1}
LATENT = {**SPARSE, "mla": {"q_rank": 96, "kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 24}}


def shape(**fields: Any) -> Transformer:
    return Transformer.model_validate(fields)


def described(row: dict[str, str]) -> Transformer:
    """Return the shape that a row of the table of published models describes."""
    sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "max_seq", "experts", "experts_per_token", "shared_experts")
    sizes += ("expert_ffn", "shared_expert_ffn", "first_dense_layers", "moe_every", "norms_per_layer")
    fields: dict[str, Any] = {name: int(row[name]) for name in sizes if row[name]}
    fields |= {name: row[name] for name in ("norm", "positions", "qk_norm", "bias") if row[name]}
    fields |= {"ffn": int(row["ffn_hidden"])} if row["ffn_hidden"] else {}
    fields |= {"tied": row["tied_embeddings"] == "true", "activation": row["activation"].replace("squared_relu", "relu2")}
    fields["bias"] = "all" if "router" in row["bias"] else row["bias"]
    fields |= {"parallel": "in parallel" in row["extra"], "sinks": "sinks" in row["extra"]}
    fields |= {"norm_bias": False} if row["name"].startswith("MPT") else {}
    fields |= {"head_bias": True} if row["name"] == "phi-2" else {}
    if row["kv_lora_rank"]:
        names = {"kv_rank": "kv_lora_rank", "nope_dim": "qk_nope_dim", "rope_dim": "qk_rope_dim", "value_dim": "v_head_dim"}
        fields["mla"] = {name: int(row[column]) for name, column in names.items()} | {"q_rank": int(row["q_lora_rank"])}
    if row["layer_pattern"]:
        names = {name: f"mamba_{name}" for name in ("heads", "head_dim", "state", "groups", "conv")}
        fields |= {"pattern": row["layer_pattern"], "mamba": {name: int(row[column]) for name, column in names.items()}}
        fields |= {"expert_latent": 1024} if "latent space of 1024" in row["extra"] else {}
    return shape(**fields)


def total(layers: tuple[Layer, ...], field: str, *ends: str) -> float:
    return math.fsum(getattr(layer, field) for layer in layers if not ends or layer.name.endswith(ends))


def test_parameters_of_published_decoders() -> None:
    wrong = []
    with DECODERS.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        count, published = parameter_count(described(row)), int(row["parameters_total"])
        if abs(count / published - 1) > 1e-4:
            wrong.append((row["name"], count, published))
    assert len(rows) > 130
    assert not wrong


def test_the_table_holds_the_parameters_that_are_counted() -> None:
    for fields in (GPT, LLAMA, SPARSE, LATENT, {**LATENT, "prediction_layers": 1}):
        layers = decoder_layers(shape(**fields), 128)
        assert sum(sum(layer.gradients) for layer in layers) == parameter_count(shape(**fields))
        assert len({layer.name for layer in layers}) == len(layers)
        assert all(layer.share for layer in layers)


def test_saved_bytes_are_korthikantis() -> None:
    """Of a GPT block with fused attention, in 16 bits: ``s h (18 + 4 f / h)`` (Megatron-LM theoretical_memory_usage.py), and statistics."""
    tokens, hidden, inner = 256, 512, 4 * 512
    layers = [layer for layer in decoder_layers(shape(**GPT, dropout=0.1), tokens) if layer.name.startswith("layers.1.")]
    statistics = 4 * tokens * 8 + 2 * 8 * tokens  # FP32: a logarithm a head, mean and deviation of two norms
    assert total(tuple(layers), "saved") / 2 == pytest.approx(tokens * hidden * (18 + 4 * inner / hidden) + statistics)
    # gated, with fewer heads of keys and no dropout: both norms' inputs, both products' inputs, q and out, k and v, gate, up and product
    fewer = [layer for layer in decoder_layers(shape(**LLAMA), tokens) if layer.name.startswith("layers.1.")]
    statistics = 4 * tokens * 8 + 2 * 4 * tokens
    elements = 2 * hidden + 2 * hidden + 2 * hidden + 2 * 128 + 3 * 1408
    assert total(tuple(fewer), "saved") / 2 == pytest.approx(2 * tokens * elements + statistics)


def test_work_is_that_of_closed_forms() -> None:
    """``72 B s L h^2 (1 + s / 6 h + V / 12 L h)`` counts the full square of attention (arXiv 2104.04473, without recomputation)."""
    tokens, hidden, depth, vocab = 256, 512, 3, 1000
    layers = decoder_layers(shape(**GPT), tokens)
    half = 72 * tokens * depth * hidden**2 * (1 + tokens / (12 * hidden) + vocab / (12 * depth * hidden))
    assert model_flop(layers) == pytest.approx(half, rel=1e-12)
    core = next(layer for layer in layers if layer.name == "layers.0.attention.core")
    assert core.forward == 2 * tokens**2 * hidden
    assert core.backward == 2.5 * core.forward
    for fields in (LLAMA, SPARSE, LATENT):
        for layer in decoder_layers(shape(**fields), tokens):
            if layer.op == "gemm":
                assert layer.forward == 2 * layer.tokens * math.prod(layer.channels), layer.name
                assert sum(layer.gradients) in (0, math.prod(layer.channels) * max(layer.groups, 1)), layer.name


def test_windows_cut_the_square() -> None:
    steps = 400
    for window in (0.1, 0.5, 0.9):
        span = round(window * steps)
        apart = [query - key for query in range(steps) for key in range(query + 1) if query - key <= span]
        inside = sum(0.5 if distance in (0, span) else 1.0 for distance in apart)  # edges belong half to the band
        assert attended_pairs(1000, int(1000 * window)) == pytest.approx(1000**2 * inside / steps**2, rel=0.005), window
    assert attended_pairs(8192) == attended_pairs(8192, 8192) == 8192**2 / 2
    layers = decoder_layers(shape(**LLAMA, window=512, global_every=2), 4096)
    windows = [layer.attention.window for layer in layers if layer.attention is not None]
    assert windows == [512, 0, 512, 0]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("tokens", "window"), [(37, 8), (64, 16), (65, 16), (20, 50), (16, 16), (9, 1)])
def test_pairs_inside_windows_and_chunks_are_those_of_the_mask(tokens: int, window: int, chunked: bool) -> None:
    """Oracle: masks of transformers (masking_utils.py: sliding_window_overlay, chunked_overlay), counted pair by pair.

    A pair of a token with itself counts half, as in half of the square, so the difference is at most half a token's share.
    """
    seen = [
        (query, key)
        for query in range(tokens)
        for key in range(query + 1)
        if (query // window == key // window if chunked else query - key < window)
    ]
    counted = attended_pairs(tokens, window, chunked)
    assert 0 <= len(seen) - counted <= tokens / 2
    if chunked or window >= tokens:
        assert counted == len(seen) - tokens / 2


def test_chunks_of_llama_4_count_less_than_windows() -> None:
    fields = {**LLAMA, "max_seq": 65536, "window": 8192, "global_every": 4}
    tokens = 32768
    chunks, windows = (
        [layer.forward for layer in decoder_layers(shape(**fields, chunked=chunked), tokens) if layer.op == "attention"]
        for chunked in (True, False)
    )
    assert chunks[3] == windows[3]  # every fourth block attends to all tokens
    assert chunks[0] == pytest.approx(chunks[3] / 4)  # four chunks have a quarter of the square
    assert windows[0] == pytest.approx(chunks[3] * (2 / 4 - 1 / 16))
    with pytest.raises(ValueError, match="chunked needs a window"):
        shape(**LLAMA, chunked=True)


def test_packed_documents_inside_chunks_attend_to_themselves() -> None:
    layers = decoder_layers(shape(**{**LLAMA, "max_seq": 65536}, window=8192, chunked=True), 32768)
    packed = [layer for layer in with_lengths(layers, "packed", 1 / 16, 1 / 256) if layer.op == "attention"]
    assert packed[0].attention is not None and not packed[0].attention.chunked
    assert packed[0].forward == pytest.approx(4 * 8 * 64 * 32768 * 2048 / 2)  # documents of 2,048 tokens never reach their chunk's end


def test_experts_and_latent_attention() -> None:
    layers = {layer.name: layer for layer in decoder_layers(shape(**LATENT), 128)}
    gate_up = layers["layers.1.experts.gate_up"]
    assert (gate_up.tokens, gate_up.groups, gate_up.channels, gate_up.gradients) == (256, 8, (512, 512), (8 * 512 * 512,))
    assert layers["layers.1.router"].share == layers["layers.2.attention.kv_down"].share == "replicated"
    assert "layers.0.router" not in layers and "layers.0.feed.gate_up" in layers
    core = layers["layers.0.attention.core"]
    assert core.attention is not None
    assert (core.attention.head_dim, core.attention.value_dim, core.attention.kv_heads) == (48, 24, 8)
    names = list(layers)
    routed = [name for name in names if name.startswith("layers.1.experts.")]
    assert names[names.index(routed[0]) : names.index(routed[-1]) + 1] == routed, "experts stand together, dispatch first, combine last"


def test_adapters_train_alone() -> None:
    dense = decoder_layers(shape(**LLAMA), 128)
    layers = trained_layers(shape(**LLAMA), 128, Lora(rank=8), ())
    pairs = {"attention.qkv": (512, 768), "attention.output": (512, 512), "feed.gate_up": (512, 2816), "feed.down": (1408, 512)}
    assert sum(sum(layer.gradients) for layer in layers) == 4 * 8 * sum(k + n for k, n in pairs.values())
    assert sum(sum(layer.frozen) for layer in layers) == parameter_count(shape(**LLAMA))
    # frozen products have one product in backward: two thirds of the work, but for the adapters and what lies before them
    products = model_flop(tuple(layer for layer in dense if layer.op == "gemm"))
    cheap = model_flop(tuple(layer for layer in layers if layer.op == "gemm" and ".lora_" not in layer.name))
    first = next(layer for layer in dense if layer.name == "layers.0.attention.qkv")
    assert cheap == pytest.approx(products * 2 / 3 - first.forward)
    frozen = trained_layers(shape(**LLAMA), 128, None, ("tokens", "layers.0..1"))
    cast = {layer.name: layer.casts for layer in layers if ".lora_" in layer.name and layer.casts}
    assert cast == {f"layers.{number}.{name}.lora_a": 128 * 512 for number in range(4) for name in ("attention.qkv", "feed.gate_up")}
    assert all(not layer.backward and not layer.saved for layer in frozen if layer.name.startswith(("tokens", "layers.0", "layers.1.")))
    after = [[layer for layer in table if layer.name.startswith("layers.2.")] for table in (frozen, dense)]
    assert after[0] == after[1]


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3", "nemotron-h-8b", "qwen3-next-80b-a3b"])
def test_adapters_stand_beside_all_products_of_a_block(name: str) -> None:
    """Latent attention, state spaces and shared experts have them; routers, routed experts and the head do not."""
    dense, adapted = load_workload(name).spec.model, load_workload(name, ["model.lora.rank=8"]).spec.model
    products = [layer for layer in dense.layers if layer.op == "gemm" and not layer.groups and not layer.name.endswith(("router", "head"))]
    factors = [layer for layer in adapted.layers if layer.gradients]
    assert [layer.name for layer in factors] == [f"{layer.name}.lora_{end}" for layer in products for end in "ab"]
    assert sum(sum(layer.gradients) for layer in factors) == sum(8 * sum(layer.channels) for layer in products)
    shares = {layer.name: layer.share for layer in adapted.layers}
    by_share = {"colwise": ["replicated", "colwise", "heads"], "rowwise": ["rowwise", "replicated", "sequence"]}
    by_share["replicated"] = ["replicated"] * 3
    for layer in products:
        of_adapter = [shares[f"{layer.name}.lora_{part}"] for part in ("a", "b", "add")]
        assert of_adapter == by_share[layer.share]


def test_targets_that_match_no_product_are_told_those_of_the_model() -> None:
    with pytest.raises(SpecError, match=r"no product is called qkv_proj; choose from attention\.qkv, attention\.output, mamba\.input, "):
        load_workload("nemotron-h-8b", ["model.lora.rank=8", "model.lora.targets=[qkv_proj]"])


def test_sequences_of_unequal_length() -> None:
    """Two documents of 1/4 and 3/4 in each sequence: attention works on 1/16 + 9/16 of the square; unpadded, on their mean."""
    dense = decoder_layers(shape(**LLAMA), 512)
    mean, square = (1 / 4 + 3 / 4) / 2, (1 / 16 + 9 / 16) / 2
    packed, loose = with_lengths(dense, "packed", mean, square), with_lengths(dense, "unpadded", mean, square)
    core = attended_pairs(512) * 2 * 512 * 2
    assert [total(layers, "forward", "layers.0.attention.core") for layers in (packed, loose)] == [core * 10 / 16, core * 10 / 32]
    rest = total(dense, "forward", ".qkv", ".output", ".gate_up", ".down", "head")
    assert [total(layers, "forward", ".qkv", ".output", ".gate_up", ".down", "head") for layers in (packed, loose)] == [rest, rest / 2]
    assert total(packed, "saved") == total(dense, "saved") == 2 * total(loose, "saved")
    dropping = decoder_layers(shape(**GPT, dropout=0.1, composed_gelu=True), 256)
    for name in ("casts", "dropped", "composed"):
        assert total(dropping, name) == 2 * total(with_lengths(dropping, "unpadded", mean, square), name) > 0
    described = {"name": "x", "transformer": LLAMA, "sequence": 512, "padding": "packed", "source": "a test"}
    lengths = {"mean": mean, "square": square, "source": "a test"}
    assert Model.model_validate({**described, "lengths": lengths}).layers == packed
    with pytest.raises(ValueError, match="padding packed needs lengths"):
        Model.model_validate(described)


def test_shapes_that_contradict_themselves() -> None:
    cases = {
        "not a multiple of heads": {**LLAMA, "heads": 7, "kv_heads": 7},
        "not a multiple of kv_heads": {**LLAMA, "kv_heads": 3},
        "needs ffn": {**LLAMA, "ffn": None},
        "learned positions need max_seq": {**GPT, "max_seq": None},
        "experts need experts_per_token": {**LLAMA, "experts": 4},
        "is above experts": {**LLAMA, "experts": 4, "experts_per_token": 5},
        "experts_per_token needs experts; add experts": {**LLAMA, "experts_per_token": 5},
        "leaves none of the": {**SPARSE, "first_dense_layers": 4},
        "global_every needs a window": {**LLAMA, "global_every": 2},
        "composed_gelu needs activation gelu, not swiglu": {**LLAMA, "composed_gelu": True},
        "requires parallel blocks": {**LLAMA, "norms_per_layer": 1},
    }
    for sentence, fields in cases.items():
        with pytest.raises(ValueError, match=sentence):
            shape(**fields)
    with pytest.raises(ValueError, match="exceeds the model's 4096 positions"):
        decoder_layers(shape(**LLAMA), 4097)
    with pytest.raises(ValueError, match=r"no layer is called layers\.9"):
        trained_layers(shape(**LLAMA), 128, None, ("layers.9",))
