"""How does a report fit a terminal? Long lines wrap, bars shrink, and a table that is still too wide continues below; also colors.

This works on the text alone, so it applies to every command's report. Piped output is never changed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

_BAR = re.compile(r"[█▉▊▋▌▍▎▏]")
_FEWEST = 8
"""Minimum width of the longest bar (estimate: it still shows an eighth)."""
_WRAPPED = 20
"""Minimum width at which a last column of text is wrapped instead of moved below."""
_COMMAND = re.compile(r"(\s*(?:[\w ]+: )?)((?:python -m (?:sim|calibration)|stallsim(?:-calibrate)?) .*)")
"""A line that ends with a command to type, after a label."""
_GAP = "  "
_BOLD, _DIM, _GREEN, _YELLOW, _CYAN, _END = (f"\x1b[{code}m" for code in (1, 2, 32, 33, 36, 0))


def fit_text(text: str, width: int) -> str:
    """Return *text* with lines of at most *width* (at least 40), except where a single word, cell or command is longer."""
    width = max(width, 40)
    shown: list[str] = []
    for lines, celled, notes in _blocks(text.split("\n")):
        if max(map(len, [*lines, *notes.values()])) <= width:
            shown += [line for place, original in enumerate(lines) for line in (original, *([notes[place]] if place in notes else []))]
        elif celled and len(lines) > 1 and len(cells := _cells(lines)) > 2:
            indent = min(_indent(line) for line in lines if line.strip())
            first, rows = _table(cells, width - indent)
            shown += [f"{' ' * indent}{line}".rstrip() for line in first]
            for place, row in enumerate(rows):
                shown += [f"{' ' * indent}{line}".rstrip() for line in row]
                shown += _wrapped(notes[place], width) if place in notes else []
        else:
            for place, line in enumerate(lines):
                shown += _wrapped(line, width)
                shown += _wrapped(notes[place], width) if place in notes else []
    return "\n".join(shown)


def _blocks(lines: Sequence[str]) -> Iterator[tuple[list[str], bool, dict[int, str]]]:
    """Yield runs of *lines*, whether they have cells (separated by two or more spaces), and the notes below single rows by index."""
    block: list[str] = []
    notes: dict[int, str] = {}
    before = False
    for place, line in enumerate(lines):
        celled = _celled(line)
        if block and before and not celled and _is_note(line, block, notes, lines[place + 1 :]):
            notes[len(block) - 1] = line
            continue
        if block and celled != before:
            yield block, before, notes
            block, notes = [], {}
        block, before = [*block, line], celled
    yield block, before, notes


def _celled(line: str) -> bool:
    return bool(re.search(r"\S {2,}\S", line.lstrip("-* ")))


def _is_note(line: str, rows: Sequence[str], notes: Mapping[int, str], below: Sequence[str]) -> bool:
    """Return whether *line* is a note on the last of *rows*: it is indented further, and another row or a blank line follows."""
    after = below[0] if below else ""
    further = bool(line.strip()) and _indent(line) > _indent(rows[-1]) and not line.lstrip().startswith("- ")
    return further and len(rows) > 1 and len(rows) - 1 not in notes and (_celled(after) or bool(notes and not after.strip()))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _wrapped(line: str, width: int) -> list[str]:
    """Return *line* wrapped, with later lines indented to its text; a command stays on one line so that it can be copied."""
    if command := _COMMAND.fullmatch(line):
        label, typed = command.groups()
        return [*([label.rstrip()] if label.strip() else []), f"{' ' * _indent(line)}{typed}"]
    start = re.match(r"\s*(?:- )?", line)
    indent = " " * (start.end() if start else 0)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [line]


def _cells(lines: Sequence[str]) -> list[list[str]]:
    """Return the columns of *lines*, which are split where all lines but the first, the titles, have two spaces or more."""
    length = max(map(len, lines))
    titles, *rows = [line.ljust(length) for line in lines]
    blank = "".join(" " if all(line[place] == " " for line in rows) else "x" for place in range(length))
    edges = [(match.start(), match.end()) for match in re.finditer(r"x(?: ?x)*", blank)]
    heads, right = _titles(titles, edges)
    columns = []
    for (start, end), head, to_right in zip(edges, heads, right, strict=True):
        width = max(end - start, len(head))
        cells = [head, *(line[start:end] for line in rows)]
        columns.append([cell.rjust(width) if to_right else cell.ljust(width) for cell in cells])
    return columns


def _titles(line: str, edges: Sequence[tuple[int, int]]) -> tuple[list[str], list[bool]]:
    """Return the title in *line* of each column between *edges*, and whether the column is right-aligned.

    A title belongs to the column that ends where it ends, or else to the one that starts nearest.
    """
    heads, right = [""] * len(edges), [False] * len(edges)
    touched = {start for start, _ in edges}, {end for _, end in edges}
    pieces = []
    for match in re.finditer(r"\S+(?: \S+)*", line):
        words = [(match.start() + word.start(), match.start() + word.end()) for word in re.finditer(r"\S+", match[0])]
        separate = all(start in touched[0] or end in touched[1] for start, end in words)
        pieces += words if separate else [match.span()]
    for start, end in pieces:
        place = min(range(len(edges)), key=lambda place: (edges[place][1] != end, abs(edges[place][0] - start)))
        heads[place] = f"{heads[place]} {line[start:end]}".strip()
        right[place] = edges[place][1] <= end and edges[place][0] != start
    return heads, right


def _table(columns: list[list[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """Return *columns* of equally long cells as a table of *width*: bars shrink, the last column wraps, or parts go below one another.

    The first result holds the lines of all parts but the last; the second holds the lines of each row of the last part.
    """
    excess = sum(len(column[0]) for column in columns) + len(_GAP) * (len(columns) - 1) - width
    for place, column in enumerate(columns):
        if excess > 0 and any(_BAR.search(cell) for cell in column):
            columns[place] = _shrunk(column, max(_FEWEST, len(column[0]) - excess))
            excess -= len(column[0]) - len(columns[place][0])
    last = columns[-1]
    if excess > 0 and all(cell == cell.lstrip() or not cell.strip() for cell in last) and len(last[0]) - excess >= _WRAPPED:
        return [], _with_last_wrapped(columns, len(last[0]) - excess)
    *before, end = _in_parts(columns, width) if excess > 0 else [columns]
    shown: list[str] = []
    for number, lines in enumerate(_joined(part) for part in before):
        shown += [*([""] if number and lines[0] else []), *lines]
    rows = (
        _with_last_wrapped(end, max(_WRAPPED, width - _width(end[:-1]) - len(_GAP)))
        if _width(end) > width
        else [[line] for line in _joined(end)]
    )
    return [*shown, *([""] if shown and rows[0][0] else [])], rows


def _shrunk(column: Sequence[str], width: int) -> list[str]:
    share = width / len(column[0])
    bars = [("█" * round(len(cell.strip()) * share) or "▏" * bool(cell.strip())) for cell in column[1:]]
    first = "█" * round(len(column[0].strip()) * share) if _BAR.search(column[0]) else column[0].strip().rjust(width)
    return [cell.ljust(width) for cell in (first, *bars)]


def _joined(columns: Sequence[Sequence[str]]) -> list[str]:
    return [_GAP.join(cells).rstrip() for cells in zip(*columns, strict=True)]


def _with_last_wrapped(columns: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    before = sum(len(column[0]) + len(_GAP) for column in columns[:-1])
    shown: list[list[str]] = []
    for *cells, text in zip(*columns, strict=True):
        first, *more = textwrap.wrap(text.strip(), width) or [""]
        shown.append([_GAP.join((*cells, first)).rstrip(), *(" " * before + line for line in more)])
    return shown


def _naming(columns: list[list[str]], width: int) -> int:
    """Return how many of the first *columns* identify the rows; 1 (2 if the first is narrow) if that would take over half of *width*."""
    filled = [_filled(column[1:]) for column in columns]
    for count in range(1, len(columns)):
        names = list(zip(*filled[:count], strict=True))
        if sum(len(column[0]) + len(_GAP) for column in columns[:count]) > width / 2:
            break
        if len(set(names)) == len(names) and all(name[-1].strip() for name in names) and len(columns[count - 1][0]) > 2:
            return count
    return 1 if len(columns[0][0]) > 2 else 2


def _filled(cells: Sequence[str]) -> list[str]:
    """Return *cells* with empty ones filled from the cell above."""
    filled: list[str] = []
    for cell in cells:
        filled.append(cell if cell.strip() or not filled else filled[-1])
    return filled


def _width(columns: Sequence[Sequence[str]]) -> int:
    """Return the width of *columns* with the gaps between them."""
    return sum(len(column[0]) + len(_GAP) for column in columns) - len(_GAP) * bool(columns)


def _in_parts(columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """Return *columns* in parts that fit *width*, each starting with the columns that identify the rows."""
    names = _naming(columns, width)
    fixed, rest = columns[:names], columns[names:]
    used = sum(len(column[0]) + len(_GAP) for column in fixed)
    parts: list[list[list[str]]] = [[]]
    for column in rest:
        if parts[-1] and used + sum(len(other[0]) + len(_GAP) for other in parts[-1]) + len(column[0]) > width:
            parts.append([])
        parts[-1].append(column)
    return [[*fixed, *part] for part in parts]


def color_text(text: str) -> str:
    """Return *text* with terminal colors: the first line bold, bars cyan, the ``*`` of the best rows green, warnings yellow."""
    lines = text.split("\n")
    shown = [f"{_BOLD}{lines[0]}{_END}" if lines[0] else ""]
    warned = False
    for line in lines[1:]:
        warned = line.strip().startswith("Warnings") or (warned and line.startswith("    "))
        if warned:
            shown.append(f"{_YELLOW}{line}{_END}")
        elif line.startswith("*  "):
            shown.append(f"{_GREEN}*{_END}{line[1:]}")
        elif line.strip() in ("Assumed:", "Warnings:"):
            shown.append(f"{_DIM}{line}{_END}")
        else:
            shown.append(re.sub(rf"({_BAR.pattern}+)", rf"{_CYAN}\1{_END}", line))
    return "\n".join(shown)
