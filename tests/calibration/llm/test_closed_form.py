"""Oracles: FLOP over peak bounds a step from below, Korthikanti's and ZeRO's bytes, and what must not change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import pytest

from calibration.llm import engine
from calibration.llm.case import Case
from calibration.llm.closed_form import predict
from calibration.llm.engine import memory_need
from calibration.llm.fit import NOISE, fit
from calibration.llm.priors import defaults, priors
from calibration.llm.rules import model_flop
from calibration.llm.weights import blocks_of_stages, stage_weights, total_parameters
from calibration.llm.wires import Wires
from tests.calibration.llm.test_case import one


def varied(folder: Path) -> list[Case]:
    base = dict(gpus="64", nodes="8", global_batch="512")
    layouts = [dict(tp="1"), dict(tp="8"), dict(tp="4", pp="2"), dict(tp="2", pp="4", virtual_pp="2"), dict(cp="2"), dict(zero_stage="3")]
    return [one(folder, **base, **layout) for layout in layouts]


def test_no_step_beats_the_peak(tmp_path: Path) -> None:
    wrong = []
    for case in varied(tmp_path):
        least = model_flop(case, attention=True) / (case.gpus * case.chip.peak["16bit"])
        prediction = predict(case, defaults())
        if not 1.2 < prediction.step_time / least < 4:
            wrong.append(f"{case.axes}: {prediction.step_time / least}")
    assert not wrong


def test_more_work_takes_longer_and_faster_parts_less(tmp_path: Path) -> None:
    case = one(tmp_path, gpus="64", nodes="8", tp="4", pp="2", global_batch="256")
    at = defaults()
    step = predict(case, at).step_time
    longer = [replace(case, micro_batches=2 * case.micro_batches), replace(case, recompute="full"), replace(case, nic=case.nic / 8)]
    shorter = [replace(case, precision="fp8"), replace(case, lora=True), replace(case, virtual_stages=4)]
    assert all(predict(other, at).step_time > step for other in longer)
    assert all(predict(other, at).step_time < step for other in shorter)


def memory(case: Case) -> float:
    return memory_need(case).nbytes


def test_states_are_those_of_zero(tmp_path: Path) -> None:
    plain = one(tmp_path, zero_stage="0")
    bytes_of = memory(plain) - memory(replace(plain, zero=1))
    assert bytes_of == pytest.approx(12.0 * stage_weights(plain).total * (1 - 1 / 8), rel=0.01)


def test_activations_scale_with_the_micro_batch(tmp_path: Path) -> None:
    case = one(tmp_path)
    first, second, third = (memory(replace(case, micro_batch=size)) for size in (1, 2, 3))
    assert third - second == pytest.approx(second - first, rel=0.02)
    assert memory(replace(case, recompute="full")) < first


def test_memory_is_read_as_the_table_reads_it(tmp_path: Path) -> None:
    """The driver shows more than the allocator reserves, which is more than what is allocated; rank 0 has the first stage only."""
    case = one(tmp_path, gpus="64", nodes="8", pp="4", tp="2", global_batch="512")
    read = [memory(replace(case, memory_reading=how)) for how in ("allocated", "reserved", "nvidia-smi")]
    assert read == sorted(set(read))
    large_head = replace(case, shape=case.shape.model_copy(update={"vocab": 40 * case.shape.vocab}))
    assert memory(replace(large_head, memory_rank="first")) < memory(large_head)


def test_states_in_16_bits_take_half_and_cast_no_gradients(tmp_path: Path) -> None:
    """Two states of 2 bytes less an element; in 8 bits the step's copy of gradients, of 4 bytes, is the fullest moment else."""
    plain = one(tmp_path, source="NVIDIA-NeMo/Megatron-Bridge@1:log", gpus="64", nodes="8", tp="8", pp="8", dp="1", seq_len="64")
    assert (plain.optimizer_states, plain.memory_reading) == ("", "allocated")
    share = stage_weights(plain).total
    assert memory(plain) - memory(replace(plain, optimizer_states="bf16")) == pytest.approx(4 * share, rel=0.1)
    low = replace(plain, precision="fp8")
    assert memory(low) - memory(replace(low, optimizer_states="bf16")) == pytest.approx((4 + 4) * share, rel=0.1)


