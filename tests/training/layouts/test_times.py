"""Oracles: bytes over bandwidth of what a stack spares, and the step in which nothing is spared."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Final

import pytest

from sim.analysis.layout_memory import memory_by_stage
from sim.cluster.build import with_nodes
from sim.cluster.gpu import layer_time, memory_time
from sim.events import Cause
from sim.mesh import compute_times_of, layout_scene, prepare, run_layout, times_of
from sim.parallel.lower.layouts import program
from sim.parallel.program import Copy, PassPart
from sim.parallel.ring import RankElements, engine_passes, ring_of, ring_passes
from sim.parallel.routing import CAST_OPERATIONS, TENSOR_OPERATIONS, places_reached, routing_of
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.sections import with_fields
from sim.training.layouts.prices import KernelBook, PriceBook
from tests.parallel.layouts import parallel
from tests.training.layouts.toys import BACKWARD, FORWARD, block, blocks, free, run, split_block, with_parallel, workload

ELEMENTS, BATCHES = 10**7, 4
PASSES: Final[tuple[PassPart, ...]] = ("F", "B")
MEMORY_BANDWIDTH = 1e12


def with_memory(gpus: int) -> Hardware:
    """Return a machine whose memory bandwidth (bytes/s) counts beside the blocks' compute."""
    hardware = free(gpus)
    (group,) = hardware.groups
    gpu = group.node.gpu.model_copy(update={"memory_bandwidth": MEMORY_BANDWIDTH, "memory_efficiency": 1.0})
    return hardware.model_copy(update={"groups": (group.model_copy(update={"node": group.node.model_copy(update={"gpu": gpu})}),)})


def step(fused: bool, backward: float = BACKWARD, accumulation_bytes: int = 0) -> float:
    layers = blocks(2, backward=backward, elements=ELEMENTS)
    mesh = {"fused_accumulation": fused, "accumulation_bytes": accumulation_bytes}
    return run(with_memory(1), workload(layers, mesh=mesh, micro_batches=BATCHES)).step_time


def test_gradients_are_added_up_beside_the_products_that_make_them() -> None:
    """Read and written in FP32 for each micro-batch; the products of a long backward cover that, those of a short one do not."""
    passes = 2 * BATCHES * 2 * 4.0 * ELEMENTS / MEMORY_BANDWIDTH
    plain = BATCHES * 2 * (FORWARD + BACKWARD)
    assert step(fused=False) == pytest.approx(plain + passes, rel=1e-6)
    assert step(fused=True) == pytest.approx(plain, rel=1e-6)
    short = 1.5 * passes / (2 * BATCHES)  # half of it is the product of the weight gradient
    assert step(fused=True, backward=short) == pytest.approx(BATCHES * 2 * (FORWARD + short) + passes / 4, rel=1e-6)


def test_software_that_adds_gradients_in_more_passes_says_how_many_bytes() -> None:
    """A copy in FP32 before the sum (DeepSpeed's BF16_Optimizer): 18 bytes per gradient and micro-batch instead of 8."""
    more = 2 * BATCHES * (18 - 8) * ELEMENTS / MEMORY_BANDWIDTH
    assert step(fused=False, accumulation_bytes=18) - step(fused=False) == pytest.approx(more, rel=1e-6)
    own = load_workload("bloom-560m", ["training.stack=megatron-deepspeed"]).spec.training.stack.mesh
    assert own is not None and own.accumulation_bytes == (2 + 4) + (4 + 4 + 4)


@pytest.mark.parametrize(("mesh", "passes"), [({"framework": "fsdp2"}, 3), ({"framework": "fsdp2", "copies": False}, 1)])
@pytest.mark.parametrize("ranks", [1, 4])
def test_fsdp_reads_its_gradients_to_clip_them_and_multiplies_them(mesh: dict[str, Any], passes: int, ranks: int) -> None:
    """Each rank its shard of them: for the norm, and read and written; a compiler multiplies where the optimizer reads them."""
    given = workload(blocks(2, elements=ELEMENTS), mesh=mesh, shard="parameters")
    adam = given.training.optimizer.model_copy(update={"name": "adam"})
    given = given.with_training(optimizer=adam)
    clips = with_fields(given.training.stack, gradient_clipping=True)
    clipped = given.with_training(stack=clips)
    more = run_layout(with_memory(ranks), clipped).step_time - run_layout(with_memory(ranks), given).step_time
    assert more == pytest.approx(passes * 4.0 * 2 * ELEMENTS / ranks / MEMORY_BANDWIDTH, rel=1e-6)


