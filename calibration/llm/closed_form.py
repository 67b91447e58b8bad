"""How long does a step take, by closed formulas? Layers, exposed communication, bubble and optimizer.

The method is Calculon's (arXiv 2305.04232) with fewer inputs: ranks of one stage are identical, and communication is exposed as far as
there is no compute to hide it. Layers take as long as measured kernels do (`calibration.llm.layer_times`); messages, routing and the
optimizer are bytes over a rate. Factors and rates are in `Constants`; all belong to hardware or to a software family, none to a model or a
source. Memory is the simulator's (`sim.analysis.layout_memory`).
Limits: one time for every micro-batch, no contention between groups, no skew between ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from calibration.llm.case import Case
from calibration.llm.chips import PRECISIONS
from calibration.llm.engine import memory_need
from calibration.llm.prediction import LlmPrediction
from calibration.llm.priors import BLOCK_OPERATORS, EXPOSED_EXPERTS, TENSOR_OPERATORS, Constants
from calibration.llm.weights import Weights, blocks_of_stages, stage_weights
from calibration.llm.wires import Wires
from calibration.llm.work import Passes, StepWork, total
from sim.parallel.collective_check import check_time
from sim.parallel.host_modules import DECODER_MODULES
from sim.parallel.layer_messages import entering_scan
from sim.parallel.lower.bucketed import slices_host_time
from sim.parallel.ring import MERGED_WIDTH, RankElements, Ring, engine_passes, ring_messages, ring_passes
from sim.parallel.routing import (
    BACKWARD_LAUNCHES,
    LATENT_LAUNCHES,
    bias_operations,
    cast_operations,
    expert_host_time,
    expert_operations,
)
from sim.parallel.stage_parts import copy_passes, part_gathers, sends_parts
from sim.spec.hardware import LAYOUT_HOST_SPEED
from sim.spec.parallel import Parallel
from sim.spec.stack.exchange import TORCH_BUCKET_CAP
from sim.spec.transformer import Transformer

FORWARD_COLLECTIVES: Final = 4
"""Tensor-parallel collectives of a block's forward: gathers before two products, reduce-scatters after two."""
GRAPHED_BLOCK: Final = 0.3
"""Part of a block's host time that remains if CUDA graphs replay its attention: estimate."""
BACKWARD_COLLECTIVES: Final = 6
"""The same for its backward: two inputs gathered again, two gradients gathered, two reduced (nanotron tensor_parallel/functional.py)."""
OVERLAPPED_GATHER_FAMILIES: Final = ("megatron", "fsdp1", "fsdp2", "jax", "llmc")
"""Families that gather updated parameters during the next forward; others do it before (nanotron optim/zero.py, DeepSpeed stage 1)."""
LATE_REDUCE_FAMILIES: Final = ("deepspeed", "megatron-2021")
"""Families that reduce gradients after the last backward, not during it (``overlap_gradients: false`` of workloads/stacks)."""
EARLY_STOP_FAMILIES: Final = ("jax",)
"""Families whose recomputation skips outputs that backward does not read (``early_stop`` of workloads/stacks/xla-fsdp.yaml)."""
ELEMENT_WIDTH: Final = 2.0
"""Bytes of an element of activations."""
COALESCED_FAMILIES: Final = ("nanotron",)
"""Families whose sharded optimizer reduces all gradients after the last backward, in one operation, and gathers all weights in one
(nanotron trainer.py, ``training_step``; optim/zero.py, ``_all_gather_params``)."""
TENSORS_OF_BLOCK: Final = 6
"""Parameter tensors of a Llama block in nanotron: q, k and v; output; gate and up; down; two norms (models/llama.py)."""
UNPAIRED_SEND_FAMILIES: Final = ("deepspeed",)
"""Families whose stages send and receive in four calls per micro-batch, with compute waiting for each (DeepSpeed runtime/pipe/schedule.py,
``TrainSchedule``; engine.py, ``_exec_send_activations`` and similar ones); Megatron-LM joins a send with the receive after it."""


def predict(case: Case, constants: Constants) -> LlmPrediction:
    """Return the predicted step of *case* with the constants *constants*, and its memory, which is the simulator's."""
    seconds, parts = step(case, constants)
    return LlmPrediction(seconds, memory_need(case).nbytes, memory_need(case).verdict, parts)


