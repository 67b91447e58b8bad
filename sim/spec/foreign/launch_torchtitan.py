"""What does torchtitan's TOML file specify about a run? Keys and defaults are from torchtitan/config/job_config.py."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from sim.spec.defaults import EAGER_STACK, PARALLEL_STACK
from sim.spec.foreign.launch_settings import JobLength, LaunchSettings, block_of, exchange_of, note_offloading, refuse_misspelled
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.parallel import even_blocks
from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError

TORCHTITAN_MODELS: Final[Mapping[tuple[str, str], str]] = {
    **{("llama3", size.upper()): f"llama-3.1-{size}" for size in ("8b", "70b", "405b")},
    **{("llama2", size.upper()): f"llama-2-{size}" for size in ("7b", "13b", "70b")},
    ("llama4", "17bx16e"): "llama-4-scout-17b-16e",
    ("llama4", "17bx128e"): "llama-4-maverick-17b-128e",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    **{("qwen3", size): f"qwen3-{size.lower()}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")},
}
"""The catalog's name for each model and flavor (torchtitan/models/*/__init__.py)."""
_RANKS: Final[Mapping[str, str]] = {
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "context_parallel_degree": "context",
    "expert_parallel_degree": "expert",
    "data_parallel_replicate_degree": "replicate",
}
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "training": (
        "dataset", "dataset_path", "local_batch_size", "batch_size", "global_batch_size", "seq_len", "max_norm", "steps", "dtype",
        "enable_cpu_offload", "mixed_precision_param", "mixed_precision_reduce", "compile", "gc_freq", "gc_debug", "seed", "deterministic",
    ),
    "parallelism": (
        *_RANKS, "data_parallel_shard_degree", "enable_compiled_autograd", "fsdp_reshard_after_forward", "disable_loss_parallel",
        "enable_async_tensor_parallel", "pipeline_parallel_split_points", "module_fqns_per_model_part",
        "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_layers_per_stage",
        "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "pipeline_parallel_microbatch_size",
        "context_parallel_rotate_method", "context_parallel_load_balancer", "expert_tensor_parallel_degree", "expert_parallel_comm_backend",
    ),
    "activation_checkpoint": ("mode", "selective_ac_option"),
    "compile": ("enable", "components", "backend"),
}  # fmt: skip
"""Fields of the sections that decide a step. Another one is a typo, which torchtitan refuses, if it is spelled almost like one of these."""
_PARTS: Final = "pipeline_parallel_microbatches"
"""Number of micro-batches in a rank's local batch, where files of former releases have their size; by default that of stages."""
_FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "training": (*_RANKS, "data_parallel_degree", "data_parallel_shard_degree", "enable_float8_linear"),
    "experimental": (
        *_RANKS, "pipeline_parallel_schedule", "pipeline_parallel_split_points", _PARTS,
        "enable_async_tensor_parallel", "enable_compiled_autograd", "context_parallel_rotate_method",
    ),
}  # fmt: skip
"""Sections that had keys of ``parallelism`` until February 2025 (torchtitan/config_manager.py; general knowledge)."""
_SCHEDULES: Final[Mapping[str, str]] = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved_1f1b",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipev",
}


