"""Is a file whole or not there? Oracle: the folder before and after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.commands.options import trace_due
from sim.report.files import csv_due, file_due, folder_due, page_due, yaml_due
from sim.spec.whole_file import write_file, write_files
from sim.spec.yaml import SpecError

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_device_stays_one_and_a_link_leads_where_it_did(tmp_path: Path) -> None:
    """Oracle: what the system says of them before and after; a pipe tells what came through."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.csv", tmp_path / "target.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "text")
    assert os.read(reader, 100) == b"text" and pipe.is_fifo()
    os.close(reader)
    target.write_text("old")
    link.symlink_to(target)
    write_file(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert sorted(tmp_path.iterdir()) == [link, pipe, target]
    assert file_due(pipe) == pipe


def test_the_temporary_file_of_a_killed_process_is_removed_by_the_next_that_writes_there(tmp_path: Path) -> None:
    """``kill -9`` in the last rename left one for ever. That of a process that runs, here or lately elsewhere, stays."""
    path = tmp_path / "table.csv"
    killed = """import os, signal, sys
from pathlib import Path
from sim.spec.whole_file import replacement_file
with replacement_file(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", killed, str(path)], cwd=ROOT).returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert left.name.endswith(".part.csv") and not path.exists()
    running = tmp_path / left.name.replace(left.name.split(".")[-3], str(os.getppid()))
    elsewhere = tmp_path / left.name.replace(left.name.split(".")[-4], "00000000")
    for other in (running, elsewhere):
        other.write_text("half")
    write_file(path, "whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, running, elsewhere]) and path.read_text() == "whole"
    os.utime(elsewhere, (0, 0))
    write_file(path, "again")
    assert sorted(tmp_path.iterdir()) == sorted([path, running])


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
    for (check, name), words in wrong.items():
        with pytest.raises(SpecError, match=words):
            check(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_folder_that_takes_no_files_is_refused() -> None:
    for check, name in ((file_due, "/proc/x.html"), (folder_due, "/proc/x")):
        with pytest.raises(SpecError, match=r"^/proc/x.*: files cannot be created in /proc$"):
            check(Path(name))


def test_a_folder_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(SpecError, match="files cannot be created in"):
        file_due(tmp_path / "x.html")


@pytest.mark.parametrize(
    ("check", "name", "says"),
    [
        (page_due, "x.pdf", "x.pdf: an HTML page is written here; expected a name that ends in .html, such as x.html"),
        (page_due, "x", "x: an HTML page is written here; expected a name that ends in .html, such as x.html"),
        (yaml_due, "m.json", "m.json: a YAML file is written here; expected a name that ends in .yaml, such as m.yaml"),
        (csv_due, "rows.xlsx", "rows.xlsx: a CSV file is written here; expected a name that ends in .csv, such as rows.csv"),
        (trace_due, "t.html", "t.html: a trace is JSON; expected t.json, t.json.gz or a folder"),
        (trace_due, "t.tar.gz", "t.tar.gz: a trace is JSON; expected t.tar.json, t.tar.json.gz or a folder"),
        (folder_due, "x.pdf", "x.pdf: several files are written here; expected the name of a folder, such as x"),
        (
            folder_due,
            "x.html",
            "x.html: several files are written here; expected the name of a folder, such as x; one HTML page is written by --html x.html",
        ),
    ],
)
def test_a_name_of_another_kind_is_refused_with_one_that_is_right(
    check: Callable[[Path | None], Path | None], name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as refused:
        check(Path(name))
    assert str(refused.value) == says
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_right_are_taken(tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    right = [
        (page_due, "a.html"),
        (page_due, "A.HTM"),
        (yaml_due, "a.yml"),
        (csv_due, "a.csv"),
        (trace_due, "a.json"),
        (trace_due, "a.json.gz"),
    ]
    for check, name in [*right, (trace_due, "ranks"), (folder_due, "v1.2"), (folder_due, "out.json"), (trace_due, "out.json")]:
        assert check(tmp_path / name) == tmp_path / name
