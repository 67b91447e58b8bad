"""What a refused command says: a message on stderr, nothing on stdout, no traceback, and exit code 2."""

from __future__ import annotations

import pytest

from sim.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message with which the command of *arguments* is refused."""
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err
