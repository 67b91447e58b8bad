"""Does one interpreter play all programs? By hand, and data parallelism on a mesh by the parts of layouts as by its own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import simpy

from sim.cluster.build import with_nodes
from sim.epoch import Epoch
from sim.events import Cause
from sim.mesh import layout_scene, prepare
from sim.parallel.program import Load, Pack, Start, Unpack, Update, Wait, Work
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.training.layouts.account import Account
from sim.training.layouts.groups import Groups
from sim.training.layouts.run import Simulation
from sim.training.layouts.scene import StageStep
from sim.training.layouts.stage_compute import StageKernels
from sim.training.layouts.unit_time import Burst
from sim.training.rank import Rank
from sim.training.step_plan import plan_key, plan_step, timed_pass
from tests.harness import layer, machine, run, toy_workload
from tests.training.layouts.toys import MESH


def test_instructions_are_played_in_order_each_from_when_the_one_before_was_over() -> None:
    """By hand: a load of 1 s, work of 2 s, an update of no time; two steps."""
    env, seen = simpy.Environment(), []

    def play(seconds: float):
        def played(instruction: object, at: int) -> Iterable[simpy.Event]:
            seen.append((type(instruction).__name__, at, env.now))
            return [env.timeout(seconds)] if seconds else ()

        return played

    rank = Rank(env, (Load(0), Work("F", 0, 0, 0), Update()), {Load: play(1.0), Work: play(2.0), Update: play(0.0)})

    def twice():
        yield from rank.run()
        assert rank.clock == [1.0, 3.0, 3.0]
        yield from rank.run()

    env.process(twice())
    env.run()
    assert seen == [("Load", 0, 0.0), ("Work", 1, 1.0), ("Update", 2, 3.0), ("Load", 0, 3.0), ("Work", 1, 4.0), ("Update", 2, 6.0)]
    assert rank.clock == [4.0, 6.0, 6.0] and rank.at == 2


def test_a_program_that_no_part_plays_is_refused_before_it_runs() -> None:
    with pytest.raises(ValueError, match="no part of the rank can run Pack, Unpack"):
        Rank(simpy.Environment(), (Load(0), Pack(0, 0), Unpack(0)), {Load: lambda *_: ()})


# --- data parallelism on a mesh ----------------------------------------------------------------------------------------


def on_a_mesh(hardware: Hardware, workload: Workload) -> StageStep:
    """Play the program of data parallelism by the parts of layouts: their kernels, groups, prices and account of waits."""
    layout = prepare(hardware, workload)
    node = hardware.groups[0].node
    plan = plan_step(workload, node.gpu, node.host.cpu.speed, layout.mesh.gpus)
    passes = timed_pass(plan_key(workload, node.gpu, node.host.cpu.speed))
    simulation = Simulation(layout_scene(hardware, workload, layout), 3, keep_rates=False)
    account: Account = simulation.stages[0].account
    kernels: StageKernels = simulation.stages[0].kernels
    groups = Groups(simulation.meetings, kernels, plan.program, 0)

    def compute(_: object, at: int) -> Iterable[simpy.Event]:
        segment = plan.segments[at]
        return kernels.compute([Burst(segment.compute, 0.0)], "work", -1) if segment and segment.compute else ()

    def launch(work: Work, at: int) -> Iterable[simpy.Event]:
        """Launch layer by layer, each of one kernel, and copy gradients into a bucket."""
        layers = passes.forward[work.first : work.last + 1] if work.part == "F" else passes.backward[::-1][work.first : work.last + 1][::-1]
        per, segment = simulation.scene.launch_cpu, plan.segments[at]
        copies = (segment.compute if segment else 0.0) - sum(each.compute for each in layers)
        bursts = [Burst(each.compute, each.host / per if per else 0.0) for each in layers]
        return kernels.compute([*bursts, Burst(max(0.0, copies), 0.0)], "work", -1)

    def update(_: Update, __: int) -> Iterable[simpy.Event]:
        per = simulation.scene.launch_cpu
        return kernels.compute([Burst(plan.optimizer.compute, plan.optimizer.host / per if per else 0.0)], "optimizer", -1)

    def load(_: Load, __: int) -> tuple[()]:
        kernels.host = simulation.env.now
        return ()

    def wait(instruction: Wait, at: int) -> Iterable[simpy.Event]:
        yield from groups.wait(instruction, at)
        if instruction.host:
            kernels.host = simulation.env.now

    plays = {Work: launch, Pack: compute, Unpack: compute, Update: update, Load: load, Start: groups.start, Wait: wait}
    rank = Rank(simulation.env, plan.program, plays)

    def train():
        for _ in range(simulation.steps):
            account.begin_step()
            yield from rank.run()
            account.end_step()

    simulation.env.run_to(simulation.env.process(train()))
    return account.last_step(rank.clock)


def by_itself(hardware: Hardware, workload: Workload) -> Epoch:
    """Play it as `sim run` does."""
    return run(hardware, workload).jobs[0].warm


def same(hardware: Hardware, workload: Workload) -> None:
    """Compare step and stalls; across nodes a collective's launch is blamed on the link that bounds it here, on its latency there."""
    meshed, expected = on_a_mesh(hardware, workload), by_itself(hardware, workload)
    assert meshed.time == pytest.approx(expected.step_time, rel=1e-9)
    mine, theirs = dict(meshed.stalls), dict(expected.stalls) | {Cause.PIPELINE: 0.0}
    if sum(group.count for group in hardware.groups) > 1:
        for stalls in (mine, theirs):
            stalls[Cause.NETWORK] += stalls.pop(Cause.INTERCONNECT)
    assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-12 * expected.step_time)


