"""Is a condition understood before anything is computed? Oracle: documents written here, with numbers on either side of the bound."""

from __future__ import annotations

import pytest

from calibration.cli import main
from calibration.validate.condition import read_condition
from sim.spec.yaml import SpecError

DOCUMENT = {"overall": {"calibrated": {"median": 0.2, "exposed": {"points": 3}, "kendall_tau": None}}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("overall.calibrated.median>0.1", True),
        (" overall.calibrated.median < 0.1", False),
        ("overall.calibrated.median>=0.2", True),
        ("overall.calibrated.median>0.2", False),
        ("overall.calibrated.median<=0.2", True),
        ("overall.calibrated.exposed.points<4", True),
    ],
)
def test_a_bound_holds_or_not(text: str, holds: bool) -> None:
    assert read_condition(text, DOCUMENT).holds(DOCUMENT) is holds


def test_a_number_of_no_rows_is_blank() -> None:
    with pytest.raises(SpecError, match=r"overall\.calibrated\.kendall_tau has no value: no row was scored"):
        read_condition("overall.calibrated.kendall_tau<0.5", DOCUMENT).holds(DOCUMENT)


def test_a_text_has_no_bound() -> None:
    with pytest.raises(SpecError, match=r"kind is not a number$"):
        read_condition("kind>0.1", {"kind": "llm"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("overall.calibrated.medain>0.1", "there is no 'medain'; keys here: points, median, p90"),
        ("calibrated.median>0.1", "there is no 'calibrated'; keys here: schema, overall"),
        ("overall.calibrated.median.x>0.1", "there is no 'x'; keys here: none"),
        ("overall.calibrated>0.1", "overall.calibrated is not a number; append one of points, median"),
        ("sources>0.1", "sources is not a number"),
        ("overall.calibrated.median=0.1", "write KEY>NUMBER or KEY<NUMBER"),
        ("overall.calibrated.median>10%", "'10%' is not a number"),
        ("overall.calibrated.median>nan", "'nan' is not a number"),
    ],
)
def test_a_slip_costs_no_computing(text: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("calibration.validate.validation.validate", lambda *given: pytest.fail("computed before the condition was read"))
    assert main(["validate", "--fail-if", text]) == 2
    output = capsys.readouterr()
    assert output.out == "" and f"--fail-if {text}: " in output.err and problem in output.err
