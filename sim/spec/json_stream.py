"""What does a JSON file contain that is too large for memory? Its values one after another; what was read is dropped.

Limits are those of `sim.spec.strict`, and `MAX_VALUE` characters for each value. The file is read in parts: a value that is cut off at the
end of what was read is decoded again with twice as much text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sim.spec.strict import read_parts
from sim.spec.yaml import SpecError

MAX_VALUE: Final = 16 * 2**20
"""Maximum number of characters of one value."""
LEAST_VALUES: Final = 4_000_000
"""Number of values from which a text may be too dense."""
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_CUT: Final = 16
"""A number, a word such as ``-Infinity`` or an escape may be cut off in so many last characters, and be an error there."""


class JsonText:
    """The text of the JSON file at *path*, of at most *most* bytes, from its beginning to its end.

    Raise SpecError, with *hint* on how such a file is made, if it is not JSON, or takes fewer than *density* characters a value.
    """

    def __init__(self, path: Path, most: int, density: int, hint: str) -> None:
        self._path, self._density, self._hint = path, density, hint
        self._parts = read_parts(path, most)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._place = "", 0
        self._lines = self._column = 0
        """Line breaks in the text that was dropped, and characters after the last of them."""
        self._bytes = self._characters = self._values = 0
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is not white space, and move to it; an empty string at the end of the file."""
        while True:
            if self._text[self._place : self._place + 1] <= " " and (match := _SPACE.match(self._text, self._place)):
                self._place = match.end()
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._read(1):
                return ""

    def expect(self, mark: str) -> None:
        """Move behind *mark*, which is the next character. Raise SpecError if it is another."""
        if self.peek() != mark:
            raise self._invalid(json.JSONDecodeError(f"Expecting '{mark}' delimiter", self._text, self._place))
        self._place += 1

    def value(self, decoder: json.JSONDecoder) -> Any:
        """Return the next value, and move behind it."""
        self.peek()
        while True:
            problem = None
            try:
                value, end = decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                problem, end = error, len(self._text)
            except RecursionError:
                raise SpecError(f"{self._path}: is nested too deeply; {self._hint}") from None
            except ValueError as error:  # NaN, or a number that is too large
                raise SpecError(f"{self._path}: {error}; {self._hint}") from None
            if problem and not (problem.msg.startswith("Unterminated string") or problem.pos >= len(self._text) - _CUT):
                raise self._invalid(problem)
            if end > len(self._text) - _CUT and self._read(len(self._text) - self._place):  # a number may go on
                continue
            if problem:
                raise self._invalid(problem)
            self._place = end
            return value

    def elements(self, decoder: json.JSONDecoder) -> Iterator[Any]:
        """Yield the elements of the list that is the next value, and move behind it."""
        self.expect("[")
        if self.peek() != "]":
            yield self.value(decoder)
        while self.peek() != "]":
            self.expect(",")
            yield self.value(decoder)
        self._place += 1

    def end(self) -> None:
        """Read to the end of the file. Raise SpecError if more than white space is left."""
        if self.peek():
            raise self._invalid(json.JSONDecodeError("Extra data", self._text, self._place))

    def _read(self, size: int) -> bool:
        """Read at least *size* more characters, if there are so many, and drop those before the current place; False at the end."""
        if self._ended:
            return False
        if len(self._text) - self._place > MAX_VALUE:
            raise SpecError(f"{self._path}: holds a value of more than {MAX_VALUE // 2**20} MiB; {self._hint}")
        kept, size_read = [self._text[self._place :]], 0
        while size_read < size and not self._ended:
            kept.append(self._next_part())
            size_read += len(kept[-1])
        breaks = self._text.count("\n", 0, self._place)
        self._column = self._place - self._text.rfind("\n", 0, self._place) - 1 if breaks else self._column + self._place
        self._lines += breaks
        self._text, self._place = "".join(kept), 0
        return True

    def _next_part(self) -> str:
        part = next(self._parts, b"")
        self._ended = not part
        waiting = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(part, final=self._ended)
        except UnicodeDecodeError as error:
            raise SpecError(f"{self._path}: is not UTF-8 text (byte {self._bytes - waiting + error.start}); {self._hint}") from None
        self._bytes += len(part)
        self._characters += len(text)
        self._values += text.count(",") + text.count("[") + text.count("{")
        if self._values > (most := max(LEAST_VALUES, self._characters // self._density)):
            raise SpecError(f"{self._path}: holds more than {most:,} values, which is the limit")
        return text

    def _invalid(self, error: json.JSONDecodeError) -> SpecError:
        breaks = self._text.count("\n", 0, error.pos)
        column = error.pos - self._text.rfind("\n", 0, error.pos) if breaks else self._column + error.pos + 1
        place = f"{self._path}:{self._lines + breaks + 1}:{column}"
        return SpecError(f"{place}: the JSON is truncated or invalid ({error.msg}); {self._hint}")
