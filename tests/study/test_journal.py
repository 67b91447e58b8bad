"""What does a journal hold? Oracle: what was noted, by hand."""

from __future__ import annotations

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


def test_lines_that_are_no_points_are_passed_over(tmp_path: Path) -> None:
    """Cut off in the middle, something else, another encoding; the last one lacks only its end of line."""
    path = tmp_path / "j"
    whole = b'{"key": "a", "figures": {"x": 1.0}}\n'
    path.write_bytes(whole + b'{"key": "b", "fig\n[1]\n\xff\n{"key": "c", "figures": 3}\n' + whole.replace(b'"a"', b'"d"').rstrip())
    with Journal(path) as journal:
        assert [key in journal for key in "abcd"] == [True, False, False, True]
        journal.note("e", {"x": 5.0})
    with Journal(path) as journal:
        assert journal["a"] == {"x": 1.0} and journal["e"] == {"x": 5.0}


def test_nothing_noted_leaves_no_file(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="where points are kept until all are there: cannot be written: Is a directory"), Journal(tmp_path):
        pass
