"""What becomes of items whose process is killed? Oracle: the same function, called in order."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from sim.spec.yaml import SpecError
from sim.study.pool import each

ITEMS = list(range(40))
_HELD: list[bytearray] = []


def squared(killed: Path, always: bool, item: int) -> int:
    """Square *item*; the process that computes 17 is killed, the first time or always, and leaves a line in *killed*."""
    if item == 17 and (always or not killed.exists()):
        with killed.open("a") as file:
            file.write("killed\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return item**2


def test_items_of_a_killed_process_are_computed_again(tmp_path: Path) -> None:
    function = partial(squared, tmp_path / "killed", False)
    assert list(each(function, ITEMS, 2)) == [item**2 for item in ITEMS]
    assert (tmp_path / "killed").exists()


@pytest.mark.nightly
def test_an_item_that_kills_its_process_again_is_refused_after_all_before_it(tmp_path: Path) -> None:
    results = []
    with pytest.raises(SpecError, match=r"^18 of 40: its process was killed repeatedly"):
        for result in each(partial(squared, tmp_path / "killed", True), ITEMS, 2):
            results.append(result)
    assert results == [item**2 for item in range(17)]
    # once beside others, twice alone; once more where the result before it was not yet handed over when its process died
    assert len((tmp_path / "killed").read_text().splitlines()) in (3, 4)


def grown(item: int) -> int:
    """Hold 40 MB more for each item and take a tenth of a second, so that joblib, which looks every second, finds the process grown."""
    _HELD.append(bytearray(b"x" * 40_000_000))
    until = time.perf_counter() + 0.1
    while time.perf_counter() < until:
        pass
    return item


@pytest.mark.nightly
def test_a_process_that_has_grown_is_replaced_while_warnings_are_errors() -> None:
    """joblib warns of it in a thread that must not end; pytest makes errors of warnings."""
    assert list(each(grown, ITEMS, 2)) == ITEMS
