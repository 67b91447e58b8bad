"""Does the source keep its shape? Lazy imports, lengths, names, docstrings.

`make imports` checks the import contracts. Oracles: ``sys.modules`` of a fresh interpreter, and the syntax tree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [ROOT / name for name in ("sim", "calibration") if (ROOT / name).is_dir()]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
SOURCES = MODULES + sorted((ROOT / "tests").rglob("*.py"))

LONGEST_FILE = 500
LONGEST_DOCSTRING = 12
LONGEST_FUNCTION = 60
MEDIAN_FUNCTION = 8

LAZY = ["pandas", "networkx", "joblib", "rich", "scipy", "matplotlib", "torch", "starlette", "uvicorn"]
"""Too slow to import for a run that does not need them (pandas alone 0.46 s)."""

EMPTY_WORDS = {"util", "utils", "helper", "helpers", "manager", "handler", "base", "common", "misc", "info"}
"""Words that say nothing about what a file or class answers."""

VAGUE = {"found", "asked", "known", "whole"}
"""Names for anything at all, of variables and parameters: each value has a name of its own."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
USED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ImportFrom, ast.arg, ast.Name)
"""The kinds of nodes that tests use."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> Mapping[type[ast.AST], list[Any]]:
    """Nodes of the tree by kind: walking a tree takes longer than parsing it."""
    by_kind: dict[type[ast.AST], list[Any]] = {kind: [] for kind in USED}
    for node in ast.walk(tree(path)):
        if type(node) in by_kind:
            by_kind[type(node)].append(node)
    return by_kind


@pytest.fixture(scope="module", autouse=True)
def trees_of_this_file_only() -> Iterator[None]:
    """Forget the trees at the end: their two million objects would slow every later collection of garbage."""
    yield
    tree.cache_clear()
    nodes.cache_clear()


def functions(path: Path) -> Iterator[Function]:
    return chain(nodes(path)[ast.FunctionDef], nodes(path)[ast.AsyncFunctionDef])


def length(function: Function) -> int:
    """Lines of the body: a command's options are declarations, one a line."""
    return (function.end_lineno or function.lineno) - function.body[0].lineno + 1


def public(node: ast.Module | ast.ClassDef, owner: str) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    """Every public module, class, function and method below *node* by dotted name."""
    yield owner, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{owner}.{child.name}")
            else:
                yield f"{owner}.{child.name}", child


