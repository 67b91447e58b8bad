"""Does a recommendation that was stopped go on where it was, and on a cluster as here? Oracle: the same without a journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stallsim
from sim.analysis.whole_job import JobPlan
from sim.cli import main
from sim.documents import Documents, RentalOptions, recommendation
from sim.spec.catalog import catalog
from sim.study.plan import machines
from sim.study.recommend import Budget
from sim.study.scenario import Scenario

SMALL = Scenario("", "resnet18", plan=JobPlan(1))
RENTING = RentalOptions(Budget(money=1e6), ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge"], nodes=[1, 2], processes=1)
LAID = Scenario("", "llama-3.2-1b", ("price.on_demand=20 USD/h", "node.gpu.memory=16 GiB"), plan=JobPlan(None, tokens=10**9))
"""A decoder that runs on no machine as it is, so that a layout is planned for each number of nodes."""
PLANNING = RentalOptions(Budget(time=1e7), ["hgx-h100"], nodes=[1], processes=1)


def stopping_after(rows: int) -> Callable[[str], Callable[[int, int], None]]:
    """Return what ends a recommendation as Ctrl-C does once so many rows of a kind are there."""

    def hears(done: int, of: int) -> None:
        if done == rows:
            raise KeyboardInterrupt

    return lambda what: hears


def test_a_stopped_recommendation_goes_on_and_answers_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios: list[Scenario] = []
    own = Documents.__call__

    def counted(self: Documents, scenario: Scenario) -> dict[str, Any]:
        scenarios.append(scenario)
        return own(self, scenario)

    expected = recommendation(SMALL, RENTING)
    monkeypatch.setattr(Documents, "__call__", counted)
    kept = replace(RENTING, journal=tmp_path / "rent.journal")
    with pytest.raises(KeyboardInterrupt):
        recommendation(SMALL, kept, stopping_after(4))
    assert len(scenarios) == 4
    assert recommendation(SMALL, kept) == expected
    assert len(scenarios) == 6
    cheaper = replace(kept, budget=Budget(money=1e3))
    assert recommendation(SMALL, cheaper)[0]["candidates"] == recommendation(SMALL, replace(cheaper, journal=None))[0]["candidates"]
    assert len(scenarios) == 12  # those without the journal alone
    recommendation(replace(SMALL, overrides=("node.nic.bandwidth=10 Gbps",)), kept)
    assert len(scenarios) == 18


def test_planned_machines_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: without a journal; of a plan that was found before none is made again."""
    expected = recommendation(LAID, PLANNING)
    kept = replace(PLANNING, journal=tmp_path / "rent.journal")
    assert recommendation(LAID, kept) == expected
    monkeypatch.setattr(machines, "plan", None)
    assert recommendation(LAID, kept) == expected
    assert expected[0]["best"] is not None and "layouts are" in " ".join(expected[0]["notes"])


def test_a_file_that_changed_is_another_question(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    shutil.copy(catalog("hardware")["p3.2xlarge"], own)
    kept = replace(RENTING, hardware=[str(own)], nodes=[1], journal=tmp_path / "rent.journal")
    first = recommendation(SMALL, kept)[0]["candidates"][0]
    own.write_text(own.read_text().replace("V100-SXM2-16GB", "K80"))
    assert recommendation(SMALL, kept)[0]["candidates"][0] != first


def test_python_takes_a_journal(tmp_path: Path) -> None:
    options = {"budget_usd": 1e6, "nodes": 1, "hardware": ["p3.2xlarge"]}
    first, again, without = (stallsim.recommend("resnet18", **options, **each) for each in [{"journal": tmp_path / "j"}] * 2 + [{}])
    assert len((tmp_path / "j").read_text().strip().splitlines()) == 1
    assert first.equals(again) and first.equals(without)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--jobs", "2", "--cluster", "dask://127.0.0.1:1"), "write one of the two"),
        (("--cluster", "127.0.0.1"), "write dask://HOST:PORT"),
        (("--journal", "FOLDER/none/rent.journal"), "cannot be written"),
        (("--journal", "FOLDER/notes.txt"), "is not a journal; name"),
    ],
)
def test_bad_options_are_a_sentence(words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("buy milk\n")
    given = [word.replace("FOLDER", str(tmp_path)) for word in words]
    assert main(["recommend", "resnet18", "p3.2xlarge", "--budget-usd", "100", *given]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert (tmp_path / "notes.txt").read_text() == "buy milk\n"
