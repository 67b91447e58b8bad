"""Each page of docs/develop about an extension works as it stands: its module, its entry point, its Python and its commands.

A page has under 40 lines besides blank ones. The first Python block is a file, named in its first line; the TOML block announces it as an
installed package would; lines that begin with a prompt run with that package installed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import shown

PAGES = sorted(path for path in (shown.ROOT / "docs/develop").glob("*.md") if path.name != "index.md")
BLOCK = re.compile(r"```(?P<language>python|toml)\n(?P<body>.*?)```", re.DOTALL)
COMMAND = re.compile(r"^`?\$ python (?P<words>-m .*?)`?$", re.MULTILINE)


def blocks(page: Path) -> dict[str, list[str]]:
    by_language: dict[str, list[str]] = {"python": [], "toml": []}
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        by_language[match["language"]].append(match["body"])
    return by_language | {"commands": [match["words"] for match in COMMAND.finditer(page.read_text(encoding="utf-8"))]}


def install(folder: Path, package: str, announced: dict[str, dict[str, str]]) -> None:
    """Lay out in *folder* what pip would: the metadata of *package*, with its entry points."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items()) for group, rows in announced.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def typed(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run *command* in *folder*, whose packages are installed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(shown.ROOT)]), "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=240)


EVERY_TIME = ("own-schedule",)


@pytest.mark.parametrize("page", [
    pytest.param(page, id=page.stem, marks=() if page.stem in EVERY_TIME else pytest.mark.nightly) for page in PAGES
])  # fmt: skip
def test_page_works_as_it_stands(page: Path, tmp_path: Path) -> None:
    by_language = blocks(page)
    assert sum(bool(line) for line in page.read_text(encoding="utf-8").splitlines()) < 40
    module, *uses = by_language["python"]
    [announced] = [tomllib.loads(body)["project"]["entry-points"] for body in by_language["toml"]]
    assert module.startswith("# ") and uses and by_language["commands"]
    file = tmp_path / module.split("\n")[0][2:]
    file.parent.mkdir(exist_ok=True)
    file.write_text(module, encoding="utf-8")
    for use in uses:
        done = typed([sys.executable, "-W", "error", "-c", use], tmp_path)
        assert done.returncode == 0, done.stderr
    install(tmp_path, "of_a_user", announced)
    for words in by_language["commands"]:
        done = typed([sys.executable, *shlex.split(words)], tmp_path)
        assert done.returncode == 0, done.stderr
        assert any(name in done.stdout for rows in announced.values() for name in rows)


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    index = (shown.ROOT / "docs/develop/index.md").read_text(encoding="utf-8")
    site = (shown.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert PAGES
    assert [page.name for page in PAGES if f"]({page.name})" not in index or f"develop/{page.name}" not in site] == []
