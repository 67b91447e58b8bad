"""Is a rank's own work told from a profile of a divided model? Oracles: spans written by hand, and conservation of their seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.lab.layout_score import COMMITTED, HARDWARE, described
from calibration.lab.plan import WORKLOADS
from calibration.measure.division import Division
from calibration.questions import Folders, machine_named
from calibration.traces.divided import Passes, own_passes, timed_layers
from calibration.traces.import_trace import Imported
from calibration.traces.kineto import CPU, RankTrace, Span
from calibration.traces.replay import Asked, replayed
from sim.analysis.stalls import Window
from sim.cluster.build import with_nodes
from sim.events import EventLog
from sim.mesh import run_layout
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError

OWN = Passes(0.03, 0.06, 0.01)


def trace(rank: int, slower: float = 1.0) -> RankTrace:
    """Three steps: forward, a gather of 0.2 s inside it; backward, in which two collectives overlap for 0.1 s; the optimizer."""
    found = RankTrace("rank.json", rank, 2, "host", CPU, divided="gloo:all_gather")
    at = 0.0
    for number in range(3):
        forward, backward, update = (seconds * slower for seconds in OWN)
        begin, at = at, at + forward / 2 + 0.2 + forward / 2
        found.collectives.append(Span("gloo:all_gather", begin + forward / 2, begin + forward / 2 + 0.2))
        found.backward.append(Span("backward", at, at + 0.01))
        found.collectives += [Span("gloo:all_reduce", at + 0.01, at + 0.31), Span("gloo:all_reduce", at + 0.21, at + 0.41)]
        at += 0.4 + backward
        found.optimizer.append(Span("SGD", at, at + update))
        at += update
        found.steps[number] = Span(f"ProfilerStep#{number}", begin, at)
    return found


def imported(*traces: RankTrace) -> Imported:
    windows = [Window(0.0, 1.0, 2) for _ in traces]
    return Imported(traces, EventLog(lambda: 0.0), windows, 0.7, (), [{} for _ in traces])


def test_what_is_left_of_a_step_is_the_ranks_own() -> None:
    assert own_passes(imported(trace(0))) == pytest.approx(OWN)
    assert own_passes(imported(trace(0), trace(1, slower=2.0))) == pytest.approx([1.5 * seconds for seconds in OWN])


def test_layers_take_what_was_seen_together() -> None:
    base = described(Division(tensor=2), 8)
    gpu = machine_named(HARDWARE).groups[0].node.gpu
    layers = timed_layers(base, gpu, [(range(6), {"F": 0.3, "B": 0.7})])
    times = [layer.measured for layer in layers if layer.measured is not None]
    assert sum(each.forward for each in times) == pytest.approx(0.3)
    assert sum(each.backward for each in times) == pytest.approx(0.7)


def test_a_sharded_job_is_replayed(tmp_path: Path) -> None:
    """On a network that costs next to nothing the step is the ranks' own work; on a slower one it is longer."""
    machine = str(COMMITTED.parents[1] / "hardware" / f"{HARDWARE}.yaml")
    asked = Asked(machine, str(written(tmp_path)), batch=8, folders=Folders(None, WORKLOADS))
    mine = tmp_path / "mine.yaml"
    mine.write_text(replayed(imported(trace(0), trace(1)), asked, mine))
    workload = load_workload(str(mine), library=WORKLOADS).spec
    fast, slow = (with_nodes(machine_named(HARDWARE, (f"node.nic.bandwidth={rate}",)), 2) for rate in ("1 Tbps", "1 Gbps"))
    stack = workload.training.stack
    assert stack.gloo_transport is not None
    free = stack.model_copy(update={"gloo_transport": stack.gloo_transport.model_copy(update={"launch": 0.0, "cpu_time_per_byte": 0.0})})
    bare = workload.model_copy(update={"training": workload.training.model_copy(update={"stack": free})})
    assert run_layout(fast, bare).step_time == pytest.approx(sum(OWN), rel=0.1)
    assert run_layout(slow, workload).step_time > 2 * sum(OWN)


def written(folder: Path) -> Path:
    """A workload that says the layout."""
    path = folder / "sharded.yaml"
    path.write_text("extends: lab-decoder\nname: sharded\ntraining: {stack: lab-gloo-mesh, parallel: {shard: parameters}}\n")
    return path


def test_what_a_profile_cannot_tell_is_said() -> None:
    with pytest.raises(SpecError, match="pipelined jobs are not replayed"):
        own_passes(imported(replace(trace(0), collectives=[Span("gloo:send", 0.0, 1.0)])))
    with pytest.raises(SpecError, match="no backward followed by an optimizer"):
        own_passes(imported(replace(trace(0), backward=[])))