def test_a_gated_activation_may_keep_its_input_in_8_bits(tmp_path: Path) -> None:
    """Half of two times the inner width in 16 bits, a token and block, and only where products are in 8 bits."""
    low = one(tmp_path, source="NVIDIA-NeMo/Megatron-Bridge@1:log", precision="fp8")
    saved = 2 * 14336 * 1.0 * 8192 * 32
    assert memory(low) - memory(replace(low, activation_kept=0.5)) == pytest.approx(saved, rel=0.01)
    assert memory(replace(low, precision="16bit")) == memory(replace(low, precision="16bit", activation_kept=0.5))


def test_logits_take_what_the_loss_of_the_software_needs(tmp_path: Path) -> None:
    """Composer's fused loss holds 4 bytes of a logit, transformers' cross-entropy of 32-bit logits 12; blocks are recomputed."""
    memory_by_framework = {
        name: memory(one(tmp_path, framework=name, zero_stage="3", activation_checkpointing="full"))
        for name in ("Composer FSDP", "accelerate FSDP")
    }
    assert memory_by_framework["accelerate FSDP"] - memory_by_framework["Composer FSDP"] == pytest.approx(
        (12 - 4) * 8192 * 128256, rel=0.15
    )


def test_shards_that_stay_gathered_are_sharded_parameters(tmp_path: Path) -> None:
    """SHARD_GRAD_OP: 16 bytes of an element over 8 ranks, and all weights in 16 bits until backward (torch ShardingStrategy)."""
    gathered, freed = (one(tmp_path, framework="Composer FSDP", zero_stage=stage, activation_checkpointing="full") for stage in "23")
    assert memory(gathered) - memory(freed) == pytest.approx(2 * total_parameters(gathered), rel=0.2)


@pytest.mark.parametrize(("framework", "logit"), [("DeepSpeed", 10), ("Megatron-FSDP", 6)])
@pytest.mark.parametrize("stage", ["2", "3"])
def test_sharded_gradients_leave_with_each_micro_batch(tmp_path: Path, framework: str, logit: int, stage: str) -> None:
    """DeepSpeed refuses no_sync from ZeRO-2 on, and Megatron-FSDP reduces in every backward: no rank adds up all gradients."""
    row = {"framework": framework, "zero_stage": stage, "activation_checkpointing": "full"}
    few, many = (one(tmp_path, **row, global_batch=batch) for batch in ("16", "128"))
    assert (few.micro_batches, many.micro_batches) == (2, 16)
    assert memory(many) == pytest.approx(memory(few))
    state_bytes = total_parameters(many) * ((2 if stage == "2" else 2 / 8) + (4 + 12) / 8)
    passing = 8192 * (32 * 2 * 4096 + logit * 128256)  # inputs of blocks, and logits
    assert memory(many) == pytest.approx(state_bytes + passing, rel=0.1)


def test_a_gpu_that_no_machine_has_gets_no_verdict(tmp_path: Path) -> None:
    case = one(tmp_path, gpu="H200 NVL")
    assert memory_need(case).verdict == "unknown"
    assert predict(case, defaults()).step_time > 0


def test_a_fit_finds_constants_that_made_the_steps(tmp_path: Path) -> None:
    truth = {**defaults(), "product.hopper": 1.18}
    cases = []
    for case in varied(tmp_path):
        for source in ("a/x", "b/x", "c/x"):
            text = {**case.row.text, "source": source}
            row = replace(case.row, text=text, number={**case.row.number, "step_time_s": predict(case, truth).step_time})
            cases.append(replace(case, row=row))
    constants, without = fit(cases)
    before, after = (max(abs(predict(case, at).step_time / (case.measured or 1) - 1) for case in cases) for at in (defaults(), constants))
    assert before > 0.08
    assert after < 0.03
    assert 1.06 < constants["product.hopper"] < 1.2
    assert set(without) == {"a/x", "b/x", "c/x"}


def misfit(cases: list[Case], at: Mapping[str, float]) -> float:
    """Return what a fit makes least where sources have few rows: errors as a Cauchy law counts them, and the way from the priors."""
    errors = (math.log(predict(case, at).step_time / (case.measured or 1)) / NOISE for case in cases)
    away = (math.log(at[name] / value) / deviation for name, (value, deviation) in priors().items())
    return sum(math.log1p(error**2) for error in errors) / 2 + sum(way**2 for way in away) / 2