def step(case: Case, constants: Constants) -> tuple[float, Mapping[str, float]]:
    """Return the seconds of a step of *case* with the constants *constants*, and their parts."""
    work, wires = StepWork(case, constants), Wires(case, constants)
    weights = stage_weights(case)
    forward, backward, parts = _micro_batch(case, constants, work, wires, weights)
    blocks, with_head = blocks_of_stages(case)
    ends = [0.0] * len(blocks)
    ends[0] += work.ends["first"].both
    ends[with_head] += (1 + case.shape.prediction_layers) * work.ends["last"].both
    stages = [count / weights.layers * (forward + backward) + end for count, end in zip(blocks, ends, strict=True)]
    slowest = max(stages)
    once = sum(stages) - slowest
    sends = _sends(case, constants, wires)
    steady = case.micro_batches * (slowest + sends)
    bubble = once / case.virtual_stages * constants["ramp"] + (
        2 * sends * (case.pipeline - 1) / case.virtual_stages if case.pipeline > 1 else 0.0
    )
    exposed = _data_traffic(case, constants, wires, weights, forward, backward) + _tied(case, wires)
    update = _update(case, constants, work, weights)
    seconds = steady + bubble + exposed + update + constants["step"]
    of_ends = case.micro_batches * ends[stages.index(slowest)]
    return seconds, {**parts, "ends": of_ends, "bubble": bubble, "data": exposed, "optimizer": update}


def _micro_batch(case: Case, constants: Constants, work: StepWork, wires: Wires, weights: Weights) -> tuple[float, float, dict[str, float]]:
    """Return the seconds of a middle stage's forward and backward of one micro-batch, and the parts of a whole step."""
    layers, share = weights.layers, case.shape.share_of("E")
    products, core, plain = work.products, work.core, work.plain
    compute_forward, compute_backward = total(products, core, plain)
    tensor, context, experts = _layer_traffic(case, constants, wires, core)
    block = compute_forward + tensor / 2 - _saved_forward(case, work)
    recomputed = {"none": 0.0, "full": block, "attention": core.forward}.get(case.recompute, 0.5 * products.forward + plain.forward)
    recomputed += work.modules(case.recomputed_modules) + (share * experts / 2 if "moe" in case.recomputed_modules else 0.0)
    again = min(1.0, case.recomputed_layers / layers) if case.recomputed_layers else 1.0
    recomputed *= again
    host, check = _host(case, constants, work), _check(case, constants, case.tensor)
    message = _message_host(case, constants)
    host_forward = host + FORWARD_COLLECTIVES * message + share * _of_local_experts(case, backward=False)
    host_backward = BACKWARD_LAUNCHES * host + BACKWARD_COLLECTIVES * message + share * _of_local_experts(case, backward=True)
    routed_half = experts * share / 2
    counted = 0.0 if case.launch_blocking else routed_half / 2  # the host waits for the dispatch, whose counts it reads, or for everything
    beside = sum if case.launch_blocking else max
    one_forward = beside((compute_forward + routed_half, host_forward + counted)) + tensor / 2 + context / 3
    one_forward = max(one_forward, host_forward + FORWARD_COLLECTIVES * check)
    if not case.lora:
        compute_backward += constants["accumulate"] * weights.total / layers / work.bandwidth
    host_backward += again * (_checkpoint_host(case, constants, work) + (host_forward + counted if case.recompute == "full" else 0.0))
    one_backward = beside((compute_backward + recomputed + routed_half, host_backward))
    one_backward += tensor / 2 + 2 * context / 3
    one_backward = max(one_backward, host_backward + BACKWARD_COLLECTIVES * check)
    if case.zero == 3 and case.pipeline == 1:
        one_forward, one_backward = _sharded(case, constants, wires, weights, one_forward, one_backward)
    steps = case.micro_batches * layers
    parts = {
        "products": steps * products.both,
        "attention": steps * core.both,
        "elementwise": steps * plain.both,
        "recompute": steps * recomputed,
        "tensor": steps * tensor,
        "context": steps * context,
        "experts": steps * experts * share,
    }
    return layers * one_forward, layers * one_backward, parts


