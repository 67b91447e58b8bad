"""How does cost grow with ranks and runs? All-reduces and iterations from 8 to 16,384 ranks, ranks that differ, sweeps, memory.

For comparison, the times that ASTRA-sim with its analytical network (C++) takes on two such cores are listed too; its iterations are
those of a ResNet-50-like job with five buckets.
"""

from __future__ import annotations

import gc
import shlex
import sys
from typing import Any
from uuid import uuid4

import pytest
import simpy

from sim.__main__ import OBJECTS
from sim.cluster.build import place, slots, with_nodes
from sim.cluster.network import Network
from sim.documents import row
from sim.events import Cause, EventLog
from sim.extract import extract
from sim.extract.target import parse_arguments
from sim.simulate import Run, simulate
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.memo import caching
from sim.spec.model import Model
from sim.study.scenario import Scenario, answer
from sim.study.space import axis, grid
from sim.study.sweep import scenario_at
from sim.training.collectives.play.phase import PhaseExecutor
from sim.training.collectives.price.collective_plan import Tuning, plan_collectives
from sim.training.job import Job, job_slots
from sim.units import show
from tests.bench.process import Used, process
from tests.bench.sampling import shares

RANKS = [8, 64, 256, 1024, 4096, 16384]
PEER = "ASTRA-sim "
ALL_REDUCE = {256: PEER + "0.5 s", 1024: PEER + "8 s", 4096: PEER + "320 s and 5.4 GB"}
ITERATIONS = {64: PEER + "0.4 s", 256: PEER + "7 s", 1024: PEER + "200 s"}
SAMPLES = "dataset.samples=500000000"
"""A data set of which 16,384 GPUs, too, have hundreds of steps an epoch."""
COLD = (
    "dataset.files=per_sample",
    "node.host.memory=33 GiB",
    "node.storage.volume.size=33 GiB",
    "node.storage.volume.burst_credits=250000",
)
"""A volume of 100 I/Os per second whose burst ends within the first epoch, and a page cache that holds a part of ImageNet."""
MAIN = Scenario("p3.16xlarge", "vgg16")
POINTS = grid([axis("node.nic.bandwidth=10,25,100 Gbps"), axis("node.host.cpu.speed=0.8,1,1.25"), axis("batch=16..64:8")])
"""What-ifs of the main job, in which hardware and workload differ from point to point."""


def measured_only(benchmark: Any) -> None:
    """Skip what takes long and tells nothing but its time; its outcome is tested elsewhere, on less."""
    if benchmark.disabled:
        pytest.skip("takes long; make bench measures it")


def all_reduce(nodes: int) -> float:
    """Plan and play one ring all-reduce of 100 MB on *nodes* p3.16xlarge; return its time."""
    hardware = with_nodes(load_hardware("p3.16xlarge").spec, nodes)
    cluster = slots(hardware, [place(hardware)])
    plan = plan_collectives(job_slots(0, cluster), hardware.fabric, Tuning(algorithms="Ring"))
    env = simpy.Environment()
    network = Network(env, EventLog(lambda: env.now))
    live = {slot.name: {link: f"{slot.name}.{link}" for link in slot.graph.links} for slot in cluster}
    for slot in cluster:
        for link, graph_link in slot.graph.links.items():
            network.add_link(live[slot.name][link], graph_link.capacity)
        network.add_link(f"{slot.name}.cores", slot.cores)
    env.process(PhaseExecutor(network, network.log, 0, plan, live)("gradients", 0, 100e6))
    env.run()
    return env.now


def iterations(nodes: int, fold: bool = True, *overrides: str) -> Run:
    """Simulate three iterations of ResNet-50, none skipped, on *nodes* p3.16xlarge."""
    hardware = with_nodes(load_hardware("p3.16xlarge").spec, nodes)
    job = place(hardware)
    batch = load_workload("resnet50").spec.training.batch
    samples = 3 * batch * sum(len(part.gpus) for part in job)
    workload = load_workload("resnet50", [f"dataset.samples={samples}", "input.loader=synthetic", *overrides]).spec
    return simulate(hardware, [Job(workload, job)], exact=True, cold=False, fold=fold)


