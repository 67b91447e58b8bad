"""Oracles: ZeRO's bytes per parameter (arXiv 1910.02054), 1F1B's micro-batches in flight, activations (2205.05198)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.kept_activations import saved_bytes
from sim.analysis.layout_memory import RESERVED_OVER_ALLOCATED, StageMemory, memory_by_stage, memory_timeline
from sim.analysis.memory import gpu_memory
from sim.mesh import prepare
from sim.parallel.lower.layouts import Layout
from sim.spec.decoder import decoder_layers
from sim.spec.fields import Fp8Recipe
from sim.spec.library import load_hardware, load_workload
from sim.spec.parallel import Shard
from sim.spec.sections import with_fields
from sim.spec.transformer import Transformer
from sim.spec.workload import Workload
from tests.harness import toy_node, toy_workload
from tests.parallel.layouts import block_model, layout, model

GPU = toy_node(1).gpu
PARAMETERS = 8 * 1_000_000
BLOCKS = {f"layers.{number}.product": (1_000_000,) for number in range(8)}
BF16 = {"framework": "megatron", "weights": "bf16", "master": True}
HIDDEN, TOKENS, HEADS = 256, 128, 8
GPT = {"hidden": HIDDEN, "heads": HEADS, "vocab": 512, "activation": "gelu", "norm": "layernorm", "positions": "learned"}
GPT |= {"max_seq": TOKENS, "bias": "all", "dropout": 0.1}


def adam(**training: Any) -> Workload:
    given = toy_workload(optimizer="adam")
    return given.with_training(**training)


def static(stage: StageMemory) -> float:
    return stage.weights + stage.gradients + stage.optimizer_state


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zeros_bytes_per_parameter(ranks: int) -> None:
    """BF16 weights, FP32 gradients, master weights and two states: 18, then 6 + 12/N, 2 + 16/N and 18/N (Megatron dist_optimizer.md)."""
    expected = {"none": 18.0, "optimizer": 6 + 12 / ranks, "gradients": 2 + 16 / ranks, "parameters": 18 / ranks}
    for shard, each in expected.items():
        made = layout(block_model(BLOCKS), ranks, micro_batches=2, shard=shard, stack=BF16, synchronizes_each=True)
        assert static(memory_timeline(made, adam(), GPU, 0)[-1]) == pytest.approx(PARAMETERS * each), shard


def test_fsdp_with_fp32_weights_holds_16_bytes_over_n() -> None:
    """FP32 parameters, gradients and two states; replicas (HSDP) do not count."""
    for replicate in (1, 2):
        made = layout(block_model(BLOCKS), 8, micro_batches=2, shard="parameters", replicate=replicate)
        assert static(memory_timeline(made, adam(), GPU, 0)[-1]) == pytest.approx(PARAMETERS * 16 / (8 / replicate))


def test_tensor_ranks_and_stages_hold_a_part_of_the_weights() -> None:
    made = layout(block_model(BLOCKS), 4, pipeline=4, shard="none", stack=BF16)
    for stage in memory_by_stage(made, adam(), GPU):
        assert static(stage) == pytest.approx(PARAMETERS / 4 * 18)


def test_fsdp_gathers_one_block_ahead() -> None:
    """Backward holds the block's weights and gradients, the next block's buffer, and the last block's gradients in FP32: 2 + 2 + 2 + 4."""
    (freed,) = memory_by_stage(layout(block_model(BLOCKS), 8, shard="parameters"), adam(), GPU)
    assert freed.gathered == pytest.approx(4e6)
    assert freed.gradients == pytest.approx(6e6 + 6 * 4e6 / 8)  # shards of six blocks that are reduced
    (kept,) = memory_by_stage(layout(block_model(BLOCKS), 8, shard="parameters", reshard_after_forward=False), adam(), GPU)
    assert kept.gathered == pytest.approx(7 * 2e6)  # the last block's are freed behind its backward


