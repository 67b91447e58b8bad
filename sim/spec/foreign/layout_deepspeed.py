"""How is a layout written for DeepSpeed? As the JSON file of ZeRO."""

from __future__ import annotations

import json

from sim.spec.foreign.layout_launch import Launch, refuse_four_bits
from sim.spec.parallel import SHARDS
from sim.spec.yaml import SpecError


def deepspeed_json(launch: Launch) -> str:
    """Return the JSON for DeepSpeed. Raise SpecError if the layout needs more than ZeRO."""
    parallel = launch.parallel
    refuse_four_bits(launch, "DeepSpeed")
    if parallel.model_ranks > 1 or parallel.expert > 1 or parallel.replicate > 1:
        raise SpecError("DeepSpeed's JSON describes only ZeRO; tensor, pipeline, context and expert ranks are set in the training program")
    if launch.precision == "fp8":
        raise SpecError("DeepSpeed's JSON has no option for fp8")
    width = next((name for name in ("bf16", "fp16") if launch.precision.endswith(name)), None)
    document = {
        "train_batch_size": launch.global_batch,
        "train_micro_batch_size_per_gpu": launch.batch,
        "gradient_accumulation_steps": launch.micro_batches,
        **({} if width is None else {width: {"enabled": True}}),
        "zero_optimization": {"stage": SHARDS.index(parallel.shard)},
    }
    return json.dumps(document, indent=2) + "\n"
