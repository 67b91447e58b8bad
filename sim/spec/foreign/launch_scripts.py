"""What does a launch script contain in addition to Megatron-LM's arguments? The number of GPUs, the settings of a Trainer, and adapters.

This reads Slurm's ``#SBATCH`` lines, the options of torchrun, ``accelerate launch`` and ``deepspeed``, those of transformers' Trainer
(src/transformers/training_args.py), and those for low-rank adapters of TRL (trl/trainer/model_config.py) and LLaMA-Factory
(src/llamafactory/hparams/finetuning_args.py). Limits: a number that only the cluster knows is left out; if a script has several numbers
of GPUs, the launcher's applies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sim.spec.foreign.launch_megatron import NUMERIC
from sim.spec.foreign.launch_options import Arguments, arguments, unread_number
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_trainer import MODEL, is_set, trainer
from sim.spec.foreign.launch_variables import is_unread, with_values
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
_SLURM_NODES: Final = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
"""Variables that Slurm sets to the number of nodes."""
_ALL: Final = ("gpu", "auto")
"""Values of torchrun's --nproc-per-node for all GPUs of a node (torch/distributed/run.py, determine_local_world_size)."""


class _SlurmRequest(NamedTuple):
    """What the options of Slurm request: nodes, GPUs of each, GPUs in all, and the name of the GPU; None or empty if they do not say."""

    nodes: int | None
    gpus_per_node: int | None
    gpus: int | None
    gpu: str

    def or_else(self, other: _SlurmRequest) -> _SlurmRequest:
        """Return this request, with what it leaves open taken from *other*."""
        nodes, gpus_per_node = self.nodes or other.nodes, self.gpus_per_node or other.gpus_per_node
        return _SlurmRequest(nodes, gpus_per_node, self.gpus or other.gpus, self.gpu or other.gpu)


def launch_script(text: str, place: str) -> LaunchSettings:
    """Return the number of GPUs and the settings of a Trainer in the script *text*.

    Raise SpecError for a number of nodes or processes that is neither in the script nor in what it requests from Slurm.
    """
    directives = _slurm(_DIRECTIVE.findall(text), place)
    environment = dict.fromkeys(_SLURM_NODES, str(directives.nodes)) if directives.nodes else {}
    plain = with_values(text, environment)
    started = [option for line in _STARTED.findall(plain) for option in _STARTED_WITH.findall(line)]
    nodes, each, total, gpu = directives.or_else(_slurm(started, place))
    options = Arguments(arguments(text, place, NUMERIC, environment), place)
    requested = {**dict.fromkeys(_NODES, nodes), **dict.fromkeys(_EACH, each), "num-processes": total or (nodes and each)}
    for name, count in requested.items():
        if not count and is_unread(value := options.values.get(name, "")):
            raise unread_number(name, value, text, place)
    nodes = _first_number(options, _NODES) or nodes
    each = _first_number(options, _EACH) or each
    named, included = _deepspeed(plain, place)
    each, total = named or each, included or total or _of_mpi(plain, place)
    told = trainer(options, text)
    _add_adapters(options, told)
    told.gpu, told.gpus_per_node = gpu, each
    told.released = next((options.values[name] for name in MODEL if name in options.values), "")
    told.gpus = _first_number(options, ("num-processes",)) or included or (nodes * each if nodes and each else total or each)
    if "exclude" in options.values and _DEEPSPEED.search(plain):
        told.notes.append(f"--exclude {shorten(options.values['exclude'])} is not read: the GPUs of its hosts are unknown")
    if not told.gpus and (nodes or any(options.values.get(name) in _ALL for name in _EACH)):
        told.gpus = (nodes or 1) * USUAL
        told.gpus_assumed = f"{place} sets {pluralized(nodes or 1, 'node')} but not the GPUs of each: assuming {USUAL}"
    return told


_GPU: Final = re.compile(r"(?:gpu:)?([A-Za-z][\w.-]*):\d+")