def torchtitan(config: Mapping[str, Any], place: str) -> LaunchSettings:
    """Return the settings in torchtitan's TOML file. Raise SpecError for a model that is not in the catalog, or a typo."""
    model, training, layout = (block_of(config, name, place) for name in ("model", "training", "parallelism"))
    layout = {**_former_layout(config, place), **layout}
    refuse_misspelled(config, _READ | _WITHOUT_COST, "", place)
    for name in {**_FIELDS, **_FORMER}:
        refuse_misspelled(block_of(config, name, place), (*_FIELDS.get(name, ()), *_FORMER.get(name, ())), f"{name}.", place)
    key = str(model.get("name", "")), str(model.get("flavor", ""))
    if key not in TORCHTITAN_MODELS:
        models = ", ".join(" ".join(each) for each in TORCHTITAN_MODELS)
        raise SpecError(f"{place}: model {' '.join(key).strip() or '(missing)'} is not in the catalog; known: {models}")
    told = LaunchSettings(model=TORCHTITAN_MODELS[key], sequence=_count(training, "seq_len", 2048, f"{place}: training"))
    ranks = {name: _count(layout, option, 1, f"{place}: parallelism") for option, name in _RANKS.items()}
    told.parallel = {name: size for name, size in ranks.items() if size > 1}
    told.ranks = _world_size(layout, ranks, place)
    shards = layout.get("data_parallel_shard_degree", -1)
    if shards == -1 or _count(layout, "data_parallel_shard_degree", 1, f"{place}: parallelism") != 1 or told.parallel.get("context", 1) > 1:
        told.parallel["shard"] = "parameters"
        reshard = {"always": True, "never": False}.get(str(layout.get("fsdp_reshard_after_forward", "default")))
        told.parallel |= {} if reshard is None else {"reshard_after_forward": reshard}
    else:
        told.parallel.pop("replicate", None)  # plain data parallelism
    schedule = str(layout.get("pipeline_parallel_schedule", "1F1B")).lower().replace("schedule", "")
    if told.parallel.get("pipeline", 1) > 1:
        if schedule not in _SCHEDULES:
            raise SpecError(f"{place}: unknown pipeline_parallel_schedule {schedule}; supported: {', '.join(_SCHEDULES)}")
        told.parallel["schedule"] = _SCHEDULES[schedule]
        told.parallel |= _stages(layout, told, place)
    if told.parallel.get("context", 1) > 1:
        told.parallel |= exchange_of(layout, "context_parallel_rotate_method", place)
    wide = str(training.get("mixed_precision_param", "bfloat16")) == "float32"
    told.training = {
        **_batches(training, layout, place, told),
        **(_quantized(config, model, place, told) or {"precision": "fp32" if wide else "bf16"}),
        **_recomputes(block_of(config, "activation_checkpoint", place), place, told),
        "stack": PARALLEL_STACK if _is_compiled(config, place) else EAGER_STACK,
    }
    optimizer = str(block_of(config, "optimizer", place).get("name", "AdamW"))
    rule = {"adam": "adam", "adamw": "adam", "muon": "muon"}.get(optimizer.lower())
    told.training |= {"optimizer": {"name": rule}} if rule == "muon" else {}
    told.notes += [] if rule else [f"optimizer {optimizer} is not modeled: the workload uses adam"]
    told.notes += _not_modeled(config, layout, place)
    if "steps" in training:
        steps = _count(training, "steps", 1, f"{place}: training")
        told.length = JobLength(f"training.steps {steps}", steps=steps)
    note_offloading("training.enable_cpu_offload", training.get("enable_cpu_offload"), told)
    if training.get("global_batch_size", -1) != -1:  # -1: the local batches of all ranks
        told.global_batch = _count(training, "global_batch_size", 1, f"{place}: training")
    return told


