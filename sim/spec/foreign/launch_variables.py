"""Which values do the variables of a shell script have? Its assignments, with defaults and whole-number arithmetic, in their order.

Rules are those of POSIX, Shell Command Language, 2.6 (word expansions). Limits: the last line that sets a variable applies, whichever
branch it is in; a variable of the environment is unset; output of commands, arrays and patterns are not read.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

Values = dict[str, str | None]
"""Values by variable; None: the script sets it to something that is not read."""

_ROUND: Final = r"\$\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*+\))*+\))*+\)"
_CURLY: Final = r"\$\{(?:[^{}\n]|\{[^{}\n]*+\})*+\}"
"""Expansions in brackets, which are up to three deep, or two."""
_TOKEN: Final = re.compile(
    rf"""(?P<word>(?:
        "(?:\\.|{_ROUND}|[^"\\\n])*+" | '[^'\n]*+' | \\. | {_ROUND} | {_CURLY} | `[^`\n]*+` | [^\s;&|"'`$()<>\\]++ | \$(?![({{]) )++)
    | (?P<space>[^\S\n]+) | (?P<end>[;&|\n]) | (?P<other>.)""",
    re.VERBOSE,
)
"""A word with its quotes and expansions, the end of a command, or a part that spans lines."""
_QUOTES: Final = re.compile(rf"""'[^']*'|"(?:\\.|{_ROUND}|[^"\\])*+"|(?:{_ROUND}|{_CURLY}|[^'"])++""")
_SET: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_DECLARING: Final = ("export", "readonly", "local", "declare", "typeset")
_OPENING: Final = ("then", "else", "do", "{")
"""Words before assignments."""
_EXPANSION: Final = re.compile(rf"(?<!\\)(?:\$(?P<name>[A-Za-z_]\w*)|(?P<brackets>{_ROUND}|{_CURLY})|\$[0-9@*#?]|`[^`\n]*`)")
_PARAMETER: Final = re.compile(r"(?P<name>[A-Za-z_]\w*|[0-9]+)(?:(?P<rule>:?[-=?])(?P<word>.*))?", re.DOTALL)
_HIDDEN: Final = {ord(letter): 0xE000 + index for index, letter in enumerate("() \t\"'")}
_SHOWN: Final = {private: letter for letter, private in _HIDDEN.items()}
_LONGEST: Final = 1000
"""Characters of a value that is read: command lines in a variable have fewer."""
_LONGEST_SCRIPT: Final = 2**22
"""Characters that values may add to a script, several times the largest file that is read."""
_MOST: Final = 10**15
"""Largest number of an expression, far above any count of GPUs or samples; powers and shifts of more would take long."""


def with_values(text: str, environment: Mapping[str, str]) -> str:
    """Return the script *text* without comments, in which expansions have their values; *environment* has others.

    What cannot be read remains, as one word that `shown` turns back.
    """
    plain = _without_comments(text)
    return _expanded(plain, _assigned(plain, environment))


def shown(word: str) -> str:
    """Return a *word* of `with_values` as it was in the script."""
    return word.translate(_SHOWN)


def is_unread(word: str) -> bool:
    """Return whether *word* has an expansion that cannot be read."""
    return "$" in word or "`" in word


def sets(text: str, name: str) -> bool:
    """Return whether the script *text* sets the variable *name*."""
    return name in _assigned(_without_comments(text), {})


def _without_comments(text: str) -> str:
    return re.sub(r"(^|\s)#.*", r"\1", text.replace("\\\n", " "), flags=re.MULTILINE)


def _assigned(plain: str, environment: Mapping[str, str]) -> Values:
    """Return the values that the commands of *plain* set, in their order, after those of the *environment*."""
    values: Values = dict(environment)
    for words in _commands(plain):
        if words[0] == "for" and len(words) > 1:
            values[words[1]] = None  # another one in each turn
        elif words[0] == ":":
            for word in words[1:]:
                _expanded(word, values)
        else:
            words = _after(words)
            pairs = [_SET.fullmatch(word) for word in words]
            if all(pairs):  # else for the one command that follows
                for pair in filter(None, pairs):
                    values[pair[1]] = _value(pair[2], values)
    return values


