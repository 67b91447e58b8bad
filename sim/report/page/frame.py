"""What is a page built from? Head, navigation, parts, and the documents with its figures; nothing is loaded from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from sim import __version__
from sim.report.files import MADE_BY, TRACE
from sim.report.page.colors import style_tokens
from sim.report.page.markup import Child, Html, command_line, details, join, section, tag
from sim.report.page.words import unbroken


class PagePart(NamedTuple):
    """A part of a page: *ident* is its anchor, *title* its name in the navigation (empty if it is not listed there)."""

    ident: str
    title: str
    html: Html


def page(title: str, kind: str, hero: Html, parts: Sequence[PagePart], documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a whole page: *hero* (the outcome), then *parts*; *documents* are embedded as JSON by name, the first one also visibly."""
    name = next(iter(documents))
    main = join(hero, _trace(), *(part.html for part in parts), _document(name, documents[name]))
    data = join(*(tag("script", embed_json(document), type="application/json", id=f"json-{key}") for key, document in documents.items()))
    return frame(title, kind, [(part.ident, part.title) for part in parts], main, data)


def frame(title: str, kind: str, links: Sequence[tuple[str, str]], main: Html, data: Html, style: str = "", script: str = "") -> str:
    """Return *main* in the frame of all pages: *links* are its navigation, *data* its scripts of JSON.

    *style* and *script* are added to those of every page.
    """
    own = files("sim.report.page")
    sheet, code = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"stallsim {__version__}"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(style_tokens() + sheet + style)),
    )
    body = join(
        tag("a", "Skip to the result", href="#result", class_="skip"),
        _header(kind, links),
        tag("main", main, id="main"),
        tag("footer", tag("p", f"stallsim {__version__}", _made(), ". Predicted, not measured.")),
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("div", id="said", class_="unseen", aria_live="polite"),
        data,
        tag("script", Html(code + script)),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _made() -> Html:
    """Return the date and the command that makes the page; empty if no command is running."""
    command = MADE_BY.get()
    return join(f", {datetime.now(UTC).date().isoformat()}: ", command_line(command)) if command else Html("")


def _trace() -> Html | None:
    """Return how to open the trace that was written with the page; None if there is none."""
    if not TRACE.get():
        return None
    perfetto = tag("a", "Open Perfetto", href="https://ui.perfetto.dev", target="_blank", rel="noopener")
    how = " and drag it into that window, which reads it inside your browser; nothing is uploaded."
    return tag("p", "Trace of this run: ", tag("code", TRACE.get()), ". ", perfetto, how, class_="tools", id="trace")


def outcome(title: str, verdict: str, set_up: str, *more: Child) -> Html:
    """Return the head of a page: *title*, the *verdict* in a sentence, the *set_up* if not empty, and *more*: main figures, notes."""
    below = tag("p", set_up, class_="set-up") if set_up else None
    return tag("div", tag("h1", title), tag("p", unbroken(verdict), class_="verdict"), below, *more, class_="hero", id="result")


def embed_json(document: Mapping[str, Any]) -> Html:
    """Return *document* as JSON that cannot end the script element around it."""
    return Html(json.dumps(document, ensure_ascii=True).replace("<", "\\u003c"))


def _header(kind: str, parts: Sequence[tuple[str, str]]) -> Html:
    links = [tag("li", tag("a", title, href=f"#{ident}")) for ident, title in parts if title]
    theme = tag("button", "Theme: system", type="button", id="theme", hidden=True)
    brand = tag("p", tag("b", "stallsim"), " ", tag("span", kind), class_="brand")
    return tag("header", tag("div", brand, tag("nav", tag("ul", *links), aria_label="Parts of this page"), theme, class_="bar"))


def _document(name: str, document: Mapping[str, Any]) -> Html:
    text = tag("pre", json.dumps(document, indent=2), tabindex="0", aria_label="JSON document")
    return section(
        "document", "Raw data (JSON)", tag("button", "Download JSON", type="button", data_download=name),
        details("JSON, as --json prints it", text),
        lead="All figures above come from this document; --json prints it for programs.",
    )  # fmt: skip