@pytest.mark.parametrize("ranks", RANKS)
def test_one_all_reduce(benchmark: Any, ranks: int) -> None:
    benchmark.extra_info |= {"label": f"one ring all-reduce, {ranks:,} ranks", "aim": ALL_REDUCE.get(ranks, "")}
    assert benchmark.pedantic(all_reduce, (ranks // 8,), rounds=5, warmup_rounds=1) > 0


@pytest.mark.parametrize("ranks", RANKS)
def test_three_iterations(benchmark: Any, ranks: int) -> None:
    label = f"three data-parallel iterations of ResNet-50, {ranks:,} ranks"
    benchmark.extra_info |= {"label": label, "aim": ITERATIONS.get(ranks, "")}
    run = benchmark.pedantic(iterations, (ranks // 8,), rounds=5, warmup_rounds=1)
    assert sum(rank.size for rank in run.log.ranks) == ranks


@pytest.mark.nightly
def test_three_iterations_of_distinct_ranks(benchmark: Any) -> None:
    """Every rank has its own speed and jitter, and each is simulated individually."""
    benchmark.extra_info |= {"label": "the same, 1,024 ranks that all differ, none folded", "aim": "20 s"}
    noise = ("training.noise.draw=true", "training.noise.compute_cv=0.03", "training.noise.persistent_cv=0.02")
    run = benchmark.pedantic(iterations, (128, False, *noise), rounds=1)
    assert len(run.log.ranks) == 1024


def test_a_large_run_beside_a_small_one(benchmark: Any) -> None:
    """Whole processes, ``--fast``: what 2048 nodes take over what 2 take for the same samples, and the peak memory."""

    measured_only(benchmark)

    def run(nodes: int) -> Used:
        return process([sys.executable, "-m", "sim", "run", "p4d.24xlarge", "resnet50", "--fast", "--nodes", str(nodes), "--set", SAMPLES])

    run(2)
    small, large = (sorted(run(nodes) for _ in range(5))[2] for nodes in (2, 2048))
    benchmark.pedantic(lambda: None)
    took = show(float(f"{large.seconds:.2g}"), "time")
    benchmark.extra_info |= {
        "label": "16,384 GPUs, whole process with `--fast`; over 16 GPUs; peak memory",
        "value": f"{took}; {large.seconds / small.seconds:.2f}x; {show(large.peak, 'size')}",
        "aim": "1 s; 1.5x; 300 MB",
    }


def sweep_points() -> None:
    """Answer every point of a sweep, as one of its processes does; it collects garbage as rarely."""
    usual = gc.get_threshold()
    gc.set_threshold(OBJECTS)
    try:
        with caching(uuid4().hex):
            for point in POINTS:
                row(scenario_at(MAIN, point))
    finally:
        gc.set_threshold(*usual)


def test_runs_in_a_sweep(benchmark: Any) -> None:
    benchmark.extra_info |= {"label": "sweep of the main job, per core", "count": len(POINTS), "unit": "runs/s", "aim": "300 runs/s"}
    benchmark.pedantic(sweep_points, rounds=3, warmup_rounds=1)


def test_where_the_time_of_a_sweep_goes(benchmark: Any) -> None:
    sweep_points()
    shares_by_layer = benchmark.pedantic(lambda: shares(sweep_points), rounds=1)
    said = ", ".join(f"{layer} {share:.0%}" for layer, share in shares_by_layer.items() if share >= 0.01)
    benchmark.extra_info |= {"label": "where it goes", "value": said}


def test_a_whole_epoch_of_imagenet(benchmark: Any) -> None:
    """AlexNet on p2.xlarge with a cold cache and a slow disk: all 5,005 steps, and what the shortcut makes of them."""
    measured_only(benchmark)
    short = answer(Scenario("p2.xlarge", "alexnet", COLD)).run.jobs[0].first
    exact = benchmark.pedantic(lambda: answer(Scenario("p2.xlarge", "alexnet", COLD, exact=True)).run.jobs[0].first, rounds=1)
    assert exact.stalls[Cause.FETCH] > exact.step_time / 2
    off = abs(short.time / exact.time - 1)
    assert off < 1e-3
    took = show(float(f"{benchmark.stats.stats.median:.2g}"), "time")
    benchmark.extra_info |= {
        "label": "ImageNet from a slow disk on p2.xlarge, cold and warm, every step; the shortcut's error",
        "value": f"{took}; {off:.0e}",
        "aim": "- ; 1e-03",
    }


@pytest.mark.parametrize("name", ["densenet161", "llama-7b"])
def test_extracting_a_large_model(benchmark: Any, name: str) -> None:
    """The aim: less than a minute."""
    measured_only(benchmark)
    pytest.importorskip("torch", reason="extracting a model needs torch")
    words = shlex.split(load_part(Model, name).command)
    options = list(zip(words[5::2], words[6::2], strict=True))
    inputs = [text for option, text in options if option == "--input"]
    arguments = parse_arguments([text for option, text in options if option == "--arg"])
    benchmark.extra_info["label"] = f"extracting {name} on torch's meta device, torch imported"
    assert benchmark.pedantic(extract, (words[4], inputs, name, arguments), rounds=1, warmup_rounds=0).layers
