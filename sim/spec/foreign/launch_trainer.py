"""What do the options of transformers' Trainer specify about a run? Names and defaults are those of src/transformers/training_args.py.

A script has a Trainer if it has any option that only the Trainer has, or one that it shares with other programs next to the model's name.
Limits: what the script sets in its code, and options that change a step without being modeled, which are named in one note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sim.spec.defaults import PARALLEL_STACK, SHARDED_FUSED, SHARDED_TRANSFORMERS
from sim.spec.foreign.launch_options import Arguments
from sim.spec.foreign.launch_settings import JobLength, LaunchSettings, note_offloading
from sim.spec.foreign.launch_unread import refuse_typos
from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError

MODEL: Final = ("model-name-or-path", "model-id")
"""Options for the model's name on the hub in common training scripts."""
_BATCH: Final = "per-device-train-batch-size"
_BATCHES: Final = (_BATCH, "per-gpu-train-batch-size")
_USUAL_BATCH: Final = 8
STACK: Final = "hf-transformers"
"""The stack that runs the modeling code of transformers as it is, in plain data parallelism."""
_OTHER_CODE: Final = ("torch-compile", "use-liger-kernel")
"""Options with which a Trainer runs other kernels than those of the modeling code; the first one decides the stack of --fsdp."""
_STEPS: Final = "gradient-accumulation-steps"
_CHECKPOINTED: Final = ("gradient-checkpointing", "activation-checkpointing")
"""The second is the name since transformers 5."""
_EPOCHS: Final = "num-train-epochs"
_SHARED: Final = frozenset((
    "bf16", "fp16", "tf32", "seed", "max-steps", "output-dir", "learning-rate", "weight-decay", "optim", "fsdp", "fsdp-config", "deepspeed",
    "adam-beta1", "adam-beta2", "adam-epsilon", "warmup-steps", "warmup-ratio", "lr-scheduler-type", "logging-steps", "save-steps",
    "eval-steps", "save-strategy", "report-to", "run-name", "local-rank", "do-train", "torch-compile",
))  # fmt: skip
"""Options of the Trainer that other programs have as well."""
_OWN: Final = frozenset((
    *_BATCHES, _STEPS, *_CHECKPOINTED, _EPOCHS, "per-device-eval-batch-size", "gradient-checkpointing-kwargs", "dataloader-num-workers",
    "max-grad-norm", "label-smoothing-factor", "bf16-full-eval", "fp16-full-eval", "fp16-opt-level", "half-precision-backend",
    "use-liger-kernel", "neftune-noise-alpha", "auto-find-batch-size", "torch-compile-backend", "torch-compile-mode", "optim-args",
    "optim-target-modules", "ddp-find-unused-parameters", "ddp-bucket-cap-mb", "ddp-timeout", "eval-accumulation-steps", "save-total-limit",
    "load-best-model-at-end", "metric-for-best-model", "remove-unused-columns", "dataloader-drop-last", "dataloader-pin-memory",
    "dataloader-persistent-workers", "dataloader-prefetch-factor", "group-by-length", "length-column-name", "train-sampling-strategy",
    "fsdp-transformer-layer-cls-to-wrap", "evaluation-strategy", "eval-strategy", "logging-strategy", "overwrite-output-dir",
))  # fmt: skip
"""Options that only the Trainer has, and the scripts of transformers without it."""
_OF_MEGATRON: Final = ("micro-batch-size", "num-layers", "tensor-model-parallel-size")
_GATHERED_TWICE: Final = ("full_shard", "hybrid_shard", "true")
_GATHERED_ONCE: Final = ("shard_grad_op", "hybrid_shard_zero2")
"""Words of --fsdp that shard parameters and gather them for each pass, or once for both (torch/distributed/fsdp/api.py)."""
_QUOTED: Final = re.compile(r"--fsdp(?:=|\s+)[\"']([^\"']*)[\"']")
_OPTIMIZERS: Final = {
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adam8bit"),
    "adafactor": "adafactor",
    "sgd": "sgd",
}
_LENGTHS: Final = ("max-seq-length", "max-seq-len", "model-max-length", "max-length", "block-size", "cutoff-len")
"""Options for the tokens of a sample in common training scripts."""
_TYPES: Final = {"bfloat16": "bf16", "float16": "fp16"}
_WIDE: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "LLaMA-Factory": (re.compile(r"llama-?factory|--(finetuning_type|cutoff_len)\b", re.IGNORECASE), "--pure_bf16"),
    "TRL": (
        re.compile(
            r"(?<![\w/-])trl[ \t]+(sft|dpo|kto|reward|grpo|rloo)\b|-m[ \t]+trl\b|"
            r"\btrl/(trl/)?(scripts|examples)/|\bcd[ \t]+(\S*/)?trl(?![\w-])"
        ),
        "--dtype bfloat16",
    ),
}
"""Programs that train weights of 32 bits under autocast, whatever the type of the checkpoint; words of scripts that run them, and an option
that turns it off (hiyouga/LLaMA-Factory src/llamafactory/model/adapter.py, init_adapter; huggingface/trl trl/trainer/utils.py,
create_model_from_path)."""
_NOT_MODELED: Final = (
    "fsdp-config", "gradient-checkpointing-kwargs", "torch-compile", "use-liger-kernel", "auto-find-batch-size", "group-by-length",
    "dataloader-num-workers", "ddp-bucket-cap-mb", "neftune-noise-alpha", "padding-free",
)  # fmt: skip
"""Options that change the time or memory of a step, but not the description."""


