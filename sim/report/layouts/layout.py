"""How is a run with a layout reported? Its JSON document, its text, and the verdict: the longest wait, with its axis and link."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sim import __version__
from sim.analysis.cost import Market, job_price
from sim.causes import BRIEF
from sim.events import LAYOUT_STALLS, Cause
from sim.mesh import LayoutRun
from sim.parallel.checkpointing import checkpointed_share, recomputed_pieces
from sim.parallel.routing import dropped_share
from sim.parallel.wraps import TORCHS_SIZE
from sim.report.assumed_network import network_assumption, network_figures
from sim.report.energy import energy_text, epoch_tokens, with_energy
from sim.report.inputs import values_of
from sim.report.kinds import sample_tokens
from sim.report.layouts.layout_error import expected_layout_error
from sim.report.layouts.memory_error import memory_error, memory_error_text
from sim.report.pretraining import pretraining_document, pretraining_lines
from sim.report.prices import date_of, market_assumptions, missing_price, paid_text, source_of
from sim.report.saving import saved_text
from sim.report.table import basis_lines, error_lines, stall_lines
from sim.report.verdict import adapter_assumptions, kernel_assumptions, machine_notes
from sim.report.whole_job import job_of_run, job_time, whole_job_text
from sim.simulate import steps_per_epoch
from sim.spec.decoder import model_flop
from sim.spec.parallel import SLOTTED
from sim.study.layout import LayoutAnswer
from sim.training.layouts.loader import count_loading, readers_of
from sim.training.layouts.scene import BESIDE
from sim.training.layouts.stream import download_of, first_batch_time
from sim.units import dollars, pluralized, rate_text, rounded_dollars, show

SCHEMA = 1
NOTEWORTHY = 0.02
"""Smallest wait that gets a sentence, as a share of the step."""
MUCH_EXPOSED: Final = 0.05
"""Share of the step spent waiting for experts from which it is said that no work hides their messages: the median error of a step is 7%
(docs/trust/transformers.md), so less changes no choice."""
_NAMED = 3
"""Maximum number of modules that FSDP gathers which are named."""
_AXES = {
    "data": "data-parallel gradient reduction",
    "shard": "gathering and scattering of shards",
    "tensor": "tensor-parallel messages",
    "pipeline": "pipeline bubble and messages",
    "context": "context-parallel messages",
    "expert": "expert dispatch and combine",
    "norm": "gradient norm",
}


def layout_document(answer: LayoutAnswer) -> dict[str, Any]:
    """Return the document of one run with a layout: the keys of a data-parallel run, and keys that only layouts have."""
    run, workload = answer.run, answer.run.workload
    training, mesh = workload.training, run.mesh
    tokens = _tokens(run)
    price = _price(run, answer.market)
    steps = steps_per_epoch(workload, run.global_batch)
    epoch = steps * run.step_time
    stalls = {cause.value: run.stalls[cause] for cause in LAYOUT_STALLS}
    fullest = max(run.memory, key=lambda stage: stage.total)
    cost = None if price is None else price * epoch
    document = {
        "schema": SCHEMA,
        "hardware": run.hardware.name,
        "workload": workload.name,
        "stack": training.stack.name,
        "nodes": run.nodes,
        "gpus": run.gpus,
        "batch_per_gpu": training.batch,
        "precision": training.precision,
        "parallel": {**_layout_values(run), "data": mesh.data},
        "replicas": run.replicas,
        "micro_batches": run.layout.micro_batches,
        "global_batch": run.global_batch,
        "activation_checkpointing": training.activation_checkpointing,
        "step_time_s": run.step_time,
        "throughput_samples_per_s": run.throughput,
        "tokens_per_s": None if tokens is None else tokens / run.step_time,
        "tokens_per_s_per_gpu": None if tokens is None else tokens / run.step_time / run.gpus,
        "model_flops_utilization": run.model_flops_utilization,
        "hardware_flops_utilization": _hardware_utilization(run),
        "epoch_time_s": epoch,
        "cost_per_epoch_usd": cost,
        "cost_per_token_usd": None if price is None or not tokens else price * run.step_time / tokens,
        "price": _price_block(answer, price),
        "stalls_s": stalls,
        "exposed_by_group_s": dict(run.exposed),
        "first_epoch": {"step_time_s": run.step_time, "epoch_time_s": epoch, "stalls_s": stalls, "cost_usd": cost},
        "gpu_memory_bytes": fullest.by_use(),
        "memory_by_stage": [
            {"stage": stage.stage, "peak_bytes": stage.allocated, **stage.by_use(), "verdict": stage.verdict(run.node.gpu)}
            for stage in run.memory
        ],
        "memory_verdict": run.memory_verdict,
        "memory_expected_error": memory_error(run.layout.options.framework),
        "verdict": verdict(run),
        "expected_error": expected_layout_error(run),
        "whole_job": None,
        "pretraining": pretraining_document(answer.parts, price),
        "collective": None,
        "step_time_half_width_s": run.half_width,
        **network_figures(run.hardware, run.nodes),
        "assumptions": [*_assumptions(run), *network_assumption(run.hardware, run.nodes), *market_assumptions(answer.market)],
        "warnings": [*answer.warnings, *missing_price(run.hardware, answer.market, price)],
        "seed": run.seed,
        "version": __version__,
        "inputs_sha256": dict(answer.inputs),
        "inputs": values_of(run.hardware, workload),
    }
    document["whole_job"] = job_of_run(answer.plan, document, run.hardware, workload)
    return with_energy(document, run.hardware, workload)


def _price_block(answer: LayoutAnswer, price: float | None) -> dict[str, Any]:
    """Return *price* (USD/s of all nodes) with its market, date, region and source."""
    own = answer.run.hardware.first_workers.price
    return {
        "market": answer.market,
        "usd_per_h": None if price is None else 3600 * price,
        "date": None if own is None else date_of(own, answer.market),
        "region": (own.region or None) if own else None,
        "source": None if own is None else source_of(own, answer.market),
    }


def _layout_values(run: LayoutRun) -> dict[str, Any]:
    own = run.mesh.parallel
    values = own.model_dump(mode="json")
    return {**values, "sequence": own.sequence_parallel, "schedule": run.layout.schedule if own.pipeline > 1 else None}


def _tokens(run: LayoutRun) -> float | None:
    """Return the tokens of one step; None for models without sequences."""
    tokens = run.workload.tokens_per_sample
    return None if tokens is None else float(tokens) * run.global_batch


def _price(run: LayoutRun, market: Market) -> float | None:
    """Return the price of all nodes (USD/s); None if unknown."""
    each = {node: run.mesh.gpus_per_node for node in range(run.nodes)}
    return job_price(run.hardware, each, each, market)


def _hardware_utilization(run: LayoutRun) -> float | None:
    """Return the utilization including recomputation: attention scores in backward, and activations that checkpointing drops."""
    if run.model_flops_utilization is None:
        return None
    training, units = run.workload.training, run.layout.units
    share = sum(sum(piece.layer.forward * part for piece, part in recomputed_pieces(training, unit)) for unit in units)
    share *= checkpointed_share(training, units, run.mesh.stages)
    layers = [piece.layer for unit in units for piece in unit.pieces]
    done, required = share + sum(layer.forward + layer.backward for layer in layers), model_flop(layers)
    return run.model_flops_utilization * done / required if required else run.model_flops_utilization


def waits(run: LayoutRun) -> list[tuple[Cause, str, float]]:
    """Return the waits of ranks, averaged over ranks, longest first, equal ones by name: (cause, resource, seconds of a step)."""
    sums: dict[tuple[Cause, str], float] = defaultdict(float)
    for stage in run.played.stages:
        for (cause, resource), seconds in stage.resources.items():
            sums[cause, resource] += seconds / run.mesh.stages
    rows = ((cause, resource, seconds) for (cause, resource), seconds in sums.items())
    return sorted(rows, key=lambda row: (-round(row[2] / run.step_time, 9), row[0].value, row[1]))  # sums differ in their last digits


def verdict(run: LayoutRun) -> str:
    """Return one or two sentences on where the step goes: compute, and the largest wait with its axis and link."""
    step = run.step_time
    busy = run.stalls[Cause.COMPUTE] / step
    longest = next(((cause, resource, seconds) for cause, resource, seconds in waits(run) if cause != Cause.COMPUTE), None)
    if longest is None or longest[2] < NOTEWORTHY * step:
        return f"Compute-bound: GPUs are busy {100 * busy:.0f}% of each step{_slowed(run)}."
    cause, resource, seconds = longest
    if cause == Cause.PIPELINE:
        return f"GPUs are busy {100 * busy:.0f}% of each step. {_bubble(run, seconds)}"
    awaited = "the copy of samples to the GPU" if cause == Cause.COPY else resource
    return f"GPUs are busy {100 * busy:.0f}% of each step; the longest wait is {100 * seconds / step:.0f}%, for {awaited}."


def _slowed(run: LayoutRun) -> str:
    """Return how much longer compute takes because collectives use the same GPUs; empty if that is not noteworthy."""
    rows = [(resource, seconds) for cause, resource, seconds in waits(run) if cause == Cause.COMPUTE and resource.startswith(BESIDE)]
    seconds = sum(each for _, each in rows)
    if seconds < NOTEWORTHY * run.step_time:
        return ""
    return f", of which {100 * seconds / run.step_time:.0f}% is lost because compute is {rows[0][0]}"


def _bubble(run: LayoutRun, seconds: float) -> str:
    """Return a sentence on the bubble; with equal stages in slots, of which a step has m + p - 1 (arXiv 2104.04473, 2.2)."""
    share = f"The pipeline bubble takes {100 * seconds / run.step_time:.0f}%"
    busy = [stage.stalls[Cause.COMPUTE] for stage in run.played.stages]
    mean = math.fsum(busy) / len(busy)
    longest = max(range(len(busy)), key=busy.__getitem__)
    if busy[longest] - mean > NOTEWORTHY * run.step_time:
        return f"{share}; stages are unequal: stage {longest} computes {100 * (busy[longest] / mean - 1):.0f}% longer than the mean stage."
    stages, steps = run.mesh.stages, run.layout.micro_batches
    each = f"{steps:,} micro-batch{'es' * (steps != 1)}"
    if run.layout.schedule not in SLOTTED:
        return f"{share} with {stages} stages and {each} ({run.layout.schedule}); more micro-batches shrink it."
    slots = stages - 1 + steps * run.mesh.parallel.chunks
    shrinks = "more micro-batches" if run.layout.schedule == "gpipe" else "more micro-batches or virtual stages"
    return f"{share} ({stages - 1} of {slots} slots with {stages} stages and {each}); {shrinks} shrink it."


def _attention_counted(run: LayoutRun) -> str:
    """Return which part of attention is in the model's FLOP."""
    shapes = [layer.attention for layer in run.workload.model.layers if layer.attention is not None]
    local = [shape for shape in shapes if shape.window]
    causal = all(shape.causal for shape in shapes)
    everything = "half of causal attention" if causal else "all of attention both ways"
    if not local:
        return everything
    kind = f"{'chunks' if local[0].chunked else 'windows'} of {local[0].window:,} tokens{'' if causal else ' on either side'}"
    if len(local) == len(shapes):
        return f"{'causal attention' if causal else 'attention'} inside {kind}"
    return f"{everything}, in {kind} where layers have them,"


