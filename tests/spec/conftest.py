"""Where the tests of the spec layer find small descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.spec import catalog
from sim.spec import library as spec_library
from tests.spec.documents import write_library


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with ``hardware/`` and ``workloads/`` of one toy machine and one toy workload."""
    return write_library(tmp_path)


@pytest.fixture
def toys(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy library as the only catalog."""
    monkeypatch.setattr(catalog, "roots", lambda: [library])
    return library


@pytest.fixture(autouse=True)
def _loaded_each_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Load as the program does, without what other tests have loaded, where loading is what is tested; texts are still parsed once."""
    kept = spec_library._load
    if request.path.parent == Path(__file__).parent:
        spec_library._load = kept.each_time  # type: ignore[attr-defined]
    yield
    spec_library._load = kept
