"""Oracles: parameters that transformers counts on the meta device, and the keys of published files."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sim.extract.target import parse_arguments, parse_input
from sim.spec.catalog import catalog
from sim.spec.decoder import parameter_count
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.foreign.hf_defaults import DEFAULTS
from sim.spec.foreign.hf_families import FAMILIES
from sim.spec.foreign.hf_hub import OF_THE_HUB
from sim.spec.library import load_part, load_workload
from sim.spec.model import Model
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload


def sizes(layers: int, hidden: int, heads: int, inner: int, vocab: int, positions: int, **more: Any) -> dict[str, Any]:
    names = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": inner}
    return names | {"vocab_size": vocab, "max_position_embeddings": positions} | more


ROOT = Path(__file__).resolve().parents[3]
SMALL = sizes(4, 256, 8, 640, 1000, 512, num_key_value_heads=4)
NESTED: dict[str, int] = {
    # model_type: parameters of transformers 5.23.0's AutoModelForCausalLM with four layers and the class's defaults, on the meta device
    "llama": 1071681536,
    "llama4_text": 10877383680,
    "mistral": 1134596096,
    "mixtral": 6067228672,
    "qwen2": 2595311616,
    "qwen3": 2595263488,
    "qwen3_moe": 3077065216,
    "gpt2": 67736832,
    "gpt_neox": 2431979520,
    "bloom": 16256512,
    "mpt": 304498688,
    "falcon": 1123758464,
    "gemma": 1893755904,
    "gemma2": 901290240,
    "gemma3_text": 915595520,
    "phi": 411187200,
    "phi3": 650013696,
    "deepseek_v2": 4554461184,
    "deepseek_v3": 15111101440,
    "gpt_oss": 14010590528,
    "olmo": 1221591040,
    "olmo2": 1221660672,
    "granite": 1071681536,
    "smollm3": 575162368,
    "seed_oss": 2999013376,
    "ernie4_5": 162538496,
    "ministral3": 1946193920,
    "olmo3": 1221660672,
    "olmoe": 3494938624,
    "exaone4": 1912640512,
    "cohere": 5385527296,
    "cohere2": 5385527296,
    "glm": 2057361408,
    "glm4": 2057394176,
    "glm4_moe_lite": 2625002496,
    "dots1": 2130560640,
    "minimax_m2": 15904070656,
    "granitemoe": 4859269120,
    "phimoe": 5463941120,
    "arcee": 646208000,
    "stablelm": 574796800,
    "starcoder2": 534917120,
}
NESTED_MORE: dict[str, dict[str, int]] = {
    # sizes for which these classes have no defaults
    "deepseek_v2": {"num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
}


def test_sizes_that_a_nested_block_leaves_out_are_the_class_s() -> None:
    """Oracle: parameters that transformers counts."""
    wrong = {}
    for kind, parameters in NESTED.items():
        inside = {"model_type": kind, "num_hidden_layers": 4, **NESTED_MORE.get(kind, {})}
        decoder = decoder_of({"model_type": "around", "text_config": inside}, "config.json")
        if (count := parameter_count(Transformer.model_validate(decoder.shape))) != parameters:
            wrong[kind] = (count, parameters)
        assert "text_config does not set hidden_size" in decoder.notes[0] or "n_embd" in decoder.notes[0], decoder.notes
    assert not wrong
    assert set(DEFAULTS) == set(FAMILIES) - set(OF_THE_HUB) - {"RefinedWeb", "RefinedWebModel"}


@pytest.mark.parametrize(("groups", "chosen", "limited"), [(8, 4, True), (1, 1, False), (8, 8, False)])
def test_routing_that_is_limited_to_groups_is_read(groups: int, chosen: int, limited: bool) -> None:
    """Oracle: deepseek-ai/DeepSeek-V3 (4 of 8 groups) and Moonlight-16B-A3B (1 of 1), config.json."""
    routed = {"n_routed_experts": 16, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": groups, "topk_group": chosen}
    inside = {"model_type": "deepseek_v3", "num_hidden_layers": 4, **routed}
    decoder = decoder_of({"model_type": "around", "text_config": inside}, "config.json")
    read = Transformer.model_validate(decoder.shape)
    assert (read.expert_groups, read.groups_per_token) == ((groups, chosen) if limited else (1, None))
    assert not any(note.startswith("topk_group") for note in decoder.notes)


def test_defaults_are_those_of_the_classes_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="compares with its configuration classes")
    wrong: dict[str, Any] = {}
    for kind in set(DEFAULTS) - {"qwen2_5_vl", "qwen2_vl", "kimi_k2"}:  # classes around others, and none of transformers' own
        made = transformers.AutoConfig.for_model(kind)
        differ = {
            name: getattr(made, name, None) for name, size in DEFAULTS[kind].items() if getattr(made, name, None) not in (size, None, 0)
        }  # None, 0: of a window that is off
        wrong |= {kind: differ} if differ else {}
    assert not wrong


@pytest.mark.parametrize(
    ("layers", "parameters", "inside"),
    [  # google/gemma-3-4b-it and -12b-it: text_config without what Gemma3TextConfig says; parameters: as transformers counts them
        (34, 3_880_263_168, {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}),
        (
            48,
            11_766_034_176,
            {"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8},
        ),
    ],
)
def test_gemma_3_as_published(tmp_path: Path, layers: int, parameters: int, inside: dict[str, Any]) -> None:
    said = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "sliding_window": 1024, **inside}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    made = new_workload([str(tmp_path / "config.json")], tmp_path / "gemma.yaml")
    model = load_workload(str(made.path)).spec.model
    assert model.transformer is not None
    assert (model.parameters, model.transformer.layers, model.transformer.global_every) == (parameters, layers, 6)
    assert "text_config does not set " in made.left_out[0]
    assert "vocab_size 262208" in (tmp_path / "gemma.yaml").read_text()


def test_messages_say_where_a_key_goes() -> None:
    inside = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    with pytest.raises(SpecError, match=r"config\.json: text_config\.hidden_size: 'wide' is not a whole number"):
        decoder_of({"model_type": "gemma3", "text_config": inside | {"hidden_size": "wide"}}, "config.json")
    with pytest.raises(SpecError, match=r"vocab_size \(1000\) is outside text_config, .* \(it uses 262208\); move it into text_config"):
        decoder_of({"model_type": "gemma3", "vocab_size": 1000, "text_config": inside}, "config.json")


ROUTED_FILE = sizes(48, 2048, 32, 6144, 151936, 40960, num_key_value_heads=4, head_dim=128) | {
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_window_layers": 48, "router_aux_loss_coef": 0.001, "norm_topk_prob": True,
}  # fmt: skip
"""The sizes of Qwen3-30B-A3B."""


def test_layers_that_a_family_does_not_have_are_refused() -> None:
    """Oracle: the file's own keys; a family that is suggested reads it as the model it is, of 30.5 billion parameters."""
    routed, plain = ROUTED_FILE, {"model_type": "llama", **SMALL}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model_type": "foo_moe", **routed}, "foo_moe; if its layers are like those of qwen3_moe, set"),
        (
            {"model_type": "llama", **routed},
            "num_experts 128, .*moe_intermediate_size 768.*: layers of llama do not support this.* qwen3_moe, set",
        ),
        (plain | {"layer_types": ["full_attention", "conv"]}, "layer_types full_attention/conv: layers of llama do not support this"),
        (plain | {"ssm_state_size": 16}, "ssm_state_size 16: layers of llama do not support this"),
        (
            plain | {"model_type": "zebra", "mamba_dt_rank": 16},
            "zebra; no supported family has layers with mamba_dt_rank 16; or",
        ),
        ({"model_type": "koala_linear", **routed, "linear_attn_rank": 16}, "no supported family has layers with linear_attn_rank 16"),
        ({"model_type": "qwen3_moe", **routed, "mlp_only_layers": [3, 7]}, r"mlp_only_layers: layers \[3, 7\] without experts are not"),
    ]
    for said, sentence in cases:
        with pytest.raises(SpecError, match=sentence):
            decoder_of(said, "config.json")
    decoder = decoder_of({"model_type": "qwen3_moe", **routed}, "config.json")
    assert parameter_count(Transformer.model_validate(decoder.shape)) == 30_532_122_624
    assert not decoder.notes
    assert decoder_of({"model_type": "qwen3_moe", **routed, "shared_expert_intermediate_size": 0}, "config.json") == decoder  # Qwen3-Coder