def _saved_forward(case: Case, work: StepWork) -> float:
    """Return the seconds of a recomputed block's forward that are not repeated: those of saved outputs and of an unread last product.

    Layers of experts save nothing here.
    """
    left = {*case.saved_layers, *(("feed.down",) if case.family in EARLY_STOP_FAMILIES else ())}
    return sum(map(work.layer, left))


def _layer_traffic(case: Case, constants: Constants, wires: Wires, core: Passes) -> tuple[float, float, float]:
    """Return the exposed seconds of one layer's tensor, context and expert traffic, forward and backward together."""
    shape = case.shape
    activations = 2.0 * case.micro_batch * case.seq / case.context * shape.hidden
    tensor = (
        _mixers(shape)
        / 2
        * (8 * wires.gather(activations, case.tensor, 1) * constants["exposed.tensor.overlap" if case.tensor_overlap else "exposed.tensor"])
    )
    context = _context_traffic(case, constants, wires, core) if case.context > 1 else 0.0
    if shape.pattern is not None:
        context = shape.share_of("*") * context + _scan_traffic(case, wires)
    experts = 0.0
    if shape.experts and case.expert > 1:
        routed = 2.0 * case.micro_batch * case.seq / case.context / case.tensor * shape.experts_per_token * shape.routed_width
        experts = 4 * wires.exchange(routed, case.expert, 1) + 2 * constants["sync.experts"]
        experts *= EXPOSED_EXPERTS if case.expert_overlap else 1.0
    return tensor, context, experts


def _context_traffic(case: Case, constants: Constants, wires: Wires, core: Passes) -> float:
    """Return the exposed seconds of one layer's exchange of keys and values over context ranks, forward and backward together."""
    shape, how = case.shape, case.torch_ring
    tokens = float(case.micro_batch) * case.seq / case.context / case.tensor
    repeated = shape.mla is not None or (how is not None and how.repeats_keys)
    own = RankElements(
        queries=tokens * shape.heads * shape.head_size,
        results=tokens * shape.heads * shape.value_size,
        keys=tokens * (shape.heads if repeated else shape.groups) * (shape.head_size + shape.value_size),
    )
    if how is not None:
        return _torch_ring(case, wires, own, how, core)
    if case.context_exchange == "all_gather":  # keys before both passes, and their gradients after
        return 3 * wires.gather(ELEMENT_WIDTH * own.keys * case.context, case.context, case.tensor)
    ring = (case.context - 1) * wires.turn(ELEMENT_WIDTH * own.keys, case.context, case.tensor)
    hidden = max(0.0, ring - core.forward) + max(0.0, 2 * ring - core.backward)
    moved = sum(engine_passes(own, case.context, ELEMENT_WIDTH, True, backward) for backward in (False, True))
    return hidden + constants["exposed.context"] * 3 * ring + moved / case.chip.memory_bandwidth


def _torch_ring(case: Case, wires: Wires, own: RankElements, how: Ring, core: Passes) -> float:
    """Return the seconds that torch's ring adds to a layer: passes, and messages that *core* seconds of attention do not hide."""
    added = 0.0
    for backward in (False, True):
        hideable = 0.0
        for message in ring_messages(MERGED_WIDTH * own.keys, case.context, how, backward):
            size = message.nbytes * ELEMENT_WIDTH / MERGED_WIDTH + message.wide
            one = wires.gather if message.op == "all_gather" else wires.turn
            seconds = message.times * one(size, case.context, case.tensor)
            hideable += seconds if message.overlaps else 0.0
            added += 0.0 if message.overlaps else seconds
        added += max(0.0, hideable - core[backward])
        added += ring_passes(own, case.context, ELEMENT_WIDTH, how, backward) / case.chip.memory_bandwidth
    return added


def _scan_traffic(case: Case, wires: Wires) -> float:
    """Return the seconds of one layer's exchanges around its scan over context ranks, forward and backward together."""
    mamba = case.shape.mamba
    if mamba is None or case.context == 1:
        return 0.0
    parallel = Parallel(tensor=case.tensor, context=case.context)
    of_element = 2.0 * case.micro_batch * case.seq / case.context / case.tensor
    widths = (*entering_scan(mamba, parallel), mamba.inner)
    return (
        2.0 * case.shape.share_of("M") * sum(wires.exchange(of_element * width, case.context, case.tensor, copies=1.0) for width in widths)
    )