def fresh_interpreter(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_command_line_starts_without_heavy_imports() -> None:
    """Not even with the modules of all commands, of which a run imports its own; what they register is what can be typed."""
    code = """
import pkgutil, sys, typer, sim.cli, sim.commands
from importlib import import_module
from sim.commands.app import COMMANDS, app
for module in pkgutil.iter_modules(sim.commands.__path__):
    import_module(f"sim.commands.{module.name}")
registered = [known.name or known.callback.__name__ for known in app.registered_commands]
registered += [known.name for known in app.registered_groups]
assert sorted(registered) == sorted(COMMANDS), registered
print(*sys.modules)
"""
    loaded = fresh_interpreter(code).split()
    assert {"sim.cli", "sim.commands.run", "sim.commands.study"} < {*loaded}
    assert [heavy for heavy in LAZY if heavy in loaded] == []


def test_the_list_of_commands_imports_no_simulator() -> None:
    code = "import sys; from sim.cli import main; main(['--help']); print(*sys.modules)"
    loaded = fresh_interpreter(code).splitlines()[-1].split()
    assert "sim.commands.goodput" in loaded
    assert [heavy for heavy in (*LAZY, "numpy", "simpy", "sim.simulate") if heavy in loaded] == []


def test_annotations_of_descriptions_are_evaluated_with_their_classes() -> None:
    # pydantic would otherwise compile each field's annotation from text: 10 ms of every command
    for path in (ROOT / "sim" / "spec").rglob("*.py"):
        describes = {base.id for kind in nodes(path)[ast.ClassDef] for base in kind.bases if isinstance(base, ast.Name)} & {"Spec"}
        late = any(each.module == "__future__" for each in nodes(path)[ast.ImportFrom])
        assert not (describes and late), f"{name(path)}: leave out 'from __future__ import annotations'"


def test_the_package_itself_imports_nothing() -> None:
    loaded = fresh_interpreter("import sys; before = set(sys.modules); import sim; print(*set(sys.modules) - before)").split()
    assert loaded == ["sim"]


def test_files_are_short() -> None:
    """Longer ones answer more than one question."""
    lengths = [(len(path.read_text(encoding="utf-8").splitlines()), name(path)) for path in SOURCES]
    assert [entry for entry in lengths if entry[0] > LONGEST_FILE] == []


def test_functions_are_short() -> None:
    lengths = sorted((length(function), f"{name(path)}:{function.lineno}") for path in MODULES for function in functions(path))
    assert [entry for entry in lengths if entry[0] > LONGEST_FUNCTION] == []
    assert lengths[len(lengths) // 2][0] <= MEDIAN_FUNCTION


def test_names_say_something() -> None:
    files = [name(path) for path in SOURCES if EMPTY_WORDS & set(path.stem.lower().split("_"))]
    files += [name(path) for path in SOURCES if path.stem == "data"]
    classes = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in nodes(path)[ast.ClassDef]
        if EMPTY_WORDS & {word.lower() for word in re.findall("[A-Z][a-z]*", node.name)}
    ]
    assert files + classes == []


def test_variables_are_named_for_what_they_are() -> None:
    bound = {
        f"{name(path)}:{node.lineno} {word}"
        for path in SOURCES
        for node in chain(nodes(path)[ast.arg], nodes(path)[ast.Name])
        if (word := node.arg if isinstance(node, ast.arg) else node.id) in VAGUE
    }
    assert sorted(bound) == []


def types(path: Path) -> Iterator[tuple[str, str]]:
    """Every class and alias of a type, private ones too, by its name without underscore, and what makes it another than its namesakes."""
    for node in nodes(path)[ast.ClassDef]:
        yield node.name.lstrip("_"), f"{name(path)}:{node.lineno}"
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            alias = node.targets[0].id.lstrip("_")
            if alias[:1].isupper() and not alias.isupper():
                yield alias, ast.unparse(node.value)


def test_the_name_of_a_type_means_one_thing() -> None:
    """An alias may be written again where it means the same."""
    meanings: dict[str, set[str]] = {}
    for path in MODULES:
        for word, meaning in types(path):
            meanings.setdefault(word, set()).add(meaning)
    assert {word: sorted(several) for word, several in meanings.items() if len(several) > 1} == {}


def test_public_names_are_documented() -> None:
    public_names = [(f"{name(path)}:{dotted}", node) for path in MODULES for dotted, node in public(tree(path), path.stem)]
    assert public_names
    assert [where for where, node in public_names if not ast.get_docstring(node)] == []


def test_module_docstrings_are_short() -> None:
    """Background goes to docs/model."""
    lengths = [(len((ast.get_docstring(tree(path)) or "").splitlines()), name(path)) for path in MODULES]
    assert [where for lines, where in lengths if lines > LONGEST_DOCSTRING] == []


def test_no_star_imports() -> None:
    stars = [
        f"{name(path)}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)[ast.ImportFrom]
        if any(alias.name == "*" for alias in node.names)
    ]
    assert stars == []


def imported(path: Path) -> set[str]:
    """What the module at *path* imports when it runs, also inside functions: not for type checks alone."""
    typed = {id(inner) for node in tree(path).body if isinstance(node, ast.If) for inner in ast.walk(node)}
    own = [node for node in nodes(path)[ast.ImportFrom] if id(node) not in typed and not node.level]
    names = {name for node in own for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))}
    return names


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Such modules can only be read, and changed, together. A package's ``__init__`` is no module here."""
    left = {dotted(path): imported(path) for path in MODULES if path.name != "__init__.py"}
    while ends := [name for name, others in left.items() if not others & left.keys()]:
        for name in ends:
            del left[name]
    assert sorted(left) == [], "these, or what they import, import one another"
