"""From a row of a table to a `Case`, with the settings of its source's scripts where the row leaves them open.

A row that does not specify enough, or contradicts itself, is no case: `describe` returns the reason in one sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from calibration.catalog_names import gpu_of_machine
from calibration.llm.axes import axes_of, domain_of, expert_ranks, gpus_of, gpus_of_node
from calibration.llm.case import Case
from calibration.llm.chips import BEFORE_AMPERE, BEFORE_TURING, Chip, ProductPrecision, chip_named, part_of, similar_chips
from calibration.llm.limits import limits_in
from calibration.llm.practice import (
    blocks_of_chunks,
    data_settings,
    expert_settings,
    is_compiled,
    is_sequence_parallel,
    launch_settings,
    memory_settings,
    modules_in,
    names_software,
    practice_assumptions,
    practice_of,
    prediction_layers_of,
    recompute_in,
    stack_with,
)  # fmt: skip
from calibration.llm.priors import MEGATRON_FAMILIES
from calibration.llm.shapes import SHAPE_COLUMNS, CannotDescribe, axis, count, experts_in_words, shape_of
from calibration.llm.table import LARGEST_STAGE, LlmRow
from calibration.llm.what_fits import ONE_SAMPLE, made_to_fit
from calibration.llm.words import (
    Shards,
    is_fused_attention,
    means_no_sharding,
    mentions_offload,
    offloads,
    other_job,
    precision_of,
    refuses_sharding,
    saves_of,
    shards_of,
    shards_of_software,
    trains_adapters,
    zero_of,
)
from calibration.network_words import nic_of
from sim.spec.fields import Fp8Recipe
from sim.spec.foreign.launch_megatron import SCORE_PASSES
from sim.spec.fp8_recipe import recipes_on, supports_recipe
from sim.spec.training import MOST_MICRO_BATCHES
from sim.spec.transformer import Transformer
from sim.units import any_of

DEFAULT_STAGES: Final = {"fsdp1": 3, "fsdp2": 3, "jax": 3}
"""Stage of ZeRO that a family has by default: as `SHARDED_FAMILIES`, and MaxText's configs/base.yml (ici_fsdp_parallelism -1)."""
SHARDED_OPTIMIZERS: Final = ("nemo", "nemo-24.03", "megatron-bridge")
"""Stacks whose recipes shard the optimizer (``use_distributed_optimizer`` of their DistributedDataParallelConfig)."""


def describe(row: LlmRow) -> Case | str:
    """Return the case of *row*, or one sentence on why it cannot be described."""
    try:
        _refuse_unsupported(row)
        return made_to_fit(_case(row))
    except CannotDescribe as error:
        return str(error)
    except ValidationError as error:
        return "; ".join(issue["msg"].removeprefix("Value error, ") for issue in error.errors())


def unread_cells(row: LlmRow) -> list[str]:
    """Return the columns of numbers of *row* whose cells hold something else, but for stages of ZeRO and experts in words."""
    read = {"zero_stage", *experts_in_words(row)}
    return [name for name in row.non_numeric if name not in read and SHAPE_COLUMNS.get(name) not in read]


