"""How is a layout written for Accelerate? As the YAML file of FSDP1, FSDP2 or DDP, whichever the stack is."""

from __future__ import annotations

from typing import Any, Final

from sim.spec.foreign.launch_accelerate import ACCELERATE_8BIT
from sim.spec.foreign.layout_launch import EXCHANGES, Launch, refuse_four_bits
from sim.spec.yaml import SpecError

FSDP1_STRATEGIES: Final = {
    (True, False): "FULL_SHARD", (False, False): "SHARD_GRAD_OP", (True, True): "HYBRID_SHARD", (False, True): "HYBRID_SHARD_ZERO2",
}  # fmt: skip
"""torch's ShardingStrategy, by whether weights are freed after forward and whether sharded models are replicated."""
FSDP1_PREFETCHES: Final = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST", "none": "NO_PREFETCH"}
"""Accelerate's names for torch's BackwardPrefetch."""


def accelerate_yaml(launch: Launch) -> str:
    """Return the YAML for Accelerate's FSDP or DDP. Raise SpecError for other sharding, and for pipeline and expert ranks."""
    import yaml

    parallel = launch.parallel
    refuse_four_bits(launch, "Accelerate")
    is_ddp = parallel.shard == "none" and parallel.tensor * parallel.context == 1
    if not (is_ddp or parallel.shard == "parameters") or parallel.pipeline > 1 or parallel.expert > 1:
        raise SpecError("Accelerate's FSDP needs shard: parameters, and has no pipeline or expert ranks")
    if isinstance(parallel.wrap, tuple):
        raise SpecError("Accelerate's FSDP can wrap blocks, or modules by size, but not patterns of module paths")
    document: dict[str, Any] = {
        "distributed_type": "MULTI_GPU" if is_ddp else "FSDP",
        "mixed_precision": "no" if launch.precision in ("fp32", "tf32") else launch.precision.removeprefix("amp_"),
        **_accelerate_8bit(launch),
        "num_machines": launch.nodes,
        "num_processes": launch.nodes * launch.gpus_per_node,
    }
    if not is_ddp:
        wrap = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        sized = {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": parallel.wrap}
        document["fsdp_config"] = {
            **(_first_fsdp(launch) if launch.is_fsdp1 else _second_fsdp(launch)),
            **(wrap if parallel.wrap is None else sized),
            "fsdp_activation_checkpointing": launch.checkpointing == "blocks",
        }
        document |= {} if launch.is_fsdp1 else {"parallelism_config": _ranks(launch)}
    return str(yaml.safe_dump(document, sort_keys=False))


def _second_fsdp(launch: Launch) -> dict[str, Any]:
    """Return the options of FSDP2. Raise SpecError for weights that are resharded to groups of ranks."""
    reshard = launch.parallel.reshard_after_forward
    if type(reshard) is int:
        raise SpecError("Accelerate frees gathered weights after forward or keeps them; it has no reshard_after_forward in groups of ranks")
    return {"fsdp_version": 2, "fsdp_reshard_after_forward": reshard is not False}


def _first_fsdp(launch: Launch) -> dict[str, Any]:
    """Return the options of FSDP1, which has replicas only if each node is one, and no other axes. Raise SpecError for anything else."""
    parallel = launch.parallel
    if parallel.tensor * parallel.context > 1:
        raise SpecError("Accelerate combines tensor and context ranks with FSDP2 only, not with FSDP1")
    if parallel.replicate not in (1, launch.nodes):
        raise SpecError(f"FSDP1's hybrid sharding has one replica in each of {launch.nodes} nodes, not {parallel.replicate}")
    if type(parallel.reshard_after_forward) is int:
        raise SpecError("FSDP1 frees gathered weights after forward or keeps them; it has no reshard_after_forward in groups of ranks")
    mesh = launch.stack.mesh if launch.stack is not None else None
    return {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": FSDP1_STRATEGIES[parallel.reshard_after_forward is not False, parallel.replicate > 1],
        "fsdp_backward_prefetch": FSDP1_PREFETCHES[mesh.backward_prefetch if mesh is not None else "pre"],
        "fsdp_forward_prefetch": mesh is not None and mesh.forward_prefetch,
        "fsdp_use_orig_params": True,
    }


def _ranks(launch: Launch) -> dict[str, int | str]:
    """Return the degrees of the axes, which Accelerate combines with FSDP2."""
    parallel = launch.parallel
    ranks: dict[str, int | str] = {
        "dp_replicate_size": parallel.replicate,
        "dp_shard_size": launch.data // parallel.replicate,
        "tp_size": parallel.tensor,
        "cp_size": parallel.context,
    }
    if parallel.context > 1:
        ranks["cp_comm_strategy"] = EXCHANGES[parallel.context_exchange]
    return {f"parallelism_config_{name}": size for name, size in ranks.items()}


def _accelerate_8bit(launch: Launch) -> dict[str, Any]:
    """Return the block of the library that runs products in FP8. Raise SpecError for a recipe that Accelerate does not have."""
    if launch.precision != "fp8":
        return {}
    block = next((block for recipe, block in ACCELERATE_8BIT.items() if recipe == launch.fp8_recipe), None)
    if block is None:
        raise SpecError(f"Accelerate has no fp8 recipe {launch.fp8_recipe}; it has {', '.join(ACCELERATE_8BIT)}")
    return {"fp8_config": dict(block)}