def _assumptions(run: LayoutRun) -> list[str]:
    training = run.workload.training
    sentences = [
        f"software stack {training.stack.name}, {training.precision}, {_recomputing(run)}",
        *adapter_assumptions(run.workload.model),
        _loading(run),
        f"model FLOPS utilization counts {_attention_counted(run)} and no recomputation, relative to the dense 16-bit peak",
        *kernel_assumptions((run.node,), run.workload),
        *machine_notes(run.hardware),
        *_reads_apart(run),
    ]
    mesh, sharded = training.stack.mesh, run.mesh.parallel.shard
    if mesh is not None and mesh.framework == "megatron" and sharded in ("gradients", "parameters"):
        sentences.append(f"{sharded} are sharded as by Megatron-FSDP (--use-megatron-fsdp --data-parallel-sharding-strategy ...)")
    if (wraps := wraps_text(run)) is not None:
        sentences.append(wraps)
    if run.half_width is not None:
        percent = 100 * run.half_width / run.step_time
        sentences.append(
            f"{len(run.played.drawn_times)} steps are drawn at random (seed {run.seed}); the 95% interval of their mean is ±{percent:.2g}%"
        )
    if run.mesh.parallel.expert > 1 and run.mesh.parallel.expert_imbalance == 1.0:
        sentences.append("tokens are spread evenly over experts (--set training.parallel.expert_imbalance=1.2)")
    sentences += _exposed_experts(run)
    if training.optimizer.name == "muon" and run.mesh.group_size("shard") > 1 and run.mesh.parallel.shard != "none":
        sentences.append("Muon's gather of sharded matrices between ranks is not simulated")
    if (share := dropped_share(run.mesh.parallel)) > 0:
        sentences.append(f"experts drop {100 * share:.3g}% of the tokens that are routed to them (capacity_factor)")
    return sentences


