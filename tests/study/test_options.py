"""Is an option that the command line and Python share said once? Oracle: one declared here, and what `inspect` shows of all."""

from __future__ import annotations

import importlib
import inspect
from typing import Annotated, Unpack

import pytest
import typer
from typer.testing import CliRunner

import stallsim
from sim.commands.options import takes_options
from sim.study.options import BatchOptions, OptionTerms, keywords, select_options
from tests.test_package import _CLI_ONLY

OWN_FORM = {
    "nodes": "a range of numbers as text; a list of them",
    "gpus": "of run: the same",
    "batch": "of run: 'max' among numbers, which a command line reads as text",
    "prices": "a name; an object as well",
    "parallel": "texts; a mapping",
    "where": "Typer has lists, Python any sequence",
    "hardware": "the same",
    "fix": "texts; a mapping",
    "allow": "texts with commas; a sequence",
    "vary": "texts; a mapping",
    "journal": "a path; a name too",
    "export": "the same",
    "processes": "all cores; one, as what imports stallsim may not be a script that can be started again",
}
"""Options that are a text on a command line and an object in Python, so that they are two."""


class MoreOptions(BatchOptions, total=False):
    depth: Annotated[int, OptionTerms("how deep to look", 3, least=1)]


def test_an_option_more_is_one_line() -> None:
    """Of `MoreOptions`: the command and the function below do not name it."""
    seen: list[dict[str, object]] = []

    @takes_options
    def command(given: MoreOptions, name: str = "x") -> None:
        seen.append(dict(given))

    @keywords(MoreOptions)
    def function(**options: Unpack[MoreOptions]) -> dict[str, object]:
        return dict(options)

    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, ["--depth", "5", "--batch", "8"]).exit_code == 0
    assert seen == [function(depth=5, batch=8)] == [{"depth": 5, "batch": 8, "precision": None, "fp8_recipe": None, "stack": None}]
    assert function()["depth"] == 3 and "how deep to look" in (function.__doc__ or "")
    assert CliRunner().invoke(app, ["--depth", "0"]).exit_code == 2 and len(seen) == 1
    assert "how deep to look" in CliRunner().invoke(app, ["--help"]).output
    assert select_options(function(batch=2), BatchOptions) == {"batch": 2, "precision": None, "fp8_recipe": None, "stack": None}
    with pytest.raises(TypeError, match="unexpected keyword argument 'deep'"):
        function(deep=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["run", "compare", "recommend", "plan", "goodput", "sweep", "whatif"])
def test_what_is_left_out_means_the_same(name: str) -> None:
    """Types and defaults of every option, as the command and the function have them."""
    command = inspect.signature(getattr(importlib.import_module(f"sim.commands.{name}"), name), eval_str=True).parameters
    function = inspect.signature(getattr(stallsim, name)).parameters
    shared = {option for option in command.keys() & function.keys() if command[option].default is not inspect.Parameter.empty} - _CLI_ONLY
    shared -= OWN_FORM.keys()
    unlike = {option: (command[option].default, function[option].default) for option in shared}
    assert len(unlike) > 4 and {option: both for option, both in unlike.items() if both[0] != both[1]} == {}
