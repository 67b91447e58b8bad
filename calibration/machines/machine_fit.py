"""Which constants of the simulator do the records of one machine tell? One fit for each subject, over all its sizes.

Every fit is a sum of parts with a vague prior (`calibration.machines.posterior`), over the logarithm of the median repetition of each
question: launches (the operator on one element), memory (bytes over bandwidth, beyond caches), products (fixed + FLOP over rate, by class
and precision), copies (fixed + bytes over bandwidth, by direction and kind of host memory), overlap (products beside an all-reduce over the
same alone), jitter (scatter of a rank's steps without exchange, over their median), disk (one read; eight side by side), and loading (one
picture on one core).

Collectives are fitted by `calibration.machines.gloo_fit` and `calibration.machines.nccl_fit`, whose times are no such sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from calibration.machines.posterior import Posterior, PosteriorEstimate, Unknown, Vector, explain, mean_of
from calibration.measure.machine_record import AnswerRow, MachineRecord, check_rows, read_record
from sim.spec.yaml import SpecError

BEYOND_CACHES: Final = 2.0**26
"""Bytes of a pass from which last-level caches (32 MiB of a Zen 3 core complex, 50 MB of an H100) hold little of it."""
CONVOLUTIONS: Final = ("conv", "pointwise_conv", "direct_conv", "depthwise_conv")
LEAST_STEPS: Final = 5
"""Steps of one rank below which their scatter says nothing."""
OWN: Final = 0.85
"""Share of the time that a rank's one thread has its core on a quiet machine, at least: 0.97 to 1 there, less where others run."""
JITTER: Final = "scatter of steps"
FIXED, RATE, FACTOR = "fixed time", "time per unit", "factor"


@dataclass(frozen=True)
class Fit:
    """One subject: what was found, the points it was found on, and where they come from."""

    subject: str
    probe: str
    sizes: Vector
    times: Vector
    found: Posterior

    def __getitem__(self, name: str) -> PosteriorEstimate:
        """Return the parameter *name*."""
        return self.found[name]


@dataclass(frozen=True)
class Measured:
    """The records of one machine together."""

    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    files: tuple[str, ...]
    date: str
    probes: dict[str, list[AnswerRow]]
    disturbed: tuple[str, ...] = ()
    """In words, beside which probes other programs worked."""

    @property
    def nodes(self) -> int:
        """Return the machines on which ranks exchanged."""
        return int(self.machine.get("nodes", 1))

    @property
    def neighbours(self) -> int:
        """Return the ranks of one machine."""
        return int(self.machine["ranks"]) // self.nodes

    def rows(self, probe: str) -> list[AnswerRow]:
        """Return the rows of *probe* of all records."""
        return self.probes.get(probe, [])


def together(paths: Sequence[Path]) -> Measured:
    """Return what the records at *paths* hold; raise SpecError where they are of different machines."""
    if not paths:
        raise SpecError("no record given: pass the file written by 'calibration profile'")
    records = [read_record(path) for path in paths]
    for path, record in zip(paths, records, strict=True):
        _require_whole(path, record)
    first = records[0]
    for path, record in zip(paths, records, strict=True):
        for fact in ("cpu", "vcpus", "device", "gpus"):
            if record.machine.get(fact) != first.machine.get(fact):
                raise SpecError(
                    f"{path}: {fact} {record.machine.get(fact)}, but {paths[0]} has {first.machine.get(fact)}; fit each machine separately"
                )
    probes: dict[str, list[AnswerRow]] = {}
    for record in records:
        for name in record.probes:
            probes.setdefault(name, []).extend(record.rows(name))
    disturbed = tuple(f"{path.name}: {told}" for path, record in zip(paths, records, strict=True) if (told := record.disturbed()))
    most = max(records, key=lambda record: int(record.machine.get("nodes", 1)))
    return Measured(first.name, most.machine, first.versions, tuple(path.name for path in paths), _date(records), probes, disturbed)


