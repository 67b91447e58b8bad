"""Oracle: the files that a name matches, by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sim.spec.foreign.chakra_files import read_groups, read_trace, trace_paths
from sim.spec.yaml import SpecError
from tests.parallel.traces import compute, write

NODE = [compute(0, 1e-3)]


@pytest.mark.parametrize("named", ["toy.et", "toy.0.et", "toy.1.et", "toy.{rank}.et", ""])
def test_all_names_of_a_trace_are_the_same_files(tmp_path: Path, named: str) -> None:
    write(tmp_path, NODE, NODE)
    trace = read_trace(str(tmp_path / named))
    assert [path.name for path in trace.paths] == ["toy.0.et", "toy.1.et"]
    assert trace.name == "toy" or named == "toy.{rank}.et"


def test_a_file_alone_is_a_rank_alone(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    (tmp_path / "toy.0.et").rename(tmp_path / "alone.et")
    assert len(read_trace(str(tmp_path / "alone.et")).ranks) == 1


def test_a_workload_is_no_trace(tmp_path: Path) -> None:
    assert trace_paths("vgg16") is None
    assert trace_paths(str(tmp_path)) is None
    assert trace_paths(str(tmp_path / "mine.yaml")) is None


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda folder: (folder / "toy.1.et").unlink(), "toy.2.et: belongs to rank 2, but rank 1 is missing"),
        (lambda folder: (folder / "toy.1.et").write_bytes(b"\x30"), "toy.1.et: is not a Chakra trace"),
        (lambda folder: (folder / "comm_group.json").write_text("{"), "comm_group.json:1:2: the JSON is truncated or invalid"),
        (lambda folder: (folder / "comm_group.json").write_bytes(b"\xff\xfe\x00"), "comm_group.json: is not UTF-8 text"),
        (lambda folder: (folder / "toy.1.et").write_bytes(b"\x1f\x8bnot gzip"), "toy.1.et: the gzip file is corrupt"),
        (lambda folder: (folder / "comm_group.json").write_text("[]"), "comm_group.json: expected communicators with their ranks"),
        (lambda folder: (folder / "comm_group.json").write_text('{"1": []}'), "communicator 1: expected a list of ranks"),
        (lambda folder: (folder / "comm_group.json").write_text('{"1": [0, 3]}'), "communicator 1: rank 3, but the trace has ranks 0 to 2"),
        (lambda folder: (folder / "comm_group.json").write_text('{"1": [0, 0]}'), "communicator 1: a rank appears twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, spoil: object, what: str) -> None:
    named = write(tmp_path, NODE, NODE, NODE)
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(SpecError, match=what):
        read_trace(str(named))


def test_a_trace_may_be_gzip(tmp_path: Path) -> None:
    plain = read_trace(str(write(tmp_path, NODE, NODE)))
    folder = tmp_path / "packed"
    folder.mkdir()
    for path in plain.paths:
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(str(folder)).ranks == plain.ranks


def test_nothing_there_and_too_much(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nothing.et: no such trace; expected files named .*nothing\.0\.et"):
        read_trace(str(tmp_path / "nothing.et"))
    write(tmp_path, NODE, name="one")
    write(tmp_path, NODE, name="two")
    with pytest.raises(SpecError, match=r"holds several traces \(one, two\); name one"):
        read_trace(str(tmp_path))


def test_groups_are_read(tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text('{"1": [0, 2], "2": [1, 3]}')
    assert read_groups(tmp_path / "groups.json", 4) == {"1": (0, 2), "2": (1, 3)}
