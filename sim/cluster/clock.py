"""When does each event happen? SimPy's environment with a faster loop, because a run has about a hundred thousand events.

``now`` is an attribute instead of a property, and `run_to` pops events from the queue directly; `event` and `timeout` create the two most
frequent kinds of events without calling their constructors. Order and semantics are those of SimPy.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from heapq import heappop, heappush
from weakref import WeakSet

import simpy
from simpy.events import NORMAL

SimProcess = Generator[simpy.Event, object, None]
"""What happens over simulated time: yields the events that it waits for."""
_new_event, _new_timeout = simpy.Event.__new__, simpy.Timeout.__new__


class Clock(simpy.Environment):
    """SimPy's environment; times in seconds."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._suspended: WeakSet[simpy.Process] = WeakSet()
        """Processes that have not ended, and some that have."""

    def process(self, generator: SimProcess) -> simpy.Process:
        """Start a process, which runs *generator*."""
        process = simpy.Process(self, generator)
        self._suspended.add(process)
        return process

    def event(self) -> simpy.Event:
        """Return a new event that is not triggered."""
        event = _new_event(simpy.Event)
        event.env = self
        event.callbacks = []
        return event

    def timeout(self, delay: float = 0.0, value: object = None) -> simpy.Timeout:
        """Return an event that fires after *delay* seconds."""
        if delay < 0:
            raise ValueError(f"Negative delay {delay}")
        event = _new_timeout(simpy.Timeout)
        event.env = self
        event.callbacks = []
        event._value = value
        event._delay = delay
        event._ok = True
        heappush(self._queue, (self._now + delay, NORMAL, next(self._eid), event))
        return event

    def step(self) -> None:
        """Process the next event."""
        self.run_to(self._queue[0][3])

    def run_to(self, end: simpy.Event) -> None:
        """Process events until *end* has fired. Raise RuntimeError if the queue is empty before that."""
        queue = self._queue
        while end.callbacks is not None:
            if not queue:
                raise RuntimeError("no more events, but the end was not reached")
            self.now, _, _, event = heappop(queue)
            self._now = self.now
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]  # SimPy marks processed events so
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value

    def close(self) -> None:
        """End all processes and forget all events: they refer to each other, so that otherwise only the garbage collector frees them."""
        for process in [*self._suspended]:
            with suppress(Exception):  # a user's generator may fail when it is closed; nothing depends on it any more
                process._generator.close()
            process._target = None  # type: ignore[assignment]  # what it waited for refers to it
        for _, _, _, event in self._queue:
            event.callbacks = None  # type: ignore[assignment]  # as if it had been processed
        self._queue.clear()
