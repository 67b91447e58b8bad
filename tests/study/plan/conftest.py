"""What tests of plans share: a plan that is made once."""

from __future__ import annotations

import pytest

from sim.study.plan.question import LayoutPlan, plan
from tests.study.plan.planned import SMALL


@pytest.fixture(scope="session")
def small() -> LayoutPlan:
    """Return the plan for `SMALL`."""
    return plan(SMALL)
