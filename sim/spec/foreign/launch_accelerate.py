"""What does Accelerate's YAML file specify about a run, or the options of ``accelerate launch``?

Keys are those written by accelerate/commands/config; options of the same names are those of accelerate/commands/launch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sim.spec.defaults import EAGER_STACK, PARALLEL_STACK, SHARDED_TRANSFORMERS
from sim.spec.fields import Fp8Recipe
from sim.spec.foreign.launch_accelerate_keys import compiler, key_notes
from sim.spec.foreign.launch_deepspeed import zero_notes, zero_stack
from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_settings import LaunchSettings, block_of, exchange_of, note_offloading
from sim.spec.foreign.launch_trainer import is_set
from sim.spec.parallel import SHARDS
from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError
from sim.units import any_of, shorten

_FSDP: Final[Mapping[str, str]] = {
    **dict.fromkeys(("FULL_SHARD", "1", "HYBRID_SHARD", "4", "SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5"), "parameters"),
    **dict.fromkeys(("NO_SHARD", "3"), "none"),
    **dict.fromkeys(("TRUE", "FALSE"), "parameters"),
}
_KEPT: Final = ("SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5", "FALSE")
"""Strategies that shard parameters, but gather them once for forward and backward (torch/distributed/fsdp/api.py, ShardingStrategy)."""
_HYBRID: Final = ("HYBRID_SHARD", "4", "HYBRID_SHARD_ZERO2", "5")
"""Strategies that shard inside a node and replicate between nodes."""
_STRATEGIES: Final = [name for name in _FSDP if "_" in name]
_OFFLOADED: Final = ("offload_optimizer_device", "offload_param_device")
_TYPES: Final = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Values of ``distributed_type`` for GPUs that are modeled (accelerate/utils/dataclasses.py, DistributedType)."""
_MX: Final = "use_mxfp8_block_scaling"
ACCELERATE_8BIT: Final[Mapping[Fp8Recipe, Mapping[str, str | bool]]] = {
    "delayed": {"backend": "TE"},
    "tensorwise": {"backend": "AO"},
    "mxfp8": {"backend": "TE", _MX: True},
}
"""``fp8_config`` of each recipe: Transformer Engine's DelayedScaling or MXFP8BlockScaling, or torchao's default Float8LinearConfig
(accelerate/utils/transformer_engine.py, ao.py)."""


EAGER: Final = "fsdp_config runs operator by operator, as dynamo_config compiles nothing"


