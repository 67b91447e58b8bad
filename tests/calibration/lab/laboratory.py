"""Where may networks be built? A mark for tests that need root and namespaces, and what is left of them."""

from __future__ import annotations

import pytest

from calibration.lab.network import laboratory_namespaces, require_laboratory
from sim.spec.yaml import SpecError


def _reason() -> str:
    try:
        require_laboratory()
    except SpecError as error:
        return str(error)
    return ""


REASON = _reason()
needs_laboratory = pytest.mark.skipif(bool(REASON), reason=REASON or "networks can be built")


def left_of(pid: int) -> list[str]:
    """Namespaces of the laboratory that the process *pid* runs or ran."""
    return [name for name in laboratory_namespaces() if name.startswith(f"stallsim-lab-{pid}-")]
