"""README and docs show what the program prints: every block is run again and compared; links lead somewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sim.commands.app import COMMANDS
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from tests import shown

BLOCKS = [(page.name, match) for page in shown.PAGES for match in shown.BLOCK.finditer(page.read_text(encoding="utf-8"))]
YAML = re.compile(r"```yaml\n(?P<body>.*?)```", re.DOTALL)
SOURCE = re.compile(r"`((?:sim|calibration|hardware|workloads|tests)/[\w./-]*\w/?)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_readme_is_short_and_shows_commands() -> None:
    lines = (shown.ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert any(name == "README.md" for name, _ in BLOCKS)


LONGEST = (
    "python -m sim share ", "python -m sim whatif hgx-h100 ", "python -m sim recommend p3",
    "python -m sim goodput hgx-h100 gpt2-xl --nodes 128 ", "python -m calibration lab --",
)  # fmt: skip
"""How commands begin that take longer than the others together; other tests see to what they print."""


@pytest.mark.parametrize("match", [
    pytest.param(
        match, id=f"{name}: {match['command']}", marks=pytest.mark.nightly if match["command"].startswith(LONGEST) else pytest.mark.slow
    )
    for name, match in BLOCKS
])  # fmt: skip
def test_block_is_what_the_command_prints(match: re.Match[str]) -> None:
    assert match[0] == shown.block(match), "run `make readme`"


def test_a_process_prints_what_this_one_does() -> None:
    command = next(match["command"] for name, match in BLOCKS if name == "README.md")
    assert shown.process_output(command) == shown.output(command)


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


def test_named_files_exist() -> None:
    missing = []
    for page in shown.PAGES:
        for name in SOURCE.findall(page.read_text(encoding="utf-8")):
            if not (shown.ROOT / name).exists():
                missing.append(f"{page.name}: {name}")
    assert not missing


def test_descriptions_shown_are_accepted(tmp_path: Path) -> None:
    shutil.copy(shown.ROOT / "workloads/models/resnet50.yaml", tmp_path / "my-model.yaml")
    pages = [shown.ROOT / "docs/how-to" / name for name in ("my-machine.md", "my-model.md", "replay.md", "layouts.md")]
    bodies = [body for page in pages for body in YAML.findall(page.read_text(encoding="utf-8")) if body.startswith(("name:", "extends:"))]
    refused = []
    for number, body in enumerate(bodies):
        file = tmp_path / f"shown-{number}.yaml"
        file.write_text(body, encoding="utf-8")
        try:
            (load_hardware if "node:" in body else load_workload)(str(file))
        except SpecError as error:
            refused.append(str(error))
    assert len(bodies) > 3
    assert not refused


def test_readme_names_what_a_newcomer_looks_for() -> None:
    text = (shown.ROOT / "README.md").read_text(encoding="utf-8")
    assert [word for word in ("sim check ", "sim show ", "sim schema`", "sim new ", "gradient accumulation") if word not in text] == []


def test_output_that_is_shown_is_compared() -> None:
    """Every ``$ python`` line is in a block that is run again, or on a page of `tests.test_develop_pages`."""
    for page in shown.PAGES:
        left = shown.BLOCK.sub("", page.read_text(encoding="utf-8"))
        assert "\n```\n$ " not in left, page.name


def test_a_failing_command_shows_its_message_and_must_fail() -> None:
    says = "vgg is not in the catalog"
    assert shown.output("python -m sim show vgg", exits=2).startswith(says)
    with pytest.raises(RuntimeError, match=says):
        shown.output("python -m sim show vgg")
    with pytest.raises(RuntimeError):
        shown.output("python -m sim list jobs", exits=2)


def test_commands_are_named_as_they_are_typed() -> None:
    short = re.compile(rf"`sim (?:{'|'.join(COMMANDS)})\b")
    pages = {page.name: written for page in shown.PAGES if (written := short.findall(page.read_text(encoding="utf-8")))}
    assert pages == {}, "there is no command `sim`: write `python -m sim ...`"
