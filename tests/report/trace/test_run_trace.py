"""Does a trace show what the simulation did? Oracles: the event log's own analysis, geometry of slices, HolisticTraceAnalysis."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from calibration.traces.import_trace import import_traces
from sim.analysis.stalls import Window, blame
from sim.cli import main
from sim.events import STALLS, Cause, EventLog
from sim.report.trace.excerpt import Excerpt, excerpt, loads
from sim.report.trace.run_trace import _numbers, trace_document, write_trace
from sim.simulate import Run
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer
from tests import harness
from tests.examples import examples
from tests.harness import layer, machine, toy_workload

Event = dict[str, Any]

CASES = {
    "exchange": Scenario("p3.16xlarge", "resnet50", nodes=2),
    "host-bound": Scenario("p3.16xlarge", "resnet50", nodes=2, batch=4),
    "workers": Scenario("p3.2xlarge", "resnet50", ("input.num_workers=2",)),
    "no workers": Scenario("p3.16xlarge", "resnet50", ("input.num_workers=0",)),
    "DALI": Scenario("p3.16xlarge", "resnet50", ("input.loader=dali_gpu",)),
    "accumulation": Scenario("p3.16xlarge", "resnet50", ("training.gradient_accumulation_steps=3",)),
    "drawn": Scenario("p3.16xlarge", "resnet50", ("training.noise.draw=true", "dataset.samples=40000")),
    "servers": Scenario("cm-dare-p100", "resnet50", stack="tf-parameter-server"),
    "slow disk": Scenario("p3.16xlarge", "alexnet", ("node.host.memory=16 GiB",)),
}


def traced_stalls(run: Run, chosen: Excerpt, job: int = 0) -> dict[Cause, float]:
    """Return the seconds per step of each cause in the steps of *chosen*, by the same analysis as for every run."""
    table = dict.fromkeys(STALLS, 0.0)
    ranks = [rank for rank in chosen.ranks if run.log.ranks[rank.index].job == job]
    total = sum(run.log.ranks[rank.index].size for rank in ranks)
    log = EventLog(lambda: 0.0, ranks=run.log.ranks)
    for rank in ranks:
        log.waits += rank.waits
        log.work += [*rank.compute, *rank.bounds, *rank.copies, *rank.loader]
    windows = [Window(rank.boundaries[0], rank.boundaries[-1], len(rank.boundaries) - 1) for rank in ranks]
    for rank, window, rows in zip(ranks, windows, blame(log, windows), strict=True):
        for row in rows:
            if row.rank == rank.index:
                table[row.cause] += row.seconds / window.steps * run.log.ranks[rank.index].size / total
    return table


@cache
def traced(case: str) -> Run:
    return answer(CASES[case], keep_rates=True).run


def slices(document: Event) -> list[Event]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def tracks(document: Event) -> Iterator[list[Event]]:
    by_track: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in slices(document):
        by_track[event["pid"], event["tid"]].append(event)
    yield from by_track.values()


def assert_nested(document: Event) -> None:
    """On each track two slices are disjoint, or one holds the other."""
    for track in tracks(document):
        open_until: list[float] = []
        for event in sorted(track, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"] + 1e-5:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 1e-5, event
            open_until.append(end)


@pytest.mark.parametrize("case", CASES)
def test_a_trace_imports_to_the_stalls_of_its_steps(case: str, tmp_path: Path) -> None:
    run = traced(case)
    path = tmp_path / "trace.json"
    write_trace(run, path)
    imported, chosen = import_traces([path]), excerpt(run)
    own = traced_stalls(run, chosen)
    for cause, seconds in own.items():
        assert imported.stalls[cause] == pytest.approx(seconds, rel=1e-6, abs=1e-6 * imported.step_time), cause
    assert sum(imported.stalls.values()) == pytest.approx(imported.step_time, rel=1e-9)
    if "period" in chosen.note:
        warm = run.jobs[0].warm
        assert own == pytest.approx({cause: warm.stalls[cause] for cause in own}, rel=1e-6, abs=1e-6 * warm.step_time)


@pytest.mark.parametrize("case", CASES)
def test_slices_of_a_track_nest_or_are_disjoint(case: str) -> None:
    run = traced(case)
    assert_nested(trace_document(run, excerpt(run)))


@examples(
    10,
    25,
    compute=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3000)), min_size=1, max_size=4),
    workers=st.integers(0, 3),
    prep=st.integers(1, 90),
    prepared=st.integers(0, 200),
    accumulation=st.integers(1, 2),
    cores=st.integers(1, 8),
    launch=st.sampled_from(["0 s", "5 ms"]),
    spread=st.sampled_from([0.0, 0.05]),
    steps=st.integers(1, 5),
)
def test_any_job_s_trace_nests_and_imports_to_its_stalls(
    tmp_path_factory: pytest.TempPathFactory, compute: list[tuple[int, int]], workers: int, prep: int, prepared: int, accumulation: int,
    cores: int, launch: str, spread: float, steps: int,
) -> None:  # fmt: skip
    workload = toy_workload(
        [layer(work / 1e3, work / 5e2, 1 + 1000 * elements) for work, elements in compute], loader="pytorch", prep=prep / 1e3,
        prepared=prepared * 1e5, accumulation=accumulation, inputs={"num_workers": workers}, stack={"launch_cpu": launch},
    )  # fmt: skip
    run = harness.run(
        machine(2, 2, cores=cores, disk=harness.volume(), compute_cv=spread, memory=1e9, hop_latency=1e-4, network_latency=1e-3), workload,
        keep_rates=True,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(run, path, steps)
    assert_nested(json.loads(path.read_text()))
    imported = import_traces([path])
    own = traced_stalls(run, excerpt(run, steps))
    assert imported.stalls == pytest.approx(own, rel=1e-6, abs=1e-6 * imported.step_time)


def test_every_step_and_rank_class_is_there() -> None:
    run = traced("exchange")
    document = trace_document(run, excerpt(run, steps=4))
    named = [event for event in slices(document) if event["name"].startswith("ProfilerStep#")]
    ranks = document["stallsim"]["ranks"]
    assert sum(rank["stands_for"] for rank in ranks) == 16 == document["distributedInfo"]["world_size"]
    assert len(named) == 4 * len(ranks) == 4 * len(run.log.ranks)
    assert sum(event["dur"] for event in named) / len(named) == pytest.approx(1e6 * run.jobs[0].warm.step_time)


def test_arrows_lead_from_ready_gradients_to_their_collective() -> None:
    document = trace_document(traced("exchange"), excerpt(traced("exchange")))
    kernels = {(event["pid"], event["tid"], event["ts"]): event for event in slices(document) if event["cat"] == "kernel"}
    starts = {event["id"]: event for event in document["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event for event in document["traceEvents"] if event["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) >= 3 * 4
    for ident, start in starts.items():
        leaves = next(
            event for event in kernels.values()
            if (event["pid"], event["tid"]) == (start["pid"], start["tid"]) and event["ts"] <= start["ts"] < event["ts"] + event["dur"]
        )  # fmt: skip
        arrives = kernels[ends[ident]["pid"], ends[ident]["tid"], ends[ident]["ts"]]
        assert arrives["name"].startswith("ncclKernel_AllReduce")
        assert leaves["args"]["bucket"] == arrives["args"]["bucket"]


def test_counters_are_what_the_links_carry() -> None:
    """Oracle: the rates of the log, and the capacity that no link exceeds."""
    run = traced("exchange")
    counters: dict[str, list[Event]] = defaultdict(list)
    for event in trace_document(run, excerpt(run))["traceEvents"]:
        if event["ph"] == "C":
            counters[event["name"]].append(event)
    assert counters
    period = run.jobs[0].warm.windows[-1]
    for link, events in counters.items():
        assert all(0 <= event["args"]["per cent"] <= 100 * (1 + 1e-9) for event in events)
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
        begun = [load for time, load in loads(run.log)[link] if period.start - 1e-9 <= time < period.end - 1e-9]
        once = {round(100 * load / run.log.capacity[link], 4) for load in begun}
        assert {event["args"]["per cent"] for event in events[1:]} <= once


def test_counters_show_what_begins_with_a_step() -> None:
    """Oracle: each step copies one batch over the port of GPU 0, from the moment at which the step begins."""
    run = traced("workers")
    port, workload = run.log.links["n0"]["socket0>gpu0"], run.jobs[0].job.workload
    chosen = excerpt(run)
    steps, end = chosen.loads[port], chosen.ranks[0].boundaries[-1]
    times = [*(time for time, _ in steps[1:]), end]
    carried = sum(load * (later - time) for (time, load), later in zip(steps, times, strict=True))
    assert carried == pytest.approx((len(chosen.ranks[0].boundaries) - 1) * workload.training.batch * workload.dataset.prepared)


@pytest.mark.parametrize("case", CASES)
def test_every_event_is_as_the_format_asks(case: str) -> None:
    """Oracle: what Google's Trace Event Format asks of each phase; names of tracks stand before anything is on them."""
    numbers, text = (int, float), str
    required: dict[str, dict[str, Any]] = {
        "X": {"name": text, "cat": text, "ts": numbers, "dur": numbers, "pid": int, "tid": int},
        "C": {"name": text, "ts": numbers, "pid": int, "args": dict},
        "s": {"name": text, "cat": text, "id": int, "ts": numbers, "pid": int, "tid": int},
        "f": {"name": text, "cat": text, "id": int, "ts": numbers, "pid": int, "tid": int, "bp": text},
        "M": {"name": text, "args": dict, "pid": int},
    }
    document = json.loads(json.dumps(trace_document(traced(case), excerpt(traced(case)))))
    named = set()
    for event in document["traceEvents"]:
        for key, kind in required[event["ph"]].items():
            assert isinstance(event.get(key), kind) and not isinstance(event[key], bool), (key, event)
        if event["ph"] == "M":
            has_value = "sort_index" in event["args"] or "name" in event["args"] or "labels" in event["args"]
            assert event["name"].startswith(("process_", "thread_")) and has_value, event
            named |= {(event["pid"], event.get("tid"))} if event["name"] == "thread_name" else set()
        if event["ph"] == "X":
            assert event["dur"] >= 0 and (event["pid"], event["tid"]) in named, event
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, numbers) for value in event["args"].values()), event


