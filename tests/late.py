"""What a test imports at its first use, not at collection: torch alone takes seconds, which every worker would pay."""

from __future__ import annotations

from typing import Any

import pytest


class Late:
    """A module by its dotted name. It is imported when an attribute is read first; without it the test that reads it skips.

    Attributes cannot be set: ``monkeypatch.setattr("torch.ones", ...)`` reaches the module itself.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") or attribute == "_mock_name":  # pytest looks for these in every name of a test file
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)


torch: Any = Late("torch")
stats: Any = Late("scipy.stats")
recorder: Any = Late("tests.parallel.recorder")
decoders: Any = Late("tests.parallel.decoders")
nets: Any = Late("tests.parallel.nets")
