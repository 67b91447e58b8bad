"""How is a layout written for Megatron-LM? As arguments for axes, stages, exchanges, precision, and the model (layout_megatron_model)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sim.spec.fields import Fp8Recipe
from sim.spec.foreign.launch_unread import FP8_RECIPES
from sim.spec.foreign.layout_launch import Launch, blocks_of, require_shape
from sim.spec.foreign.layout_megatron_model import inexpressible_fields, model_arguments, option_lines
from sim.spec.parallel import Parallel
from sim.spec.yaml import SpecError

MEGATRON_FSDP: Final[Mapping[str, str]] = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
"""Values of --data-parallel-sharding-strategy for what the distributed optimizer alone does not shard (arguments.py, validate_args)."""


def megatron_arguments(launch: Launch) -> str:
    """Return the arguments for Megatron-LM, one per line. Raise SpecError for anything that Megatron-LM does not support."""
    parallel, shape = launch.parallel, require_shape(launch, "Megatron-LM")
    if parallel.shard in MEGATRON_FSDP and (parallel.replicate > 1 or parallel.reshard_after_forward not in (None, True)):
        raise SpecError("the arguments for Megatron-FSDP are written for shards without replicas that are freed after forward")
    if parallel.pipeline > 1 and parallel.schedule not in (None, "1f1b", "interleaved_1f1b"):
        raise SpecError(f"Megatron-LM has no schedule {parallel.schedule}")
    if parallel.cuts:
        raise SpecError("Megatron-LM's stages begin at block boundaries, not at training.parallel.cuts")
    options = model_arguments(shape, launch.sequence)
    if missing := inexpressible_fields(shape, launch.sequence, options):
        raise SpecError(f"Megatron-LM's arguments cannot express {', '.join(missing)} of {launch.model}")
    options |= {
        "tensor-model-parallel-size": parallel.tensor,
        "pipeline-model-parallel-size": parallel.pipeline,
        "context-parallel-size": parallel.context,
        "expert-model-parallel-size": parallel.expert,
        "micro-batch-size": launch.batch,
        "global-batch-size": launch.global_batch,
    }
    if parallel.sequence_parallel:
        options["sequence-parallel"] = ""
    options |= _stack_options(launch) | _stages(launch) | _ranks(parallel) | _recomputation(launch)
    return option_lines(options | _precision(launch.precision, launch.fp8_recipe))


def _stack_options(launch: Launch) -> dict[str, Any]:
    """Return the options for overlap and for the type of gradients, as in the stack if it is one of Megatron's, else its defaults here."""
    mesh = None if launch.stack is None else launch.stack.mesh
    own = mesh if mesh is not None and mesh.framework == "megatron" else None
    options: dict[str, Any] = {"overlap-grad-reduce": ""} if own is None or own.overlap_gradients else {}
    if launch.parallel.shard in MEGATRON_FSDP:
        strategy = MEGATRON_FSDP[launch.parallel.shard]
        options |= {"use-megatron-fsdp": "", "data-parallel-sharding-strategy": strategy, "ckpt-format": "fsdp_dtensor"}
    if launch.parallel.shard != "none":
        options["use-distributed-optimizer"] = ""
        options |= {"overlap-param-gather": ""} if own is None or own.overlap_parameters else {}
    if own is not None and own.one_copy and launch.parallel.expert > 1:
        options |= {"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": "deepep"}
    if own is not None and own.paired_schedules and launch.parallel.expert > 1:
        options["overlap-moe-expert-parallel-comm"] = ""
        options |= {"moe-deepep-num-sms": own.expert_blocks} if own.one_copy else {}
    if own is None or launch.precision in ("fp32", "tf32"):
        return options
    options |= {"grad-reduce-in-bf16": ""} if own.gradients == own.reduction == "bf16" else {}
    return options | ({} if own.fused_accumulation else {"no-gradient-accumulation-fusion": ""})


def _recomputation(launch: Launch) -> dict[str, Any]:
    """Return the options for what is recomputed: blocks, a number of them in each chunk, attention, or modules of a block."""
    each, rest = divmod(launch.recompute_blocks, launch.parallel.chunks)
    if launch.checkpointing == "blocks" and rest:
        chunks = f"{launch.parallel.chunks} chunks of a rank"
        raise SpecError(f"Megatron-LM recomputes as many blocks in each of {chunks}, so not {launch.recompute_blocks} in all")
    if launch.checkpointing == "blocks":
        method = {"recompute-method": "block" if each else "uniform", "recompute-num-layers": each or 1}
        return {"recompute-granularity": "full", **method}
    attention = ("core_attn",) if launch.checkpointing == "selective" and "core_attn" not in launch.recompute_modules else ()
    if not launch.recompute_modules:
        return {"recompute-granularity": "selective"} if attention else {}
    return {"recompute-granularity": "selective", "recompute-modules": " ".join((*attention, *launch.recompute_modules))}


def _stages(launch: Launch) -> dict[str, Any]:
    """Return how blocks are distributed; uneven chunks as letters (E embedding, t block, m multi-token prediction, L loss)."""
    parallel, predicted = launch.parallel, require_shape(launch, "Megatron-LM").prediction_layers
    counts = blocks_of(launch, 0) if parallel.pipeline > 1 else [0]
    if parallel.pipeline > 1 and (predicted or len(set(counts)) > 1):
        if counts[-1] < predicted:
            raise SpecError(
                f"Megatron-LM needs all {predicted} multi-token prediction blocks on the last stage, but it has {counts[-1]} blocks"
            )
        counts[-1] -= predicted
        return {"pipeline-model-parallel-layout": f"E{'|'.join('t' * count for count in counts)}{'m' * predicted}L"}
    return {"num-virtual-stages-per-pipeline-rank": parallel.virtual_stages} if parallel.virtual_stages > 1 else {}


def _ranks(parallel: Parallel) -> dict[str, Any]:
    """Return the options for the order of the axes of *parallel* and for their exchanges, if they differ from Megatron-LM's defaults."""
    options: dict[str, Any] = {"use-tp-pp-dp-mapping": ""} if parallel.order else {}
    if parallel.expert > 1 and parallel.tensor > 1:
        options["expert-tensor-parallel-size"] = 1  # else experts are split over the tensor ranks as well
    if parallel.context > 1 and parallel.context_exchange != "ring":
        options["cp-comm-type"] = parallel.context_exchange
    if parallel.capacity_factor is not None:
        options["moe-expert-capacity-factor"] = parallel.capacity_factor
    return options | ({"moe-pad-expert-input-to-capacity": ""} if parallel.pad_to_capacity else {})


def _precision(precision: str, recipe: Fp8Recipe | None) -> dict[str, Any]:
    """Return the options of *precision*: gradients are in e5m2 except with mxfp8 (Megatron-Bridge's recipes)."""
    if precision in ("fp32", "tf32"):
        return {}
    if precision == "fp8" and recipe not in FP8_RECIPES:
        raise SpecError(f"Megatron-LM has no fp8 recipe {recipe}; it has {', '.join(FP8_RECIPES)}")
    options: dict[str, Any] = {"fp16" if precision.endswith("fp16") else "bf16": ""}
    if precision == "fp8":
        options |= {"fp8-format": "e4m3" if recipe == "mxfp8" else "hybrid", "fp8-recipe": recipe}
    return options | ({"fp4-format": "e2m1"} if precision == "nvfp4" else {})
