"""Are groups and novelties correct? Oracles: errors by hand, and rows that differ in one thing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibration.questions import question
from calibration.validate.groups import KEYS, by_novelty, groups, listed_names, novelty, worst_group
from calibration.validate.scores import ScoredRow
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from tests.calibration.runs import record


def scored(said: float, **columns: object) -> ScoredRow:
    run_question = question(record(step_time=1.0, **columns))
    names = ("zero_shot", "calibrated", "free_communication")
    return ScoredRow(
        run_question, 0.5, dict.fromkeys(names, said), {"zero_shot": 0.1, "calibrated": 0.1}, novelty=novelty(run_question, [])
    )


def test_groups_have_signs() -> None:
    rows = [
        scored(predicted, placement=placement)
        for predicted, placement in ((0.8, "2"), (0.9, "2"), (0.85, "2"), (1.1, "2+2"), (1.1, "1+1+1"))
    ]
    entry_of = {entry["value"]: entry for entry in groups(rows, "gpus")}
    assert list(entry_of) == ["2", "3", "4"]  # by number
    assert entry_of["2"]["calibrated"]["bias"] == pytest.approx(-0.15) and entry_of["2"]["calibrated"]["median"] == pytest.approx(0.15)
    assert entry_of["4"]["zero_shot"]["bias"] == pytest.approx(0.1) and entry_of["4"]["points"] == 1
    bad = worst_group(rows)
    assert bad is not None and bad["points"] == 3 and bad["calibrated"]["median"] == pytest.approx(0.15)
    assert worst_group(rows[:1]) is None


def test_unknown_keys_are_named() -> None:
    assert listed_names("--by", "nodes, stack", KEYS) == ["nodes", "stack"] and listed_names("--by", "", KEYS) == []
    with pytest.raises(SpecError, match="'batch' is unknown; choose from workload,nodes,gpus,stack,precision"):
        listed_names("--by", "nodes,batch", KEYS)


def test_what_is_new_about_a_row() -> None:
    calibration_rows = [question(record(placement="4", role="network", source="mine"))]
    run_question = question(record(placement="4", source="mine"))
    others = replace(calibration_rows[0], record=replace(calibration_rows[0].record, source="another", role="compute"))
    assert novelty(run_question, calibration_rows) == ("nothing new",), "the committed runs have V100s"
    unseen = replace(run_question, hardware=load_hardware("cm-dare-p100").spec)
    assert novelty(unseen, calibration_rows) == ("new GPU",), "nobody measured steps on a P100 with PCIe"
    assert novelty(run_question, [*calibration_rows, others]) == ("nothing new",)
    assert novelty(question(record(placement="4+4", source="mine")), [*calibration_rows, others]) == ("new scale",)
    assert novelty(question(record(placement="4", stack="tensorflow-2.3", source="mine")), [*calibration_rows, others]) == ("new stack",)
    assert novelty(question(record(placement="4", workload="gnmt", source="mine")), [*calibration_rows, others])[-1] == "new model family"


def test_coverage_by_novelty_counts_each_row_where_it_is_new() -> None:
    rows = [scored(1.05, placement="2"), scored(2.0, placement="2")]
    entry_of = {entry["novelty"]: entry for entry in by_novelty(rows)}
    assert entry_of["new scale"]["calibrated"]["coverage"] == 0.5 and "nothing new" not in entry_of
