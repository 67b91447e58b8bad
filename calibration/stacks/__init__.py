"""Which software stacks did published measurements use? Releases and settings of single benchmarks that are rarely used today, by name."""

from pathlib import Path
from typing import Final, NamedTuple


class Stacks(NamedTuple):
    """A folder of stacks, registered with `sim.spec.extensions` through an entry point of ``stallsim.stacks``."""

    name: str
    folder: Path


MEASURED: Final = Stacks("measured", Path(__file__).parent)
