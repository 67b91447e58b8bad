"""What do the cells of examples/first-run.ipynb show? ``python -m tests.notebook`` runs them and writes their outputs into the file."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "first-run.ipynb"


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return *notebook* with its code cells run one after another in this process, and what each shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for cell in notebook["cells"]:
        number = sum(one["cell_type"] == "code" for one in cells) + 1
        cells.append(
            cell | {"execution_count": number, "outputs": _run("".join(cell["source"]), names, number)}
            if cell["cell_type"] == "code"
            else cell
        )
    return notebook | {"cells": cells}


def _run(code: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    said, shown = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        exec(compile(ast.Module(body, []), "a cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "a cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": said.getvalue().splitlines(keepends=True)})
    if shown is not None:
        data: dict[str, Any] = {"text/plain": repr(shown).splitlines(keepends=True)}
        if hasattr(shown, "_repr_png_"):
            data["image/png"] = base64.b64encode(shown._repr_png_()).decode()
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def said(notebook: dict[str, Any]) -> list[str]:
    """Return the text of every output of *notebook*; of a picture only that it is one."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return ["".join(_text(output)) for output in outputs]


def _text(output: dict[str, Any]) -> list[str]:
    if "text" in output:
        return list(output["text"])
    return ["a picture"] if "image/png" in output["data"] else list(output["data"]["text/plain"])


def write() -> None:
    """Run the notebook and write it with its outputs."""
    notebook = executed(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
