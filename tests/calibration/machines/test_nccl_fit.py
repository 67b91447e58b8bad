"""Are factors on transport classes found? Oracle: collectives predicted on a machine whose classes were scaled by known factors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from calibration.machines import fit_run
from calibration.machines.machine_fit import merge_records
from calibration.machines.nccl_fit import PredictedTimes, _collective, nccl_fit, record_blocks
from calibration.measure.machine_record import MachineRecord, ProbeRecord, write_record
from calibration.measure.probes.collectives import OPERATIONS
from sim.spec.library import load_hardware
from tests.calibration.machine_records import gpu_record

NVLINK = "nvlink_transport"


ONE = ({"ranks": 2}, {"ranks": 8})
TWO = ({"ranks": 2, "nodes": 2}, {"ranks": 16, "nodes": 2})


def record(hardware: str, factors: dict[tuple[str, str], float], noise: float = 0.0, teams: tuple[dict, ...] = ONE) -> MachineRecord:
    """Return a record of 8 V100s a machine whose collectives take what *hardware* with *factors* is predicted to take."""
    gpu, generator = gpu_record(8), np.random.default_rng(1)
    rows = [{"op": "all_reduce", **team, "bytes": 4**power, "cpu_s": 0.0} for team in teams for power in range(2, 15)]
    rows += [{"op": "all_gather", **team, "bytes": size, "cpu_s": 0.0} for team in teams for size in (512, 4096)]
    logs = {key: math.log(factor) for key, factor in factors.items()}
    predicted = PredictedTimes(load_hardware(hardware).spec, [_collective(row) for row in rows])
    times = predicted.times(logs) * np.exp(generator.normal(0.0, noise, len(rows)))
    made = [row | {"times_s": [float(time)] * 3} for row, time in zip(rows, times, strict=True)]
    gpu.probes["all_reduce"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=made)
    return gpu


def test_factors_come_out_and_stand_in_the_description(tmp_path: Path) -> None:
    truth = {(NVLINK, "efficiency"): 0.8, (NVLINK, "latency"): 1.5}
    write_record(tmp_path / "r.json", record("p3.16xlarge", truth, noise=0.03))
    subjects = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml", "p3.16xlarge").fits
    efficiency, latency = subjects["nccl"]["nvlink transport efficiency"], subjects["nccl"]["nvlink transport latency"]
    assert efficiency.identified and efficiency.low < 0.8 < efficiency.high and efficiency.value == pytest.approx(0.8, rel=0.05)
    assert latency.identified and latency.low < 1.5 < latency.high
    before, after = (load_hardware(name).spec.groups[0].node for name in ("p3.16xlarge", str(tmp_path / "r.yaml")))
    assert after.over_nvlink.hop_latency / before.over_nvlink.hop_latency == pytest.approx(latency.value, rel=1e-3)
    ratios = [new[1] / old[1] for new, old in zip(after.over_nvlink.efficiency, before.over_nvlink.efficiency, strict=True)]
    assert ratios == pytest.approx([efficiency.value] * len(ratios), rel=1e-2)
    assert after.host_transport == before.host_transport  # which no ring crosses


@pytest.mark.nightly
def test_a_machine_as_described_stays_so(tmp_path: Path) -> None:
    write_record(tmp_path / "r.json", record("p3.16xlarge", {}))
    subjects = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml", "p3.16xlarge").fits
    assert all(estimate.value == pytest.approx(1.0, rel=1e-2) for estimate in subjects["nccl"].posterior.estimates)


@pytest.mark.nightly
def test_collectives_of_sharded_jobs_tell_the_factors_too(tmp_path: Path) -> None:
    """No all-reduce is in the record: all-gathers, reduce-scatters, exchanges among all and sends to the next rank alone."""
    truth = {(NVLINK, "efficiency"): 0.7, (NVLINK, "latency"): 1.6}
    gpu, logs = gpu_record(8), {key: math.log(factor) for key, factor in truth.items()}
    rows = [{"op": op, **team, "bytes": 4**power, "cpu_s": 0.0} for op in OPERATIONS for team in ONE[1:] for power in (6, 10, 13)]
    times = PredictedTimes(load_hardware("p3.16xlarge").spec, [_collective(row) for row in rows]).times(logs)
    made = [row | {"times_s": [float(time)] * 3} for row, time in zip(rows, times, strict=True)]
    gpu.probes["collectives"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=made)
    write_record(tmp_path / "r.json", gpu)
    measured, described = merge_records([tmp_path / "r.json"]), load_hardware("p3.16xlarge").spec
    fitted = nccl_fit(measured, described)
    assert fitted is not None and len(fitted.times) == len(rows)
    assert fitted["nvlink transport efficiency"].value == pytest.approx(0.7, rel=0.05)
    assert fitted["nvlink transport latency"].value == pytest.approx(1.6, rel=0.1)
    assert "probe collectives, 2026-01-02" in record_blocks(measured, fitted, described)[NVLINK]["source"]["efficiency"]


@pytest.mark.nightly
def test_factors_between_machines_come_out(tmp_path: Path) -> None:
    """One GPU of each of two machines, and all sixteen, over sockets a third slower than their class, whose steps take twice as long."""
    truth = {("nic", "efficiency"): 0.67, ("nic", "latency"): 2.0}
    measured = record("p3.16xlarge", truth, noise=0.03, teams=(*ONE, *TWO))
    measured.machine |= {"ranks": 16, "nodes": 2}
    write_record(tmp_path / "r.json", measured)
    estimates = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml", "p3.16xlarge").fits["nccl"]
    for (_, constant), factor in truth.items():  # cards and flows share the line, so the efficiency is known less well
        estimate = estimates[f"nic {constant}"]
        assert estimate.identified and estimate.low < factor < estimate.high and estimate.value == pytest.approx(factor, rel=0.15)
    assert estimates["nvlink transport efficiency"].value == pytest.approx(1.0, rel=0.05)