def _host(case: Case, constants: Constants, work: StepWork) -> float:
    """Return the seconds that the host needs to launch one micro-batch's forward of a layer, without what it starts for each expert."""
    shape = case.shape
    if _runs_modules(case):
        block = _modules_host(case, constants, work) + _latent_launches(case)
    else:
        launched = GRAPHED_BLOCK if _graphed(case) else 1.0
        block = _mixers(shape) / 2 * constants["host.eager" if case.runs_by_operator else "host"] * launched
    return case.host_factor * (block + shape.share_of("E") * expert_host_time(constants["host.experts"], _graphed(case)))


def _graphed(case: Case) -> bool:
    """Return whether CUDA graphs replay a part of the blocks."""
    return case.is_tuned or case.uses_cuda_graphs


def _runs_modules(case: Case) -> bool:
    """Return whether the host runs Transformer Engine's modules one by one: Megatron without CUDA graphs."""
    return case.family == "megatron" and not case.runs_by_operator and not _graphed(case)


def _modules_host(case: Case, constants: Constants, work: StepWork, names: Sequence[str] | None = None) -> float:
    """Return the seconds that the host of a server with H100s needs for the modules of a layer's forward; *names*: those of these alone."""
    mesh, modules = case.stack_file.mesh, work.host_modules(names)
    quantized = mesh.quantize_host * modules.quantized if mesh is not None else 0.0
    return constants["host"] / DECODER_MODULES * modules.number + quantized


def _latent_launches(case: Case) -> float:
    """Return the seconds to launch what latent attention runs operator by operator in forward, on the host of a server with H100s."""
    options = case.mesh_options
    if case.shape.mla is None or options is None or options.fused_latents:
        return 0.0
    return LATENT_LAUNCHES[False] * case.stack_file.kernels.launch_cpu / LAYOUT_HOST_SPEED


def _checkpoint_host(case: Case, constants: Constants, work: StepWork) -> float:
    """Return the seconds that the host needs to recompute modules of a layer in backward, and to begin with each of them or the block."""
    mesh = case.stack_file.mesh
    if not _runs_modules(case) or mesh is None:
        return 0.0
    shape, names = case.shape, case.recomputed_modules
    experts, attention = shape.share_of("E"), 1.0 if shape.pattern is None else shape.share_of("*")
    named = (*names, *(("core_attn",) if case.recompute == "attention" else ()))
    seconds = _modules_host(case, constants, work, named) + (_latent_launches(case) if "mla_up_proj" in names else 0.0)
    each = {
        "moe": experts,
        "moe_act": experts,
        "mlp": 1.0 - experts,
        "layernorm": work.own_norms,
        "mla_up_proj": float(shape.mla is not None),
    }
    count = sum(share for name, share in each.items() if name in names)
    count += {"none": 0.0, "full": 1.0, "attention": attention}.get(case.recompute, 1.0)
    return case.host_factor * (seconds + mesh.checkpoint_host * count)


def _mixers(shape: Transformer) -> int:
    """Return what a layer consists of, in mixers: attention and feed-forward, or one of them."""
    return 1 if shape.pattern is not None else 2


def _message_host(case: Case, constants: Constants) -> float:
    """Return the seconds that the host needs to start one message of tensor ranks, beyond what it needs without them."""
    mesh = case.stack_file.mesh
    if case.tensor == 1 or mesh is None or _graphed(case):
        return 0.0
    started = constants["host.eager"] * TENSOR_OPERATORS / BLOCK_OPERATORS if case.runs_by_operator else mesh.tensor_host
    return case.host_factor * started


def _of_local_experts(case: Case, backward: bool) -> float:
    """Return the seconds that the host needs in a layer with experts to start what runs for each local expert separately."""
    mesh = case.stack_file.mesh
    if not case.shape.experts or mesh is None or not mesh.expert_launch:
        return 0.0
    cast = cast_operations(PRECISIONS[case.precision], case.recipe, case.gpu)
    operations = expert_operations(cast, backward) + bias_operations(case.shape, backward, case.one_copy)
    return case.host_factor * mesh.expert_launch * operations * case.shape.experts / case.expert