def _after(words: list[str]) -> list[str]:
    """Return *words* without ``then`` and the like in front, and after ``export`` and the like without options and plain names."""
    words = words[1:] if words[0] in _OPENING else words
    if not words or words[0] not in _DECLARING:
        return words
    return [word for word in words[1:] if not word.startswith("-") and not re.fullmatch(r"\w+", word)]


def _commands(plain: str) -> Iterator[list[str]]:
    """Yield the words of each command on one line; nothing for a command with an array, a redirection or a quote over several lines."""
    words: list[str] = []
    on_one_line = True
    for token in _TOKEN.finditer(plain + "\n"):
        if token["word"]:
            words.append(token["word"])
        elif token["end"]:
            if words and on_one_line:
                yield words
            words, on_one_line = [], on_one_line or token["end"] == "\n"
        elif token["other"]:
            on_one_line = False


def _value(word: str, values: Values) -> str | None:
    """Return what *word* assigns, without its quotes; None if that cannot be read."""
    read = "".join(part[1:-1] if part[0] == "'" else _expanded(part.strip('"'), values) for part in _QUOTES.findall(word))
    return None if is_unread(read) or len(read) > _LONGEST else read


def _expanded(text: str, values: Values) -> str:
    """Return *text* with the values of its expansions, and with those that cannot be read as one word."""
    added = 0

    def read(match: re.Match[str]) -> str:
        nonlocal added
        value = values.get(match["name"]) if match["name"] else _of_brackets(match["brackets"] or "", values)
        added += len(value or "")
        return match[0].translate(_HIDDEN) if value is None or added > _LONGEST_SCRIPT else value

    return _EXPANSION.sub(read, text)


def _of_brackets(expansion: str, values: Values) -> str | None:
    """Return the value of ``$((expression))`` or of ``${name}``, perhaps with a default; None if it cannot be read."""
    if expansion.startswith("$((") and expansion.endswith("))"):
        number = _computed(_expanded(expansion[3:-2], values), values)
        return None if number is None else str(number)
    said = _PARAMETER.fullmatch(expansion[2:-1]) if expansion.startswith("${") else None
    if said is None:
        return None
    name, rule = said["name"], said["rule"] or ""
    empty = rule.startswith(":") and values.get(name) == ""
    if name in values and not empty:
        return values[name]
    if not rule or rule.endswith("?"):
        return None
    default = _value(said["word"], values)
    if rule.endswith("="):
        values[name] = default
    return default


_BINARY: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (-1 if left < 0 else 1),
    ast.Pow: lambda left, right: left**right if 0 <= right <= 64 and abs(left) <= _MOST else _MOST + 1,
    ast.LShift: lambda left, right: left << right if 0 <= right <= 64 else _MOST + 1,
    ast.RShift: lambda left, right: left >> min(right, 64) if right >= 0 else _MOST + 1,
}
"""Operators of whole numbers as in C, which the shell follows: quotients are truncated, remainders have the sign of the dividend."""


def _computed(expression: str, values: Values) -> int | None:
    """Return the whole number of an arithmetic *expression* of numbers and variables; None if it cannot be read."""
    if len(expression) > 200 or "//" in expression or not re.fullmatch(r"[\w\s+\-*/%()<>]+", expression):
        return None
    try:
        return _number(ast.parse(expression.strip(), mode="eval").body, values)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number(node: ast.expr, values: Values) -> int:
    """Return the value of *node*. Raise ValueError for anything but whole numbers, variables of them, and operators."""
    number = None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value
    elif isinstance(node, ast.Name) and re.fullmatch(r"[+-]?\d{1,15}", values.get(node.id) or ""):
        number = int(values[node.id] or "")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        number = _number(node.operand, values) * (-1 if isinstance(node.op, ast.USub) else 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        number = _BINARY[type(node.op)](_number(node.left, values), _number(node.right, values))
    if number is None or abs(number) > _MOST:
        raise ValueError("no whole number")
    return number
