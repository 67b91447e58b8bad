"""Oracles: parameters of released models, and what the launch files say, number by number."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.cli import main
from sim.spec.decoder import parameter_count
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.foreign.hf_families import FAMILIES
from sim.spec.foreign.launch_scripts import launch_script
from sim.spec.library import load_part, load_workload
from sim.spec.stack import Stack
from sim.spec.training import Training
from sim.spec.transformer import Transformer
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.new.first_command import first_command
from sim.study.new.workload import by_questions, new_workload, write
from sim.study.scenario import Scenario


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
MPT = CONFIGS["mpt"][1]
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


LOOK_AT_THE_NEXT_COMMAND = (
    "test_the_next_command_fits",
    "test_what_no_usual_layout_holds_is_searched",
    "test_nodes_of_a_script_are_those_of_the_next_command",
    "test_a_script_asks_for_no_more_than_there_is",
    "test_a_script_names_its_model_and_machine",
    "test_the_next_command_keeps_what_deepspeed_shards",
    "test_launch_files",
    "test_settings_of_a_trainer_are_taken_over",
    "test_the_line_that_starts_a_job_is_read_in_place_of_a_file",
)


@pytest.fixture(autouse=True)
def _without_a_search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which layout fits, for the command to run next, is searched for in tests of that command alone: it takes most of the time."""
    if request.function.__name__ not in LOOK_AT_THE_NEXT_COMMAND:
        monkeypatch.setattr("sim.study.new.workload.first_command", lambda name, *given: f"python -m sim run hgx-h100 {name}")


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
    assert written.training.stack.name == "torchtitan-2.x"
    assert written.dataset.prepared == 16 * 2048
    with pytest.raises(SpecError, match="--force"):
        new_workload([str(folder)], tmp_path / "made.yaml")
    for other in ("llama-3.1-8b", str(folder / "config.json")):
        with pytest.raises(SpecError, match=f"{folder}/config.json and {other}: 2 model configurations; name one"):
            new_workload([str(folder), other], tmp_path / "both.yaml")
    new_workload([str(folder)], tmp_path / "made.yaml", sequence=128, overwrite=True)
    assert load_workload(str(made.path)).spec.model.sequence == 128


def test_launch_files(tmp_path: Path) -> None:
    (tmp_path / "gpt3.sh").write_text(MEGATRON)
    written = load_workload(str(new_workload([str(tmp_path / "gpt3.sh")], tmp_path / "a.yaml").path)).spec
    layout, training = written.training.parallel, written.training
    assert (layout.tensor, layout.pipeline, layout.virtual_stages, layout.shard, layout.sequence_parallel) == (8, 4, 4, "optimizer", True)
    assert (training.batch, training.precision, training.activation_checkpointing) == (2, "bf16", "selective")
    assert training.stack.name == "megatron-core"
    assert written.model.transformer is not None
    assert written.model.transformer.vocab == 51200, "50,257 padded to a multiple of 128 x 8"
    assert "--global-batch 1536" in (tmp_path / "a.yaml").read_text()

    (tmp_path / "run.toml").write_text(TORCHTITAN)
    written = load_workload(str(new_workload([str(tmp_path / "run.toml")], tmp_path / "b.yaml").path)).spec
    layout = written.training.parallel
    assert (written.model.name, written.model.sequence) == ("llama-3.1-70b", 4096)
    assert (written.training.batch, written.training.gradient_accumulation_steps) == (1, 4), (
        "a pipeline's micro-batches are of 1 by default"
    )
    assert (layout.tensor, layout.pipeline, layout.schedule, layout.virtual_stages) == (8, 2, "interleaved_1f1b", 2)
    assert (layout.shard, written.training.activation_checkpointing) == ("parameters", "blocks")


