"""Where the tests of the checks find small descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec import catalog
from tests.spec.documents import write_library


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``hardware/`` and ``workloads/`` of one toy machine and one toy workload: the only catalog."""
    write_library(tmp_path)
    monkeypatch.setattr(catalog, "roots", lambda: [tmp_path])
    monkeypatch.setattr(catalog, "provided_files", lambda folder: {})  # what installed packages bring extends what is not there
    return tmp_path


@pytest.fixture
def whole_catalog(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog of the program in place of the toy library."""
    monkeypatch.setattr(catalog, "roots", lambda: [Path(__file__).parents[2]])