def trainer(options: Arguments, text: str) -> LaunchSettings:
    """Return the settings of a Trainer, if the script *text* with these *options* has one. Raise SpecError for a misspelled option."""
    said, told = options.values, LaunchSettings()
    if any(name in said for name in _OF_MEGATRON):
        return told
    refuse_typos(_unknown(said), _OWN, options.place)
    if not has_trainer(said):
        return told
    told.defaults = {"batch": _USUAL_BATCH, "precision": "fp32"}
    told.defaults |= {} if any(is_set(said, name) for name in _OTHER_CODE) else {"stack": STACK}
    if batch := next((_count(options, name) for name in _BATCHES if name in said), None):
        told.training["batch"] = batch
    if steps := _count(options, _STEPS):
        told.training["gradient_accumulation_steps"] = steps
    if is_set(said, "bf16") and is_set(said, "fp16"):
        raise SpecError(f"{options.place}: --bf16 and --fp16 are both set, which the Trainer refuses; leave one of them out")
    told.training |= {"precision": precision} if (precision := _precision(said)) else {}
    if any(is_set(said, name) for name in _CHECKPOINTED):
        told.training["activation_checkpointing"] = "blocks"
    optimizer = said.get("optim", "adamw_torch")
    if not optimizer.startswith("adamw") or optimizer in _OPTIMIZERS:
        name = _OPTIMIZERS.get(optimizer)
        told.training |= {"optimizer": {"name": name}} if name else {}
        told.notes += [] if name else [f"--optim {optimizer} is not modeled: the workload uses adam"]
    _add_fsdp(said, text, options.place, told)
    told.wide_weights = _wide_weights(said, text)
    told.sequence = next((length for option in _LENGTHS if (length := options.number(option))), None)
    told.length = _length(said)
    understood = next((name for name in _OTHER_CODE if is_set(said, name)), None) if "stack" in told.training else None
    if unread := [f"--{option.replace('-', '_')}" for option in _NOT_MODELED if is_set(said, option) and option != understood]:
        told.notes.append(f"not read, although a step may depend on it: {', '.join(unread)}")
    if said.get("attn-implementation") == "eager":
        told.notes.append("--attn_implementation eager is not modeled: attention is one kernel, which is faster and keeps no scores")
    return told


def _count(options: Arguments, name: str) -> int | None:
    """Return the number of samples or steps of the option *name*; None if it is missing. Raise SpecError if it is below 1."""
    count = options.number(name)
    if count == 0:
        raise SpecError(f"{options.place}: --{name.replace('-', '_')} 0: write a whole number, 1 or more")
    return count


def has_trainer(said: Mapping[str, str]) -> bool:
    """Return whether the options *said* are those of a Trainer."""
    return any(name in _OWN for name in said) or (any(name in said for name in MODEL) and any(name in _SHARED for name in said))


def is_set(said: Mapping[str, Any], option: str) -> bool:
    """Return whether a flag is set, with or without a value other than false, no or 0."""
    return option in said and str(said[option]).lower() not in ("false", "no", "0")


