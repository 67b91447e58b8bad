"""What does a machine's description predict for each question? A value, with a 95% interval if there is one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from calibration.blind.questions import (
    DECODER,
    GPT2,
    LLAMA,
    LORA_DECODER,
    MEGATRON,
    MICRO_BATCHES,
    TITAN,
    BlindQuestion,
    BlindTraining,
    QuestionKind,
    megatron_overrides,
)
from calibration.measure.ddp_steps import StepPrecision
from calibration.measure.machine_record import AnswerRow
from sim.cluster import kernels
from sim.cluster.gpu import layer_time
from sim.cluster.kernels import ProductShape
from sim.spec.hardware import Gpu, Node
from sim.spec.layer import Attention
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.stack import Stack

STACK: Final = "torch-2.11-ddp"
DECODER_STACK: Final = "hf-transformers"
"""Stacks of the measured machines: PyTorch 2.11, and transformers 5 on top of it."""
TITAN_STACK: Final = "torchtitan-0.2"
"""Stack of torchtitan's decoders."""
MEGATRON_STACK: Final = "megatron-core"
"""Stack of Megatron-Core's decoders."""
LOSS_STACK: Final = "nemo"
"""Stack with their loss, Transformer Engine's."""
TRACED_MODELS: Final = {LLAMA: "workloads/models/sources/llama.py:Llama"}
"""The model to trace in place of one that is built on the GPU."""


class BlindPrediction(NamedTuple):
    """A value predicted from a description, with its 95% interval if it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def predict_answer(question: BlindQuestion, machine: str) -> BlindPrediction | None:
    """Return the prediction for *question* from the description of *machine*; None if there is none."""
    if question.training is not None:
        return _training(question.training, machine, question.kind)
    assert question.request is not None
    time = _KERNEL_TIMES[question.kind](question.request, _node(machine))
    return None if time is None else BlindPrediction(time)


def _node(machine: str) -> Node:
    return load_hardware(machine).spec.groups[0].node


@lru_cache(maxsize=64)
def _document(run: BlindTraining, machine: str) -> dict[str, Any]:
    """Return the simulator's document of *run*: synthetic input, one GPU."""
    from calibration.machines.layer_factors import trace_model
    from sim.api import simulate
    from sim.extract.table import write

    if run.model.startswith(TITAN):
        return _titan_document(run, machine)
    if run.model.startswith(MEGATRON):
        return _megatron_document(run, machine)
    stack = DECODER_STACK if run.model in (DECODER, GPT2, LORA_DECODER) else STACK
    options: dict[str, Any] = {"batch": run.batch, "precision": run.precision, "stack": stack}
    optimizer = "adam" if run.optimizer == "adamw" else run.optimizer
    overrides: dict[str, Any] = {"input.loader": "synthetic", "training.optimizer.name": optimizer}
    if run.precision == "fp32":
        overrides["training.stack.fp32_convolution"] = "fp32"
    if run.model == LORA_DECODER:
        overrides["model.lora.rank"] = run.arguments[-1].removeprefix("rank=")
    if run.workload:
        overrides |= {"model.sequence": run.sequence} if run.sequence else {}
        return simulate(machine, run.workload, overrides=overrides, **options).document
    table = trace_model(TRACED_MODELS.get(run.model, run.model), run.inputs, run.arguments)
    with tempfile.TemporaryDirectory() as folder:
        layers, workload = Path(folder) / "layers.yaml", Path(folder) / "workload.yaml"
        write(table, layers)
        workload.write_text(f"{{name: {run.name}, model: {layers}, dataset: synthetic-images, training: {{batch: 1, stack: flat}}}}\n")
        return simulate(machine, workload, overrides=overrides, **options).document


def _titan_document(run: BlindTraining, machine: str) -> dict[str, Any]:
    """Return the simulator's document of *run*, a decoder that torchtitan trains."""
    from stallsim import run as simulate

    overrides: dict[str, Any] = {"input.loader": "synthetic", "model.sequence": run.sequence}
    overrides["model.transformer.layers"] = int(run.settings["layers"])
    if run.settings["recompute"] == "full":
        overrides["training.activation_checkpointing"] = "blocks"
    if run.settings["recipe"]:
        overrides["training.fp8_recipe"] = run.settings["recipe"]
    options: dict[str, Any] = {"batch": run.batch, "precision": run.precision, "stack": TITAN_STACK, "parallel": {"shard": "parameters"}}
    document: dict[str, Any] = simulate(machine, run.workload, overrides=overrides, **options).document
    return document


def _megatron_document(run: BlindTraining, machine: str) -> dict[str, Any]:
    """Return the simulator's document of *run*, a decoder that Megatron-Core trains with the distributed optimizer over one rank."""
    from stallsim import run as simulate

    loss = load_part(Stack, LOSS_STACK).kernels.operator_traffic["loss"]
    overrides = {"input.loader": "synthetic", "training.stack.operator_traffic.loss": loss} | megatron_overrides(run)
    if run.settings["recipe"]:
        overrides["training.fp8_recipe"] = run.settings["recipe"]
    options: dict[str, Any] = {"batch": run.batch, "micro_batches": MICRO_BATCHES, "precision": run.precision, "stack": MEGATRON_STACK}
    document: dict[str, Any] = simulate(machine, run.workload, overrides=overrides, parallel={"shard": "optimizer"}, **options).document
    return document


