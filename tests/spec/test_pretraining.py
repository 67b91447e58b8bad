"""Oracles: Megatron-LM's ramp by hand (increments of batch over equal parts), sums of tokens; each slip is one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sim.spec.pretraining import BatchRamp, Pretraining, Regime, tokens_in


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("12B", 12e9),
        ("1.5T", 1.5e12),
        ("300", 300.0),
        ("2e12", 2e12),
        ("1.5E+3B", 1.5e12),
        ("2k", 2e3),
        ("0B", None),
        ("x", None),
        ("-1B", None),
    ],
)
def test_tokens_are_read_as_people_write_them(text: str, tokens: float | None) -> None:
    assert tokens_in(text) == tokens


def test_blooms_ramp() -> None:
    """BLOOM, 176B: --rampup-batch-size 192 16 9_765_625 with sequences of 2,048: 116 batches below 2,048, 84,186 samples each."""
    ramp = BatchRamp.model_validate({"start": 192, "step": 16, "tokens": 9_765_625 * 2048})
    parts = list(ramp.regimes(2048))
    assert [part.global_batch for part in parts] == list(range(192, 2048, 16))
    assert {round(part.tokens / 2048) for part in parts} == {round(9_765_625 / 116)}


@given(start=st.integers(1, 64), step=st.integers(1, 32), many=st.integers(1, 40), tokens=st.integers(1, 10**12))
def test_the_parts_of_a_ramp_are_its_tokens(start: int, step: int, many: int, tokens: int) -> None:
    ramp = BatchRamp.model_validate({"start": start, "step": step, "tokens": tokens})
    parts = list(ramp.regimes(start + many * step))
    assert sum(part.tokens for part in parts) == pytest.approx(tokens)
    assert parts[-1].global_batch == start + (many - 1) * step


def test_what_is_left_for_the_workloads_own_steps() -> None:
    pretraining = Pretraining.model_validate(
        {
            "batch_ramp": {"start": 8, "step": 8, "tokens": "1B"},
            "first": [{"tokens": "2B", "sequence": 512}],
            "last": [{"tokens": "4B", "sequence": 65536}],
        }
    )
    assert pretraining.least_tokens == 7e9
    assert [part.global_batch for part in pretraining.before(32)] == [8, 16, 24, None]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tokens": "many", "sequence": 8}, "'many' is not a number of tokens above 0; write one such as 12B or 1.5T"),
        ({"tokens": True, "sequence": 8}, "'True' is not a number of tokens above 0"),
        ({"tokens": "1B"}, "changes nothing; set global_batch, sequence or set"),
        ({"tokens": "1B", "global_batch": 0}, "1"),
    ],
)
def test_slips_in_a_part(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Regime.model_validate(fields)


@pytest.mark.parametrize(
    ("start", "step", "says"),
    [
        (256, 16, "start 256 is not below the global batch of 256"),
        (32, 100, "the batch never reaches 256 from 32 in steps of 100; use a step that divides 224"),
    ],
)
def test_slips_in_a_ramp(start: int, step: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(BatchRamp.model_validate({"start": start, "step": step, "tokens": "1B"}).regimes(256))