def test_gradients_that_are_not_reduced_stay_whole() -> None:
    """Without synchronization FSDP adds up all gradients unsharded, in FP32."""
    each, last = (
        memory_by_stage(layout(block_model(BLOCKS), 8, micro_batches=3, synchronizes_each=each, shard="parameters"), adam(), GPU)[0]
        for each in (True, False)
    )
    assert last.gradients - each.gradients == pytest.approx(4.0 * PARAMETERS, rel=0.25)


def test_a_pipeline_of_fsdp_adds_gradients_up_in_the_type_they_travel_in() -> None:
    """Stages reduce with the last micro-batch alone: weights of a stage in 16 bits and its gradients in 32, whole (torch FSDPParam)."""
    fields: dict[str, Any] = {"pipeline": 2, "shard": "parameters", "synchronizes_each": True}
    one, many = (memory_by_stage(layout(block_model(BLOCKS), 8, micro_batches=count, **fields), adam(), GPU)[0] for count in (1, 4))
    assert many.gathered == pytest.approx(PARAMETERS / 2 * 2)
    assert many.gradients == pytest.approx(PARAMETERS / 2 * (4 + 4 / 4) + 2e6)  # whole, shards, and a block's that are added up
    assert one.gathered < many.gathered


# --- activations ---------------------------------------------------------------------------------------------------------


def gpt(layers: int, **fields: Any) -> Layout:
    stack = fields.pop("stack", {"framework": "megatron"})
    table = model(decoder_layers(Transformer.model_validate(GPT | {"layers": layers}), TOKENS))
    return layout(table, fields.pop("gpus", 1), stack=stack, **fields)


def kept(made: Layout, **training: Any) -> list[float]:
    """Return the activations of each stage in 16 bits."""
    return [stage.activations for stage in memory_by_stage(made, adam(precision="bf16", **training), GPU)]


@pytest.mark.parametrize(("tensor", "sequence"), [(1, None), (4, True), (4, False)])
def test_korthikantis_activations_of_a_layer(tensor: int, sequence: bool | None) -> None:
    """Fused attention drops the 5as/h term: 34 sbh; with tensor ranks (10 + 24/t) sbh; with sequence parallelism 34/t sbh.

    FP32 statistics of norms and attention come to it: s (2 x 2 + a) x 4 bytes.
    """
    fields: dict[str, Any] = {"gpus": tensor, "tensor": tensor, "sequence": sequence}
    four, eight = (kept(gpt(layers, **fields))[0] for layers in (4, 8))
    factor = {None: 34.0, True: 34.0 / tensor, False: 10 + 24 / tensor}[sequence]
    expected = TOKENS * HIDDEN * factor
    assert (eight - four) / 4 == pytest.approx(expected, rel=0.04)


def test_full_recomputation_keeps_the_input_of_each_block() -> None:
    """2 sbh a layer; with sequence parallelism over t."""
    for tensor in (1, 4):
        four, eight = (kept(gpt(n, gpus=tensor, tensor=tensor), activation_checkpointing="blocks")[0] for n in (4, 8))
        assert (eight - four) / 4 == pytest.approx(2 * TOKENS * HIDDEN / tensor)


def test_1f1b_holds_p_minus_s_micro_batches() -> None:
    """Stage s keeps min(p - s, m) micro-batches; GPipe keeps all; interleaved stages 1 + (p - 1)/(p v) times p."""
    blocks = {f"layers.{number}.product": (1000,) for number in range(8)}

    def count(**fields: Any) -> list[float]:
        rows = block_model(blocks)
        rows = rows.model_copy(update={"layers": tuple(row.model_copy(update={"saved": 4.0}) for row in rows.layers)})
        made = layout(rows, 4, pipeline=4, stack={"framework": "megatron"}, **fields)
        return [stage.activations / 4.0 / 2 for stage in memory_by_stage(made, adam(), GPU)]

    assert count(schedule="1f1b", micro_batches=8) == pytest.approx([4, 3, 2, 1])
    assert count(schedule="1f1b", micro_batches=2) == pytest.approx([2, 2, 2, 1])
    assert count(schedule="gpipe", micro_batches=8) == pytest.approx([8] * 4)
    # Narayanan et al.: warm-up of (p - 1) 2 + (v - 1) p chunks of half a stage, and one more
    assert count(virtual_stages=2, micro_batches=8)[0] == pytest.approx((2 * 3 + 4 + 1) / 2)
    assert count(schedule="zb_h1", micro_batches=8)[0] == pytest.approx(4)


