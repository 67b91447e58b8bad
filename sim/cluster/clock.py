"""When is what due? SimPy's environment with a leaner loop, as a run passes a hundred thousand events.

``now`` is an attribute instead of a property, and `run_to` takes events from the queue itself; `event` and `timeout` make the two kinds of
which most events are without going through their classes. Order and meaning are SimPy's own.
"""

from __future__ import annotations

from heapq import heappop, heappush

import simpy
from simpy.events import NORMAL

_new_event, _new_timeout = simpy.Event.__new__, simpy.Timeout.__new__


class Clock(simpy.Environment):
    """SimPy's environment; times in seconds."""

    now = 0.0

    def event(self) -> simpy.Event:
        """Return an event that nothing has triggered yet."""
        event = _new_event(simpy.Event)
        event.env = self
        event.callbacks = []
        return event

    def timeout(self, delay: float = 0.0, value: object = None) -> simpy.Timeout:
        """Return an event that happens in *delay* seconds."""
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
        """Let the next event happen."""
        self.run_to(self._queue[0][3])

    def run_to(self, end: simpy.Event) -> None:
        """Go on until *end* has happened. Raise RuntimeError where nothing is due before."""
        queue = self._queue
        while end.callbacks is not None:
            if not queue:
                raise RuntimeError("nothing is due any more, but the end has not come")
            self.now, _, _, event = heappop(queue)
            self._now = self.now
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
