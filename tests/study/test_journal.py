"""What does a journal hold? Oracle: what was noted, by hand."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sim.spec.yaml import SpecError
from sim.study.journal import Journal


@pytest.mark.parametrize("on_disk", [True, False])
def test_what_was_noted_is_found(tmp_path: Path, on_disk: bool) -> None:
    with Journal(tmp_path / "j" if on_disk else None) as journal:
        journal.note("a", {"x": 1.0})
        journal.note("b", {"x": 2.0})
        assert journal["a"] == {"x": 1.0} and journal["b"] == {"x": 2.0}
        journal.note("c", {"x": 3.0})  # after reading, at the end all the same
        assert journal["c"] == {"x": 3.0} and "c" in journal and "d" not in journal
    assert (tmp_path / "j").exists() == on_disk


def line(key: str, figures: object) -> bytes:
    """One line as the journal writes it: JSON, and the first 16 digits of the SHA-256 of what precedes the sum."""
    text = json.dumps({"key": key, "figures": figures}).encode()[:-1]
    return text + b', "sum": "' + hashlib.sha256(text).hexdigest()[:16].encode() + b'"}\n'


def test_lines_that_are_no_points_are_passed_over(tmp_path: Path) -> None:
    """Cut off, something else, another encoding, nested too deep, an edited figure; the last one lacks only its end of line."""
    path = tmp_path / "j"
    deep = line("f", "X").replace(b'"X"', b"[" * 100_000 + b"]" * 100_000)
    edited = line("g", {"x": 1.0}).replace(b"1.0", b"9.0")
    broken = [line("b", {})[:12] + b"\n", b"[1]\n", b"\xff\n", line("c", 3), deep, edited, b'{"key": "h", "figures": {}}\n']
    path.write_bytes(line("a", {"x": 1.0}) + b"".join(broken) + line("d", {"x": 1.0}).rstrip())
    with Journal(path) as journal:
        assert [key in journal for key in "abcdfgh"] == [True, False, False, True, False, False, False]
        journal.note("e", {"x": 5.0})
    with Journal(path) as journal:
        assert journal["a"] == {"x": 1.0} and journal["e"] == {"x": 5.0}


def test_a_line_that_changed_since_it_was_read_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.note("a", {"x": 1.0})
        path.write_bytes(line("b", {"x": 1.0}))  # another point where this one was
        with pytest.raises(SpecError, match="was changed by another program"):
            journal["a"]


@pytest.mark.parametrize(
    ("of_output", "said"),
    [
        (True, "nic.csv: another sweep is writing this file; wait until it ends, or write to another file with -o"),
        (False, "nic.csv.journal: another command is writing this journal; wait until it ends, or write --journal FILE with another"),
    ],
)
def test_a_second_sweep_to_the_same_file_is_refused(of_output: bool, said: str, tmp_path: Path) -> None:
    """Oracle: two processes. The second is refused while the first has the file, and not after."""
    path = tmp_path / "nic.csv.journal"
    second = [
        sys.executable,
        "-c",
        f"from pathlib import Path\nfrom sim.study.journal import Journal\nJournal(Path({str(path)!r}), {of_output}).__enter__()",
    ]
    with Journal(path) as journal:
        journal.note("a", {"x": 1.0})
        refused = subprocess.run(second, capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and f"{tmp_path}/{said}" in refused.stderr
        journal.remove()
    assert not path.exists()
    assert subprocess.run(second, capture_output=True, text=True, check=False).returncode == 0


def test_a_file_removed_by_the_sweep_that_held_it_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.note("a", {})
        journal.remove()
    with Journal(path) as journal:
        assert "a" not in journal
        journal.note("b", {"x": 1.0})
    assert path.exists()


_FULL = """
import resource, sys
from pathlib import Path
from sim.study.journal import Journal
with Journal(Path(sys.argv[1])) as journal:
    journal.note("a", {"x": 1.0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    journal.note("b", {"x": "long" * 999})
"""


def test_a_disk_that_takes_no_more_is_said_and_the_points_are_kept(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: both refuse the write with an OSError."""
    path = tmp_path / "j"
    full = subprocess.run([sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, check=False)
    assert f"SpecError: {path}: cannot be written: File too large; the points so far (1) are kept" in full.stderr.splitlines()[-1].replace(
        "sim.spec.yaml.", ""
    )
    with Journal(path) as journal:
        assert journal["a"] == {"x": 1.0} and "b" not in journal


def test_nothing_noted_leaves_no_file(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the journal of unfinished points: cannot be written: Is a directory"), Journal(tmp_path):
        pass
