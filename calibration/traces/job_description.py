"""How does a user describe a profiled job?"""

from __future__ import annotations

from dataclasses import dataclass, field

from calibration.questions import Folders


@dataclass(frozen=True)
class JobDescription:
    """The user's description of a profiled job, for facts that are not in the trace; empty or None if not specified."""

    hardware: str = ""
    workload: str = ""
    stack: str = ""
    batch: int | None = None
    precision: str = ""
    layout: tuple[tuple[str, str, str | int], ...] = ()
    """Fields of ``training`` that say how ranks share the model, besides those of the workload: (option, key, value)."""
    folders: Folders = field(default_factory=Folders)
