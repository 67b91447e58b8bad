"""README and docs show what the program prints: every block is run again and compared; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import shown

BLOCKS = [(page.name, match) for page in shown.PAGES for match in shown.BLOCK.finditer(page.read_text(encoding="utf-8"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_readme_is_short_and_shows_commands() -> None:
    lines = (shown.ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert any(name == "README.md" for name, _ in BLOCKS)


@pytest.mark.apart
@pytest.mark.parametrize("match", [match for _, match in BLOCKS], ids=[f"{name}: {match['command']}" for name, match in BLOCKS])
def test_block_is_what_the_command_prints(match: re.Match[str]) -> None:
    assert match[0] == shown.block(match["command"]), "run `make readme`"


def test_python_examples_show_what_python_shows() -> None:
    pages = [page for page in shown.PAGES if "```pycon" in page.read_text(encoding="utf-8")]
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert shown.session(text) == text, f"{page.name}: run `make readme`"


def test_links_lead_somewhere() -> None:
    broken = []
    for page in shown.PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if not (page.parent / Path(target)).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken
