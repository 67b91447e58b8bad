"""Oracle: which of several files of one name must win, laid out by hand in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec import catalog
from sim.spec.catalog import UnknownName, locate, suggestions
from sim.spec.library import load_hardware


def unknown(name: str, folder: str = "hardware", written_in: Path | None = None) -> str:
    with pytest.raises(UnknownName) as caught:
        locate(name, folder, written_in=written_in)
    return str(caught.value)


def test_names_are_found_whatever_their_case(toys: Path) -> None:
    assert locate("toy", "hardware") == locate("TOY", "hardware") == toys / "hardware/toy.yaml"
    assert locate("Toy-GPU", "hardware/parts/gpus") == toys / "hardware/parts/gpus/toy-gpu.yaml"


def test_aliases_are_names_too_and_broken_files_have_none(toys: Path) -> None:
    (toys / "hardware/aaa.yaml").write_text("aliases: [the-other] [")
    (toys / "hardware/bbb.yaml").write_text("aliases: 3 # the-other")
    (toys / "hardware/toy.yaml").write_text("name: toy\naliases: [the-other]\n")
    assert locate("the-other", "hardware") == toys / "hardware/toy.yaml"


def test_a_path_on_the_command_line_is_relative_to_the_working_folder(toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toys)
    assert locate("hardware/toy.yaml", "hardware") == Path("hardware/toy.yaml")


def test_a_path_in_a_file_is_relative_to_that_file(toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toys / "workloads")
    mine = toys / "mine"
    mine.mkdir()
    (mine / "gpu.yaml").write_text("name: mine\n")
    assert locate("gpu.yaml", "hardware/parts/gpus", written_in=mine / "machine.yaml") == mine / "gpu.yaml"


def test_the_parts_of_a_file_come_from_beside_it_first(toys: Path, tmp_path: Path) -> None:
    mine = toys / "mine"
    (mine / "parts/gpus").mkdir(parents=True)
    written_in = mine / "machine.yaml"
    assert locate("toy-gpu", "hardware/parts/gpus", written_in=written_in) == toys / "hardware/parts/gpus/toy-gpu.yaml"
    (mine / "parts/gpus/toy-gpu.yaml").write_text("name: mine\n")
    assert locate("toy-gpu", "hardware/parts/gpus", written_in=written_in) == mine / "parts/gpus/toy-gpu.yaml"
    assert locate("toy-gpu", "hardware/parts/gpus", near=mine) == mine / "parts/gpus/toy-gpu.yaml"


def test_a_further_folder_comes_before_the_catalog(toys: Path) -> None:
    mine = toys / "mine"
    mine.mkdir()
    (mine / "toy.yaml").write_text("name: mine\n")
    assert locate("toy", "hardware", near=mine) == mine / "toy.yaml"


def test_a_file_beside_it_with_the_name_that_is_sought_is_told(toys: Path) -> None:
    mine = toys / "mine"
    mine.mkdir()
    (mine / "a.yaml").write_text("extends: toy\nname: my-box\n")
    (mine / "b.yaml").write_text("extends: my-box\nname: larger\n")
    (mine / "broken.yaml").write_text("name: [\n")
    with pytest.raises(catalog.UnknownName, match=r"my-box is not in the catalog .*/a.yaml has this name: write a, the file's"):
        locate("my-box", "hardware", written_in=mine / "b.yaml")
    with pytest.raises(catalog.UnknownName, match="known: toy"):
        locate("larger", "hardware", written_in=mine / "b.yaml")  # its own


def test_unknown_names_come_with_near_ones(toys: Path) -> None:
    messages = {
        "toyy": "toyy is not in the catalog (hardware/); did you mean toy?",
        "zzz": "zzz is not in the catalog (hardware/); known: toy",
        "toy-job": "toy-job is not in the catalog (hardware/); it is a workload (workloads/), not a machine",
        "no/toy.yaml": "no/toy.yaml: no such file; did you mean toy?",
        "": "'' is not in the catalog (hardware/); known: toy",
        "a\0b": "'a\\x00b' is not in the catalog (hardware/); known: toy",
        "\ud800": "'\\ud800' is not in the catalog (hardware/); known: toy",
    }
    assert {name: unknown(name) for name in messages} == messages


def test_another_model_than_those_of_the_catalog_can_be_described() -> None:
    """A wrong letter needs no such words; ViT-L is not ViT-B."""
    hints = [("vit_l_16", "did you mean vit_b_16", True), ("alexnett", "did you mean alexnet", False)]
    hints += [("resnet-50", "did you mean resnet50", False), ("swin_t", r"lists all \d+, and", True)]
    for name, near, described in hints:
        with pytest.raises(catalog.UnknownName, match=near) as caught:
            catalog.locate(name, "workloads")
        assert ("'python -m sim new workload --help' shows how to describe another model" in str(caught.value)) == described


def test_a_large_folder_is_not_listed_in_a_hint() -> None:
    with pytest.raises(catalog.UnknownName, match=r"\(hardware/\); 'python -m sim list hardware' lists all \d+$"):
        catalog.locate("zzz", "hardware")
    assert unknown("/") == "/ is a folder; write the path of a YAML file or a name from the catalog"
    assert unknown("/dev/null") == "/dev/null is not a regular file; write the path of a YAML file"
    assert unknown("x" * 10_000).startswith(f"'{'x' * 76}... is not in the catalog")
    assert unknown("x/" * 5_000).startswith(f"'{'x/' * 125}x...: no such file")


@pytest.mark.parametrize(("name", "gpu"), [("4090", "RTX4090"), ("4x4090", "RTX4090"), ("2080ti", "RTX2080TI"), ("8x RTX 3090", "RTX3090")])
def test_a_gpu_by_its_number(name: str, gpu: str) -> None:
    with pytest.raises(catalog.UnknownName, match=f"it is a GPU, but no machine .*--set node.gpu={gpu}$"):
        locate(name, "hardware")
    with pytest.raises(catalog.UnknownName, match="did you mean"):
        locate("6000", "hardware")  # of several GPUs


@pytest.mark.parametrize(("name", "gpu"), [("H100 NVL", "H100-NVL"), ("NVIDIA H100 SXM", "H100-SXM5"), ("a100-sxm4", "A100-SXM4")])
def test_a_gpu_and_its_form_are_a_gpu(name: str, gpu: str) -> None:
    """Without its memory, as people say it; the hint's condition must find machines."""
    with pytest.raises(catalog.UnknownName, match=f"it is a GPU: 'python -m sim list hardware --where gpu={gpu}' lists the machines"):
        locate(name, "hardware")


