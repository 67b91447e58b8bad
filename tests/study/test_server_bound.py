"""What must hosts carry? Oracle: PHub's formulas, written out, and the machine's own ports."""

from __future__ import annotations

import json

import pytest

from sim.cli import main
from sim.report.server_bound import bound_text
from sim.spec.yaml import SpecError
from sim.study.server_bound import bound_table


def test_the_table_is_phubs() -> None:
    table = bound_table("p3.16xlarge", [10**8], "50 ms", nodes=8)
    rate = 10**8 / 0.05
    assert dict(table.rows[0].needed_bandwidth) == pytest.approx({"NCS": 2 * rate, "NCC": 16 * rate, "CC": 14 * rate, "CS": 3.5 * rate})
    assert dict(table.port_bandwidth) == pytest.approx(dict.fromkeys(("NCS", "NCC", "CC", "CS"), 2 * 25e9 / 8 * 0.956))


def test_what_the_ports_cannot_carry_is_marked() -> None:
    """2M/T = 4 GB/s pass through 25 Gbps both ways; the others need 7 GB/s or more."""
    line = bound_text(bound_table("p3.16xlarge", [10**8], "50 ms", nodes=8)).splitlines()[4]
    assert line.count("!") == 3


def test_servers_have_ports_of_their_own() -> None:
    """CM-DARE's servers have half of the workers' bandwidth: 2M/T = 2.1 GB/s are more than 8 Gbps both ways."""
    table = bound_table("cm-dare-p100", [100 * 2**20], "100 ms")
    assert table.port_bandwidth["NCS"] == table.port_bandwidth["NCC"] == pytest.approx(table.port_bandwidth["CC"] / 2)
    line = bound_text(table).splitlines()[4]
    assert line.split()[2:4] == ["2.1", "GB/s!"] and line.count("!") == 3  # CS: 4 x 7 / 8 x M/T = 3.67 GB/s fit


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collective", "p3.16xlarge", "--op", "parameter_server", "--bytes", "100MB", "--nodes", "8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["workers"] == 8 and document["rows"][0]["needed_bytes_per_s"]["NCS"] == pytest.approx(2e9)
    assert document["rows"][0]["hidden"] == {"NCS": True, "NCC": False, "CC": False, "CS": True}


@pytest.mark.parametrize("time", ["5", "0 s", "fast"])
def test_a_time_that_is_none_is_refused(time: str) -> None:
    with pytest.raises(SpecError, match="--compute-time"):
        bound_table("p3.16xlarge", [1], time)


def test_gpus_are_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collective", "p3.16xlarge", "--op", "parameter_server", "--gpus", "4"]) == 2
    assert "takes hosts, not GPUs" in capsys.readouterr().err