def test_answers_on_a_terminal(tmp_path: Path) -> None:
    answers = {"layers": "4", "hidden size": "512", "attention heads": "8", "tokens per sample": "1024", "vocabulary": "5000"}
    made = write(by_questions(lambda question, default: answers.get(question, default)), "mine", tmp_path / "mine.yaml", None, "answers")
    model = load_workload(str(made.path)).spec.model
    assert model.transformer is not None
    assert (model.transformer.layers, model.transformer.ffn, model.sequence) == (4, 1536, 1024)
    like = by_questions(lambda question, default: "llama-3.2-1b" if "catalog" in question else default)
    assert like.model == "llama-3.2-1b"


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    llama = {"model_type": "llama", **CONFIGS["llama"][1]}
    cases: list[tuple[str, str, str]] = [
        (
            "a.json",
            json.dumps({"model_type": "mamba"}),
            "unknown model_type mamba: its state-space or linear-attention layers are not modeled",
        ),
        (
            "a.json",
            json.dumps({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}),
            "or, with transformers installed, trace it: python -m sim extract transformers:Qwen3NextForCausalLM --input input_ids=512",
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
        ("u.sh", MEGATRON + "--hybrid-override-pattern M*M-", "--hybrid-override-pattern selects layers that are not supported"),
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


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
srun torchrun --nnodes 4 --nproc-per-node 8 train.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --micro-batch-size 3
"""


def test_a_batch_script_gives_the_layout_and_a_configuration_the_model(tmp_path: Path) -> None:
    """Oracle: the numbers of the script, and of the configuration."""
    parameters, config = CONFIGS["llama"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    (tmp_path / "job.sbatch").write_text(SCRIPT)
    made = new_workload([str(tmp_path / "config.json"), str(tmp_path / "job.sbatch")], tmp_path / "mine.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.tensor, training.parallel.pipeline, training.batch) == (2, 4, 3)
    assert load_workload(str(made.path)).spec.model.parameters == parameters


TRAINER = """#!/bin/bash
#SBATCH -N{nodes}
#SBATCH --gres=gpu:h100:8,tmpdisk:100
GPUS=8
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \\
    --bf16 True --gradient_checkpointing True --fsdp "full_shard auto_wrap" --optim adamw_8bit --max_seq_length 1024 --fp16 False
"""
GPUS: dict[str, int | None] = {
    # a script's lines, and the GPUs of the job that it starts
    "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=a100:8": 32,
    "#SBATCH -N 2\n#SBATCH --gres=gpu:8(S:0-1)": 16,
    "#SBATCH --gpus 24": 24,
    "#SBATCH --nodes=2-4\nsrun torchrun --nproc-per-node=4 train.py": 8,
    "#SBATCH --nodes=4\nsrun torchrun --nnodes=2 --nproc-per-node=8 train.py": 16,
    "torchrun --standalone --nproc_per_node=4 train.py": 4,
    "torchrun --nnodes=2:4 --nproc_per_node=8 train.py": 16,
    "python -m torch.distributed.run --nnodes=$N --nproc_per_node=gpu train.py": None,
    "accelerate launch --num_machines 3 --num_processes 24 train.py": 24,
    "deepspeed --num_nodes 2 --num_gpus 8 train.py": 16,
    "#SBATCH --nodes=4": 32,  # nodes of 8, which is noted
    "#SBATCH --nodes=4\nsrun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$N train.py": 32,
}


@pytest.mark.parametrize("text", GPUS)
def test_a_script_says_how_many_gpus_it_takes(text: str) -> None:
    assert launch_script(text, "job.sh").gpus == GPUS[text]


def test_settings_of_a_trainer_are_taken_over(tmp_path: Path) -> None:
    """Oracle: what each option means in transformers/training_args.py, and the nodes that the script asks for."""
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    (tmp_path / "job.sbatch").write_text(TRAINER.format(nodes=2))
    made = new_workload([str(tmp_path / "config.json"), str(tmp_path / "job.sbatch")], tmp_path / "mine.yaml")
    written = load_workload(str(made.path)).spec
    training = written.training
    assert (training.batch, training.gradient_accumulation_steps, training.precision, written.model.sequence) == (2, 8, "bf16", 1024)
    assert (training.activation_checkpointing, training.parallel.shard, training.optimizer.name) == ("blocks", "parameters", "adam8bit")
    assert " --nodes 2" in made.command


def test_nodes_of_a_script_are_those_of_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    (tmp_path / "gpt3.sh").write_text("#SBATCH --nodes=16\n#SBATCH --gpus-per-node=8\n" + MEGATRON)
    assert "--nodes 16" in new_workload([str(tmp_path / "gpt3.sh")], tmp_path / "a.yaml").command
    (tmp_path / "four.sh").write_text("torchrun --nproc-per-node 4 train.py\n")
    four = new_workload([str(tmp_path / "config.json"), str(tmp_path / "four.sh")], tmp_path / "b.yaml")
    assert " --gpus 4" in four.command and not four.left_out
    (tmp_path / "one.sh").write_text("torchrun --nproc-per-node 1 train.py --per_device_train_batch_size 32\n")  # more than a GPU holds
    one = new_workload([str(tmp_path / "config.json"), str(tmp_path / "one.sh")], tmp_path / "d.yaml")
    assert "--gpus" not in one.command
    assert "the launch files request 1 GPU; the command below uses 1 node of 8" in one.left_out
    assert "# the launch files request 1 GPU" in (tmp_path / "d.yaml").read_text()
    (tmp_path / "small.sh").write_text("#SBATCH --gres=gpu:a10g:2\ntorchrun --nproc-per-node 2 train.py\n")  # on larger nodes, and more
    small = new_workload([str(tmp_path / "config.json"), str(tmp_path / "small.sh")], tmp_path / "e.yaml")
    assert small.command.endswith(" --nodes 3")
    assert "the launch files request 2 GPUs; the command below uses 3 nodes of 4" in small.left_out
    (tmp_path / "silent.sh").write_text("torchrun train.py\n")
    with pytest.raises(SpecError, match="specifies no number of GPUs, model size or layout"):
        new_workload([str(tmp_path / "config.json"), str(tmp_path / "silent.sh")], tmp_path / "c.yaml")


def test_a_script_names_its_model_and_machine(tmp_path: Path) -> None:
    """Oracle: the catalogue's machine with as many of the GPU, and its model of that name."""
    trainer = "train.py --model_name_or_path {} --per_device_train_batch_size 1 --fsdp full_shard --bf16"
    for number, (text, name, machine) in enumerate((
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=a100:4\nsrun torchrun " + trainer.format("Qwen/Qwen2.5-7B"), "qwen2.5-7b", "a2-highgpu-4g"),
        ("srun -N 2 --gpus-per-node=a100_80gb:4 torchrun " + trainer.format("meta-llama/Llama-3.1-8B"), "llama-3.1-8b", "a2-ultragpu-4g"),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\nsrun torchrun " + trainer.format("Qwen/Qwen2.5-7B"), "qwen2.5-7b", "hgx-h100"),
    )):  # fmt: skip
        (tmp_path / "job.sh").write_text(text)
        made = new_workload([str(tmp_path / "job.sh")], tmp_path / f"{number}.yaml")
        assert load_workload(str(made.path)).spec.model.name == name
        assert made.command.startswith(f"python -m sim run {machine} ") and " --nodes 2" in made.command
        assert any("--fsdp runs on torchtitan's stack" in note for note in made.left_out)
    (tmp_path / "job.sh").write_text("#SBATCH -N 2\n#SBATCH --gpus-per-node=zx9:4\ntorchrun " + trainer.format("gpt2"))
    assert (
        "no machine in the catalog has a GPU zx9; the command below uses hgx-h100"
        in new_workload([str(tmp_path / "job.sh")], tmp_path / "z.yaml").left_out
    )
    (tmp_path / "job.sh").write_text("torchrun " + trainer.format("mine/Own-7B"))
    with pytest.raises(SpecError, match="mine/Own-7B: no such model in the catalog; add --from"):
        new_workload([str(tmp_path / "job.sh")], tmp_path / "y.yaml")


def test_sizes_of_no_model_cite_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL, "head_dim": 8, "hidden_size": 10**12}))
    with pytest.raises(
        SpecError, match=r"^[^:]*config.json: hidden_size 1,000,000,000,000 makes a model of over 1,000 trillion parameters; write a"
    ):
        new_workload([str(tmp_path / "config.json")], tmp_path / "a.yaml")


