"""What does the simulator predict for a measured run? A `Case` as hardware and workload, and one simulated step (`sim.mesh.predict`).

A case is converted to a workload document: the shape, the layout, the stack of its source. Limits: a GPU without a described machine, or a
layout that the engine refuses, raises `SpecError`.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import yaml

from calibration import HARDWARE
from calibration.llm.case import SHARDED_FAMILIES, Case
from calibration.llm.chips import BEFORE_AMPERE, PRECISIONS, RACK, Chip
from calibration.llm.prediction import LlmPrediction, Memory
from calibration.llm.priors import BLOCK_OPERATORS, TENSOR_OPERATORS, Constants, defaults
from calibration.llm.words import is_float16
from sim.parallel.host_modules import DECODER_MODULES
from sim.spec.fields import Precision
from sim.spec.foreign.launch_megatron import DISPATCH_BLOCKS, PAIRED
from sim.spec.hardware import Hardware
from sim.spec.library import load, load_hardware
from sim.spec.parallel import SHARDS
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

if TYPE_CHECKING:
    from sim.analysis.layout_memory import StageMemory
    from sim.mesh import LayoutRun

PCIE_BOX: Final = "pcie-box"
"""The machine of GPUs that no machine of the catalog has: a server with eight slots and InfiniBand, whose rate is each row's. Rows of
data-parallel runs, for which host and disk count, have `catalog_names.PCIE_BOX`."""
_RECOMPUTE: Final = {"none": "none", "full": "blocks", "attention": "selective", "operators": "operators"}
EXPOSED_TENSOR: Final = 0.4
"""Part of tensor-parallel messages that stays exposed with user buffers or asynchronous tensor parallelism (workloads/stacks/nemo.yaml)."""
FP16_ACCUMULATION: Final = 6
"""Bytes per gradient that torch's ``AccumulateGrad`` moves in float16: two are read and their sum is written."""
FP16_STEP: Final = 6
"""Bytes per element of a rank's share that DeepSpeed's step in float16 needs: flattened gradients, and gradients in 32 bits."""
_AUTOCAST: Final[Mapping[Precision, Precision]] = {"bf16": "amp_bf16", "fp16": "amp_fp16"}
_AUTOCAST_STACK: Final = "hf-ddp"
"""The stack whose 32-bit weights autocast casts for each product."""
_PLAIN_STACKS: Final = ("torchtitan-2.x", "megatron-core")
"""Stacks that do not overlap tensor-parallel messages by default."""
_OF_LAYOUT: Final = ("parallel", "activation_checkpointing", "recompute_blocks", "recompute_modules", "recompute_saves")
"""Keys of a training that say nothing of a layer's time."""


def workload_document(case: Case) -> dict[str, Any]:
    """Return the workload of *case* as plain data."""
    parallel: dict[str, Any] = {
        "tensor": case.tensor,
        "pipeline": case.pipeline,
        "context": case.context,
        "context_exchange": case.context_exchange,
        "expert": case.expert,
        "virtual_stages": case.virtual_stages,
        "shard": SHARDS[case.zero],
        **({"replicate": case.replicas} if case.replicas > 1 else {}),
    }
    if case.layers_per_stage:
        parallel["layers_per_stage"] = list(case.layers_per_stage)
    if case.tensor > 1:
        parallel["sequence"] = case.sequence_parallel
    if case.family in SHARDED_FAMILIES and case.zero == 2:  # SHARD_GRAD_OP, reshard_after_forward=False: gathered until backward
        parallel |= {"shard": SHARDS[3], "reshard_after_forward": False}
    if case.drops_tokens:  # Megatron-Bridge training/utils/moe_token_drop.py, apply_moe_token_drop
        parallel |= {"capacity_factor": 1.0, "pad_to_capacity": True}
    model: dict[str, Any] = {"name": "measured", "transformer": case.shape.model_dump(exclude_none=True), "sequence": case.seq}
    if case.lora:
        model["lora"] = {"rank": 16, **({"targets": list(case.lora_targets)} if case.lora_targets else {})}
    if case.document_tokens:  # packing fills sequences, so only the length at which a token attends counts
        share = case.document_tokens / case.seq
        model |= {"padding": "packed", "lengths": {"mean": share, "square": share**2, "source": "a table of measured runs"}}
    precision: Precision = PRECISIONS[case.precision]
    if case.chip.generation in BEFORE_AMPERE or is_float16(case.row.text["precision"]):
        precision = "fp16"
    if case.stack == _AUTOCAST_STACK:
        precision = _AUTOCAST.get(precision, precision)
    return {
        "name": "measured",
        "model": {**model, "source": "a table of measured runs"},
        "training": {
            "batch": case.micro_batch,
            "gradient_accumulation_steps": case.micro_batches,
            "precision": precision,
            **({"fp8_recipe": case.stated_recipe} if case.stated_recipe and precision == "fp8" else {}),
            "optimizer": {"name": "adam"},
            "stack": case.stack,
            "activation_checkpointing": _RECOMPUTE[case.recompute],
            "recompute_blocks": case.recomputed_layers if case.recompute == "full" else 0,
            "recompute_modules": list(case.recomputed_modules),
            "recompute_saves": list(case.saved_layers),
            "parallel": parallel,
        },
    }


