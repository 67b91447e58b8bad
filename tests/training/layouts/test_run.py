"""How long does a step of a layout take? Oracles: closed forms of pipelines, the slowest link, and what each message takes."""

from __future__ import annotations

import gc
import math
from types import FunctionType, ModuleType

import pytest
import simpy

from sim.cluster.network import Network
from sim.events import Cause
from sim.mesh import layout_scene, prepare
from sim.parallel.program import Receive, Send, Start, Wait
from sim.training.layouts.bound import least_time
from sim.training.layouts.play import play
from sim.training.layouts.unfolded import Unfolded
from tests.harness import layer, machine
from tests.training.layouts.drawn_layouts import model
from tests.training.layouts.toys import BACKWARD, FORWARD, SLOT, blocks, free, played, run, split_block, with_memory, workload


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (4, 4), (4, 11)])
def test_the_bubble_is_p_minus_1_over_m(schedule: str, stages: int, micro_batches: int) -> None:
    """Narayanan et al. 2021, section 2.2.1: m + p - 1 slots for m of work."""
    layout_run = run(free(stages), workload(blocks(4 * stages), pipeline=stages, schedule=schedule, micro_batches=micro_batches))
    assert layout_run.step_time == pytest.approx((micro_batches + stages - 1) * 4 * SLOT, rel=1e-6)
    assert layout_run.stalls[Cause.PIPELINE] == pytest.approx((stages - 1) * 4 * SLOT, rel=1e-6)


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 4)])
def test_the_bubble_of_interleaved_stages_is_v_times_less(stages: int, chunks: int, micro_batches: int) -> None:
    """Narayanan et al. 2021, section 2.2.2: (p - 1) / (m v)."""
    given_ = workload(blocks(stages * chunks), pipeline=stages, virtual_stages=chunks, micro_batches=micro_batches)
    layout_run = run(free(stages), given_)
    assert layout_run.step_time == pytest.approx((micro_batches * chunks + stages - 1) * SLOT, rel=1e-6)


def test_the_bubble_of_zb_h1_is_a_third() -> None:
    """Qi et al. 2024, section 2.3: (p - 1) (F + B - W) = (p - 1) F where F = B = W."""
    layout_run = run(free(4), workload(blocks(4), pipeline=4, schedule="zb_h1", micro_batches=12))
    assert layout_run.step_time == pytest.approx(12 * SLOT + 3 * FORWARD, rel=1e-6)


def test_zbv_has_no_bubble() -> None:
    """Qi et al. 2024, section 4 (ZB-V): with F = B = W only the ramp of the V remains, which does not grow with micro-batches."""
    fewer, more = (
        run(free(2), workload(blocks(4), pipeline=2, schedule="zbv", virtual_stages=2, micro_batches=count)).step_time for count in (8, 12)
    )
    assert more - fewer == pytest.approx(4 * 2 * SLOT, rel=1e-6)


@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients", "parameters"])
def test_without_communication_a_step_is_its_compute(shard: str) -> None:
    layout_run = run(free(4), workload(blocks(6), micro_batches=3, shard=shard, tensor=1, context=1))
    accumulated = layout_run.played.stages[0].stalls[Cause.COMPUTE]
    assert layout_run.step_time == pytest.approx(accumulated, rel=1e-6)
    assert accumulated == pytest.approx(3 * 6 * SLOT, rel=1e-6)


def test_the_slowest_stage_sets_the_pace() -> None:
    """A stage with twice the layers: every micro-batch but the first and the last waits for it."""
    slow = run(free(2), workload(blocks(6), pipeline=2, layers_per_stage=(2, 4), micro_batches=10))
    assert slow.step_time == pytest.approx((10 * 4 + 2) * SLOT, rel=1e-6)
    cut = run(free(2), workload(blocks(6), pipeline=2, cuts=["layers.2"], micro_batches=10))
    assert cut.step_time == pytest.approx(slow.step_time, rel=1e-12)