def test_a_fit_goes_on_until_no_constant_would_better_it(tmp_path: Path) -> None:
    experts = dict(experts="128", topk="8", ep="8", ffn_hidden="768", hidden="2048", seq_len="1024", params="", model="Qwen3 30B-A3B")
    sources = ("someone/runs@1:a.md", "another/runs@1:b.md")
    mixtures = [one(tmp_path, **experts, global_batch=batch, source=source) for batch in ("64", "128", "256") for source in sources]
    described = [*varied(tmp_path), *mixtures]
    truth = {**defaults(), "host.experts": 2e-2, "product.hopper": 0.5}
    cases = []
    for number, case in enumerate(described):
        measured = predict(case, truth).step_time * (1.0 + 0.1 * (number % 3))
        cases.append(replace(case, row=replace(case.row, number={**case.row.number, "step_time_s": measured})))
    constants, _ = fit(cases)
    least = misfit(cases, constants)
    for name in constants:
        for factor in (0.97, 1.03):
            assert misfit(cases, {**constants, name: factor * constants[name]}) > least - 1e-4, name


def test_the_host_of_experts_is_fitted_only_if_two_sources_show_it(tmp_path: Path) -> None:
    """With either of two left out, and for a source alone, it stays at its prior, however slow the runs were."""
    experts = dict(experts="128", topk="8", ep="8", ffn_hidden="768", hidden="2048", seq_len="1024", params="", model="Qwen3 30B-A3B")
    sources = ("someone/runs@1:a.md", "another/runs@1:b.md")
    slow = [one(tmp_path, **experts, global_batch=batch, source=source) for batch in ("64", "128") for source in sources]
    truth = {**defaults(), "host.experts": 2e-2}
    cases = [
        replace(case, row=replace(case.row, number={**case.row.number, "step_time_s": predict(case, truth).step_time})) for case in slow
    ]
    both, without = fit(cases)
    prior = defaults()["host.experts"]
    assert both["host.experts"] > 2 * prior
    assert [fold["host.experts"] for fold in without.values()] == [pytest.approx(prior, rel=1e-3)] * 2
    alone, _ = fit(cases[::2])
    assert alone["host.experts"] == pytest.approx(prior, rel=1e-3)


def nanotron(folder: Path, **row: str) -> Case:
    """Return a run of nanotron's sweep."""
    cells = dict(source="vinjn/nanotron-ultrascale-playbook@1:x", framework="nanotron", ffn_hidden="14336", seq_len="4096", network="EFA")
    return one(folder, **{**cells, **row})


def test_checked_collectives_bound_a_pipeline_by_the_host(tmp_path: Path) -> None:
    # ten collectives a block and micro-batch, each with a barrier and two rings among eight ranks (ProcessGroupWrapper.cpp)
    case = nanotron(tmp_path, gpus="16", nodes="2", tp="8", pp="2", dp="1", global_batch="256", zero_stage="0")
    at = defaults()
    blocks = max(blocks_of_stages(case)[0])
    floor = 256 * blocks * 10 * (3 + 2 * 2 * 7) * at["check.message"]
    checked, plain = predict(case, at).step_time, predict(replace(case, checks_collectives=False), at).step_time
    assert floor < checked < 1.5 * floor
    assert plain < 0.6 * checked
    alone = [replace(case, tensor=1, data=8), nanotron(tmp_path, tp="4", pp="2", dp="1", zero_stage="0")]
    for other in alone:
        assert predict(other, at).step_time < 1.02 * predict(replace(other, checks_collectives=False), at).step_time + 1.0


def test_gradients_in_buckets_are_checked_one_by_one(tmp_path: Path) -> None:
    # 16 of 32 blocks, tp 2: products of 25.2, 16.8, 117.4 and 58.7 MB fill three buckets of 25 MiB a block, and a last one is open
    case = nanotron(tmp_path, gpus="64", nodes="8", tp="2", pp="2", dp="16", global_batch="256", zero_stage="0", vocab="32000")
    at = {**defaults(), "check.message": 1e-4}
    more = {**at, "check.message": 2e-4}
    sharded = replace(case, zero=1)
    grown = predict(case, more).parts["data"] - predict(case, at).parts["data"]
    assert grown == pytest.approx((3 + 2 * 2 * 15) * 1e-4 * (3 * max(blocks_of_stages(case)[0]) + 1), rel=1e-3)
    assert predict(sharded, more).parts["data"] <= predict(sharded, at).parts["data"]


