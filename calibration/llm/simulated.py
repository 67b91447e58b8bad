"""What does the simulator say about many measured runs? Their steps and compute, each distinct machine and workload simulated once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from calibration.llm import engine
from calibration.llm.case import Case
from calibration.llm.constants import fitted_constants
from sim.events import Cause
from sim.spec.yaml import SpecError
from sim.study.pool import Progress, each

NONE_KEPT: Final[Mapping[str, tuple[float, float]]] = MappingProxyType({})


class SimulatedRun(NamedTuple):
    """One measured run as simulated."""

    case: Case
    step: float
    """Predicted seconds of a step."""
    compute: float
    """Part of the step in which ranks compute."""
    inputs: str = ""
    """SHA-256 of the machine and workload that were simulated."""

    @property
    def factor(self) -> float:
        """Return the factor on compute with which the prediction equals the measurement."""
        return ((self.case.measured or 1.0) - self.step + self.compute) / self.compute

    def step_with(self, factor: float) -> float:
        """Return the predicted seconds of a step with compute *factor* times as long."""
        return self.step + (factor - 1.0) * self.compute

    def error(self, factor: float) -> float:
        """Return the logarithm of measured over predicted time, with compute *factor* times as long."""
        return math.log((self.case.measured or 1.0) / self.step_with(factor))


def simulated_runs(
    cases: Sequence[Case],
    progress: Progress,
    processes: int | None = None,
    kept: Mapping[str, tuple[float, float]] = NONE_KEPT,
) -> list[SimulatedRun]:
    """Return *cases* as simulated, without those that the simulator refuses; *progress* is called with the number done and the total.

    *kept* has the seconds of steps that need no simulation, and of their compute, by the digest of their inputs.
    """
    digests = [_digest(case) for case in cases]
    first = {digest: case for digest, case in reversed(list(zip(digests, cases, strict=True))) if digest and digest not in kept}
    steps: dict[str, tuple[float, float] | None] = dict(kept)
    for done, (digest, step) in enumerate(zip(first, each(_simulated, list(first.values()), processes), strict=True), 1):
        progress(done, len(first))
        steps[digest] = step
    return [
        SimulatedRun(case, *step, digest)
        for case, digest in zip(cases, digests, strict=True)
        if digest and (step := steps[digest]) is not None
    ]


def _digest(case: Case) -> str:
    """Return the digest of what is simulated for *case*; empty if it cannot be described."""
    try:
        hardware, workload, placement = engine.simulation_inputs(case, fitted_constants(case.row.source).constants)
    except (SpecError, ValueError):
        return ""
    document = f"{hardware.model_dump_json()}\n{workload.model_dump_json()}\n{placement}"
    return hashlib.sha256(document.encode()).hexdigest()


def _simulated(case: Case) -> tuple[float, float] | None:
    try:
        run = engine.simulate_case(case, fitted_constants(case.row.source).constants)
    except (SpecError, ValueError):
        return None
    return run.step_time, run.stalls[Cause.COMPUTE]