def _check(case: Case, constants: Constants, ranks: int) -> float:
    """Return the host's seconds to compare one collective between its *ranks*."""
    return check_time(ranks, constants["check.message"]) if case.checks_collectives else 0.0


def _sharded(case: Case, constants: Constants, wires: Wires, weights: Weights, forward: float, backward: float) -> tuple[float, float]:
    """Return the seconds of one layer's forward and backward with fully sharded parameters, whose traffic overlaps with compute."""
    dense, experts = weights.dense / weights.layers, weights.experts / weights.layers
    gather = _over_shards(case, wires, _gathered_width(case), dense, experts)
    scatter = _over_shards(case, wires, case.gradient_width, dense, experts)
    slow = constants["contention"]
    data = constants[f"data:{case.family}"]
    if case.lora:
        scatter = 0.0
    both = max(gather + scatter, _between_replicas(case, wires, dense + experts)) * data
    return max(forward * slow, gather * data), max(backward * slow, both)


def _between_replicas(case: Case, wires: Wires, parameters: float) -> float:
    """Return the seconds of summing a shard of the gradients of *parameters* over the replicas of the model, which is an all-reduce."""
    if case.lora:
        return 0.0
    shard = case.gradient_width * parameters / case.shard_ranks
    return 2 * wires.gather(shard, case.replicas, case.shard_ranks * case.tensor)


