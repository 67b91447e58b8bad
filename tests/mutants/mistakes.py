"""Which small mistakes can be made in a module? Each changes one place in the body of one function."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SAID = (ast.Raise, ast.JoinedStr, ast.AnnAssign)
"""Nodes that change no behavior: messages, and types of local names."""


class Mistake(NamedTuple):
    """The line *before* of *function* (its qualified name) reads *after* instead; *code* is the function's, so mistaken."""

    function: str
    before: str
    after: str
    code: CodeType


def mistakes(source: str) -> Iterator[Mistake]:
    """Yield every mistake that can be made in the module *source*, in the order of its lines."""
    tree = ast.parse(source)
    for name, function in _functions(tree, ""):
        places = [node for statement in function.body for node in _places(statement)]
        for place in range(len(places)):
            mistaken = copy.deepcopy(tree)
            inside = next(other for other_name, other in _functions(mistaken, "") if other_name == name)
            node = [node for statement in inside.body for node in _places(statement)][place]
            statement = _statement(inside, node)
            before = _first_line(statement)
            _mistake(node)
            after = _first_line(statement)
            code = _code(compile(ast.fix_missing_locations(mistaken), name, "exec", dont_inherit=True), name)
            yield Mistake(name, before, after, code)


def _functions(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what can be mistaken at *node* and inside it."""
    if isinstance(node, _SAID):
        return
    if (
        (isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OTHER)
        or (isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OTHER)
        or (isinstance(node, ast.Constant) and type(node.value) in (int, float))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OPPOSITE)
        or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub))
        or isinstance(node, ast.IfExp)
    ):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _places(child)


def _mistake(node: ast.AST) -> None:
    """Change *node* in place."""
    if isinstance(node, ast.Compare):
        node.ops = [_OTHER[type(node.ops[0])]()]  # type: ignore[list-item]
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = _OTHER[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant):
        node.value = node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        node.func.id = _OPPOSITE[node.func.id]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else node.op
        node.operand = node.operand if isinstance(node.op, ast.UAdd) else ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body


def _statement(function: ast.FunctionDef, node: ast.AST) -> ast.stmt:
    """Return the innermost statement of *function* that *node* stands in."""
    holders = [each for each in ast.walk(function) if isinstance(each, ast.stmt) and any(inner is node for inner in ast.walk(each))]
    return holders[-1]  # walked from the outside


def _first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]


def _code(code: CodeType, name: str) -> CodeType:
    """Return the code of the function *name* in that of its module."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return next((candidate for candidate in inner if candidate.co_qualname == name), None) or next(
        _code(candidate, name) for candidate in inner if name.startswith(f"{candidate.co_qualname}.")
    )