def practice_overrides(case: Case, constants: Constants) -> list[str]:
    """Return workload overrides for what the scripts of *case*'s source set beyond its stack's file; *constants* has the host times."""
    stack = "training.stack"
    overrides = {
        f"{stack}.mesh.one_copy": str(case.one_copy).lower(),
        f"{stack}.mesh.paired_schedules": f"[{', '.join(PAIRED)}]" if case.expert_overlap else "[]",
        f"{stack}.mesh.expert_blocks": f"{DISPATCH_BLOCKS['deepep']}" if case.expert_overlap and case.one_copy else "0",
        f"{stack}.mesh.collective_check": f"{constants['check.message'] * 1e6:g} us" if case.checks_collectives else "0 s",
        f"{stack}.cuda_graphs": str(case.is_tuned or case.uses_cuda_graphs).lower(),
    }
    overrides[f"{stack}.score_passes"] = f"{case.score_passes:g}"
    overrides |= {f"{stack}.mesh.{name}": str(fused).lower() for name, fused in case.fused.items()}
    if case.ring_latency:  # measured with large messages, which Simple carries
        overrides[f"{stack}.nccl_proto"] = "Simple"
    overrides[f"{stack}.launch_blocking"] = str(case.launch_blocking).lower()
    overrides |= _host_times(case, constants)
    if case.optimizer_states:  # Megatron's precision-aware optimizer, which takes gradients as they are
        overrides |= {f"{stack}.mesh.states": case.optimizer_states, f"{stack}.mesh.casts_gradients": "never"}
    if case.family in SHARDED_FAMILIES and not case.zero:  # DDP, whose callers skip all but the last reduction (karpathy/nanoGPT train.py)
        overrides[f"{stack}.no_sync"] = "true"
    if case.logit_bytes:
        overrides[f"{stack}.logit_bytes"] = f"{case.logit_bytes:g}"
    if case.activation_kept != 1.0 and case.precision != "16bit":
        overrides[f"{stack}.operator_memory.activation"] = f"{case.activation_kept:g}"
    if case.family == "deepspeed" and is_float16(case.row.text["precision"]):  # zero/stage_1_and_2.py, not bf16_optimizer.py
        overrides |= {f"{stack}.mesh.{name}": "fp16" for name in ("weights", "gradients", "reduction")}
        overrides |= {f"{stack}.mesh.gradients_wait": "false", f"{stack}.mesh.step_share_bytes": f"{FP16_STEP}"}
        overrides[f"{stack}.mesh.accumulation_bytes"] = f"{FP16_ACCUMULATION}"
    if not (case.tensor_overlap or case.is_tuned):
        overrides[f"{stack}.mesh.tensor_overlap"] = "0"
    elif case.stack in _PLAIN_STACKS:
        overrides[f"{stack}.mesh.tensor_overlap"] = f"{1 - EXPOSED_TENSOR}"
    return [f"{name}={value}" for name, value in overrides.items()]