@pytest.mark.parametrize(
    ("kind", "key", "default"),
    [
        *(
            ("gpt2", "resid_pdrop", 0.1),
            ("phi3", "resid_pdrop", 0.0),
            ("gpt_neox", "hidden_dropout", 0.0),
            ("bloom", "hidden_dropout", 0.0),
        ),
        *(("opt", "dropout", 0.1), ("seed_oss", "residual_dropout", 0.1), ("starcoder2", "residual_dropout", 0.0)),
    ],
)
def test_dropout_before_residuals_is_read(kind: str, key: str, default: float) -> None:
    """Defaults are those of transformers' classes; dropout of attention's probabilities is inside its kernel."""
    plain = {"model_type": kind, **SMALL, "attention_dropout": 0.3, "attn_pdrop": 0.3}
    for said, rate in (({}, default), ({key: 0.2}, 0.2), ({key: 0.0}, 0.0)):
        assert Transformer.model_validate(decoder_of(plain | said, "config.json").shape).dropout == rate


def test_a_gelu_of_operators_is_read() -> None:
    """Oracle: transformers/activations.py; its class for "gelu_new" is in Python, those for the others call a kernel of torch."""
    for kind, name, composed in (
        ("gpt2", "gelu_new", True),
        ("gpt2", "gelu", False),
        ("phi", "gelu_new", True),
        ("gemma", "gelu_new", False),
    ):
        shape = decoder_of({"model_type": kind, **SMALL, "activation_function": name}, "config.json").shape
        assert Transformer.model_validate(shape).composed_gelu is composed, (kind, name)


