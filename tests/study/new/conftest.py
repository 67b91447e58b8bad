"""What tests of `new workload` share: a quick end for those that do not look at the command to run next."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_layout_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which layout fits, for the command to run next, is searched for in `test_next_command` alone: it takes most of the time."""
    monkeypatch.setattr("sim.study.new.workload.first_command", lambda name, *given: f"python -m sim run hgx-h100 {name}")
