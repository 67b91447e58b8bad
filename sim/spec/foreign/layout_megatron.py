"""How is a layout written for Megatron-LM? As arguments for axes, stages, exchanges, precision, and the model (layout_megatron_model)."""

from __future__ import annotations

from typing import Any

from sim.spec.fields import Fp8Recipe
from sim.spec.foreign.launch_unread import FP8_RECIPES
from sim.spec.foreign.layout_launch import Launch, blocks_of, told_shape
from sim.spec.foreign.layout_megatron_model import lines, model_arguments, unsaid
from sim.spec.parallel import Parallel
from sim.spec.yaml import SpecError


def megatron_arguments(launch: Launch) -> str:
    """Return the arguments for Megatron-LM, one per line. Raise SpecError for anything that Megatron-LM does not support."""
    own, shape = launch.parallel, told_shape(launch, "Megatron-LM")
    if own.shard not in ("none", "optimizer"):
        raise SpecError(f"Megatron-LM's arguments here shard the optimizer or nothing, not {own.shard}")
    if own.pipeline > 1 and own.schedule not in (None, "1f1b", "interleaved_1f1b"):
        raise SpecError(f"Megatron-LM has no schedule {own.schedule}")
    if own.cuts:
        raise SpecError("Megatron-LM's stages begin with whole blocks, not at training.parallel.cuts")
    said = model_arguments(shape, launch.sequence)
    if missing := unsaid(shape, launch.sequence, said):
        raise SpecError(f"Megatron-LM's arguments do not say {', '.join(missing)} of {launch.model}")
    said |= {
        "tensor-model-parallel-size": own.tensor,
        "pipeline-model-parallel-size": own.pipeline,
        "context-parallel-size": own.context,
        "expert-model-parallel-size": own.expert,
        "micro-batch-size": launch.batch,
        "global-batch-size": launch.global_batch,
    }
    if own.sequence_parallel:
        said["sequence-parallel"] = ""
    if own.shard == "optimizer":
        said |= dict.fromkeys(("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather"), "")
    said |= _stages(launch) | _ranks(own)
    if launch.checkpointing == "blocks":
        said |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    if launch.checkpointing == "selective":
        said["recompute-granularity"] = "selective"
    return lines(said | _precision(launch.precision, launch.fp8_recipe))


def _stages(launch: Launch) -> dict[str, Any]:
    """Return how blocks are distributed; uneven chunks as letters (E embedding, t block, m multi-token prediction, L loss)."""
    own, predicted = launch.parallel, told_shape(launch, "Megatron-LM").prediction_layers
    counts = blocks_of(launch, 0) if own.pipeline > 1 else [0]
    if own.pipeline > 1 and (predicted or len(set(counts)) > 1):
        if counts[-1] < predicted:
            raise SpecError(
                f"Megatron-LM has all {predicted} blocks that predict further tokens on one stage; the last here has {counts[-1]}"
            )
        counts[-1] -= predicted
        return {"pipeline-model-parallel-layout": f"E{'|'.join('t' * count for count in counts)}{'m' * predicted}L"}
    return {"num-virtual-stages-per-pipeline-rank": own.virtual_stages} if own.virtual_stages > 1 else {}


def _ranks(own: Parallel) -> dict[str, Any]:
    """Return the options for the order of the axes of *own* and for their exchanges, if they differ from Megatron-LM's defaults."""
    said: dict[str, Any] = {"use-tp-pp-dp-mapping": ""} if own.order else {}
    if own.expert > 1 and own.tensor > 1:
        said["expert-tensor-parallel-size"] = 1  # else experts are split over the tensor ranks as well
    if own.context > 1 and own.context_exchange != "ring":
        said["cp-comm-type"] = own.context_exchange
    if own.capacity_factor is not None:
        said["moe-expert-capacity-factor"] = own.capacity_factor
    return said | ({"moe-pad-expert-input-to-capacity": ""} if own.pad_to_capacity else {})


def _precision(precision: str, recipe: Fp8Recipe | None) -> dict[str, Any]:
    """Return the options of *precision*: gradients are in e5m2 except with mxfp8 (Megatron-Bridge's recipes)."""
    if precision in ("fp32", "tf32"):
        return {}
    if precision == "fp8" and recipe not in FP8_RECIPES:
        raise SpecError(f"Megatron-LM has no fp8 recipe {recipe}; it has {', '.join(FP8_RECIPES)}")
    said: dict[str, Any] = {"fp16" if precision.endswith("fp16") else "bf16": ""}
    if precision == "fp8":
        said |= {"fp8-format": "e4m3" if recipe == "mxfp8" else "hybrid", "fp8-recipe": recipe}
    return said | ({"fp4-format": "e2m1"} if precision == "nvfp4" else {})
