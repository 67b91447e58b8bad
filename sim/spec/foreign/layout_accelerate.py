"""How is a layout written for Accelerate? As the YAML file of its FSDP."""

from __future__ import annotations

from typing import Any

from sim.spec.foreign.launch_accelerate import ACCELERATE_8BIT
from sim.spec.foreign.layout_launch import EXCHANGES, Launch, refuse_four_bits
from sim.spec.yaml import SpecError


def accelerate_yaml(launch: Launch) -> str:
    """Return the YAML for Accelerate's FSDP. Raise SpecError if the layout is not FSDP without pipeline and expert ranks."""
    import yaml

    parallel = launch.parallel
    refuse_four_bits(launch, "Accelerate")
    if parallel.shard != "parameters" or parallel.pipeline > 1 or parallel.expert > 1:
        raise SpecError("Accelerate's FSDP needs shard: parameters, and has no pipeline or expert ranks")
    if isinstance(parallel.wrap, tuple):
        raise SpecError("Accelerate's FSDP can wrap blocks, or modules by size, but not patterns of module paths")
    ranks: dict[str, int | str] = {
        "dp_replicate_size": parallel.replicate,
        "dp_shard_size": launch.data // parallel.replicate,
        "tp_size": parallel.tensor,
        "cp_size": parallel.context,
    }
    if parallel.context > 1:
        ranks["cp_comm_strategy"] = EXCHANGES[parallel.context_exchange]
    wrap = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    sized = {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": parallel.wrap}
    document: dict[str, Any] = {
        "distributed_type": "FSDP",
        "mixed_precision": "no" if launch.precision in ("fp32", "tf32") else launch.precision.removeprefix("amp_"),
        **_accelerate_8bit(launch),
        "num_machines": launch.nodes,
        "num_processes": launch.nodes * launch.gpus_per_node,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": parallel.reshard_after_forward is not False,
            **(wrap if parallel.wrap is None else sized),
            "fsdp_activation_checkpointing": launch.checkpointing == "blocks",
        },
        "parallelism_config": {f"parallelism_config_{name}": size for name, size in ranks.items()},
    }
    return str(yaml.safe_dump(document, sort_keys=False))


def _accelerate_8bit(launch: Launch) -> dict[str, Any]:
    """Return the block of the library that runs products in FP8. Raise SpecError for a recipe that Accelerate does not have."""
    if launch.precision != "fp8":
        return {}
    block = next((block for recipe, block in ACCELERATE_8BIT.items() if recipe == launch.fp8_recipe), None)
    if block is None:
        raise SpecError(f"Accelerate has no fp8 recipe {launch.fp8_recipe}; it has {', '.join(ACCELERATE_8BIT)}")
    return {"fp8_config": dict(block)}
