"""What does the program that a launch file is written for read in it? Its own parser in its own process: name and files in, JSON out."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def torchtitan(file: Path) -> dict[str, Any]:
    """Return the layout and batch that torchtitan's ConfigManager reads (releases that read TOML: 0.2), and what it makes of them."""
    from torchtitan.config.manager import ConfigManager
    from torchtitan.protocols.model_converter import _registry_model_converter_cls as converters
    from torchtitan.protocols.train_spec import get_train_spec

    read = ConfigManager().parse_args(["--job.config-file", str(file)])
    own, arguments = read.parallelism, get_train_spec(read.model.name).model_args
    return {
        "tensor": own.tensor_parallel_degree, "pipeline": own.pipeline_parallel_degree, "context": own.context_parallel_degree,
        "expert": own.expert_parallel_degree, "replicate": own.data_parallel_replicate_degree, "shards": own.data_parallel_shard_degree,
        "schedule": own.pipeline_parallel_schedule, "micro_batch": own.pipeline_parallel_microbatch_size,
        "reshard": own.fsdp_reshard_after_forward, "local_batch": read.training.local_batch_size,
        "global_batch": read.training.global_batch_size, "checkpointing": read.activation_checkpoint.mode,
        "model": [read.model.name, read.model.flavor], "fp8": read.model.converters == ["quantize.linear.float8"],
        "known": read.model.flavor in arguments and set(read.model.converters) <= set(converters),
        "exchange": own.context_parallel_rotate_method, "blocks": _titan_blocks(read, arguments[read.model.flavor]),
        "runs": _titan_runs(read, arguments[read.model.flavor]),
    }  # fmt: skip


def _titan_runs(read: Any, arguments: Any) -> bool:
    """Tell whether torchtitan makes a mesh of the degrees, has the model run on it, and replicates only where nothing else is split."""
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed import ParallelDims

    own = read.parallelism
    degrees = [own.data_parallel_replicate_degree, own.data_parallel_shard_degree, own.context_parallel_degree]
    degrees += [own.tensor_parallel_degree, own.pipeline_parallel_degree]
    world = math.prod(degrees)
    torch.distributed.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    dims = ParallelDims(*degrees, ep=own.expert_parallel_degree, etp=own.expert_tensor_parallel_degree, world_size=world)
    dims.build_mesh()
    torch.distributed.destroy_process_group()
    arguments.update_from_config(read)
    return dims.fsdp_enabled or dims.dp_replicate in (1, world)  # models/*/infra/parallelize.py: DDP has not supported > 1D parallelism


def _titan_blocks(read: Any, arguments: Any) -> list[int]:
    """Return the blocks of each stage, as torchtitan's pipeline is about to cut the model."""
    from types import SimpleNamespace

    from torchtitan.distributed import pipeline_parallel

    stages: list[Any] = []

    def split(model: Any, mesh: Any, schedule: str, device: Any, names: list[list[str]]) -> tuple[list[Any], list[Any]]:
        stages.extend(names)
        raise InterruptedError

    if read.parallelism.pipeline_parallel_degree == 1:
        return []
    pipeline_parallel.pipeline_module_split = split
    pipeline_parallel._override_torch_ops_for_zero_bubble = lambda: None
    dims: Any = SimpleNamespace(pp=read.parallelism.pipeline_parallel_degree, get_mesh=lambda name: None)
    with contextlib.suppress(InterruptedError):
        pipeline_parallel.pipeline_llm(None, dims, read, None, arguments, None, None)
    return [sum(name.startswith("layers.") for name in stage) for stage in stages]


