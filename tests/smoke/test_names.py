"""Does a name that means something elsewhere (a slash to a path, = to a spreadsheet) spoil no result?"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sim.cli import main
from tests.report.page.reading import Page, assert_figures_are_the_documents


def test_a_slash_in_the_name_of_a_machine_spoils_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = tmp_path / "mine.yaml"
    machine.write_text("extends: p3.8xlarge\nname: rack/7~0\n")
    page = tmp_path / "page.html"
    commands = [
        ["run", str(machine), "alexnet", "--fast"],
        ["run", str(machine), "alexnet", "--nodes", "1..2", "--fast"],
        ["sweep", str(machine), "alexnet", "--vary", "batch=8,16", "-o", str(tmp_path / "sweep.csv")],
        ["compare", "alexnet", str(machine), "p3.2xlarge"],
        ["recommend", "alexnet", str(machine), "p3.2xlarge", "--epochs", "1", "--budget-hours", "100", "--nodes", "1..2"],
    ]
    failed = []
    for command in commands:
        if main([*command, "--html", str(page)]) != 0 or assert_figures_are_the_documents(Page(page.read_text())) < 2:
            failed.append((command, capsys.readouterr().err))
        page.unlink(missing_ok=True)
    assert not failed


def test_a_name_is_no_formula_in_a_table(tmp_path: Path) -> None:
    machine, table = tmp_path / "mine.yaml", tmp_path / "sweep.csv"
    machine.write_text("extends: p3.8xlarge\nname: '=HYPERLINK(1)'\n")
    assert main(["sweep", str(machine), "alexnet", "--vary", "batch=8", "-o", str(table), "--quiet"]) == 0
    with table.open(newline="") as file:
        assert next(csv.DictReader(file))["hardware"] == "'=HYPERLINK(1)"
