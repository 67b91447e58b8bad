"""Are Gloo's constants found, and no more than the data tell? Oracles: times of the simulator's own ring; the ring played in full."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from calibration.machines.gloo_fit import BETWEEN, INSIDE, gloo_fits, gloo_processor, long_pass
from calibration.machines.machine_fit import MergedRecords, merge_records
from calibration.measure.machine_record import MachineRecord, ProbeRecord, write_record
from sim.training.collectives.price.gloo_ring import segments_time
from tests.calibration.machine_records import Meter, _collective, cpu_record, over_two_machines


def measured(folder: Path, record: MachineRecord) -> MergedRecords:
    write_record(folder / "r.json", record)
    return merge_records([folder / "r.json"])


@pytest.mark.parametrize("one_line", [True, False])
@pytest.mark.parametrize("count", [2, 17, 18, 19, 64, 301])
def test_many_segments_keep_the_rhythm_of_a_few(count: int, one_line: bool) -> None:
    """Wires from idle to busy: the whole pass, segment by segment, is the oracle."""
    for wire in (1e-6, 1e-4, 3e-4, 1e-2):
        assert long_pass(count, wire, 1e-4, one_line) == pytest.approx(segments_time(count, wire, 1e-4, one_line), rel=1e-9)


def test_constants_of_a_socket_come_out(tmp_path: Path) -> None:
    [gloo_fit] = gloo_fits(measured(tmp_path, cpu_record()))
    assert gloo_fit.subject == INSIDE
    assert gloo_fit["hop_latency"].value == pytest.approx(180e-6, rel=0.02) and gloo_fit["time per unit"].value == pytest.approx(
        1 / 0.9e9, rel=0.02
    )
    used = gloo_processor(measured(tmp_path, cpu_record()))
    assert used is not None and used["time per unit"].value == pytest.approx(0.4e-9, rel=0.01)


def test_rings_of_one_size_do_not_tell_start_from_latency(tmp_path: Path) -> None:
    """All-reduces of two ranks alone: a start and two passes are one number to small messages."""
    record = cpu_record(0.02)
    rows = [row for row in record.rows("all_reduce") if (row["ranks"], row["op"]) == (2, "all_reduce") and row["bytes"] < 10**5]
    record.probes["all_reduce"].rows = rows
    [alone] = gloo_fits(measured(tmp_path, record))
    assert not alone["launch"].identified
    assert alone["launch"].high / alone["launch"].low > 5  # the prior's own width, at least


def test_large_all_gathers_tell_the_bandwidth_that_small_collectives_do_not(tmp_path: Path) -> None:
    """Of the probe of sharded jobs; how Gloo scatters and exchanges among all is not modeled, so rows of those change nothing."""
    record = cpu_record()
    every = record.rows("all_reduce")
    record.probes["all_reduce"].rows = [row for row in every if row["bytes"] < 10**5]
    [small] = gloo_fits(measured(tmp_path, record))
    gathers = [_collective(Meter(0.0, 1), "all_gather", ranks, 2**power) for ranks in (2, 8) for power in (20, 24, 26)]
    others = [row | {"op": op, "times_s": [1.0]} for row in gathers for op in ("reduce_scatter", "all_to_all", "send_recv")]
    record.probes["collectives"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=[*gathers, *others])
    [both] = gloo_fits(measured(tmp_path, record))
    assert len(both.times) == len(small.times) + len(gathers)
    assert both["time per unit"].value == pytest.approx(1 / 0.9e9, rel=0.02)
    wide, narrow = (math.log(one["time per unit"].high / one["time per unit"].low) for one in (small, both))
    assert narrow < 0.2 * wide


def test_machines_and_the_network_between_them_are_told_apart(tmp_path: Path) -> None:
    """Rings inside a machine at 0.9 GB/s and 180 us a step; between two at 1 Gbps, of which 0.956 is payload, and 480 us a step."""
    inside, between = gloo_fits(measured(tmp_path, over_two_machines()))
    assert (inside.subject, between.subject) == (INSIDE, BETWEEN)
    assert inside["hop_latency"].value == pytest.approx(180e-6, rel=0.05)
    assert inside["time per unit"].value == pytest.approx(1 / 0.9e9, rel=0.05)
    assert between["hop_latency"].value == pytest.approx(480e-6, rel=0.05)
    assert 1 / between["time per unit"].value == pytest.approx(0.956 * 125e6, rel=0.02)