def _case(row: LlmRow) -> Case:
    assumed = list(row.readings)
    practice = practice_of(row)
    chip = _chip(row, assumed)
    family, shape = shape_of(row, assumed)
    gpus = gpus_of(row, chip, assumed)
    of_node = gpus_of_node(row, chip, gpus, assumed)
    domain = domain_of(row, chip, gpus, of_node)
    assumed += practice_assumptions(row, practice)
    tensor, pipeline, context, data = axes_of(row, shape, gpus, assumed)
    micro, micro_batches = _batches(row, practice, data, assumed)
    recompute, recomputed = recompute_in(row, practice, math.ceil(shape.block_count / pipeline))
    products, scaling = _precision(row, chip, practice, assumed)
    virtual = _virtual(row, practice, shape, pipeline, assumed)
    shape, chunks = _predicting(row, practice, shape, pipeline * virtual)
    lora = trains_adapters(_trained(row))
    experts = expert_ranks(row, shape, tensor * context * data)
    split: dict[str, Any] = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": experts}
    compiled, shards = is_compiled(row, practice, assumed), _shards(row, practice, lora, assumed)
    return Case(
        row=row,
        shape=shape,
        model_family=family,
        chip=chip,
        domain=domain,
        gpus_per_node=of_node,
        nic=_nic(row, chip, practice, of_node, assumed if gpus > max(domain, of_node) else []),
        ring_latency={name: value * 1e-6 for name, value in practice.get("ring_latency_us", {}).items()},
        gpus=gpus,
        data=data,
        **split,
        sequence_parallel=tensor > 1 and is_sequence_parallel(row, practice),
        virtual_stages=virtual,
        layers_per_stage=chunks,
        zero=shards.stage,
        replicas=_replicas(shards, split, data, of_node, assumed),
        seq=_sequence(row),
        micro_batch=micro,
        micro_batches=micro_batches,
        precision=products,
        stated_recipe=scaling,
        recompute=recompute,
        recomputed_layers=recomputed,
        recomputed_modules=modules_in(row, practice),
        saved_layers=saves_of(row.text["activation_checkpointing"] or practice["recompute"]),
        score_passes=practice.get("score_passes", 0.0 if _has_fused_attention(row, chip, practice["family"], assumed) else SCORE_PASSES),
        lora=lora,
        **data_settings(practice, _sequence(row)),
        family=practice["family"],
        is_known_software=names_software(practice),
        stack=stack_with(practice["stack"], practice["family"], split, compiled, assumed),
        is_tuned=bool(practice.get("tuned")),
        tensor_overlap=bool(practice.get("tensor_overlap")) or "async TP" in row.text["notes"],
        **expert_settings(row, row.text["notes"], practice),
        **launch_settings(row, practice),
        is_compiled=compiled,
        checks_collectives=bool(practice.get("checked_pipelines")) and pipeline > 1 and gpus > domain,
        **memory_settings(practice),
        **limits_in(practice, chip),
        assumptions=tuple(assumed),
    )


def _nic(row: LlmRow, chip: Chip, practice: Mapping[str, Any], of_node: int, assumed: list[str]) -> float:
    """Return the network bandwidth (bytes/s) of a GPU; add to *assumed* if neither the row nor its source tells it."""
    nic, is_told = nic_of(row.text["network"], chip, practice.get("nic_Gbps"), of_node)
    if not is_told:
        assumed.append("the network between nodes")
    return nic


def _refuse_unsupported(row: LlmRow) -> None:
    """Raise CannotDescribe if a rank keeps something outside its GPU, or has weights in fewer bits than a layout can have."""
    if row.unassigned:
        raise CannotDescribe(f"{row.unassigned} more values than columns; put values that contain a comma in quotes")
    if offloads(row.text["offload"]):
        raise CannotDescribe(f"offload {row.text['offload']!r} is not supported; only none, with all data on the GPU, is")
    for name in ("zero_stage", "fsdp_mode", "activation_checkpointing", "framework", "notes"):
        if not row.text["offload"] and mentions_offload(cell := row.text_or_number(name)):
            raise CannotDescribe(
                f"{name} {cell!r}: offload is not supported; if all data stays on the GPU, write none in the column offload"
            )
    if other := other_job(f"{row.text['class']} {row.text['set']}"):
        raise CannotDescribe(f"{other} not supported; only training of a decoder is")
    if "qlora" in _trained(row):
        raise CannotDescribe("QLoRA keeps weights in 4 bits, which is not supported; LoRA on 16-bit and 8-bit weights is")


def _has_fused_attention(row: LlmRow, chip: Chip, family: str, assumed: list[str]) -> bool:
    """Return whether attention is one kernel; *assumed* gets a sentence where it is assumed that it is not."""
    says = row.text["flash_attention"]
    if says.strip() or family not in MEGATRON_FAMILIES or chip.generation not in BEFORE_TURING:
        return is_fused_attention(says)
    assumed.append(f"attention in several kernels, as no fused one of Megatron-LM runs on {chip.name}")
    return False


def _trained(row: LlmRow) -> str:
    """Return the cells of *row* that state what is trained, in lower case."""
    return " ".join(row.text[name] for name in ("class", "model", "set", "framework")).lower()


def _predicting(row: LlmRow, practice: Mapping[str, Any], shape: Transformer, chunks: int) -> tuple[Transformer, tuple[int, ...]]:
    """Return *shape* with its layers of multi-token prediction, and the blocks of each of *chunks* if the scripts set them."""
    more = prediction_layers_of(row, practice) if shape.mla is not None or shape.pattern is not None else 0
    shape = shape.model_copy(update={"prediction_layers": more}) if more else shape
    blocks = blocks_of_chunks(shape.block_count, chunks, practice["first_stage_less"]) if "first_stage_less" in practice else ()
    return shape, (*blocks[:-1], blocks[-1] + more) if blocks else ()


def _sequence(row: LlmRow) -> int:
    """Return the tokens of a sample. Raise CannotDescribe if *row* does not tell them."""
    tokens = count(row, "seq_len")
    if tokens:
        return tokens
    raise CannotDescribe(row.problem("seq_len") if "seq_len" in row.non_numeric else "seq_len is blank")


def _shards(row: LlmRow, practice: Mapping[str, Any], lora: bool, assumed: list[str]) -> Shards:
    """Return the stage of ZeRO of *row*, and whether it has several replicas of a sharded model."""
    mode = shards_of(row.text["fsdp_mode"])
    if mode is not None and (row.text_or_number("zero_stage") in ("", "3")):
        return mode
    if not row.text_or_number("zero_stage") and not means_no_sharding(row.text["fsdp_mode"]):
        raise CannotDescribe(
            f"fsdp_mode {row.text['fsdp_mode']!r} is unknown; use FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD or ZeRO-1 to ZeRO-3"
        )
    if not row.text_or_number("zero_stage") and "FSDP=" not in row.text["notes"]:
        if (named := shards_of_software(row.text["framework"])) is not None:
            return named
        by_default = DEFAULT_STAGES.get(practice["family"], int(practice["stack"] in SHARDED_OPTIMIZERS and not lora))
        replicated = practice.get("replicated") or (by_default == LARGEST_STAGE and refuses_sharding(row.text["fsdp_mode"]))
        usual = 0 if replicated else by_default
        if usual:
            assumed.append(f"zero_stage {usual}")
            return Shards(usual)
    stage = zero_of(row.non_numeric["zero_stage"]) if "zero_stage" in row.non_numeric else min(3, count(row, "zero_stage"))
    sharded = re.search(r"FSDP=(\d+)", row.text["notes"])
    return Shards(3 if sharded and int(sharded.group(1)) > 1 else stage)


def _replicas(shards: Shards, split: Mapping[str, int], data: int, of_node: int, assumed: list[str]) -> int:
    """Return the number of replicas of a sharded model: 1, or one on each node of *of_node* GPUs, which is torch's HYBRID_SHARD."""
    if not shards.replicated:
        return 1
    inside = of_node // math.prod(split[axis] for axis in ("tensor", "context"))
    if split["pipeline"] > 1 or split["expert"] > 1 or inside == 0 or data % inside:
        assumed.append("sharded over all data-parallel ranks, not inside each replica")
        return 1
    assumed += [f"{data // inside} replicas, each sharded over the {inside} data ranks of a node"] if data > inside else []
    return data // inside


