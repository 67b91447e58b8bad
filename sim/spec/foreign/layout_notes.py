"""What of a run do its launch files not contain? Each file is read back, and what then differs from the run becomes a note.

So nothing is dropped without a note, whichever fields a program lacks. Compared are the fields of the layout, the batch, the precision,
what is recomputed, and the options of the stack that was simulated with those of the stack that the file's program corresponds to.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sim.spec.foreign.launch_accelerate import accelerate
from sim.spec.foreign.launch_deepspeed import deepspeed
from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.foreign.layout_launch import Launch
from sim.spec.foreign.layout_megatron import MEGATRON_FSDP
from sim.spec.foreign.layout_torchtitan import is_unmixed
from sim.spec.library import load_part
from sim.spec.parallel import HOST_TIMES, MEGATRON_ORDER, MeshOptions, Parallel
from sim.spec.stack import Stack


def _yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


READERS: Final[Mapping[str, Callable[[str], LaunchSettings]]] = {
    "torchtitan.toml": lambda text: torchtitan(tomllib.loads(text), "torchtitan.toml"),
    "megatron.args": lambda text: megatron(text, "megatron.args"),
    "deepspeed.json": lambda text: deepspeed(json.loads(text), "deepspeed.json"),
    "accelerate.yaml": lambda text: accelerate(_yaml(text), "accelerate.yaml"),
}
"""What reads back the file of each program."""
PROGRAMS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "torchtitan.toml": ("torchtitan", ("fsdp2",)),
    "megatron.args": ("Megatron-LM", ("megatron",)),
    "deepspeed.json": ("DeepSpeed", ("deepspeed",)),
    "accelerate.yaml": ("Accelerate", ("fsdp1", "fsdp2")),
}
"""The program that each file is for, and the frameworks of stacks that it runs."""
_OWN_SCRIPT: Final = ("deepspeed.json", "accelerate.yaml")
"""Files of libraries: a training script of the user's builds the model, forms micro-batches and decides what is recomputed."""
_LEFT_TO_SCRIPT: Final = ("batch", "micro_batches", "activation_checkpointing", "recompute_blocks", "recompute_modules", "recompute_saves")
_RESTRICT_SEARCHES: Final = ("source", "axes", "shards", "schedules", "recomputes", "sequence")
"""Fields of a stack's mesh that are not options of a run."""
_OF_EXPERTS: Final = ("one_copy", "paired_schedules", "expert_blocks")
"""Those that have an effect only with expert ranks."""


def layout_notes(launch: Launch, files: Mapping[str, str]) -> list[str]:
    """Return notes on all that *files*, by name, do not contain of *launch*, each beginning with the name of its file."""
    return [f"{name}: {note}" for name, text in files.items() if name in READERS for note in _file_notes(name, text, launch)]


def is_own_program(name: str, launch: Launch) -> bool:
    """Return whether the file *name* is for the program whose stack was simulated, or that is any."""
    if launch.stack is None:
        return True
    return launch.stack.mesh is not None and launch.stack.mesh.framework in PROGRAMS[name][1]


def _file_notes(name: str, text: str, launch: Launch) -> Iterator[str]:
    settings = READERS[name](text)
    yield from _stack_notes(name, settings, launch)
    meant, read = _fields(launch), _fields_read(name, settings, launch)
    unlike = [field for field, value in meant.items() if read[field] != value]
    of_script = [field for field in unlike if name in _OWN_SCRIPT and field in _LEFT_TO_SCRIPT]
    if of_script:
        yield f"your training script must set {', '.join(f'{field} {_shown(meant[field])}' for field in of_script)}"
    for field in unlike:
        if field not in of_script:
            yield f"{PROGRAMS[name][0]} runs {field} {_shown(read[field])}, not {_shown(meant[field])} as planned"
    parallel = launch.parallel
    if name == "accelerate.yaml" and parallel.tensor > 1:
        split = "are split" if parallel.sequence_parallel else "are not split"
        yield f"the model's own tp_plan divides its layers; in the plan, sequences {split} over tensor ranks (sequence)"
    if name == "torchtitan.toml" and is_unmixed(launch) and launch.precision not in ("fp32", "tf32"):
        yield "weights and optimizer states are in 16 bits as well (dtype), which takes less memory than predicted here"
    if name == "megatron.args" and parallel.shard in MEGATRON_FSDP:
        yield "Megatron-FSDP needs CUDA_DEVICE_MAX_CONNECTIONS unset or above 1"
    if parallel.expert_imbalance != 1.0:
        yield f"expert_imbalance {parallel.expert_imbalance:g} is an assumption of the plan; the router decides it"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None else str(value)


def _layout_fields(parallel: Parallel) -> dict[str, Any]:
    """Return the fields of *parallel* that have an effect, with their defaults filled in, so that equal layouts have equal fields."""
    piped, sharded = parallel.pipeline > 1, parallel.shard == "parameters"
    usual = "1f1b" if parallel.virtual_stages == 1 else "interleaved_1f1b"
    sizes = {"tensor": parallel.tensor, "context": parallel.context, "pipeline": parallel.pipeline, "data": 2}
    freed = not piped if parallel.reshard_after_forward is None else parallel.reshard_after_forward
    return {
        "tensor": parallel.tensor,
        "sequence": parallel.sequence_parallel,
        "pipeline": parallel.pipeline,
        "context": parallel.context,
        "context_exchange": parallel.context_exchange if parallel.context > 1 else None,
        "expert": parallel.expert,
        "replicate": parallel.replicate,
        "shard": parallel.shard,
        "reshard_after_forward": freed if sharded else None,
        "wrap": parallel.wrap,
        "schedule": parallel.schedule or usual if piped else None,
        "virtual_stages": parallel.chunks,
        "layers_per_stage": list(parallel.layers_per_stage),
        "cuts": list(parallel.cuts),
        "order": [axis for axis in parallel.order or MEGATRON_ORDER if sizes.get(axis, 1) > 1],
        "capacity_factor": parallel.capacity_factor,
        "pad_to_capacity": parallel.pad_to_capacity,
    }