def test_the_last_stage_holds_logits() -> None:
    """FP32 logits, and the inputs of the last norm and of the head; the first stage has a mask of dropout in place of them."""
    first, last = kept(gpt(4, gpus=2, pipeline=2, micro_batches=1))
    assert last - first == pytest.approx(4.0 * TOKENS * 512 + (2 + 2 - 1) * TOKENS * HIDDEN, rel=0.01)


def test_logits_in_16_bits_that_their_gradient_overwrites() -> None:
    """XLA's two bytes of a logit, in place of four that the loss keeps."""
    two = with_fields(adam().training.stack, logit_bytes=2.0)
    first, last = kept(gpt(4, gpus=2, pipeline=2, micro_batches=1), stack=two)
    assert last - first == pytest.approx(2.0 * TOKENS * 512 + (2 + 2 - 1) * TOKENS * HIDDEN, rel=0.01)


def test_verdicts_follow_the_memory_of_the_gpu() -> None:
    (stage,) = memory_by_stage(layout(block_model(BLOCKS), 1), adam(), GPU)
    needed = stage.reserved + stage.communication_buffers + stage.context
    sizes = {"fits": 2 * needed, "thrashes": 1.01 * needed, "does_not_fit": 0.99 * needed}
    for verdict, size in sizes.items():
        assert stage.verdict(GPU.model_copy(update={"memory": size})) == verdict


# --- what a framework holds beside tensors that stay ------------------------------------------------------------------------


def replay(**fields: Any) -> StageMemory:
    """Return the memory of the first stage of eight blocks of a million weights each."""
    stack = fields.pop("stack", {})
    return memory_by_stage(layout(block_model(BLOCKS), fields.pop("gpus", 8), stack=BF16 | stack, **fields), adam(), GPU)[0]


def test_gradients_wait_for_the_end_of_their_micro_batch() -> None:
    """All eight blocks have a gradient in 16 bits when the first one's backward ends, of one micro-batch at a time."""
    plain, waits = (replay(shard="none", micro_batches=3, stack={"gradients_wait": wait}) for wait in (False, True))
    assert waits.allocated - plain.allocated == pytest.approx(2.0 * PARAMETERS)
    made = layout(block_model(BLOCKS), 8, shard="none", micro_batches=3, stack=BF16 | {"gradients_wait": True})
    course = [moment.gradients for moment in memory_timeline(made, adam(), GPU, 0)]
    assert max(course) == (4.0 + 2.0) * PARAMETERS
    assert course[0] == 4.0 * PARAMETERS


@pytest.mark.parametrize(("vocab", "fits"), [(16 * TOKENS, False), (2 * TOKENS, True)])
def test_the_gradient_of_an_embedding_needs_a_block_that_is_large_enough(vocab: int, fits: bool) -> None:
    """The allocator does not join free blocks: 2 Vh bytes fit into the largest block of activations, 2 s 4h, or need a new one."""
    shape = Transformer.model_validate(GPT | {"layers": 8, "vocab": vocab})
    plain, waits = (
        memory_by_stage(
            layout(
                model(decoder_layers(shape, TOKENS)), 2, pipeline=2, shard="none", micro_batches=4,
                stack=BF16 | {"gradients_wait": wait, "framework": "nanotron"},
            ),
            adam(precision="bf16"),
            GPU,
        )[0]
        for wait in (False, True)
    )  # fmt: skip
    table = 0 if fits else 2 * vocab * HIDDEN
    assert waits.cached - plain.cached == pytest.approx(table, abs=2 * TOKENS * HIDDEN)  # positions, too


