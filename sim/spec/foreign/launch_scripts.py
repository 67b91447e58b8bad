"""What does a launch script contain in addition to Megatron-LM's arguments? The number of GPUs, the settings of a Trainer, and adapters.

This reads Slurm's ``#SBATCH`` lines, the options of torchrun, ``accelerate launch`` and ``deepspeed``, those of transformers' Trainer
(src/transformers/training_args.py), and those for low-rank adapters of TRL (trl/trainer/model_config.py) and LLaMA-Factory
(src/llamafactory/hparams/finetuning_args.py). Limits: a number that only the cluster knows is left out; if a script has several numbers
of GPUs, the launcher's applies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sim.spec.foreign.launch_megatron import NUMERIC
from sim.spec.foreign.launch_options import Arguments, arguments
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError
from sim.units import pluralized, shorten

_DIRECTIVE: Final = re.compile(r"^#SBATCH[ \t]+(--?[\w-]+)(?:=|[ \t]+|(?<=-N)|(?<=-G))(\S+)", re.MULTILINE)
_STARTED: Final = re.compile(r"^[^#\n]*\b(?:srun|sbatch|salloc)[ \t]([^\n]*)", re.MULTILINE)
_STARTED_WITH: Final = re.compile(r"(?<!\S)(-N|-G|--nodes|--gpus-per-node|--gres|--gpus)(?:=|[ \t]*)(\S+)")
"""Options of Slurm's commands for nodes and GPUs, in a line that calls one."""
_NODES: Final = ("nnodes", "num-nodes", "num-machines")
"""Options for the number of nodes of torchrun, deepspeed and accelerate."""
_EACH: Final = ("nproc-per-node", "num-gpus")
MOST: Final = 1_000_000
USUAL: Final = 8
"""Assumed GPUs per node if the script does not specify them, as in most machines for training language models."""
_SLURM_NODES: Final = re.compile(r"\$\{?(SLURM_NNODES|SLURM_JOB_NUM_NODES)\b\}?")


def launch_script(text: str, place: str) -> LaunchSettings:
    """Return the number of GPUs and the settings of a Trainer in the script *text*."""
    nodes, each, total, gpu = _slurm(_DIRECTIVE.findall(text), place)
    started = [option for line in _STARTED.findall(text.replace("\\\n", " ")) for option in _STARTED_WITH.findall(line)]
    more = _slurm(started, place)
    nodes, each, total, gpu = nodes or more[0], each or more[1], total or more[2], gpu or more[3]
    if nodes:
        text = _SLURM_NODES.sub(str(nodes), text)
    options = Arguments(arguments(text, place, NUMERIC), place)
    nodes = _first_number(options, _NODES) or nodes
    each = _first_number(options, _EACH) or each
    told = _trainer(options)
    _add_adapters(options, told)
    told.gpu, told.gpus_per_node = gpu, each
    told.released = next((options.values[name] for name in _MODEL if name in options.values), "")
    told.gpus = _first_number(options, ("num-processes",)) or (nodes * each if nodes and each else total or each)
    if nodes and not told.gpus:
        told.gpus = nodes * USUAL
        told.notes.append(f"{place} sets {pluralized(nodes, 'node')} but not the GPUs of each: assuming {USUAL}")
    return told


_MODEL: Final = ("model-name-or-path", "model-id")
"""Options for the model's name on the hub in common training scripts."""
_GPU: Final = re.compile(r"(?:gpu:)?([A-Za-z][\w.-]*):\d+")


def _slurm(said: Sequence[tuple[str, str]], place: str) -> tuple[int | None, int | None, int | None, str]:
    """Return the nodes, the GPUs per node, the total GPUs and the name of the GPU that Slurm's options *said* request."""
    nodes = each = total = None
    gpu = ""
    for option, value in said:
        if "gpu" in option or value.startswith("gpu"):
            gpu = named[1] if (named := _GPU.match(value)) is not None and named[1] != "gpu" else gpu
        count = re.search(r"(?:^|:)(\d+)(?:\(|$)", value.split(",")[0])  # 8, gpu:8, gpu:h100:8
        if option in ("-N", "--nodes"):
            nodes = _count(first[0], place) if (first := re.match(r"\d+", value)) else None  # 4, 4-8
        elif count and (option == "--gpus-per-node" or (option == "--gres" and value.startswith("gpu"))):
            each = _count(count[1], place)
        elif count and option in ("-G", "--gpus"):
            total = _count(count[1], place)
    return nodes, each, total, gpu


def _first_number(options: Arguments, names: tuple[str, ...]) -> int | None:
    """Return the first of the options *names* with a number of 1 or more; for ``2:4`` of an elastic torchrun, the minimum."""
    for name in names:
        if (match := re.match(r"[1-9]\d*(?=:|$)", options.values.get(name, ""))) is not None:
            return _count(match[0], options.place)
    return None