def test_measured_latency_grows_with_nodes_and_bytes(tmp_path: Path) -> None:
    case = nanotron(tmp_path, gpus="64", nodes="8", tp="8", dp="8", global_batch="256", zero_stage="0")
    at = {**defaults(), "exposed.data": 1.0}
    reduced = 2 * 4.0 * (stage_weights(case).dense + stage_weights(case).vocabulary)
    assert slower(case, 2.0, at) == pytest.approx(7 * case.ring_latency["reduce"] * reduced / 256e6, rel=1e-3)
    # ZeRO-1 sends one message for all: an all-reduce goes round twice, a gather once
    once = replace(case, zero=1)
    assert slower(once, 2.0, at) == pytest.approx(7 * (2 * case.ring_latency["reduce"] + case.ring_latency["gather"]), rel=1e-3)


def slower(case: Case, factor: float, at: dict[str, float]) -> float:
    """Return by how many seconds a step grows if the measured latencies of its cluster are *factor* times as long."""
    latency = {name: factor * value for name, value in case.ring_latency.items()}
    return predict(replace(case, ring_latency=latency), at).step_time - predict(case, at).step_time


def test_nanotrons_sharded_optimizer_waits_for_an_all_reduce_and_copies_slices(tmp_path: Path) -> None:
    """Oracle: trainer.py, ``training_step``, and distributed.py, ``all_gather_coalesced``."""
    case = nanotron(tmp_path, gpus="64", nodes="8", tp="1", dp="64", global_batch="256", zero_stage="1")
    at = {**defaults(), "network": 1e-3}  # nothing but messages counts
    plain = stage_weights(case).dense + stage_weights(case).vocabulary
    sent = (2 * 4.0 + 2.0) * plain * 63 / 64 / (8 * case.nic * 1e-3)  # eight ranks of a node share its NICs
    copies = (6 * 32 * 64 - 1024) * 6.9e-6
    assert predict(case, at).parts["data"] == pytest.approx(sent + copies, rel=0.01)


def test_nanotron_splits_blocks_by_cost(tmp_path: Path) -> None:
    # nanotron's course notebook shows Llama 3 8B on eight stages: five blocks on the first one, the head on the last
    case = nanotron(tmp_path, gpus="8", pp="8", dp="1", global_batch="256", zero_stage="0")
    blocks, head = blocks_of_stages(case)
    assert (blocks[0], sum(blocks), head) == (5, 32, 7)
    assert blocks[-1] < min(blocks[:-1])
    even = replace(case, family="megatron", stack="megatron-core", shape=case.shape.model_copy(update={"layers": 126}), pipeline=16)
    assert blocks_of_stages(even) == ((7, *[8] * 14, 7), 15)


def test_launching_experts_bounds_a_step_and_graphs_shorten_it(tmp_path: Path) -> None:
    # Qwen3 30B: 48 blocks of experts, 64 micro-batches of 4096 tokens; forward once and backward 1.5 times on the host
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    case = one(tmp_path, **blank, model="Qwen3_30B_a3B", gpu="B200", ep="8", seq_len="4096", global_batch="512", zero_stage="1")
    at = {**defaults(), "host.experts": 0.02}
    eager = predict(case, at).step_time
    launched = 64 * 48 * 2.5 * (0.02 + at["host"])
    assert launched < eager < 1.3 * launched
    assert predict(replace(case, uses_cuda_graphs=True), at).step_time < 0.7 * eager


def test_recipes_tell_who_replays_graphs(tmp_path: Path) -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    bridge = dict(blank, source="NVIDIA-NeMo/Megatron-Bridge@1:x", seq_len="4096", dp="64", gpus="64", nodes="8", ep="8")
    replays = {
        (gpu, model): one(tmp_path, **bridge, model=model, gpu=gpu).uses_cuda_graphs
        for gpu in ("H100", "B200", "B300", "GB200", "GB300")
        for model in ("GPT OSS 120B", "DeepSeekV3", "Qwen3_235B_a22B", "Qwen3_30B_a3B")
    }
    graphed = {key for key, graphs in replays.items() if graphs}
    assert graphed == {
        *((gpu, "GPT OSS 120B") for gpu in ("B300", "GB300")),
        *((gpu, "DeepSeekV3") for gpu in ("B300", "GB200", "GB300")),
        *((gpu, "Qwen3_235B_a22B") for gpu in ("GB200", "GB300")),
        *((gpu, "Qwen3_30B_a3B") for gpu in ("H100", "B200", "B300", "GB200", "GB300")),
    }
    assert not one(tmp_path, **bridge, model="Qwen3_30B_a3B", gpu="H100", precision="fp8").uses_cuda_graphs
    unknown = {
        name: one(tmp_path, gpu="GB200", node_type="", framework=name).uses_cuda_graphs for name in ("NeMo", "torchtitan", "DeepSpeed")
    }
    assert unknown == {"NeMo": True, "torchtitan": False, "DeepSpeed": False}
    assert one(tmp_path, **bridge, model="Qwen3_235B_a22B", gpu="H100").expert_overlap


