"""Stacks of published measurements, by name: software releases and settings that one benchmark ran, which few would run today."""

from pathlib import Path
from typing import Final, NamedTuple


class Stacks(NamedTuple):
    """A folder of stacks, as `sim.spec.extensions` knows it (entry points ``stallsim.stacks``)."""

    name: str
    folder: Path


MEASURED: Final = Stacks("measured", Path(__file__).parent)