@pytest.mark.parametrize("name", ["rtx-4090", "RTX4090", "geforce rtx 4090"])
def test_a_gpu_that_no_machine_has_can_be_put_into_one(name: str) -> None:
    with pytest.raises(catalog.UnknownName) as caught:
        locate(name, "hardware")
    assert "no machine in the catalog has" in str(caught.value)
    machine, _, option = str(caught.value).partition("such as ")[2].partition(" with --set ")
    assert load_hardware(machine, [option]).spec.groups[0].node.gpu.name == "RTX4090"


def test_suggestions_resemble_or_contain_the_name() -> None:
    names = ["p3.16xlarge", "p3.8xlarge", "V100-SXM2-16GB"]
    assert suggestions("p3.16xlarg", names, most=1) == ["p3.16xlarge"]
    assert suggestions("v100", names) == ["V100-SXM2-16GB"]
    assert suggestions("qqq", names) == []
    assert suggestions("ResNet-50", ["resnet50", "resnet10", "resnet152"]) == ["resnet50"]  # only hyphens and the like differ
    assert suggestions("h100-dgx", ["hgx-h100", *names]) == ["hgx-h100"]
    assert suggestions("-".join("abcdefghijklmnop"), names) == []  # of so many words no order is tried


def test_a_file_is_read_again_only_when_it_changes(library: Path) -> None:
    path = library / "hardware/toy.yaml"
    first = catalog.read(path)
    assert catalog.read(path) is first
    path.write_text("name: another\n")
    assert catalog.read(path).value == {"name": "another"}


def test_machines_of_measured_runs_have_names_too_but_are_not_listed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: pollux\nnode: {nic: {bandwidth: 10 Gbps}}\n")
    node = load_hardware(str(mine)).spec.groups[0].node
    assert node.topology.isolated == "host" and node.nic.bandwidth == 1.25e9
    assert "pollux" not in catalog.catalog("hardware")
    assert "no-such-machine is not in the catalog" in unknown("no-such-machine", written_in=mine)


def test_a_name_with_a_slash_is_no_missing_file() -> None:
    assert unknown("ViT-B/16", "workloads") == "ViT-B/16: no such file, nor a name in the catalog (workloads/); did you mean vit_b_16?"
    assert unknown("nowhere/mine.yaml") == "nowhere/mine.yaml: no such file; 'python -m sim list hardware' lists all 188"


def test_machines_on_which_runs_were_measured_are_suggested_though_not_listed() -> None:
    for name, near in (("leonardo", "leonardo-booster"), ("perlmuter", "perlmutter"), ("juwels-boster", "juwels-booster")):
        with pytest.raises(catalog.UnknownName, match=rf"did you mean {near}( or [a-z-]+)?\?$"):
            catalog.locate(name, "hardware")
    assert not {"leonardo-booster", "perlmutter"} & set(catalog.catalog("hardware"))