def test_dispatch_over_nodes_takes_the_network_and_one_copy_a_node_less(tmp_path: Path) -> None:
    # without a stated network a GPU has its usual NIC; 8 experts of a token over 2 nodes: 4 copies go out, or 1 - 2**-8 of one
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    case = one(
        tmp_path, **blank, model="Qwen3_30B_a3B", network="InfiniBand", gpus="16", nodes="2", dp="16", ep="16", seq_len="4096",
        global_batch="1024",
    )  # fmt: skip
    assert case.nic == pytest.approx(50e9)
    at = {**defaults(), "host": 1e-9, "host.experts": 1e-9, "dispatch": 0.5, "launch.collective": 1e-9, "sync.experts": 1e-9}
    every = predict(case, at).parts["experts"]
    once = predict(replace(case, one_copy=True), at).parts["experts"]
    sent = 4 * 64 * 48 * 2.0 * 4096 * 2048 / (50e9 * at["network"])
    assert every == pytest.approx(4 * sent, rel=0.02)
    assert once == pytest.approx((1 - 2**-8) * sent, rel=0.02)


def test_modules_recomputed_by_themselves_take_their_forward_again(tmp_path: Path) -> None:
    # Megatron's recompute_modules: at 70B the feed-forward block has four fifths of the parameters of a block
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    base = dict(blank, model="Llama 3 70B", gpus="32", nodes="4", tp="8", dp="4", seq_len="4096", global_batch="32")
    steps = {
        text: one(tmp_path, **base, activation_checkpointing=text)
        for text in ("none", "selective: layernorm", "selective: core_attn", "selective: mlp", "selective: mlp, core_attn", "full")
    }
    at = defaults()
    took = {text: predict(case, at).step_time for text, case in steps.items()}
    assert sorted(took, key=took.__getitem__) == list(steps)
    products = predict(steps["none"], at).parts["products"] / 3
    assert 0.6 * products < took["selective: mlp"] - took["none"] < products
    memory_by_recompute = {text: memory(case) for text, case in steps.items()}
    assert memory_by_recompute["full"] < memory_by_recompute["selective: mlp"] < memory_by_recompute["selective: layernorm"]


def test_saved_outputs_are_not_made_again(tmp_path: Path) -> None:
    # Llama 2 70B: of 8,192 x (10,240 + 8,192 + 57,344 + 28,672) weights of a block MaxText's policies compute again what they do not save
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    base = dict(blank, framework="MaxText", model="Llama 2 70B", gpus="128", nodes="16", tp="1", dp="128", zero_stage="3", seq_len="4096")
    parts = {
        text: predict(one(tmp_path, **base, global_batch="128", activation_checkpointing=text), defaults()).parts
        for text in ("full", "save_qkv_proj", "save_dot_except_mlp", "save_dot_except_mlpwi", "minimal")
    }
    products = parts["full"]["products"] / 3
    all_weights = 10240 + 8192 + 57344 + 28672
    spared = {"save_qkv_proj": 10240, "save_dot_except_mlp": 18432, "save_dot_except_mlpwi": 18432, "minimal": 18432 + 57344}
    for text, columns in spared.items():
        less = parts["full"]["recompute"] - parts[text]["recompute"]
        assert less == pytest.approx(products * columns / all_weights, rel=0.05), text


def test_each_tensor_message_keeps_the_host_busy(tmp_path: Path) -> None:
    """Where hosts bound the step: a forward, 1.5 of it for backward, and 1.8 of 42 operators for each of ten messages of a block."""
    case = nanotron(tmp_path, tp="2", dp="4", global_batch="16", zero_stage="0")
    at = {**defaults(), "host.eager": 1.0}
    for tensor, operators in ((1, 0.0), (2, 18.0)):
        step = predict(replace(case, tensor=tensor), at).step_time
        assert step == pytest.approx(case.micro_batches * case.shape.layers * (2.5 + operators / 42), rel=0.02)
    compiled = replace(case, is_compiled=True)
    assert predict(compiled, at).step_time < 0.1 * predict(case, at).step_time


