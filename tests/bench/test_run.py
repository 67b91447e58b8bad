"""How fast is a run? Simulated steps per second, one whole run, and the main job as a process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from sim.cluster.build import place
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.study.scenario import Scenario, answer
from sim.training.job import Job


def test_main_job_process(benchmark: Any) -> None:
    """The whole process of ``python -m sim run p3.16xlarge vgg16``."""
    command = [sys.executable, "-m", "sim", "run", "p3.16xlarge", "vgg16", "--json"]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5, warmup_rounds=1)


def test_one_run(benchmark: Any) -> None:
    """Loading, checking and simulating a cold and a warm epoch."""
    benchmark(lambda: answer(Scenario("p3.16xlarge", "vgg16")))


def test_exact_steps(benchmark: Any) -> None:
    """Every one of 200 steps, none skipped; divide for steps per second."""
    hardware = load_hardware("p3.16xlarge").spec
    workload = load_workload("vgg16", ["dataset.samples=102400"]).spec  # 200 steps of 8 x 64
    jobs = [Job(workload, place(hardware))]
    benchmark.pedantic(lambda: simulate(hardware, jobs, exact=True, cold=False), rounds=3, warmup_rounds=1)