def _exposed_experts(run: LayoutRun) -> list[str]:
    """Return a sentence on what dispatch of experts is hidden behind, if compute waits for much of it and the stack hides none."""
    mesh, own = run.workload.training.stack.mesh, run.mesh.parallel
    if mesh is None or mesh.expert_overlap or run.layout.runs_pairs or run.exposed.get("expert", 0.0) < MUCH_EXPOSED * run.step_time:
        return []
    pairs = (
        "; this stack runs the forward and backward of dualpipev's pairs one after the other, so it hides none, either "
        "(--set training.stack.mesh.paired_schedules=[dualpipev])"
        if own.pipeline > 1 and run.layout.schedule == "dualpipev"
        else ""
    )
    return [f"no other work hides expert dispatch and combine (--set training.stack.mesh.expert_overlap=50%){pairs}"]


_RECOMPUTED: Final = {
    "selective": "attention recomputed",
    "operators": "activations recomputed except attention and every second matrix product",
}
"""What backward recomputes, by ``activation_checkpointing``; for blocks see `_recomputing`."""


def _recomputing(run: LayoutRun) -> str:
    """Return what backward recomputes, in words."""
    training = run.workload.training
    if training.activation_checkpointing == "blocks":
        blocks = pluralized(training.recompute_blocks, "block") if training.recompute_blocks else "all blocks"
        saves = f", outputs of {', '.join(training.recompute_saves)} saved" if training.recompute_saves else ""
        return f"activations of {blocks} recomputed{saves}"
    if (words := _RECOMPUTED.get(training.activation_checkpointing)) is not None:
        return words
    again = any(recomputed_pieces(training, unit) for unit in run.layout.units)
    return "activations recomputed as set by the model's code or its stack" if again else "no activations recomputed"


