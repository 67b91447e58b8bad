"""Oracle: what every precision must obey: bytes of a type, and types that hang together."""

from __future__ import annotations

from typing import get_args

import pytest

from sim.spec.fields import Precision
from sim.spec.precision import PRECISION_TRAITS, PrecisionTraits


def test_every_precision_has_one_meaning() -> None:
    assert tuple(PRECISION_TRAITS) == get_args(Precision)


@pytest.mark.parametrize("meaning", PRECISION_TRAITS.values(), ids=PRECISION_TRAITS)
def test_types_hang_together(meaning: PrecisionTraits) -> None:
    """A parameter, its gradient and its state are of one type (torch.optim); a narrow copy is kept where activations are narrower."""
    assert meaning.weight == meaning.gradient == meaning.state
    assert (meaning.cast > 0) == (meaning.activation < meaning.weight)
    assert meaning.matrix <= meaning.activation <= meaning.weight


@pytest.mark.parametrize("meaning", PRECISION_TRAITS.values(), ids=PRECISION_TRAITS)
def test_needed_units_are_used(meaning: PrecisionTraits) -> None:
    assert meaning.needs is None or meaning.needs in meaning.units
    assert not meaning.units or meaning.units[-1] == "fp32"
