"""Do the committed pages of docs/reference say what the program is? Oracle: the program; ``python -m tests.reference`` writes them."""

from __future__ import annotations

import re

import pytest

from sim.spec import schema
from sim.units import UNITS
from tests import shown
from tests.reference import CALIBRATE, FOLDER, pages, with_columns


def test_pages_are_those_of_the_program() -> None:
    made = pages()
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert set(committed) == set(made)
    wrong = []
    for name, text in made.items():
        new, old = set(text.splitlines()), set(committed[name].splitlines())
        wrong += [f"{name}: {line[:150]}" for line in sorted(new ^ old)[:5]]
    assert not wrong and committed == made, "run `python -m tests.reference`:\n" + "\n".join(wrong)


def test_the_page_on_calibration_lists_the_columns_that_are_read() -> None:
    text = CALIBRATE.read_text(encoding="utf-8")
    assert with_columns(text) == text, "run `python -m tests.reference`"
    assert "| `exposed_sync_s` | " in text and "| `role` | Required. " in text


def test_every_link_of_the_page_of_fields_leads_to_a_block() -> None:
    text = (FOLDER / "fields.md").read_text(encoding="utf-8")
    blocks = {title.lower() for title in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= blocks
    assert {kind.__name__.lower() for kind in schema.KINDS.values()} <= blocks


KNOWN = {"CPU", "GPU", "GPUs", "PCIe", "NVLink", "USD", "FLOPS", "NeMo", "RackHierarchical", "NVLSTree"}
"""Abbreviations that readers know, and names of programs and algorithms."""


def test_abbreviations_in_shown_outputs_are_in_the_glossary() -> None:
    glossary = (FOLDER / "glossary.md").read_text(encoding="utf-8")
    terms = {word for line in re.findall(r"^\*\*(.+)\*\*$", glossary, re.MULTILINE) for word in re.split(r"[ ,]+", line)}
    bodies = [block["body"] for page in shown.PAGES for block in shown.BLOCK.finditer(page.read_text(encoding="utf-8"))]
    used = {word for body in bodies for word in re.findall(r"(?<![\w./-])[A-Z][A-Za-z]*[A-Z][A-Za-z]*(?![\w./-])", body)}
    units = {unit for of_dimension in UNITS.values() for unit in of_dimension} | {"GWh", "MWh", "kWh"}
    assert len(used) > 10 and used - terms - KNOWN - units == set()


@pytest.mark.parametrize(
    "term", ["p90", "revocation", "stages side by side", "breaks even at", "gp2", "interleaved 1F1B", "ETTR", "stack", "Young"]
)
def test_terms_of_tables_are_in_the_glossary(term: str) -> None:
    assert re.search(rf"^\*\*.*\b{term}\b.*\*\*$", (FOLDER / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_field_has_a_meaning() -> None:
    text = (FOLDER / "fields.md").read_text(encoding="utf-8")
    assert not re.findall(r"^\| `(\w+)` .*\|  \|$", text, re.MULTILINE)


def test_fields_say_where_their_source_is_written() -> None:
    """By hand: the GPU's file has ``source.memory``, its kernel model a source of its own, a name has none."""
    lines = (FOLDER / "fields.md").read_text(encoding="utf-8").partition("### Gpu\n")[2].splitlines()
    rows = {cells[1].strip(" `"): cells[4].strip() for line in lines[:20] if len(cells := line.split("|")) > 5}
    assert rows["memory"] == "`source.memory`" and rows["kernels"] == "its own" and rows["name"] == ""