LAYERS = [
    layer(1e-3, 2e-3, 300_000, op="conv"),
    layer(2e-3, 3e-3, 40, 40, op="norm"),
    layer(1e-3, 1e-3, 2_000_000, 500),
    layer(0.0, 4e-3, 900_000),
]
STACKS = {
    "ddp": {"bucket_cap": "4 MB", "first_bucket_cap": "1 MB"},
    "per tensor": {"strategy": "apex_per_tensor", "blocking_scalar_all_reduces": 2},
    "flat, copied": {"strategy": "flat", "overlap": False, "gradient_copy_passes": 4.0, "wire_dtype": "fp16"},
    "buffers, norms": {"broadcast_buffers": True, "sync_batch_norm": True},
    "slowed": {"overlap_slowdown": 1.3},
    "accumulates": {"no_sync": False},
    "launched": {"launch_cpu": "1.5 ms", "bucket_cap": "4 MB", "first_bucket_cap": "1 MB", "broadcast_buffers": True},
    "launched, the host waits": {"launch_cpu": "1.5 ms", "strategy": "apex_per_tensor", "blocking_scalar_all_reduces": 2},
    "launched, norms": {"launch_cpu": "0.4 ms", "optimizer": "per_tensor", "sync_batch_norm": True},
}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_mesh_plays_data_parallelism_figure_for_figure(name: str, nodes: int) -> None:
    """Oracle: the parts of data parallelism, whose host, loader, collectives and blame are other code."""
    accumulation = 3 if name == "accumulates" else 1
    stack = STACKS[name] | {"mesh": MESH, "gradient_clipping": False}
    workload = toy_workload(LAYERS, buffers=1e5, stack=stack, accumulation=accumulation, noise=0.0, optimizer="adam")
    same(machine(4, nodes, nvlink=1e9, nic=2e8, launch=1e-5, hop_latency=1e-6), workload)


@pytest.mark.parametrize(("model", "nodes"), [("vgg16", 1), ("resnet50", 2), ("bert-large-seq384", 1)])
def test_a_mesh_plays_workloads_of_the_catalog(model: str, nodes: int) -> None:
    """Oracle: as above, on a p3.16xlarge, without what layouts leave out: loaders, copies of samples, launches and spread."""
    settings = [
        "input.loader=synthetic", "dataset.prepared=0 B", "training.stack.launch_cpu=0 s", "training.noise.compute_cv=0",
        "training.noise.persistent_cv=0", "dataset.samples=20000",
    ]  # fmt: skip
    workload = load_workload(model, settings).spec
    stack = workload.training.stack.model_copy(update={"mesh": toy_workload(stack={"mesh": MESH}).training.stack.mesh})
    workload = workload.with_training(stack=stack)
    same(with_nodes(load_hardware("p3.16xlarge").spec, nodes), workload)


def test_the_oracle_sees_an_exchange_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: if no operation is waited for, a step takes as long as its compute."""
    hardware = machine(4, nvlink=1e9)
    workload = toy_workload(LAYERS, stack={"strategy": "flat", "overlap": False, "mesh": MESH}, noise=0.0)
    same(hardware, workload)
    monkeypatch.setattr(Groups, "wait", lambda *_: ())
    with pytest.raises(AssertionError):
        same(hardware, workload)
