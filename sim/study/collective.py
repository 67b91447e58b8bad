"""How long does a collective take, by message size? From a machine, an operation and sizes to NCCL's choices and their times."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim import units
from sim.check import check_hardware, require
from sim.cluster.bisection import bisection_bandwidth
from sim.cluster.build import Placement, place, slots, with_nodes
from sim.cluster.fabric import job_fabric
from sim.spec.algorithms import other_algorithm
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware
from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError
from sim.training.collectives.price.collective_plan import DEFAULT, OPS, Op, Tuning, plan_collectives
from sim.training.collectives.price.point_to_point import SENDS
from sim.training.collectives.price.table import Table, rows
from sim.training.job import job_slots


def collective_table(
    hardware: str,
    op: str,
    sizes: Sequence[int],
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    placement: str | None = None,
    tuning: Tuning = DEFAULT,
    overrides: Sequence[str] = (),
    per_process: int = 1,
    shares: str | None = None,
) -> Table:
    """Return the time of *op* for each of *sizes* (bytes) among *gpus* GPUs of *nodes* nodes, as *tuning* lets NCCL choose.

    Each process launches on *per_process* GPUs sequentially. *shares* are those of an all-to-all (see `shares_of`).

    Raise SpecError if the combination is impossible.
    """
    operation = operation_of(op, tuning)
    lent = placed_machine(hardware, nodes, gpus, placement, overrides)
    machine, placed, ranks = lent.spec, lent.placements, lent.ranks
    fabric = job_fabric(machine, [[part.node for part in placed]], 0)
    plan = plan_collectives(job_slots(0, slots(machine, [placed], fold=shares is None)), machine.fabric, tuning, fabric)
    if shares is not None and operation != "all_to_all":
        raise SpecError(f"--shares {shares}: applies only to --op all_to_all; leave it out")
    if any(len(part.gpus) % per_process for part in placed):
        counts = " and ".join(str(count) for count in sorted({len(part.gpus) for part in placed}))
        raise SpecError(
            f"-g {per_process}: {counts} GPUs of a node are not divisible into processes of {per_process} GPUs; write a divisor"
        )
    rows_of_sizes = rows(plan, operation, sizes, per_process, shares_of(shares, ranks) if shares is not None else ())
    return Table(
        machine.name,
        operation,
        len(placed),
        ranks,
        rows_of_sizes,
        lent.bisection,
        machine,
        tuning,
        lent.inputs,
        plan.layout.carrier(operation),
        per_process,
        shares or "",
    )


class PlacedMachine(NamedTuple):
    """A checked machine, and those of its GPUs that take part."""

    spec: Hardware
    placements: tuple[Placement, ...]
    inputs: Mapping[str, str]
    """SHA-256 of the description."""

    @property
    def ranks(self) -> int:
        """Return the number of GPUs that take part."""
        return sum(len(part.gpus) for part in self.placements)

    @property
    def bisection(self) -> float:
        """Return the bytes/s between two halves of the cluster, each way."""
        return bisection_bandwidth(self.spec)


def placed_machine(
    hardware: str, nodes: int | None, gpus: int | None, placement: str | None, overrides: Sequence[str] = ()
) -> PlacedMachine:
    """Return the machine *hardware* with *gpus* GPUs (2 or more) of *nodes* nodes. Raise SpecError if that is impossible."""
    loaded = load_hardware(hardware, overrides)
    machine = loaded.spec if nodes is None else with_nodes(loaded.spec, nodes)
    require(check_hardware(machine, loaded.document))
    lent = PlacedMachine(machine, place(machine, gpus, placement), {"hardware": loaded.sha256})
    if lent.ranks < 2:
        raise SpecError(f"{machine.name}: a collective needs at least 2 ranks, not {lent.ranks}; --nodes 2 adds a node")
    return lent


def operation_of(op: str, tuning: Tuning) -> Op:
    """Return the operation that *op* names, as here or in nccl-tests (``alltoall``).

    Raise SpecError if there is none, or if *tuning* does not apply to it.
    """
    letters = re.sub(r"[^a-z]", "", op.lower())
    operation = next((name for name in OPS if name.replace("_", "") == letters), None)
    if operation is None:
        raise SpecError(f"--op {op}: write one of {', '.join(OPS)}")
    forced = other_algorithm(tuning.algorithms)
    if forced and operation != "all_reduce":
        raise SpecError(
            f"--algo {tuning.algorithms}: {forced} is an all-reduce algorithm, not one for {op}; leave the choice to NCCL, or write Ring"
        )
    if forced and tuning.protocols:
        raise SpecError(f"--proto {tuning.protocols}: protocols apply only to NCCL's algorithms, not to {forced}; leave it out")
    if operation in SENDS and (tuning.algorithms or tuning.protocols):
        raise SpecError(f"--op {operation}: point-to-point transfers have no algorithm or protocol to choose; leave --algo and --proto out")
    return operation


MOST_SHARED = 256
"""Maximum number of ranks in an exchange with unequal shares, for which every pair of ranks is counted."""


def shares_of(text: str, ranks: int) -> tuple[tuple[float, ...], ...]:
    """Return the matrix in *text*; row p is what rank p sends to each rank: one row for all (``3,1``), or one per rank (``1,3/1,1``)."""
    try:
        by_sender = tuple(tuple(float(each) for each in row.split(",")) for row in text.split("/"))
    except ValueError:
        raise SpecError(f"--shares {text}: write numbers, for example 3,1,1,1, or a row for each sender: 1,3/1,1") from None
    if any(not 0 <= each < math.inf for row in by_sender for each in row):
        raise SpecError(f"--shares {text}: shares must be finite and at least 0")
    if len(by_sender) not in (1, ranks) or any(len(row) != ranks for row in by_sender):
        raise SpecError(f"--shares {text}: {ranks} ranks need one row of {ranks} numbers, or {ranks} such rows")
    if ranks > MOST_SHARED:
        raise SpecError(f"--shares: {ranks} ranks are too many; at most {MOST_SHARED} are supported, so use fewer nodes")
    matrix = by_sender * ranks if len(by_sender) == 1 else by_sender
    if not any(each for place, row in enumerate(matrix) for other, each in enumerate(row) if place != other):
        raise SpecError(f"--shares {text}: no rank sends data to another; write a share above 0")
    return matrix


MOST_BYTES = 10**15
"""Maximum size of one message."""
MOST_SIZES = 1_000
"""Maximum number of sizes in one table."""


def sizes_of(text: str) -> list[int]:
    """Return the sizes in *text*: ``25MiB``, ``1MiB..1GiB`` (doubling), or ``1MiB..1GiB:6`` (6 sizes, evenly spaced in the logarithm)."""
    span, _, count = text.partition(":")
    ends = [_size(part, text) for part in span.split("..")]
    if len(ends) == 1 and not count:
        return ends
    if len(ends) != 2 or ends[1] < ends[0]:
        raise SpecError(f"--bytes {text}: write a size such as 25MiB, or an ascending range such as 1MiB..1GiB")
    low, high = ends
    if not count:
        doubled = [low << step for step in range((high // low).bit_length())]
        return doubled if doubled[-1] == high else [*doubled, high]
    sizes = whole_number(count) or 0
    if sizes < 2:
        raise SpecError(f"--bytes {text[:60]}: write 2 or more sizes after ':'")
    if sizes > MOST_SIZES:
        raise SpecError(f"--bytes {text}: {sizes:,} sizes are more than the {MOST_SIZES:,} allowed; did you mean {span}:20?")
    return [round(low * (high / low) ** (step / (sizes - 1))) for step in range(sizes)]


def _size(text: str, option: str) -> int:
    try:
        size = int(units.parse(text.strip(), "size"))
    except units.UnitError as error:
        raise SpecError(f"--bytes {option}: {error}") from None
    if size < 1:
        raise SpecError(f"--bytes {option}: write 1 byte or more")
    if size > MOST_BYTES:
        raise SpecError(f"--bytes {option}: more than the {units.show(MOST_BYTES, 'size')} allowed")
    return size