def test_gradients_that_are_reduced_whole_are_sent_twice(tmp_path: Path) -> None:
    """Gradients are sent once or, all-reduced, twice; then weights of 2 bytes are gathered. DeepSpeed's gradients have 2 bytes, others 4"""
    case = nanotron(tmp_path, gpus="64", nodes="8", tp="8", dp="8", global_batch="256", zero_stage="1")
    case = replace(case, family="megatron-2021", ring_latency={})  # its messages are not joined
    at = {**defaults(), "exposed.data": 1.0}
    scattered, reduced = (predict(replace(case, stack=stack), at).parts["data"] for stack in ("megatron-lm-2022", "megatron-deepspeed"))
    assert reduced == pytest.approx((2 * 2 + 2) / (4 + 2) * scattered, rel=0.02)
    second = replace(case, zero=2, stack="megatron-deepspeed")
    assert predict(second, at).parts["data"] == pytest.approx((2 + 2) / (4 + 2) * scattered, rel=0.02)


def test_windows_chunks_and_documents_count_in_rules_and_in_time(tmp_path: Path) -> None:
    """A window of a quarter of the sequence leaves 7/16 of the pairs, chunks of that size leave 1/4, documents of 1/8 leave 1/8."""
    plain = one(tmp_path, seq_len="32768")
    of = {
        "window": (replace(plain, shape=plain.shape.model_copy(update={"window": 8192})), 7 / 16),
        "chunks": (replace(plain, shape=plain.shape.model_copy(update={"window": 8192, "chunked": True})), 1 / 4),
        "documents": (replace(plain, document_tokens=4096), 1 / 8),
    }
    products = model_flop(plain, attention=False)
    at = defaults()
    for name, (case, share) in of.items():
        attention = model_flop(case, attention=True) - products
        assert attention == pytest.approx(share * (model_flop(plain, attention=True) - products)), name
        took = predict(case, at).parts["attention"] / predict(plain, at).parts["attention"]
        assert share < took < 1.25 * share, name  # kernels take whole blocks of keys, and time to begin and end


SIZE = 1e12
"""Bytes of a message for which latencies do not count."""


def rings(ranks: int) -> int:
    """Return by trying how many rings of *ranks* share no link if every two have one in each direction."""
    cycles = [frozenset(pairwise((0, *order, 0))) for order in permutations(range(1, ranks))]

    def most(left: list[frozenset[tuple[int, int]]]) -> int:
        return max((1 + most([other for other in left[at + 1 :] if not other & cycle]) for at, cycle in enumerate(left)), default=0)

    return most(cycles)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6])
def test_ranks_of_a_mesh_have_their_own_links_only(ranks: int, tmp_path: Path) -> None:
    """A GPU of an MI300X platform has seven links; two GPUs use one of them, and a ring each of their link in one direction."""
    wires = Wires(one(tmp_path, gpu="MI300X", node_type="", network=""), defaults())
    link = wires.fabric / 7
    assert wires.gather(SIZE, ranks, 1) == pytest.approx(SIZE * (ranks - 1) / ranks / (rings(ranks) * link), rel=1e-4)
    assert wires.send(SIZE, 1) == pytest.approx(SIZE / link, rel=1e-4)
    one_pair = SIZE / ranks / link
    assert wires.exchange(SIZE, ranks, 1, copies=1.0) == pytest.approx(one_pair / defaults()["dispatch"] * 0.5, rel=1e-4)
    switched = Wires(one(tmp_path), defaults())
    assert switched.gather(SIZE, ranks, 1) == pytest.approx(SIZE * (ranks - 1) / ranks / switched.fabric, rel=1e-4)


def test_boards_of_a_node_share_its_nics(tmp_path: Path) -> None:
    """A ring over nodes enters and leaves each once, so at the rate of all its NICs, unless PCIe is slower."""
    boards = {"gpu": "L40S", "node_type": "", "gpus": "32", "nodes": "4", "dp": "32"}
    slow, fast = (Wires(one(tmp_path, **boards, network=network), defaults()) for network in ("100 Gbps Ethernet", "8x 400 Gbps"))
    assert slow.gather(SIZE, 32, 1) == pytest.approx(SIZE * 31 / 32 / (12.5e9 * defaults()["network"]), rel=1e-4)
    assert fast.gather(SIZE, 32, 1) == pytest.approx(SIZE * 31 / 32 / fast.bus, rel=1e-4)
    assert slow.send(SIZE, 1) == pytest.approx(SIZE / slow.bus, rel=1e-4)
    assert slow.send(SIZE, 8) == pytest.approx(SIZE / slow.network, rel=1e-4)