def test_reducer_buckets_need_another_rank() -> None:
    for ranks, expected in ((8, 2.0 * PARAMETERS), (1, 0.0)):
        plain, bucketed = (replay(gpus=ranks, shard="none", stack={"reducer_buckets": there}) for there in (False, True))
        assert bucketed.gradients - plain.gradients == expected


def test_what_a_stage_sent_on_stays_where_the_framework_keeps_it() -> None:
    """DeepSpeed and torch keep the output of each micro-batch in flight, Megatron frees it: boundary bytes times min(p - s, m)."""
    for schedule, many in (("1f1b", 8), ("1f1b", 2)):
        plain, kept_on = (
            memory_by_stage(
                layout(block_model(BLOCKS), 4, pipeline=4, schedule=schedule, micro_batches=many, stack={"framework": name}), adam(), GPU
            )
            for name in ("megatron", "deepspeed")
        )
        more = [own.activations - other.activations for own, other in zip(kept_on, plain, strict=True)]
        assert more == [min(4 - stage, many) for stage in range(3)] + [0]


def test_the_step_of_a_sharded_optimizer_takes_blocks_of_its_own() -> None:
    """Of a share once, of the whole stage once; the allocator keeps them, though they are not there when activations are."""
    plain = replay(shard="optimizer")
    flat = replay(shard="optimizer", stack={"step_share_bytes": 6, "step_whole_bytes": 2, "flat_buffers": "1 MB"})
    assert flat.allocated == plain.allocated
    assert flat.reserved - plain.reserved == pytest.approx(RESERVED_OVER_ALLOCATED * (PARAMETERS * (6 / 8 + 2) + 1e6))
    assert replay(shard="none", stack={"step_share_bytes": 6}).reserved == replay(shard="none").reserved


@pytest.mark.parametrize(
    ("gradients", "casts", "precision", "shard", "expected"),
    [
        ("bf16", "always", "bf16", "optimizer", 4 / 8),
        ("bf16", "always", "bf16", "none", 4.0),
        ("bf16", "fp8", "fp8", "optimizer", 4 / 8),
        ("bf16", "fp8", "bf16", "optimizer", 0.0),
        ("bf16", "never", "fp8", "optimizer", 0.0),
        ("fp32", "always", "fp8", "optimizer", 0.0),
    ],
)
def test_a_step_copies_gradients_of_the_share_to_32_bits(gradients: str, casts: str, precision: str, shard: Shard, expected: float) -> None:
    """After the activations are freed: weights, gradients, and 4 bytes per element of the share, plus master weights and states
    (distrib_optimizer.py)."""
    stack = BF16 | {"gradients": gradients, "casts_gradients": casts, "keeps_8bit_weights": False}
    made = layout(block_model(BLOCKS), 8, shard=shard, stack=stack)
    (stage,) = memory_by_stage(made, adam(precision=precision), GPU)
    last = memory_timeline(made, adam(precision=precision), GPU, 0)[-1]
    assert last.allocated - static(last) == pytest.approx(expected * PARAMETERS)
    assert stage.allocated == pytest.approx(max(moment.allocated for moment in memory_timeline(made, adam(precision=precision), GPU, 0)))


@pytest.mark.parametrize(
    ("keeps", "alone", "precision", "shard", "expected"),
    [
        (True, False, "fp8", "optimizer", 4.0),
        (True, True, "fp8", "optimizer", 2.0),
        (False, False, "fp8", "optimizer", 2.0),
        (True, False, "bf16", "optimizer", 2.0),
        (True, False, "nvfp4", "optimizer", 2.0 + 2 * 0.5625),
        (True, True, "nvfp4", "optimizer", 2.0 + 2 * 0.5625),
        (True, False, "fp8", "parameters", 4.0 / 8),
    ],
)
def test_weights_of_blocks_are_kept_in_few_bits_beside_or_instead(
    keeps: bool, alone: bool, precision: str, shard: Shard, expected: float
) -> None:
    """Transformer Engine's copies along rows and columns, beside 16 bits; parameters in 8 bits are all there is, in 4 there are none."""
    stack = BF16 | {"keeps_8bit_weights": keeps, "parameters_8bit": alone}
    (stage,) = memory_by_stage(layout(block_model(BLOCKS), 8, shard=shard, stack=stack), adam(precision=precision), GPU)
    assert stage.weights == pytest.approx(expected * PARAMETERS)


