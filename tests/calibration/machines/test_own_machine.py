"""Is the description of the machine that was measured here what its record says? Oracle: the committed record, fitted again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibration import RECORDS
from calibration.machines import fit_run
from calibration.machines.gloo_fit import BETWEEN, gloo_fits
from calibration.machines.machine_fit import merge_records
from calibration.machines.step_comparison import compare, median_errors
from calibration.measure.machine_record import read_record
from calibration.measure.probes.catalog import PROBES

MACHINES = RECORDS / "machines"
RECORD = MACHINES / "epyc-2-cores.json"
README = Path(__file__).resolve().parents[3] / "docs" / "trust" / "validation.md"


LATER = {"attention", "collectives", "layouts"}
"""Probes that did not exist when the machine was measured."""


def test_the_record_is_whole_and_says_no_more_than_it_should() -> None:
    """No name of a host, no folder, no address."""
    record = read_record(RECORD)
    assert record.state == "complete" and set(record.probes) == {probe.name for probe in PROBES} - LATER
    text = RECORD.read_text()
    assert not re.search(r"/(home|root|tmp|work|mnt)/|\d+\.\d+\.\d+\.\d+", text)
    assert record.probes["host_copy"].reason == record.probes["peer_copy"].reason == "no GPU"


@pytest.mark.nightly
def test_the_description_is_what_fit_makes_of_the_record_and_readme_tells_its_errors(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="layer tables are traced with torch")
    pytest.importorskip("torchvision", reason="the measured models are torchvision's")
    fitted = fit_run.fit([RECORD], tmp_path / "epyc-2-cores.yaml")
    for name in ("epyc-2-cores.yaml", "epyc-2-cores-stack.yaml"):
        assert (tmp_path / name).read_text() == (MACHINES / name).read_text()
    rows, _ = compare(fitted.records, fitted.files, fitted.step_ratios)
    assert len(rows) == 6 and not any(row.disturbed for row in rows)
    kernels, layers, _ = (100 * error for error in median_errors(rows))
    [line] = [line for line in README.read_text().splitlines() if "epyc-2-cores" in line and line.startswith("|")]
    assert f"median {kernels:.0f}%" in line and f"{layers:.0f}%" in line


def test_the_network_between_two_hosts_is_found() -> None:
    """Two namespaces of one core each behind token buckets of 500 Mbps, of which TCP's payload is 0.956 (`hardware/parts/transports`)."""
    measured = merge_records([MACHINES / "two-hosts-500-mbps.json"])
    assert (measured.nodes, measured.neighbors) == (2, 1)
    [network] = gloo_fits(measured)
    estimate = network["time per unit"]
    assert network.subject == BETWEEN and 1 / estimate.high < 0.956 * 62.5e6 < 1 / estimate.low
    assert 1 / estimate.value == pytest.approx(0.956 * 62.5e6, rel=0.1)
