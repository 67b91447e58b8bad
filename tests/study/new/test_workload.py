"""Which decoder does a configuration describe, and which workload does it become? Oracles: parameters of released models."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.spec.decoder import parameter_count
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.foreign.hf_families import FAMILIES
from sim.spec.library import load_workload
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from sim.study.new.workload import by_questions, new_workload, write
from tests.study.new.launched import CONFIGS, EIGHT_BILLION, LATENT, MEGATRON, SMALL, TORCHTITAN, usual

pytestmark = pytest.mark.usefixtures("no_layout_search")


MPT = CONFIGS["mpt"][1]
ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
SMALL_LATENT = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
COUNTED: dict[str, tuple[int, dict[str, Any]]] = {
    # model_type: parameters of transformers 5.23.0's AutoModelForCausalLM with SMALL and these on the meta device
    "smollm3": (3010816, {}),
    "seed_oss": (4057344, {"head_dim": 64}),
    "ernie4_5": (5370112, {}),
    "hunyuan_v1_dense": (3267072, {"head_dim": 32}),
    "olmo3": (3268352, {"sliding_window": 128}),
    "exaone4": (3267072, {"sliding_window": 128, "sliding_window_pattern": 4}),
    "cohere": (3009792, {}),
    "cohere2": (3009792, {"sliding_window": 128, "head_dim": 32}),
    "glm": (3268864, {"head_dim": 32}),
    "glm4": (3270912, {"head_dim": 32}),
    "glm4_moe": (3789056, {"head_dim": 32, "first_k_dense_replace": 1, **ROUTED}),
    "glm4_moe_lite": (3322496, ROUTED | SMALL_LATENT),
    "dots1": (4010496, {"head_dim": 32, "first_k_dense_replace": 1, **ROUTED, "n_shared_experts": 2}),
    "minimax_m2": (17039104, {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "olmoe": (17039104, {"num_experts": 8, "num_experts_per_tok": 2}),
    "granitemoe": (17037568, {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "phimoe": (17039872, {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "ministral": (3266816, {"head_dim": 32}),
    "ministral3": (3266816, {"head_dim": 32}),
    "arcee": (2611456, {}),
    "stablelm": (3269120, {}),
    "granite": (3266816, {}),
}


def test_families_have_as_many_parameters_as_in_transformers() -> None:
    wrong = {}
    for kind, (parameters, more) in COUNTED.items():
        count = parameter_count(Transformer.model_validate(decoder_of({"model_type": kind, **SMALL, **more}, "config.json").shape))
        if count != parameters:
            wrong[kind] = (count, parameters)
    assert not wrong


def test_configurations_of_every_family() -> None:
    wrong = []
    for kind, (parameters, said) in CONFIGS.items():
        shape = Transformer.model_validate(decoder_of({"model_type": kind, **said}, "config.json").shape)
        if abs(parameter_count(shape) / parameters - 1) > 2e-4:
            wrong.append((kind, parameter_count(shape), parameters))
    assert not wrong
    assert set(CONFIGS) <= set(FAMILIES)
    outside = {"model_type": "gemma3", "text_config": CONFIGS["gemma3_text"][1]}
    assert decoder_of(outside, "").shape == decoder_of({"model_type": "gemma3_text", **CONFIGS["gemma3_text"][1]}, "").shape


def test_a_configuration_becomes_a_workload_that_loads(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **usual(2, 256, 4, 704, 1000, 2048)}))
    zero = tmp_path / "zero.json"
    zero.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}))
    made = new_workload([str(folder), str(zero)], tmp_path / "made.yaml")
    written = load_workload(str(made.path)).spec
    assert (written.name, written.model.sequence, written.training.batch, written.training.parallel.shard) == ("made", 2048, 4, "gradients")
    assert written.training.stack.name == "hf-deepspeed"  # only a transformers Trainer fills in what is auto
    assert written.dataset.prepared == 16 * 2048
    with pytest.raises(SpecError, match="--force"):
        new_workload([str(folder)], tmp_path / "made.yaml")
    for other in ("llama-3.1-8b", str(folder / "config.json")):
        with pytest.raises(SpecError, match=f"{folder}/config.json and {other}: 2 model configurations; name one"):
            new_workload([str(folder), other], tmp_path / "both.yaml")
    new_workload([str(folder)], tmp_path / "made.yaml", sequence=128, overwrite=True)
    assert load_workload(str(made.path)).spec.model.sequence == 128


def test_a_catalog_model_is_trained_at_the_sequence_of_the_catalog(tmp_path: Path) -> None:
    """Oracle: the catalog's description. Qwen 2.5 was trained at 4,096 tokens, although it takes 131,072."""
    for name, stated, tokens in (("qwen2.5-7b", None, 4096), ("mixtral-8x7b", None, 32768), ("qwen2.5-7b", 2048, 2048)):
        made = new_workload([name], tmp_path / "made.yaml", sequence=stated, overwrite=True)
        assert load_workload(str(made.path)).spec.model.sequence == tokens
        assert f"sequences of {tokens:,} tokens" in made.note