@pytest.mark.parametrize("divides", [False, True])
def test_fsdp2_on_one_rank_casts_and_copies(divides: bool) -> None:
    """Weights twice, but for the last block, which stays gathered; in 16 bits, gradients in 32. Only a pass for the division is new."""
    layers = [*blocks(2, elements=ELEMENTS), block(2, elements=ELEMENTS).model_copy(update={"name": "head"})]
    given = workload(layers, mesh={"divides_gradients": divides}, shard="parameters")
    given = given.with_training(precision="bf16")
    plain = workload(layers, shard="none")
    plain = plain.with_training(precision="bf16")
    weights, gradients = (4 + 2) + (2 + 2), (2 + 4) + (4 + 4) * (1 + divides)
    moved = ELEMENTS * (5 * weights + 3 * gradients)
    more = run_layout(with_memory(1), given).step_time - run_layout(with_memory(1), plain).step_time
    assert more == pytest.approx(moved / MEMORY_BANDWIDTH, rel=1e-6)


def test_experts_of_one_rank_each_are_cast_and_copied_too() -> None:
    """Where expert ranks are all data ranks, FSDP2 wraps experts on meshes of one rank (torchtitan distributed/parallel_dims.py)."""
    own = ["stack=torchtitan-0.2", "parallel.shard=parameters", "parallel.expert=8", "batch=1", "precision=bf16"]
    given = load_workload("mixtral-8x7b", ["model.sequence=128", *(f"training.{each}" for each in own)]).spec
    layout = prepare(load_hardware("hgx-h100").spec, given)
    experts = sum(layout.elements(unit, experts=True) for unit in layout.units_of(0))
    dense = sum(layout.elements(unit, experts=False) for unit in layout.units_of(0))
    alone = [each for each in program(layout, 0) if isinstance(each, Copy) and each.tag is not None]
    assert sum(each.nbytes for each in alone if each.what == "weights") == pytest.approx(2 * experts * ((4 + 2) + (2 + 2)))
    assert sum(each.nbytes for each in alone if each.what == "gradients") == pytest.approx(experts * 2 * (4 + 4))
    (held,) = memory_by_stage(layout, given, load_hardware("hgx-h100").spec.groups[0].node.gpu)
    assert held.gradients >= 4 * (experts + dense / 8)


CASTS: Final = 2 * (4 * CAST_OPERATIONS + TENSOR_OPERATIONS)


@pytest.mark.parametrize(("precision", "forward", "backward"), [("bf16", 2, 8), ("fp8", 2 + CASTS, 8 + CASTS)])
@pytest.mark.parametrize("experts", [1, 2])
def test_the_host_starts_operations_for_each_local_expert(precision: str, forward: float, backward: float, experts: int) -> None:
    """Where an operation takes the host a second, a step takes as many seconds as there are; eight experts over *experts* of a rank.

    Four kernels cast for each of two products, and two tensors in 8 bits are made.
    """
    own = ["stack=megatron-core", f"parallel.expert={8 // experts}", f"precision={precision}", "activation_checkpointing=none", "batch=1"]
    own += ["stack.mesh.expert_host=0 s", "stack.mesh.expert_launch=1 s", *(["fp8_recipe=tensorwise"] if precision == "fp8" else [])]
    given = load_workload("mixtral-8x7b", [f"training.{each}" for each in own]).spec
    shape = given.model.transformer
    assert shape is not None
    step_time = run_layout(load_hardware("hgx-h100").spec, given).step_time
    assert step_time == pytest.approx(shape.layers * experts * (forward + backward), rel=0.02)


