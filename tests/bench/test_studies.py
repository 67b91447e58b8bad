"""How long do whole studies take? Ten thousand what-ifs of the main job, and the whole catalog for one workload, as commands."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from sim.documents import row
from sim.report.figures import flatten
from sim.study.scenario import Scenario
from sim.study.space import points_of
from sim.study.sweep import scenario_at
from tests.bench.test_scale import measured_only

MAIN = Scenario("p3.16xlarge", "vgg16")
VARY = ["node.nic.bandwidth=10..400 Gbps:10", "node.host.cpu.speed=0.8..1.6:25", "batch=25..64:40"]
SAMPLE = 20
"""Rows of the sweep that are compared with runs one by one."""


class Used(NamedTuple):
    """What a command took: seconds on the clock, seconds of CPU in all its processes, and what it wrote."""

    wall: float
    cpu: float
    output: str


def command(*words: str) -> Used:
    """Run ``python -m sim`` with *words*."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "sim", *words], stdout=subprocess.PIPE, text=True, check=True)
    after, wall = os.times(), time.perf_counter() - start
    return Used(wall, after.children_user + after.children_system - before.children_user - before.children_system, done.stdout)


def said(used: Used) -> str:
    """Return what a command took, for the table."""
    return f"{used.wall:.0f} s on {len(os.sched_getaffinity(0))} cores; {used.cpu:.0f} s of CPU"


def test_ten_thousand_what_ifs(benchmark: Any, tmp_path: Path) -> None:
    """The whole command, from start to file; some rows are compared with single runs, to the last digit."""
    measured_only(benchmark)
    points = points_of(VARY, None, 0)
    assert len(points) == 10_000
    varied = [word for text in VARY for word in ("--vary", text)]
    used = command("sweep", MAIN.hardware, MAIN.workload, *varied, "-o", str(tmp_path / "whatifs.csv"), "--quiet")
    with (tmp_path / "whatifs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for index in random.Random(1).sample(range(len(points)), SAMPLE):
        alone = flatten({**dict(points[index]), **row(scenario_at(MAIN, points[index])), "problem": ""})
        assert rows[index] == {name: "" if value is None else str(value) for name, value in alone.items()}
    benchmark.pedantic(lambda: None)
    benchmark.extra_info |= {"label": f"{len(points):,} what-ifs of the main job, to one file", "value": said(used), "aim": "30 s"}


def test_ten_thousand_layouts(benchmark: Any) -> None:
    """The whole command, start to answer, and when the first layout is shown on a terminal."""
    measured_only(benchmark)
    words = ("plan", "hgx-h100", "llama-3.1-70b", "--gpus", "512", "--global-batch", "2048", "--json")
    terminal, of_child = pty.openpty()
    before, start, said_so_far, first = os.times(), time.perf_counter(), b"", 0.0
    with subprocess.Popen([sys.executable, "-m", "sim", *words], stdout=subprocess.PIPE, stderr=of_child, text=True) as child:
        os.close(of_child)
        while first == 0.0:
            said_so_far += os.read(terminal, 4096)
            first = time.perf_counter() - start if b"best" in said_so_far else 0.0
        reader = threading.Thread(target=_drain, args=(terminal,))
        reader.start()
        output, _ = child.communicate()
        reader.join()
    after = os.times()
    used = Used(
        time.perf_counter() - start, after.children_user + after.children_system - before.children_user - before.children_system, ""
    )
    document = json.loads(output)
    assert child.returncode == 0
    assert document["candidates"] >= 10_000
    assert document["complete"]
    benchmark.pedantic(lambda: None)
    label = f"`plan` of `llama-3.1-70b` on 512 GPUs: {document['candidates']:,} layouts, {document['simulated']} simulated; first shown"
    benchmark.extra_info |= {"label": label, "value": f"{said(used)}; {first:.1f} s", "aim": "60 s; 5 s"}


def test_the_least_energy(benchmark: Any) -> None:
    """Bounds of energy exclude most layouts before their programs are evaluated."""
    measured_only(benchmark)
    used = command(
        "plan", "hgx-h100", "llama-3.1-8b", "--nodes", "1..2", "--global-batch", "64", "--objective", "energy", "--json", "--quiet"
    )
    document = json.loads(used.output)
    assert document["complete"]
    benchmark.pedantic(lambda: None)
    label = f"`plan` of `llama-3.1-8b` by energy: {document['candidates']:,} layouts, {document['evaluated']} evaluated"
    benchmark.extra_info |= {"label": label, "value": said(used), "aim": "10 s"}


def _drain(terminal: int) -> None:
    """Read what is shown until the terminal closes."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


def test_the_whole_catalog(benchmark: Any) -> None:
    """Every machine of the catalog for one workload."""
    measured_only(benchmark)
    used = command("compare", "resnet50", "--csv", "--quiet")
    benchmark.pedantic(lambda: None)
    machines = len(used.output.splitlines()) - 1
    benchmark.extra_info |= {"label": f"`compare resnet50`, {machines} machines", "value": said(used), "aim": "10 s"}
