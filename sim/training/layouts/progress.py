"""How far are the operations of groups in which a stage takes part? Equal progress at two times means that they continue alike."""

from __future__ import annotations

from typing import NamedTuple

from sim.training.layouts.meetings import Meetings
from sim.training.layouts.stage_compute import StageKernels


class GroupProgress(NamedTuple):
    """How far operations of groups are: what must be equal, and *times* (s), which may differ by rounding."""

    operations: list[tuple[object, ...]]
    """Those that have been entered and have not ended: purpose, unit, micro-batch, and number of members that have not arrived."""
    moving: list[str]
    """Those that are moving data."""
    blocks: tuple[int, int, int]
    """The number of those next to compute, of their thread blocks, and of those that wait on the GPU for slower ranks."""
    times: list[float]
    """How far the slowest rank is behind, until when each operation waits for its own, how long it has run, and what is left of it."""

    def equals(self, other: GroupProgress, within: float) -> bool:
        """Return whether both continue alike, if times may differ by *within* seconds."""
        return self[:-1] == other[:-1] and all(abs(a - b) <= within for a, b in zip(self.times, other.times, strict=True))


def progress_of(kernels: StageKernels, meetings: Meetings, since: int = 0) -> GroupProgress:
    """Return how far the operations of *kernels* among *meetings* are, with micro-batches counted from *since*."""
    now = kernels.env.now
    open_ones = [
        meeting
        for meeting in dict.fromkeys(meetings.by_key.values())
        if not meeting.is_over and meeting.target < 0 and kernels in meeting.kernels
    ]
    open_ones.sort(key=lambda meeting: meeting.tag)
    begun = {meeting.tag[0] for meeting in open_ones if meeting.begin <= now}
    moving = sorted(each for each in kernels.network.state() if each[0] in begun) if begun else []
    times = [(max(0.0, meeting.ready - now), now - meeting.begin if meeting.begin <= now else 0.0) for meeting in open_ones]
    return GroupProgress(
        [(what, unit, own - since, meeting.missing_members) for meeting in open_ones for what, unit, own in (meeting.tag,)],
        [name for name, _ in moving],
        (kernels.playing, kernels.blocks, kernels.waiting),
        [kernels.slowest.lag(), *(time for pair in times for time in pair), *(left for _, left in moving)],
    )
