"""How fast is a run? Simulated steps per second, one whole run, drawn steps, and the main job as a process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from sim.cluster.build import place
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.study.scenario import Scenario, answer
from sim.training.job import Job
from sim.units import show
from tests.bench.process import Used, process

STEPS = 200
MAIN_JOB = [sys.executable, "-m", "sim", "run", "p3.16xlarge", "vgg16", "--json"]


def steps(*overrides: str) -> Callable[[], object]:
    """Return what simulates every one of 200 steps of the main job, none skipped."""
    hardware = load_hardware("p3.16xlarge").spec
    workload = load_workload("vgg16", [f"dataset.samples={STEPS * 8 * 64}", *overrides]).spec
    jobs = [Job(workload, place(hardware))]
    return lambda: simulate(hardware, jobs, exact=True, cold=False)


def run_main_job(benchmark: Any, *options: str) -> list[Used]:
    """Run the main job as a process five times; return what each used."""
    used: list[Used] = []
    benchmark.pedantic(lambda: used.append(process([*MAIN_JOB, *options])), rounds=5, warmup_rounds=1)
    return used


def cpu_time(used: list[Used]) -> str:
    """Return the median CPU time of processes."""
    return show(float(f"{median(each.seconds for each in used):.2g}"), "time")


def test_main_job_process(benchmark: Any) -> None:
    """The whole process of ``python -m sim run p3.16xlarge vgg16``, counterfactual runs and estimates included; and its peak memory."""
    used = run_main_job(benchmark)
    peak = max(each.peak for each in used)
    benchmark.extra_info |= {
        "label": "main job, whole process; peak memory",
        "value": f"{cpu_time(used)}; {show(peak, 'size')}",
        "aim": "500 ms",
    }


def test_main_job_process_fast(benchmark: Any) -> None:
    """The same with ``--fast``: one cold and one warm epoch."""
    benchmark.extra_info |= {"label": "main job with `--fast`, whole process", "value": cpu_time(run_main_job(benchmark, "--fast"))}


def test_one_run(benchmark: Any) -> None:
    """Loading, checking and simulating a cold and a warm epoch."""
    benchmark.extra_info["label"] = "main job inside a process: load, check, simulate two epochs"
    benchmark(lambda: answer(Scenario("p3.16xlarge", "vgg16")))


def test_exact_steps(benchmark: Any) -> None:
    """Every step, none skipped."""
    benchmark.extra_info |= {"label": "simulated steps, none skipped", "count": STEPS, "unit": "steps/s"}
    benchmark.pedantic(steps(), rounds=3, warmup_rounds=1)


def test_drawn_steps(benchmark: Any) -> None:
    """Every step, drawn at random."""
    benchmark.extra_info |= {"label": "simulated steps, drawn at random", "count": STEPS, "unit": "steps/s"}
    benchmark.pedantic(steps("training.noise.draw=true", "training.noise.compute_cv=0.03"), rounds=3, warmup_rounds=1)