def _count(digits: str, place: str) -> int:
    """Return *digits* as a number of nodes or GPUs. Raise SpecError if no cluster is so large."""
    number = whole_number(digits)
    if number is None or number > MOST:
        raise SpecError(f"{place}: {shorten(digits)} nodes or GPUs exceed any cluster; write at most {MOST:,}")
    return number


# --- transformers' Trainer ---------------------------------------------------------------------------------------------------

_BATCH: Final = "per-device-train-batch-size"
_GATHERED_TWICE: Final = ("full_shard", "hybrid_shard")
_GATHERED_ONCE: Final = ("shard_grad_op", "hybrid_shard_zero2")
"""Words of --fsdp that shard parameters and gather them for each pass, or once for both (torch/distributed/fsdp/api.py)."""
_OPTIMIZERS: Final = {
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adam8bit"),
    "adafactor": "adafactor",
    "sgd": "sgd",
}
_LENGTHS: Final = ("max-seq-length", "max-seq-len", "model-max-length", "max-length", "block-size")
"""Options for the tokens of a sample in common training scripts."""


def _trainer(options: Arguments) -> LaunchSettings:
    """Return the settings of a Trainer, if the script has any."""
    said, told = options.values, LaunchSettings()
    if _BATCH not in said and "gradient-accumulation-steps" not in said:
        return told
    told.training["batch"] = options.number(_BATCH, 8)
    if steps := options.number("gradient-accumulation-steps"):
        told.training["gradient_accumulation_steps"] = steps
    told.training |= {"precision": precision} if (precision := _precision(said)) else {}
    told.training |= {"activation_checkpointing": "blocks"} if is_set(said, "gradient-checkpointing") else {}
    optimizer = said.get("optim", "adamw_torch")
    if not optimizer.startswith("adamw") or optimizer in _OPTIMIZERS:
        name = _OPTIMIZERS.get(optimizer)
        told.training |= {"optimizer": {"name": name}} if name else {}
        told.notes += [] if name else [f"--optim {optimizer} is not modeled: the workload uses adam"]
    strategy = next((word for word in said.get("fsdp", "").split() if word in (*_GATHERED_TWICE, *_GATHERED_ONCE)), None)
    told.parallel |= {} if strategy is None else {"shard": "parameters"}
    told.parallel |= {"reshard_after_forward": False} if strategy in _GATHERED_ONCE else {}
    if strategy:
        told.notes.append(
            "--fsdp runs on torchtitan's stack, whose blocks are compiled; the Trainer's are not unless --torch_compile is set"
        )
    told.sequence = next((length for option in _LENGTHS if (length := options.number(option))), None)
    return told


def _precision(said: Mapping[str, Any]) -> str | None:
    return next((name for option, name in (("bf16", "bf16"), ("fp16", "amp_fp16")) if is_set(said, option)), None)


def is_set(said: Mapping[str, Any], option: str) -> bool:
    """Return whether a flag is set, with or without a value other than false, no or 0."""
    return option in said and str(said[option]).lower() not in ("false", "no", "0")


# --- low-rank adapters -------------------------------------------------------------------------------------------------------

_RANKS: Final = ("lora-r", "lora-rank")
_USUAL_RANK: Final = {"use-peft": 16, "use-lora": 16, "finetuning-type": 8}
"""Options that turn adapters on, and their rank if the script does not set it: the defaults in the two files above."""
_TARGETS: Final = ("lora-target-modules", "lora-target")
_QUANTIZED: Final = {"load-in-4bit": "NF4 takes 0.52", "load-in-8bit": "8 bits take 1", "quantization-bit": "NF4 takes 0.52 and 8 bits 1"}


def _add_adapters(options: Arguments, told: LaunchSettings) -> None:
    """Set the rank of the adapters in *told*, with notes on their products and on quantized weights; nothing if all weights are trained."""
    said = options.values
    switch = next((name for name in _USUAL_RANK if name in said), None)
    option = next((name for name in _RANKS if name in said), None)
    if not (_is_on(said, switch) if switch else option):
        return
    rank = options.number(option) if option else _USUAL_RANK[switch or ""]
    if not rank:
        raise SpecError(f"{options.place}: --{option} {said[option or ''][:40]}: write a rank of 1 or more")
    told.lora_rank = rank
    for name in _TARGETS:
        if said.get(name, "all") not in ("all", "all-linear"):
            told.notes.append(f"--{name} is not read: all products of a block have adapters; model.lora.targets lists others")
    for name, bytes_each in _QUANTIZED.items():
        if name in said and is_set(said, name):
            told.notes.append(
                f"--{name} is not modeled: frozen weights take 2 bytes each in GPU memory, where {bytes_each}, and the time of unpacking "
                "is missing"
            )


def _is_on(said: Mapping[str, str], switch: str) -> bool:
    return said[switch] == "lora" if switch == "finetuning-type" else is_set(said, switch)