_TIMES: Final = ("times_s", "times_by_rank_s")
_FACTS: Final = ("cpu", "vcpus", "physical_cores", "sockets", "memory_bytes", "device", "gpus", "ranks", "backend")


def _require_whole(path: Path, record: MachineRecord) -> None:
    """Raise SpecError where *record* lacks a fact of the machine, or a row its repetitions."""
    for fact in _FACTS:
        if fact not in record.machine:
            raise SpecError(f"{path}: machine.{fact} is missing; pass a record written by 'calibration profile'")
    check_rows(path, record)
    for name, probe in record.probes.items():
        for number, row in enumerate(probe.rows):
            expected = ("whole_s",) if name == "layers" else _TIMES
            if not any(key in row for key in expected):
                raise SpecError(f"{path}: probes.{name}.rows[{number}]: expected a list of times above zero in {' or '.join(expected)}")


def _date(records: Iterable[MachineRecord]) -> str:
    return max((probe.date[:10] for record in records for probe in record.probes.values()), default="")


def typical(row: AnswerRow) -> float:
    """Return the median repetition of a row, seconds; of several ranks the median of all."""
    times = row["times_s"] if "times_s" in row else [time for own in row["times_by_rank_s"] for time in own]
    return float(median(times))


def fits(measured: Measured) -> dict[str, Fit]:
    """Return every fit that the records allow, by subject."""
    made: list[Fit | None] = [_launch(measured, clock) for clock in ("device", "host")]
    made += [_memory(measured), *_products(measured), *_copies(measured), *_disk(measured), _loading(measured)]
    made += [_overlap(measured), _jitter(measured)]
    return {each.subject: each for each in made if each is not None}


def _line(subject: str, probe: str, rows: Sequence[AnswerRow], size: Callable[[AnswerRow], float], fixed: bool = True) -> Fit | None:
    """Return ``fixed + size * time per unit`` over *rows*, or without the fixed part; None where there is no row."""
    if not rows:
        return None
    sizes, times = np.array([size(row) for row in rows], dtype=float), np.array([typical(row) for row in rows])
    usual = [Unknown(FIXED, float(times.min()) / 2), Unknown(RATE, float(np.min(times / sizes)))]
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    return Fit(subject, probe, sizes, times, explain(design, times, usual) if fixed else explain(design[:, 1:], times, usual[1:]))


def _launch(measured: Measured, clock: str) -> Fit | None:
    rows = [row for row in measured.rows("launch") if row["clock"] == clock]
    return _repeated(f"launch by the {clock}", "launch", [time for row in rows for time in row["times_s"]])


def _repeated(subject: str, probe: str, times: Sequence[float]) -> Fit | None:
    if not times:
        return None
    return Fit(subject, probe, np.ones(len(times)), np.array(times, dtype=float), mean_of(RATE, times))


def _memory(measured: Measured) -> Fit | None:
    """Return the bandwidth of one rank: beside the others where they share a processor, else alone."""
    rows = [row for row in measured.rows("memory") if row["bytes"] >= BEYOND_CACHES]
    beside = [row for row in rows if "together" in row]
    if beside:
        row = beside[0]
        return _repeated("memory", "memory", [time / row["bytes"] for own in row["times_by_rank_s"] for time in own])
    return _line("memory", "memory", rows, lambda row: row["bytes"], fixed=False)


def _products(measured: Measured) -> list[Fit | None]:
    products: list[Fit | None] = []
    alone = [row for row in measured.rows("gemm") if "together" not in row]
    for precision in dict.fromkeys(row["precision"] for row in alone):
        rows = [row for row in alone if row["precision"] == precision]
        products.append(_line(f"gemm {precision}", "gemm", rows, lambda row: row["flop"]))
    fused = [row for row in measured.rows("attention") if row["way"] == "forward"]
    for precision in dict.fromkeys(row["precision"] for row in fused):
        rows = [row for row in fused if row["precision"] == precision]
        products.append(_line(f"attention {precision}", "attention", rows, lambda row: row["flop"]))
    every = measured.rows("convolution")
    for kind in CONVOLUTIONS:
        for precision in dict.fromkeys(row["precision"] for row in every):
            rows = [row for row in every if row["precision"] == precision and row["class"] == kind]
            products.append(_line(f"{kind} {precision}", "convolution", rows, lambda row: row["flop"]))
    return products


