"""Are errors of collectives grouped and quoted as their definitions say? Oracle: a few rows whose errors are set by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.collectives.groups import groups_text, parse_groupings, row_groups
from calibration.collectives.quoted import coverage, summary, widening
from calibration.collectives.records import CollectiveRecord, read_collectives
from calibration.collectives.scores import PredictedCollective
from sim.spec.yaml import SpecError

ERRORS = {"alpha": (0.1, -0.1, 0.1), "beta": (0.2, 0.2, -0.2, 0.2)}
"""Signed errors by system; each has one absolute error only, so that its 90th percentile is known."""


def _rows() -> list[PredictedCollective]:
    record = next(row for row in read_collectives() if row.system == "a100-nvswitch" and row.nbytes > 1e8)
    return [_predicted(record, system, error) for system, errors in ERRORS.items() for error in errors]


def _predicted(record: CollectiveRecord, system: str, error: float) -> PredictedCollective:
    return PredictedCollective(record._replace(system=system), record.time * (1 + error))


def test_every_system_has_one_vote() -> None:
    """Medians of 10 and 20%, and signed ones of +10 and +20%, whatever the number of rows."""
    (group,) = row_groups(_rows(), ("network", "ranks"))
    assert group.key == ("nvlink", "3-8 ranks") and (group.points, group.systems) == (7, 2)
    assert group.median == pytest.approx(0.15) and group.signed == pytest.approx(0.15)
    assert group.p90 == pytest.approx(0.2) and group.aim == 0.04 and group.excess == pytest.approx(0.15 / 0.04)
    assert [one.median for one in row_groups(_rows(), ("system",))] == pytest.approx([0.1, 0.2])


def test_the_quoted_percentile_holds_for_a_new_system() -> None:
    """Alpha's rows are half of what beta's imply, beta's twice what alpha's imply: doubling contains both, and nothing less does."""
    rows = _rows()
    factor = widening(rows)
    assert factor == pytest.approx(2.0)
    assert [each.within for each in coverage(rows, factor * 1.0001)] == [1.0]
    (narrow,) = coverage(rows, 1.0)
    assert (narrow.carrier, narrow.systems, narrow.quoted, narrow.within) == ("nvlink", 2, 7, 0.5)
    quoted = summary(rows)
    assert quoted["widening"] == 2.0 and quoted["groups"]["nvlink, all_reduce, > 64 MB"]["p90"] == pytest.approx(0.4)


def test_of_a_single_system_nothing_is_quoted() -> None:
    alone = [row for row in _rows() if row.record.system == "alpha"]
    assert widening(alone) == 1.0
    (each,) = coverage(alone, 1.0)
    assert each.quoted == 0 and each.within is None
    assert "-" in groups_text(alone, ("system",)).splitlines()[-1]


def test_committed_errors_are_quoted_for_new_systems() -> None:
    """The committed summary is wider than the errors of its own rows."""
    text = (Path(__file__).resolve().parents[2] / "hardware" / "validated_collectives.json").read_text(encoding="utf-8")
    assert 1.0 < json.loads(text)["widening"] < 3.0


def test_unknown_keys_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError, match="--by size,color: 'color' is unknown; choose from network,op,size,ranks,system"):
        parse_groupings("size,color")
    table = tmp_path / "mine.csv"
    table.write_text("network,hardware,nodes,gpus_per_node,op,bytes,time_us,system\nnvlink,dgx-a100,1,8,all_reduce,1073741824,8300,mine\n")
    assert main(["collectives", str(table), "--by", "network,size", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert (group["network"], group["size"], group["points"]) == ("nvlink", "> 64 MB", 1) and group["median"] < 0.2
    assert main(["collectives", str(table), "--by", "network"]) == 0
    assert "one vote per system" in capsys.readouterr().out
    assert main(["collectives", "--write", "--by", "op"]) == 2
