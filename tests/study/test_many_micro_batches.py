"""Does a run with very many micro-batches say why it takes long? Oracle: the number of micro-batches."""

from __future__ import annotations

import pytest

from sim.commands.layouts import _notice_long
from sim.terminal import messages


@pytest.mark.parametrize(("micro_batches", "says"), [(100_000, "simulating all 100,000 micro-batches of a step"), (64, "")])
def test_a_step_of_many_micro_batches_has_a_message(
    micro_batches: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "quiet", False)  # another test's command line may have set it in this process
    _notice_long(micro_batches)
    said = capsys.readouterr().err
    assert said.startswith(says) and bool(said) == bool(says)
