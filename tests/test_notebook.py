"""Does the notebook in examples/ run and show what is committed? Oracle: its committed outputs, renewed by ``python -m tests.notebook``."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.notebook import NOTEBOOK, executed, said


@pytest.mark.nightly
def test_the_notebook_shows_what_is_committed() -> None:
    committed = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert said(executed(committed)) == said(committed)
    assert len(said(committed)) == sum(cell["cell_type"] == "code" for cell in committed["cells"])


@pytest.mark.nightly
def test_a_kernel_of_jupyter_runs_it() -> None:
    if not all(importlib.util.find_spec(name) for name in ("nbclient", "nbformat", "ipykernel")):
        pytest.skip("needs nbclient and ipykernel")
    nbformat, nbclient = (importlib.import_module(name) for name in ("nbformat", "nbclient"))
    nbclient.NotebookClient(nbformat.read(NOTEBOOK, as_version=4), timeout=300).execute()


def test_the_notebook_is_small() -> None:
    assert NOTEBOOK.stat().st_size < 200_000
