"""Do replays take a profile's collectives over Gloo at their cost? Oracles: constants that made the times, and the times themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from calibration.lab.layout_score import COMMITTED_POINTS, HARDWARE
from calibration.lab.plan import WORKLOADS
from calibration.questions import Folders, machine_named
from calibration.traces.import_trace import import_traces
from calibration.traces.kineto import RankTrace
from calibration.traces.replay import JobDescription, replay_text
from calibration.traces.socket_cost import SeenCollective, fitted_sockets, seen_collectives
from sim.cluster.build import with_nodes
from sim.mesh import run_layout
from sim.parallel.program import Op
from sim.spec.library import load_part, load_workload
from sim.spec.transport import Transport
from tests.calibration.traces.test_cpu_traces import cpu_profile
from tests.calibration.traces.test_late_ranks import job_of, sharded

SOCKETS = load_part(Transport, "tcp-single-flow")
RATE = 100e6


def price(sockets: Transport, op: Op, nbytes: float) -> float:
    """Return the launch and the bytes at a share of the line, with twice the bytes for an all-reduce."""
    return sockets.launch + (2.0 if op == "all_reduce" else 1.0) * nbytes / (RATE * sockets.total_efficiency)


def timed(sockets: Transport, sizes: Sequence[float], op: Op = "all_gather") -> list[SeenCollective]:
    return [SeenCollective(op, nbytes, price(sockets, op, nbytes)) for nbytes in sizes]


def fitted(seen: Sequence[SeenCollective]) -> Transport:
    return fitted_sockets(SOCKETS, seen, price)


def test_the_constants_that_made_the_times_are_found_again() -> None:
    truth = SOCKETS.model_copy(update={"launch": 2e-3, "total_efficiency": 0.7})
    shown = fitted([*timed(truth, [1e3, 1e6]), *timed(truth, [5e5], "all_reduce")])
    assert (shown.launch, shown.total_efficiency) == (pytest.approx(2e-3), pytest.approx(0.7))


def test_of_one_size_the_launch_is_that_of_the_stack() -> None:
    truth = SOCKETS.model_copy(update={"total_efficiency": 0.5})
    shown = fitted(timed(truth, [1e6, 1e6]))
    assert (shown.launch, shown.total_efficiency) == (pytest.approx(SOCKETS.launch), pytest.approx(0.5))


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([0.001, 0.015], id="more with bytes than a launch can explain"),
        pytest.param([0.010, 0.012], id="faster than the line"),
        pytest.param([0.015, 0.011], id="shorter with more bytes"),
    ],
)
def test_the_mean_time_is_kept_also_by_times_that_no_constants_make(seconds: Sequence[float]) -> None:
    seen = [SeenCollective("all_gather", nbytes, each) for nbytes, each in zip([4e5, 1e6], seconds, strict=True)]
    shown = fitted(seen)
    assert 0.0 < shown.total_efficiency <= 1.0
    assert fmean(price(shown, each.op, each.nbytes) for each in seen) == pytest.approx(fmean(seconds))


# --- in a profile ------------------------------------------------------------------------------------------------------


def gathering(rank: int, begin: float = 0.0, end: float = 0.0, nbytes: int = 1000) -> RankTrace:
    """A rank whose gathers of 0.2 s begin *begin* later and end *end* later."""
    trace = sharded(rank, [[0.05, 0.02, 0.04]] * 2)
    trace.collectives = [span._replace(t0=span.t0 + begin, t1=span.t1 + end, nbytes=nbytes) for span in trace.collectives]
    return trace


def test_a_collective_lasts_from_the_last_begin_to_the_last_end() -> None:
    seen = seen_collectives(job_of([gathering(0, end=0.01), gathering(1, begin=0.005)]))
    assert [each[:2] for each in seen] == [("all_gather", 2000.0)] * 4  # of the two steps that count; the input is a rank's half
    assert [each.seconds for each in seen] == pytest.approx([0.205] * 4)


def test_collectives_that_cannot_be_compared_are_not_used() -> None:
    own = gathering(0)
    overlapping = replace(own, collectives=[span._replace(t1=span.t1 + 0.3) for span in own.collectives])
    messages = replace(own, collectives=[span._replace(name="gloo:recv") for span in own.collectives])
    for first, second in (
        (own, gathering(1, nbytes=2000)), (gathering(0, nbytes=-1), gathering(1, nbytes=-1)),
        (overlapping, replace(overlapping, rank=1)), (messages, replace(messages, rank=1)),
    ):  # fmt: skip
        assert seen_collectives(job_of([first, second])) == []
    assert seen_collectives(job_of([own])) == []  # one of two ranks


def test_the_profiler_records_the_bytes_of_a_collective(tmp_path: Path) -> None:
    path = cpu_profile(tmp_path, 0)
    shapes = '"args": {"Input Dims": [[8, 64, 256]], "Input type": ["float"]'
    text = path.read_text()
    assert '"name": "gloo:all_reduce"' in text and '"args": {' in text
    marked = [
        line if "gloo:all_reduce" not in line else line.replace('"args": {', f"{shapes}, ")
        for line in text.replace('}, {"ph"', '},\n{"ph"').splitlines()
    ]
    path.write_text("\n".join(marked).replace(", }", "}"))
    (trace,) = import_traces([path]).traces
    assert {span.nbytes for span in trace.collectives} == {4 * 8 * 64 * 256}


def test_replayed_collectives_take_as_long_as_those_of_the_profile(tmp_path: Path) -> None:
    """Gathers of 0.2 s: between two ranks, three halves of a part cross the line one after another (`gloo_ring.gather_time`).

    The exchange is theirs and not that of the stack, unless the user names a stack for the sockets.
    """
    by, mine, fit = tmp_path / "by.yaml", tmp_path / "mine.yaml", tmp_path / "fit.yaml"
    by.write_text("extends: lab-decoder\nname: by\ntraining: {stack: torchtitan-2.x, parallel: {shard: parameters}}\n")
    fit.write_text("extends: gloo-ddp\nname: fit\ngloo_transport: {extends: tcp-single-flow, total_efficiency: 0.5, source: measured}\n")
    machine = str(COMMITTED_POINTS.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    job = job_of([gathering(rank, nbytes=786_944) for rank in range(2)])
    shares = []
    for stack in ("", str(fit)):
        description = JobDescription(machine, str(by), stack, batch=8, folders=Folders(None, WORKLOADS))
        mine.write_text(replay_text(job, description, mine))
        workload = load_workload(str(mine), library=WORKLOADS).spec
        sockets = workload.training.stack.library.gloo_transport
        assert sockets is not None
        shares.append(sockets.total_efficiency)
    assert shares == [pytest.approx(1.5 * 786_944 / (0.2 * 125e6), rel=0.01), 0.5]
    assert run_layout(with_nodes(machine_named(HARDWARE), 2), workload).step_time > 0