def test_dispatched_copies_are_put_in_the_order_of_experts() -> None:
    """Forward and backward, behind dispatch and before combination: eight passes over as many copies of a token as it has experts.

    Node-aware dispatch has none of them, but gathers the copies of a token from the rows of all ranks that received it, not from one.
    """
    hardware = load_hardware("hgx-h100").spec
    node = hardware.groups[0].node
    steps = {}
    for one_copy in (False, True):
        own = ["stack=megatron-core", "batch=1", "parallel.expert=4", "precision=bf16", "activation_checkpointing=none",
               f"stack.mesh.one_copy={str(one_copy).lower()}", "stack.mesh.expert_host=0 s", "stack.mesh.shares_device=false"]  # fmt: skip
        given = load_workload("qwen3-30b-a3b", [f"training.{each}" for each in own]).spec
        steps[one_copy] = run_layout(hardware, given).stalls[Cause.COMPUTE]
    shape = given.model.transformer
    assert shape is not None
    copies = 2.0 * (given.model.sequence or 0) * shape.experts_per_token * shape.hidden
    received = 4 * (places_reached(routing_of(shape), 4) - 1) / shape.experts_per_token
    moved = shape.layers * (8 - received) * copies / (node.gpu.memory_bandwidth * node.gpu.memory_efficiency)
    assert steps[False] - steps[True] == pytest.approx(moved, rel=0.01)


def test_a_weight_is_brought_to_8_bits_once_a_step() -> None:
    """All micro-batches but the first spare reading a weight's two bytes and writing one twice (``is_first_microbatch``); not heads."""
    hardware = load_hardware("hgx-h100", ["node.gpu.compute_cv=0", "node.gpu.persistent_cv=0", "node.gpu.kernels.sustained_cv=0"]).spec
    gpu = hardware.groups[0].node.gpu
    steps = {}
    for keeps in (False, True):
        given = load_workload(
            "llama-3.1-8b",
            [
                "training.stack=megatron-core", f"training.stack.mesh.keeps_8bit_weights={str(keeps).lower()}", "training.precision=fp8",
                "training.parallel.shard=optimizer", f"training.gradient_accumulation_steps={BATCHES}", "training.batch=1",
                "training.activation_checkpointing=none",
            ],
        ).spec  # fmt: skip
        steps[keeps] = run_layout(hardware, given).step_time
    stack = given.training.stack
    cast = (layer for layer in given.model.layers if layer.op == "gemm" and layer.name != "head")
    weights = sum(sum(layer.gradients) for layer in cast)
    moved = 4.0 * weights * stack.kernels.compute_factor / (gpu.memory_bandwidth * gpu.memory_efficiency)
    assert steps[False] - steps[True] == pytest.approx((BATCHES - 1) * moved, rel=0.02)


@pytest.mark.parametrize(
    ("stack", "shard", "stages", "shards"),
    [
        ("torchtitan-2.x", "parameters", 1, True), ("megatron-core", "parameters", 1, True), ("megatron-deepspeed", "parameters", 1, True),
        ("megatron-deepspeed", "gradients", 1, True), ("megatron-deepspeed", "optimizer", 1, False),
        ("megatron-core", "optimizer", 1, False),
        ("megatron-core", "gradients", 2, True), ("torchtitan-2.x", "parameters", 2, False), ("torchtitan-2.x", "none", 1, False),
    ],
)  # fmt: skip
def test_gradients_that_are_reduced_at_once_are_added_up_as_shards(stack: str, shard: str, stages: int, shards: bool) -> None:
    """FSDP2 without set_requires_gradient_sync; Megatron-FSDP; DeepSpeed from ZeRO-2 on (zero/stage_1_and_2.py). Others add whole ones."""
    hardware = load_hardware("hgx-h100").spec
    durations = []
    for count in (1, 4):
        own = [f"stack={stack}", f"parallel.shard={shard}", f"parallel.pipeline={stages}", f"gradient_accumulation_steps={count}"]
        given = load_workload("llama-3.2-1b", [f"training.{each}" for each in [*own, "precision=bf16", "batch=1"]]).spec
        layout = prepare(hardware, given)
        number = next(number for number, unit in enumerate(layout.units) if unit.kind == "block")
        durations.append(times_of(hardware, given, layout, PriceBook())[0](number, "B").compute)
    assert (durations[1] == durations[0]) is shards
    assert durations[1] >= durations[0]


def test_layouts_with_one_book_share_times_by_what_units_hold() -> None:
    """Oracle: each layout with a book of its own. Wraps cut the model elsewhere, and a copy of the same model asks for the same."""
    base = workload([each for number in range(3) for each in split_block(number, 1_000_000 * (number + 1))])
    copied = base.model_copy(update={"model": base.model.model_copy(update={"layers": base.model.layers[::-1]})})
    fields: list[dict[str, Any]] = [{}, {"shard": "parameters"}, {"shard": "parameters", "wrap": ("layers.*.colwise", "layers.2")}]
    hardware, book = free(4), PriceBook()
    for given in (base, copied):
        for own in fields:
            laid_out = with_parallel(given, parallel(**own))
            assert run_layout(hardware, laid_out, book=book).step_time == run_layout(hardware, laid_out).step_time
    assert len(book.times) == 1


