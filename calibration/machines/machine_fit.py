"""Which constants of the simulator do the records of one machine determine? One fit per subject, over all its sizes.

Each fit is a sum of terms with vague priors (`calibration.machines.posterior`) on the logarithm of measured times. The subjects are
launches (an operator on one element), memory (bytes over bandwidth, beyond the caches), products (fixed time + FLOP over rate, by class
and precision), copies (fixed time + bytes over bandwidth, by direction and kind of host memory), overlap (time of products during an
all-reduce over their time in isolation), jitter (scatter of a rank's steps without exchange, relative to their median), disk (single
reads, and eight at a time) and loading (one picture on one core).

`calibration.machines.gloo_fit` and `calibration.machines.nccl_fit` fit collectives, whose times are not such sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from calibration.machines.posterior import FitParameter, Posterior, PosteriorEstimate, Vector, fit_mean, fit_terms
from calibration.measure.machine_record import AnswerRow, MachineRecord, check_rows, read_record
from sim.spec.fields import CONVOLUTIONS
from sim.spec.strict import read_bytes
from sim.spec.yaml import SpecError

BEYOND_CACHES: Final = 2.0**26
"""Size (bytes) of a pass from which last-level caches (32 MiB of a Zen 3 core complex, 50 MB of an H100) hold little of it."""
LEAST_STEPS: Final = 5
"""Least number of steps of one rank from which scatter is estimated."""
LEAST_CORE_SHARE: Final = 0.85
"""Least share of the time that a rank's thread has its core on a quiet machine: 0.97 to 1 there, less if other programs run."""
JITTER: Final = "scatter of steps"
FIXED, RATE, FACTOR = "fixed time", "time per unit", "factor"


@dataclass(frozen=True)
class Fit:
    """The fit of one subject, with the points it was fitted to and the probe that measured them."""

    subject: str
    probe: str
    sizes: Vector
    times: Vector
    posterior: Posterior

    def __getitem__(self, name: str) -> PosteriorEstimate:
        """Return the parameter *name*."""
        return self.posterior[name]


@dataclass(frozen=True)
class MergedRecords:
    """The merged records of one machine."""

    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    files: tuple[str, ...]
    date: str
    probes: dict[str, list[AnswerRow]]
    disturbed: tuple[str, ...] = ()
    """For each disturbed record, a text with the probes during which other programs were busy."""

    @property
    def nodes(self) -> int:
        """Return the number of machines over which the ranks were spread."""
        return int(self.machine.get("nodes", 1))

    @property
    def neighbors(self) -> int:
        """Return the number of ranks on each machine."""
        return int(self.machine["ranks"]) // self.nodes

    def rows(self, probe: str) -> list[AnswerRow]:
        """Return the rows of *probe* of all records."""
        return self.probes.get(probe, [])


def merge_records(paths: Sequence[Path]) -> MergedRecords:
    """Return the records at *paths*, merged. Raise SpecError if they are of different machines."""
    if not paths:
        raise SpecError("no record given: pass the file written by 'calibration profile'")
    records = [read_record(path) for path in paths]
    for path, record in zip(paths, records, strict=True):
        _require_complete(path, record)
    first = records[0]
    contents = [read_bytes(path) for path in paths]
    for number, content in enumerate(contents):
        if content in contents[:number]:
            raise SpecError(f"{paths[number]}: is the same record as {paths[contents.index(content)]}; pass each record once")
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
    disturbed = tuple(f"{path.name}: {text}" for path, record in zip(paths, records, strict=True) if (text := record.disturbed()))
    most = max(records, key=lambda record: int(record.machine.get("nodes", 1)))
    return MergedRecords(first.name, most.machine, first.versions, tuple(path.name for path in paths), _date(records), probes, disturbed)


_TIMES: Final = ("times_s", "times_by_rank_s")
_FACTS: Final = ("cpu", "vcpus", "physical_cores", "sockets", "memory_bytes", "device", "gpus", "ranks", "backend")


def _require_complete(path: Path, record: MachineRecord) -> None:
    """Raise SpecError if *record* lacks a fact of the machine, or one of its rows lacks times."""
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


def median_time(row: AnswerRow) -> float:
    """Return the median time (s) over the repetitions of *row*, and over its ranks if there are several."""
    times = row["times_s"] if "times_s" in row else [time for own in row["times_by_rank_s"] for time in own]
    return float(median(times))


def fits(records: MergedRecords) -> dict[str, Fit]:
    """Return all fits that the records allow, by subject, except those of collectives."""
    candidates: list[Fit | None] = [_launch(records, clock) for clock in ("device", "host")]
    candidates += [_memory(records), *_products(records), *_copies(records), *_disk(records), _loading(records)]
    candidates += [_overlap(records), _jitter(records)]
    return {each.subject: each for each in candidates if each is not None}


def _line(subject: str, probe: str, rows: Sequence[AnswerRow], size: Callable[[AnswerRow], float], fixed: bool = True) -> Fit | None:
    """Fit ``fixed + size * time per unit`` to *rows*, without the first term if not *fixed*. Return None if there are no rows."""
    if not rows:
        return None
    sizes, times = np.array([size(row) for row in rows], dtype=float), np.array([median_time(row) for row in rows])
    parameters = [FitParameter(FIXED, float(times.min()) / 2), FitParameter(RATE, float(np.min(times / sizes)))]
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    return Fit(
        subject, probe, sizes, times, fit_terms(design, times, parameters) if fixed else fit_terms(design[:, 1:], times, parameters[1:])
    )


def _launch(records: MergedRecords, clock: str) -> Fit | None:
    rows = [row for row in records.rows("launch") if row["clock"] == clock]
    return _repeated(f"launch by the {clock}", "launch", [time for row in rows for time in row["times_s"]])