def test_pairs_with_bridges_meet_others_of_their_node_over_pcie(tmp_path: Path) -> None:
    wires = Wires(one(tmp_path, gpu="H100 NVL", node_type="", network="", gpus="16", nodes="2", dp="16"), defaults())
    assert wires.gather(SIZE, 2, 1) == pytest.approx(SIZE / 2 / wires.fabric, rel=1e-4)
    assert wires.gather(SIZE, 8, 1) == pytest.approx(SIZE * 7 / 8 / (64e9 * defaults()["fabric"]), rel=1e-4)


def test_stages_gather_shards_once_a_step(tmp_path: Path) -> None:
    """torch's pipelining keeps weights gathered and reduces gradients after the last backward, so further micro-batches move no shards."""
    case = one(tmp_path, framework="torchtitan", gpus="64", nodes="8", dp="16", pp="4", zero_stage="3", global_batch="128")
    slow, fast = replace(case, nic=case.nic / 20), replace(case, nic=case.nic / 10)
    once, twice = (
        predict(replace(slow, micro_batches=count), defaults()).step_time
        - predict(replace(fast, micro_batches=count), defaults()).step_time
        for count in (8, 16)
    )
    messages = (
        2 * 2.0 * case.seq * case.shape.hidden * 8 * defaults()["exposed.stages"] / defaults()["network"] * (1 / slow.nic - 1 / fast.nic)
    )
    assert twice - once == pytest.approx(messages, rel=1e-6)
    reduced = case.gradient_width * stage_weights(case).total * 15 / 16 / 8 / defaults()["network"] * (1 / slow.nic - 1 / fast.nic)
    assert once > messages + reduced


def test_the_ends_of_a_pipeline_sum_the_gradient_of_a_tied_table(tmp_path: Path) -> None:
    case = one(tmp_path, gpus="64", nodes="8", dp="16", pp="4", global_batch="128")
    tied = replace(case, shape=case.shape.model_copy(update={"tied": True}))
    longer = predict(tied, defaults()).step_time - predict(case, defaults()).step_time
    table = 2.0 * case.shape.vocab * case.shape.hidden
    latency = 2 * (defaults()["hop.network"] + defaults()["launch.collective"])
    assert longer == pytest.approx(table / (case.nic * defaults()["network"]) + latency, rel=1e-6)


@pytest.mark.parametrize("gpu", ["RTX A6000", "H100 PCIe", "A10G", "RTX 4090"])
def test_gpus_without_nvlink_send_through_their_host(tmp_path: Path, gpu: str) -> None:
    """Oracle: the simulator's server with eight slots, in a step of which messages of tensor ranks are most."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    row = {"model": "Llama 3.2 1B", "gpu": gpu, "dp": "1", "tp": "8", "seq_len": "2048", "global_batch": "8", "zero_stage": "0"}
    case = one(tmp_path, **blank | row, status="oom", node_type="")
    ratio = predict(case, defaults()).step_time / engine.predict(case, defaults()).step_time
    assert 0.7 < ratio < 1.4


def test_ddp_reduces_gradients_once_in_a_step(tmp_path: Path) -> None:
    """Oracle: karpathy/nanoGPT train.py, ``require_backward_grad_sync`` of the last micro-step alone; over 10 Gbps, one more would show."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    row = {"model": "Llama 3.2 1B", "framework": "PyTorch DDP", "gpus": "16", "nodes": "2", "network": "8x10G", "zero_stage": ""}
    few, many = (
        one(tmp_path, **blank | row, dp="16", seq_len="2048", global_batch=batch, activation_checkpointing="full") for batch in ("16", "64")
    )
    once = 2 * (15 / 16) * 1.24e9 * 4 / (8 * 10e9 / 8)
    for predictor in (predict, engine.predict):
        added = predictor(many, defaults()).step_time - predictor(few, defaults()).step_time
        assert added < 3 * once / 2, "three more micro-batches, and no reduction"
