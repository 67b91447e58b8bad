"""How do stages of a pipeline hand each other activations and gradients? What one sends, what it waits for, and when messages go."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from sim.parallel.program import Receive, Send, Tag
from sim.training.layouts.account import Account
from sim.training.layouts.meetings import Meeting, Meetings

SimProcess = Generator[simpy.Event, object, None]


class Messages:
    """What the stage *number* sends and receives."""

    def __init__(self, meetings: Meetings, account: Account, number: int) -> None:
        scene = meetings.scene
        self.meetings = meetings
        self.account = account
        self.number = number
        self.sockets = scene.prices.sockets is not None
        """Whether a socket takes a message as soon as the receiver's notice has come, and keeps it until the line has taken it."""
        self.overlaps = scene.layout.options.pipeline_overlap and not meetings.meets
        """Whether stages compute on while they send."""
        self.sending: list[Meeting] = []
        """Messages to other stages that compute waits for before it goes on."""
        self.handed: list[Meeting] = []
        """Messages that the host has handed to a socket and does not wait for."""
        self.sent_ahead: list[Meeting] = []
        """Messages that it waits for with the next of those, or before the optimizer."""

    def message(self, tag: Tag, source: int, target: int, nbytes: float) -> Meeting:
        """Return the message *tag* from *source* to *target*."""
        price = self.meetings.scene.prices.send(source, target, nbytes)
        return self.meetings.message((self.account.step, "message", tag), tag, price, source, target)

    def send(self, send: Send, _: int) -> tuple[()]:
        """Hand a message to another stage."""
        message = self.message(send.tag, self.number, send.stage, send.nbytes)
        self._meet(message, self.number)
        if not self.overlaps:
            self.sent_ahead.append(message)
            if send.holds:
                self.hold()
        return ()

    def receive(self, receive: Receive, _: int) -> SimProcess:
        """Wait until a message has come."""
        message = self.message(receive.tag, receive.stage, self.number, receive.nbytes)
        if self.meetings.meets:
            self._meet(message, receive.stage)
        last = self.meetings.meets and message.arrived == message.env.now
        if not message.over:
            yield from self._wait(message, message.until_over())
        if not last:  # else it came as much later as this stage asked for it
            self.meetings.kernels[self.number].slowest.go_on(message.ended)

    def hold(self) -> None:
        """Let compute wait for all that was sent so far."""
        self.sending += self.sent_ahead
        self.sent_ahead = []

    def sent(self) -> SimProcess:
        """Hold compute until what this stage sends has gone: a send and the receive after it are one call, which compute waits for."""
        for message in self.sending:
            if not (message.come.triggered if self.sockets else message.over):
                yield from self._wait(message, _event(message.come) if self.sockets else message.until_over())
        self.handed = [message for message in (*self.handed, *self.sending) if not message.over]
        self.sending = []

    def _wait(self, message: Meeting, until: SimProcess) -> SimProcess:
        start = message.env.now
        yield from until
        self.account.blame(message.blamed(start))
        self.account.exposes("pipeline", message.env.now - start)

    def _meet(self, message: Meeting, source: int) -> None:
        """Come to *message* from *source*, as its sender or as its receiver."""
        if self.number == message.target:
            message.asked = message.env.now
            message.notice_behind = self._on_the_wire(source)
        if message.arrive():
            message.env.process(self._told(message))

    def _told(self, message: Meeting) -> SimProcess:
        """Let a message begin when its sender knows that its receiver asks for it."""
        for other in message.notice_behind:
            if not other.over:
                yield from other.until_over()
                message.asked = message.env.now
        notice = message.asked + message.price.notice - message.env.now
        if notice > 0:  # nan where no receiver asks
            yield message.env.timeout(notice)
        message.ready = message.env.now
        message.come.succeed()
        yield from self.meetings.play(message)
        message.end()

    def _on_the_wire(self, stage: int) -> list[Meeting]:
        """Return the messages to *stage* that a notice to it stands behind: over Gloo one connection takes both in turn."""
        if not self.sockets:
            return []
        own = (*self.handed, *self.sending, *self.sent_ahead)
        return [message for message in own if message.target == stage and message.missing == 0 and not message.over]


def _event(event: simpy.Event) -> SimProcess:
    yield event