def test_clusters_of_equal_nodes_share_what_needs_no_network() -> None:
    """Oracle: each cluster with a book of its own; the second computes no kernel again."""
    given = load_workload("llama-3.2-1b", ["training.stack=megatron-core", "training.batch=1", "training.parallel={tensor: 2}"]).spec
    kernels, counts = KernelBook(), list[int]()
    machine = load_hardware("hgx-h100").spec
    for nodes in (1, 2):
        cluster = with_nodes(machine, nodes)
        shared = run_layout(cluster, given, 8, book=PriceBook(kernels=kernels))
        assert shared.step_time == run_layout(cluster, given, 8).step_time
        counts.append(sum(map(len, kernels.passes.values())))
    assert counts[0] == counts[1] > 0 and len(kernels.passes) == 1


def test_clusters_of_equal_nodes_share_the_compute_of_units() -> None:
    """Oracles: the compute of units with messages, and each cluster with a book of its own; the second computes no unit again."""
    given = load_workload("mixtral-8x7b", ["training.stack=megatron-core", "training.parallel={tensor: 2, expert: 8}"]).spec
    machine, kernels, counts = load_hardware("hgx-h100").spec, KernelBook(), list[int]()
    for nodes in (2, 4):
        cluster = with_nodes(machine, nodes)
        layout = prepare(cluster, given, 8)
        books = PriceBook(kernels=kernels), PriceBook()
        shared, alone = (compute_times_of(cluster, given, layout, book) for book in books)
        sending = times_of(cluster, given, layout, PriceBook())[0]
        for number, part in product(range(len(layout.units)), PASSES):
            assert shared(number, part) == alone(number, part) and not shared(number, part).exposed_waits
            assert shared(number, part).bursts == sending(number, part).bursts
        assert any(sending(number, "F").waits for number in range(len(layout.units)))
        counts.append(sum(map(len, kernels.times.values())))
    assert counts[0] == counts[1] > 0 and len(kernels.times) == 1


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_one_book_tells_apart_what_micro_batches_and_groups_change(precision: str) -> None:
    """Oracle: each layout with a book of its own, 8-bit weights kept over micro-batches, blocks recomputed, groups that lie otherwise."""
    hardware, book = with_nodes(load_hardware("hgx-h100").spec, 2), PriceBook()
    cases = (2, 1, 1, "none"), (4, 1, 1, "none"), (4, 2, 2, "blocks"), (8, 2, 4, "blocks"), (4, 4, 1, "none")
    for number, tensor, pipeline, mode in cases:
        given = load_workload(
            "llama-3.2-1b",
            [
                "training.stack=megatron-core", f"training.precision={precision}", "training.parallel.shard=optimizer", "training.batch=1",
                f"training.gradient_accumulation_steps={number}", f"training.parallel.tensor={tensor}",
                f"training.parallel.pipeline={pipeline}", f"training.activation_checkpointing={mode}",
            ],
        ).spec  # fmt: skip
        assert run_layout(hardware, given, 8, book=book).step_time == run_layout(hardware, given, 8).step_time, (number, tensor, pipeline)


