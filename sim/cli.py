"""What can be typed after ``python -m sim``? Options of every command; how the program speaks is `sim.terminal`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from sim import __version__
from sim.commands.app import app
from sim.terminal import exit_code


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stallsim {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks; before or after the command")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="say nothing on stderr but errors; before or after the command")] = False,
) -> None:
    """Options of every command; `sim.terminal` has taken --debug and --quiet out, they stand here for --help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; *arguments* default to the process's own."""
    return exit_code(app, arguments)