def test_the_line_that_starts_a_job_is_read_in_place_of_a_file(tmp_path: Path) -> None:
    """Oracle: the same line in a file."""
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    line = f"torchrun --nnodes=2 --nproc-per-node=8 train.py --per_device_train_batch_size 2 --fsdp full_shard --run {'x' * 300}"
    (tmp_path / "job.sh").write_text(line)
    said, filed = (
        new_workload([str(tmp_path / "config.json"), source], tmp_path / f"{name}.yaml")
        for name, source in (("a", line), ("b", str(tmp_path / "job.sh")))
    )
    assert load_workload(str(said.path)).spec.training.parallel.shard == "parameters"
    assert said.command.replace("a.yaml", "b.yaml") == filed.command and " --nodes 2" in said.command
    assert "config.json, the command line" in said.path.read_text()
    megatron = f"torchrun --nproc-per-node 8 {' '.join(MEGATRON.split('ARGS=(')[1].split())}"
    with pytest.raises(SpecError, match="the command line: "):
        new_workload([megatron.replace("$LAYERS", "many")], tmp_path / "c.yaml")


def test_a_decoder_of_the_catalogue_is_the_model_of_launch_files(tmp_path: Path) -> None:
    """Oracle: the catalogue's own parameters, and the layout of the file."""
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 3}))
    made = load_workload(str(new_workload(["llama-3.1-8b", str(tmp_path / "zero.json")], tmp_path / "a.yaml").path)).spec
    assert made.model.parameters == 8_030_261_248
    assert (made.training.batch, made.training.parallel.shard) == (3, "gradients")
    with pytest.raises(SpecError, match="vgg16: is not a decoder"):
        new_workload(["vgg16", str(tmp_path / "zero.json")], tmp_path / "b.yaml")


def test_names_of_tuned_models_are_the_catalogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the catalogue's own parameters."""

    def unreachable(name: str) -> str:
        raise SpecError(f"{name}: the hub does not respond")

    monkeypatch.setattr("sim.study.new.workload._from_hub", unreachable)
    tuned = new_workload(["gemma-2-9b-it"], tmp_path / "a.yaml")
    assert load_workload(str(tuned.path)).spec.model.name == "gemma-2-9b" and not tuned.left_out
    gated = new_workload(["meta-llama/Llama-3.1-8B"], tmp_path / "b.yaml")
    assert gated.left_out == ("meta-llama/Llama-3.1-8B cannot be read from the hub: used llama-3.1-8b of the catalog",)
    with pytest.raises(SpecError, match="mine/Own-7B: the hub does not respond"):
        new_workload(["mine/Own-7B"], tmp_path / "c.yaml")


def test_names_of_nothing_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^llama-9: no such file or folder, and no catalog model$"):
        new_workload(["llama-9"], tmp_path / "a.yaml")
    with pytest.raises(SpecError, match=rf"^{'a' * 80}: no such file or folder"):
        new_workload(["a" * 300], tmp_path / "a.yaml")