def _unknown(said: Mapping[str, str]) -> list[str]:
    """Return the options of *said* that are not the Trainer's. As argparse does, this accepts no_ before a flag, and abbreviations."""
    names = (option.removeprefix("no-") for option in said)
    return [name for name in names if name not in _SHARED and not any(own.startswith(name) for own in _OWN)]


def _precision(said: Mapping[str, Any]) -> str | None:
    """Return the precision that the options set; ``--torch_dtype`` (``--dtype`` since transformers 5) is that of the weights."""
    mixed = next((name for option, name in (("bf16", "bf16"), ("fp16", "amp_fp16")) if is_set(said, option)), None)
    dtype = next((said[name] for name in ("torch-dtype", "dtype") if name in said), "")
    if mixed == "bf16" and dtype == "float32":
        return "amp_bf16"
    return mixed or _TYPES.get(dtype) or ("tf32" if is_set(said, "tf32") else None)


def _wide_weights(said: Mapping[str, str], text: str) -> str:
    """Return the program that trains 32-bit weights in 16-bit autocast, with an option against it; empty if none does.

    None does if it trains adapters of a 16-bit model.
    """
    adapters = said.get("finetuning-type") in ("lora", "oft", "freeze")
    if adapters or any(name in said for name in ("torch-dtype", "dtype")) or any(is_set(said, name) for name in ("deepspeed", "pure-bf16")):
        return ""
    return next((name for name, (shown, _) in _WIDE.items() if shown.search(text)), "")


def with_wide_weights(told: LaunchSettings) -> LaunchSettings:
    """Return *told*, of all files, with autocast if its program trains 32-bit weights, which nothing shards or converts."""
    if not told.wide_weights or told.parallel or "stack" in told.training or told.training.get("precision") != "bf16":
        return told
    program, narrow = told.wide_weights, _WIDE[told.wide_weights][1]
    note = f"{program} trains weights of 32 bits under autocast, used amp_bf16; with {narrow}, write precision: bf16"
    return told.joined(LaunchSettings(training={"precision": "amp_bf16"}, notes=[note]))


def _add_fsdp(said: Mapping[str, str], text: str, place: str, told: LaunchSettings) -> None:
    """Set in *told* what ``--fsdp`` shards, one word or several in quotes, with a note on the stack."""
    quoted = _QUOTED.search(text)
    words = (quoted[1] if quoted else said.get("fsdp", "")).lower().split()
    strategy = next((word for word in words if word in (*_GATHERED_TWICE, *_GATHERED_ONCE)), None)
    if strategy is None:
        if words and is_set(said, "fsdp") and words != ["no_shard"]:
            told.notes.append(f"--fsdp {said['fsdp']} is not read: nothing is sharded")
        return
    told.sharded_by = {"FSDP": place}
    told.parallel["shard"] = "parameters"
    told.parallel |= {"reshard_after_forward": False} if strategy in _GATHERED_ONCE else {}
    note_offloading("--fsdp offload", "offload" in words, told)
    if is_set(said, "torch-compile"):
        told.training["stack"] = PARALLEL_STACK
        told.notes.append("--fsdp with --torch_compile runs on torchtitan's stack (FSDP2), whose blocks are compiled")
    elif is_set(said, "use-liger-kernel"):
        told.training["stack"] = SHARDED_FUSED
        told.notes.append(f"--fsdp with --use_liger_kernel runs on the stack {SHARDED_FUSED}, whose loss and norms are fused")
    else:
        told.training["stack"] = SHARDED_TRANSFORMERS
        told.notes.append("--fsdp runs the modeling code of transformers operator by operator, as --torch_compile is not set")


def _length(said: Mapping[str, str]) -> JobLength | None:
    """Return the length of the job; ``--max_steps`` above 0 replaces epochs. None: the script leaves it to the Trainer."""
    for option in ("max-steps", "max-train-steps"):
        if option in said and not said[option].startswith("-"):
            return JobLength(f"--{option.replace('-', '_')} {said[option]}", steps=whole_number(said[option]))
    if _EPOCHS not in said:
        return None
    text = said[_EPOCHS]
    number = float(text) if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) else None
    return JobLength(f"--num_train_epochs {text}", epochs=number or None)
