"""Oracles: values written in the toy documents, and SHA-256 of the same data in another order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sim.spec.library import fingerprint, load_hardware, load_model_alone, load_part, load_workload
from sim.spec.stack import Stack
from sim.spec.yaml import SpecError


def test_a_machine_and_a_workload_are_loaded_by_name_or_path(toys: Path) -> None:
    by_name, by_path = load_hardware("toy"), load_hardware(str(toys / "hardware/toy.yaml"))
    assert by_name.spec == by_path.spec
    assert by_name.spec.groups[0].node.gpu.memory == 16 * 2**30
    assert load_workload("toy-job").spec.dataset.prep == 0.005


def test_a_part_is_loaded_alone(toys: Path) -> None:
    assert load_part(Stack, "plain").kernels.launch_cpu == 10e-6


def test_files_outside_the_catalog_find_their_own_parts(library: Path) -> None:
    assert load_hardware(str(library / "hardware/toy.yaml")).spec.groups[0].node.gpu.name == "Toy-GPU"


def test_a_further_folder_is_searched_before_the_catalog(toys: Path) -> None:
    mine = toys / "mine"
    mine.mkdir()
    (mine / "toy.yaml").write_text("name: mine\nnode: ../hardware/toy.yaml\n")
    assert load_hardware("toy", library=mine).spec.name == "mine"


def test_the_document_gives_the_place_and_spelling_of_every_key(toys: Path) -> None:
    document = load_hardware("toy", ["node.gpu_count=2"]).document
    assert document.message_start(("groups", 0, "node", "nic", "bandwidth")) == f"{toys}/hardware/toy.yaml:12:9: node.nic.bandwidth: "
    assert document.message_start(("groups", 0, "node", "gpu_count")) == "--set node.gpu_count=2: "


def test_fingerprints_tell_what_is_said_not_how(toys: Path) -> None:
    text = (toys / "hardware/toy.yaml").read_text()
    first = load_hardware("toy").sha256
    lines = text.splitlines(keepends=True)
    (toys / "hardware/toy.yaml").write_text("# a comment\n" + lines[1] + lines[0] + "".join(lines[2:]))
    assert load_hardware("toy").sha256 == first
    assert load_hardware("toy", ["node.nic.count=1"]).sha256 != first
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})


@pytest.mark.parametrize("name", ["", "nothing", "/", "/dev/null", "x" * 5000, "a\0b", "../../../etc/passwd"])
def test_what_is_no_description_is_refused(name: str, toys: Path) -> None:
    for load in (load_hardware, load_workload):
        with pytest.raises(SpecError):
            load(name)


def test_loading_the_main_machine_is_fast() -> None:
    """A whole run aims at 1 s; the files of one machine are to take a small part of it. CPU time: other processes do not count."""
    load_hardware("p3.16xlarge")
    start = time.process_time()
    for gibibytes in range(100, 105):  # overrides that no other load has, so that the tests share nothing with it
        load_hardware("p3.16xlarge", [f"node.host.memory={gibibytes} GiB"])
    assert (time.process_time() - start) / 5 < 0.1


@pytest.mark.parametrize("text", ["- {name: a, op: conv}\n", "words\n", "3\n"])
def test_a_model_that_is_no_mapping_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.yaml").write_text(text)
    with pytest.raises(SpecError, match=r"model\.yaml:1:1: expected a model, a mapping with layers or transformer"):
        load_model_alone(tmp_path / "model.yaml")


def test_counts_have_an_end() -> None:
    """The program loops over each layer and each GPU of a node: a typing mistake must not take hours or all memory."""
    for override, most in (("node.gpu_count=2147483648", "4,096"), ("node.nic.count=9999999999999999", "1,000,000,000,000,000")):
        with pytest.raises(SpecError, match=f"is too large; write a whole number up to {most}"):
            load_hardware("p3.8xlarge", [override])
    with pytest.raises(SpecError, match="is too large; write a whole number up to 10,000"):
        load_workload("llama-3.1-8b", ["model.transformer.layers=2147483648"])
