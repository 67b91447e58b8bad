"""What does an unquoted word in YAML mean? null, true, false, an integer, a float, or text; rejected if YAML versions disagree.

YAML 1.1 (which PyYAML follows) reads ``12:30`` as 750, ``010`` as 8, ``yes`` as true and ``1e9`` as text; YAML 1.2 does not.
Words for which the versions agree are accepted.
"""

from __future__ import annotations

import math
import re
from typing import Final

from sim.units import shorten

_WORD: Final = re.compile(r"[A-EG-MP-SU-XZa-eg-mp-su-xz_/(*$%]|[0-9]+(\.[0-9]+)? [A-Za-z%/]+\Z")
"""Matches words that can only be text: most names, and quantities with a unit. A shortcut for speed."""
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_YES_NO: Final = frozenset({"yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF"})
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONFUSING: Final = re.compile(
    r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"  # base 60
    r"|[-+]?0[0-9_]+|[-+]?0[bo][0-9_]+|-0x[0-9a-fA-F_]+"  # octal, binary
    r"|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?([0-9]+\.[0-9]*|\.[0-9]+)[eE][0-9]+"  # exponent without point or sign
    r"|[-+]?[0-9][0-9.]*_[0-9._]*|0x[0-9a-fA-F_]+"  # underscores
)


class ScalarError(ValueError):
    """A word that YAML readers interpret differently, or a number out of bounds."""


def plain(text: str) -> str | int | float | bool | None:
    """Return the value of the unquoted *text*; raise ScalarError if it is ambiguous."""
    if _WORD.match(text):
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return _float(text)
    if text in _YES_NO:
        raise ScalarError(f"'{text}' is a boolean to some readers of YAML and text to others; write true, false or '{text}' in quotes")
    if _CONFUSING.fullmatch(text):
        raise ScalarError(f"{shorten(text)} is ambiguous in YAML; write {_advice(text)}")
    return text


def _integer(text: str) -> int:
    if len(text) > 20 or abs(value := int(text, 0)) >= 2**63:
        raise ScalarError(f"{shorten(text)} is too large for a whole number")
    return value


def _float(text: str) -> float:
    value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        raise ScalarError(f"{shorten(text)} is not a finite number")
    return value


def _advice(text: str) -> str:
    mantissa, letter, power = text.lower().partition("e")
    if letter and not text.startswith(("0x", "-0x")):
        return f"{mantissa}{'' if '.' in mantissa else '.0'}e{'' if power[0] in '+-' else '+'}{power} or, for a text, quote it"
    return "it out in full or, for a text, quote it"
