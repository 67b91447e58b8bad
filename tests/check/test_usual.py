"""Which numbers have probably a wrong unit? Oracle: descriptions with one slip each, and the whole catalog, which has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.check import validate
from sim.check.usual import unusual_values
from sim.spec import catalog
from sim.spec.hardware import Gpu, Hardware
from sim.spec.library import load


@pytest.fixture(autouse=True)
def library() -> None:
    """The real catalog, instead of the toy one of the other tests of checks."""


def notes(path: Path, text: str) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    [verdict] = validate([str(path)])
    assert not verdict.problems
    return [note for note in verdict.notes if "is the unit right?" in note]


@pytest.mark.parametrize(
    ("node", "note"),
    [
        ("gpu: {peak: {bf16: 989 GFLOP/s}}", "node.gpu.peak.bf16: 989 GFLOP/s, p5.48xlarge has 989 TFLOP/s; usual in the catalog: "),
        ("gpu: {memory_bandwidth: 3.35 GB/s}", "node.gpu.memory_bandwidth: 3.35 GB/s, p5.48xlarge has 3.35 TB/s; usual in the catalog: "),
        (
            "nic: {bandwidth: 400 Mbps}",
            "node.nic.bandwidth: 400 Mbps, p5.48xlarge has 400 Gbps; usual in the catalog: 1.25 Gbps to 800 Gbps; ",
        ),
    ],
)
def test_a_thousandth_of_the_machine_that_it_extends(tmp_path: Path, node: str, note: str) -> None:
    [said] = notes(tmp_path / "mine.yaml", f"extends: p5.48xlarge\nname: mine\nnode: {{{node}}}\n")
    assert said.startswith(note)


def test_another_machine_is_no_slip(tmp_path: Path) -> None:
    """A faster GPU and NIC than those of the machine that is extended, each usual elsewhere."""
    text = "extends: p3.2xlarge\nname: mine\nnode:\n  gpu: {extends: h100-sxm5-80gb, memory: 94 GB}\n  nic: {bandwidth: 800 Gbps}\n"
    assert not notes(tmp_path / "mine.yaml", text)


def test_a_part_is_compared_with_the_part_that_it_extends(tmp_path: Path) -> None:
    text = "extends: h100-sxm5-80gb\nname: Mine\nmemory_bandwidth: 3.35 GB/s\n"
    path = tmp_path / "hardware/parts/gpus/mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    [said] = [note for verdict in validate([str(path)]) for note in verdict.notes]
    assert said.startswith("memory_bandwidth: 3.35 GB/s, h100-sxm5-80gb has 3.35 TB/s; usual in the catalog: ")


def test_a_part_that_extends_nothing_is_compared_with_its_architecture(tmp_path: Path) -> None:
    source = catalog.locate("v100-sxm2-16gb", "hardware/parts/gpus").read_text()
    path = tmp_path / "hardware/parts/gpus/mine.yaml"
    said = notes(path, source.replace("memory_bandwidth: 900 GB/s", "memory_bandwidth: 3 GB/s"))
    assert len(said) == 1 and said[0].startswith("memory_bandwidth: 3 GB/s; usual in the catalog: ")


def test_the_catalog_has_no_slips() -> None:
    for kind, folder in ((Hardware, "hardware"), (Gpu, "hardware/parts/gpus")):
        for path in catalog.all_files(folder).values():
            loaded = load(kind, path)
            assert not list(unusual_values(loaded.spec, loaded.document, path))


def test_a_machine_of_catalog_parts_is_checked_without_loading_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own numbers are compared with what the catalog's machines have written; their parts, which are as in the catalog, are not."""
    path = tmp_path / "mine.yaml"
    path.write_text(catalog.locate("p3.16xlarge", "hardware").read_text().replace("name: p3.16xlarge", "name: mine"))
    loaded = load(Hardware, path)
    read: list[Path] = []
    monkeypatch.setattr("sim.check.usual.library.load", lambda kind, file: (read.append(file), load(kind, file))[1])
    assert list(unusual_values(loaded.spec, loaded.document, path)) == []
    path.write_text(path.read_text().replace("bandwidth: 25 Gbps", "bandwidth: 25 kbps").replace("memory: 488 GiB", "memory: 488 TiB"))
    loaded = load(Hardware, path)
    said = list(unusual_values(loaded.spec, loaded.document, path))
    assert [text.partition(": ")[0] for text in said] == ["node.host.memory", "node.nic.bandwidth"]
    assert {file.stem for file in read} == {"gp2"}  # which it extends


def test_a_share_of_a_cpu_is_not_compared_with_gpus(tmp_path: Path) -> None:
    """Products of bf16 that a CPU emulates make a few GFLOP/s, as `calibration fit` writes them; a GPU would be off by a thousand."""
    slow = "{{extends: V100-SXM2-16GB, name: mine, architecture: {}, peak: {{fp32: 60 GFLOP/s, fp16: 27 GFLOP/s}}, source: measured}}"
    texts = [f"extends: p3.16xlarge\nname: mine\nnode: {{gpu: {slow.format(one)}}}\n" for one in ("cpu", "volta")]
    assert [bool(notes(tmp_path / "mine.yaml", text)) for text in texts] == [False, True]
