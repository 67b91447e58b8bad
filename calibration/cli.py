"""What can be typed after ``python -m calibration``? The options shared by all commands; `sim.terminal` handles output and exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from calibration.commands.app import app
from sim import __version__
from sim.terminal import exit_code


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stallsim-calibrate {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="print only errors on stderr")] = False,
) -> None:
    """Options of every command; `sim.terminal` has already removed --debug and --quiet, which are listed here only for --help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; *arguments* default to the process's own."""
    return exit_code(app, arguments)
