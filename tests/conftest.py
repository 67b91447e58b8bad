"""What holds for every test: reproducible property tests, and slow tests last."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests marked slow after all others, otherwise in file order."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
