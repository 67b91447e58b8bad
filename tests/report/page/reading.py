"""What a page says, read back from its HTML: elements, figures with their places, embedded documents."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

from sim.units import UnitError, parse

VOID = {"meta", "link", "br", "hr", "input", "col"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    text: str = ""
    inside: list[Element] = field(default_factory=list)


class Page(HTMLParser):
    """All elements of a page in order; elements that are not closed, or in the wrong order, are an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self._open, [element.name for element in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        assert len(element.attributes) == len(attrs), attrs
        for above in self._open:
            above.inside.append(element)
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop().name == tag, tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, name: str = "", **attributes: str) -> list[Element]:
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [
            element
            for element in self.elements
            if (not name or element.name == name) and all(value in element.attributes.get(key, "").split() for key, value in wanted.items())
        ]

    def documents(self) -> dict[str, Any]:
        """The embedded documents by name."""
        return {
            script.attributes["id"].removeprefix("json-"): json.loads(script.text)
            for script in self.all("script")
            if script.attributes.get("type") == "application/json"
        }


def at(documents: dict[str, Any], place: str) -> Any:
    """The figure at *place* of one of *documents*."""
    figure: Any = documents
    for part in place.split("/"):
        figure = figure[int(part)] if isinstance(figure, list) else figure[part.replace("~1", "/").replace("~0", "~")]
    return figure


def assert_figures_are_the_documents(page: Page) -> int:
    """Every figure, mark and share on *page* is that of its documents; how many there are."""
    documents = page.documents()
    places = [element for element in page.elements if "data-at" in element.attributes]
    for element in places:
        place, written = element.attributes["data-at"], element.attributes.get("value") or element.attributes["data-value"]
        figure = at(documents, place)
        if over := element.attributes.get("data-over"):
            figure /= at(documents, over)
        assert written == (figure if isinstance(figure, str) else repr(figure)), place
    points = [element for element in page.elements if "data-x-at" in element.attributes]
    for element in points:
        for axis in ("x", "y"):
            assert float(element.attributes[f"data-{axis}"]) == at(documents, element.attributes[f"data-{axis}-at"])
    return len(places) + 2 * len(points)


_UNITS = {
    "days": 86400.0,
    "%": 0.01,
    "epoch": 1.0,
    "epochs": 1.0,
    "USD": 1.0,
    "USD/h": 1.0,
    "samples/s": 1.0,
    "x": 1.0,
    "kWh": 1.0,
    "MWh": 1e3,
    "GWh": 1e6,
    "kg": 1.0,
    "t": 1e3,
    "mJ": 1e-3,
    "J": 1.0,
    "kJ": 1e3,
    "MJ": 1e6,
    "": 1.0,
}


def unit_of(text: str) -> float:
    """The SI value of one unit of *text*."""
    for dimension in ("time", "size", "bandwidth", "power"):
        with contextlib.suppress(UnitError):
            return parse(f"1 {text}", dimension)
    return _UNITS[text]


def assert_words_are_the_figures(page: Page) -> int:
    """The text of every figure is its value, as far as the digits shown tell; how many were read."""
    read = 0
    for element in page.all("data"):
        text = element.text.replace("\u00a0", " ")
        match = re.fullmatch(r"([+-]?)(\$?)(\d[\d,]*(?:\.\d+)?)(?: ?([A-Za-zµ/%]+))?", text)
        if match is None:
            continue
        number, value = match[1] + match[3].replace(",", ""), float(element.attributes["value"])
        in_per_cent = match[4] == "%" and "percent" in element.attributes["data-at"]
        if "days" in element.attributes["data-at"].split("/"):  # shown in hours or minutes, if they are less than one
            value *= _UNITS["days"]
        unit = 1.0 if in_per_cent or match[2] else unit_of(match[4] or "")
        digits_of_money = len(number.partition(".")[0].lstrip("+-")) if match[2] else 0  # three from $100 on
        last_digit = 10.0 ** (digits_of_money - 3) if digits_of_money > 2 else 10.0 ** -len(number.partition(".")[2])
        assert abs(float(number) * unit - value) <= 0.501 * last_digit * unit, (element.text, element.attributes)
        read += 1
    return read


def assert_well_made(page: Page) -> None:
    """Landmarks, headings without gaps, unique ids, links that lead somewhere, names for regions; nothing from outside."""
    assert [len(page.all(name)) for name in ("header", "nav", "main", "footer")] == [1, 1, 1, 1]
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    levels = [int(element.name[1]) for element in page.elements if element.name in ("h1", "h2", "h3")]
    assert levels[0] == 1 and all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert all(link.attributes["href"].removeprefix("#") in ids for link in page.all("a"))
    assert all(element.attributes.get("aria-labelledby") in ids for element in page.all("section"))
    assert all(element.attributes.get("aria-label") for element in page.elements if element.attributes.get("role") in ("group", "region"))
    assert all(button.text or button.attributes.get("aria-label") for button in page.all("button"))
    assert not page.all("img") and not page.all("iframe")
    assert all(link.attributes["href"].startswith("data:") for link in page.all("link"))
    assert all("src" not in script.attributes for script in page.all("script"))
    assert "url(" not in page.all("style")[0].text and "@import" not in page.all("style")[0].text