def test_messages_of_a_ring_overlap_with_one_step_each_unless_compiled() -> None:
    """Of a message, a wait is what a step of attention does not cover; if compiled, all of it. Merges take their bytes' memory time."""
    ranks, hardware, computes = 4, load_hardware("hgx-h100").spec, []
    card, elements = hardware.groups[0].node.gpu, 4096 / ranks * 32 * 128
    shards = RankElements(elements, elements, 2 * elements)
    own = ["stack=torchtitan-2.x", f"parallel.context={ranks}", "parallel.context_exchange=all_gather", "parallel.shard=parameters"]
    own += ["precision=bf16", "batch=1", "activation_checkpointing=none"]
    for seconds in (0, 1):
        changes = ["model.sequence=4096", *(f"training.{each}" for each in own), f"training.stack.compilation=[{seconds} s, {seconds} s]"]
        given = load_workload("llama-3.1-8b", changes).spec
        layout = prepare(hardware, given)
        times = times_of(hardware, given, layout, PriceBook())[0]
        number, unit = next((number, unit) for number, unit in enumerate(layout.units) if unit.kind == "block")
        attention = next(piece.layer for piece in unit.pieces if piece.layer.attention is not None)
        gathered = times.prices.outline(0, "context", "all_gather", 2.0 * 2 * elements * ranks).price.uncontended_time
        sent = times.prices.outline(0, "context", "send_recv", 4.0 * 2 * elements).price.uncontended_time
        steps = [layer_time(attention, card, "bf16", given.layer_stack, 1, backward).time / ranks for backward in (False, True)]
        if not seconds:
            covered = max(0.0, gathered - steps[1]) + (ranks - 1) * max(0.0, sent - steps[1]) + sent
            waits = max(0.0, gathered - steps[0]), covered
        else:
            waits = gathered, ranks * sent
        assert (times(number, "F").waits, times(number, "B").waits) == pytest.approx(waits)
        ring = ring_of(given.training, times.options)
        assert ring is not None
        merges = [memory_time(ring_passes(shards, ranks, 2.0, ring, backward), card) for backward in (False, True)]
        computes.append([times(number, part).compute - merge for part, merge in zip("FB", merges, strict=True)])  # type: ignore[arg-type]
    assert computes[0] == pytest.approx(computes[1])


def test_merges_around_transformer_engine_s_ring_take_memory_time() -> None:
    """Against the same ranks with gathered keys, which are attended to in one step: the bytes of merges, and nothing else."""
    ranks, hardware = 4, load_hardware("hgx-h100").spec
    card, elements = hardware.groups[0].node.gpu, 4096 / ranks * 32 * 128
    shards = RankElements(elements, elements, 2 * elements / 4)  # 8 heads of keys for 32 of queries
    computes = []
    for exchange in ("ring", "all_gather"):
        own = ["stack=megatron-core", f"parallel.context={ranks}", f"parallel.context_exchange={exchange}", "precision=bf16", "batch=1"]
        given = load_workload("llama-3.1-8b", ["model.sequence=4096", *(f"training.{each}" for each in own)]).spec
        layout = prepare(hardware, given)
        times = times_of(hardware, given, layout, PriceBook())[0]
        number = next(number for number, unit in enumerate(layout.units) if unit.kind == "block")
        computes.append([times(number, part).compute for part in ("F", "B")])  # type: ignore[arg-type]
    merges = [memory_time(engine_passes(shards, ranks, 2.0, True, backward), card) for backward in (False, True)]
    assert computes[0] == pytest.approx([gathered + merge for gathered, merge in zip(computes[1], merges, strict=True)])
    assert all(merge > 0.0 for merge in merges)


@pytest.mark.parametrize(
    ("one_copy", "dispatch_8bit", "sent", "widths"),
    [
        (False, False, 8.0, (2, 2, 2, 2)), (True, False, 4 * (1 - math.comb(96, 8) / math.comb(128, 8)), (2, 2, 2, 2)),
        (True, True, 4 * (1 - math.comb(96, 8) / math.comb(128, 8)), (1 + 4 / 128, 2, 1 + 4 / 128, 2)),
    ],
)  # fmt: skip
def test_bytes_of_dispatch_and_combine(one_copy: bool, dispatch_8bit: bool, sent: float, widths: tuple[float, ...]) -> None:
    """Over eight nodes, each a group of 32 of DeepSeek-V3's experts: 8 copies of a token, or one for each of the nodes with its experts.

    Dispatch and combine of forward, then the gradients of the output (dispatched) and of the input (combined).
    """
    mesh = f"stack.mesh.one_copy={str(one_copy).lower()}", f"stack.mesh.dispatch_8bit={str(dispatch_8bit).lower()}"
    own = ["stack=megatron-core", "batch=1", "parallel.expert=64", "precision=fp8", "gradient_accumulation_steps=1", *mesh]
    given = load_workload("deepseek-v3", [f"training.{each}" for each in own]).spec
    hardware = with_nodes(load_hardware("hgx-h800").spec, 8)
    scene = layout_scene(hardware, given, prepare(hardware, given))
    unit = scene.layout.units[-2]
    layers = [*scene.times[0].in_turn(unit, "F"), *scene.times[0].in_turn(unit, "B")]
    messages = [each.nbytes for layer in layers for each in layer.exposed_waits if each.axis == "expert"]
    assert messages == pytest.approx([4096 * 7168 * sent * width for width in widths])