def test_compressed_and_per_rank_files_hold_the_same(tmp_path: Path) -> None:
    run = traced("exchange")
    write_trace(run, tmp_path / "all.json")
    write_trace(run, tmp_path / "all.json.gz")
    files, ranks = [f"rank{number}.json" for number in _numbers(run.log)], sum(rank.size for rank in run.log.ranks)
    note = write_trace(run, tmp_path / "ranks")
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == sorted(files)
    assert ("identical" in note) == (ranks > len(files))
    plain = json.loads((tmp_path / "all.json").read_text())
    assert json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes())) == plain
    apart = [json.loads(path.read_text()) for path in (tmp_path / "ranks").iterdir()]
    assert sorted(event["ts"] for document in apart for event in slices(document)) == sorted(event["ts"] for event in slices(plain))
    together = import_traces([tmp_path / "all.json"]).stalls
    assert import_traces((tmp_path / "ranks").iterdir()).stalls == pytest.approx(together)


def test_what_cannot_be_traced_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"trace\.txt: write FILE\.json"):
        write_trace(traced("exchange"), tmp_path / "trace.txt")
    with pytest.raises(SpecError, match="0 steps: write 1 or more"):
        write_trace(traced("exchange"), tmp_path / "trace.json", 0)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json.gz"
    assert main(["run", "p3.2xlarge", "resnet50", "--fast", "--json", "--trace", str(path)]) == 0
    shown = capsys.readouterr()
    step = json.loads(shown.out)["step_time_s"]
    assert str(path) in shown.err
    assert import_traces([path]).step_time == pytest.approx(step, rel=1e-6)
    assert main(["run", "p3.16xlarge", "resnet50", "--nodes", "1..2", "--trace", str(path)]) == 2
    assert "a trace shows one run" in capsys.readouterr().err


