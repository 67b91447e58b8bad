"""How is text put into HTML, and how are figures marked so that a program can read them back?

Every figure on a page is in an element that names its place in an embedded document: ``data-at`` is that place
(``run/stalls_s/copy``), ``data-over`` is the place of the figure it is a share of, and an attribute has the value in full precision. So
a page can be compared with the JSON of the same run, figure by figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already, so that nothing in it needs escaping."""

    __slots__ = ()


Child = str | None
"""The content of an element: plain text, which is escaped, or `Html`; None for no content."""

_VOID = frozenset({"meta", "link", "br", "hr", "input", "col"})


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return the element *name* with *children*.

    ``class_`` writes the attribute ``class``, ``data_at`` writes ``data-at``; None and False write nothing, True only the name.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Return *children* concatenated, with text escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None))


def command_line(text: str) -> Html:
    """Return a command as it is typed; line breaks do not split its options at a dash."""
    return join(*(tag("span", part, class_="kept") if part.startswith("--") else part for part in re.split(r"((?<=\s)--[\w-]+)", text)))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value if isinstance(value, str) else f"{value:g}")}"'


def step(key: str) -> str:
    """Return *key* as a part of a path, escaped as in JSON Pointer (RFC 6901), so that it may contain slashes."""
    return key.replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True)
class Figures:
    """The figures of one *document* that a page embeds as *name*; paths are relative to *base_path*."""

    document: Mapping[str, Any]
    name: str
    base_path: str = ""

    def place(self, path: str) -> str:
        """Return the ``data-at`` of *path*."""
        return "/".join(part for part in (self.name, self.base_path, path) if part)

    def value(self, path: str) -> Any:
        """Return the value at *path*: keys (see `step`) and indices, separated by slashes."""
        value: Any = self.document
        for part in filter(None, f"{self.base_path}/{path}".split("/")):
            value = value[int(part)] if isinstance(value, list) else value[part.replace("~1", "/").replace("~0", "~")]
        return value

    def marked(self, path: str) -> tuple[str, float]:
        """Return the place and the value of the figure at *path*, for a mark."""
        return self.place(path), float(self.value(path))

    def subfigures(self, path: str) -> Figures:
        """Return the same figures with paths relative to *path*."""
        return Figures(self.document, self.name, f"{self.base_path}/{path}".strip("/"))

    def each(self, path: str) -> list[Figures]:
        """Return the figures of each entry of the list at *path*."""
        return [self.subfigures(f"{path}/{place}") for place in range(len(self.value(path)))]

    def format(self, path: str, write: Callable[[float], str]) -> Html:
        """Return the figure at *path*, formatted by *write*; a dash if there is none."""
        value = self.value(path)
        if value is None:
            return Html("-")
        return tag("data", write(value), value=repr(value), data_at=self.place(path))

    def share(self, path: str, of: str, digits: int = 1) -> Html:
        """Return the figure at *path* as a percentage of the one at *of*; a dash if that is 0."""
        if not self.value(of):
            return Html("-")
        share = self.value(path) / self.value(of)
        return tag("data", f"{100 * share:.{digits}f}%", value=repr(share), data_at=self.place(path), data_over=self.place(of))


def table(head: list[tuple[str, bool]], rows: list[list[Child]], caption: str = "", class_: str = "") -> Html:
    """Return a table; *head* has the title of each column, and whether it holds figures. The first cell of a row is its header."""
    titles = [tag("th", title, scope="col", class_="figure" if right else None) for title, right in head]
    body = [
        tag(
            "tr",
            *(
                tag("td" if place else "th", cell, scope=None if place else "row", class_="figure" if right else None)
                for place, (cell, (_, right)) in enumerate(zip(row, head, strict=True))
            ),
        )
        for row in rows
    ]
    inner = join(tag("caption", caption) if caption else None, tag("thead", tag("tr", *titles)), tag("tbody", *body))
    return tag(
        "div", tag("table", inner, class_=class_ or None), class_="table", tabindex="0", role="region", aria_label=caption or head[0][0]
    )


def tiles(rows: Sequence[tuple[str, Child, Child]]) -> Html:
    """Return tiles of main figures, each with its name, its value, and optionally a text below it."""
    shown = (tag("div", tag("dt", name), tag("dd", value), tag("dd", more) if more else None) for name, value, more in rows)
    return tag("dl", *shown, class_="tiles")


def bullets(texts: Iterable[str]) -> Html:
    """Return *texts* as a list."""
    return tag("ul", *(tag("li", text) for text in texts))


def note_box(title: str, texts: Sequence[str]) -> Html | None:
    """Return *texts* as a highlighted box; None if there are none."""
    return tag("div", tag("p", title), bullets(texts), class_="notes") if texts else None


def details(summary: str, *children: Child) -> Html:
    """Return *children* folded behind *summary*."""
    return tag("details", tag("summary", summary), *children)


def section(ident: str, title: str, *children: Child, lead: Child = None) -> Html:
    """Return a part of the page under a heading."""
    head = join(tag("h2", title, id=f"{ident}-title"), tag("p", lead, class_="lead") if lead else None)
    return tag("section", head, *children, id=ident, aria_labelledby=f"{ident}-title")
