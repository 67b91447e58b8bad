"""A network on which activities start, and things change, at set times."""

from __future__ import annotations

import simpy

from sim.cluster.network import Network
from sim.events import EventLog


class Bench:
    """A network on which activities start at set times, with ``log == [(t, what)]`` of what ended when."""

    def __init__(self, keep_rates=False, **capacity):
        self.env = simpy.Environment()
        self.events = EventLog(lambda: self.env.now, keep_rates)
        self.network = Network(self.env, self.events)
        self.log = []
        self.activities = {}
        for link, value in capacity.items():
            self.network.add_link(link, value)

    def start(self, name, volume, usage, at=0.0, **keys):
        def run():
            yield self.env.timeout(at)
            activity = self.activities[name] = self.network.start(name, volume, usage, **keys)
            yield activity.done
            self.log.append((self.env.now, name))

        self.env.process(run())

    def capacity_at(self, time, link, capacity):
        self.env.timeout(time).callbacks.append(lambda _: self.network.set_capacity(link, capacity))

    def cap_at(self, time, name, cap):
        """Cap an activity at *time*, if it has begun by then."""
        self.env.timeout(time).callbacks.append(lambda _: name in self.activities and self.network.set_cap(self.activities[name], cap))

    def run(self):
        self.env.run()
        return self.log
