"""How do weeks of training go, including failures? Many courses of one job are simulated at once, from fault to fault, in NumPy arrays.

`sim.analysis.arrivals` draws the events and their times. Fault rates differ between fleets (log-normal, fitted to an interval) and between
nodes (gamma). Spot machines are revoked according to their age (`sim.analysis.crew`). Each fault costs its detection, the wait for a
spare, the restart, and the work since the last complete checkpoint. Between faults, work and saves alternate, at a lower speed while a
node is slow or missing (`sim.analysis.spares`). A fault during a recovery restarts the recovery. A job dies if no node can replace one that
left. If the job goes on without revoked nodes (`sim.analysis.crew`), all nodes restart when a node goes or joins, or no work is lost.

Limits: a repeat hits the job whether or not its node is back; a replica whose node failed rejoins without a restart of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.analysis.arrivals import JOINED, PLANNED, REVOKED, SEVERAL, Arrivals
from sim.analysis.crew import crew_of
from sim.analysis.fleet_law import Array
from sim.analysis.long_run import LOST_CATEGORIES, ZERO_TIME, Courses, LongRun, cause_key, first_rates, other_rates
from sim.analysis.renewal import Uniform
from sim.analysis.spares import Spares
from sim.analysis.transient import CrowdLives

BATCH_SIZE = 2000
"""Maximum number of courses that are simulated in one array."""
MOST_LIVES_DRAWN = 4_000_000
"""Maximum number of nodes of all courses in one array whose lifetimes are drawn: about 70 MB."""
NEVER = 1e13
"""Time (s) that no course reaches; a finite substitute for "never"."""
_QUIET = 100
"""Events of each course between two progress reports."""
_STREAMS = ("faults", "repeat", "correlated", "planned", "cause", "recovery", "repair", "slow", "lives", "striking", "disk", "compilation")
"""Names of the independent streams of random numbers: an additional draw from one of them does not change the others."""
JOINS = "a node joins"
FRUITLESS, MOST = 1000, 100_000
"""A job with a fixed amount of work counts as endless after `FRUITLESS` interruptions without a checkpoint, or `MOST` interruptions."""


def draw(
    run: LongRun,
    trials: int,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
    all_or_none: bool = False,
    longest_mean: float = math.inf,
) -> Courses:
    """Simulate *trials* courses of *run*; *progress* is called now and then with the finished share of all courses.

    A course that never ends takes infinitely long; with *all_or_none*, so do all that are drawn together with it. Once the mean time must
    exceed *longest_mean* (s), courses are not simulated to their ends, but take infinitely long.

    Raise ValueError for a job without an amount of work or a time limit, or if checkpoints would overlap.
    """
    _require_possible(run)
    of_rates, of_courses, of_others = np.random.SeedSequence(seed).spawn(3)
    others = other_rates(run, trials, of_others)
    rates = first_rates(run, trials, np.random.default_rng(of_rates), others)
    order = np.argsort(rates, kind="stable")  # courses with similar rates end at about the same event
    of_each_node = run.lives is not None and not isinstance(run.lives[0], CrowdLives)
    rows = max(1, min(BATCH_SIZE, MOST_LIVES_DRAWN // run.nodes)) if of_each_node else BATCH_SIZE
    parts = np.array_split(order, math.ceil(trials / rows))
    watched = order[trials // 2]
    # names of the loop are bound as defaults, of which mypy does not infer the type in a lambda
    drawn = [
        _Fleet(run, rates[part], {name: each[part] for name, each in others.items()}, own, np.flatnonzero(part == watched)).drawn(
            lambda share, done=done: progress((done + share) / len(parts)),  # type: ignore[misc]
            all_or_none,
            longest_mean * trials,
        )
        for done, (part, own) in enumerate(zip(parts, of_courses.spawn(len(parts)), strict=True))
    ]
    back = np.argsort(order, kind="stable")

    def joined(pick: Callable[[Courses], Array]) -> Array:
        return np.asarray(np.concatenate([pick(one) for one in drawn])[back])

    return Courses(
        elapsed=joined(lambda one: one.elapsed),
        work=joined(lambda one: one.work),
        interruptions=joined(lambda one: one.interruptions),
        stops=joined(lambda one: one.stops),
        replaced_nodes=joined(lambda one: one.replaced_nodes),
        lost={name: joined(lambda one, name=name: one.lost[name]) for name in LOST_CATEGORIES},  # type: ignore[misc]
        death_times=joined(lambda one: one.death_times),
        node_seconds=joined(lambda one: one.node_seconds),
        rented_nodes=joined(lambda one: one.rented_nodes),
        events=[event for one in drawn for event in one.events],
    )


def _require_possible(run: LongRun) -> None:
    """Raise ValueError for a job without an amount of work or a time limit, or if checkpoints would overlap."""
    saving = run.saving
    if run.work == math.inf and run.horizon == math.inf:
        raise ValueError("a job needs an amount of work or a time limit")
    if saving.interval + saving.blocking < saving.persist * (1 - 1e-9):
        raise ValueError(f"an interval of {saving.interval:g} s is shorter than a checkpoint of {saving.persist:g} s")
    if saving.memory_interval is not None and saving.memory_interval <= 0:
        raise ValueError(f"an interval of {saving.memory_interval:g} s between copies in memory is too short; write more than 0")
    if saving.memory_interval is not None and saving.memory_interval + saving.memory_blocking < saving.memory_persist * (1 - 1e-9):
        raise ValueError(
            f"an interval of {saving.memory_interval:g} s between copies is shorter than the {saving.memory_persist:g} s that a copy takes"
        )
    if run.elastic_rules and not run.elastic_rules.restarts and (saving.persist != saving.blocking or saving.memory_interval is not None):
        raise ValueError("if no node failure loses work, training must wait until a checkpoint is complete")


def _bounds(spans: Sequence[Uniform]) -> tuple[Array, Array]:
    """Return the lower bounds of *spans*, and the ranges above them."""
    low, high = np.array([span.low for span in spans]), np.array([span.high for span in spans])
    return low, high - low


class _Fleet:
    """The state of courses in progress; every array has one value per course."""

    def __init__(
        self, run: LongRun, rates: Array, others: Mapping[str, Array], seed: np.random.SeedSequence, watched: NDArray[np.intp]
    ) -> None:
        self.run, self.trials, self.others = run, rates.size, others
        self.shares = np.cumsum([cause.share * others[cause_key(cause.name)] for cause in run.causes], axis=0)
        """Cumulative shares of the causes."""
        trials = rates.size
        self.random = {name: np.random.default_rng(own) for name, own in zip(_STREAMS, seed.spawn(len(_STREAMS)), strict=True)}
        zeros = np.zeros
        self.now = zeros(trials)
        """Time of the last event."""
        self.resume = zeros(trials)
        """Time at which training resumes after it."""
        self.stages = {name: zeros(trials) for name in ("detection", "spare_wait", "restart", "planned")}
        """Durations of the recovery stages between ``now`` and ``resume``."""
        self.kept = zeros(trials)
        """Work from which training resumes."""
        self.stored = zeros(trials)
        """Work saved in the checkpoint store."""
        self.part, self.hold = zeros(trials), zeros(trials)
        """Work beyond ``kept`` for which no save has begun, and the remaining time (s) of a save that has begun."""
        self.ahead = zeros((3, trials))
        """Values of ``kept``, ``part`` and ``hold`` at the event if no work is lost."""
        self.fruitless = zeros(trials)
        """Interruptions since the last checkpoint."""
        self.lost = {name: zeros(trials) for name in LOST_CATEGORIES}
        self.elapsed, self.work = zeros(trials), zeros(trials)
        self.interruptions, self.stops, self.replaced = zeros(trials), zeros(trials), zeros(trials)
        self.died = np.full(trials, math.inf)
        self.spares = Spares(run, trials)
        self.arrivals = Arrivals(run, rates, others, self.random)
        another = run.causes[-1].repair if run.lives and run.causes else None
        self.crew = crew_of(
            run.nodes, trials, run.lives[0] if run.lives else None, run.elastic_rules, (another or ZERO_TIME).mean, self.random["lives"]
        )
        self.events: list[tuple[float, str, float]] = []
        """Events of the course in *watched*, if any."""
        self.watched = watched
        self.replaces = np.array([cause.replaces for cause in run.causes])
        self.silent_for = np.array([cause.silent_for for cause in run.causes])
        self.detection = _bounds([cause.detection for cause in run.causes])
        self.localization = _bounds([cause.localization for cause in run.causes])
        self.repair_shares, self.repair_times = map(np.array, zip(*run.repair, strict=True))

    # --- from fault to fault -----------------------------------------------------------------------------------------

    def drawn(self, progress: Callable[[float], None], all_or_none: bool, longest: float) -> Courses:
        """Simulate all courses until they end, or prove endless, and return them.

        *progress* is called now and then with the finished share; *all_or_none*: whether all are endless if one is; *longest*: the sum of
        their times (s) above which all are.
        """
        active = np.arange(self.trials)
        self._begin()
        for count in itertools.count(1):
            if not active.size:
                break
            if count % _QUIET == 0:
                progress(1.0 - active.size / self.trials * (1.0 - self._finished_share(active)))
            times = np.stack([*self.arrivals.next_times(active), *self.crew.next_times(active)])
            kind = times.argmin(axis=0)
            at = times[kind, np.arange(active.size)]
            idle = self.arrivals.is_harmless(active, kind, at)
            met, until = ~idle, np.minimum(np.minimum(at, self.run.horizon), NEVER)
            ended = np.zeros(active.size, dtype=np.bool_)
            ended[met] = self._advance(active[met], until[met], at[met] >= self.run.horizon)
            going = met & ~ended
            self.arrivals.renew(active, kind, at, idle)
            back = self._change_members(active, kind, idle, going)
            quiet = self._continue(active, kind, at, going, back)
            self._strike(active, kind, at, going & ~quiet)
            endless = ~ended & self._is_endless(active)
            self.elapsed[active[endless]] = math.inf
            if (all_or_none and endless.any()) or self.elapsed.sum() > longest:  # those that have not ended take at least as long as so far
                self.elapsed[:] = math.inf
                break
            active = active[~ended & ~endless & ~np.isfinite(self.died[active])]
        return Courses(
            self.elapsed, self.work, self.interruptions, self.stops, self.replaced, self.lost, self.died, self.crew.node_seconds,
            self.crew.rented_nodes, tuple(self.events),
        )  # fmt: skip

    def _finished_share(self, active: NDArray[np.intp]) -> float:
        """Return the mean finished share of the *active* courses: of their time or of their work, whichever is larger."""
        shares = self.elapsed[active] / self.run.horizon, np.maximum(self.work[active], 0.0) / self.run.work
        return float(np.minimum(np.maximum(*shares), 1.0).mean())

    def _is_endless(self, a: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which of the courses *a* count as endless."""
        if self.run.horizon < math.inf:
            return np.zeros(a.size, dtype=np.bool_)
        return np.asarray((self.fruitless[a] > FRUITLESS) | (self.interruptions[a] > MOST))

    def _begin(self) -> None:
        """Start the job: processes, communicators and compilation, without a checkpoint to load."""
        restarted = self.run.restart_in_place + self._uniform(self.run.communicators, "recovery")
        first = restarted if self.run.start_up is None else self.run.start_up
        spent = first + self._uniform(self.run.compilation, "compilation")
        self.stages["restart"][:] = spent
        self.resume[:] = spent

    def _start_time(self, a: NDArray[np.intp]) -> Array:
        """Draw the time from running processes to working communicators and compiled kernels in the courses *a*."""
        return self._uniform(self.run.communicators, "recovery", a) + self._uniform(self.run.compilation, "compilation", a)

    def _uniform(self, span: Uniform, stream: str, a: NDArray[np.intp] | slice = slice(None)) -> Array:
        return np.asarray(span.low + (span.high - span.low) * self._drawn(stream, a))

    def _drawn(self, stream: str, a: NDArray[np.intp] | slice) -> Array:
        """Return random numbers from 0 to 1 for the courses *a*; drawn for all, so that those of one do not depend on the others."""
        drawn = self.random[stream].random(self.trials)
        return drawn if isinstance(a, slice) or a.size == self.trials else np.asarray(drawn[a])  # as many as there are: all, in order

    def _advance(self, a: NDArray[np.intp], until: Array, stopped: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Advance the courses *a* to *until*, when they are *stopped* or an event strikes; return which have ended."""
        since = self.now[a]
        self._wait_for_nodes(a, until)
        self._account_recovery(a, until)
        run, saving = self.run, self.run.saving
        length = np.maximum(until - self.resume[a], 0.0)
        speed = self._speed(a, length)
        interval = saving.interval if saving.memory_interval is None else saving.memory_interval
        blocking = saving.blocking if saving.memory_interval is None else saving.memory_blocking
        left, part, hold = run.work - self.kept[a], self.part[a], self.hold[a]
        with np.errstate(invalid="ignore"):
            saves = np.ceil(left / interval - 1e-9)
            needed = hold + (left - part) / speed + blocking * saves
        done = (length > 0) & (needed <= length)
        cycle = interval / speed + blocking
        inside = np.maximum(length - hold, 0.0) + part / speed  # time since the cycle began
        cycles = np.floor(inside / cycle)
        rest = inside - cycles * cycle
        piece = np.maximum(np.minimum(interval, left - cycles * interval), 0.0)
        progress = cycles * interval + np.minimum(rest * speed, piece)
        waited = np.minimum(hold, length) + cycles * blocking + np.maximum(rest - piece / speed, 0.0)
        progress, waited = np.where(done, left, progress), np.where(done, hold + blocking * np.where(done, saves, 0.0), waited)
        spent = np.where(done, needed, length)
        self.lost["checkpoint"][a] += waited
        self.lost["degraded"][a] += np.maximum(spent - waited - (progress - part), 0.0)
        self.work[a] = self.kept[a] + progress
        ended = done | stopped
        self.elapsed[a] = np.where(done, self.resume[a] + spent, until)
        passed = self.elapsed[a] - since
        self.crew.node_seconds[a] += self.crew.node_counts(a) * passed - self.spares.absent(a, since, passed)
        saving_now = (rest >= piece / speed) & (blocking > 0) & (length > hold)
        self.ahead[0, a] = np.where(saving_now, self.work[a], self.kept[a] + cycles * interval)
        self.ahead[1, a] = np.where(saving_now, 0.0, progress - cycles * interval)
        self.ahead[2, a] = np.where(saving_now, piece / speed + blocking - rest, np.maximum(hold - length, 0.0))
        self._save(a, inside, length >= hold, cycle, interval, blocking)
        return np.asarray(ended)

    def _wait_for_nodes(self, a: NDArray[np.intp], until: Array) -> None:
        """Let the courses among *a* that have too few nodes wait until *until*; a recovery continues afterwards."""
        if self.run.elastic_rules is None:
            return
        idle = self.crew.speed(a) <= 0
        b, waited = a[idle], until[idle] - self.now[a[idle]]
        self.lost["spare_wait"][b] += waited
        self.resume[b] += waited
        self.now[b] = until[idle]

    def _account_recovery(self, a: NDArray[np.intp], until: Array) -> None:
        """Add the part of the recovery that passes before *until* to the lost time, stage by stage."""
        left = np.maximum(np.minimum(until, self.resume[a]) - self.now[a], 0.0)
        for name, stage in self.stages.items():
            part = np.minimum(left, stage[a])
            self.lost[name][a] += part
            left = left - part

    def _speed(self, a: NDArray[np.intp], length: Array) -> Array:
        """Return the mean speed of the courses *a* over *length* seconds from the moment they resume."""
        rate, factor, duration = self.run.slow
        speed = np.ones(a.size)
        if rate > 0 and factor > 1:
            episodes = self.random["slow"].poisson(rate * self.others["slow"][a] * np.minimum(length, 1e10))
            met = np.flatnonzero(episodes)
            slow = self.random["slow"].standard_gamma(episodes[met]) * duration
            speed[met] -= (1 - 1 / factor) * np.minimum(slow / length[met], 1.0)
        speed *= self.spares.speed(a, self.resume[a], length)
        if self.run.elastic_rules:
            of_crew = self.crew.speed(a)
            speed *= np.where(of_crew > 0, of_crew, 1.0)  # with too few nodes, the length is 0 anyway
        return speed

    def _save(self, a: NDArray[np.intp], inside: Array, saved: NDArray[np.bool_], cycle: Array, interval: float, blocking: float) -> None:
        """Record what is saved *inside* seconds after the cycle began; *saved*: whether the save before the cycle has finished."""
        saving = self.run.saving
        first = cycle - blocking  # time of the work of one interval
        complete = np.maximum(np.floor((inside - first - saving.persist) / cycle + 1e-9) + 1, 0.0)
        before = self.stored[a]
        if saving.memory_interval is None:
            self.stored[a] = np.where(saved, self.kept[a] + complete * interval, before)
            self.fruitless[a] = np.where(self.stored[a] > before, 0.0, self.fruitless[a])
            return
        reached = np.floor((self.kept[a] + complete * interval) / saving.interval + 1e-9) * saving.interval
        anew = reached > self.kept[a] + 1e-6  # a save that a fault cut off stays so
        self.stored[a] = np.maximum(self.stored[a], np.where(anew, reached, 0.0))
        self.fruitless[a] = np.where(complete > 0, 0.0, self.fruitless[a])
        copies = np.maximum(np.floor((inside - first - saving.memory_persist) / cycle + 1e-9) + 1, 0.0)
        self.kept[a] = self.kept[a] + copies * interval

    def _change_members(
        self, a: NDArray[np.intp], kind: NDArray[np.intp], idle: NDArray[np.bool_], going: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Remove revoked nodes and add joining ones; return in which courses the first node has rejoined."""
        first = np.zeros(a.size, dtype=np.bool_)
        if self.run.lives:
            life = self.run.lives[0].draws(self.trials, self.random["lives"])
            revoked, joined = kind == REVOKED, going & (kind == JOINED)
            self.crew.revoke(a[going & revoked], life)
            self.crew.skip_revocation(a[idle & revoked], life)
            first[joined] = self.crew.join(a[joined], life)
        return first

    def _continue(
        self, a: NDArray[np.intp], kind: NDArray[np.intp], at: Array, going: NDArray[np.bool_], first: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Continue the courses *a* that lose no work when a node goes or joins; return which courses these are."""
        members = self.run.elastic_rules
        quiet = np.zeros(a.size, dtype=np.bool_)
        if members is None or members.restarts:
            return quiet
        quiet = going & (kind >= REVOKED) & ~(first & members.restarts_with_chief)
        b, moment = a[quiet], at[quiet]
        self.kept[b], self.part[b], self.hold[b] = self.ahead[:, b]
        self._advance_recovery(b, moment)
        self.interruptions[b] += kind[quiet] == REVOKED
        self.replaced[b] += kind[quiet] == REVOKED
        self._record_event(b, moment, lambda place: "revocation" if kind[quiet][place] == REVOKED else JOINS)
        return quiet

    def _advance_recovery(self, b: NDArray[np.intp], moment: Array) -> None:
        """Deduct from the recovery of the courses *b* the part that has passed at *moment*."""
        passed = np.maximum(np.minimum(moment, self.resume[b]) - self.now[b], 0.0)
        for stage in self.stages.values():
            spent = np.minimum(passed, stage[b])
            passed = passed - spent
            stage[b] -= spent
        self.now[b] = moment
        self.resume[b] = moment + sum(stage[b] for stage in self.stages.values())

    def _strike(self, a: NDArray[np.intp], kind: NDArray[np.intp], at: Array, going: NDArray[np.bool_]) -> None:
        """Apply a fault or a planned stop to the courses *a* that are still *going*, and schedule the recovery."""
        drawn = self._draw_recovery(a, kind == REVOKED)
        planned = going & (kind == PLANNED)
        self._plan_stop(a[planned], at[planned], drawn["start"][planned])
        faulty = going & (kind != PLANNED)
        if not faulty.any():
            return
        b, moment = a[faulty], at[faulty]
        drawn = {name: values[faulty] for name, values in drawn.items()} if b.size < a.size else drawn
        several, joins = kind[faulty] == SEVERAL, kind[faulty] == JOINED
        member = (kind[faulty] >= REVOKED) & (self.run.elastic_rules is not None)
        cause = drawn["cause"]
        silent = np.where(several | joins, 0.0, drawn["silent"])
        replaced = several | (drawn["replaces"] > 0) & ~member
        leaves = replaced | (member & ~joins)
        alone = (self.run.nodes == 1) | (self.crew.lost_copies[b] & (kind[faulty] == REVOKED))  # no peer has a copy
        durable = several | (silent > 0) | (leaves & alone)
        self.stored[b[leaves & self._loses_checkpoint(several, drawn["disk"])]] = 0.0
        restored = self._restored(b, durable, silent)
        self.lost["rework"][b] += self.work[b] - restored
        self.kept[b], self.part[b], self.hold[b] = restored, 0.0, 0.0
        self.stored[b] = np.minimum(self.stored[b], restored)
        detection = np.where(joins, 0.0, drawn["detection"])
        detected = moment + detection
        alone = replaced & ~several
        wait = self.spares.wait(b, several, alone, detected, self._repair(cause, drawn["repair"], b, alone), drawn["together"])
        dead = ~np.isfinite(wait) & (detected < self.run.horizon)
        self._die(b[dead], detected[dead])
        wait[~np.isfinite(wait)] = 0.0
        saving = self.run.saving
        in_memory = np.where(leaves | joins, saving.peer_load, saving.memory_load)
        load = saving.load if saving.memory_interval is None else np.where(durable, saving.load, in_memory)
        restart = (
            np.where(replaced, self.run.restart + drawn["spare"], self.run.restart_in_place) + drawn["start"] + load
        )  # fmt: skip
        self._schedule_recovery(b, moment, {"detection": detection, "spare_wait": wait, "restart": restart})
        self.interruptions[b] += ~joins
        self.fruitless[b] += 1
        self.replaced[b] += np.where(several, self.run.correlated[1], replaced | (member & ~joins))
        names = [one.name for one in self.run.causes]
        self._record_event(b, moment, lambda place: "several nodes" if several[place] else JOINS if joins[place] else names[cause[place]])

    def _draw_recovery(self, a: NDArray[np.intp], revoked: NDArray[np.bool_]) -> dict[str, Any]:
        """Draw the cause and the times of a recovery for the courses *a*; the draws of one course do not depend on the others.

        The courses that are *revoked* have the last cause (a revocation). If node lifetimes are drawn, no other course can have this cause.
        """
        causes = self.run.causes
        shares = (self.shares[:-1] if self.run.lives and len(causes) > 1 else self.shares)[:, a]
        cause = np.minimum((shares <= self._drawn("cause", a) * shares[-1]).sum(axis=0), len(shares) - 1)
        cause[revoked] = len(causes) - 1
        return {
            "cause": cause,
            "replaces": (self._drawn("cause", a) < self.replaces[cause]).astype(float),
            "silent": self.silent_for[cause],
            "detection": self._spans(self.detection, cause, a) + self._spans(self.localization, cause, a),
            "spare": self._uniform(self.run.spare, "recovery", a),
            "start": self._start_time(a),
            "repair": self._drawn("repair", a),
            "together": self._uniform(self.run.correlated[2], "repair", a),
            "disk": self._drawn("disk", a),
        }

    def _spans(self, bounds: tuple[Array, Array], which: NDArray[np.intp], a: NDArray[np.intp]) -> Array:
        low, length = bounds
        return np.asarray(low[which] + length[which] * self._drawn("recovery", a))

    def _repair(self, cause: NDArray[np.intp], uniform: Array, b: NDArray[np.intp], leaves: NDArray[np.bool_]) -> Array:
        """Return the repair times of the nodes of the courses *b* that *leaves* selects; infinite in the others."""
        times, some = np.full(b.size, math.inf), np.flatnonzero(leaves)
        if self.run.repairs:
            times[some] = np.interp(uniform[some], self.repair_shares, self.repair_times) * self.others["repair"][b[some]]
        for number, one in enumerate(self.run.causes):
            if one.repair is not None:
                of_cause = some[cause[some] == number]
                times[of_cause] = one.repair.low + (one.repair.high - one.repair.low) * uniform[of_cause]
        return times

    def _loses_checkpoint(self, several: NDArray[np.bool_], uniform: Array) -> NDArray[np.bool_]:
        """Return whether a node that leaves, or one of *several*, takes part of the checkpoints with it; *uniform*: uniform draws."""
        stays = 1.0 - self.run.saving.on_nodes
        return np.asarray(uniform >= np.where(several, stays ** self.run.correlated[1], stays))

    def _restored(self, b: NDArray[np.intp], durable: NDArray[np.bool_], silent: Array) -> Array:
        """Return the work that training goes back to, from the store or the memory of peers, but before a silent corruption began."""
        saving = self.run.saving
        saved = np.where(durable, self.stored[b], self.kept[b]) if saving.memory_interval is not None else self.stored[b]
        sound = np.floor(np.maximum(self.work[b] - silent, 0.0) / saving.interval) * saving.interval
        return np.asarray(np.where(silent > 0, np.minimum(saved, sound), saved))

    def _die(self, b: NDArray[np.intp], moment: Array) -> None:
        """End the courses *b* at *moment*, when the fault is detected and no spare is left."""
        if not b.size:
            return
        noticed = moment - self.elapsed[b]
        self.died[b] = self.elapsed[b] = moment
        self.work[b] = self.kept[b]
        self.lost["detection"][b] += noticed
        self.crew.node_seconds[b] += self.crew.node_counts(b) * noticed

    def _plan_stop(self, b: NDArray[np.intp], moment: Array, start: Array) -> None:
        """Stop the courses *b* as planned, with all work saved; a stop during a recovery does not lengthen the recovery.

        *start* is the time from running processes to training.
        """
        if not b.size:
            return
        self.stops[b] += 1
        running = moment >= self.resume[b]
        self._advance_recovery(b, moment)
        c = b[running]
        self.kept[c] = self.stored[c] = self.work[c]
        self.part[c] = self.hold[c] = 0.0
        stop = self.run.saving.persist + self.run.planned[1] + self.run.restart_in_place
        self.stages["planned"][c] = stop + start[running] + self.run.saving.load
        self.resume[b] = moment + sum(stage[b] for stage in self.stages.values())
        self._record_event(b, moment, lambda place: "planned stop")

    def _schedule_recovery(self, b: NDArray[np.intp], moment: Array, stages: Mapping[str, Array]) -> None:
        for name, times in self.stages.items():
            times[b] = stages.get(name, 0.0)
        self.now[b] = moment
        self.resume[b] = moment + sum(stages.values())

    def _record_event(self, b: NDArray[np.intp], moment: Array, name_at: Callable[[int], str]) -> None:
        """Record an event of the watched course, if it is one of *b*; *name_at* returns the name of the event at a place in *b*."""
        for place in np.flatnonzero(b == self.watched[0]).tolist() if self.watched.size else ():
            self.events.append((float(moment[place]), name_at(place), float(self.resume[b[place]] - moment[place])))