def _loading(run: LayoutRun) -> str:
    """Return how samples reach the ranks that hold the beginning of the model, in words."""
    options = run.workload.input
    if options.loader == "synthetic":
        return "samples are always ready on the GPU: input is synthetic"
    if run.node.storage is None:
        return "samples are always ready: the node description has no storage"
    if not options.num_workers:
        return "each rank waits while it reads and prepares its own samples"
    built = options.num_workers * options.prefetch_factor
    if options.stream is not None:
        first = show(first_batch(run), "time")
        named = f"{options.stream.library} from {options.stream.store.name}"
        return f"samples are streamed ({named}): {pluralized(options.num_workers, 'worker')} per rank; first micro-batch after {first}"
    return f"the loader of each rank: {pluralized(options.num_workers, 'worker')}, at most {built} micro-batches ahead"


def _reads_apart(run: LayoutRun) -> list[str]:
    """Return the assumption that samples which arrive through the NICs do not delay messages between nodes."""
    storage, options = run.node.storage, run.workload.input
    if run.nodes == 1 or options.loader == "synthetic" or storage is None or not (options.stream or storage.volume.over_network):
        return []
    return ["samples that arrive through the NICs do not slow messages between nodes"]


def first_batch(run: LayoutRun) -> float:
    """Return the seconds until the first streamed micro-batch has arrived."""
    stream, workers, readers = run.workload.input.stream, run.workload.input.num_workers, readers_of(run.mesh)
    assert stream is not None
    nodes, ranks = count_loading(run.mesh)
    return first_batch_time(stream, download_of(stream, run.node, nodes, readers, ranks, workers), run.workload, readers, workers)


def layout_words(document: Mapping[str, Any]) -> str | None:
    """Return the layout of a run with its batches and stack in words; None if the run has no layout."""
    if "parallel" not in document:
        return None
    batches = f"{document['micro_batches']} x {document['batch_per_gpu']}"
    recomputes = document["activation_checkpointing"]
    return (
        f"{layout_name(document)}, {batches}{'' if recomputes in ('none', 'model') else f', {recomputes} recomputed'} [{document['stack']}]"
    )


