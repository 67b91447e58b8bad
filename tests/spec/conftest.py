"""Where the tests of the spec layer find small descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.documents import write_library


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with ``hardware/`` and ``workloads/`` of one toy machine and one toy workload."""
    return write_library(tmp_path)
