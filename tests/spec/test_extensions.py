"""Are extensions of installed packages found, and is a broken one reported with its entry point and package?

The metadata are laid out as pip does, in a folder on ``sys.path``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sim.spec.catalog import provided_files
from sim.spec.extensions import SCHEDULES, STACKS, extension, names
from sim.spec.yaml import SpecError
from tests.test_develop_pages import install, typed

MODULE = """
class Fine:
    name = "{name}"
    waits_for_sends = True

    def passes(self, stage, stages, chunks, micro_batches):
        return [(kind, 0, number) for kind in "FB" for number in range(micro_batches)]

class Lacking:
    name = "lacking"

class Failing(Fine):
    def __init__(self):
        raise RuntimeError("no license\\nfound")

def refusing(stage, stages, chunks, micro_batches):
    raise ValueError("an odd number of micro-batches; write an even one")

refuses = Fine()
refuses.name = "refuses"
refuses.passes = refusing
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def package(folder: Path, number: int, rows: dict[str, str]) -> None:
    """Install package *number* with a module of its own and the entry points *rows*, whose values lack the module."""
    module = f"of_user_{number}_{folder.name}".replace("-", "_")
    (folder / f"{module}.py").write_text(MODULE.format(name=f"fine{number}"), encoding="utf-8")
    install(folder, f"user{number}", {SCHEDULES.group: {name: f"{module}{value}" for name, value in rows.items()}})


def test_an_extension_is_found_by_its_name(installed: Path) -> None:
    package(installed, 1, {"fine1": ":Fine", "refuses": ":refuses"})
    package(installed, 2, {"fine2": ":Fine"})
    assert names(SCHEDULES) == ["fine1", "fine2", "refuses"]
    assert [getattr(extension(SCHEDULES, name), "name", None) for name in names(SCHEDULES)] == names(SCHEDULES)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("lost", {"fine1": ":Fine"}, "found 'lost'; write one of fine1, or the name of one of your own (docs/develop/own-schedule.md)"),
        ("gone", {"gone": "_gone:Fine"}, "of user1 1.0: cannot be loaded: ModuleNotFoundError: No module named"),
        ("none", {"none": ":Nothing"}, "of user1 1.0: cannot be loaded: AttributeError: module"),
        ("bad", {"bad": ":Failing"}, "of user1 1.0: cannot be loaded: RuntimeError: no license found; fix or uninstall that package"),
        (
            "lacking",
            {"lacking": ":Lacking"},
            "of user1 1.0: does not follow PipelineSchedule: it lacks waits_for_sends and passes; see docs/develop/",
        ),
        ("other", {"other": ":Fine"}, "of user1 1.0: its name attribute is fine1; both names must be equal"),
    ],
)
def test_a_broken_extension_is_told_of_in_a_sentence(installed: Path, name: str, rows: dict[str, str], message: str) -> None:
    package(installed, 1, rows)
    with pytest.raises(SpecError) as refused:
        extension(SCHEDULES, name)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert name == "lost" or str(refused.value).startswith(f"schedule {name}, entry point of_user_1_")


def test_two_packages_with_one_name_are_refused(installed: Path) -> None:
    package(installed, 1, {"fine1": ":Fine"})
    package(installed, 2, {"fine1": ":Fine"})
    with pytest.raises(SpecError) as refused:
        extension(SCHEDULES, "fine1")
    assert "of user1 1.0 and entry point" in str(refused.value)
    assert str(refused.value).endswith("of user2 1.0; uninstall one of them, or rename one")


def test_the_command_line_and_yaml_take_it_and_tell_what_it_refuses(tmp_path: Path) -> None:
    package(tmp_path, 1, {"fine1": ":Fine", "refuses": ":refuses"})
    (tmp_path / "mine.yaml").write_text("{extends: llama-3.2-1b, name: mine, training: {parallel: {pipeline: 2, schedule: fine1}}}\n")
    command = [sys.executable, "-m", "sim", "run", "hgx-h100", "mine.yaml", "--micro-batches", "3", "--batch", "1"]
    completed = typed(command, tmp_path)
    assert completed.returncode == 0 and "pipeline 2 (fine1)" in completed.stdout, completed.stderr
    refused = typed([*command, "--schedule", "refuses"], tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == "training.parallel: schedule refuses: an odd number of micro-batches; write an even one\n"


def test_a_folder_of_stacks_that_was_not_installed_is_missed(installed: Path) -> None:
    module = f"stacks_of_user_{installed.name}".replace("-", "_")
    code = "from pathlib import Path\nclass Ours:\n    name = 'ours'\n    folder = Path(__file__).parent / 'stacks'\n"
    (installed / f"{module}.py").write_text(code, encoding="utf-8")
    install(installed, "stacks-of-user", {STACKS.group: {"ours": f"{module}:Ours"}})
    with pytest.raises(SpecError, match=r"folder of stacks ours: there is no folder \S+/stacks; move it into a package"):
        provided_files("workloads/stacks")
    (installed / "stacks").mkdir()
    (installed / "stacks" / "our-torch.yaml").write_text("extends: torch-2.x-ddp\nname: our-torch\n", encoding="utf-8")
    assert provided_files("workloads/stacks")["our-torch"] == installed / "stacks" / "our-torch.yaml"
