"""Does NCCL's choice of algorithm cost this run time? Compares the all-reduces of a step as NCCL chooses them with other algorithms.

NCCL's tuner compares times from its own model (`sim.training.collectives.nccl.cost`), which ignores the cost of sockets and of copies
through host memory. So a faster card or a larger message may lead to an algorithm that is slower here. A run then warns, and tells how
to choose another. Limits: only all-reduces of buckets are considered, in sequence and without other traffic.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from sim.analysis.stalls import parts_of
from sim.events import Cause
from sim.simulate import Run
from sim.training.collectives.play.gloo import GlooPlan
from sim.training.collectives.price.collective_plan import CollectivePlan
from sim.units import show

NOTEWORTHY = 0.04
"""Smallest stall or saving that is reported, as a share of the step: the noise of repeated measurements is 2-4%."""
_CLEARLY = 0.1
"""Minimum share of the exchange it must save: predicted single all-reduces have a median error of 4-10% (docs/trust/validation.md)."""


def choice_warnings(run: Run, number: int = 0) -> list[str]:
    """Return a warning if an algorithm that NCCL considers but does not choose would shorten the step of job *number*."""
    job, plan = run.jobs[number], run.rings[number]
    if not isinstance(plan, CollectivePlan) or isinstance(plan, GlooPlan) or plan.forced_algorithm:
        return []
    waited = job.warm.stalls[Cause.NETWORK] + job.warm.stalls[Cause.INTERCONNECT]
    if waited < NOTEWORTHY * job.warm.step_time:
        return []
    messages = messages_of_step(run, number)
    costs = {nbytes: plan.cost(nbytes) for nbytes in messages}
    ways = {nbytes: plan.considered_costs(nbytes) for nbytes in messages}
    everywhere = set.intersection(*(set(of_size) for of_size in ways.values())) if ways else set()
    if len(everywhere) < 2:
        return []
    now = sum(cost.uncontended_time * messages[nbytes] for nbytes, cost in costs.items())
    times = {name: sum(ways[nbytes][name].uncontended_time * count for nbytes, count in messages.items()) for name in sorted(everywhere)}
    best = min(times, key=lambda name: times[name])
    if now - times[best] < _CLEARLY * now or min(now - times[best], waited) < NOTEWORTHY * job.warm.step_time:
        return []
    others = Counter({cost.algorithm: 0 for cost in costs.values()})
    for nbytes, cost in costs.items():
        others[cost.algorithm] += messages[nbytes]
    chosen = " and ".join(f"{name} for {count}" for name, count in others.most_common())
    return [
        f"NCCL {plan.tuning.version} chooses {chosen} of {sum(messages.values())} all-reduces of a step, {show(now, 'time')} in total; "
        f"over these links {best} would take {show(times[best], 'time')} (--set training.stack.nccl_algo={best})"
    ]


def messages_of_step(run: Run, number: int = 0) -> dict[float, int]:
    """Return the number of bucket all-reduces in one warm step of job *number* by their size in bytes."""
    job = run.jobs[number]
    stack, window = job.job.workload.training.stack, job.warm.windows[0]
    if stack.exchange.compression is not None or stack.exchange.sparse_embeddings:
        return {}
    log = job.warm.log
    ends = [
        work
        for work in log.work
        if work.stream == "comm" and work.ident >= 0 and work.nbytes > 0 and log.ranks[work.rank].job == number
        if window.start < work.t1 <= window.end
    ]
    counts: dict[float, float] = defaultdict(float)
    for part in (window._replace(repeats=1.0), *parts_of(window, job.warm.windows)):
        for work in ends:
            counts[work.nbytes] += part.repeats * (part.start < work.t1 <= part.end)
    return {nbytes: max(1, round(count / window.steps)) for nbytes, count in counts.items()}
