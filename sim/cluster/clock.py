"""When is what due? SimPy's environment with a leaner loop, as a run passes a hundred thousand events.

``now`` is an attribute instead of a property, and `run_to` takes events from the queue itself; order and meaning are SimPy's own.
"""

from __future__ import annotations

from heapq import heappop

import simpy


class Clock(simpy.Environment):
    """SimPy's environment; times in seconds."""

    now = 0.0

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
