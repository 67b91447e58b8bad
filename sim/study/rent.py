"""What do the machines cost that a job uses? The price of its share of nodes and servers, of a run or of a number of nodes."""

from __future__ import annotations

from collections import Counter

from sim.analysis.cost import Market, job_price
from sim.cluster.build import with_nodes
from sim.simulate import Run
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload


def gpus_by_node(run: Run) -> tuple[list[dict[int, int]], Counter[int]]:
    """Return the number of GPUs on each node that each job of *run* uses, and of all jobs together."""
    used = [{part.node: len(part.gpus) for part in job.job.placement} for job in run.jobs]
    return used, sum(map(Counter, used), Counter[int]())


def price_of_job(run: Run, number: int = 0, market: Market = "on_demand") -> float | None:
    """Return the price (USD/s) that job *number* of *run* pays; None if unknown."""
    used, everyone = gpus_by_node(run)
    servers = max(job.job.workload.training.stack.server_hosts for job in run.jobs)
    return job_price(run.hardware, used[number], everyone, market, servers)


def price_of_nodes(machine: Hardware, workload: Workload, nodes: int, market: Market = "on_demand") -> float | None:
    """Return the price (USD/s) of *nodes* nodes of *machine* and of the servers that *workload* uses; None if unknown.

    Raise SpecError unless *machine* has exactly one group of workers.
    """
    each = dict.fromkeys(range(nodes), 1)
    return job_price(with_nodes(machine, nodes), each, each, market, workload.training.stack.server_hosts)
