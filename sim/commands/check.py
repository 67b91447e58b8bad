"""``check``: are descriptions valid?"""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.spec.yaml import in_library
from sim.terminal import messages, named_as_called
from sim.units import pluralized


@app.command(epilog="Examples:\n  python -m sim check p3.16xlarge vgg16\n  python -m sim check my-box.yaml my-model.yaml -v")
def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="files or catalog names; the whole catalog by default",
            autocompletion=names.complete_folders("hardware", "workloads"),
        ),
    ] = [],
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="list every estimate")] = False,
) -> None:
    """Validate descriptions and list all problems at once, each with file, line and column."""
    from sim.check import validate

    verdicts = validate(files, messages.counter("files"))
    messages.progress("")
    for verdict in verdicts:
        for problem in verdict.problems:
            typer.echo(named_as_called(problem), err=True)
        for note in verdict.notes:
            typer.echo(named_as_called(f"{in_library(verdict.file)}: {note}"))
        if verbose:
            for estimate in verdict.estimates:
                typer.echo(f"{in_library(verdict.file)}: {estimate}")
    problems = sum(len(verdict.problems) for verdict in verdicts)
    estimates = sum(len(verdict.estimates) for verdict in verdicts)
    summary = [f"{pluralized(sum(bool(verdict.file) for verdict in verdicts), 'file')} {'checked' if problems else 'OK'}"]
    summary += [pluralized(problems, "problem")] if problems else []
    summary += [f"{pluralized(estimates, 'estimated value')}{'' if verbose else ' (-v lists them)'}"] if estimates else []
    typer.echo(", ".join(summary))
    if problems:
        raise typer.Exit(2)
