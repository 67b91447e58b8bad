"""Is a file whole or not there? Oracle: the folder before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.report.files import file_due, folder_due, write_file, write_files
from sim.spec.yaml import SpecError


def test_files_reach_a_new_folder(tmp_path: Path) -> None:
    write_files(tmp_path / "a" / "b", {"text.txt": "ä\n", "bytes.bin": b"\x00"})
    assert (tmp_path / "a/b/text.txt").read_bytes() == "ä\n".encode()
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == ["bytes.bin", "text.txt"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "taken", tmp_path / "missing" / "x.txt"):
        with pytest.raises(SpecError, match="cannot be written"):
            write_file(path, "text")
    with pytest.raises(SpecError, match="file: cannot be written"):
        write_files(tmp_path / "file", {"x.txt": ""})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "taken"]


def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def broken(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", broken)
    with pytest.raises(SpecError, match="No space left"):
        write_file(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_places_are_judged_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "x.html", tmp_path / "file"):
        assert file_due(path) == path
    for path in (tmp_path / "folder", tmp_path / "a" / "b"):
        assert folder_due(path) == path
    assert file_due(None) is None and folder_due(None) is None
    wrong = {
        (file_due, "folder"): "folder: is a folder; expected a file, such as",
        (file_due, "a/x.html"): "a; make it first",
        (file_due, "file/x.html"): "file is a file",
        (folder_due, "file"): "file: is a file; expected a folder",
        (folder_due, "file/b"): "file is a file",
    }
    for (due, name), words in wrong.items():
        with pytest.raises(SpecError, match=words):
            due(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_folder_that_takes_no_files_is_refused() -> None:
    for due, name in ((file_due, "/proc/x.html"), (folder_due, "/proc/x")):
        with pytest.raises(SpecError, match=r"^/proc/x.*: nothing may be written into /proc$"):
            due(Path(name))


def test_a_folder_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(SpecError, match="nothing may be written into"):
        file_due(tmp_path / "x.html")
