"""What do Megatron-LM's arguments become? Oracle: megatron/training/arguments.py, option by option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.spec.foreign.launch_megatron import SCORE_PASSES
from sim.spec.library import load_part, load_workload
from sim.spec.stack import Stack
from sim.spec.training import Training
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.new.workload import new_workload
from sim.study.scenario import Scenario
from tests.study.new.launched import MEGATRON, SIZES, SMALL, parsed

pytestmark = pytest.mark.usefixtures("no_layout_search")


def test_learned_positions_of_megatron_name_the_option(tmp_path: Path) -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --micro-batch-size 1"
    with pytest.raises(SpecError, match="add --max-position-embeddings, for example 4096"):
        new_workload([f"pretrain_gpt.py {sizes}"], tmp_path / "a.yaml")
    assert new_workload([f"pretrain_gpt.py {sizes} --max-position-embeddings 512"], tmp_path / "a.yaml").path.exists()


def test_capacity_of_megatrons_experts_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    (tmp_path / "job.sh").write_text(
        "torchrun pretrain.py --moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity --micro-batch-size 1\n"
    )
    new_workload([str(tmp_path / "config.json"), str(tmp_path / "job.sh")], tmp_path / "mine.yaml")
    parallel = load_workload(str(tmp_path / "mine.yaml")).spec.training.parallel
    assert (parallel.capacity_factor, parallel.pad_to_capacity) == (1.25, True)


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
    newer = ("hgx-h100 lacks the data types of the launch files; the command below uses hgx-b200",) if recipe == "mxfp8" else ()
    assert (workload.training.precision, workload.training.fp8_recipe, notes) == ("fp8", recipe, newer)
    assert parsed(f"{MEGATRON.rstrip()} --fp8-recipe {recipe}\n", tmp_path)[0].training.fp8_recipe is None


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

    assert read(plain).stack.mesh == load_part(Stack, "megatron-core").mesh
    bare = read(MEGATRON.rstrip()).stack.mesh
    assert bare is not None and (bare.overlap_gradients, bare.overlap_parameters) == (False, False)
    types = "--main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    narrow = read(f"{plain} --use-precision-aware-optimizer {types}").stack.mesh
    assert narrow is not None and (narrow.gradients, narrow.states, narrow.casts_gradients) == ("bf16", "bf16", "never")
    reduced = read(f"{plain} --grad-reduce-in-bf16 --no-gradient-accumulation-fusion").stack.mesh
    assert reduced is not None and (reduced.gradients, reduced.reduction, reduced.fused_accumulation) == ("bf16", "bf16", False)
    for more, fused in (("", True), ("--rope-type rope", False), ("--no-rope-fusion", False)):  # MLATransformerConfig: of YaRN's alone
        rotated = read(f"{plain} --multi-latent-attention {more}").stack.mesh
        assert rotated is not None and rotated.fused_latents is fused
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


def test_groups_of_experts_and_the_dispatcher_of_megatron(tmp_path: Path) -> None:
    """Oracle: megatron/training/arguments.py; transformer/moe/token_dispatcher.py: flex alone sends one copy to each node."""
    experts = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 64 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1"
    limited = "--moe-router-num-groups 4 --moe-router-group-topk 2"
    for dispatcher, one_copy in (
        ("alltoall", False),
        ("flex --moe-enable-deepep", True),
        ("flex --moe-flex-dispatcher-backend hybridep", True),
    ):
        workload, notes = parsed(f"{MEGATRON.rstrip()} {experts} {limited} --moe-token-dispatcher-type {dispatcher}\n", tmp_path)
        shape, mesh = workload.model.transformer, workload.training.stack.mesh
        assert shape is not None and mesh is not None and not notes
        assert (shape.expert_groups, shape.groups_per_token, mesh.one_copy) == (4, 2, one_copy)
    with pytest.raises(SpecError, match=r"--moe-router-topk \(8\) is above the 4 experts of 2 groups"):
        parsed(f"{MEGATRON.rstrip()} {experts.replace('topk 2', 'topk 8')} {limited}\n", tmp_path)


def test_overlap_of_experts_in_megatron(tmp_path: Path) -> None:
    """Oracle: megatron/training/arguments.py; core/transformer/transformer_config.py: 20 and 16 multiprocessors by default."""
    experts = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 64 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1"
    given = f"{MEGATRON.rstrip()} {experts} --overlap-moe-expert-parallel-comm"
    flex = "--moe-token-dispatcher-type flex"
    for dispatcher, blocks in (
        ("", 0), (flex, 20), (f"{flex} --moe-deepep-num-sms 24", 24), (f"{flex} --moe-flex-dispatcher-backend hybridep", 16),
        (f"{flex} --moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 32", 32),
    ):  # fmt: skip
        mesh = parsed(f"{given} {dispatcher}\n", tmp_path)[0].training.stack.mesh
        assert mesh is not None
        assert (mesh.paired_schedules, mesh.expert_blocks) == (("1f1b", "interleaved_1f1b"), blocks)
    _, notes = parsed(f"{given} --delay-wgrad-compute\n", tmp_path)
    assert notes == ("--delay-wgrad-compute is not modeled: backward computes gradients of weights with those of inputs",)


def test_a_vocabulary_follows_from_the_kind_of_tokenizer(tmp_path: Path) -> None:
    """Oracle: Megatron-LM's examples/gpt3/train_gpt3_175b_distributed.sh and examples/mixtral, and the vocabularies of both tokenizers."""
    bare = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128"
    for options, padded, told in (
        ("--vocab-file gpt2-vocab.json --merge-file $MERGE_FILE --tensor-model-parallel-size 8", 51200, "50,257 tokens by --merge-file"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $1", 32000, "32,000 tokens by --tokenizer-type Llama2Tokenizer"),
        ("--tokenizer-type NullTokenizer --vocab-size 1000", 1024, ""),
        ("--merge-file merges.txt --pad-vocab-size-to 250880", 250880, ""),
    ):
        workload, notes = parsed(f"{bare} {options}\n", tmp_path)
        assert workload.model.transformer is not None and workload.model.transformer.vocab == padded, options
        assert bool(told) is any("vocabulary" in note for note in notes)
        assert all(told in note for note in notes if "vocabulary" in note)
    with pytest.raises(SpecError, match="the vocabulary size depends on the tokenizer, which is not read; add --padded-vocab-size"):
        parsed(f"{bare} --tokenizer-type HuggingFaceTokenizer\n", tmp_path)


def test_layers_of_multi_token_prediction_are_on_the_last_stage(tmp_path: Path) -> None:
    """Oracle: megatron/core/transformer/multi_token_prediction.py; ``--num-layers`` does not count them."""
    latent = f"{SIZES} --seq-length 128 --max-position-embeddings 128 --multi-latent-attention --mtp-num-layers 1"
    for options, blocks in (
        ("--pipeline-model-parallel-size 4", (1, 1, 1, 2)),
        ("--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 1", (2, 1, 2)),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ettt|tmL", (3, 2)),
    ):
        parallel = parsed(f"{latent} {options}\n", tmp_path)[0].training.parallel
        assert (parallel.layers_per_stage or (3, 2)) == blocks, options
    with pytest.raises(SpecError, match="layout has 4 blocks, but --num-layers is 4 and --mtp-num-layers 1; both must agree"):
        parsed(f"{latent} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ettt|tL\n", tmp_path)


def test_attention_in_several_kernels(tmp_path: Path) -> None:
    """Oracle: Megatron-LM core/transformer/enums.py, AttnBackend; core/models/backends.py, LocalSpecProvider."""
    sizes = f"{SIZES} --seq-length 128 --max-position-embeddings 128"
    passes = {
        said: parsed(f"{sizes} {said}\n", tmp_path)[0].training.stack.kernels.score_passes or 0.0
        for said in ("", "--attention-backend fused", "--attention-backend unfused", "--transformer-impl local")
    }
    assert list(passes.values()) == [0.0, 0.0, SCORE_PASSES, SCORE_PASSES]
    assert load_workload("gpt2", ["training.stack=megatron-deepspeed"]).spec.training.stack.kernels.score_passes == SCORE_PASSES
    assert not parsed(f"{sizes} --transformer-impl local --use-flash-attn\n", tmp_path)[0].training.stack.kernels.score_passes


def test_options_of_megatron_deepspeed(tmp_path: Path) -> None:
    """Oracle: bigscience-workshop/Megatron-DeepSpeed megatron/arguments.py, of 2022; its README's run of 176 billion parameters."""
    options = "--embed-layernorm --position-embedding-type alibi --checkpoint-activations --deepspeed --zero-stage 1 --bf16"
    counts = "--train-samples 220_000_000 --rampup-batch-size 192 16 9_765_625"
    workload, notes = parsed(f"{SIZES} --seq-length 128 --max-position-embeddings 128 {options} {counts}\n", tmp_path)
    shape, training = workload.model.transformer, workload.training
    assert shape is not None and (shape.positions, shape.embedding_norm) == ("alibi", True)
    assert (training.activation_checkpointing, training.parallel.shard) == ("blocks", "optimizer")
    assert training.stack.name == "megatron-deepspeed" and training.stack.kernels.score_passes == 16
    assert f"start: 192, step: 16, tokens: {9765625 * 128}" in notes[0] and "28,160,000,000 tokens" in notes[-1]
    half = parsed(f"{SIZES} --seq-length 128 --max-position-embeddings 128 --deepspeed --fp16 --use-flash-attn-v2\n", tmp_path)[0].training
    assert half.stack.kernels.score_passes == 0 and half.stack.mesh is not None and half.stack.mesh.reduction == "fp16"
    split = parsed(f"{SIZES} --seq-length 128 --max-position-embeddings 128 --deepspeed --context-parallel-size 2\n", tmp_path)[0].training
    assert split.stack.mesh is not None and split.stack.mesh.framework != "deepspeed", "its stack has no context ranks"
    with pytest.raises(SpecError, match="--position-embedding-type relative is not supported; supported: learned_absolute"):
        parsed(f"{SIZES} --seq-length 128 --max-position-embeddings 128 --position-embedding-type relative\n", tmp_path)
