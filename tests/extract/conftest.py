"""Where the tests of ``sim extract`` find their nets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

NETS = Path(__file__).with_name("nets.py")


@pytest.fixture
def net() -> Callable[[str], str]:
    """Return the target that names a callable of nets.py; skip where torch is missing."""
    pytest.importorskip("torch", reason="extracting a model needs torch")
    return lambda name: f"{NETS}:{name}"