def test_learned_positions_of_megatron_name_the_option(tmp_path: Path) -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --micro-batch-size 1"
    with pytest.raises(SpecError, match="add --max-position-embeddings, for example 4096"):
        new_workload([f"pretrain_gpt.py {sizes}"], tmp_path / "a.yaml")
    assert new_workload([f"pretrain_gpt.py {sizes} --max-position-embeddings 512"], tmp_path / "a.yaml").path.exists()


def test_what_deepspeed_and_accelerate_offload_is_named(tmp_path: Path) -> None:
    """Oracle: the files' own words; nothing is said where nothing is offloaded."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    stage = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}, "zero_hpz_partition_size": 8}
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": stage, "optimizer": {"type": "OneBitAdam"}}))
    accelerate = "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_offload_params: true}\n"
    (tmp_path / "accelerate.yaml").write_text(accelerate)
    (tmp_path / "plain.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "optimizer": {"type": "Lamb"}}))

    def said(file: str) -> tuple[str, ...]:
        made = new_workload([str(tmp_path / "config.json"), str(tmp_path / file)], tmp_path / "mine.yaml", overwrite=True)
        assert all(f"# {note}" in made.path.read_text() for note in made.left_out)
        return made.left_out

    optimizer, offloaded, plus = said("zero.json")
    assert optimizer == "optimizer OneBitAdam is not modeled: the workload uses adam"
    assert offloaded.startswith("zero_optimization.offload_optimizer (cpu) is not modeled: ")
    assert plus == "zero_optimization.zero_hpz_partition_size 8 is not modeled: the workload uses plain ZeRO"
    assert [note.split(" is ")[0] for note in said("accelerate.yaml")] == ["fsdp_config.fsdp_offload_params (cpu)"]
    assert said("plain.json") == ()
    assert load_workload(str(tmp_path / "mine.yaml")).spec.training.optimizer.name == "lamb"


def test_what_accelerate_wraps_by_size_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    sized = "fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 20000"
    (tmp_path / "accelerate.yaml").write_text(f"distributed_type: FSDP\nfsdp_config: {{fsdp_sharding_strategy: FULL_SHARD, {sized}}}\n")
    new_workload([str(tmp_path / "config.json"), str(tmp_path / "accelerate.yaml")], tmp_path / "mine.yaml")
    assert load_workload(str(tmp_path / "mine.yaml")).spec.training.parallel.wrap == 20_000


def test_capacity_of_megatrons_experts_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    (tmp_path / "job.sh").write_text(
        "torchrun pretrain.py --moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity --micro-batch-size 1\n"
    )
    new_workload([str(tmp_path / "config.json"), str(tmp_path / "job.sh")], tmp_path / "mine.yaml")
    parallel = load_workload(str(tmp_path / "mine.yaml")).spec.training.parallel
    assert (parallel.capacity_factor, parallel.pad_to_capacity) == (1.25, True)


EIGHT_BILLION = {"model_type": "llama", **CONFIGS["llama"][1]}
LAUNCHED: dict[str, tuple[str, str]] = {
    "none": ("", ""),
    "ZeRO of two samples": ("zero.json", json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}})),
    "ZeRO 1 of many": ("zero.json", json.dumps({"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}})),
    "a global batch": ("zero.json", json.dumps({"train_batch_size": 256, "zero_optimization": {"stage": 3}})),
    "32 ranks": ("job.sh", "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 64"),
}


@pytest.mark.parametrize("case", LAUNCHED)
def test_the_next_command_fits(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the command itself."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(EIGHT_BILLION))
    file, text = LAUNCHED[case]
    if file:
        Path(file).write_text(text)
    made = new_workload(["config.json", *([file] if file else [])], Path("mine.yaml"))
    assert made.command in Path("mine.yaml").read_text()
    assert main(shlex.split(made.command.removeprefix("python -m sim "))) == 0, capsys.readouterr().err
    assert "GPU memory of 80 GiB: fits" in capsys.readouterr().out


def test_what_no_usual_layout_holds_is_searched(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral", **CONFIGS["mixtral"][1], "num_hidden_layers": 200}))
    made = new_workload([str(tmp_path / "config.json")], tmp_path / "mine.yaml")
    assert re.search(r"python -m sim plan hgx-h100 .*mine.yaml --nodes \d\d$", made.command)


def test_a_script_asks_for_no_more_than_there_is(tmp_path: Path) -> None:
    """Python reads no more than 4300 digits, and no float has more than 308."""
    (tmp_path / "job.sbatch").write_text(TRAINER.format(nodes="9" * 400))
    with pytest.raises(SpecError, match=r"job\.sbatch: '9{36}\.\.\. nodes or GPUs exceed any cluster; write at most 1,000,000$"):
        new_workload([str(tmp_path / "job.sbatch")], tmp_path / "mine.yaml")


SIZES = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --padded-vocab-size 1024"


def parsed(text: str, folder: Path, name: str = "job.sh") -> tuple[Workload, tuple[str, ...]]:
    """Return the workload that a launch file of *text* makes, and what it leaves out."""
    (folder / name).write_text(text)
    made = new_workload([str(folder / name)], folder / "mine.yaml", overwrite=True)
    return load_workload(str(made.path)).spec, made.left_out


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


@pytest.mark.parametrize(
    ("options", "shard"),
    [
        ("", "optimizer"), ("--use-torch-fsdp2", "parameters"), ("--use-megatron-fsdp", "none"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "gradients"),
        ("--use-custom-fsdp --data-parallel-sharding-strategy=optim_grads_params", "parameters"),
    ],
)  # fmt: skip
def test_what_megatrons_fsdp_shards(options: str, shard: str, tmp_path: Path) -> None:
    """Oracle: megatron/training/arguments.py, ``--data-parallel-sharding-strategy``."""
    assert parsed(f"{MEGATRON.rstrip()} {options}\n", tmp_path)[0].training.parallel.shard == shard


def test_optimizers_modules_and_windows_of_megatron(tmp_path: Path) -> None:
    """Oracle: megatron/training/arguments.py; ``window_attn_skip_freq`` N: one layer of N looks back on all."""
    for name, meant in (("muon", "muon"), ("dist_muon", "muon"), ("sgd", "momentum")):
        assert parsed(f"{MEGATRON.rstrip()} --optimizer {name}\n", tmp_path)[0].training.optimizer.name == meant
    workload, notes = parsed(f"{MEGATRON.rstrip()} --optimizer lion --recompute-modules mlp shared_experts layernorm\n", tmp_path)
    assert (workload.training.optimizer.name, workload.training.activation_checkpointing) == ("adam", "none")
    assert workload.training.recompute_modules == ("mlp", "layernorm")
    assert notes == (
        "--optimizer lion is not modeled: the workload uses adam",
        "--recompute-modules shared_experts is not modeled and not recomputed",
    )
    sizes = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --padded-vocab-size 1024"
    alone = f"{sizes} --seq-length 128 --max-position-embeddings 128"
    workload, notes = parsed(f"{alone} --recompute-granularity selective --recompute-modules mlp\n", tmp_path)
    assert (workload.training.recompute_modules, workload.training.activation_checkpointing, notes) == (("mlp",), "none", ())
    shape = parsed(f"{MEGATRON.rstrip()} --window-size 127,0 --window-attn-skip-freq 4 --hidden-dropout 0\n", tmp_path)[0].model.transformer
    assert shape is not None and (shape.window, shape.global_every, shape.dropout) == (127, 4, 0.0)


def test_arguments_of_megatron_that_are_not_read_are_named(tmp_path: Path) -> None:
    more = "--rampup-batch-size 64 64 100000 --fp8-format hybrid --fp8-recipe custom --frobnicate 3 --lr 1e-4"
    assert parsed(f"{MEGATRON.rstrip()} {more}\n", tmp_path)[1] == (
        "--rampup-batch-size 64 64 100000 is ignored: for a token budget, write "
        "pretraining: {batch_ramp: {start: 64, step: 64, tokens: 204800000}}",
        "--fp8-recipe custom is not modeled: the workload uses delayed",
    )
    assert parsed(MEGATRON, tmp_path)[1] == ()
    with pytest.raises(SpecError, match="unknown option --micro-batch-sise; did you mean --micro-batch-size"):
        parsed(f"{MEGATRON.rstrip()} --micro-batch-sise 4\n", tmp_path)


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "blockwise", "mxfp8"])
def test_recipes_of_megatron_are_read(recipe: str, tmp_path: Path) -> None:
    """megatron/training/arguments.py: choices of --fp8-recipe, which says nothing without --fp8-format."""
    workload, notes = parsed(f"{MEGATRON.rstrip()} --fp8-format e4m3 --fp8-recipe {recipe}\n", tmp_path)
    assert (workload.training.precision, workload.training.fp8_recipe, notes) == ("fp8", recipe, ())
    assert parsed(f"{MEGATRON.rstrip()} --fp8-recipe {recipe}\n", tmp_path)[0].training.fp8_recipe is None


@pytest.mark.parametrize(
    ("converter", "block", "recipe", "note"),
    [
        ("quantize.linear.float8", "", "tensorwise", ""),
        ("quantize.linear.float8", '[quantize.linear.float8]\nrecipe_name = "rowwise"', "rowwise", ""),
        ("float8", '[float8]\nrecipe_name = "rowwise"', "rowwise", ""),
        ("quantize.linear.float8", '[quantize.linear.float8]\nrecipe_name = "rowwise_with_gw_hp"', "rowwise", "is read as rowwise"),
        ("quantize.linear.mx", '[quantize.linear.mx]\nrecipe_name = "mxfp8_cublas"', "mxfp8", ""),
    ],
)
def test_recipes_of_torchtitan_are_read(converter: str, block: str, recipe: str, note: str, tmp_path: Path) -> None:
    """torchtitan/config/job_config.py: Float8Linear.recipe_name, None for dynamic scaling by tensor; MXLinear.recipe_name."""
    text = TORCHTITAN.replace('"70B"', f'"70B"\nconverters = ["{converter}"]') + f"\n{block}\n"
    workload, notes = parsed(text, tmp_path, "run.toml")
    assert (workload.training.precision, workload.training.fp8_recipe) == ("fp8", recipe)
    assert note in "".join(notes)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ('[quantize.linear.float8]\nrecipe_name = "columnwise"', "recipe_name columnwise; supported: tensorwise, rowwise and"),
        ("[quantize]\nlinear = 3", "linear is a single value; expected a block of keys"),
    ],
)
def test_recipes_that_torchtitan_has_not_are_refused(block: str, said: str, tmp_path: Path) -> None:
    text = TORCHTITAN.replace('"70B"', '"70B"\nconverters = ["quantize.linear.float8"]') + f"\n{block}\n"
    with pytest.raises(SpecError, match=re.escape(said)):
        parsed(text, tmp_path, "run.toml")


def test_settings_of_torchtitan_that_are_not_modeled_are_named(tmp_path: Path) -> None:
    """Oracle: torchtitan/config/job_config.py."""
    workload, notes = parsed(TORCHTITAN.replace('"70B"', '"70B"\nconverters = ["quantize.linear.mx"]'), tmp_path, "run.toml")
    assert (workload.training.precision, notes) == ("fp8", ())
    text = TORCHTITAN.replace('mode = "full"', 'mode = "selective"\nselective_ac_option = "2"') + '[optimizer]\nname = "Lion"\n'
    text = text.replace("[parallelism]", "[compile]\nenable = false\n[fault_tolerance]\n[parallelism]\nenable_async_tensor_parallel = true")
    assert parsed(text, tmp_path, "run.toml")[1] == (
        "activation_checkpoint.selective_ac_option 2 is not modeled: the workload uses op",
        "optimizer Lion is not modeled: the workload uses adam",
        "compile.enable is false: blocks are simulated as compiled, with fewer kernels and less memory traffic than without",
        "parallelism.enable_async_tensor_parallel is not modeled: tensor ranks wait for their collectives",
        "ignored: [fault_tolerance]",
    )
    assert parsed(TORCHTITAN + '[optimizer]\nname = "Muon"\n', tmp_path, "run.toml")[0].training.optimizer.name == "muon"


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


def test_a_message_about_a_size_names_the_option_of_a_script(tmp_path: Path) -> None:
    sizes = "--num-layers 2 --hidden-size 65 --num-attention-heads 4 --padded-vocab-size 100 --max-position-embeddings 32 --seq-length 32"
    (tmp_path / "train.sh").write_text(f"torchrun pretrain_gpt.py {sizes}\n")
    with pytest.raises(SpecError, match=r"--hidden-size \(65\) is not a multiple of --num-attention-heads \(4\); write --kv-channels, or"):
        new_workload([str(tmp_path / "train.sh")], tmp_path / "mine.yaml")


def test_a_global_batch_of_megatron_keeps_its_micro_batches_in_data_parallelism(tmp_path: Path) -> None:
    """Oracle: megatron/core/num_microbatches_calculator.py: global batch / (micro-batch x data-parallel ranks) micro-batches."""
    sizes = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --padded-vocab-size 1024 --seq-length 128 --bf16"
    (tmp_path / "job.sh").write_text(f"{sizes} --max-position-embeddings 128 --micro-batch-size 4 --global-batch-size 256\n")
    made = new_workload([str(tmp_path / "job.sh")], tmp_path / "mine.yaml")
    run = layout_answer(Scenario("hgx-h100", str(made.path), global_batch=256)).run
    assert (run.workload.training.batch, run.layout.micro_batches, run.global_batch) == (4, 8, 256)


def test_options_of_megatron_that_change_time_or_memory_are_read(tmp_path: Path) -> None:
    """Oracle: megatron/training/arguments.py, validate_args and help texts; its checkpoints of method block are counted in each chunk."""
    plain = f"{MEGATRON.rstrip()} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"

    def read(more: str) -> Training:
        return parsed(f"{more}\n", tmp_path)[0].training

    assert read(plain).stack.mesh == load_part(Stack, "megatron-core", "workloads/stacks").mesh
    bare = read(MEGATRON.rstrip()).stack.mesh
    assert bare is not None and (bare.overlap_gradients, bare.overlap_parameters) == (False, False)
    types = "--main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    narrow = read(f"{plain} --use-precision-aware-optimizer {types}").stack.mesh
    assert narrow is not None and (narrow.gradients, narrow.states, narrow.casts_gradients) == ("bf16", "bf16", "never")
    reduced = read(f"{plain} --grad-reduce-in-bf16 --no-gradient-accumulation-fusion").stack.mesh
    assert reduced is not None and (reduced.gradients, reduced.reduction, reduced.fused_accumulation) == ("bf16", "bf16", False)
    recomputing = f"{SIZES} --seq-length 128 --max-position-embeddings 128 --recompute-granularity full"
    chunks = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
    for more, blocks in (("", 0), ("--recompute-method block --recompute-num-layers 1", 1)):
        assert read(f"{recomputing} {more}").recompute_blocks == blocks
    assert read(f"{recomputing} {chunks} --recompute-method block --recompute-num-layers 1").recompute_blocks == 2
    assert read(f"{recomputing} --recompute-method block --recompute-num-layers 0").activation_checkpointing == "none"
    assert "modeled as 1" in parsed(f"{recomputing} --recompute-method uniform --recompute-num-layers 2\n", tmp_path)[1][0]
    assert read(f"{SIZES} --seq-length 128 --max-position-embeddings 128 --recompute-activations").activation_checkpointing == "selective"


@pytest.mark.parametrize(("options", "inner"), [("--swiglu", 640), ("", 1024), ("--num-experts 4", 1024)])
def test_megatron_s_own_width_of_the_feed_forward_block(options: str, inner: int, tmp_path: Path) -> None:
    """By hand for a hidden size of 256: int(4 * 256 * 2 / 3 / 64) * 64 if gated, else 4 * 256."""
    sized = f"{SIZES} --seq-length 128 --max-position-embeddings 128 {options}\n"
    shape = parsed(sized, tmp_path)[0].model.transformer
    assert shape is not None and shape.inner == inner


def test_models_in_two_launch_files_are_not_mixed(tmp_path: Path) -> None:
    """Before, experts of one file joined the sizes of the other."""
    (tmp_path / "job.sh").write_text(f"{SIZES} --seq-length 128 --max-position-embeddings 128 --num-experts 8\n")
    (tmp_path / "titan.toml").write_text('[model]\nname = "llama3"\nflavor = "8B"\n')
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    for sources in (("job.sh", "config.json"), ("config.json", "titan.toml"), ("titan.toml", "job.sh")):
        with pytest.raises(SpecError, match=r"2 model configurations; name one"):
            new_workload([str(tmp_path / name) for name in sources], tmp_path / "mixed.yaml")
    assert not (tmp_path / "mixed.yaml").exists()


def test_a_global_batch_of_deepspeed_keeps_its_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 256 samples over 8 GPUs in micro-batches of 4 take 8 of them, with ZeRO or without."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    for stage in (0, 2):
        zero = {"zero_optimization": {"stage": stage}, "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4}
        Path("zero.json").write_text(json.dumps(zero | {"bf16": {"enabled": True}}))
        made = new_workload(["config.json", "zero.json"], Path("mine.yaml"), overwrite=True)
        mesh = load_workload(str(made.path)).spec.training.mesh
        assert not made.left_out and (mesh is not None and (mesh.weights, mesh.master) == ("bf16", True)) == (stage == 2)
        command = first_command("mine.yaml", "mine.yaml", 256)
        said = capture(shlex.split(command)[3:])
        assert (said["batch_per_gpu"], round(said["throughput_samples_per_s"] * said["step_time_s"])) == (4, 256)


def test_the_next_command_keeps_what_deepspeed_shards(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    for name in ("llama-3.1-8b", "llama-2-13b"):
        made = new_workload([name, str(tmp_path / "zero.json")], tmp_path / f"{name}.yaml")
        assert made.command.startswith("python -m sim run hgx-h100 ") and "--shard" not in made.command


def capture(words: list[str]) -> dict[str, Any]:
    """Return the JSON document that the command of *words* prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*words, "--json", "--fast"]) == 0
    return json.loads(printed.getvalue())  # type: ignore[no-any-return]


