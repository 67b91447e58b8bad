"""Does a table of collectives say the same in text, JSON and CSV? Oracles: rows by hand, the csv module."""

from __future__ import annotations

import csv
import io

from sim.report.collective import (
    collective_document,
    collective_plot,
    collective_text,
    collective_warnings,
    fabric_files,
)
from sim.report.figures import figures_csv
from sim.spec.library import load_hardware
from sim.training.collectives.price.table import CollectiveRow, Table

ROWS = (
    CollectiveRow(2**20, 1e-3, 1.0e9, 1.75e9, "Tree", "LL", 4, "NVLink 0"),
    CollectiveRow(2**30, 0.5, 2.0e9, 3.5e9, "Ring", "Simple", 12, "NIC 0"),
)


def test_json_and_csv_hold_the_same_rows() -> None:
    table = Table("toy", "all_reduce", 2, 8, ROWS, 3e9)
    document = collective_document(table)
    read = list(csv.DictReader(io.StringIO(figures_csv(document["rows"]))))
    assert [{key: str(value) for key, value in row.items()} for row in document["rows"]] == read
    assert (document["gpus"], document["bisection_bytes_per_s"], document["rows"][1]["time_s"]) == (8, 3e9, 0.5)


def test_the_text_has_a_line_a_size() -> None:
    lines = collective_text(Table("toy", "all_reduce", 1, 8, ROWS)).splitlines()
    assert lines[0] == "all_reduce on toy: 8 GPUs on 1 node"
    assert [line.split()[:2] for line in lines[-2:]] == [["1", "MiB"], ["1", "GiB"]]
    assert lines[-1].endswith("Ring            Simple         12  NIC 0")
    assert not any("halves" in line for line in lines)
    assert "between halves of the cluster: 3 GB/s each way" in collective_text(Table("toy", "all_reduce", 2, 8, ROWS, 3e9))


def test_a_size_that_takes_longer_than_a_larger_one_is_told() -> None:
    """The largest fall with its choices, the number of others; a fall within the noise of measurements is none."""
    times = (1e-3, 0.98e-3, 0.5e-3, 0.4e-3, 1e-3)
    rows = [CollectiveRow(2**20 << step, time, 1e9, 1e9, "Tree", "LL", step + 1, "NVLink 0") for step, time in enumerate(times)]
    (warning,) = collective_warnings(Table("toy", "all_reduce", 1, 8, tuple(rows)))
    assert warning.startswith(
        "980 µs for 2 MiB by Tree with LL on 2 channels is more than 500 µs for 4 MiB by Tree with LL on 3 channels: "
    )
    assert warning.endswith("; 1 other size likewise")
    assert collective_document(Table("toy", "all_reduce", 1, 8, tuple(rows)))["warnings"] == [warning]
    assert collective_warnings(Table("toy", "all_reduce", 1, 8, tuple(rows[:2]))) == []
    assert "--algo and --proto" in warning
    (of_sends,) = collective_warnings(Table("toy", "send_recv", 1, 8, tuple(rows)))  # which have no algorithm to choose
    assert "--algo" not in of_sends and "NCCL 2.30 opens channels by the size of a message alone; 1 other" in of_sends


def test_racks_larger_than_any_are_warned_of_as_in_runs() -> None:
    machines = (load_hardware("coreweave-gb200-nvl72", [f"trays={trays}"]).spec for trays in (18, 32))
    rack, larger = (collective_warnings(Table(machine.name, "all_reduce", 1, 72, ROWS, machine=machine)) for machine in machines)
    assert not any("NVLink joins" in warning for warning in rack)
    assert larger[0].startswith("trays: NVLink joins 128 GPUs here, but at most 72 in racks that can be rented")


def test_pictures() -> None:
    assert collective_plot(Table("toy", "all_reduce", 1, 8, ROWS)).png.startswith(b"\x89PNG")
    plain, cluster = (load_hardware(name).spec for name in ("p3.16xlarge", "64x-dgx-a100-torus"))
    assert fabric_files(Table("toy", "all_reduce", 1, 8, ROWS, machine=plain)) == {}
    assert set(fabric_files(Table("toy", "all_reduce", 64, 512, ROWS, machine=cluster))) == {"fabric.png", "fabric.svg"}