def layout_name(document: Mapping[str, Any]) -> str:
    """Return the name of a layout, such as ``tensor 8, pipeline 4 (1f1b), data 2 (fully sharded)``."""
    own = document["parallel"]
    parts = []
    if own["tensor"] > 1:
        parts.append(f"tensor {own['tensor']}{' + sequence' if own['sequence'] else ''}")
    if own["context"] > 1:
        parts.append(f"context {own['context']}")
    if own["pipeline"] > 1:
        virtual = f" x {own['virtual_stages']}" if own["virtual_stages"] > 1 else ""
        parts.append(f"pipeline {own['pipeline']}{virtual} ({own['schedule']})")
    if own["expert"] > 1:
        parts.append(f"expert {own['expert']}")
    sharding = {"none": "", "optimizer": " (optimizer sharded)", "gradients": " (gradients sharded)", "parameters": " (fully sharded)"}
    parts.append(f"data {own['data']}{sharding[own['shard']]}")
    if own["replicate"] > 1:
        parts.append(f"{own['replicate']} replicas")
    return ", ".join(parts)


def layout_text(run: LayoutRun, document: Mapping[str, Any], verbose: bool = False) -> str:
    """Return *document* of *run* as text for a terminal; *verbose* adds every resource that was waited for."""
    gpu, step = run.node.gpu, document["step_time_s"]
    nodes = pluralized(document["nodes"], "node")
    micro = f"{document['micro_batches']:,} micro-batch{'es' * (document['micro_batches'] != 1)} of {document['batch_per_gpu']:,}"
    tokens = f", {pluralized(tokens, 'token')} per sample" if (tokens := sample_tokens(document)) else ""
    lines = [
        f"{document['workload']} on {document['hardware']}: {document['gpus']:,} x {gpu.name}, {nodes}, {document['precision']}, "
        f"{document['stack']}",
        f"  layout: {layout_name(document)}; {micro}, global batch {document['global_batch']:,}{tokens}",
        "",
        f"  step {show(step, 'time')}   {_rates(document)}",
        "",
    ]
    lines += [*stall_lines(document, BRIEF), "", f"  {document['verdict']}"]
    exposed = [(name, seconds) for name, seconds in document["exposed_by_group_s"].items() if seconds > 1e-9]
    if exposed:
        shown = ", ".join(f"{_AXES[name]} {show(seconds, 'time')}" for name, seconds in sorted(exposed, key=lambda row: -row[1]))
        lines.append(f"  Exposed: {shown}")
    lines += ["", *_memory_lines(document, gpu.memory)]
    if document["cost_per_token_usd"] is not None:
        lines.append(f"  cost: ${dollars(1e6 * document['cost_per_token_usd'])} per million tokens")
    lines += [f"  {line}" for line in paid_text(document["price"], run.gpus, run.gpus < run.nodes * run.node.gpu_count)]
    if document["energy"] is not None:
        lines.append(f"  {energy_text(document['energy'], epoch_tokens(document), job=document['whole_job'])}")
    if "checkpoint" in document:
        lines.append(f"  {saved_text(document)}")
    if document["whole_job"] is not None:
        lines.append(f"  {whole_job_text(document['whole_job'])}")
    if document["pretraining"]:
        lines += pretraining_lines(document["pretraining"])
    lines += error_lines(document)
    if verbose:
        lines += ["", "  waited for, in a step:"]
        lines += [f"    {show(seconds, 'time'):>10}  {cause.value:12}  {resource}" for cause, resource, seconds in waits(run)]
    lines += ["", *basis_lines(document)]
    return "\n".join(lines)


def _rates(document: Mapping[str, Any]) -> str:
    if document["tokens_per_s"] is None:
        return f"{rate_text(document['throughput_samples_per_s'])} samples/s"
    parts = [f"{document['tokens_per_s']:,.0f} tokens/s", f"{document['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU"]
    if document["model_flops_utilization"] is not None:
        parts.append(f"MFU {100 * document['model_flops_utilization']:.1f}%")
    if (document["hardware_flops_utilization"] or 0.0) > 1.01 * (document["model_flops_utilization"] or 0.0):
        parts.append(f"HFU {100 * document['hardware_flops_utilization']:.1f}%")
    return "   ".join(parts)


MEMORY_USES = (
    "weights", "gradients", "optimizer_state", "activations", "gathered", "workspace", "cached", "communication_buffers", "context",
)  # fmt: skip
"""What a GPU's memory holds; these sum to the total."""