def _former_layout(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the keys of ``parallelism`` from the sections in which earlier releases had them."""
    sections = {name: block_of(config, name, place) for name in _FORMER}
    moved = {name: {*_FIELDS["parallelism"]} & {*names} for name, names in _FORMER.items()}
    former = {key: value for name, block in sections.items() for key, value in block.items() if key in moved[name]}
    if "data_parallel_degree" in sections["training"]:  # until autumn 2024
        former.setdefault("data_parallel_shard_degree", sections["training"]["data_parallel_degree"])
    if "pipeline_parallel_degree" in former:
        former[_PARTS] = sections["experimental"].get(_PARTS)
    return former


def _world_size(layout: Mapping[str, Any], ranks: Mapping[str, int], place: str) -> int | None:
    """Return the product of all degrees but that of expert ranks, which are the others again; None if shards take what is left.

    torchtitan/distributed/parallel_dims.py, _validate.
    """
    if layout.get("data_parallel_shard_degree", -1) == -1:
        return None
    shards = _count(layout, "data_parallel_shard_degree", 1, f"{place}: parallelism")
    return shards * math.prod(size for name, size in ranks.items() if name != "expert")


_READ: Final = frozenset(("model", "training", "parallelism", "optimizer", "activation_checkpoint", "quantize", "float8", "compile"))
_WITHOUT_COST: Final = frozenset(
    ("job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "validation", "memory_estimation", "debug", "logging")
)
"""Sections that do not change the time or memory of a step."""


def _not_modeled(config: Mapping[str, Any], layout: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield notes on settings that change a step but are not modeled."""
    if layout.get("enable_async_tensor_parallel"):
        yield "parallelism.enable_async_tensor_parallel is not modeled: tensor ranks wait for their collectives"
    unread = [] if {*block_of(config, "experimental", place)} <= {*_FORMER["experimental"], "custom_model_path"} else ["experimental"]
    if unknown := sorted({*(config.keys() - _READ - _WITHOUT_COST - {"experimental"}), *unread}):
        yield f"ignored: {', '.join(f'[{name}]' for name in unknown)}"


def _is_compiled(config: Mapping[str, Any], place: str) -> bool:
    """Return whether torch.compile compiles the blocks, which it does only if the file says so (job_config.py, Compile)."""
    block = block_of(config, "compile", place)
    parts = block.get("components", ("model", "loss"))
    if not isinstance(parts, list | tuple) or not {*map(str, parts)} <= {"model", "loss"}:
        raise SpecError(f"{place}: compile.components {str(parts)[:40]}: write some of model and loss")
    enabled = block.get("enable", block_of(config, "training", place).get("compile", False))
    if not isinstance(enabled, bool):
        raise SpecError(f"{place}: compile.enable {str(enabled)[:40]}: write true or false")
    return enabled and "model" in parts


def _quantized(said: Mapping[str, Any], model: Mapping[str, Any], place: str, told: LaunchSettings) -> dict[str, str]:
    """Return precision and recipe of an FP8 converter; empty if there is none. Raise SpecError for an unknown recipe."""
    converters = str(model.get("converters", ""))
    linear = block_of(block_of(said, "quantize", place), "linear", place)
    if re.search(r"linear\.mx", converters):
        name = str(block_of(linear, "mx", place).get("recipe_name", "mxfp8_cublas"))
        if not name.startswith("mxfp8"):
            raise SpecError(f"{place}: quantize.linear.mx.recipe_name {name[:40]} is not modeled; use mxfp8_cublas")
        return {"precision": "fp8", "fp8_recipe": "mxfp8"}
    former = [block_of(said, section, place).get("enable_float8_linear") for section in ("float8", "training")]
    if "float8" not in converters and True not in former:
        return {}
    name = str(block_of(linear, "float8", place).get("recipe_name") or block_of(said, "float8", place).get("recipe_name") or "tensorwise")
    if name == "rowwise_with_gw_hp":
        told.notes.append(
            "recipe_name rowwise_with_gw_hp is read as rowwise: its 16-bit matrix products for weight gradients are not modeled"
        )
    elif name not in ("tensorwise", "rowwise"):
        raise SpecError(
            f"{place}: unknown quantize.linear.float8.recipe_name {name[:40]}; supported: tensorwise, rowwise and rowwise_with_gw_hp"
        )
    return {"precision": "fp8", "fp8_recipe": name.removesuffix("_with_gw_hp")}


def _recomputes(block: Mapping[str, Any], place: str, told: LaunchSettings) -> dict[str, Any]:
    """Return the activation checkpointing mode, and the blocks of a rank that it recomputes if they are not all.

    Raise SpecError for a mode that torchtitan does not have.
    """
    mode, option = str(block.get("mode", "selective")), str(block.get("selective_ac_option", "op"))
    modes = {"none": "none", "full": "blocks", "selective": "operators", "memory_budget": "operators"}
    if mode not in modes:
        raise SpecError(f"{place}: unknown activation_checkpoint.mode {mode}; supported: {', '.join(modes)}")
    if mode == "memory_budget":
        told.notes.append("activation_checkpoint.mode memory_budget is not modeled: the workload uses selective, by operators")
    if mode == "selective" and (every := whole_number(option)):
        shape = load_part(Model, told.model).transformer
        blocks = shape.layers // told.parallel.get("pipeline", 1) // every if shape is not None else 0
        return {"activation_checkpointing": "blocks", "recompute_blocks": blocks if every > 1 else 0} if blocks else {}
    if mode == "selective" and option != "op":
        told.notes.append(f"activation_checkpoint.selective_ac_option {option} is not modeled: the workload uses op")
    return {"activation_checkpointing": modes[mode]}


def _stages(layout: Mapping[str, Any], told: LaunchSettings, place: str) -> dict[str, Any]:
    """Return the number of chunks on each rank and, if they differ from torchtitan's default, the number of blocks in each chunk."""
    shape = load_part(Model, told.model).transformer
    assert shape is not None
    pipeline, several = told.parallel["pipeline"], told.parallel["schedule"] not in ("gpipe", "1f1b")
    first, last = (_count(layout, f"pipeline_parallel_{end}_stage_less_layers", 1, f"{place}: parallelism", 0) for end in ("first", "last"))
    named, parts = _named_blocks(layout, shape.layers, place), pipeline * (2 if several else 1)
    if layout.get("pipeline_parallel_layers_per_stage") is not None:
        each = _count(layout, "pipeline_parallel_layers_per_stage", 1, f"{place}: parallelism")
        parts = -(-(shape.layers + first + last) // each)
    if named is not None:
        parts = len(named)
    if parts % pipeline or (parts > pipeline) != several:
        allowed = f"a multiple of {pipeline}, at least {2 * pipeline}" if several else f"{pipeline}"
        points = ", one more than pipeline_parallel_split_points" if layout.get("pipeline_parallel_split_points") else ""
        raise SpecError(
            f"{place}: {layout.get('pipeline_parallel_schedule', '1F1B')} with {parts} stages on {pipeline} ranks; write {allowed}{points}"
        )
    if parts > shape.layers or max(first, last) > (shape.layers + first + last) // parts:
        raise SpecError(
            f"{place}: {shape.layers} layers do not fill {parts} stages, with {first} fewer in the first and {last} fewer in the last; "
            "use fewer stages"
        )
    default_counts = even_blocks(shape.layers, parts, 1, 1)
    counts = even_blocks(shape.layers, parts, first, last) if named is None else named
    chunks = {"virtual_stages": parts // pipeline} if told.parallel["schedule"] == "interleaved_1f1b" else {}
    return chunks | ({} if counts == default_counts else {"layers_per_stage": counts})


def _named_blocks(layout: Mapping[str, Any], layers: int, place: str) -> list[int] | None:
    """Return the number of blocks in each part that ``module_fqns_per_model_part`` or, in earlier releases, split points name, if any.

    Raise SpecError unless they add up to *layers*.
    """
    if (names := layout.get("module_fqns_per_model_part")) is None:
        return _split_blocks(layout.get("pipeline_parallel_split_points") or [], layers, place)
    parts = [part if isinstance(part, list) else [] for part in names] if isinstance(names, list) else []
    counts = [sum(str(name).startswith("layers.") for name in part) for part in parts]
    if sum(counts) != layers:
        raise SpecError(
            f"{place}: parallelism.module_fqns_per_model_part names {sum(counts)} blocks, but the model has {layers}; "
            'write a list of names for each stage, such as [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]'
        )
    return counts


def _split_blocks(points: object, layers: int, place: str) -> list[int] | None:
    """Return the number of blocks between split *points*, the first modules of all stages but the first one; None if there are none.

    torchtitan/config_manager.py, pipeline_parallel_split_points. Raise SpecError unless they are blocks, or what follows them, in order.
    """
    names = points.split(",") if isinstance(points, str) else points if isinstance(points, list) else [points]
    starts = [layers if name in ("norm", "output") else whole_number(str(name).strip().removeprefix("layers.")) for name in names]
    bounds = [0, *[-1 if start is None else start for start in starts], layers]
    if bounds != sorted(bounds):
        raise SpecError(
            f"{place}: parallelism.pipeline_parallel_split_points {str(points)[:60]}: write the first block of each stage but the first, "
            f'in order, such as ["layers.{layers // 2}"], up to layers.{layers - 1}'
        )
    return [after - before for before, after in pairwise(bounds)] if names else None


def _batches(training: Mapping[str, Any], layout: Mapping[str, Any], place: str, told: LaunchSettings) -> dict[str, int]:
    """Return the samples of a micro-batch, and the number of micro-batches; a pipeline divides a rank's local batch into them."""
    local = _count(training, "local_batch_size" if "local_batch_size" in training else "batch_size", 8, f"{place}: training")
    if told.parallel.get("pipeline", 1) == 1:
        return {"batch": local}
    if _PARTS in layout:
        chunks = told.parallel.get("virtual_stages", 1 if told.parallel["schedule"] in ("gpipe", "1f1b") else 2)
        usual = {_PARTS: layout[_PARTS] or chunks * told.parallel["pipeline"]}
        count = _count(usual, _PARTS, 1, f"{place}: experimental")
        if local % count:
            raise SpecError(
                f"{place}: training.batch_size {local} is not a multiple of its {count} micro-batches (experimental.{_PARTS}, by default "
                f"one for each stage); write {-(-local // count) * count}"
            )
        return {"batch": local // count, "gradient_accumulation_steps": count}
    micro = _count(layout, "pipeline_parallel_microbatch_size", 1, f"{place}: parallelism")
    if local % micro:
        raise SpecError(
            f"{place}: training.local_batch_size {local} is not a multiple of parallelism.pipeline_parallel_microbatch_size {micro}; write "
            f"{-(-local // micro) * micro}"
        )
    return {"batch": micro, "gradient_accumulation_steps": local // micro}


def _count(block: Mapping[str, Any], name: str, default: int, place: str, least: int = 1) -> int:
    """Return the number *name* of *block*, or *default*. Raise SpecError if it is not a whole number of *least* or more."""
    value = block.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        quoted = ", without quotes" * (isinstance(value, str) and whole_number(value) is not None)
        raise SpecError(f"{place}.{name} {str(value)[:40]}: write a whole number, {least} or more{quoted}")
    return value
