"""What does DeepSpeed's JSON file specify about a run? Keys are from deepspeed/runtime/config.py; ``auto`` means the default."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from sim.spec.defaults import ZERO_TRANSFORMERS
from sim.spec.foreign.launch_settings import ALIKE_KEYS, LaunchSettings, block_of, note_offloading, refuse_misspelled
from sim.spec.parallel import SHARDS
from sim.spec.yaml import SpecError
from sim.units import shorten

_PLUS: Final = frozenset(
    ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
)
"""Keys of ZeRO++, which change the data that are exchanged."""
_OPTIMIZERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "deepspeedcpuadam"), "adam"),
    **dict.fromkeys(("lamb", "fusedlamb"), "lamb"),
    "sgd": "sgd",
    "muon": "muon",
    "adafactor": "adafactor",
}


def is_deepspeed(config: Mapping[str, Any]) -> bool:
    """Return whether the JSON *config* is one of DeepSpeed: it has a key that only DeepSpeed has, perhaps misspelled."""
    if "model_type" in config or "architectures" in config:
        return False
    blocks = any(isinstance(config.get(name), Mapping) and "enabled" in config[name] for name in ("bf16", "bfloat16", "fp16"))
    return blocks or any(name in config or difflib.get_close_matches(name, config, cutoff=ALIKE_KEYS) for name in _OWN)


def deepspeed(config: Mapping[str, Any], place: str) -> LaunchSettings:
    """Return the settings in DeepSpeed's JSON file; ``auto`` is left to the defaults. Raise SpecError for a misspelled key."""
    told = LaunchSettings(sharded_by={"DeepSpeed": place})
    refuse_misspelled(config, _READ, "", place)
    refuse_misspelled(block_of(config, "zero_optimization", place), _READ_OF_ZERO, "zero_optimization.", place)
    if "bfloat16" in config:
        config = {"bf16": config["bfloat16"], **config}
    stage = block_of(config, "zero_optimization", place).get("stage", 0)
    if type(stage) is not int or stage not in range(4):
        raise SpecError(f"{place}: zero_optimization.stage {shorten(str(stage))}: write the number 0, 1, 2 or 3")
    if stage:
        told.parallel["shard"] = SHARDS[stage]
    batch, micro_batch, steps = (_batch(config, option, place) for option in _BATCHES)
    told.training |= {"batch": micro_batch} if micro_batch else {}
    told.training |= {"gradient_accumulation_steps": steps} if steps else {}
    told.global_batch = batch
    widths = [width for width in ("bf16", "fp16") if block_of(config, width, place).get("enabled") is True]
    if len(widths) > 1:
        raise SpecError(f"{place}: bf16 and fp16 are both enabled; write false for one of them")
    told.training |= {"precision": widths[0]} if widths else {}
    told.training |= zero_stack(stage)
    if _left_to_trainer(config, place):
        told.default_notes["precision"] = (
            "bf16 or fp16 is auto, as a Trainer's --bf16 or --fp16 say: used bf16; with neither, write precision: fp32"
        )
    elif not widths:
        told.defaults["precision"] = "fp32"
        told.default_notes["precision"] = "neither bf16 nor fp16 is enabled: used fp32, DeepSpeed's default"
    told.notes += zero_notes(stage, f"zero_optimization.stage {stage}")
    _optimizer(block_of(config, "optimizer", place), told)
    zero = block_of(config, "zero_optimization", place)
    for option in ("offload_optimizer", "offload_param"):
        note_offloading(f"zero_optimization.{option}", block_of(zero, option, place).get("device", "none"), told)
    note_offloading("zero_optimization.cpu_offload", zero.get("cpu_offload"), told)
    for option in sorted(_PLUS & zero.keys()):
        if zero[option] not in (False, None, 0, 1):
            told.notes.append(f"zero_optimization.{option} {zero[option]} is not modeled: the workload uses plain ZeRO")
    return told


def _left_to_trainer(config: Mapping[str, Any], place: str) -> bool:
    """Return whether a transformers Trainer sets the precision: one that is ``auto``."""
    return any(block_of(config, width, place).get("enabled") == "auto" for width in ("bf16", "fp16"))


_BATCHES: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""Samples of a step, and what they are the product of together with the number of data-parallel ranks (_batch_assertion)."""


def _batch(config: Mapping[str, Any], option: str, place: str) -> int | None:
    """Return the number *option*; None if it is left out or ``auto``. Raise SpecError if it is below 1."""
    value = config.get(option)
    if type(value) is not int:
        return None
    if value < 1:
        raise SpecError(f"{place}: {option} {value}: write a whole number, 1 or more")
    return value


_OWN: Final = (
    *("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping"),
    *("steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer"),
)
"""Top-level keys by which a JSON is one of DeepSpeed."""
_READ: Final = (*_OWN, "bf16", "bfloat16", "fp16", "optimizer", "scheduler")
_READ_OF_ZERO: Final = (
    "stage",
    "offload_optimizer",
    "offload_param",
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_params",
    *sorted(_PLUS),
)


def zero_stack(stage: int) -> dict[str, str]:
    """Return the stack for ZeRO of *stage*: the modeling code of transformers under DeepSpeed; empty if nothing is sharded."""
    return {"stack": ZERO_TRANSFORMERS} if stage else {}


def zero_notes(stage: int, written: str) -> list[str]:
    """Return a note on what the simulator does otherwise than DeepSpeed with ZeRO of *stage*, *written* in a file; empty if nothing."""
    return [f"{written}: whole blocks are gathered; DeepSpeed gathers modules"] if stage == 3 else []


def _optimizer(block: Mapping[str, Any], told: LaunchSettings) -> None:
    """Set the optimizer in *told* from the *block*, or add a note that adam is used instead."""
    kind, settings = block.get("type"), block.get("params")
    if not isinstance(kind, str) or kind == "auto":
        return
    name = _OPTIMIZERS.get(kind.lower())
    if name == "sgd" and isinstance(settings, Mapping) and settings.get("momentum"):
        name = "momentum"
    told.training |= {"optimizer": {"name": name}} if name else {}
    told.notes += [] if name else [f"optimizer {kind} is not modeled: the workload uses adam"]