def _slurm(said: Sequence[tuple[str, str]], place: str) -> _SlurmRequest:
    """Return what Slurm's options *said* request."""
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
    return _SlurmRequest(nodes, each, total, gpu)


_DEEPSPEED: Final = re.compile(r"\bdeepspeed[ \t]((?:(?!\.py\b)[^\n])*)")
"""The launcher of DeepSpeed with its own options, up to the program."""
_INCLUDED: Final = re.compile(r"(?:--include[= \t]+|-i[ \t]+)[\"']?([^\s\"']+)")


def _deepspeed(text: str, place: str) -> tuple[int | None, int | None]:
    """Return the GPUs per node and in all that ``deepspeed --include`` names: slots of hosts, such as ``localhost:0,1`` or ``a:0-3@b:0-3``.

    deepspeed/launcher/runner.py, parse_resource_filter. None if it names none, or hosts without slots.
    """
    launched = _DEEPSPEED.search(text)
    said = None if launched is None else _INCLUDED.search(launched[1])
    if said is None or not re.fullmatch(r"[^:@]+:[\d,-]+(@[^:@]+:[\d,-]+)*", said[1]):
        return None, None
    slots = [host.partition(":")[2].split(",") for host in said[1].split("@")]
    counts = [sum(_slots(part, place) for part in host if part) for host in slots]
    return max(counts), _count(str(sum(counts)), place)


def _slots(part: str, place: str) -> int:
    first, _, last = part.partition("-")
    return max(1, _count(last, place) - _count(first, place) + 1) if first and last else 1


_MPI: Final = re.compile(r"\b(?:mpirun|mpiexec)\b[^\n]*?\s(?:-np|--np|-n)[ =](\d+)\b")


def _of_mpi(text: str, place: str) -> int | None:
    """Return the processes that mpirun starts, one for each GPU."""
    started = _MPI.search(text)
    return _count(started[1], place) if started else None


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


# --- low-rank adapters -------------------------------------------------------------------------------------------------------

_RANKS: Final = ("lora-r", "lora-rank")
_USUAL_RANK: Final = {"use-peft": 16, "use-lora": 16, "finetuning-type": 8}
"""Options that turn adapters on, and their rank if the script does not set it: the defaults in the two files above."""
_TARGETS: Final = ("lora-target-modules", "lora-target")
_QUANTIZED: Final = {"load-in-4bit": "NF4 takes 0.52", "load-in-8bit": "8 bits take 1", "quantization-bit": "NF4 takes 0.52 and 8 bits 1"}


def _add_adapters(options: Arguments, told: LaunchSettings) -> None:
    """Set the rank of the adapters in *told*, with notes on their products and on quantized weights; no rank if all weights are trained."""
    said = options.values
    switch = next((name for name in _USUAL_RANK if name in said), None)
    option = next((name for name in _RANKS if name in said), None)
    if not (_is_on(said, switch) if switch else option):
        told.notes += [f"--{name} is not read: without adapters, all weights are trained" for name in _QUANTIZED if is_set(said, name)]
        return
    rank = options.number(option) if option else _USUAL_RANK[switch or ""]
    if not rank:
        raise SpecError(f"{options.place}: --{option} {said[option or ''][:40]}: write a rank of 1 or more")
    told.lora_rank = rank
    for name in _TARGETS:
        if said.get(name, "all") not in ("all", "all-linear"):
            told.notes.append(f"--{name} is not read: all products of a block have adapters; model.lora.targets lists others")
    for name, bytes_each in _QUANTIZED.items():
        if is_set(said, name):
            told.notes.append(
                f"--{name} is not modeled: frozen weights take 2 bytes each in GPU memory, where {bytes_each}, and the time of unpacking "
                "is missing"
            )


def _is_on(said: Mapping[str, str], switch: str) -> bool:
    return said[switch] == "lora" if switch == "finetuning-type" else is_set(said, switch)
