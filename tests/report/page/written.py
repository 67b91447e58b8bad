"""What a command wrote: its page, its JSON beside it, and what every page of every command must be."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sim.cli import main
from tests.report.page.browser import Tab, opened
from tests.report.page.reading import Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures


def written(folder: Path, command: Sequence[str], expected: int = 0) -> Path:
    """Run *command* with --html and -o into *folder*; the path of its page."""
    assert main([*command, "-q", "--html", str(folder / "page.html"), "-o", str(folder)]) == expected
    return folder / "page.html"


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def verdict(page: Page) -> str:
    return page.all("p", class_="verdict")[0].text.replace("\u00a0", " ")


def document(path: Path, name: str) -> dict[str, Any]:
    """The JSON that -o wrote next to the page."""
    made: dict[str, Any] = json.loads((path.parent / f"{name}.json").read_text(encoding="utf-8"))
    return made


def assert_page_is_the_document(path: Path, name: str, least: int) -> Page:
    """The page at *path* embeds the JSON that the command wrote, shows *least* figures of it or more, and is well made; the page."""
    page = read(path)
    assert page.documents()[name] == document(path, name)
    assert assert_figures_are_the_documents(page) >= least
    assert assert_words_are_the_figures(page) > 0
    assert_well_made(page)
    assert (path.parent / f"{name}.html").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    return page


@contextlib.contextmanager
def looked_at(path: Path) -> Iterator[Tab]:
    """The page in a browser: it fits wide and narrow windows, all its charts have marks, and it asked and complained of nothing."""
    with opened(path) as tab:
        for width in (390, 1200):
            tab.size(width, 900)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        marks = tab.evaluate(
            "[...document.querySelectorAll('.marks')].map(chart => [...chart.querySelectorAll('[data-tip]')]"
            ".filter(mark => { const box = mark.getBoundingClientRect(); return box.width * box.height > 0; }).length)"
        )
        assert marks and min(marks) > 0, marks
        yield tab
        assert tab.complaints() == [] and tab.requests() == []


def tip(tab: Tab, selector: str) -> str:
    """What the page says when the first of *selector* is pointed at."""
    tab.point(selector)
    said: str = tab.evaluate("(tip => tip.hidden ? '' : tip.textContent)(document.getElementById('tip'))")
    return said
