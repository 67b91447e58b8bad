"""What does a user say of a profiled job?"""

from __future__ import annotations

from dataclasses import dataclass, field

from calibration.questions import Folders


@dataclass(frozen=True)
class JobDescription:
    """What a user says of a profiled job, where the trace does not; empty and None: nothing."""

    hardware: str = ""
    workload: str = ""
    stack: str = ""
    batch: int | None = None
    precision: str = ""
    folders: Folders = field(default_factory=Folders)
