"""How do pipeline stages exchange activations and gradients? What a stage sends, what it waits for, and when messages start."""

from __future__ import annotations

import simpy

from sim.cluster.clock import SimProcess
from sim.parallel.program import Receive, Send, Tag
from sim.training.layouts.account import Account
from sim.training.layouts.meetings import Meeting, Meetings


class Messages:
    """The messages that the stage *number* sends and receives."""

    def __init__(self, meetings: Meetings, account: Account, number: int) -> None:
        scene = meetings.scene
        self.meetings = meetings
        self.account = account
        self.number = number
        self.sockets = scene.prices.sockets is not None
        """Whether messages go over sockets. A socket accepts a message when the receiver's notice arrives, and buffers it until sent."""
        self.overlaps = scene.layout.options.pipeline_overlap and not meetings.has_rendezvous
        """Whether stages continue to compute while they send."""
        self.sending: list[Meeting] = []
        """Messages to other stages for which compute waits before it continues."""
        self.handed: list[Meeting] = []
        """Messages that the host has passed to a socket and does not wait for."""
        self.sent_ahead: list[Meeting] = []
        """Messages for which compute waits at the next message that holds it, or before the optimizer."""

    def message(self, tag: Tag, source: int, target: int, nbytes: float) -> Meeting:
        """Return the message *tag* from *source* to *target*."""
        price = self.meetings.scene.prices.send(source, target, nbytes)
        return self.meetings.message((self.account.step, "message", tag), tag, price, source, target)

    def send(self, send: Send, _: int) -> tuple[()]:
        """Send a message to another stage."""
        message = self.message(send.tag, self.number, send.stage, send.nbytes)
        self._arrive(message, self.number)
        if not self.overlaps:
            self.sent_ahead.append(message)
            if send.holds:
                self.hold()
        return ()

    def receive(self, receive: Receive, _: int) -> SimProcess:
        """Wait until a message has arrived."""
        message = self.message(receive.tag, receive.stage, self.number, receive.nbytes)
        if self.meetings.has_rendezvous:
            self._arrive(message, receive.stage)
        last = self.meetings.has_rendezvous and message.last_arrival == message.env.now
        if not message.is_over:
            yield from self._wait(message, message.until_over())
        if not last:  # otherwise the message was delayed by this stage's own late request
            self.meetings.kernels[self.number].slowest.resume(message.end_time)

    def hold(self) -> None:
        """Make compute wait for everything sent so far."""
        self.sending += self.sent_ahead
        self.sent_ahead = []

    def wait_for_sends(self) -> SimProcess:
        """Hold compute until this stage's sends are complete: a send and the following receive are one call, for which compute waits."""
        for message in self.sending:
            if not (message.all_ready.triggered if self.sockets else message.is_over):
                yield from self._wait(message, _event(message.all_ready) if self.sockets else message.until_over())
        self.handed = [message for message in (*self.handed, *self.sending) if not message.is_over]
        self.sending = []

    def _wait(self, message: Meeting, until: SimProcess) -> SimProcess:
        start = message.env.now
        yield from until
        self.account.add_waits(message.wait_pieces(start))
        self.account.add_exposed("pipeline", message.env.now - start)

    def _arrive(self, message: Meeting, source: int) -> None:
        """Arrive at *message* from *source*, as its sender or its receiver."""
        if self.number == message.target:
            message.request_time = message.env.now
            message.notice_behind = self._on_the_wire(source)
        if message.arrive():
            message.env.process(self._play_on_request(message))

    def _play_on_request(self, message: Meeting) -> SimProcess:
        """Play a message once its sender has the receiver's notice."""
        for other in message.notice_behind:
            if not other.is_over:
                yield from other.until_over()
                message.request_time = message.env.now
        notice = message.request_time + message.price.notice - message.env.now
        if notice > 0:  # NaN if there is no request of a receiver
            yield message.env.timeout(notice)
        message.ready = message.env.now
        message.all_ready.succeed()
        yield from self.meetings.play(message)
        message.end()

    def _on_the_wire(self, stage: int) -> list[Meeting]:
        """Return the messages to *stage* behind which a notice to it queues: over Gloo, one connection carries both in order."""
        if not self.sockets:
            return []
        unfinished = (*self.handed, *self.sending, *self.sent_ahead)
        return [message for message in unfinished if message.target == stage and message.missing_members == 0 and not message.is_over]


def _event(event: simpy.Event) -> SimProcess:
    yield event