def test_a_stage_that_begins_inside_a_block_receives_all_that_is_alive_there() -> None:
    """Two activations go on there, and one between blocks: 100 MB more forward, and 100 MB back, at 1 GB/s and with nothing beside."""
    wire = machine(1, 2, nvlink=1e12, nic=1e9, launch=0.0)
    table = [
        layer(
            FORWARD,
            BACKWARD,
            name=f"layers.{number}.{part}",
            read="100 MB",
            write="100 MB",
            entering="200 MB" if part == "second" else None,
        )
        for number in range(2)
        for part in ("first", "second")
    ]
    between = run(wire, workload(table, pipeline=2, cuts=["layers.1"]))
    inside = run(wire, workload(table, pipeline=2, cuts=["layers.1.second"]))
    assert inside.step_time - between.step_time == pytest.approx(2 * 100e6 / 1e9, rel=0.02)


def test_fsdp_hides_what_compute_covers() -> None:
    """Gathers that take longer than a block's forward and scatters that take less than its backward: exposed are the first gather, the
    difference of each other one, and the last scatter."""
    elements, ranks, nvlink = 1_000_000, 4, 1e8
    gather = 4.0 * elements * (ranks - 1) / ranks / nvlink
    forward, backward = gather / 2, 4 * gather
    hardware = machine(ranks, nvlink=nvlink, nic=1e18)
    layout_run = run(hardware, workload(blocks(5, forward, backward, elements), shard="parameters"))
    # forward: 5 gathers one after another, then the last block; backward: gathers are hidden, one scatter at the end, beside 4 backwards
    expected = 5 * gather + forward + gather + 5 * backward + gather
    assert layout_run.step_time == pytest.approx(expected, rel=1e-3)


def test_reduction_of_replicas_follows_that_of_shards() -> None:
    """HSDP: the all-reduce of a shard begins when its reduce-scatter has ended; next reduce-scatters do not wait for it."""
    hardware = machine(2, 2, nvlink=1e8, nic=1e8)
    given_ = workload(blocks(3, elements=1_000_000), shard="parameters", replicate=2)
    scene, done = played(hardware, given_)
    reductions = sorted(
        (work for work in done.log.work if work.name == "gradient reduction" and work.t0 >= done.stages[0].begin), key=lambda work: work.t0
    )
    shards, copies = ([work for work in reductions if ("NIC" in work.resource) is copied] for copied in (False, True))
    assert len(shards) == len(copies) == 3
    assert all(copy.t0 >= shard.t1 for shard, copy in zip(shards, copies, strict=True))
    assert shards[1].t0 < copies[0].t1  # beside the next reduce-scatter
    starts = [each for each in scene.programs[0] if isinstance(each, Start) and each.axis == "replicate"]
    assert [each.predecessor[0] for each in starts if each.predecessor] == ["scatter"] * 3
    waits = [each.tag[0] for each in scene.programs[0] if isinstance(each, Wait)]
    assert waits[-3:] == ["scatter replicas"] * 3


def test_halves_of_backward_are_the_whole() -> None:
    given_ = workload(model(), tensor=2, pipeline=2, schedule="zb_h1", micro_batches=2)
    given_ = given_.with_training(compute_factor=1.7)
    scene = layout_scene(free(4), given_, prepare(free(4), given_))
    full, inputs, weights = (scene.times[0](0, part) for part in ("B", "I", "W"))
    assert inputs.compute + weights.compute == pytest.approx(full.compute, rel=1e-12)
    assert inputs.launch_time(1.0) + weights.launch_time(1.0) == pytest.approx(full.launch_time(1.0), rel=1e-12)
    assert weights.compute > 0


