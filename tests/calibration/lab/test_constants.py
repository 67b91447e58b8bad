"""What does a calibrating point say? Oracles: made-up records by hand, and the committed stack file against the committed records."""

from __future__ import annotations

from typing import Any

import pytest

from calibration.lab.plan import WORKLOADS, read_plan
from calibration.lab.records import raw_file, read_lines
from calibration.lab.score import COMMITTED_ROWS, PLAN
from sim.spec.library import load
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from tests.calibration.lab.socket_constants import socket_constants


def line(role: str, hosts: int, cpu: float, **keys: Any) -> dict[str, Any]:
    point = {"model": "m", "batch": 8, "hosts": hosts, "rate_bytes_per_s": 1e8}
    return {"state": "measured", "role": role, "point": point, "ranks": [{"times_s": [1.0], "cpu_time_s": cpu}] * hosts, **keys}


def test_constants_by_hand() -> None:
    """Two ranks send and take in 100 MB each, and work 0.1 s more than alone: 0.5 ns a byte. 95 of 100 MB/s arrive."""
    socket = {"both_bytes_per_s": 95e6, "round_trip_s": 50e-6}
    constants = socket_constants([line("compute", 1, 0.3), line("network", 2, 0.4, socket=socket), line("prediction", 2, 9.0)], 100e6)
    assert (constants.payload, constants.latency) == pytest.approx((0.95, 50e-6))
    assert constants.cpu_time_per_byte == pytest.approx(0.5e-9)


def test_without_a_calibrating_point_nothing_is_said() -> None:
    with pytest.raises(SpecError, match="no measured point has the role network"):
        socket_constants([line("compute", 1, 0.3)], 100e6)


def test_the_committed_stack_holds_what_the_committed_point_says() -> None:
    plan = read_plan(PLAN)
    lines = read_lines(raw_file(COMMITTED_ROWS))
    (model,) = {entry["point"]["model"] for entry in lines if entry["role"] == "network"}
    workload = load(Workload, WORKLOADS / f"{plan.models[model].workload}.yaml", (), WORKLOADS).spec
    constants = socket_constants(lines, 4.0 * workload.model.parameters)
    transport = workload.training.stack.library.gloo_transport
    assert transport is not None
    assert transport.total_efficiency == pytest.approx(constants.payload, rel=1e-3)
    assert transport.hop_latency == pytest.approx(constants.latency, rel=0.01)
    assert transport.cpu_time_per_byte == pytest.approx(constants.cpu_time_per_byte, rel=0.01)
