"""Encoders. Oracles: tensors of transformers' ``modeling_*.py``, added up here, published totals, and traced models of the catalog."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sim.api import simulate
from sim.cluster.kernels import visible_keys
from sim.spec.decoder import attended_pairs, decoder_layers, parameter_count
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.layer import Layer
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload
from tests.spec.foreign.test_hf_config import sizes

BERT = sizes(12, 768, 12, 3072, 30522, 512) | {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "type_vocab_size": 2}
ROBERTA = sizes(12, 768, 12, 3072, 50265, 514) | {"hidden_act": "gelu", "type_vocab_size": 1}
MODERNBERT = sizes(22, 768, 12, 1152, 50368, 8192) | {"global_attn_every_n_layers": 3, "local_attention": 128, "norm_bias": False}
MODERNBERT |= {"hidden_activation": "gelu", "classifier_pooling": "mean", "position_embedding_type": "absolute"}


def block(hidden: int, inner: int) -> int:
    """Weights and biases of BERT's layers, with two norms."""
    return 4 * (hidden**2 + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden


@pytest.mark.parametrize(
    ("kind", "config", "parameters", "published"),
    [  # published: google-bert/bert-base-uncased 109.5 million with its head, FacebookAI/roberta-base 124.7, ModernBERT-base 149
        ("bert", BERT, (30522 + 512) * 768 + 30522 + 2 * 2 * 768 + 12 * block(768, 3072), 109.5e6),
        ("roberta", ROBERTA, (50265 + 512) * 768 + 50265 + 2 * 2 * 768 + 12 * block(768, 3072), 124.7e6),
        # the first layer has no norm before attention, but the head has one
        ("modernbert", MODERNBERT, 50368 * 769 + 22 * (4 * 768**2 + 3 * 768 * 1152 + 2 * 768) + 2 * 768, 149.6e6),
    ],
)
def test_weights_are_those_of_the_published_code(kind: str, config: dict[str, Any], parameters: int, published: float) -> None:
    decoder = decoder_of({"model_type": kind, **config}, "config.json")
    counted = parameter_count(Transformer.model_validate(decoder.shape))
    assert counted == parameters
    assert counted == pytest.approx(published, rel=0.01)
    assert any("computes logits of all tokens" in note for note in decoder.notes)


def total(layers: tuple[Layer, ...], field: str, *ops: str) -> float:
    return math.fsum(getattr(layer, field) for layer in layers if layer.op in ops)


def test_bert_is_that_of_the_catalog_but_for_its_head() -> None:
    """The catalog's is traced. Its head computes logits of 20 masked tokens, and whether a sentence follows; this one's, of all tokens."""
    shape = Transformer.model_validate(decoder_of({"model_type": "bert", **BERT}, "config.json").shape)
    made, traced = decoder_layers(shape, 128), load_part(Model, "bert-base-seq128").layers
    head = {"made": 2.0 * 128 * 768 * 30522, "traced": 2.0 * 20 * 768 * (30522 + 768) + 2.0 * 768 * (768 + 2)}
    for field, passes in (("forward", 1), ("backward", 2)):
        body = total(made, field, "gemm") - passes * head["made"]
        assert body == pytest.approx(total(traced, field, "gemm") - passes * head["traced"], rel=0.001)
    assert total(made, "forward", "attention") == total(traced, "forward", "attention"), "all pairs of tokens"


def test_attention_reaches_both_ways() -> None:
    """A window of 64 tokens on either side has 129 keys, and its blocks reach both ways; without one, all pairs count."""
    shape = Transformer.model_validate(decoder_of({"model_type": "modernbert", **MODERNBERT}, "config.json").shape)
    assert (shape.causal, shape.window, shape.global_every) == (False, 64, 3)
    cores = [layer.attention for layer in decoder_layers(shape, 1024) if layer.attention is not None]
    assert [core.window for core in cores].count(0) == 22 // 3
    assert not any(core.causal for core in cores)
    near, far = (next(core for core in cores if bool(core.window) is windowed) for windowed in (True, False))
    assert visible_keys(near) < visible_keys(far) == 1024
    assert attended_pairs(1024, 64, causal=False) == pytest.approx(1024 * 129 - 64 * 65, rel=0.01)
    assert attended_pairs(1024, causal=False) == 1024**2


def test_an_encoder_runs(tmp_path: Path) -> None:
    """Attention to all tokens takes longer than to half of them."""
    said = {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], **MODERNBERT}
    (tmp_path / "config.json").write_text(json.dumps(said))
    made = str(new_workload([str(tmp_path / "config.json")], tmp_path / "mine.yaml", sequence=1024).path)
    both, causal = (simulate("hgx-h100", made, overrides={"model.transformer.causal": each}).step_time for each in ("false", "true"))
    assert both > causal


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type relative_key is not modeled"),
        ({"model_type": "modernbert", "layer_types": ["full_attention"]}, "layer_types has 1 entries, but the model has 12 layers"),
        ({"model_type": "modernbert", "global_attn_every_n_layers": 0}, "global_attn_every_n_layers: 0 is too small"),
        ({"model_type": "modernbert", "local_attention": -5}, "local_attention: -5 is too small; write a whole number, 1 or more"),
        ({"model_type": "roberta", "architectures": ["RobertaForTokenClassification"]}, "another head than that for masked tokens"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, r'no head; .*, write "architectures": \["BertForMaskedLM"\] in a copy'),
        (
            {"model_type": "deberta-v2", "conv_kernel_size": 3},
            "DebertaV2ForMaskedLM is not a decoder; the nearest of the catalog are rob",
        ),
        ({"model_type": "clip", "text_config": {"model_type": "clip_text_model"}}, "clip, and CLIPModel is not a decoder"),
        ({"model_type": "mt5"}, "MT5ForConditionalGeneration is not a decoder.*; the nearest of the catalog are t5-"),
    ],
)
def test_what_cannot_be_described_is_refused_with_what_is_near(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as raised:
        decoder_of(BERT | said, "config.json")
    assert "like those of" not in str(raised.value) and "\n" not in str(raised.value)


def test_an_unknown_family_is_not_said_to_be_like_an_encoder() -> None:
    with pytest.raises(SpecError, match="unknown model_type bertha; if its layers are like those of llama"):
        decoder_of(sizes(4, 256, 8, 640, 1000, 512) | {"model_type": "bertha"}, "config.json")
