"""How do activities that share resources progress over time? A fluid model of everything that takes time on a shared resource.

A link, a disk, the cores of a host and a GPU are all resources with a capacity. A copy, a read, the decoding of a batch, a
collective and a GPU kernel are activities with a volume, and with a load on each resource per unit of progress. Between two changes
all rates are constant (`sim.cluster.fairshare`). A change updates only the rates of activities that share a resource with it,
directly or through others. All changes at the same instant are processed together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping

import simpy
from simpy.events import NORMAL, EventPriority

from sim.cluster.bundles import Bundle, Bundles
from sim.cluster.fairshare import Flow, FlowShare, max_min_rates
from sim.events import EventLog, RateChange

_AFTER_EVERYTHING = EventPriority(2)  # SimPy runs priorities 0 and 1 of an instant first
_INSTANT = 1e-12  # relative to the clock: finishes closer than this coincide
_MOST_SOLVED = 4096  # size limit of the cache: if steps do not repeat, its keys do not either

_new = tuple.__new__
"""Creates a NamedTuple from all its fields in half the time of its constructor."""

UNSHARED = Flow({}, cap=1.0)
"""The demand of an activity that takes a fixed time and no shared resource."""


def schedule_once(env: simpy.Environment, event: simpy.Event, delay: float, priority: EventPriority = NORMAL) -> None:
    """Schedule *event* to fire once after *delay* seconds, like a simpy.Timeout but for an event that may already have waiters."""
    event._ok = True
    event._value = None
    env.schedule(event, priority, delay)


class Activity:
    """An activity in progress: *volume* units in total, with the demand *demand*; ``done`` fires when it ends."""

    __slots__ = ("_version", "bottleneck", "bundles", "demand", "done", "finish", "history", "name", "number", "rate", "remaining", "since")

    def __init__(self, number: int, name: str, volume: float, asks: Flow, bundles: list[Bundle[Activity]], done: simpy.Event) -> None:
        self.number = number
        self.name = name
        self.remaining = volume
        self.demand = asks
        self.bundles = bundles
        """The links that it uses."""
        self.done = done
        self.rate = 0.0
        self.bottleneck = ""
        self.since = math.nan
        self.finish = math.inf
        self.history: list[tuple[float, str]] = []
        """(time, bottleneck) for each bottleneck that began to bind, in order."""
        self._version = 0

    def volume_left(self, now: float) -> float:
        """Return the remaining volume at time *now*."""
        return max(0.0, self.remaining - self.rate * (now - self.since)) if self.rate else self.remaining

    def bottlenecks(self, end: float) -> Iterator[tuple[str, float, float]]:
        """Yield (bottleneck, begin, end) of each interval in which one bottleneck was binding, in order, up to time *end*."""
        for number, (begin, bottleneck) in enumerate(self.history, 1):
            yield bottleneck, begin, self.history[number][0] if number < len(self.history) else end


class Network:
    """The shared resources of a simulation and everything in progress on them."""

    def __init__(self, env: simpy.Environment, log: EventLog) -> None:
        self.env = env
        self.log = log
        self.capacity = log.capacity
        self.active: dict[int, Activity] = {}
        self._bundles: Bundles[Activity] = Bundles()
        self._changed: dict[int, Activity] = {}
        self._freed: dict[Bundle[Activity], None] = {}
        self._heap: list[tuple[float, int, int, Activity]] = []
        """(finish, number, version, activity): an entry is stale once the activity has another version."""
        self._started = 0
        self._planned = False
        self._wake_at = math.inf
        self._timers: set[float] = set()
        """Finish times for which a timer is already running."""
        self._solved: dict[tuple[tuple[int, float, float], ...], tuple[list[FlowShare], list[Flow]]] = {}
        """Cache of shares by demand (see `_shares`); steps repeat, and so do their demands."""

    def add_link(self, link: str, capacity: float) -> None:
        """Add a resource, before any activity uses it."""
        if not capacity > 0:
            raise ValueError(f"capacity of {link} (={capacity}) must be > 0")
        self.capacity[link] = capacity
        self._bundles.add_link(link)

    def set_capacity(self, link: str, capacity: float) -> None:
        """Change the capacity of a resource from now on."""
        if not capacity > 0:
            raise ValueError(f"capacity of {link} (={capacity}) must be > 0")
        if capacity != self.capacity[link]:
            self.capacity[link] = capacity
            self._solved.clear()
            self._freed[self._bundles.containing(link)] = None
            self._plan()

    def start(self, name: str, volume: float, usage: Mapping[str, float], cap: float = math.inf, weight: float = 1.0) -> Activity:
        """Begin an activity of *volume* units; ``yield activity.done`` waits for its end.

        *usage* is its load on each resource per unit of progress, *cap* its maximum units/s, *weight* its weight in max-min fairness.
        """
        if not volume >= 0:
            raise ValueError(f"volume of {name} (={volume}) must be >= 0")
        if cap == math.inf and not any(usage.values()):
            raise ValueError(f"{name}: uses no resource and has no cap, so it would take no time")
        self._started += 1
        bundles = self._bundles.of(usage)
        activity = Activity(self._started, name, volume, _new(Flow, (usage, weight, cap)), bundles, self.env.event())
        if volume == 0:
            activity.done.succeed()
            return activity
        for bundle in bundles:
            bundle.active[activity.number] = activity
        self.active[activity.number] = activity
        self._changed[activity.number] = activity
        self._plan()
        return activity

    def start_unshared(self, name: str, duration: float) -> Activity:
        """Begin an activity that shares no resource and takes *duration* seconds, independent of all others."""
        if not duration > 0:
            raise ValueError(f"duration of {name} (={duration}) must be > 0")
        self._started += 1
        now = self.env.now
        finish = now + duration
        activity = Activity(self._started, name, duration, UNSHARED, [], self.env.timeout(finish - now))
        activity.done.callbacks.append(lambda _: self._finish(activity))
        self.active[activity.number] = activity
        activity.since, activity.rate, activity.finish = now, 1.0, finish
        if self.log.keep_rates:
            self._log_rate(activity, 1.0)
        return activity

    def set_cap(self, activity: Activity, cap: float) -> None:
        """Change the maximum rate of *activity* from now on."""
        if activity.number in self.active and cap != activity.demand.cap:
            activity.demand = Flow(activity.demand.usage, activity.demand.weight, cap)
            self._changed[activity.number] = activity
            self._plan()

    def state(self) -> tuple[tuple[str, float], ...]:
        """Return each activity in progress with its remaining seconds at its current rate: part of the state that decides the future.

        An activity without a rate, such as one that was started at this instant, has its negative volume instead.
        """
        now = self.env.now
        return tuple((activity.name, activity.finish - now if activity.rate else -activity.remaining) for activity in self.active.values())

    def usage_key(self, usage: Mapping[str, float]) -> tuple[tuple[str, float, float | None], ...]:
        """Return the load of *usage* on each link, with its current capacity (None: no such link): all that decides an activity's share."""
        return tuple([(link, load, self.capacity.get(link)) for link, load in usage.items()])

    def close(self) -> None:
        """Forget all activities, which refer to the links that they use and these to them (`Clock.close`)."""
        self.active.clear()
        self._heap.clear()
        self._solved.clear()
        self._bundles.close()

    # --- planning ------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            event = self.env.event()
            event.callbacks.append(self._replan)
            schedule_once(self.env, event, 0.0, _AFTER_EVERYTHING)

    def _replan(self, _: simpy.Event) -> None:
        self._planned = False
        affected = self._component()
        self._changed.clear()
        self._freed.clear()
        if affected:
            self._rate(affected)
        self._arm()

    def _component(self) -> list[Activity]:
        """Return every activity that shares a resource with a change, directly or through others, oldest first."""
        if len(self._changed) == 1 and not self._freed:
            (changed,) = self._changed.values()
            for bundle in changed.bundles:
                if len(bundle.active) > 1:
                    break
            else:
                return [changed] if changed.number in self.active else []
        component = dict(self._changed)
        reached = dict(self._freed)
        for activity in self._changed.values():
            reached.update(dict.fromkeys(activity.bundles))
        bundles = list(reached)
        for bundle in bundles:  # grows during the iteration
            for number, activity in bundle.active.items():
                if number in component:
                    continue
                component[number] = activity
                for other in activity.bundles:
                    if other not in reached:
                        reached[other] = None
                        bundles.append(other)
        return [component[number] for number in sorted(component) if number in self.active]

    def _rate(self, activities: list[Activity]) -> None:
        shares = self._shares([activity.demand for activity in activities])
        for activity, (rate, bottleneck) in zip(activities, shares, strict=True):
            self._set_rate(activity, rate, bottleneck)

    def _shares(self, flows: list[Flow]) -> list[FlowShare]:
        """Return the shares of *flows*, which are one component; the cache keeps the flows as well, so that no id in a key is reused."""
        key = tuple([(id(usage), weight, cap) for usage, weight, cap in flows])
        solved = self._solved.get(key)
        if solved is None:
            if len(self._solved) >= _MOST_SOLVED:
                self._solved.clear()
            solved = self._solved[key] = (max_min_rates(flows, self.capacity), flows)
        return solved[0]

    def _set_rate(self, activity: Activity, rate: float, bottleneck: str) -> None:
        """Set the rate of *activity*, and the *bottleneck* that limits it, from now on."""
        now = self.env.now
        if bottleneck != activity.bottleneck or not activity.history:
            activity.history.append((now, bottleneck))
            activity.bottleneck = bottleneck
        if rate == activity.rate:
            return
        activity.remaining = activity.volume_left(now)
        activity.since = now
        activity.rate = rate
        activity._version += 1
        activity.finish = now + activity.remaining / rate if rate > 0 else math.inf
        if rate > 0:
            heapq.heappush(self._heap, (activity.finish, activity.number, activity._version, activity))
        if self.log.keep_rates:
            self._log_rate(activity, rate)

    def _log_rate(self, activity: Activity, rate: float) -> None:
        self.log.rates.append(RateChange(self.env.now, activity.number, activity.name, rate, tuple(activity.demand.usage.items())))

    def _arm(self) -> None:
        """Set a timer for the earliest finish."""
        heap = self._heap
        while heap and heap[0][3]._version != heap[0][2]:
            heapq.heappop(heap)
        if not heap:
            self._wake_at = math.inf
            return
        finish = heap[0][0]
        if finish == self._wake_at:
            return
        self._wake_at = finish
        if finish not in self._timers:
            self._timers.add(finish)
            timeout = self.env.timeout(max(0.0, finish - self.env.now), value=finish)
            timeout.callbacks.append(self._wake)

    def _wake(self, timeout: simpy.Event) -> None:
        self._timers.discard(timeout.value)
        if timeout.value != self._wake_at:
            return  # set before a change that moved the finish
        self._wake_at = math.inf
        heap, now = self._heap, self.env.now
        horizon = now + _INSTANT * max(1.0, now)
        while heap and (heap[0][0] <= horizon or heap[0][3]._version != heap[0][2]):
            _, _, version, activity = heapq.heappop(heap)
            if activity._version == version:
                self._finish(activity)
        if self._freed:
            self._plan()
        else:
            self._arm()

    def _finish(self, activity: Activity) -> None:
        del self.active[activity.number]
        for bundle in activity.bundles:
            del bundle.active[activity.number]
            if bundle.active:
                self._freed[bundle] = None
        activity.remaining = 0.0
        activity.rate = 0.0
        activity._version += 1
        if self.log.keep_rates:
            self._log_rate(activity, 0.0)
        if activity.demand is not UNSHARED:
            activity.done.succeed()


def all_done(env: simpy.Environment, activities: Iterable[Activity]) -> simpy.Event:
    """Return an event that fires when all of *activities* have ended."""
    return simpy.AllOf(env, [activity.done for activity in activities])
