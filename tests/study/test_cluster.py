"""Oracle: the same sweep in this process. The scheduler and its workers are processes of their own, on loopback."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from sim.analysis.whole_job import JobPlan
from sim.documents import RentalOptions, recommendation, row
from sim.report.plan import plan_document
from sim.spec.yaml import SpecError
from sim.study.cluster import TaskFiles, _quietly, each_on_cluster, task_files
from sim.study.plan.ahead import workers
from sim.study.plan.question import PlanQuestion, plan
from sim.study.recommend import Budget
from sim.study.scenario import Scenario
from sim.study.space import axis, grid
from sim.study.sweep import sweep

BASE = Scenario("p3.2xlarge", "resnet18")
POINTS = grid([axis("batch=8,16,24,32,40,48,56,64")])
NOTHING = TaskFiles("", os.getcwd(), (), ())


class Machines(NamedTuple):
    """A scheduler's address, its worker processes, and how to start another."""

    address: str
    workers: list[subprocess.Popen[str]]
    another: Callable[[], subprocess.Popen[str]]


def _start(stack: ExitStack, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a dask process that ends with *stack*; return it and the scheduler's address, once it listens or is known there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stderr is not None
    stack.enter_context(process.stderr)
    said = ""
    for line in process.stderr:
        said += line
        if match := re.search(r"(?:Scheduler at|Registered to):\s+tcp://(\S+)", line):
            return process, match.group(1)
    pytest.fail(f"{words[0]} ended before it listened: {said}")


@contextmanager
def _cluster() -> Iterator[Machines]:
    pytest.importorskip("distributed", reason="dask.distributed is not installed: pip install 'dask[distributed]'")
    with ExitStack() as stack:
        scheduler = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        _, address = _start(stack, *scheduler)
        worker = ("distributed.cli.dask_worker", f"tcp://{address}", "--no-nanny", "--nthreads", "1", "--no-dashboard")
        yield Machines(f"dask://{address}", [_start(stack, *worker)[0] for _ in range(2)], lambda: _start(stack, *worker)[0])


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Machines of a test that may kill them."""
    with _cluster() as mine:
        yield mine


@pytest.fixture(scope="module")
def lasting() -> Iterator[Machines]:
    """Machines that all tests leave as they are: to start them takes longer than what is asked of them."""
    with _cluster() as ours:
        yield ours


@pytest.mark.nightly
def test_a_sweep_survives_a_worker(machines: Machines, capfd: pytest.CaptureFixture[str]) -> None:
    """Oracle: the sweep on one process; nothing is said of the loss on stderr."""
    reports: list[tuple[int, int]] = []

    def kill_one(done: int, of: int) -> None:
        reports.append((done, of))
        if done == 1:
            machines.workers[0].send_signal(signal.SIGKILL)

    assert sweep(BASE, POINTS, row, cluster=machines.address, progress=kill_one) == sweep(BASE, POINTS, row, processes=1)
    assert reports[-1] == (len(POINTS), len(POINTS))
    assert machines.workers[0].wait(240) == -signal.SIGKILL
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_plan_on_a_cluster_is_that_of_one_process(lasting: Machines) -> None:
    question = PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=8), (1,), 2)
    with workers(None, lasting.address, print) as crew:
        assert crew is not None
        assert crew.processes == 2
        assert plan_document(plan(question, crew=crew)) == plan_document(plan(question))


@pytest.mark.slow
def test_a_recommendation_on_a_cluster_is_that_of_one_process(lasting: Machines, tmp_path: Path) -> None:
    """Machines by files of the user's own, which travel; rows come in any order, and each is kept."""
    own = tmp_path / "mine.yaml"
    own.write_text("extends: p3.8xlarge\nname: mine\n")
    renting = RentalOptions(Budget(money=1e6), ["p3.2xlarge", str(own)], nodes=[1, 2], processes=1)
    scenario = Scenario("", "resnet18", plan=JobPlan(1))
    there = replace(renting, processes=None, cluster=lasting.address, journal=tmp_path / "rent.journal")
    assert recommendation(scenario, there) == recommendation(scenario, renting)
    assert len((tmp_path / "rent.journal").read_text().splitlines()) == 4


def test_dask_s_own_warnings_are_kept_back_while_it_works() -> None:
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    before = [logger.level for logger in loggers]
    with _quietly():
        assert not any(logger.isEnabledFor(logging.ERROR) for logger in loggers)
    assert [logger.level for logger in loggers] == before


_SWEEP = """
import sys
from pathlib import Path
from sim.documents import row
from sim.study.sweep import sweep
from tests.study.test_cluster import BASE, POINTS
sweep(BASE, POINTS, row, journal=Path(sys.argv[2]), cluster=sys.argv[1], progress=lambda done, of: print(done, flush=True))
"""


@pytest.mark.nightly
def test_a_sweep_that_was_killed_goes_on(machines: Machines, tmp_path: Path) -> None:
    journal = tmp_path / "sweep.csv.journal"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.Popen(
        [sys.executable, "-c", _SWEEP, machines.address, str(journal)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert killed.stdout is not None
    with killed.stdout:
        assert [killed.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
        killed.kill()
        killed.wait(240)
    reports: list[tuple[int, int]] = []
    rows = sweep(BASE, POINTS, row, journal=journal, cluster=machines.address, progress=lambda done, of: reports.append((done, of)))
    assert rows == sweep(BASE, POINTS, row, processes=1)
    assert reports[0][0] > 2


@pytest.mark.slow
def test_own_files_travel_and_messages_name_them(lasting: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts" / "gpus").mkdir(parents=True)
    (tmp_path / "parts" / "gpus" / "mine.yaml").write_text("extends: v100-sxm2-16gb\nname: mine\n")
    (tmp_path / "box.yaml").write_text("extends: p3.2xlarge\nname: box\nnode:\n  gpu: mine\n")
    (tmp_path / "other.yaml").write_text("extends: box.yaml\nname: other\nnode:\n  nic:\n    bandwidth: 1 parsec\n")
    monkeypatch.chdir(tmp_path)
    points = grid([axis("hardware=box.yaml,other.yaml"), axis("batch=16,32,48")])
    here = sweep(BASE, points, row, processes=1)
    assert here[0]["problem"] == ""
    assert here[3]["problem"].startswith("other.yaml:5:5: node.nic.bandwidth")
    for worker in lasting.workers:  # they run elsewhere: what is not sent is not there
        assert os.readlink(f"/proc/{worker.pid}/cwd") != str(tmp_path)
    assert sweep(BASE, points, row, cluster=lasting.address) == here


@pytest.mark.nightly
def test_another_version_or_catalog_is_refused(lasting: Machines) -> None:
    luggage = task_files([Path(__file__).parents[2] / "hardware" / "p3.2xlarge.yaml"])
    assert luggage.files == ()
    assert [name for name, _ in luggage.catalog] == ["hardware/p3.2xlarge.yaml"]
    for wrong, said in (
        (luggage._replace(version="0.0"), r"worker has stallsim .*, this machine has 0\.0"),
        (luggage._replace(catalog=(("hardware/p3.2xlarge.yaml", "0"),)), "differs on a worker"),
    ):
        with pytest.raises(SpecError, match=said):
            list(each_on_cluster(lasting.address, str, [1], wrong))
    assert sorted(each_on_cluster(lasting.address, str, [1, 2], luggage)) == ["1", "2"]


@pytest.mark.parametrize("address", ["", "localhost", "dask://host", "dask://host:99999", "http://host:80", "dask://:80"])
def test_addresses_have_a_host_and_a_port(address: str) -> None:
    with pytest.raises(SpecError, match="write dask://HOST:PORT"):
        list(each_on_cluster(address, str, [1], NOTHING))


def test_a_sweep_that_cannot_begin_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="write dask://HOST:PORT"):
        sweep(BASE, POINTS, row, journal=tmp_path / "sweep.journal", cluster="localhost")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_cluster_that_loses_its_workers_is_waited_for(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both die after the first point. Another comes when the user hears of it; the next time none does."""
    monkeypatch.setattr("sim.study.cluster._LOOK_EVERY", 0.1)
    heard: list[str] = []

    def kill_all(done: int, of: int) -> None:
        if done == 1:
            for worker in machines.workers:
                worker.kill()

    def bring_another(text: str) -> None:
        heard.append(text)
        machines.workers[:] = [machines.another()]

    rows = sweep(BASE, POINTS, row, cluster=machines.address, progress=kill_all, notice=bring_another)
    assert rows == sweep(BASE, POINTS, row, processes=1)
    (said,) = heard
    assert re.fullmatch(r"dask://\S+ has lost its workers after \d of 8 runs; waiting 60 s for new ones", said)
    monkeypatch.setattr("sim.study.cluster._PATIENCE", 0.5)
    many = grid([axis(f"batch={','.join(map(str, range(8, 808, 8)))}")])  # more than a worker can do before it is killed
    with pytest.raises(SpecError, match=r"no workers are left after \d+ of 100 runs; once some are back, the same command resumes"):
        sweep(BASE, many, row, cluster=machines.address, progress=kill_all)


def test_wrong_addresses_are_told_apart_at_once() -> None:
    """A name nobody has, and a port that is taken but not listened on."""
    pytest.importorskip("distributed", reason="dask.distributed is not installed: pip install 'dask[distributed]'")
    with pytest.raises(SpecError, match=r"unknown host nowhere\.invalid$"):
        list(each_on_cluster("dask://nowhere.invalid:8786", str, [1], NOTHING))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said = rf"no scheduler responds there \(Connection refused\); start one with 'dask scheduler --port {port}'"
        with pytest.raises(SpecError, match=said):
            list(each_on_cluster(f"tcp://127.0.0.1:{port}", str, [1], NOTHING))


@pytest.mark.slow
def test_something_else_or_an_idle_scheduler_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="dask.distributed is not installed: pip install 'dask[distributed]'")
    monkeypatch.setattr("sim.study.cluster._ANSWER_TIME", 1.0)
    heard: list[str] = []
    with ExitStack() as stack:
        _, address = _start(stack, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        with pytest.raises(SpecError, match=f"has no workers; start some with 'dask worker tcp://{address}'"):
            list(each_on_cluster(f"dask://{address}", str, [1], NOTHING, heard.append))
    assert heard == [f"dask://{address} has no workers yet; waiting 1 s for the first"]
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as website:
        threading.Thread(target=website.serve_forever, daemon=True).start()
        with pytest.raises(SpecError, match="the process listening there is not a dask scheduler"):
            list(each_on_cluster(f"dask://127.0.0.1:{website.server_port}", str, [1], NOTHING))
        website.shutdown()
