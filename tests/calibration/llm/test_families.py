"""Sizes of models by their names (``records/llm/families.yaml``). Oracles: the files that ``read`` names, and published totals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from calibration.llm.shapes import records_yaml
from sim.spec.decoder import parameter_count
from sim.spec.transformer import Transformer
from tests.calibration.llm.test_unseen import _BLANK, case_of

_NAMES = ("match", "source", "read", "catalog", "family")
_MANY = {"gpus": "1024", "dp": "1024", "nodes": "128", "global_batch": "1024", "status": "oom"}


def _sized() -> list[dict[str, Any]]:
    return [entry for entry in records_yaml("families.yaml") if "layers" in entry]


def test_sizes_of_each_line_fit_each_other() -> None:
    """A Transformer refuses sizes that do not divide; the others are checked here."""
    wrong = []
    for entry in _sized():
        gated = {"activation": "swiglu"} | {key: value for key, value in entry.items() if key not in _NAMES}
        shape = Transformer.model_validate(gated)
        if shape.heads % (shape.kv_heads or shape.heads) or (shape.head_dim is None and shape.mla is None and shape.hidden % shape.heads):
            wrong.append((entry["match"], "heads"))
        if shape.experts and not (shape.experts_per_token and shape.expert_ffn):
            wrong.append((entry["match"], "experts"))
        if shape.pattern is not None and len(shape.pattern) != shape.layers:
            wrong.append((entry["match"], "pattern"))
    assert not wrong


def test_each_line_says_where_its_sizes_were_read() -> None:
    """A repository with a path, ``quoted``, or nothing if no text was found; every line names what defines the sizes."""
    read = [entry["read"] for entry in records_yaml("families.yaml") if "read" in entry]
    assert [place for place in read if place != "quoted" and not re.fullmatch(r"[\w.-]+/[\w.-]+:[\w./-]+", place)] == []
    assert all(entry["source"] for entry in records_yaml("families.yaml"))
    assert len(_sized()) - sum("read" in entry for entry in _sized()) <= UNREAD, "a new line needs a text that was read"


UNREAD = 52
"""Lines whose sizes no stored text confirms; may only shrink."""


@pytest.mark.parametrize(
    ("model", "fields"),
    [  # what each file in ``read`` says, beyond sizes that change the number of parameters
        ("DeepSeek-V2-Lite", {"ffn": 10944, "vocab": 102400}),
        ("Moonlight-16B-A3B", {"ffn": 11264, "vocab": 163840}),
        ("internlm-7b", {"bias": "qkv_output"}),
        ("InternLM-20B", {"bias": "none"}),
        ("OLMo-7B", {"norm": "nonparametric"}),
        ("Phi-3.5-MoE", {"bias": "qkv_output", "head_bias": True}),
        ("Phi-3-mini-4k-instruct", {"window": 2048}),
        ("Phi-3.5-mini-instruct", {"window": 0}),
        ("GLM-4-32B-0414", {"norms_per_layer": 4}),
        ("GLM-4 9B", {"norms_per_layer": 2}),
        ("StableLM-2-12B", {"qk_norm": "all"}),
        ("Falcon2-11B", {"norms_per_layer": 1}),
        ("Command R+", {"qk_norm": "head", "norm_bias": False}),
        ("Command-R", {"qk_norm": "none", "norm_bias": False}),
        ("dbrx", {"norm_bias": False}),
        ("bloom-7b1", {"embedding_norm": True}),
    ],
)
def test_parts_of_models_by_their_names(tmp_path: Path, model: str, fields: dict[str, Any]) -> None:
    shape = case_of(tmp_path, model=model, **_MANY, **_BLANK).shape
    assert {name: getattr(shape, name) for name in fields} == fields


def test_models_of_llm_foundry_have_its_defaults(tmp_path: Path) -> None:
    """Oracle: mosaicml/llm-foundry, MPTConfig (no_bias False, learned_pos_emb True), which its files for pre-training do not change."""
    shape = case_of(tmp_path, model="MPT-7b", hidden="4096", layers="32", heads="32", kv_heads="", ffn_hidden="16384", vocab="50368").shape
    assert (shape.bias, shape.norm_bias, shape.positions, shape.tied) == ("all", None, "learned", True)


def test_totals_of_bloom_include_the_norm_of_its_embedding(tmp_path: Path) -> None:
    """Oracle: parameters of the weights on the hub (bigscience/bloom-*)."""
    published = {"bloom-560m": 559_214_592, "bloom-1b1": 1_065_314_304, "bloom-7b1": 7_069_016_064, "bloom": 176_247_271_424}
    counted = {model: parameter_count(case_of(tmp_path, model=model, **_MANY, **_BLANK).shape) for model in published}
    assert counted == published
