"""Which keys has Accelerate's YAML file, and which of them are not modeled? Misspelled keys are errors, others have a note.

Top-level keys are the fields of ClusterConfig (accelerate/commands/config/config_args.py), which refuses unknown ones; those of a block
are the options of ``accelerate launch`` (accelerate/commands/launch.py), which ignores unknown ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sim.spec.foreign.launch_settings import block_of
from sim.spec.yaml import SpecError

_ALIKE: Final = 0.88
"""Similarity (difflib's ratio) from which an unknown key is a typo, as for DeepSpeed's keys."""
_FSDP: Final = (
    "fsdp_version", "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_offload_params", "fsdp_min_num_params",
    "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy",
    "fsdp_state_dict_type", "fsdp_forward_prefetch", "fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states",
    "fsdp_activation_checkpointing",
)  # fmt: skip
_DEEPSPEED: Final = (
    "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_config_file",
    "deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter", "deepspeed_multinode_launcher",
    "deepspeed_moe_layer_cls_names",
)  # fmt: skip
_MEGATRON: Final = (
    "megatron_lm_tp_degree", "megatron_lm_pp_degree", "megatron_lm_num_micro_batches", "megatron_lm_sequence_parallelism",
    "megatron_lm_recompute_activations", "megatron_lm_use_distributed_optimizer", "megatron_lm_gradient_clipping",
)  # fmt: skip
_MESH: Final = (
    "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_comm_strategy", "cp_backend", "sp_size", "sp_backend", "sp_seq_length",
    "sp_seq_length_is_variable", "sp_attn_implementation",
)  # fmt: skip
_FP8: Final = (
    "backend", "use_mxfp8_block_scaling", "fp8_format", "amax_history_len", "amax_history_length", "amax_compute_algo",
    "amax_compute_algorithm", "interval", "margin", "override_linear_precision", "use_autocast_during_eval", "opt_level",
    "enable_fsdp_float8_all_gather", "pad_inner_dim",
)  # fmt: skip
_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "fsdp_config": (*_FSDP, *(name.removeprefix("fsdp_") for name in _FSDP)),
    "deepspeed_config": _DEEPSPEED,
    "megatron_lm_config": _MEGATRON,
    "parallelism_config": (*_MESH, *(f"parallelism_config_{name}" for name in _MESH)),
    "fp8_config": (*_FP8, *(f"fp8_{name}" for name in _FP8)),
}
"""Keys of each block that is read; some releases leave the prefix of a block out."""
_TOP: Final = (
    *_BLOCKS, "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes", "machine_rank",
    "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "tp_config", "ipex_config", "mpirun_config", "dynamo_config", "dynamo_backend", "fp16", "downcast_bf16",
    "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env",
)  # fmt: skip
"""Keys of a file for machines of one's own; dynamo_backend and fp16 are those of early releases."""


def compiler(config: Mapping[str, Any], place: str) -> str:
    """Return the backend that compiles the model; empty if none does."""
    backend = block_of(config, "dynamo_config", place).get("dynamo_backend", config.get("dynamo_backend"))
    return "" if backend is None or str(backend).upper() in ("NO", "FALSE") else str(backend)


def key_notes(config: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield notes on keys of Accelerate's *config* that it does not know, or that change a step. Raise SpecError for a misspelled one."""
    unknown = _unknown(config, _TOP, "", place)
    for block, names in _BLOCKS.items():
        unknown += _unknown(block_of(config, block, place), names, f"{block}.", place)
    if unknown:
        yield f"ignored: {', '.join(unknown)}, which Accelerate does not know"
    if (backend := compiler(config, place)) and not block_of(config, "fsdp_config", place):
        yield f"dynamo_backend {backend[:40]} is not read: the stack decides whether blocks are compiled"
    mesh = block_of(config, "parallelism_config", place)
    ulysses = mesh.get("parallelism_config_sp_size", mesh.get("sp_size"))
    if ulysses not in (None, 0, 1):
        yield f"parallelism_config.sp_size {str(ulysses)[:40]} is not modeled: sequences are not divided by heads (Ulysses)"


def _unknown(said: Mapping[str, Any], names: tuple[str, ...], inside: str, place: str) -> list[str]:
    """Return the keys of *said* that are not among *names*, with the block that they are *inside*."""
    others = [str(key) for key in said if key not in names]
    for key in others:
        if near := difflib.get_close_matches(key, names, n=1, cutoff=_ALIKE):
            raise SpecError(f"{place}: unknown key {inside}{key[:80]}; did you mean {near[0]}?")
    return [f"{inside}{key[:80]}" for key in others]