def _memory_lines(document: Mapping[str, Any], memory: float) -> list[str]:
    stages = document["memory_by_stage"]
    words = {"fits": "fits", "thrashes": "nearly full", "does_not_fit": "does not fit"}
    error = memory_error_text(document["memory_expected_error"])
    lines = [f"  GPU memory of {memory / 2**30:.0f} GiB: {words[document['memory_verdict']]}; {error}"]
    many = len(stages) > 6
    for stage in [*stages[:3], *stages[-2:]] if many else stages:
        uses = ", ".join(f"{name.replace('_', ' ')} {stage[name] / 2**30:.1f}" for name in MEMORY_USES if stage[name] > 0.05 * 2**30)
        name = f"stage {stage['stage']:<3}" if len(stages) > 1 else "each GPU "
        if many and stage is stages[-2]:
            lines.append(f"    ... {len(stages) - 5} more (--json lists them)")
        lines.append(f"    {name} {stage['total'] / 2**30:6.1f} GiB  ({uses})")
    return lines


def layout_scaling_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of runs with different numbers of nodes; a row that cannot run contains the reason."""
    with_job = any(row.get("whole_job") for row in rows)
    head = f"{'nodes':>6} {'GPUs':>6} {'step':>10} {'tokens/s':>14} {'per GPU':>10} {'MFU':>7}"
    lines = [head + (f" {'whole job':>10} {'USD':>13}" if with_job else "") + "  largest wait"]
    for row in rows:
        if "infeasible" in row:
            lines.append(f"{row['nodes']:>6,} {row['gpus']:>6,}  {row['infeasible_briefly']}")
            continue
        wait = max((name for name in row["stalls_s"] if name != "compute"), key=lambda name: row["stalls_s"][name])
        total = row["tokens_per_s"] or row["throughput_samples_per_s"]
        used = row["model_flops_utilization"]
        job = _job_cells(row) if with_job else ""
        lines.append(
            f"{row['nodes']:>6,} {row['gpus']:>6,} {show(row['step_time_s'], 'time'):>10} {total:>14,.0f} {total / row['gpus']:>10,.0f} "
            f"{'-' if used is None else f'{100 * used:.1f}%':>7}{job}  {wait} {100 * row['stalls_s'][wait] / row['step_time_s']:.0f}%"
        )
    return "\n".join(lines)


def _job_cells(row: Mapping[str, Any]) -> str:
    job = row["whole_job"]
    cost = "-" if job["cost_usd"] is None else rounded_dollars(job["cost_usd"])
    return f" {job_time(job['time_s']):>10} {cost:>13}"


def flat_figures(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of *document* as one row: nested blocks by dotted key, without inputs, notes and detailed blocks."""
    row: dict[str, Any] = {}
    for key, value in document.items():
        if key in ("inputs", "inputs_sha256", "assumptions", "warnings", "memory_by_stage", "first_epoch", "price", "pretraining"):
            continue
        if isinstance(value, dict):
            row |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            row[key] = value
    return row


def wraps_text(run: LayoutRun) -> str | None:
    """Return what FSDP wraps if patterns or sizes decide it; None if the units are the model's numbered blocks."""
    sizes: dict[str, float] = defaultdict(float)
    for unit in run.layout.units:
        if unit.wraps is None:
            return None
        sizes[unit.wraps[-1] if unit.wraps else ""] += unit.elements + unit.expert_elements
    root = sizes.pop("", 0.0)
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)
    named = ", ".join(f"{name} ({_millions(sizes[name])})" for name in largest[:_NAMED])
    shown = named if len(largest) <= _NAMED else f"the largest {named}"
    rest = f"the root holds {_millions(root)}" if root else "the root holds none"
    modules = f"{pluralized(len(largest), 'module')}: {shown}; {rest}" if sizes else f"the root alone, {_millions(root)}"
    if run.mesh.parallel.wrap is None:
        why = f"no numbered blocks, so modules of {_millions(TORCHS_SIZE)} or more, like torch's size_based_auto_wrap_policy"
        return f"FSDP gathers {modules} ({why}; --wrap changes this)"
    return f"FSDP gathers {modules} parameters"


def _millions(elements: float) -> str:
    return f"{elements / 1e6:.3g} M"
