"""Is the catalog listed correctly? Oracles: the rows of the catalog, columns of the text."""

from __future__ import annotations

import pytest

from sim.report.listing import KINDS, listing
from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_line_a_row(kind: str) -> None:
    listed = listing(kind, [])
    lines = listed.text.splitlines()
    assert listed.problems == [] and not listed.empty
    assert len(lines) == 1 + len(listed.rows[kind]) > 1
    assert all(line == line.rstrip() for line in lines)


def test_without_a_kind_hardware_and_workloads_are_listed() -> None:
    assert set(listing("", []).rows) == {"hardware", "workloads"}
    assert set(listing("", ["gpus=8"]).rows) == {"hardware"}


def test_conditions_leave_what_matches() -> None:
    names = {row["name"] for row in listing("hardware", ["provider=aws", "gpus=8"]).rows["hardware"]}
    rows, _ = hardware_rows()
    assert names == {row["name"] for row in rows if row["provider"] == "aws" and row["gpus"] == 8} and "p3.16xlarge" in names
    nothing = listing("hardware", ["gpus=7"])
    assert nothing.rows["hardware"] == [] and nothing.empty


def test_a_wrong_kind_is_told_with_what_was_meant() -> None:
    with pytest.raises(SpecError, match=r"list hardwar: did you mean hardware\?"):
        listing("hardwar", [])
    with pytest.raises(SpecError, match="list zzz: write one of hardware, workloads"):
        listing("zzz", [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_condition_that_is_none_is_answered_for_every_kind(kind: str) -> None:
    """Every list has an example, also one without a column of counts."""
    with pytest.raises(SpecError, match=r"^--where memory: write NAME=VALUE, for example [a-z_]+=\.\.\."):
        listing(kind, ["memory"])