def test_stages_wait_for_their_sends_unless_they_overlap() -> None:
    """1F1B sends and receives in one call: in the steady state each micro-batch costs two messages more; interleaved stages may not."""
    nbytes, nvlink = 1e6, 1e9
    layers = [each.model_copy(update={"read": nbytes * 4, "write": nbytes * 4}) for each in blocks(4)]
    times = {}
    for overlap in (False, True):
        times[overlap] = run(
            machine(2, nvlink=nvlink), workload(layers, mesh={"pipeline_overlap": overlap}, pipeline=2, virtual_stages=2, micro_batches=8)
        ).step_time
    assert times[True] < times[False]


@pytest.mark.parametrize(("framework", "calls"), [("megatron", 2), ("deepspeed", 4)])
def test_messages_of_a_micro_batch_in_the_steady_state(framework: str, calls: int) -> None:
    """A send and the receive after it are one call of 1F1B: two a micro-batch; DeepSpeed's are calls of their own: four (TrainSchedule)."""
    nbytes, nvlink = 1e6, 1e9
    layers = [each.model_copy(update={"read": nbytes * 4, "write": nbytes * 4}) for each in blocks(4)]
    fewer, more = (
        run(machine(4, nvlink=nvlink), workload(layers, mesh={"framework": framework}, pipeline=4, micro_batches=count)).step_time
        for count in (8, 16)
    )
    assert (more - fewer) / 8 == pytest.approx(SLOT + calls * nbytes * 4 / nvlink, rel=0.01)


def test_a_message_takes_its_bytes_over_the_link() -> None:
    """Two stages, one micro-batch: there and back, 2 n / bandwidth."""
    layers = [each.model_copy(update={"read": 4e6, "write": 4e6}) for each in blocks(2)]
    layout_run = run(machine(2, nvlink=1e8), workload(layers, pipeline=2))
    assert layout_run.step_time == pytest.approx(2 * SLOT + 2 * 4e6 / 1e8, rel=1e-3)


@pytest.mark.parametrize(("framework", "gathers", "passes"), [("megatron", 1 + 1, 2), ("deepspeed", 1 + 2, 5)])
def test_tensor_ranks_send_their_parts_and_gather_those_they_receive(framework: str, gathers: int, passes: int) -> None:
    """Megatron-LM's scatter-gather, DeepSpeed's PartitionedTensor: half of the bytes there and back; each gather copies all in passes."""
    nbytes, nvlink, nic, memory = 4e6, 1e9, 1e8, 1e10
    sizes = {"read": nbytes, "write": nbytes}
    layers = [each.model_copy(update=sizes) for number in range(2) for each in split_block(number)]
    hardware = with_memory(machine(2, 2, nvlink=nvlink, nic=nic), memory)
    given_ = [
        workload(layers, mesh={"framework": framework, "stage_parts": parts}, pipeline=2, tensor=2, sequence=False) for parts in (0, 1)
    ]
    entire, split = (run(hardware, each).step_time for each in given_)
    efficiency = hardware.groups[0].node.gpu.memory_efficiency
    saved = 2 * nbytes / 2 / (nic / 2)  # two ranks share a NIC
    assert entire - split == pytest.approx(saved - gathers * (nbytes / 2 / nvlink + passes * nbytes / memory / efficiency), rel=0.01)
    scattered = [
        workload(layers, mesh={"framework": framework, "stage_parts": parts}, pipeline=2, tensor=2, sequence=True) for parts in (0, 1)
    ]
    assert run(hardware, scattered[0]).step_time == run(hardware, scattered[1]).step_time


