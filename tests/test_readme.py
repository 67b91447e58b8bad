"""README shows what the program prints: every block is run again and compared."""

from __future__ import annotations

import re

import pytest

from tests import readme

BLOCKS = list(readme.BLOCK.finditer(readme.README.read_text(encoding="utf-8")))


def test_readme_has_blocks() -> None:
    assert BLOCKS


@pytest.mark.parametrize("match", BLOCKS, ids=[match["command"] for match in BLOCKS])
def test_block_is_what_the_command_prints(match: re.Match[str]) -> None:
    assert match[0] == readme.block(match["command"]), "run `make readme`"


def test_python_examples_show_what_python_shows() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert len(readme.PYTHON.findall(text)) == 3
    assert readme.session(text) == text, "run `make readme`"
