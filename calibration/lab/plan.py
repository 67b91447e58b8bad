"""Which points is a laboratory to measure? A YAML plan: models, and blocks whose lists are multiplied out.

    name: my-plan
    hardware: my-machine          # of the records: a file that describes one host, or its name
    models:
      mlp: {model: "calibration.lab.models:mlp", inputs: ["784"], workload: lab-mlp}
    points:
      - {model: mlp, batch: 32, hosts: [1, 2], rate: [50 Mbps, 1 Gbps], delay: [0 s, 5 ms]}

A point on one host has no network, so of all its rates and delays there is one; it is what compute is calibrated on, others are there to be
predicted unless their block says ``role: network``. With ``disk`` and ``workers`` each host reads its samples through a token bucket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from calibration.run_records import Role
from sim.spec.fields import Bandwidth, Bytes, Count, Seconds, Spec, Whole
from sim.spec.library import load
from sim.spec.yaml import SpecError
from sim.units import show

MOST_HOSTS = 16
"""Hosts of one network: more share too little of any machine to say something."""

_Several = BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])


class LabModel(Spec):
    """A model to train, as for ``extract``, and the workload that describes it."""

    model: str
    inputs: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    workload: str
    sample: Bytes | None = None
    """Bytes of one stored sample, for points with a disk: one byte for each number of the first input by default."""


class Block(Spec):
    """Points: one for each combination of what the lists hold."""

    model: Annotated[tuple[str, ...], _Several]
    batch: Annotated[tuple[Count, ...], _Several]
    hosts: Annotated[tuple[Count, ...], _Several]
    rate: Annotated[tuple[Bandwidth, ...], _Several] = ()
    """Of each host's cable, in each direction."""
    delay: Annotated[tuple[Seconds, ...], _Several] = (0.0,)
    """One way."""
    disk: Bandwidth | None = None
    """What each host's token-bucket reader gives; without one, batches are synthetic."""
    workers: Whole = 0
    """Processes of each host's loader; 0 reads in the training process."""
    role: Role | None = None


class Plan(Spec):
    """What a laboratory measures, and how long."""

    name: str
    hardware: str
    models: dict[str, LabModel]
    points: tuple[Block, ...]
    cores_per_host: Count = 1
    seconds: Seconds = 4.0
    """Timed steps of one point take about so long."""
    steps: Count = 4
    """The fewest timed steps."""
    warmup: Whole = 2

    @model_validator(mode="after")
    def _adds_up(self) -> Plan:
        for number, block in enumerate(self.points):
            for name in block.model:
                if name not in self.models:
                    raise ValueError(f"points.{number}: there is no model '{name}' in this plan; it has {', '.join(self.models)}")
            if max(block.hosts) > 1 and not block.rate:
                raise ValueError(f"points.{number}: several hosts need a network; write its rate, for example rate: 1 Gbps")
            if max(block.hosts) > MOST_HOSTS:
                raise ValueError(f"points.{number}: {max(block.hosts)} hosts are more than the {MOST_HOSTS} that one machine may play")
            if block.workers and block.disk is None:
                raise ValueError(f"points.{number}: workers read from a disk; write its rate, for example disk: 20 MB/s")
        return self


@dataclasses.dataclass(frozen=True)
class Point:
    """One measurement; SI units."""

    model: str
    batch: int
    hosts: int
    rate: float | None
    delay: float
    disk: float | None
    workers: int

    @property
    def text(self) -> str:
        """Return the point in a few words."""
        words = [self.model, f"batch {self.batch}", f"{self.hosts} host" + "s" * (self.hosts > 1)]
        words += [f"{8e-6 * self.rate:g} Mbps"] if self.rate else []
        words += [f"{show(self.delay, 'time')} one way"] if self.delay else []
        words += [f"disk {1e-6 * self.disk:g} MB/s, {self.workers} workers"] if self.disk else []
        return ", ".join(words)


def read_plan(path: Path) -> Plan:
    """Return the plan that the file *path* holds. Raise SpecError with all that is wrong with it."""
    if not path.is_file():
        raise SpecError(f"{path}: no such file; a plan is a YAML file, for example calibration/lab/plans/two-cores.yaml")
    return load(Plan, path).spec


def points(plan: Plan) -> dict[Point, Role]:
    """Return the points of *plan* with what each may be used for; what two blocks ask for is measured once."""
    found: dict[Point, Role] = {}
    for block in plan.points:
        for point in _multiplied(block):
            found.setdefault(point, block.role or ("compute" if point.hosts == 1 and not point.disk else "prediction"))
    return found


def _multiplied(block: Block) -> Iterator[Point]:
    rates: tuple[Any, ...] = block.rate or (None,)
    for model, batch, hosts, rate, delay in product(block.model, block.batch, block.hosts, rates, block.delay):
        alone = hosts == 1
        yield Point(model, batch, hosts, None if alone else rate, 0.0 if alone else delay, block.disk, block.workers)
