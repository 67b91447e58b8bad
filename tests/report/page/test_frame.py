"""Does a page carry all it needs, and nothing that breaks it? Oracle: the standard library's parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cli import main
from sim.report.page.frame import PagePart, page
from sim.report.page.markup import section, tag
from tests.report.page.reading import Page, assert_well_made

ROOT = Path(__file__).resolve().parents[3]
NASTY = {"name": "</script><script>alert(1)</script>", "share": 0.1}


def test_documents_cannot_break_out() -> None:
    parts = [PagePart("one", "One", section("one", "One", tag("p", "text"))), PagePart("two", "", section("two", "Two"))]
    hero = tag("div", tag("h1", "Title"), id="result")
    parsed = Page(page("<Title> & more", "test", hero, parts, {"run": NASTY, "view": {"more": [1]}}))
    assert parsed.documents() == {"run": NASTY, "view": {"more": [1]}}
    assert len([script for script in parsed.all("script") if "type" not in script.attributes]) == 1
    assert parsed.all("title")[0].text == "<Title> & more"
    assert [link.text for link in parsed.all("nav")[0].inside if link.name == "a"] == ["One"]
    assert_well_made(parsed)


@pytest.mark.parametrize("command", ["run p3.2xlarge alexnet --fast", "run hgx-h100 llama-3.2-1b --tp 2", "run p3.8xlarge examples/chakra"])
def test_a_page_says_how_to_open_the_trace_written_with_it(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path = tmp_path / "page.html"
    assert main([*command.split(), "--html", str(path), "--trace", str(tmp_path / "t.json.gz")]) == 0
    [told] = [text for text in Page(path.read_text(encoding="utf-8")).all("p") if text.attributes.get("id") == "trace"]
    [link] = [inside for inside in told.inside if inside.name == "a"]
    assert str(tmp_path / "t.json.gz") in told.text and link.attributes["href"] == "https://ui.perfetto.dev"
    assert main([*command.split(), "--html", str(path)]) == 0
    assert "perfetto" not in path.read_text(encoding="utf-8")
