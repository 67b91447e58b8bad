"""Does a page carry all it needs, and nothing that breaks it? Oracle: the standard library's parser."""

from __future__ import annotations

from sim.report.page.frame import PagePart, page
from sim.report.page.markup import section, tag
from tests.report.page.reading import Page, assert_well_made

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
