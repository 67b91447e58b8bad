"""How is the bandwidth bound of parameter servers presented? One column per placement; '!' marks more than the node's ports carry."""

from __future__ import annotations

from typing import Any

from sim import __version__
from sim.study.server_bound import PLACEMENTS, BoundTable
from sim.units import show

MEANINGS = {
    "NCS": "servers on the same number of dedicated hosts",
    "NCC": "one central server on a dedicated host",
    "CC": "one central server on a worker's host",
    "CS": "a server on every worker's host",
}
"""Placements in words."""


def bound_document(table: BoundTable) -> dict[str, Any]:
    """Return the JSON document of *table*."""
    rows = [
        {
            "bytes": row.nbytes,
            "needed_bytes_per_s": dict(row.needed_bandwidth),
            "hidden": {name: row.needed_bandwidth[name] <= table.port_bandwidth[name] for name in PLACEMENTS},
        }
        for row in table.rows
    ]
    return {
        "schema": 1,
        "hardware": table.hardware,
        "op": "parameter_server",
        "workers": table.workers,
        "compute_time_s": table.compute_time,
        "port_bytes_per_s": dict(table.port_bandwidth),
        "rows": rows,
        "assumptions": [
            "all gradients and new values of a model cross the ports during the compute of a step, at a constant rate",
            "ports carry their bandwidth times the efficiency of the transport, in and out at the same time",
        ],
        "warnings": [],
        "version": __version__,
        "inputs_sha256": dict(table.inputs),
    }


def bound_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a flat row for each size and placement of *document*."""
    return [
        {
            "bytes": row["bytes"], "placement": name, "needed_bytes_per_s": needed,
            "port_bytes_per_s": document["port_bytes_per_s"][name], "hidden": row["hidden"][name],
        }
        for row in document["rows"] for name, needed in row["needed_bytes_per_s"].items()
    ]  # fmt: skip


def bound_text(table: BoundTable) -> str:
    """Return *table* in aligned columns."""
    lines = [
        f"parameter servers on {table.hardware}: bandwidth that the busiest host needs, in and out together, to hide behind "
        f"{show(table.compute_time, 'time')} of compute",
        f"{table.workers} worker nodes; {_ports(table)}",
        "",
        f"{'model':>10} " + " ".join(f"{name:>12}" for name in PLACEMENTS),
    ]
    for row in table.rows:
        cells = [
            show(row.needed_bandwidth[name], "bandwidth") + ("!" if row.needed_bandwidth[name] > table.port_bandwidth[name] else " ")
            for name in PLACEMENTS
        ]
        lines.append(f"{show(row.nbytes, 'binary size'):>10} " + " ".join(f"{cell:>12}" for cell in cells))
    return "\n".join([*lines, "", *(f"  {name:4} {text}" for name, text in MEANINGS.items()), "  !    more than the ports can carry"])


def _ports(table: BoundTable) -> str:
    """Return the bandwidth of ports as text: once if it is the same for all placements, else for each."""
    if len(set(table.port_bandwidth.values())) == 1:
        return f"the ports of each carry {show(table.port_bandwidth['CC'], 'bandwidth')}"
    return "ports carry " + ", ".join(f"{show(rate, 'bandwidth')} ({name})" for name, rate in table.port_bandwidth.items())
