"""How do errors name the arguments of Python functions? Problems name the options of commands, and are translated where a call ends.

``--nodes 0: write 1 or more`` becomes ``nodes=0: write 1 or more``, and ``--set a.b='1 s'`` becomes ``overrides={'a.b': '1 s'}``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from numbers import Integral
from types import MappingProxyType
from typing import Final, ParamSpec, TypeVar

from sim.spec.catalog import likely_or_all
from sim.spec.yaml import SpecError
from sim.study.arguments import OWN_PARTS
from sim.study.layout_options import LAYOUT_KEYS
from sim.study.options import options_of

P = ParamSpec("P")
T = TypeVar("T")

_RENAMED: Final = MappingProxyType({"set": "overrides", "price": "prices", "jobs": "processes"})
"""Arguments whose options have other names, in all functions."""
_OF_LAYOUTS: Final = LAYOUT_KEYS | {"tensor", "pipeline", "context", "expert"}
_MAPPINGS: Final = ("overrides", "prices", "parallel", "fix", "vary")
"""Arguments that are mappings; their options are written as KEY=VALUE."""
_OWN_PARTS: Final = MappingProxyType({field: name for name, field in OWN_PARTS.items()})
"""Arguments for the user's own parts, by the fields that they override."""
_COMMAND: Final = r"python -m (?:sim|calibration)\b[^';`]*"
_OPTION: Final = re.compile(
    rf"(?P<command>{_COMMAND})|(?<![\w-])--(?P<no>no-)?(?P<name>[a-z][a-z0-9-]*[a-z0-9])"
    r"(?: (?P<key>[\w.]+)=(?P<text>'[^']*'|[^\s:;,]+)| (?P<value>'[^']*'|\d[\d.,]*\d|\d))?"
)
_SUBJECT: Final = re.compile(r"^--(?P<name>[a-z][a-z0-9-]*[a-z0-9]) (?P<value>(?!or |and )(?:(?! --)(?:[^:]|:(?! )))+): ")


def arguments_in(problem: str) -> str:
    """Return *problem* with arguments instead of options."""

    def argument(option: str) -> str:
        name = _RENAMED.get(option, option.replace("-", "_"))
        return f"parallel[{name!r}]" if name in LAYOUT_KEYS else name

    def replaced(match: re.Match[str]) -> str:
        if match["command"]:
            return match[0]
        name, key, value = argument(match["name"]), match["key"], match["text"] or match["value"]
        rest = match[0][match.end("name") - match.start() :]
        if match["no"]:
            return f"{name}=False{rest}"
        if key and name in _MAPPINGS:
            return f"{name}={{{key!r}: {value if value[0] in chr(39) or value.isdigit() else repr(value)}}}"
        return f"{name}={value}" if value else name + rest

    def subject(match: re.Match[str]) -> str:
        name, (key, equals, value) = argument(match["name"]), match["value"].partition("=")
        if key in _OWN_PARTS and name == "overrides":
            return f"{_OWN_PARTS[key]}={value}: "
        of_mapping = name in _MAPPINGS and match["name"] != "prices"  # the source of all prices; --price is that of one machine
        return f"{name}[{key!r}]{equals}{value}: " if of_mapping else f"{name}={match['value']}: "

    return _OPTION.sub(replaced, _SUBJECT.sub(subject, problem))


def _of_own_part(problem: str, given: Mapping[str, object]) -> str:
    """Return *problem* of the field of one of the user's own parts with the argument that set it, if it is *given*."""
    field, _, rest = problem.partition(": ")
    argument = _OWN_PARTS.get(field, "")
    return f"{argument}: {rest}" if given.get(argument) is not None else problem


def require_known(names: Iterable[str], arguments: Collection[str], given: Mapping[str, object] = MappingProxyType({})) -> None:
    """Raise SpecError for the first of *names* that is not one of the *arguments*, with the one that was meant and its value *given*."""
    for name in names:
        if name in arguments:
            continue
        renamed = _RENAMED.get(name)
        if renamed in arguments:
            raise SpecError(f"{name}: unknown option; write {renamed}")
        axis = name.removesuffix("_size").removesuffix("_parallel")
        if axis in _OF_LAYOUTS and "parallel" in arguments:
            value = repr(given[name]) if name in given else "..."
            raise SpecError(f"{name}: unknown option; write parallel={{{axis!r}: {value}}}")
        raise SpecError(f"{name}: unknown option; {likely_or_all(name, list(arguments))}")


def plain_integers(value: object) -> object:
    """Return *value*, or the list *value*, with Python's integers for those of other types, such as numpy's."""
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    return [plain_integers(each) for each in value] if type(value) is list else value


def names_arguments(*groups: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: each SpecError of the function names arguments, also one for an unknown argument.

    The function takes fields of *groups* under their own names as well.
    """
    fields = {name for group in groups for name in options_of(group)}

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters.values()
        arguments = sorted(each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD)

        @wraps(function)
        def called(*args: P.args, **given: P.kwargs) -> T:
            require_known(given.keys() - fields, arguments)
            try:
                return function(*map(plain_integers, args), **{name: plain_integers(value) for name, value in given.items()})  # type: ignore[arg-type]
            except SpecError as error:
                problems = [arguments_in(_of_own_part(problem, given)) for problem in error.problems]
                if problems == error.problems:
                    raise
                raise SpecError(problems) from error.__cause__

        return called

    return decorated