def _host_times(case: Case, constants: Constants) -> dict[str, str]:
    """Return the overrides of the host's times for blocks, modules, messages and experts."""
    mesh = "training.stack.mesh"
    times = {}
    of_block = of_module = 0.0
    if case.runs_by_operator:
        of_block = constants["host.eager"]
        times[f"{mesh}.tensor_host"] = f"{of_block * TENSOR_OPERATORS / BLOCK_OPERATORS * 1e6:g} us"
    elif case.family == "megatron":
        of_module = constants["host"] / DECODER_MODULES
    elif case.launch_blocking:
        of_block = constants["host"]
    times |= {f"{mesh}.block_host": f"{of_block * 1e3:g} ms", f"{mesh}.module_host": f"{of_module * 1e3:g} ms"}
    if case.shape.experts:
        times[f"{mesh}.expert_host"] = f"{constants['host.experts'] * 1e3:g} ms"
    return times


def workload_of(case: Case, constants: Constants) -> Workload:
    """Return the workload of *case*, with the host times of its stack from *constants*. Raise SpecError if it is invalid."""
    return _loaded(workload_document(case), practice_overrides(case, constants))


def compute_workload(case: Case) -> Workload:
    """Return what *case* computes, without a layout: its layers and how its stack runs them."""
    document = workload_document(case)
    training = {name: value for name, value in document["training"].items() if name not in _OF_LAYOUT}
    return _loaded({**document, "training": training}, [f"training.stack.score_passes={case.score_passes:g}"])


def _loaded(document: Mapping[str, Any], overrides: Sequence[str]) -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.yaml"
        path.write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
        return load(Workload, path, overrides).spec


def hardware_of(case: Case) -> Hardware:
    """Return the machine of *case*, with its NICs. Raise SpecError if none is described.

    A GPU that no machine of the catalog has, and that PCIe joins, is in `PCIE_BOX`.
    """
    chip = case.chip
    replaced: tuple[str, ...] = ()
    if chip.machine:
        machine = _machine(case.row.text["node_type"].split(" ")[0], chip.name, case.domain, chip.machine)
    elif chip.part and chip.pcie:
        machine, replaced = PCIE_BOX, _own_gpu(chip)
    else:
        raise SpecError(f"{chip.name}: no machine in the catalog has it")
    if re.search(r"\btcp\b", case.row.text["network"], re.IGNORECASE):
        replaced = (*replaced, "node.nic.transport=tcp", "node.nic.gpudirect=false")
    joined = load_hardware(machine, library=HARDWARE).spec.groups[0].node.gpu_count
    needed = case.domain if case.domain >= RACK else max(case.domain, case.gpus_per_node)
    if needed > joined:
        raise SpecError(f"{machine}: has {joined} of the {needed} GPUs of a node")
    return _hardware(machine, case.nic, case.collective_latency, replaced)


def _own_gpu(chip: Chip) -> tuple[str, ...]:
    """Return the overrides that put *chip* into `PCIE_BOX`, on its generation of PCIe."""
    return (f"node.gpu={chip.part}", f"node.gpu.memory={chip.memory / 2**30:g} GiB", f"node.topology.pcie=pcie{chip.pcie}-x16")


@lru_cache(maxsize=256)
def _hardware(machine: str, nic: float, latency: float | None, replaced: tuple[str, ...]) -> Hardware:
    """Return *machine* with the overrides *replaced*, NICs of *nic* bytes/s per GPU and, if measured, a ring's latency per node."""
    node = load_hardware(machine, library=HARDWARE).spec.groups[0].node
    per_node = nic * node.gpu_count / node.nic.count
    overrides = [*replaced, f"node.nic.bandwidth={per_node * 8 / 1e9:g} Gbps"]
    if latency is not None:  # one more node adds a hop of the network and those inside the node
        inside = (node.gpu_count - 1) * node.over_nvlink.hop_latency if node.nvlink else 0.0
        overrides.append(f"node.nic.transport.hop_latency={max(0.0, latency - inside) * 1e6:g} us")
    return load_hardware(machine, overrides, HARDWARE).spec