def test_answers_on_a_terminal(tmp_path: Path) -> None:
    answers = {"layers": "4", "hidden size": "512", "attention heads": "8", "tokens per sample": "1024", "vocabulary": "5000"}
    made = write(by_questions(lambda question, default: answers.get(question, default)), "mine", tmp_path / "mine.yaml", None, "answers")
    model = load_workload(str(made.path)).spec.model
    assert model.transformer is not None
    assert (model.transformer.layers, model.transformer.ffn, model.sequence) == (4, 1536, 1024)
    like = by_questions(lambda question, default: "llama-3.2-1b" if "catalog" in question else default)
    assert like.model == "llama-3.2-1b"


def test_an_answer_that_makes_no_sense_is_asked_for_again() -> None:
    """Oracle: what a decoder's sizes must be; without a terminal, the first such answer is an error."""
    wrong = {"layers": "many", "attention heads": "7", "key and value heads": "3", "activation": "5632", "norm": "batch"}
    questions: list[str] = []

    def ask(question: str, default: str) -> str:
        questions.append(question)
        return wrong.get(question.split(" (")[0], default) if questions.count(question) == 1 else default

    refused: list[str] = []
    told = by_questions(ask, lambda error: refused.append(str(error)))
    assert (told.shape["layers"], told.shape["heads"], told.shape["activation"]) == (32, 32, "swiglu")
    assert refused == [
        "layers: many is not a whole number of 1 or more", "attention heads: 7 does not divide 4096",
        "key and value heads: 3 does not divide 32", "activation: 5632 is unknown; write swiglu, geglu, gelu, relu or relu2",
        "norm: batch is unknown; write rmsnorm or layernorm",
    ]  # fmt: skip
    with pytest.raises(SpecError, match="layers: many is not a whole number"):
        by_questions(lambda question, default: wrong.get(question, default))
    odd = by_questions(lambda question, default: "2880" if question == "hidden size" else default)
    assert odd.shape["hidden"] % odd.shape["heads"] == 0


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    llama = {"model_type": "llama", **CONFIGS["llama"][1]}
    cases: list[tuple[str, str, str]] = [
        (
            "a.json",
            json.dumps({"model_type": "mamba"}),
            "unknown model_type mamba: its layers have the selective scan of Mamba-1, which is not modeled",
        ),
        (
            "a.json",
            json.dumps({"model_type": "jamba", "architectures": ["JambaForCausalLM"]}),
            "or, with transformers installed, trace it: python -m sim extract transformers:JambaForCausalLM --input input_ids=512",
        ),
        (
            "b.json",
            json.dumps({**llama, "num_key_value_heads": 5}),
            r"num_attention_heads \(32\) is not a multiple of num_key_value_heads \(5\)",
        ),
        ("c.json", json.dumps({key: value for key, value in llama.items() if key != "vocab_size"}), "vocab_size is missing"),
        ("d.json", json.dumps({**llama, "hidden_size": "wide"}), "hidden_size.*'wide' is not a whole number"),
        ("e.json", "{", "JSON is truncated or invalid"),
        ("f.json", json.dumps({"zero_optimization": {"stage": 3}}), "no model is described"),
        ("g.sh", "--num-layers 2 --hidden-size 64 --num-attention-heads 4", "add --padded-vocab-size"),
        ("h.sh", MEGATRON.replace("TP=8\n", ""), "does not set this variable"),
        ("i.sh", MEGATRON.replace("size 1536", "size 1535"), "not a multiple of the micro-batch of 2; write 1536"),
        ("j.toml", TORCHTITAN.replace("70B", "7B"), "llama3 7B is not in the catalog"),
        ("k.txt", "hello", "is not a config.json"),
        ("l.json", json.dumps({**llama, "hidden_act": "mystery"}), "unknown activation mystery"),
        ("m.json", json.dumps({"model_type": "mpt", **MPT, "attn_config": [1]}), "attn_config is a single value; expected a block of keys"),
        ("n.json", json.dumps({"model_type": "mpt", **MPT, "expansion_ratio": "four"}), "expansion_ratio: 'four' is not a number above 0"),
        ("o.toml", TORCHTITAN.replace("batch_size = 4", 'batch_size = "four"'), r"training\.local_batch_size four: write a whole number"),
        ("p.toml", TORCHTITAN.replace("seq_len = 4096", "seq_len = 0.5"), r"training\.seq_len 0\.5: write a whole number, 1 or more"),
        ("q.toml", TORCHTITAN.replace("l_degree = 8", "l_degree = -1"), r"parallelism\.tensor_parallel_degree -1: write a whole number"),
        ("r.toml", TORCHTITAN.replace('"full"', '"sometimes"'), "unknown activation_checkpoint.mode sometimes; supported: none, full"),
        ("s.toml", TORCHTITAN + "[", "is not TOML"),
        ("t.sh", MEGATRON + "--hidden-dropout much", "--hidden-dropout much: write a number of 0 or more"),
        ("u.sh", MEGATRON + "--hybrid-attention-ratio 0.1", "--hybrid-attention-ratio selects layers that are not supported"),
        ("u1.sh", MEGATRON + "--hybrid-override-pattern M*M-", "--hybrid-override-pattern has 4 layers, not 96; write --num-layers: 4"),
        ("v.sh", MEGATRON + "--window-size wide", "--window-size wide: write the number of previous tokens"),
        (
            "w.sh",
            MEGATRON + "--use-megatron-fsdp --data-parallel-sharding-strategy all",
            "sharding-strategy all; supported: no_shard",
        ),
    ]
    for name, text, sentence in cases:
        (tmp_path / name).write_text(text)
        with pytest.raises(SpecError, match=sentence):
            new_workload([str(tmp_path / name)], tmp_path / "made.yaml")
    (tmp_path / "fine.json").write_text(json.dumps(llama))
    with pytest.raises(SpecError, match="longer than the model's 131072 positions"):
        new_workload([str(tmp_path / "fine.json")], tmp_path / "made.yaml", sequence=200_000)
    with pytest.raises(SpecError, match="no such file or folder"):
        new_workload([str(tmp_path / "nothing.json")], tmp_path / "made.yaml")
    assert not list(tmp_path.glob("*.yaml"))
    assert not list(tmp_path.glob(".*"))