def test_keys_that_change_nothing_are_read_over_and_other_sizes_are_named() -> None:
    plain = decoder_of({"model_type": "llama", **SMALL}, "config.json")
    inert: dict[str, Any] = {"num_experts": 1, "moe_intermediate_size": 640, "max_window_layers": 4, "pad_token_id": 9}
    inert |= {"layer_types": ["full_attention"] * 4}
    assert decoder_of({"model_type": "llama", **SMALL, **inert}, "config.json") == plain
    assert decoder_of({"model_type": "llama", **SMALL, "bottleneck_dim": 32}, "config.json").notes == ("ignored: bottleneck_dim 32",)


def test_configurations_that_transformers_writes_are_read_without_a_word() -> None:
    """Oracle: whatever a class of transformers writes of itself names no layers that it does not have."""
    transformers = pytest.importorskip("transformers", reason="reads what its configuration classes write")
    for kind in NESTED:
        written = transformers.AutoConfig.for_model(kind, num_hidden_layers=4, **NESTED_MORE.get(kind, {})).to_diff_dict()
        decoder = decoder_of(written, "config.json")
        assert parameter_count(Transformer.model_validate(decoder.shape)) == NESTED[kind], kind


VIT = {
    "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 1024, "image_size": 384, "num_channels": 3,
    "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 16, "qkv_bias": True, "layer_norm_eps": 1e-12, "encoder_stride": 16,
}  # fmt: skip
BERT = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "max_position_embeddings": 256, "pad_token_id": 0,
    "type_vocab_size": 2,
    **{name: size for name, size in sizes(12, 768, 12, 3072, 30522, 256).items() if name != "max_position_embeddings"},
}  # fmt: skip
ENCODERS: dict[str, tuple[dict[str, Any], str]] = {
    # what the class takes (transformers: models/vit/modeling_vit.py, models/bert/modeling_bert.py), with sizes of the file
    "vit": (VIT, "pixel_values=3x384x384"),
    "bert": (BERT, "input_ids=256:int64"),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_what_is_no_decoder_is_traced_with_its_inputs_and_sizes(kind: str) -> None:
    """Oracle: the sizes of the file, and the extractor's own reading of the command."""
    config, shape = ENCODERS[kind]
    with pytest.raises(SpecError) as raised:
        decoder_of(config, "config.json")
    said = str(raised.value)
    assert ("is not a decoder" in said) != (kind == "bert") and "like those of" not in said and "describe a decoder" not in said
    assert kind != "bert" or "BertForSequenceClassification has another head than that for masked tokens" in said
    command = shlex.split(said.split("python -m sim extract ")[1])
    assert command[:3] == [f"transformers:{config['architectures'][0]}", "--input", shape]
    parse_input(shape)
    given = parse_arguments(command[4::2])
    assert given["hidden_size"] == config["hidden_size"] and given["num_hidden_layers"] == config["num_hidden_layers"]
    assert all(config[name] == size for name, size in given.items())
    named = re.findall(rf"{kind}[-_][\w-]+", said.split("the catalog has ")[1])
    assert named and all(name in catalog("workloads") for name in named)
    assert kind != "bert" or {name.rpartition("-seq")[0] for name in named} == {"bert-base", "bert-large"}


ERNIE = sizes(28, 2560, 20, 12288, 103424, 131072, num_key_value_heads=4) | {
    "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
    "moe_layer_end_index": -1, "moe_layer_interval": 1, "moe_capacity": [64, 64, 64], "use_bias": False,
}  # fmt: skip
HUNYUAN = sizes(32, 4096, 32, 3072, 128167, 32768, num_key_value_heads=8, head_dim=128, attention_head_dim=128) | {
    "moe_intermediate_size": [3072] * 32, "moe_topk": [8] * 32, "num_experts": 64, "num_shared_expert": [1] * 32,
    "use_mixed_mlp_moe": True, "moe_layer_num_skipped": 0, "tie_word_embeddings": True,
}  # fmt: skip
DBRX = {
    "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352, "tie_word_embeddings": False,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip
GPTJ = {"n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64, "vocab_size": 50400}
BIGCODE = {"n_embd": 6144, "n_head": 48, "n_layer": 40, "n_positions": 8192, "n_inner": 24576, "vocab_size": 49152}


@pytest.mark.parametrize(
    ("kind", "config", "parameters"),
    [  # by hand from the layers of transformers' modeling files, in millions or exact; the names of the releases round to these
        ("ernie4_5_moe", ERNIE, 103424 * 2560 + 28 * 2 * 2560 + 2560 + 28 * (2560 * (2560 + 1024) + 2560**2)
         + 3 * 2560 * 12288 + 27 * (64 * 2560 + 66 * 3 * 2560 * 1536)),  # ERNIE 4.5 21B-A3B
        ("hunyuan_v1_moe", HUNYUAN, 128167 * 4096 + 32 * (2 * 4096 + 256) + 4096 + 32 * (4096 * (4096 + 2048) + 4096**2)
         + 32 * (64 * 4096 + 65 * 3 * 4096 * 3072)),  # Hunyuan A13B, of 80 billion
        ("dbrx", DBRX, 2 * 100352 * 6144 + 81 * 6144 + 40 * (6144 * (6144 + 2048) + 6144**2 + 16 * 6144 + 16 * 3 * 6144 * 10752)),  # 132 B
        ("gptj", GPTJ, 6_050_882_784),
        ("gpt_bigcode", BIGCODE, 15_517_456_384),  # StarCoder
        ("qwen2_vl", sizes(28, 3584, 28, 18944, 152064, 32768, num_key_value_heads=4), 7_615_616_512),  # language model of the 7B
    ],
)  # fmt: skip
def test_families_that_few_others_resemble(kind: str, config: dict[str, Any], parameters: int) -> None:
    decoder = decoder_of({"model_type": kind, **config}, "config.json")
    assert parameter_count(Transformer.model_validate(decoder.shape)) == parameters
    assert not decoder.notes


def test_experts_that_differ_between_layers_are_refused() -> None:
    for kind, config, sentence in (
        ("hunyuan_v1_moe", HUNYUAN | {"moe_topk": [8] * 31 + [4]}, "moe_topk: write one whole number, the same for all layers"),
        ("ernie4_5_moe", ERNIE | {"moe_layer_end_index": 20}, "moe_layer_end_index: the layers after layer 20 have no experts"),
        ("dbrx", DBRX | {"ffn_config": 4}, "ffn_config is a single value; expected a block of keys"),
        ("dbrx", DBRX | {"ffn_config": {"ffn_hidden_size": "wide"}}, r"ffn_config\.ffn_hidden_size: 'wide' is not a whole number"),
    ):
        with pytest.raises(SpecError, match=sentence):
            decoder_of({"model_type": kind, **config}, "config.json")


def test_an_encoder_with_a_decoder_is_not_taken_for_a_decoder() -> None:
    """Oracle: inputs that forward of both classes requires (modeling_t5.py, modeling_whisper.py)."""
    text = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True, "d_model": 512}
    sound = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "encoder_layers": 4, "num_mel_bins": 80}
    broken = sound | {"num_mel_bins": None, "max_source_positions": None, "max_target_positions": "many"}
    for config, inputs in (
        (text, "input_ids=512:int64"), (sound | {"max_target_positions": 448}, "input_features=80x3000"),
        (broken, "input_features=80x3000"), (text | {"max_source_positions": None}, "input_ids=512:int64"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=f"{config['architectures'][0]} is not a decoder.* --input {inputs} --input decoder_input_ids="):
            decoder_of(config, "config.json")


SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWED: dict[str, dict[str, Any]] = {
    "gpt_oss": {"num_local_experts": 32, "sliding_window": 128},
    "qwen3": {"sliding_window": 128, "use_sliding_window": True},
    "gemma3_text": {"sliding_window": 128},
}


@pytest.mark.parametrize("kind", WINDOWED)
def test_types_of_layers_decide_which_have_a_window(kind: str) -> None:
    """Oracle: the file's own list, for each layer."""
    config = {"model_type": kind, **SMALL, **WINDOWED[kind], "num_hidden_layers": 24}
    for pattern in ([SLIDING], [SLIDING, FULL], [SLIDING] * 3 + [FULL], [SLIDING] * 5 + [FULL], [FULL]):
        kinds = pattern * (24 // len(pattern))
        decoder = decoder_of(config | {"layer_types": kinds}, "config.json")
        shape = Transformer.model_validate(decoder.shape)
        assert [shape.window_of(layer) for layer in range(24)] == [128 if each == SLIDING else 0 for each in kinds]
        assert not any("layer_types" in note for note in decoder.notes)
    with pytest.raises(SpecError, match="layer_types has 10 entries, but the model has 24 layers"):
        decoder_of(config | {"layer_types": [SLIDING, FULL] * 5}, "config.json")
    with pytest.raises(SpecError, match="full attention must be every n-th one, or the first ones; here they are 3, 7, 8, counted"):
        decoder_of(config | {"layer_types": [FULL if layer in (3, 7, 8) else SLIDING for layer in range(24)]}, "config.json")


def test_lists_of_anything_else_are_no_types() -> None:
    plain = decoder_of({"model_type": "llama", **SMALL}, "config.json")
    assert decoder_of({"model_type": "llama", **SMALL, "layer_types": [[1], {"kind": 2}]}, "config.json").shape == plain.shape


def test_patterns_of_other_keys_fit_the_model() -> None:
    for config, sentence in (
        (
            {"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 0},
            "sliding_window_pattern 0: write a whole number",
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1, 1, 1]}, "no_rope_layers must be a list with one entry for each of the 4 layers"),
    ):
        with pytest.raises(SpecError, match=sentence):
            decoder_of(SMALL | config, "config.json")


@pytest.mark.parametrize(
    ("first", "every", "error"), [(14, 2, "14 layers: as many"), (18, 2, "14 layers: fewer, so"), (25, 1, "28 layers: more")]
)
def test_windows_of_the_last_layers_are_simulated_as_the_closest_mixture(first: int, every: int, error: str) -> None:
    """Oracle: layers from max_window_layers on have the window (transformers, configuration_qwen2.py)."""
    config = {"model_type": "qwen2", **SMALL, "num_hidden_layers": 28, "use_sliding_window": True, "sliding_window": 128}
    decoder = decoder_of(config | {"max_window_layers": first}, "config.json")
    assert decoder.shape["global_every"] == every
    assert f"the first {first} of 28 layers attend to all tokens; simulated as" in decoder.notes[0]
    assert error in decoder.notes[0]
    unlimited = Transformer.model_validate(decoder_of(config | {"max_window_layers": 28}, "config.json").shape)
    assert unlimited.window == 0
    windows = Transformer.model_validate(decoder_of(config | {"max_window_layers": 0}, "config.json").shape)
    assert (windows.window, windows.global_every) == (128, 0)


def test_attention_of_llama_4_is_chunked_unless_every_layer_attends_to_all() -> None:
    """Oracle: transformers, configuration_llama4.py (attention_chunk_size, layer_types)."""
    config = {"model_type": "llama4_text", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 1}
    decoder = Transformer.model_validate(decoder_of(config | {"attention_chunk_size": 256}, "config.json").shape)
    assert (decoder.window, decoder.chunked, decoder.global_every) == (256, True, 4)
    for full in ({"attention_chunk_size": None}, {"attention_chunk_size": 256, "layer_types": ["full_attention"] * 4}):
        decoder = Transformer.model_validate(decoder_of(config | full, "config.json").shape)
        assert (decoder.window, decoder.chunked) == (0, False), full


@pytest.mark.parametrize("spelled", ["pattern", "types", "names before transformers 5"])
def test_a_hybrid_has_a_letter_for_each_layer(spelled: str) -> None:
    """Nemotron 3 Nano as on the hub: 31,577,937,344 parameters without the biases of its routers, which are buffers."""
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    old = spelled == "names before transformers 5"
    names = {"M": "mamba" if old else "linear_attention", "*": "attention" if old else "full_attention", "E": "moe"}
    layers = {"hybrid_override_pattern": pattern} if spelled == "pattern" else {"layers_block_type": [names[each] for each in pattern]}
    config = {
        "model_type": "nemotron_h", "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 1856, "vocab_size": 131072, "max_position_embeddings": 262144, "mlp_hidden_act": "relu2",
        "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "expand": 2,
        "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 3712, "tie_word_embeddings": False, **layers,
    }  # fmt: skip
    decoder = Transformer.model_validate(decoder_of(config, "config.json").shape)
    assert (decoder.pattern, decoder.positions, decoder.activation) == (pattern, "none", "relu2")
    assert parameter_count(decoder) == 31_577_937_344
    assert decoder == load_part(Model, "nemotron-3-nano-30b-a3b").transformer.model_copy(update={"ffn": 1856})
    by_old_name = {name: size for name, size in config.items() if name != "head_dim"} | {"attention_head_dim": 128}
    assert decoder_of(by_old_name, "config.json").notes == decoder_of(config, "config.json").notes
    with pytest.raises(SpecError, match=r"config\.json: hybrid_override_pattern must have a letter for each layer: M"):
        decoder_of(config | {"hybrid_override_pattern": "MEX", "layers_block_type": None}, "config.json")
    with pytest.raises(SpecError, match=r"config\.json: layers_block_type has conv; write some of linear_attention, mamba, full_attention"):
        decoder_of(config | {"layers_block_type": ["mamba", "conv"]}, "config.json")
    with pytest.raises(SpecError, match=r"config\.json: num_hidden_layers is 6, but 52 layers are listed; write 52"):
        decoder_of(config | {"num_hidden_layers": 6}, "config.json")


@pytest.mark.parametrize(
    ("kind", "parameters", "letters"),
    [
        ("qwen3_next", 79_674_391_296 - 48 * 2048, "GEGEGE*E"),
        ("qwen3_5_text", 9.0e9, "G-G-G-*-"),
        ("qwen3_5_moe_text", 35e9, "GEGEGE*E"),
    ],
)
def test_qwen_s_hybrids_have_two_letters_a_layer(kind: str, parameters: float, letters: str) -> None:
    """The classes' defaults are Qwen3-Next-80B-A3B (as on the hub, less the gates of shared experts), Qwen3.5-9B and Qwen3.5-35B-A3B."""
    decoder = Transformer.model_validate(decoder_of({"model_type": "around", "text_config": {"model_type": kind}}, "config.json").shape)
    assert decoder.pattern is not None and decoder.pattern == letters * (decoder.layers // 8)
    assert parameter_count(decoder) == pytest.approx(parameters, rel=0.0 if kind == "qwen3_next" else 0.011)
    listed = {"layer_types": ["full_attention", "linear_attention"], "num_hidden_layers": 2, "model_type": kind}
    assert decoder_of({"model_type": "around", "text_config": listed}, "config.json").shape["pattern"][::2] == "*G"
    with pytest.raises(SpecError, match="layer_types must list linear_attention or full_attention for each of the 3 layers"):
        decoder_of({"model_type": "around", "text_config": listed | {"num_hidden_layers": 3}}, "config.json")


def test_keys_that_change_the_cost_are_named() -> None:
    plain = {"model_type": "llama", **SMALL}
    predicted = decoder_of(plain | {"num_nextn_predict_layers": 1}, "config.json")
    assert "num_nextn_predict_layers 1: not trained here" in predicted.notes[0]
    quantized = decoder_of(plain | {"quantization_config": {"load_in_4bit": True}}, "config.json")
    assert quantized.notes == ("quantization_config load_in_4bit is not modeled: weights have the bytes of training.precision",)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"model_type": "jamba", "attn_layer_period": 8}, "jamba: its layers have the selective scan of Mamba-1, which is not modeled"),
        ({"model_type": "falcon-mamba", "time_step_rank": 8}, "falcon-mamba: its layers have the selective scan of Mamba-1, which"),
        ({"model_type": "Kimi-Linear_text", "linear_attn_config": {}}, "Kimi-Linear_text: its layers have Kimi delta attention, whose"),
        ({"model_type": "minimax_text_01", "attn_type_list": [0, 1, 0, 1]}, r"lightning \(linear\) attention, which is not modeled"),
        ({"model_type": "nemotron-nas", "block_configs": [{"attention": {}}, {"ffn": {}}]}, "no .* layers with block_configs for 2 layers"),
        ({"model_type": "mixtral", "attn_layer_period": 8, "num_local_experts": 8}, "attn_layer_period 8: layers of mixtral do not"),
        ({"model_type": "llama", "rope_scaling": {"type": "banana", "factor": -3}}, "rope_scaling: unknown type banana; known: default"),
        ({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": -3}}, "rope_scaling.factor -3: write a number above 0"),
        ({"model_type": "llama", "tie_word_embeddings": "yes"}, "tie_word_embeddings: 'yes' is not true or false; write one of them"),
    ],
)
def test_what_no_decoder_here_has_is_refused_without_a_similar_one(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as raised:
        decoder_of(SMALL | said, "config.json")
    assert "like those of" not in str(raised.value)


@pytest.mark.parametrize("said", [{"model_type": {}}, {"model_type": [1]}, {"text_config": {"model_type": 3}}])
def test_a_family_that_is_no_name_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(
        SpecError, match=r"^config\.json: (text_config\.)?model_type(: \S+ is not a name|, the family of the layers, is missing)"
    ):
        decoder_of(SMALL | {"architectures": ["nan"]} | said, "config.json")


def test_a_missing_family_is_said_in_a_line() -> None:
    """What is missing, which families have these keys, and where all of them are listed."""
    with pytest.raises(SpecError) as caught:
        decoder_of({**SMALL}, "config.json")
    message = str(caught.value)
    assert re.search(r"^config\.json: model_type, .* is missing; these keys fit llama.*; docs/how-to/my-model\.md lists all \d+ ", message)
    assert len(message) < 320
    page = (ROOT / "docs" / "how-to" / "my-model.md").read_text(encoding="utf-8")
    assert all(name.removesuffix("_text") in page for name in FAMILIES)