PEFT = "accelerate launch --num_processes 2 sft.py --per_device_train_batch_size 4 {more}"


@pytest.mark.parametrize(
    ("more", "rank"),
    [
        ("--use_peft --lora_r 64", 64), ("--use_peft True", 16), ("--use_peft False --lora_r 64", None), ("--lora_r=32", 32), ("", None),
        ("--finetuning_type lora", 8), ("--finetuning_type lora --lora_rank 4", 4), ("--finetuning_type full --lora_rank 4", None),
    ],
)  # fmt: skip
def test_adapters_of_a_trainer_are_taken_over(more: str, rank: int | None, tmp_path: Path) -> None:
    """Oracle: options and defaults of TRL (trainer/model_config.py), LLaMA-Factory (hparams/finetuning_args.py) and scripts for PEFT."""
    made = new_workload(["qwen2.5-0.5b", PEFT.format(more=more)], tmp_path / "mine.yaml")
    model = load_workload(str(made.path)).spec.model
    assert (model.lora.rank if model.lora else None) == rank
    trained = sum(sum(layer.gradients) for layer in model.layers)
    assert (trained < 0.1 * 494e6) == (rank is not None)


def test_quantized_weights_and_single_targets_of_adapters_are_named(tmp_path: Path) -> None:
    line = PEFT.format(more="--use_peft --lora_target_modules q_proj v_proj {bits}")
    notes = new_workload(["qwen2.5-0.5b", line.format(bits="--load_in_4bit True")], tmp_path / "a.yaml").left_out
    assert any("--load-in-4bit is not modeled: frozen weights take 2 bytes each in GPU memory" in note for note in notes)
    assert any("--lora-target-modules is not read: all products of a block have adapters" in note for note in notes)
    assert "# --load-in-4bit is not modeled" in (tmp_path / "a.yaml").read_text()
    plain_line = PEFT.format(more="--use_peft --lora_target_modules all-linear --load_in_8bit 0")
    plain = new_workload(["qwen2.5-0.5b", plain_line], tmp_path / "b.yaml")
    assert not any("--l" in note for note in plain.left_out)
    with pytest.raises(SpecError, match="--lora-r 0: write a rank of 1 or more"):
        new_workload(["qwen2.5-0.5b", PEFT.format(more="--use_peft --lora_r 0")], tmp_path / "c.yaml")