def _training(run: BlindTraining, machine: str, kind: QuestionKind) -> BlindPrediction:
    document = _document(run, machine)
    if kind == "memory":  # as max_memory_allocated counts, without the context
        memory = document["gpu_memory_bytes"]
        return BlindPrediction(memory.get("allocated", memory["total"] - memory["context"]))
    if kind == "power":
        return BlindPrediction(document["energy"]["gpu_power_w"])
    share = document["expected_error"]["measured_over_predicted_95"]
    step = document["step_time_s"]
    return BlindPrediction(step, step * share["low"], step * share["high"])


def _product(row: AnswerRow, node: Node) -> float | None:
    rows, columns, depth = row["shape"]
    if kernels.kernels_of(node.gpu, row["precision"]) is None:
        return _layer(node.gpu, "fp32", rows, "torch.nn:Linear", (str(depth),), in_features=depth, out_features=columns, bias=False)
    return kernels.product_time(node.gpu, row["precision"], ProductShape(rows, columns, depth), burst=True) + node.gpu.kernel_time


def _attention(row: AnswerRow, node: Node) -> float:
    heads, kv_heads, tokens, size = row["shape"]
    shape = Attention(heads=heads, kv_heads=kv_heads, head_dim=size, queries=tokens, keys=tokens, causal=row["causal"])
    ways = (False, True) if row["way"] == "both" else (False,)
    kernel = {"flash": "flash2", "cudnn": "cudnn"}.get(row.get("kernel", ""), load_part(Stack, STACK).kernels.attention_kernel)
    return sum(kernels.attention_time(node.gpu, row["precision"], shape, 1, way, kernel, burst=True) + node.gpu.kernel_time for way in ways)


def _experts(row: AnswerRow, node: Node) -> float:
    experts, rows, columns, depth = row["shape"]
    shapes = ((rows, columns, depth), (rows, depth, columns), (columns, depth, rows))
    products = shapes if row["way"] == "both" else shapes[:1]
    return sum(
        kernels.product_time(node.gpu, "bf16", ProductShape(*shape, experts), burst=True) + node.gpu.kernel_time for shape in products
    )


def _convolution(row: AnswerRow, node: Node) -> float:
    batch, inputs, outputs, edge, window, stride, groups = row["shape"]
    settings = {"in_channels": inputs, "out_channels": outputs, "kernel_size": window, "stride": stride, "padding": window // 2}
    shape = (f"{inputs}x{edge}x{edge}",)
    return _layer(node.gpu, row["precision"], batch, "torch.nn:Conv2d", shape, **settings, groups=groups, bias=False)


def _layer(gpu: Gpu, precision: StepPrecision, batch: int, target: str, inputs: tuple[str, ...], **arguments: Any) -> float:
    """Return the seconds of the forward pass of one layer."""
    from calibration.machines.layer_factors import full_precision, trace_model

    model = trace_model(target, inputs, tuple(f"{name}={value}" for name, value in arguments.items()))
    layer = next(layer for layer in model.layers if layer.forward)
    stack = full_precision(load_part(Stack, STACK))
    return layer_time(layer, gpu, precision, stack, batch).time


def _pass(row: AnswerRow, node: Node) -> float:
    gpu = node.gpu
    time = kernels.elementwise_time(row["bytes"], gpu) if gpu.kernels else row["bytes"] / gpu.memory_bandwidth / gpu.memory_efficiency
    return time + gpu.kernel_time


def _launch(row: AnswerRow, node: Node) -> float:
    if row["clock"] == "device":
        return node.gpu.kernel_time
    return load_part(Stack, STACK).kernels.launch_cpu / node.host.cpu.launching


def _copy(row: AnswerRow, node: Node) -> float | None:
    if row["host"] == "pageable":
        return None
    link = node.topology.pcie
    return float(row["bytes"] / (link.bandwidth * link.efficiency))


def _picture(row: AnswerRow, node: Node) -> float | None:
    """Return the seconds per picture with the row's workers, based on ImageNet, whose pictures resemble those of the probe."""
    host = node.host
    busy = min(row["workers"], host.physical_cores)
    threads = min(max(row["workers"] - host.physical_cores, 0), host.vcpus - host.physical_cores)
    gain = (host.cpu.smt_gain - 1.0) * threads
    return float(load_workload("resnet50").spec.dataset.prep / host.cpu.speed / (busy + gain))


_KERNEL_TIMES: Final[dict[QuestionKind, Callable[[AnswerRow, Node], float | None]]] = {
    "product": _product,
    "convolution": _convolution,
    "attention": _attention,
    "pass": _pass,
    "launch": _launch,
    "copy": _copy,
    "loader": _picture,
    "experts": _experts,
}