@pytest.mark.parametrize(
    ("machine", "recipe", "alone", "expected"),
    [
        ("hgx-h100", "delayed", False, 2 + 2),
        ("gb300-nvl72", "delayed", False, 2 + 1),
        ("gb300-nvl72", "mxfp8", False, 2 + 2 * (1 + 1 / 32)),
        ("hgx-h100", "blockwise", False, 2 + 2 * (1 + 4 / 128**2)),
        ("hgx-h100", "tensorwise", True, 2.0),
        ("gb300-nvl72", "tensorwise", True, 1.0),
        ("gb300-nvl72", "mxfp8", True, 2 * (1 + 1 / 32)),
        ("hgx-h100", "blockwise", True, 2 + 2 * (1 + 4 / 128**2)),
    ],
)
def test_weights_in_8_bits_by_recipe(machine: str, recipe: Fp8Recipe, alone: bool, expected: float) -> None:
    """A copy by rows and one by columns, but where Blackwell takes one either way; a scale beside 32 elements, or 128 x 128
    (quantizer.cpp, ``get_scale_shape``). Megatron-Bridge: fp8_param_gather but with blocks of 128."""
    gpu = load_hardware(machine).spec.groups[0].node.gpu
    stack = BF16 | {"keeps_8bit_weights": True, "parameters_8bit": alone}
    made = layout(block_model(BLOCKS), 8, shard="optimizer", stack=stack)
    workload = adam(precision="fp8")
    workload = workload.with_training(fp8_recipe=recipe)
    (stage,) = memory_by_stage(made, workload, gpu)
    assert stage.weights == pytest.approx(expected * PARAMETERS)


def test_inputs_of_products_are_kept_with_their_scales() -> None:
    """What backward keeps is the copy by columns (module/linear.py): a byte an element, and its share of a scale."""
    workload = load_workload("llama-3.1-8b", ["training.stack=megatron-core", "training.precision=fp8"]).spec
    product = next(layer for layer in workload.model.layers if layer.name.endswith("attention.output"))
    kept = {}
    for recipe in ("delayed", "mxfp8"):
        with_recipe = workload.with_training(fp8_recipe=recipe)
        kept[recipe] = saved_bytes(product, with_recipe)
    assert kept["delayed"] == product.saved / 4 * workload.training.batch
    assert kept["mxfp8"] == pytest.approx(kept["delayed"] * (1 + 1 / 32))


@pytest.mark.parametrize(("sequence", "stages"), [(True, 1), (False, 1), (True, 2)])
def test_what_collectives_sum_up_is_held_for_a_forward(sequence: bool, stages: int) -> None:
    """Two outputs of a block, of 2 sbh bytes each, whether they are scattered or summed everywhere; blocks are spread over stages."""

    def made(records: bool) -> Layout:
        stack = {"framework": "megatron", "records_streams": records}
        return gpt(8, gpus=4 * stages, tensor=4, sequence=sequence, pipeline=stages, stack=stack)

    plain, held = (memory_by_stage(made(records), adam(precision="bf16"), GPU)[0] for records in (False, True))
    assert held.allocated == plain.allocated
    assert held.cached - plain.cached == pytest.approx(8 / stages * 2 * 2 * TOKENS * HIDDEN)


@pytest.mark.parametrize(
    ("stages", "many", "ahead", "expected"),
    [
        (1, 4, 100, 8),  # a backward follows the first forward
        (1, 4, 5, 5),
        (2, 4, 100, 2 * 4),  # two forwards of four blocks come before a backward
        (2, 1, 100, 4),
        (2, 4, 6, 6),
    ],
)
def test_a_host_that_does_not_wait_is_ahead_by_the_launch_queue(stages: int, many: int, ahead: int, expected: int) -> None:
    """Of blocks launched before the first backward, at most those that the queue holds: two outputs of 2 sbh bytes each."""
    stack = {"framework": "megatron", "records_streams": True, "blocks_ahead": ahead}
    made = gpt(8, gpus=4 * stages, tensor=4, pipeline=stages, micro_batches=many, stack=stack)
    plain = gpt(8, gpus=4 * stages, tensor=4, pipeline=stages, micro_batches=many, stack={"framework": "megatron"})
    held, without = (memory_by_stage(each, adam(precision="bf16"), GPU)[0] for each in (made, plain))
    assert held.cached - without.cached == pytest.approx(expected * 2 * 2 * TOKENS * HIDDEN)