def test_names_on_the_hub_hold_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: ids of released models; a path that ends like a file is none."""
    downloaded: list[str] = []

    def download(name: str, file: str) -> str:
        downloaded.append(name)
        (tmp_path / file).write_text(json.dumps(EIGHT_BILLION))
        return str(tmp_path / file)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    names = ["meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "mistralai/Mistral-7B-v0.1", "gpt2-team/gpt2"]
    for name in names:
        assert "8.03 billion" in new_workload([name], tmp_path / "mine.yaml", overwrite=True).note
    assert downloaded == names
    with pytest.raises(SpecError, match=r"no such file or folder$"):
        new_workload(["runs/config.json"], tmp_path / "mine.yaml", overwrite=True)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("GatedRepoError", "the model is gated: accept its terms on the hub and log in"),
        ("RepositoryNotFoundError", "the hub has no such model, or it is private"),
        ("ConnectTimeout", r"the hub does not respond \(ConnectTimeout\)"),
    ],
)
def test_a_hub_that_gives_nothing_is_one_sentence(error: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, file: str) -> str:
        raise type(error, (Exception,), {})("many\nlines")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=refuse))
    with pytest.raises(SpecError, match=f"^meta-llama/Llama-9-8B: {sentence}[^\n]*; or download its config.json and pass the file$"):
        new_workload(["meta-llama/Llama-9-8B"], tmp_path / "mine.yaml")
    assert not (tmp_path / "mine.yaml").exists()


MIXTRAL = usual(2, 64, 4, 128, 100, 32, model_type="mixtral", num_key_value_heads=4, num_local_experts=4, num_experts_per_tok=2)
WRONG_SIZES = {
    "heads": (usual(2, 65, 4, 128, 100, 32, model_type="llama"), "hidden_size (65) is not a multiple of num_attention_heads (4); write h"),
    "correction": (usual(2, 65, 4, 128, 100, 32, model_type="llama"), "write head_dim, or hidden_size: 68"),
    "zero": (usual(2, 64, 4, 128, 100, 32, model_type="llama", hidden_size=0), "hidden_size: 0 is too small"),
    "key heads": (
        usual(2, 64, 4, 128, 100, 32, model_type="llama", num_key_value_heads=3),
        "num_attention_heads (4) is not a multiple of num_key_value_heads (3); write num_key_value_heads: 4",
    ),
    "experts": (MIXTRAL | {"num_experts_per_tok": 5}, "num_experts_per_tok (5) is above num_local_experts (4); write 4 or less"),
    "another family": (
        {"model_type": "gpt2", "n_embd": 65, "n_head": 4, "n_layer": 2, "vocab_size": 100, "n_positions": 32},
        "n_embd (65) is not a multiple of n_head (4)",
    ),
    "a block": (
        {"model_type": "llava", "text_config": usual(2, 64, 4, 128, 0, 32, model_type="llama")},
        "text_config.vocab_size: 0 is too small; write a whole number, 1 or more",
    ),
    "latent": (
        usual(2, 64, 4, 128, 100, 32, model_type="deepseek_v3", moe_intermediate_size=32, num_experts_per_tok=1, n_routed_experts=2)
        | LATENT | {"kv_lora_rank": -1},
        "config.json: kv_lora_rank: -1 is too small",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_SIZES)
def test_a_message_about_a_size_names_the_key_of_the_file(case: str, tmp_path: Path) -> None:
    config, says = WRONG_SIZES[case]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError) as raised:
        new_workload([str(tmp_path / "config.json")], tmp_path / "mine.yaml")
    assert says in str(raised.value)
    ours = set(Transformer.model_fields) - set(config) - set(config.get("text_config", {})) - {"head_dim"}
    assert not ours & set(re.findall(r"\w+", str(raised.value).partition("config.json: ")[2]))
    assert not (tmp_path / "mine.yaml").exists()