def _copies(measured: Measured) -> list[Fit | None]:
    alone = [row for row in measured.rows("host_copy") if row["together"] == 1]
    ways = [(host, way) for host in ("pinned", "pageable") for way in ("to device", "to host")]
    return [
        _line(
            f"{host} copy {way}", "host_copy", [row for row in alone if (row["host"], row["way"]) == (host, way)], lambda row: row["bytes"]
        )
        for host, way in ways
    ]


def _disk(measured: Measured) -> list[Fit | None]:
    """Return the fits of reads: seconds of a byte, sequential; of an I/O, one by one and eight at a time."""
    rows = measured.rows("disk")
    sequential = [time / row["block_bytes"] for row in rows if row["way"] == "sequential" for time in row["times_s"]]
    small = [row for row in rows if row["way"] == "random" and row["block_bytes"] == 4096]
    one = [time for row in small if row["threads"] == 1 for time in row["times_s"]]
    many = [time / row["threads"] for row in small if row["threads"] > 1 for time in row["times_s"]]
    return [_repeated("disk bytes", "disk", sequential), _repeated("disk latency", "disk", one), _repeated("disk I/Os", "disk", many)]


def _loading(measured: Measured) -> Fit | None:
    """Return the seconds of a picture on one core, from the loaders that have a core for each worker."""
    cores = measured.machine["physical_cores"]
    rows = [row for row in measured.rows("loading") if row["stage"] == "loader" and row["workers"] <= cores]
    return _repeated("loading", "loading", [time * row["workers"] for row in rows for time in row["times_s"]])


def _overlap(measured: Measured) -> Fit | None:
    """Return how many times longer kernels take while an all-reduce runs beside them."""
    rows = [row for row in measured.rows("all_reduce") if "beside" in row and {"beside_s", "products_s"} <= row.keys()]
    ratios = [beside / alone for row in rows for beside, alone in zip(row["beside_s"], row["products_s"], strict=False)]
    if not ratios:
        return None
    return Fit("products beside an exchange", "all_reduce", np.ones(len(ratios)), np.array(ratios), mean_of(FACTOR, ratios))


def is_disturbed(row: AnswerRow) -> bool:
    """Tell whether ranks that compute alone had their cores for too little of the time."""
    shares = [used / (sum(times) / len(times)) for used, times in zip(row.get("cpu_s", []), row["times_by_rank_s"], strict=False)]
    return not row["exchange"] and bool(shares) and min(shares) < OWN


def _jitter(measured: Measured) -> Fit | None:
    """Return the coefficient of variation of steps that exchange nothing, one number a rank and model.

    By the median distance (times 1.4826 a normal standard deviation), so that a step which other programs disturbed does not decide.
    Limits: of few steps it comes out low, of six by a quarter; the interval is that of repeated numbers, and does not know of that.
    """
    rows = [row for row in measured.rows("steps") if not row["exchange"]]
    rows = [row for row in rows if measured.machine["device"] != "cpu" or not is_disturbed(row)]
    alone = [np.array(own) for row in rows for own in row["times_by_rank_s"] if len(own) >= LEAST_STEPS]
    variations = [1.4826 * float(np.median(np.abs(own - np.median(own)))) / float(np.median(own)) for own in alone]
    variations = [value for value in variations if value > 0.0]
    return Fit(JITTER, "steps", np.ones(len(variations)), np.array(variations), mean_of(FACTOR, variations)) if variations else None


def ring(row: AnswerRow) -> tuple[int, float]:
    """Return the steps around a ring that follow one another, and the bytes over each of its links, of a measured collective."""
    ranks, nbytes = row["ranks"], float(row["bytes"])
    steps = (2 if row["op"] == "all_reduce" else 1) * (ranks - 1)
    return steps, steps * nbytes / ranks
