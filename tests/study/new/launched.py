"""Configurations of released models and launch files that describe jobs with them, and what `new workload` makes of a launch file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.spec.library import load_workload
from sim.spec.workload import Workload
from sim.study.new.workload import new_workload


def usual(layers: int, hidden: int, heads: int, inner: int, vocab: int, positions: int, **more: Any) -> dict[str, Any]:
    names = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": inner}
    return names | {"vocab_size": vocab, "max_position_embeddings": positions} | more


LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    # model_type: parameters of the release (tests/spec/decoders.csv), its config.json without what does not matter
    "llama": (8030261248, usual(32, 4096, 32, 14336, 128256, 131072, num_key_value_heads=8, tie_word_embeddings=False)),
    "mistral": (7241732096, usual(32, 4096, 32, 14336, 32000, 32768, num_key_value_heads=8, sliding_window=4096)),
    "mixtral": (46702792704, usual(32, 4096, 32, 14336, 32000, 32768, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2)),
    "qwen2": (7615616512, usual(28, 3584, 28, 18944, 152064, 131072, num_key_value_heads=4)),
    "qwen3": (8190735360, usual(36, 4096, 32, 12288, 151936, 40960, num_key_value_heads=8, head_dim=128)),
    "qwen3_moe": (
        30532122624,
        usual(48, 2048, 32, 6144, 151936, 40960, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8)
        | {"moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "gpt2": (
        124439808,
        {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024, "activation_function": "gelu_new"},
    ),
    "gpt_neox": (6857302016, usual(32, 4096, 32, 16384, 50432, 2048, hidden_act="gelu", use_parallel_residual=True)),
    "bloom": (7069016064, {"n_layer": 30, "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 250880}),
    "mpt": (6649286656, {"n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50432, "max_seq_len": 2048, "no_bias": True}),
    "falcon": (
        6921720704,
        {"num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True},
    ),
    "gemma": (2506172416, usual(18, 2048, 8, 16384, 256000, 8192, num_key_value_heads=1, head_dim=256, hidden_act="gelu_pytorch_tanh")),
    "gemma2": (9241705984, usual(42, 3584, 16, 14336, 256000, 8192, num_key_value_heads=8, head_dim=256)),
    "gemma3_text": (999885952, usual(26, 1152, 4, 6912, 262144, 32768, num_key_value_heads=1, head_dim=256, sliding_window=512)),
    "phi": (2779683840, usual(32, 2560, 32, 10240, 51200, 2048, hidden_act="gelu_new")),
    "phi3": (3821079552, usual(32, 3072, 32, 8192, 32064, 4096, sliding_window=2047)),
    "deepseek_v3": (
        671026404352,
        usual(61, 7168, 128, 18432, 129280, 163840, num_key_value_heads=128, n_routed_experts=256, num_experts_per_tok=8, **LATENT)
        | {"moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1},
    ),
    "gpt_oss": (
        20914757184,
        usual(24, 2880, 64, 2880, 201088, 131072, num_key_value_heads=8, head_dim=64, num_local_experts=32, num_experts_per_tok=4)
        | {"attention_bias": True, "sliding_window": 128},
    ),
    "nemotron": (15628775424, usual(32, 6144, 48, 24576, 256000, 4096, num_key_value_heads=8, hidden_act="relu2")),
    "olmo2": (7298617344, usual(32, 4096, 32, 11008, 100352, 4096)),
}
MEGATRON = """#!/bin/bash
TP=8
export LAYERS="96"
ARGS=(
    --num-layers $LAYERS  # blocks
    --hidden-size 12288 --num-attention-heads 96
    --seq-length 2048 --max-position-embeddings 2048 --tokenizer-type GPT2BPETokenizer
)
torchrun pretrain_gpt.py ${ARGS[@]} --micro-batch-size 2 --global-batch-size 1536 \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size=4 --num-layers-per-virtual-pipeline-stage 6 \\
    --sequence-parallel --bf16 --use-distributed-optimizer --recompute-granularity selective
"""
TORCHTITAN = """[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "full"
"""
SMALL = usual(4, 256, 8, 640, 1000, 512, num_key_value_heads=4)
EIGHT_BILLION = {"model_type": "llama", **CONFIGS["llama"][1]}
SIZES = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --padded-vocab-size 1024"


def parsed(text: str, folder: Path, name: str = "job.sh") -> tuple[Workload, tuple[str, ...]]:
    """Return the workload that a launch file of *text* makes, and what it leaves out."""
    (folder / name).write_text(text)
    made = new_workload([str(folder / name)], folder / "mine.yaml", overwrite=True)
    return load_workload(str(made.path)).spec, made.left_out