def _repeated(subject: str, probe: str, times: Sequence[float]) -> Fit | None:
    if not times:
        return None
    return Fit(subject, probe, np.ones(len(times)), np.array(times, dtype=float), fit_mean(RATE, times))


def _memory(records: MergedRecords) -> Fit | None:
    """Fit the memory time per byte of one rank: with all ranks active if they share a processor, else in isolation."""
    rows = [row for row in records.rows("memory") if row["bytes"] >= BEYOND_CACHES]
    concurrent = [row for row in rows if "together" in row]
    if concurrent:
        row = concurrent[0]
        return _repeated("memory", "memory", [time / row["bytes"] for own in row["times_by_rank_s"] for time in own])
    return _line("memory", "memory", rows, lambda row: row["bytes"], fixed=False)


def _products(records: MergedRecords) -> list[Fit | None]:
    products: list[Fit | None] = []
    single = [row for row in records.rows("gemm") if "together" not in row]
    for precision in dict.fromkeys(row["precision"] for row in single):
        rows = [row for row in single if row["precision"] == precision]
        products.append(_line(f"gemm {precision}", "gemm", rows, lambda row: row["flop"]))
    fused = [row for row in records.rows("attention") if row["way"] == "forward"]
    for precision in dict.fromkeys(row["precision"] for row in fused):
        rows = [row for row in fused if row["precision"] == precision]
        products.append(_line(f"attention {precision}", "attention", rows, lambda row: row["flop"]))
    convolutions = records.rows("convolution")
    for kind in CONVOLUTIONS:
        for precision in dict.fromkeys(row["precision"] for row in convolutions):
            rows = [row for row in convolutions if row["precision"] == precision and row["class"] == kind]
            products.append(_line(f"{kind} {precision}", "convolution", rows, lambda row: row["flop"]))
    return products


def _copies(records: MergedRecords) -> list[Fit | None]:
    single = [row for row in records.rows("host_copy") if row["together"] == 1]
    ways = [(host, way) for host in ("pinned", "pageable") for way in ("to device", "to host")]
    return [
        _line(
            f"{host} copy {way}", "host_copy", [row for row in single if (row["host"], row["way"]) == (host, way)], lambda row: row["bytes"]
        )
        for host, way in ways
    ]


def _disk(records: MergedRecords) -> list[Fit | None]:
    """Return the fits of reads: time per byte of sequential reads, and time per I/O of small reads, one and several at a time."""
    rows = records.rows("disk")
    sequential = [time / row["block_bytes"] for row in rows if row["way"] == "sequential" for time in row["times_s"]]
    small = [row for row in rows if row["way"] == "random" and row["block_bytes"] == 4096]
    one = [time for row in small if row["threads"] == 1 for time in row["times_s"]]
    many = [time / row["threads"] for row in small if row["threads"] > 1 for time in row["times_s"]]
    return [_repeated("disk bytes", "disk", sequential), _repeated("disk latency", "disk", one), _repeated("disk I/Os", "disk", many)]


def _loading(records: MergedRecords) -> Fit | None:
    """Fit the time per picture on one core, from loaders with at most as many workers as cores."""
    cores = records.machine["physical_cores"]
    rows = [row for row in records.rows("loading") if row["stage"] == "loader" and row["workers"] <= cores]
    return _repeated("loading", "loading", [time * row["workers"] for row in rows for time in row["times_s"]])


def _overlap(records: MergedRecords) -> Fit | None:
    """Fit the factor by which kernels slow down while an all-reduce runs."""
    rows = [row for row in records.rows("all_reduce") if "beside" in row and {"beside_s", "products_s"} <= row.keys()]
    ratios = [beside / alone for row in rows for beside, alone in zip(row["beside_s"], row["products_s"], strict=False)]
    if not ratios:
        return None
    return Fit("products beside an exchange", "all_reduce", np.ones(len(ratios)), np.array(ratios), fit_mean(FACTOR, ratios))


def is_disturbed(row: AnswerRow) -> bool:
    """Return whether a rank without exchange had its core for less than `OWN` of the time."""
    shares = [used / (sum(times) / len(times)) for used, times in zip(row.get("cpu_s", []), row["times_by_rank_s"], strict=False)]
    return not row["exchange"] and bool(shares) and min(shares) < LEAST_CORE_SHARE


def _jitter(records: MergedRecords) -> Fit | None:
    """Fit the coefficient of variation of steps without exchange, from one value per rank and model.

    Each value is a median absolute deviation times 1.4826 (a normal standard deviation), so that single disturbed steps do not matter.
    Limits: with few steps the estimate is too low, with six by a quarter; the interval does not account for this.
    """
    rows = [row for row in records.rows("steps") if not row["exchange"]]
    rows = [row for row in rows if records.machine["device"] != "cpu" or not is_disturbed(row)]
    alone = [np.array(own) for row in rows for own in row["times_by_rank_s"] if len(own) >= LEAST_STEPS]
    variations = [1.4826 * float(np.median(np.abs(own - np.median(own)))) / float(np.median(own)) for own in alone]
    variations = [value for value in variations if value > 0.0]
    return Fit(JITTER, "steps", np.ones(len(variations)), np.array(variations), fit_mean(FACTOR, variations)) if variations else None


def ring_traffic(row: AnswerRow) -> tuple[int, float]:
    """Return the number of sequential ring steps of a measured collective, and the bytes that cross each link of the ring."""
    ranks, nbytes = row["ranks"], float(row["bytes"])
    steps = (2 if row["op"] == "all_reduce" else 1) * (ranks - 1)
    return steps, steps * nbytes / ranks
