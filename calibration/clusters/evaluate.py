"""What step time does the simulator predict for a measured run? One simulation per case; results are cached, and many run in parallel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import uuid4

from calibration.clusters.network_parameters import NetworkFactors, with_factors
from calibration.questions import Folders, RunQuestion, question, scale_job
from calibration.run_records import RunRecord
from sim.epoch import Epoch
from sim.events import Cause
from sim.simulate import simulate
from sim.spec.hardware import Hardware
from sim.spec.memo import caching
from sim.study.pool import suppress_replacement_warning
from sim.training.job import Job

SYNC_CAUSES: Final = (Cause.INTERCONNECT, Cause.NETWORK, Cause.STRAGGLER)
"""Causes of waiting in the gradient exchange."""
INPUT_CAUSES: Final = (Cause.FETCH, Cause.PREP)
FEW_CASES: Final = 24
"""Up to this number, simulations are faster in this process than in several."""


class Prediction(NamedTuple):
    """Seconds of one step; of these, waiting for the exchange (which includes *straggler*, waiting for the slowest rank) and for input."""

    step: float
    exposed: float
    input: float
    straggler: float = 0.0

    @property
    def compute(self) -> float:
        """Return the seconds that are not spent waiting for other ranks."""
        return self.step - self.exposed


class SimulatedCase(NamedTuple):
    """One simulation: the run, the factor on its layer times, and the factors on the constants of its network."""

    record: RunRecord
    compute_scale: float
    factors: NetworkFactors


def predict(question: RunQuestion, compute_scale: float = 1.0, factors: NetworkFactors = ()) -> Prediction:
    """Simulate *question* and return its warm steady state."""
    return _outcome(simulate(with_factors(question, factors), [scale_job(question, compute_scale)], cold=False).jobs[0].warm)


def _outcome(epoch: Epoch) -> Prediction:
    waits = {cause: epoch.stalls.get(cause, 0.0) for cause in (*SYNC_CAUSES, *INPUT_CAUSES)}
    exposed, missing = (sum(waits[cause] for cause in causes) for causes in (SYNC_CAUSES, INPUT_CAUSES))
    return Prediction(epoch.step_time, exposed, missing, waits[Cause.STRAGGLER])


@dataclass
class Evaluator:
    """Predicts cases, each only once, *processes* at a time."""

    folders: Folders = field(default_factory=Folders)
    processes: int = 0
    """0 means one per core."""
    _known: dict[SimulatedCase, Prediction] = field(default_factory=dict, repr=False)
    _study: str = field(default_factory=lambda: uuid4().hex, repr=False)
    """Name under which its processes cache what cases share (`sim.spec.memo`)."""

    def predict(self, case: SimulatedCase) -> Prediction:
        """Return the prediction of *case*."""
        return self.predict_all([case])[0]

    def predict_all(self, cases: Sequence[SimulatedCase]) -> list[Prediction]:
        """Return the predictions of *cases*, in order."""
        keys = [_key(case) for case in cases]
        place = {record: number for number, record in enumerate(dict.fromkeys(key.record for key in keys))}
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        missing.sort(key=lambda key: place[key.record])  # consecutive cases of one job share the plan of its layers
        self._known.update(zip(missing, self._simulate(missing), strict=True))
        return [self._known[key] for key in keys]

    def _simulate(self, cases: list[SimulatedCase]) -> list[Prediction]:
        processes = self.processes or os.cpu_count() or 1
        if processes == 1 or len(cases) <= FEW_CASES:
            return _predict_all(cases, self.folders, self._study)
        from joblib import Parallel, delayed

        suppress_replacement_warning()
        size = max(4, min(32, len(cases) // (2 * processes)))
        chunks = [cases[start : start + size] for start in range(0, len(cases), size)]
        predicted = Parallel(n_jobs=processes, max_nbytes=None)(delayed(_predict_all)(chunk, self.folders, self._study) for chunk in chunks)
        return [prediction for chunk in predicted for prediction in chunk]


def _key(case: SimulatedCase) -> SimulatedCase:
    """Return *case* without measured values, so that equal runs are simulated once."""
    record = replace(
        case.record, file="", line=0, source="", software="", step_time=1.0, exposed_sync=None, throughput=None, role="prediction", note=""
    )
    return SimulatedCase(record, round(case.compute_scale, 6), case.factors)


@lru_cache(maxsize=4096)
def _question(record: RunRecord, folders: Folders) -> RunQuestion:
    return question(record, folders)


def _predict_all(cases: Sequence[SimulatedCase], folders: Folders, study: str) -> list[Prediction]:
    """Simulate *cases*; machines and jobs that several cases share are built once, and what a *study* shares is cached under its name."""
    machines: dict[tuple[int, bool, NetworkFactors], Hardware] = {}
    jobs: dict[tuple[int, float], Job] = {}
    predicted = []
    for case in cases:
        question = _question(case.record, folders)
        moved = (id(question.hardware), question.nodes == 2, case.factors)
        machine = machines[moved] = machines.get(moved) or with_factors(question, case.factors)
        job = jobs[id(question), case.compute_scale] = jobs.get((id(question), case.compute_scale)) or scale_job(
            question, case.compute_scale
        )
        with caching(study):
            predicted.append(_outcome(simulate(machine, [job], cold=False).jobs[0].warm))
    return predicted