def accelerate(config: Mapping[str, Any], place: str) -> LaunchSettings:
    """Return the settings in Accelerate's YAML file."""
    told = LaunchSettings(notes=list(key_notes(config, place)))
    if (distributed := str(config.get("distributed_type", "NO")).upper()) not in (*_TYPES, "FALSE"):
        raise SpecError(f"{place}: distributed_type {shorten(distributed)} is not modeled; write {any_of(_TYPES)}")
    if config.get("use_cpu") is True:
        raise SpecError(f"{place}: use_cpu is true, but only training on GPUs is modeled; write false")
    precision = _precision(config, place)
    told.training |= {"precision": precision} if precision else {}
    if not precision:
        told.defaults["precision"] = "fp32"
        told.default_notes["precision"] = "mixed_precision is missing: used fp32, Accelerate's default"
    told.training |= _recipe(config, place) if precision == "fp8" else {}
    zero, sharded, mesh, layout = (
        block_of(config, f"{name}_config", place) for name in ("deepspeed", "fsdp", "parallelism", "megatron_lm")
    )
    mesh = mesh or block_of(config, "tp_config", place)  # its name before there were other axes
    library = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed"}.get(distributed) or ("DeepSpeed" if zero else "FSDP" if sharded else "")
    told.sharded_by |= {library: place} if library else {}
    machines = _number(config, "num_machines", place)
    if zero:
        _add_zero(zero, told, precision, place)
    if sharded:
        _add_fsdp({key if "fsdp" in key else f"fsdp_{key}": value for key, value in sharded.items()}, told, place, machines)
        if "shard" in told.parallel:
            first = _fsdp_version(sharded, place) == 1 and not mesh and precision != "fp8"  # these need the second
            eager = SHARDED_TRANSFORMERS if first else EAGER_STACK
            told.training["stack"] = PARALLEL_STACK if compiler(config, place) else eager
            told.notes += [] if compiler(config, place) else [EAGER]
    _add_mesh(mesh, told, place)
    if "stack" in told.training and zero and {"tensor", "context"} & told.parallel.keys():
        told.training["stack"] = EAGER_STACK  # that of ZeRO has no such ranks
    if layout and distributed in ("MEGATRON_LM", "NO"):
        _add_megatron(layout, told, place)
    elif layout:
        told.notes.append(f"megatron_lm_config is ignored, as distributed_type is {distributed}")
    processes = _number(config, "num_processes", place)
    told.gpus, told.gpus_per_node = (processes, processes // machines) if processes > 1 else (None, None)
    if processes > 1 and processes % machines:
        near = -(-processes // machines) * machines
        raise SpecError(f"{place}: num_processes {processes} is not a multiple of num_machines {machines}; write {near}")
    if not (zero or sharded or mesh or layout) and "distributed_type" not in config:
        raise SpecError(
            f"{place}: is not a configuration of Accelerate: distributed_type is missing; YAML files of other programs are not read, but "
            "their command lines are, such as 'torchrun --nproc-per-node=2 train.py --per_device_train_batch_size 4 --lora_r 16'"
        )
    return told


def _precision(config: Mapping[str, Any], place: str) -> str | None:
    """Return the precision of mixed_precision; None if it is left out. Raise SpecError for one that Accelerate does not have."""
    precisions = {"bf16": "bf16", "fp16": "amp_fp16", "fp8": "fp8", "no": "fp32", "false": "fp32"}
    precision = precisions.get(kind := str(config.get("mixed_precision", "")).lower())
    if kind and not precision:
        raise SpecError(f"{place}: mixed_precision {shorten(kind)}: write no, fp16, bf16 or fp8")
    return precision


def _add_zero(zero: Mapping[str, Any], told: LaunchSettings, precision: str | None, place: str) -> None:
    """Set in *told* what the block ``deepspeed_config`` specifies. Raise SpecError for an unknown stage."""
    stage = str(zero.get("zero_stage", 0))
    if stage not in ("0", "1", "2", "3"):
        raise SpecError(f"{place}: deepspeed_config.zero_stage {shorten(stage)}: write 0, 1, 2 or 3")
    told.parallel |= {"shard": SHARDS[int(stage)]} if stage != "0" else {}
    told.training |= zero_stack(int(stage)) if precision != "fp8" else {}
    told.notes += zero_notes(int(stage), f"deepspeed_config.zero_stage {stage}")
    steps = zero.get("gradient_accumulation_steps")
    told.training |= {"gradient_accumulation_steps": steps} if isinstance(steps, int) else {}
    for option in _OFFLOADED:
        note_offloading(f"deepspeed_config.{option}", zero.get(option), told)


def _add_mesh(mesh: Mapping[str, Any], told: LaunchSettings, place: str) -> None:
    """Set in *told* what the block ``parallelism_config`` specifies."""
    for option, name in (("tp_size", "tensor"), ("cp_size", "context"), ("dp_replicate_size", "replicate")):
        size = _number(mesh, f"parallelism_config_{option}" if f"parallelism_config_{option}" in mesh else option, place)
        told.parallel |= {name: size} if size > 1 else {}
    if "context" in told.parallel:
        key = "parallelism_config_cp_comm_strategy"
        told.parallel |= exchange_of(mesh, key if key in mesh else "cp_comm_strategy", place)


def accelerate_options(said: Mapping[str, str], program: Mapping[str, str], place: str) -> LaunchSettings:
    """Return the settings of the options *said* of ``accelerate launch``: the precision, and those of DeepSpeed or FSDP if they are on.

    The *program* that it starts may set the precision, with options of its own.
    """
    width = next((name for name in ("bf16", "fp16") if is_set(program, name)), "")
    config: dict[str, Any] = {"mixed_precision": said.get("mixed-precision") or width}
    counts = {name: whole_number(said.get(name.replace("_", "-"), "")) for name in ("num_machines", "num_processes")}
    config |= {name: count for name, count in counts.items() if count}
    if "use-deepspeed" in said:
        steps = whole_number(said.get("gradient-accumulation-steps", ""))
        zero: dict[str, Any] = {"zero_stage": said.get("zero-stage", 2), "gradient_accumulation_steps": steps}
        zero |= {key: said[key.replace("_", "-")] for key in _OFFLOADED if key.replace("_", "-") in said}
        return accelerate({**config, "distributed_type": "DEEPSPEED", "deepspeed_config": zero}, place)
    if "use-fsdp" in said:
        sharded: dict[str, Any] = {name.replace("-", "_"): _typed(value) for name, value in said.items() if name.startswith("fsdp-")}
        return accelerate({**config, "distributed_type": "FSDP", "fsdp_config": sharded}, place)
    if "use-megatron-lm" in said:
        layout: dict[str, Any] = {name.replace("-", "_"): _typed(value) for name, value in said.items() if name.startswith("megatron-lm-")}
        return accelerate({**config, "distributed_type": "MEGATRON_LM", "megatron_lm_config": layout}, place)
    return accelerate({"distributed_type": "MULTI_GPU", "mixed_precision": config["mixed_precision"]}, place)


def _typed(text: str) -> Any:
    """Return the value of an option as the YAML file contains it."""
    number = whole_number(text)
    return number if number is not None else {"true": True, "false": False}.get(text.lower(), text)


_MEGATRON_COUNTS: Final = {
    "megatron_lm_tp_degree": "tensor-model-parallel-size",
    "megatron_lm_pp_degree": "pipeline-model-parallel-size",
    "megatron_lm_num_micro_batches": "",
}
_MEGATRON_FLAGS: Final = {
    "megatron_lm_sequence_parallelism": "sequence-parallel",
    "megatron_lm_use_distributed_optimizer": "use-distributed-optimizer",
    "megatron_lm_recompute_activations": "recompute-activations",
}
"""Megatron-LM's arguments that Accelerate sets (accelerate/utils/dataclasses.py, MegatronLMPlugin)."""


def _add_megatron(block: Mapping[str, Any], told: LaunchSettings, place: str) -> None:
    """Set in *told* what the block ``megatron_lm_config`` specifies: what Megatron-LM's arguments of the same meaning would."""
    counts = {option: _number(block, option, place) for option in _MEGATRON_COUNTS}
    switches = {option: _switch(block, option, place) for option in _MEGATRON_FLAGS}
    words = [f"--{argument} {counts[option]}" for option, argument in _MEGATRON_COUNTS.items() if argument]
    words += [f"--{argument}" for option, argument in _MEGATRON_FLAGS.items() if switches[option]]
    own = megatron(" ".join(words), place)
    told.parallel |= own.parallel
    told.training |= {name: value for name, value in own.training.items() if name in ("stack", "activation_checkpointing")}
    if (steps := counts["megatron_lm_num_micro_batches"]) > 1:
        told.training["gradient_accumulation_steps"] = steps
    told.notes += own.notes


def _switch(block: Mapping[str, Any], key: str, place: str) -> bool:
    """Return whether *key* is on; it is off if left out. Raise SpecError for anything but true and false."""
    value = str(block.get(key, False)).lower()
    if value not in ("true", "false", "none"):
        raise SpecError(f"{place}: {key} {shorten(value)}: write true or false")
    return value == "true"


def _add_fsdp(sharded: Mapping[str, Any], told: LaunchSettings, place: str, machines: int) -> None:
    """Set in *told* what the block ``fsdp_config`` specifies on *machines* nodes. Raise SpecError for an unknown strategy."""
    strategy = str(sharded.get("fsdp_sharding_strategy", sharded.get("fsdp_reshard_after_forward", "FULL_SHARD")))
    if (shard := _FSDP.get(strategy.upper())) is None:
        raise SpecError(f"{place}: fsdp_config.fsdp_sharding_strategy {shorten(strategy)}: write {any_of(_STRATEGIES)}")
    told.parallel |= {"reshard_after_forward": False} if strategy.upper() in _KEPT else {}
    told.parallel |= {"shard": shard} if shard != "none" else {}
    least = sharded.get("fsdp_min_num_params")
    sized = shard == "parameters" and str(sharded.get("fsdp_auto_wrap_policy")) == "SIZE_BASED_WRAP"
    told.parallel |= {"wrap": least} if sized and isinstance(least, int) and least > 0 else {}
    if strategy.upper() in _HYBRID and machines > 1:
        told.parallel["replicate"] = machines
    note_offloading("fsdp_config.fsdp_offload_params", sharded.get("fsdp_offload_params"), told)
    told.training |= {"activation_checkpointing": "blocks"} if sharded.get("fsdp_activation_checkpointing") is True else {}


def _fsdp_version(sharded: Mapping[str, Any], place: str) -> int:
    """Return the version of FSDP in the block ``fsdp_config``, 1 if it is left out. Raise SpecError for another than 1 and 2."""
    version = str(sharded.get("fsdp_version", sharded.get("version", 1)))
    if version not in ("1", "2"):
        raise SpecError(f"{place}: fsdp_config.fsdp_version {shorten(version)}: write 1 or 2")
    return int(version)


def _recipe(said: Mapping[str, Any], place: str) -> dict[str, str]:
    """Return the FP8 recipe of ``fp8_config``; empty if it names no library, or one whose recipes are not modeled."""
    block = block_of(said, "fp8_config", place)
    backend = {"backend": str(block.get("backend", "")).upper()} | ({_MX: True} if block.get(_MX) is True else {})
    return next(({"fp8_recipe": recipe} for recipe, said_so in ACCELERATE_8BIT.items() if said_so == backend), {})


def _number(block: Mapping[str, Any], key: str, place: str) -> int:
    """Return the whole number at *key*, or 1 if it is left out. Raise SpecError for anything else."""
    value = block.get(key)
    number = 1 if value is None else whole_number(str(value))
    if not number:
        raise SpecError(f"{place}: {key} {shorten(str(value))}: write a whole number, 1 or more")
    return number
