"""Oracle: the two predictors asked by themselves; and that simulated steps are asked only where they count."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest

from calibration.llm import closed_form, combined, engine
from calibration.llm.constants import fitted_constants
from calibration.llm.validate import PREDICTORS, Predictor, predictor_named, validate_tables
from sim.spec.yaml import SpecError
from tests.calibration.llm.tables import table
from tests.calibration.llm.test_case import one

AT = fitted_constants("nobody").constants


def test_the_geometric_mean_of_both(tmp_path: Path) -> None:
    case = one(tmp_path, tp="8", dp="1")
    closed, simulated, both = (ask(case, AT) for ask in (closed_form.predict, engine.predict, combined.predict))
    assert both.step_time == pytest.approx(sqrt(closed.step_time * simulated.step_time), rel=1e-12)
    assert min(closed.step_time, simulated.step_time) < both.step_time < max(closed.step_time, simulated.step_time)
    assert (both.memory, both.verdict) == (closed.memory, closed.verdict)


def test_what_the_simulator_refuses_is_the_closed_forms(tmp_path: Path) -> None:
    case = one(tmp_path, gpu="H200 NVL")
    with pytest.raises(SpecError, match="no machine in the catalog has it"):
        engine.predict(case, AT)
    assert combined.predict(case, AT).step_time == closed_form.predict(case, AT).step_time
    assert list(combined.predict(case, AT).parts) == [combined.CLOSED_FORM_ONLY]


def test_steps_that_do_not_count_are_not_simulated(tmp_path: Path) -> None:
    simulated = []

    def recording(*given: object) -> object:
        simulated.append(given[0])
        return closed_form.predict(*given)  # type: ignore[arg-type]

    ran = table(tmp_path, [{}, {"status": "suspect"}])
    failed = table(tmp_path, [{"micro_batch": "16", "step_time_s": "", "status": "oom_or_crash"}], name="failed.csv")
    counting: Predictor = recording  # type: ignore[assignment]
    validation = validate_tables([ran], failed, predictor=counting)
    assert (len(simulated), len(validation.predictions), len(validation.failed)) == (1, 2, 1)


def test_each_predictor_has_a_name() -> None:
    assert [predictor_named(name) for name in PREDICTORS] == [combined.predict, closed_form.predict, engine.predict]
    with pytest.raises(SpecError, match="write both, closed-form or simulator"):
        predictor_named("oracle")
