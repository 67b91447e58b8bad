"""Which points does a laboratory measure? Those of a YAML plan: models, and blocks whose lists are multiplied out.

    name: my-plan
    hardware: my-machine          # for the records: a file that describes one host, or its name
    models:
      mlp: {model: "calibration.lab.models:mlp", inputs: ["784"], workload: lab-mlp}
    points:
      - {model: mlp, batch: 32, hosts: [1, 2], rate: [50 Mbps, 1 Gbps], delay: [0 s, 5 ms]}

A point on one host has no network, so it is measured only once for all rates and delays. Compute is calibrated on such points; the others
are predicted, unless their block says ``role: network``. With ``disk`` and ``workers``, each host reads its samples through a token bucket.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from calibration.measure.division import Division
from calibration.questions import machine_named, workload_named
from calibration.run_records import Role
from sim.spec.fields import Bandwidth, Bytes, Count, Key, Seconds, Spec, Whole
from sim.spec.library import load
from sim.spec.yaml import Document, SpecError
from sim.units import show

MOST_HOSTS = 16
"""Maximum number of hosts on one network; with more, each has too small a share of the machine to be meaningful."""
WORKLOADS: Final = Path(__file__).parent / "workloads"
"""Workloads of the committed plan; searched before the catalog."""

_Several = BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])


class LabModel(Spec):
    """A model to train, as for ``extract``, and the workload that describes it."""

    model: str
    inputs: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    workload: str
    sample: Bytes | None = None
    """Bytes of one stored sample, for points with a disk; by default one byte for each number of the first input."""


class PointBlock(Spec):
    """A block of points: one for each combination of the values in its lists."""

    model: Annotated[tuple[str, ...], Field(min_length=1), _Several]
    batch: Annotated[tuple[Count, ...], Field(min_length=1), _Several]
    hosts: Annotated[tuple[Count, ...], Field(min_length=1), _Several]
    rate: Annotated[tuple[Bandwidth, ...], _Several] = ()
    """Rate of each host's cable, in each direction."""
    delay: Annotated[tuple[Seconds, ...], _Several] = (0.0,)
    """One-way delay."""
    disk: Bandwidth | None = None
    """Rate of each host's token-bucket reader; without one, batches are synthetic."""
    workers: Whole = 0
    """Processes of each host's loader; 0 reads in the training process."""
    layout: Annotated[tuple[Division, ...], _Several] = ()
    """How ranks divide the model; ``batch`` is then one micro-batch. Without a layout, they are data-parallel (DistributedDataParallel)."""
    alone: bool = False
    """Whether each distinct rank of the layout runs in isolation, without a network, to calibrate compute."""
    role: Role | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> PointBlock:
        if self.alone and not self.layout:
            raise ValueError("alone applies to the ranks of a layout; without a layout, write hosts: 1")
        if self.layout and (self.disk is not None or min(self.hosts) == 1):
            raise ValueError("a layout is measured on 2 hosts or more with synthetic batches; leave disk out")
        if self.alone:
            return self
        if max(self.hosts) > 1 and not self.rate:
            raise ValueError("several hosts need a network; set its rate, for example rate: 1 Gbps")
        if max(self.hosts) > MOST_HOSTS:
            raise ValueError(f"{max(self.hosts)} hosts are more than the {MOST_HOSTS} that one machine can simulate")
        if self.workers and self.disk is None:
            raise ValueError("workers read from a disk; set its rate, for example disk: 20 MB/s")
        return self


class LabPlan(Spec):
    """The points that a laboratory measures, and for how long."""

    name: str
    hardware: str
    models: dict[str, LabModel]
    points: tuple[PointBlock, ...]
    cores_per_host: Count = 1
    seconds: Seconds = 4.0
    """Approximate total time of the timed steps of one point."""
    steps: Count = 4
    """Minimum number of timed steps."""
    warmup: Whole = 2


@dataclasses.dataclass(frozen=True)
class LabPoint:
    """One measurement; SI units."""

    model: str
    batch: int
    hosts: int
    rate: float | None
    delay: float
    disk: float | None
    workers: int
    layout: Division | None = None
    isolated: bool = False
    """Whether ranks run in isolation."""

    @property
    def text(self) -> str:
        """Return the point in a few words."""
        words = [self.model, f"batch {self.batch}", f"{self.hosts} host" + "s" * (self.hosts > 1)]
        words += [self.layout.text] if self.layout else []
        words += ["each rank alone"] if self.isolated else []
        words += [f"{8e-6 * self.rate:g} Mbps"] if self.rate else []
        words += [f"{show(self.delay, 'time')} one way"] if self.delay else []
        words += [f"disk {1e-6 * self.disk:g} MB/s, {self.workers} workers"] if self.disk else []
        return ", ".join(words)


def read_plan(path: Path) -> LabPlan:
    """Return the plan in the file *path*. Raise SpecError with all its problems."""
    if not path.is_file():
        raise SpecError(f"{path}: no such file; a plan is a YAML file, for example calibration/lab/plans/two-cores.yaml")
    loaded = load(LabPlan, path)
    if problems := list(_unresolved(loaded.spec, loaded.document)):
        raise SpecError(problems)
    return loaded.spec


def _unresolved(plan: LabPlan, document: Document) -> Iterator[str]:
    """Yield a problem, with its place in the file, for each name in *plan* that cannot be resolved."""
    for key, check in _references(plan):
        try:
            check()
        except SpecError as error:
            yield from (document.message_start(key) + line for line in str(error).splitlines())
    for number, block in enumerate(plan.points):
        for name in block.model:
            if name not in plan.models:
                has = ", ".join(plan.models) or "none"
                yield document.message_start(("points", number, "model")) + f"there is no model '{name}' in this plan; it has {has}"


def _references(plan: LabPlan) -> Iterator[tuple[Key, Callable[[], object]]]:
    """Yield each key of *plan* that names something outside it, and a function to look it up; importing a model runs the user's code."""
    from sim.extract import target

    yield ("hardware",), partial(machine_named, plan.hardware)
    trains = importlib.util.find_spec("torch") is not None  # without it models cannot be imported, and nothing is measured
    for name, model in plan.models.items():
        yield ("models", name, "workload"), partial(workload_named, model.workload, (), WORKLOADS)
        if trains:
            yield ("models", name, "model"), partial(target.load_target, model.model)


def plan_points(plan: LabPlan) -> dict[LabPoint, Role]:
    """Return the points of *plan*, each with its role; a point of two blocks is measured once."""
    roles: dict[LabPoint, Role] = {}
    for block in plan.points:
        for point in _multiplied(block):
            calibrates = point.isolated or (point.hosts == 1 and not point.disk)
            roles.setdefault(point, block.role or ("compute" if calibrates else "prediction"))
    return roles


def _multiplied(block: PointBlock) -> Iterator[LabPoint]:
    rates: tuple[Any, ...] = block.rate or (None,)
    layouts: tuple[Any, ...] = block.layout or (None,)
    for model, batch, hosts, rate, delay, layout in product(block.model, block.batch, block.hosts, rates, block.delay, layouts):
        without_network = hosts == 1 or block.alone
        line, late = (None, 0.0) if without_network else (rate, delay)
        yield LabPoint(model, batch, hosts, line, late, block.disk, block.workers, layout, block.alone)
