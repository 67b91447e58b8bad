"""Does docs/develop/index.md point to what is there? Oracle: the files of the checkout and their syntax trees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = (ROOT / "docs/develop/index.md").read_text(encoding="utf-8")
PLACES = re.compile(r"((?:`[\w.]+`(?:, | and )?)+) (?:of|in) `((?:\w+/)+\w+\.py)`")
"""Names of a file: "`one` and `other` of `sim/file.py`"."""


def names_in(path: str) -> set[str]:
    """Return what the file at *path* defines or assigns, by dotted name: functions and classes with what is inside them, variables."""

    def members(body: list[ast.stmt], owner: str = "") -> set[str]:
        names: set[str] = set()
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names |= {owner + node.name, *members(node.body, f"{owner}{node.name}.")}
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            names |= {owner + target.id for target in targets if isinstance(target, ast.Name)}
        return names

    return members(ast.parse((ROOT / path).read_text(encoding="utf-8")).body)


def test_each_file_exists() -> None:
    tops = ("sim", "calibration", "tests", "hardware", "workloads")
    paths = {path for path in re.findall(r"`([\w./*-]+)`", INDEX) if path.partition("/")[0] in tops and "/" in path}
    assert len(paths) > 100
    assert sorted(path for path in paths if not any(ROOT.glob(path.rstrip("/")))) == []


def test_each_name_is_in_its_file() -> None:
    places = [(name, path) for names, path in PLACES.findall(INDEX) for name in re.findall(r"`([\w.]+)`", names)]
    assert len(places) > 60
    wrong = [f"{name} of {path}" for name, path in places if not any(f".{defined}".endswith(f".{name}") for defined in names_in(path))]
    assert wrong == []