def test_each_stream_keeps_the_blocks_of_its_fullest_moment() -> None:
    """FSDP: gathers, reduce-scatters with the gradients they make, and compute are at their fullest at different moments."""
    made = layout(block_model(BLOCKS), 8, shard="parameters")
    (stage,) = memory_by_stage(made, adam(), GPU)
    course = memory_timeline(made, adam(), GPU, 0)
    assert {round(moment.allocated + moment.cached) for moment in course} == {round(stage.allocated + stage.cached)}
    # compute: weights and gradients of a block in 16 bits; gathers: two blocks; scatters: a block in 32 bits, and all shards of gradients
    assert stage.allocated + stage.cached - stage.weights - stage.optimizer_state == pytest.approx(
        (2 + 2) * 1e6 + 2 * 2e6 + 4e6 + 4.0 * PARAMETERS / 8, rel=0.35
    )


@given(
    stages=st.sampled_from([1, 2, 4]),
    chunks=st.sampled_from([1, 2]),
    rounds=st.integers(1, 5),
    odd=st.integers(0, 1),
    shard=st.sampled_from(["none", "optimizer", "gradients", "parameters"]),
    each=st.booleans(),
)
def test_more_micro_batches_than_fill_a_pipeline_change_nothing(
    stages: int, chunks: int, rounds: int, odd: int, shard: Shard, each: bool
) -> None:
    many = rounds * stages + (odd if chunks == 1 else 0)
    stack = BF16 | {"framework": "fsdp2" if shard == "parameters" else "deepspeed", "gradients_wait": True}
    rows = block_model(BLOCKS)
    rows = rows.model_copy(
        update={"layers": tuple(row.model_copy(update={"saved": 4.0 + 4.0 * index}) for index, row in enumerate(rows.layers))}
    )
    made = layout(
        rows, 2 * stages, pipeline=stages, virtual_stages=chunks if stages > 1 else 1, micro_batches=many, shard=shard,
        synchronizes_each=each, stack=stack,
    )  # fmt: skip
    for stage in memory_by_stage(made, adam(), GPU):
        course = memory_timeline(made, adam(), GPU, stage.stage)
        assert stage.allocated == pytest.approx(max(moment.allocated for moment in course))
        assert stage.reserved == pytest.approx(max(moment.reserved for moment in course))


@pytest.mark.parametrize(("stages", "checkpointing"), [(1, "none"), (1, "blocks"), (2, "none")])
def test_unpadded_sequences_need_the_memory_of_the_longest(stages: int, checkpointing: str) -> None:
    """Oracle: the same decoder with padding: the longest sequence of both is as long, however short most are."""
    lengths = "model.lengths={mean: 0.3, square: 0.15, source: test}"
    more = (
        f"training.activation_checkpointing={checkpointing}",
        f"training.parallel.pipeline={stages}",
        "training.parallel.shard=parameters",
    )
    both = [load_workload("llama-3.2-1b", [*more, lengths, f"model.padding={padding}"]).spec for padding in ("padded", "unpadded")]
    hardware = load_hardware("hgx-h100").spec
    gpu = hardware.groups[0].node.gpu
    padded, unpadded = (memory_by_stage(prepare(hardware, workload), workload, gpu) for workload in both)
    assert [stage.total for stage in unpadded] == pytest.approx([stage.total for stage in padded])
    alone = [gpu_memory(workload, gpu).total for workload in both]
    assert alone[1] == pytest.approx(alone[0])
