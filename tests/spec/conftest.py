"""Where the tests of the spec layer find small descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec import library as spec_library
from tests.spec.documents import write_library


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with ``hardware/`` and ``workloads/`` of one toy machine and one toy workload."""
    return write_library(tmp_path)


@pytest.fixture(autouse=True)
def _loaded_each_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load as the program does, without the cache of all other tests, where loading is what is tested."""
    if request.path.parent == Path(__file__).parent:
        monkeypatch.setattr(spec_library, "_load", spec_library._load.each_time)  # type: ignore[attr-defined]