@lru_cache(maxsize=256)
def _machine(named: str, gpu: str, domain: int, usual: str) -> str:
    """Return the catalog name of a machine: *named*, from ``node_type``, if it joins *domain* of this GPU; else the GPU's usual one."""
    try:
        node = load_hardware(named).spec.groups[0].node if named else None
    except SpecError:
        node = None
    return named if node and node.gpu.name == gpu and node.gpu_count >= domain else usual


def simulation_inputs(case: Case, constants: Constants) -> tuple[Hardware, Workload, tuple[int, int]]:
    """Return all that is simulated for *case*: machine, workload, and nodes and GPUs per node. Raise SpecError if it is invalid."""
    hardware = hardware_of(case)
    return hardware, workload_of(case, constants), _placement(case, hardware)


def simulate_case(case: Case, constants: Constants) -> LayoutRun:
    """Return the simulated step of *case* with its stack's host times from *constants*. Raise SpecError if the simulator refuses it."""
    from sim.mesh import predict as simulate

    hardware, workload, (nodes, gpus_per_node) = simulation_inputs(case, constants)
    return simulate(hardware, workload, nodes, gpus_per_node)


def _placement(case: Case, hardware: Hardware) -> tuple[int, int]:
    """Return the number of nodes of *case*, and of GPUs per node."""
    here = hardware.groups[0].node.gpu_count
    if case.domain < RACK and case.gpus_per_node <= here and case.gpus % case.gpus_per_node == 0 and case.gpus > case.gpus_per_node:
        return case.gpus // case.gpus_per_node, case.gpus_per_node
    gpus_per_node = next(count for count in range(min(here, case.gpus), 0, -1) if case.gpus % count == 0)
    return math.ceil(case.gpus / gpus_per_node), gpus_per_node


def memory_of(case: Case) -> Memory:
    """Return the simulator's prediction of the memory of *case*, without simulating its step. Raise SpecError if it is refused."""
    from sim.analysis.layout_memory import memory_by_stage, worst_verdict
    from sim.mesh import prepare

    hardware, workload = hardware_of(case), workload_of(case, defaults())  # host times do not affect memory
    nodes, gpus_per_node = _placement(case, hardware)
    gpu = hardware.groups[0].node.gpu
    stages = memory_by_stage(prepare(hardware, workload, gpus_per_node, nodes, check_deadlock=False), workload, gpu)
    return Memory(reported_memory(case, stages), worst_verdict(stages, gpu))


def memory_need(case: Case) -> Memory:
    """Return `memory_of` for *case*, computed once; unknown if it is refused."""
    if case not in _MEMORY_NEEDS:
        try:
            _MEMORY_NEEDS[case] = memory_of(case)
        except (SpecError, ValueError):
            _MEMORY_NEEDS[case] = Memory(math.nan, "unknown")
    return _MEMORY_NEEDS[case]


_MEMORY_NEEDS: Final[WeakKeyDictionary[Case, Memory]] = WeakKeyDictionary()


def reported_memory(case: Case, stages: Sequence[StageMemory]) -> float:
    """Return the memory (bytes) of the fullest of *stages*, or of the first, in the reading of the table of *case*."""
    reading: Mapping[str, Callable[[StageMemory], float]] = {
        "allocated": lambda stage: stage.allocated,
        "reserved": lambda stage: stage.reserved,
        "nvidia-smi": lambda stage: stage.of_gpu,
    }
    return max(map(reading[case.memory_reading], stages[:1] if case.memory_rank == "first" else stages))


def predict(case: Case, constants: Constants) -> LlmPrediction:
    """Return the simulator's prediction of *case*; of *constants*, it only uses host times, which stack files do not have."""
    run = simulate_case(case, constants)
    return LlmPrediction(run.step_time, reported_memory(case, run.memory), run.memory_verdict)
