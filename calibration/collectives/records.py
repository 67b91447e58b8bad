"""Which collectives have others measured, and on which machines? ``records/collectives.csv`` in our schema, and the plan of each row.

One row is one message. *system* is the unit that fits leave out; *network* the kind of path that bounds it; *hardware* a catalog name or
a file in ``calibration/hardware``; *gpus_per_process* 1 as in training, or more if one process launches on several GPUs in turn; *nccl* the
version whose rules choose; *algorithm* and *protocol* what was forced, or the only one that the library had; *role* ``fit``, or ``score``
if the machine has a flaw or an unstated part; *waits* whether the host waits for each message. MG-WFBP's rows (lines drawn through
measurements) and cybertronai's (described as an early, unpatched EFA release) were fitted first, and moved to ``score`` after seeing their
effect on the constants. Rows of nine systems over NVLink and Alps's over Slingshot were scored first and fitted later. Left out are rows of
other libraries (Baidu's ring, OSU), logs without a network (infNet), lines above the rate of their own link (MG-WFBP's 10 GbE on 16 GPUs),
and unstated machines. Rows of Azure (NCCL 2.18.5) keep the rules of 2.30, with which constants were fitted to them: by those of 2.20, one
of their 38 messages would take another protocol (2 MiB on A100s: LL128, 39% too slow, in place of LL, 20% too fast).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, get_args

from calibration import HARDWARE, RECORDS
from sim.cluster.build import place, slots, with_nodes
from sim.spec.library import load_hardware
from sim.spec.strict import csv_lines, csv_number, csv_rows
from sim.spec.yaml import SpecError
from sim.training.collectives.price.collective_plan import CollectivePlan, Op, Tuning, plan_collectives
from sim.training.job import job_slots
from sim.units import shorten

COLLECTIVE_TIMES = RECORDS / "collectives.csv"

NETWORKS = ("nvlink", "xgmi", "pcie", "infiniband", "roce", "efa", "slingshot", "tcp")
COLUMNS = (
    "source", "system", "network", "hardware", "nodes", "gpus_per_node", "gpus_per_process", "op", "bytes", "time_s", "nccl", "algorithm",
    "protocol", "role", "waits", "note",
)  # fmt: skip
OPTIONAL_COLUMNS: Final = {
    **dict.fromkeys(("source", "system", "nccl", "algorithm", "protocol", "waits", "note"), ""), "gpus_per_process": "1", "role": "score",
}  # fmt: skip
"""Optional columns with their default values."""


class CollectiveRecord(NamedTuple):
    """One measured message; bytes of the whole vector, seconds."""

    source: str
    system: str
    network: str
    hardware: str
    nodes: int
    gpus_per_node: int
    gpus_per_process: int
    op: Op
    nbytes: float
    time: float
    tuning: Tuning
    role: str
    waits: bool
    """Whether the host waits for each message; otherwise it launches the next ones meanwhile, as nccl-tests does."""
    overrides: tuple[str, ...] = ()
    """What differs from the description *hardware*, as for ``--set``."""


def read_collectives(path: Path = COLLECTIVE_TIMES) -> list[CollectiveRecord]:
    """Return the rows of *path*. Raise SpecError, with the line, if something is wrong."""
    lines = csv_lines(path)
    rows = list(csv_rows(lines, str(path)))
    header = rows[0][1] if rows else []
    missing = [name for name in COLUMNS if name not in header and name not in OPTIONAL_COLUMNS]
    strange = [name for name in header if name not in COLUMNS or header.count(name) > 1]
    if missing or strange:
        wrong = f"{', '.join(missing)} missing" if missing else f"'{strange[0]}' is not a valid column, or appears twice"
        raise SpecError(f"{path}:{lines[0][0] if lines else 1}: expected the columns {', '.join(COLUMNS)}; {wrong}")
    return [record_of(path, number, header, cells) for number, cells in rows[1:]]


def record_of(path: Path, line: int, header: Sequence[str], cells: Sequence[str]) -> CollectiveRecord:
    """Return the record in the *cells* of one row under *header*. Raise SpecError, with *path* and *line*, if they are invalid."""
    if len(cells) != len(header):
        raise SpecError(f"{path}:{line}: {len(cells)} values for {len(header)} columns; put values that contain a comma in quotes")
    row = OPTIONAL_COLUMNS | dict(zip(header, cells, strict=True))
    row["gpus_per_process"] = row["gpus_per_process"] or "1"
    op = next((name for name in get_args(Op) if name == row["op"]), None)
    if op is None:
        raise SpecError(f"{path}:{line}: op {shorten(row['op'])}: write one of {', '.join(get_args(Op))}")
    if row["network"] not in NETWORKS:
        raise SpecError(f"{path}:{line}: network {shorten(row['network'])}: write one of {', '.join(NETWORKS)}")

    def count(column: str) -> int:
        wanted = "a whole number of 1 or more"
        return int(csv_number(row[column], f"{path}:{line}: {column}", wanted, lambda value: 1 <= value < 2**63 and value == int(value)))

    def above_zero(column: str) -> float:
        return csv_number(row[column], f"{path}:{line}: {column}", "a number above 0", lambda value: value > 0)

    nodes, gpus, per_process = (count(column) for column in ("nodes", "gpus_per_node", "gpus_per_process"))
    nbytes, time = float(count("bytes")), above_zero("time_s")
    if row["role"] not in ("fit", "score"):
        raise SpecError(f"{path}:{line}: role '{row['role']}': write fit or score")
    tuning = Tuning(row["nccl"], row["algorithm"] or None, row["protocol"] or None)
    labels = (row["source"], row["system"], row["network"], row["hardware"])
    if row["waits"] not in ("", "yes"):
        raise SpecError(f"{path}:{line}: waits {shorten(row['waits'])}: write yes, or leave it empty")
    return CollectiveRecord(*labels, nodes, gpus, per_process, op, nbytes, time, tuning, row["role"], row["waits"] == "yes")


def plan_of(record: CollectiveRecord) -> CollectivePlan:
    """Return the plan of the collectives of the job of *record*."""
    return plan_on(record.hardware, record.nodes, record.gpus_per_node, record.tuning, record.overrides)


@lru_cache(maxsize=128)
def plan_on(
    hardware: str, nodes: int, gpus_per_node: int, tuning: Tuning, overrides: tuple[str, ...] = (), machines: Path = HARDWARE
) -> CollectivePlan:
    """Return the plan of the collectives of a job on *gpus_per_node* GPUs of each of *nodes* nodes of *hardware* with *overrides*."""
    machine = with_nodes(load_hardware(hardware, overrides, library=machines).spec, nodes)
    placed = place(machine, gpus_per_node * nodes)
    return plan_collectives(job_slots(0, slots(machine, [placed])), machine.fabric, tuning)