# --- HolisticTraceAnalysis -------------------------------------------------------------------------------------------

HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
table = TraceAnalysis(trace_dir=sys.argv[1]).get_temporal_breakdown(visualize=False)
print(table.set_index("rank").to_json(orient="index"))
"""


@cache
def hta_python() -> str | None:
    """The first interpreter that runs HolisticTraceAnalysis, whose version 0.5 fails with pandas 3: HTA_PYTHON, `make oracles`', this."""
    interpreters = [os.environ.get("HTA_PYTHON", ""), str(Path(sys.prefix) / "oracles" / "bin" / "python"), sys.executable]
    probe = "import pandas, hta.trace_analysis; assert int(pandas.__version__.split('.')[0]) < 3"
    there = [python for python in interpreters if Path(python).is_file()]
    return next(
        (python for python in there if subprocess.run([python, "-c", probe], capture_output=True, timeout=240).returncode == 0), None
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("DALI", "servers")])
def test_holistic_trace_analysis_finds_the_same_breakdown(case: str, tmp_path: Path) -> None:
    """Oracle: HTA's temporal breakdown; it leaves out the last step, and time before a rank's first kernel and after its last.

    HTA calls every kernel compute but NCCL's and copies: decoding on the GPU, and what waits for servers, too.
    """
    python = hta_python()
    if python is None:
        pytest.skip(
            "HolisticTraceAnalysis with pandas before 3 is not installed: make oracles, or name an interpreter that has it in HTA_PYTHON"
        )
    run = traced(case)
    write_trace(run, tmp_path, steps=41)
    shown = subprocess.run([python, "-c", HTA, str(tmp_path)], capture_output=True, text=True, check=True, timeout=240).stdout
    breakdown = json.loads(shown.splitlines()[-1])
    assert breakdown
    stalls = run.jobs[0].warm.stalls
    step_time = run.jobs[0].warm.step_time
    times = {name: sum(rank[f"{name}(us)"] for rank in breakdown.values()) for name in ("idle_time", "compute_time", "non_compute_time")}
    total = sum(times.values())
    idle = stalls[Cause.LAUNCH] + stalls[Cause.FETCH] + stalls[Cause.PREP]
    assert times["compute_time"] / total == pytest.approx(stalls[Cause.COMPUTE] / step_time, abs=0.01)
    assert times["idle_time"] / total == pytest.approx(idle / step_time, abs=0.01)
    assert times["non_compute_time"] / total == pytest.approx(1 - (stalls[Cause.COMPUTE] + idle) / step_time, abs=0.01)