@pytest.mark.parametrize("chunks", [1, 2])
def test_each_cut_hands_over_what_crosses_it(chunks: int) -> None:
    """Blocks whose inputs differ: both ends of a message name the bytes that enter the later of the two chunks, as do its gradients."""
    layers = [each.model_copy(update={"read": 8e3 / 2**number}) for number, each in enumerate(blocks(4))]
    hardware, laid_out = free(4 // chunks), workload(layers, micro_batches=4, pipeline=4 // chunks, virtual_stages=chunks)
    layout = prepare(hardware, laid_out)
    made = [each for instructions in layout_scene(hardware, laid_out, layout).programs for each in instructions]
    sends = {each.tag: each.nbytes for each in made if isinstance(each, Send)}
    width = layout.input_bytes[0] / 8e3
    assert width > 0
    expected = {("activations", chunk): width * 8e3 / 2**chunk for chunk in (1, 2, 3)}
    expected |= {("gradients", chunk): width * 8e3 / 2 ** (chunk + 1) for chunk in (0, 1, 2)}
    assert {(what, chunk): nbytes for (what, chunk, _), nbytes in sends.items()} == pytest.approx(expected)
    assert {each.tag: each.nbytes for each in made if isinstance(each, Receive)} == sends


def test_a_message_takes_the_time_of_its_own_cut() -> None:
    """Three stages, one micro-batch: there and back each cut takes its own bytes over the NIC."""
    layers = [each.model_copy(update={"read": read, "write": 1.0}) for read, each in zip((1.0, 4e6, 1e6), blocks(3), strict=True)]
    hardware, laid_out = machine(1, 3, nic=1e8), workload(layers, pipeline=3)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert play(scene).time == pytest.approx(3 * SLOT + 2 * (4e6 + 1e6) / 1e8, rel=1e-3)
    assert least_time(scene) <= play(scene).time * (1 + 1e-9)


def test_without_a_pipeline_nobody_waits_for_other_stages() -> None:
    """Shard groups of three ranks on nodes of four lie unlike: ranks of one stage come at other times, and wait for the slowest of them."""
    hardware = machine(4, 3, nvlink=2e8, nic=5e7, launch=1e-4)
    laid_out = workload(model(), shard="parameters", replicate=4, micro_batches=2, stack={"gradient_clipping": True})
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert not scene.layout.mesh.is_even
    for played_layout in (play(scene), Unfolded(scene, 4).run()):
        (stage,) = played_layout.stages
        assert stage.stalls[Cause.PIPELINE] == stage.exposed["pipeline"] == 0.0
        assert stage.stalls[Cause.STRAGGLER] > 1e-6
        assert math.fsum(stage.stalls.values()) == pytest.approx(stage.time, rel=1e-9)


def test_the_gradient_norm_is_no_reduction_of_gradients() -> None:
    """Plain FSDP has no data-parallel reduction: what it waits for is gathers and scatters of shards, and the norm."""
    hardware = machine(1, 2, nic=1e8, launch=1e-3)
    laid_out = workload(blocks(2, elements=100_000), shard="parameters", stack={"gradient_clipping": True})
    layout_run = run(hardware, laid_out)
    assert layout_run.exposed["data"] == 0.0
    assert layout_run.exposed["norm"] >= 1e-3
    without = run(hardware, workload(blocks(2, elements=100_000), shard="parameters"))
    assert without.exposed["norm"] == 0.0 < without.exposed["shard"]


def reachable(root: object) -> list[object]:
    """Return all that *root* refers to, directly or through others, but for what modules and types hold."""
    reached: dict[int, object] = {}
    waiting: list[object] = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in reached or isinstance(each, type | ModuleType):
            continue
        reached[id(each)] = each
        waiting += (each.__closure__ or ()) if isinstance(each, FunctionType) else gc.get_referents(each)
    return list(reached.values())


@pytest.mark.parametrize("rank_by_rank", [False, True])
def test_the_result_of_a_simulation_does_not_keep_it_alive(rank_by_rank: bool) -> None:
    """A cache of results had kept every event and activity of the cluster that was simulated for each."""
    hardware, given = machine(2, 2), workload(blocks(2), micro_batches=2)
    scene = layout_scene(hardware, given, prepare(hardware, given))
    done = Unfolded(scene, 2, False).run() if rank_by_rank else play(scene)
    assert not [each for each in reachable(done) if isinstance(each, simpy.Environment | Network)]