def megatron(file: Path) -> dict[str, Any]:
    """Return what Megatron Core's configurations, which check their fields against each other, take of the arguments of that name.

    Megatron-LM's argument parser itself is in no wheel; its arguments are the fields of these classes.
    """
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.transformer import TransformerConfig

    words = shlex.split(file.read_text())
    said: dict[str, Any] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            follows = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else "true"
            plain = follows == "true" or follows.replace(".", "", 1).isdigit()
            said[word[2:].replace("-", "_")] = json.loads(follows) if plain else follows
    renamed = {"num_experts": "num_moe_experts", "fp8_format": "fp8"}
    fields = {renamed.get(name, name): value for name, value in said.items()}
    layers, reduced = TransformerConfig.__dataclass_fields__, DistributedDataParallelConfig.__dataclass_fields__
    if "swiglu" in fields:
        fields["gated_linear_unit"] = True
    fields["add_bias_linear"] = "disable_bias_linear" not in fields
    if "num_virtual_stages_per_pipeline_rank" in fields:
        fields["virtual_pipeline_model_parallel_size"] = fields["num_virtual_stages_per_pipeline_rank"]
    if fields.get("pipeline_model_parallel_size", 1) > 1:
        import torch

        fields["pipeline_dtype"] = torch.bfloat16
    config = TransformerConfig(**{name: value for name, value in fields.items() if name in layers})
    DistributedDataParallelConfig(**{name: value for name, value in fields.items() if name in reduced})
    layout = config.pipeline_model_parallel_layout
    parts = (
        []
        if layout is None
        else [layout.layout[stage][part] for part in range(len(layout.layout[0])) for stage in range(len(layout.layout))]
    )
    return {
        "blocks": [sum(kind.name == "decoder" for kind in part) for part in parts],
        "expert_tensor": config.expert_tensor_parallel_size,
        "tensor": config.tensor_model_parallel_size, "pipeline": config.pipeline_model_parallel_size,
        "context": config.context_parallel_size, "expert": config.expert_model_parallel_size, "sequence": config.sequence_parallel,
        "virtual": config.virtual_pipeline_model_parallel_size or 1, "recompute": config.recompute_granularity,
        "unknown": sorted(name for name in fields if name not in layers and name not in reduced),
    }  # fmt: skip


def deepspeed(file: Path) -> dict[str, Any]:
    """Return what DeepSpeedConfig reads in a job of as many ranks as *file* divides its batch by."""
    import torch.distributed
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    said = json.loads(file.read_text())
    ranks = int(said["train_batch_size"] / said["train_micro_batch_size_per_gpu"] / said["gradient_accumulation_steps"])
    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    comm.init_distributed("fake")
    read = DeepSpeedConfig(str(file))
    torch.distributed.destroy_process_group()
    return {
        "stage": read.zero_optimization_stage, "global_batch": read.train_batch_size, "batch": read.train_micro_batch_size_per_gpu,
        "micro_batches": read.gradient_accumulation_steps, "ranks": read.world_size, "bf16": read.bfloat16_config.enabled,
    }  # fmt: skip


def accelerate(file: Path) -> dict[str, Any]:
    """Return what `accelerate launch` passes on of its file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    read, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(file), "train.py"]))
    return {
        "fsdp": read.use_fsdp, "version": read.fsdp_version, "reshard": read.fsdp_reshard_after_forward,
        "checkpointing": read.fsdp_activation_checkpointing, "ranks": read.num_processes, "nodes": read.num_machines,
        "meshed": read.use_parallelism_config, "replicate": read.parallelism_config_dp_replicate_size,
        "shards": read.parallelism_config_dp_shard_size, "tensor": read.parallelism_config_tp_size,
        "context": read.parallelism_config_cp_size,
    }  # fmt: skip


def sky(file: Path) -> dict[str, Any]:
    """Return what sky.Task reads."""
    from sky import Task

    read = Task.from_yaml(str(file))
    (resources,) = read.resources
    return {"nodes": read.num_nodes, "accelerators": resources.accelerators, "run": read.run}


PARSERS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "torchtitan": torchtitan, "megatron": megatron, "deepspeed": deepspeed, "accelerate": accelerate, "sky": sky,
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(json.dumps(PARSERS[sys.argv[1]](Path(name))), flush=True)