def _batches(row: LlmRow, practice: Mapping[str, Any], data: int, assumed: list[str]) -> tuple[int, int]:
    batch, micro, accumulated = row.number.get("global_batch", 0.0), count(row, "micro_batch"), row.number.get("grad_accum", 0.0)
    if not batch:
        if micro and accumulated:
            batch = micro * accumulated * data
        elif measured := _measured_batch(row):
            batch = measured
            assumed.append(f"global_batch {batch:g}, from tokens_per_s_per_gpu and step_time_s")
        elif micro and not row.text_or_number("global_batch") and row.step_time is None and axis(row, "pp") == 1:
            batch = micro * data  # a rate of tokens hardly depends on how many micro-batches there are
            assumed.append("grad_accum 1: neither it nor the global batch is stated")
        else:
            raise CannotDescribe("global_batch is blank or not a number")
    if not micro and accumulated and batch % (accumulated * data) == 0:
        micro = int(batch / (accumulated * data))
    micro = micro or int(practice.get("micro_batch", 0))
    if not micro:
        micro = 1
        assumed.append(ONE_SAMPLE)
    if data > batch:
        raise CannotDescribe(f"a global batch of {batch:g} is less than one sequence for each of {data} data-parallel ranks")
    of_rank = int(batch / data)
    if micro > of_rank:
        assumed.append(f"micro_batch {of_rank}, global_batch {batch:g} / dp {data}; the row says {micro}")
        micro = of_rank
    micro_batches = max(1, round(batch / (data * micro)))
    if micro_batches > MOST_MICRO_BATCHES:
        raise CannotDescribe(
            f"global_batch {batch:g}: {micro_batches:,} micro-batches of {micro} on {data} ranks are no step (up to 100,000)"
        )
    if (taken := micro_batches * micro * data) != batch:
        assumed.append(f"global_batch {taken}, a multiple of dp {data} x micro_batch {micro}; the row says {batch:g}")
    return micro, micro_batches


def _measured_batch(row: LlmRow) -> int:
    """Return how many sequences a step takes by its measured rate and time; 0 if the row lacks one of them."""
    tokens = math.prod(row.number.get(name, 0.0) for name in ("tokens_per_s_per_gpu", "gpus", "step_time_s"))
    return round(tokens / _sequence(row)) if tokens else 0


def _virtual(row: LlmRow, practice: Mapping[str, Any], shape: Transformer, pipeline: int, assumed: list[str]) -> int:
    if pipeline == 1:
        return 1
    stated = count(row, "virtual_pp")
    if stated:
        if stated * pipeline <= shape.block_count:
            return stated
        assumed.append(f"virtual_pp 1: {stated} chunks on each of {pipeline} stages are more than {shape.block_count} layers")
        return 1
    chosen = int(practice.get("virtual_stages", 1))
    if "virtual pipeline degree not in the table" in row.text["notes"] or "virtual_pp" in row.non_numeric:
        assumed.append(f"virtual_pp {chosen}")
    return chosen


def _precision(row: LlmRow, chip: Chip, practice: Mapping[str, Any], assumed: list[str]) -> tuple[ProductPrecision, Fp8Recipe | None]:
    stated = row.text["precision"]
    products, scaling = precision_of(stated or practice.get("precision", "bf16"))
    wider = chip.peak["fp8" if products == "fp4" else "16bit"]
    is_missing = products != "16bit" and chip.peak[products] == wider
    if is_missing and stated:
        raise CannotDescribe(f"{chip.name} has no {products}")
    if stated and scaling and not supports_recipe(scaling, part_of(chip)):
        raise CannotDescribe(f"{chip.name} has no {scaling}; use {any_of(recipes_on(part_of(chip)))}")
    if chip.generation in BEFORE_AMPERE and re.search("bf16|bfloat16", stated, re.IGNORECASE):
        assumed.append(f"fp16: {chip.name} has no {stated}")
    if not stated and (is_missing or "precision" not in practice):
        assumed.append("bf16")
        return "16bit", None
    return products, scaling or (practice.get("fp8_recipe") if products == "fp8" else None)


def _chip(row: LlmRow, assumed: list[str]) -> Chip:
    name = row.text["gpu"]
    if not name and (machine := row.text["node_type"]) and (inside := gpu_of_machine(machine) or (machine if chip_named(machine) else "")):
        assumed.append(f"{inside}, the GPU of {machine}")
        name = inside
    named = chip_named(name)
    if named is None and (of_machine := gpu_of_machine(name)):  # p4d.24xlarge
        named = chip_named(of_machine)
        assumed.append(f"{of_machine}, the GPU of {name}")
    if named is None:
        near = similar_chips(name)
        meant = f"; did you mean {any_of(near)}?" if near else ""
        raise CannotDescribe(f"no description of the GPU {name!r}{meant}" if name else "gpu is blank")
    if named.assumption:
        assumed.append(named.assumption)
    return named.chip
