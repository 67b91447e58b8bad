"""What holds for every test: reproducible property tests, slow tests last, and one process for all that need torch."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests marked slow after all others, otherwise in file order; of several processes one takes all tests of a file.

    Torch takes long to import and much memory: whatever needs it is one group, so that only one process has it.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    for item in items:
        slow = item.get_closest_marker("slow") is not None
        item.add_marker(pytest.mark.xdist_group("torch" if _needs_torch(item.path) else f"{item.path.name}{slow}"))


@cache
def _needs_torch(path: Path) -> bool:
    return path.parent.name == "extract" or 'importorskip("torch' in path.read_text()