def _over_shards(case: Case, wires: Wires, width: float, dense: float, experts: float) -> float:
    """Return the seconds of gathering or reducing parameters of *width* bytes over the ranks that share them; expert ranks share fewer."""
    ranks = case.shard_ranks
    if case.expert == 1:
        return wires.gather(width * (dense + experts), ranks, case.tensor)
    with_experts = max(1, ranks * case.tensor // case.expert)
    return wires.gather(width * dense, ranks, case.tensor) + wires.gather(width * experts, with_experts, case.expert)


def _gathered_width(case: Case) -> float:
    """Return the bytes of a parameter as ranks gather it: torchtitan's FSDP2 gathers 8-bit weights."""
    return 1.0 if case.precision != "16bit" and case.family == "fsdp2" else 2.0


def _sends(case: Case, constants: Constants, wires: Wires) -> float:
    """Return the exposed seconds of a micro-batch's messages between stages."""
    if case.pipeline == 1:
        return 0.0
    mesh = case.stack_file.mesh
    in_parts = mesh is not None and sends_parts(mesh, case.tensor, case.sequence_parallel)
    rows = case.micro_batch * case.seq / case.context
    sent = ELEMENT_WIDTH * rows * case.shape.hidden / (case.tensor if case.sequence_parallel or in_parts else 1)
    stride = case.tensor * case.context * case.data
    one, gathers = wires.send(sent, stride), 0.0
    if mesh is not None and in_parts:
        nbytes = case.tensor * sent
        gather = wires.gather(nbytes, case.tensor, 1) + copy_passes(mesh) * nbytes / case.chip.memory_bandwidth
        gathers = case.virtual_stages * sum(part_gathers(mesh, backward) for backward in (False, True)) * gather
    if case.family in UNPAIRED_SEND_FAMILIES:
        return 4 * one + gathers
    return 2 * one * case.virtual_stages * constants["exposed.stages"] * (0.5 if case.virtual_stages > 1 else 1.0) + gathers


def _tied(case: Case, wires: Wires) -> float:
    """Return the seconds of summing the gradient of a table that the first and the last stage both hold, after all others."""
    if not case.shape.tied or case.pipeline == 1 or case.lora:
        return 0.0
    table = case.gradient_width * float(case.shape.vocab) * case.shape.hidden / case.tensor
    return 2.0 * wires.gather(table, 2, case.tensor * case.context * case.data * (case.pipeline - 1))  # an all-reduce goes round twice


def _data_traffic(case: Case, constants: Constants, wires: Wires, weights: Weights, forward: float, backward: float) -> float:
    """Return the exposed seconds of a step's gradient reduction and parameter gathers.

    *forward* and *backward* are the seconds of a middle stage for one micro-batch.
    """
    if case.lora:
        return 0.0
    ranks = case.shard_ranks
    stride = case.tensor
    width = case.gradient_width
    if case.zero == 3 and case.pipeline > 1:  # torch pipelining: gathered in the first forward, kept, and reduced after the last backward
        dense = weights.dense + weights.vocabulary
        gather = _over_shards(case, wires, _gathered_width(case), dense, weights.experts)
        scatter = _over_shards(case, wires, width, dense, weights.experts)
        in_turn = case.pipeline if case.virtual_stages == 1 else 1  # 1F1B gathers a stage when its first input is there
        return constants[f"data:{case.family}"] * (in_turn * max(0.0, gather - forward) + scatter)
    if case.zero == 3:
        ends = 2 * _over_shards(case, wires, 2.0, weights.dense / weights.layers, weights.experts / weights.layers) + wires.gather(
            2 * width * weights.vocabulary, ranks, stride
        )
        ends += _between_replicas(case, wires, weights.vocabulary)
        return ends * constants["exposed.data"] * 2 * constants[f"data:{case.family}"] * case.micro_batches
    plain = weights.dense + weights.vocabulary + (weights.experts if case.expert == 1 else 0.0)
    mesh = case.stack_file.mesh
    all_reduced = not case.zero or (case.zero == 1 and mesh is not None and mesh.whole_gradients == "always")
    coalesced = bool(case.zero) and case.family in COALESCED_FAMILIES
    of_gradients, of_weights = (
        case.ring_latency.get("reduce" if all_reduced else "gather"),
        case.ring_latency.get("gather" if case.zero else "reduce"),
    )
    late = _buckets(case, weights) * _check(case, constants, ranks) if not case.zero else 0.0
    scatter = wires.gather(width * plain, ranks, stride, of_gradients, coalesced)
    gather = wires.gather((2.0 if case.zero else width) * plain, ranks, stride, of_weights, coalesced)
    if case.zero and all_reduced:  # an all-reduce goes round twice
        scatter *= 2
    if coalesced and mesh is not None and ranks > 1:
        gather += slices_host_time(TENSORS_OF_BLOCK * weights.layers, ranks, case.host_factor * mesh.slice_host)
    scatter += _between_replicas(case, wires, plain)
    if case.expert > 1:
        scatter += wires.gather(width * weights.experts, max(1, ranks * case.tensor // case.expert), case.expert)
        gather += wires.gather(2.0 * weights.experts, max(1, ranks * case.tensor // case.expert), case.expert)
    after = 0.0 if case.family in OVERLAPPED_GATHER_FAMILIES else gather
    gather -= after
    if coalesced or case.family in LATE_REDUCE_FAMILIES:
        return late + after + scatter + gather
    hidden = min(1.0, backward / case.virtual_stages / max(scatter + gather, 1e-9))
    exposed = constants["exposed.data"] * constants[f"data:{case.family}"]
    return late + after + (scatter + gather) * (1 - (1 - min(1.0, exposed)) * hidden)


def _buckets(case: Case, weights: Weights) -> int:
    """Return the number of DistributedDataParallel's buckets for a stage's 16-bit gradients; each closes at `TORCH_BUCKET_CAP`."""
    shape = case.shape
    keys = shape.groups * (shape.head_size + shape.value_size)
    queries, values = shape.heads * shape.head_size, shape.heads * shape.value_size
    products = (
        shape.hidden * (queries + keys),
        values * shape.hidden,
        shape.hidden * shape.inner * (1 + shape.gated),
        shape.inner * shape.hidden,
    )
    closed, filled = 1, 0.0
    for size in [2.0 * size / case.tensor for size in products] * weights.layers:
        filled += size
        if filled >= TORCH_BUCKET_CAP:
            closed, filled = closed + 1, 0.0
    return closed


def _update(case: Case, constants: Constants, work: StepWork, weights: Weights) -> float:
    """Return the seconds of the optimizer's step: states are read and written, gradients are cleared and their norm is computed."""
    if case.lora:
        return 0.0
    ranks = case.shard_ranks
    shards = ranks if case.zero else 1
    expert_shards = max(1, ranks * case.tensor // case.expert) if case.zero and case.expert > 1 else shards
    owned = (weights.dense + weights.vocabulary) / shards + weights.experts / expert_shards
    held = owned if case.zero == 3 else weights.total
    return (constants["update"] * owned + 8.0 * held) / work.bandwidth
