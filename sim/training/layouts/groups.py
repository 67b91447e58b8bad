"""How does a stage take part in the operations of its groups? It starts them and waits for them in the order of its program.

Data-parallel ranks wait for the slowest of them in every operation, by the expected maximum of their spread. An operation that compute
hides begins when the slowest rank has arrived and delays no one, so the slowest rank falls further behind until the others wait for it.
"""

from __future__ import annotations

from sim.cluster.clock import SimProcess
from sim.cluster.gpu import memory_time
from sim.events import Cause
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Program, Start, Wait
from sim.training.layouts.meetings import SLOWEST, Meeting, MeetingKey, Meetings
from sim.training.layouts.prices import SHARED
from sim.training.layouts.stage_compute import StageKernels


class Groups:
    """The groups of the stage (or rank) *number*."""

    def __init__(self, meetings: Meetings, kernels: StageKernels, program: Program, number: int) -> None:
        self.meetings = meetings
        self.kernels = kernels
        self.account = kernels.account
        self.program = program
        self.number = number
        self.stage = kernels.stage

    def start(self, start: Start, at: int) -> tuple[()]:
        """Enter an operation into its communicator's queue. It begins when its slowest rank has arrived and earlier ones have ended."""
        kernels, now = self.kernels, self.meetings.env.now
        issued = kernels.issue_time(self.program, at) if start.prefetch else 0.0
        meeting, communicator = self.meeting(start)
        delay = self._late(start.axis)
        check = self.meetings.scene.check_time(start.axis)
        if check:  # the host compares the operation with those of the other ranks before it launches it
            kernels.host += check
            issued = max(issued, kernels.host)
        late = SLOWEST
        if issued - now > delay:
            delay, late = issued - now, (Cause.LAUNCH, "host")
        if now + delay >= meeting.ready:  # the latest of all members so far
            meeting.lag_cause = late
        meeting.last = self.stage
        before = self.meetings.by_key[self.account.step, self.number, start.predecessor] if start.predecessor is not None else None
        meeting.launched = before is None and meeting.lag_cause[0] is Cause.STRAGGLER
        if meeting.arrive(delay):
            if before is None:
                meeting.allow_begin(start.delay + memory_time(start.copied_bytes, kernels.times.gpu))
            else:
                self.meetings.env.process(self._begin_after(before, meeting))
            self.meetings.communicator(communicator).enter(meeting)
        return ()

    def meeting(self, start: Start) -> tuple[Meeting, MeetingKey]:
        """Return the operation that *start* enters, and the key of its communicator."""
        meetings, shared, step = self.meetings, start.axis in SHARED, self.account.step
        price = meetings.scene.prices.price(0 if shared else self.number, start.axis, start.op, start.nbytes)
        key = (step, start.tag) if shared else (step, self.number, start.tag)
        members, kernels = (meetings.stage_counts[start.tag], meetings.kernels) if shared else (1, [self.kernels])
        meeting = meetings.get_or_create(key, start.tag, price, members, kernels)
        meeting.more_prices = tuple(
            meetings.scene.prices.price(0 if shared else self.number, start.axis, *each) for each in start.more_messages
        )
        for each in meeting.more_prices:
            meetings.link(each)
        return meeting, ("everyone" if shared else self.number, start.communicator)

    def _begin_after(self, before: Meeting, meeting: Meeting) -> SimProcess:
        """Allow *meeting* to begin when its slowest rank has arrived and the operation *before* has ended."""
        yield meeting.env.timeout(meeting.ready - meeting.env.now)
        yield from before.until_over()
        meeting.all_ready.succeed()

    def _late(self, axis: GroupAxis) -> float:
        """Return how much later than the mean the slowest rank of an operation arrives."""
        kernels = self.kernels
        return kernels.slowest.lag() + (kernels.spread.all * kernels.worked_in_step if axis == "everyone" else 0.0)

    def wait(self, wait: Wait, _: int) -> SimProcess:
        """Wait until an operation has ended."""
        tag, meetings, step = wait.tag, self.meetings.by_key, self.account.step
        meeting = meetings.get((step, self.number, tag)) or meetings[step, tag]
        if meeting.is_over:
            return
        start, late = meeting.env.now, self.kernels.slowest.lag()
        yield from meeting.until_over()
        remaining = max(0.0, start + late - meeting.env.now)  # what is left of the slowest rank's lateness after the wait
        self.kernels.slowest.set_lag(remaining)
        self.account.add_exchange(meeting.wait_pieces(start, self.stage, late - remaining), _group(tag[0]))


def _group(what: str) -> str:
    """Return the kind of group of an operation, given the first part of its tag."""
    if what == "norm":
        return "norm"
    return "data" if what.startswith("reduce") or "replicas" in what or what == "tied" else "shard"
