"""What does a fit assume before it sees a measurement? The values of `priors.yaml`, each with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from sim.spec.yaml import SpecError, read

FILE: Final = Path(__file__).with_name("priors.yaml")


class Prior(NamedTuple):
    """One value and its source."""

    value: float
    source: str


@cache
def priors(topic: str) -> dict[str, Prior]:
    """Return the priors of one *topic* of `priors.yaml` by name."""
    return {name: _prior(f"{topic}.{name}", body) for name, body in read(FILE).value[topic].items()}


def prior(topic: str, name: str) -> float:
    """Return the value of one prior."""
    return priors(topic)[name].value


def _prior(name: str, body: dict[str, Any]) -> Prior:
    if set(body) != {"value", "source"} or not body["source"]:
        raise SpecError(f"{FILE.name}: {name}: must have exactly 'value' and 'source'")
    return Prior(float(body["value"]), str(body["source"]))