def _fields(launch: Launch) -> dict[str, Any]:
    """Return the fields of *launch* that files are compared with."""
    return _layout_fields(launch.parallel) | {
        "batch": launch.batch,
        "micro_batches": launch.micro_batches,
        "precision": launch.precision,
        "fp8_recipe": launch.fp8_recipe if launch.precision == "fp8" else None,
        "activation_checkpointing": launch.checkpointing,
        "recompute_blocks": launch.recompute_blocks,
        "recompute_modules": _modules(launch.recompute_modules, launch.checkpointing),
        "recompute_saves": list(launch.recompute_saves),
    }


def _fields_read(name: str, settings: LaunchSettings, launch: Launch) -> dict[str, Any]:
    """Return the same fields of the file *name* of *launch*, which reads as *settings*."""
    training = settings.training
    batch = training.get("batch")
    micro_batches = training.get("gradient_accumulation_steps")
    if micro_batches is None and batch and settings.global_batch:
        micro_batches = settings.global_batch // (launch.data * batch)
    return _layout_fields(Parallel.model_validate(settings.parallel)) | {
        "batch": batch,
        "micro_batches": micro_batches,
        "precision": _precision_read(name, training.get("precision", "fp32"), launch),
        "fp8_recipe": training.get("fp8_recipe"),
        "activation_checkpointing": training.get("activation_checkpointing", "none"),
        "recompute_blocks": training.get("recompute_blocks", 0),
        "recompute_modules": _modules(training.get("recompute_modules", ()), training.get("activation_checkpointing", "none")),
        "recompute_saves": [],
    }


def _modules(names: Sequence[str], checkpointing: str) -> list[str]:
    """Return the modules *names* that are recomputed in addition to what *checkpointing* says: selective is core_attn."""
    return sorted({*names} - ({"core_attn"} if checkpointing == "selective" else set()))


def _precision_read(name: str, read: str, launch: Launch) -> str:
    """Return the precision *read* in the file *name*; that of *launch* if they differ in name only.

    Frameworks for layouts have their own types for weights (the stack's ``mesh``), with which autocast and 16 bits are the same. Without
    them, Accelerate's 16-bit precisions are autocast, and DeepSpeed's convert the whole model.
    """
    if launch.stack is None or launch.stack.mesh is not None:
        return launch.precision if read.removeprefix("amp_") == launch.precision.removeprefix("amp_") else read
    wide = read.removeprefix("amp_")
    return f"amp_{wide}" if name == "accelerate.yaml" and wide in ("bf16", "fp16") else wide


def _stack_notes(name: str, settings: LaunchSettings, launch: Launch) -> Iterator[str]:
    """Yield a note if the stack that was simulated is not that of the file's program, or has other options."""
    stack, (program, frameworks) = launch.stack, PROGRAMS[name]
    if stack is None or (stack.mesh is None and name == "accelerate.yaml"):  # torch's own DistributedDataParallel
        return
    if stack.mesh is None or stack.mesh.framework not in frameworks:
        yield f"time and memory are those of stack {stack.name}, not of {program}"
        return
    if (own := _mesh_read(settings)) is not None and name not in _OWN_SCRIPT:
        unlike = _unlike_options(stack.mesh, own, _without_effect(launch))
        if unlike:
            yield f"time and memory are those of stack {stack.name} with {', '.join(unlike)}, which the file does not set"
    if name == "accelerate.yaml" and launch.precision not in ("fp32", "tf32") and stack.mesh.reduction == "fp32":
        yield "gradients are reduced in the 16-bit type of mixed_precision, in fp32 in the plan (reduction)"
    if name == "deepspeed.json" and launch.precision not in ("fp32", "tf32") and stack.mesh.gradients == "fp32":
        yield "gradients are accumulated in 16 bits unless data_types.grad_accum_dtype is fp32, as in the plan (gradients)"


def _without_effect(launch: Launch) -> list[str]:
    """Return the options of a stack's mesh that have no effect on the model and the layout of *launch*."""
    shape = launch.shape
    unused = [] if launch.parallel.expert > 1 else [*_OF_EXPERTS]
    unused += ["fused_latents"] if shape is None or shape.mla is None else []
    return unused + (["fused_squares"] if shape is None or shape.activation != "relu2" else [])


def _mesh_read(settings: LaunchSettings) -> MeshOptions | None:
    """Return the options of the stack that a file names; None if it names none."""
    stack = settings.training.get("stack")
    if stack is None:
        return None
    own = load_part(Stack, stack if isinstance(stack, str) else stack["extends"]).mesh
    if own is None or isinstance(stack, str):
        return own
    return own.model_copy(update={name: tuple(value) if isinstance(value, list) else value for name, value in stack["mesh"].items()})


def _unlike_options(meant: MeshOptions, read: MeshOptions, without_effect: Sequence[str]) -> list[str]:
    """Return the options of *meant* that differ from those of *read*, with their values, except those *without_effect*."""
    skipped = (*_RESTRICT_SEARCHES, *HOST_TIMES, "collective_check", *without_effect)
    values, others = meant.model_dump(mode="json"), read.model_dump(mode="json")
    return [f"{name} {_shown(value)}" for name, value in values.items() if name not in skipped and value != others[name]]