# --- files that a command names ----------------------------------------------------------------------------------------------

ZERO_3 = {"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}}
QWEN = "train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16"
ACCELERATE = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nmixed_precision: fp16\nfsdp_config: {fsdp_version: 2}\n"


@pytest.mark.parametrize("option", ["--deepspeed ds.json", "--deepspeed_config=ds.json", "--deepspeed --deepspeed_config conf/../ds.json"])
@pytest.mark.parametrize("as_script", [False, True])
def test_a_command_names_the_json_of_deepspeed(option: str, as_script: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON's own numbers; ``auto`` is the Trainer's --bf16."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_3))
    source = f"deepspeed {QWEN} {option}"
    if as_script:  # from another folder, so relative to the script
        (tmp_path / "run.sh").write_text(source + "\n")
        source = str(tmp_path / "run.sh")
    else:
        monkeypatch.chdir(tmp_path)
    made = new_workload([source], tmp_path / "w.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.shard, training.gradient_accumulation_steps, training.batch) == ("parameters", 4, 1)
    assert training.precision == "bf16"
    assert any("read " in note and "ds.json" in note for note in made.left_out)


def test_a_command_names_the_file_of_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own --bf16 wins over the file's fp16, with a note; the file's 16 GPUs and FSDP remain."""
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(ACCELERATE)
    made = new_workload([f"accelerate launch --config_file acc.yaml {QWEN}"], tmp_path / "w.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.shard, training.precision) == ("parameters", "bf16")
    assert any("request 16 GPUs" in note for note in made.left_out)
    assert "acc.yaml sets precision fp16, the command bf16: used bf16 (options win over Accelerate's file)" in made.left_out


@pytest.mark.parametrize("launcher", ["accelerate launch", "python -m accelerate.commands.launch"])
def test_a_program_may_have_a_config_file_of_its_own(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kohya's sd-scripts have: options after the program are not those of Accelerate."""
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(ACCELERATE)
    own = f"{QWEN} --config_file own.toml"
    made = new_workload([f"{launcher} --config_file acc.yaml {own}"], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.parallel.shard == "parameters"
    made = new_workload([f"{launcher} --num_processes 8 {own}"], tmp_path / "v.yaml")
    assert load_workload(str(made.path)).spec.training.parallel.shard == "none"
    assert not any("read " in note for note in made.left_out)


def test_the_file_of_accelerate_names_the_json_of_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(ZERO_3))
    Path("acc.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n")
    training = load_workload(
        str(new_workload([f"accelerate launch --config_file acc.yaml {QWEN}"], tmp_path / "w.yaml").path)
    ).spec.training
    assert (training.parallel.shard, training.gradient_accumulation_steps, training.precision) == ("parameters", 4, "bf16")


def test_the_json_of_deepspeed_wins_over_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's engine reads only its file; the difference is told."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(ZERO_3))
    made = new_workload([f"deepspeed {QWEN} --gradient_accumulation_steps 2 --deepspeed ds.json"], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.gradient_accumulation_steps == 4
    assert any(note.startswith("ds.json sets gradient_accumulation_steps 4, the command 2: used 4 (DeepSpeed") for note in made.left_out)


@pytest.mark.parametrize(
    "line",
    [f"deepspeed {QWEN} --deepspeed nope.json", f"accelerate launch --config_file nope.json {QWEN}"],
)
def test_a_missing_file_that_a_command_names_is_an_error(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"nope\.json': no such file in the current folder or in that of the script; write the path"):
        new_workload([line], tmp_path / "w.yaml")
    assert not (tmp_path / "w.yaml").exists()


def test_a_file_that_a_command_names_may_be_passed_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_3))
    line = f"deepspeed {QWEN} --deepspeed /cluster/only/ds.json"
    made = new_workload([line, str(tmp_path / "ds.json")], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.gradient_accumulation_steps == 4


def test_a_file_whose_name_is_unknown_has_a_note(tmp_path: Path) -> None:
    made = new_workload([f"deepspeed {QWEN} --deepspeed $CONFIG"], tmp_path / "w.yaml")
    assert any("--deepspeed '$CONFIG' is not read, as its variables are unknown" in note for note in made.left_out)
