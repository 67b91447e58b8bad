"""Which parts are in the catalog? One row per GPU, link, processor, transport class, volume, model, data set, stack, jobs file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sim.spec import library
from sim.spec.catalog import read
from sim.spec.hardware import Cpu, Gpu, Link, Transport, Volume
from sim.spec.input import Dataset
from sim.spec.listing import Column, Row, decoder_parameters, rows_of
from sim.spec.model import Model
from sim.spec.schema import FOLDERS
from sim.spec.sections import file_values
from sim.spec.stack import Stack
from sim.spec.workload import Jobs


class PartList(NamedTuple):
    """Parts of one *kind*, and the columns of their list; the first is the name."""

    kind: type[Any]
    columns: tuple[Column, ...]

    def rows(self) -> tuple[list[Row], list[str]]:
        """Return a row for every valid file, and the problems of the others."""
        return rows_of(FOLDERS[self.kind], lambda path: _READERS.get(self.kind, _read)(self, path))


def _number(name: str, title: str) -> Column:
    return Column(name, title, name, "number")


PARTS: Final[Mapping[str, PartList]] = {
    "gpus": PartList(
        Gpu,
        (
            Column("name", "GPU"),
            Column("architecture", "architecture"),
            Column("memory", "memory", "memory_bytes", "binary size"),
            Column("memory_bandwidth", "memory bandwidth", "memory_bandwidth_bytes_per_s", "bandwidth"),
        ),
    ),
    "models": PartList(Model, (Column("name", "model"), _number("parameters", "parameters"))),
    "datasets": PartList(
        Dataset,
        (
            Column("name", "data set"),
            _number("samples", "samples"),
            Column("sample", "sample", "sample_bytes", "size"),
            Column("files", "files"),
        ),
    ),
    "stacks": PartList(Stack, (Column("name", "stack"), Column("strategy", "strategy"), Column("optimizer", "optimizer"))),
    "jobs": PartList(Jobs, (Column("name", "jobs file"), _number("jobs", "jobs"))),
    "links": PartList(Link, (Column("name", "link"), Column("bandwidth", "bandwidth", "bandwidth_bytes_per_s", "bandwidth"))),
    "cpus": PartList(Cpu, (Column("name", "processor"), Column("vendor", "vendor"), Column("clock", "clock", "clock_hz", "frequency"))),
    "transports": PartList(
        Transport, (Column("name", "transport class"), Column("hop_latency", "latency of a hop", "hop_latency_s", "time"))
    ),
    "volumes": PartList(
        Volume,
        (
            Column("name", "volume"),
            Column("size", "size", "size_bytes", "binary size"),
            Column("bandwidth", "bandwidth", "bandwidth_bytes_per_s", "bandwidth"),
        ),
    ),
}
"""The lists of ``sim list`` in addition to hardware and workloads."""


def _read(parts: PartList, path: Path) -> Row:
    spec = library.load(parts.kind, path).spec
    values = file_values(spec)
    return {column.name: values[column.name] for column in parts.columns}


def _read_head(parts: PartList, path: Path) -> Row:
    """Read a model's file up to its layers, which is enough to list it."""
    value = read(path, "layers").value
    head = value if isinstance(value, dict) else {}
    row = {column.name: head.get(column.name) for column in parts.columns}
    if "parameters" in row:
        row["parameters"] = row["parameters"] or decoder_parameters(head)
    return row


def _read_jobs(parts: PartList, path: Path) -> Row:
    value = read(path).value
    listed = value.get("jobs") if isinstance(value, dict) else None
    return {"name": path.stem, "jobs": len(listed) if isinstance(listed, list) else None}


_READERS: Final[Mapping[type[Any], Callable[[PartList, Path], Row]]] = {Model: _read_head, Jobs: _read_jobs}
