"""What does a program read about a run? The JSON document of ``sim run --json``. Keys include their unit; keys are only ever added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim import __version__
from sim.analysis.bottleneck import Bottleneck
from sim.analysis.cost import Market
from sim.analysis.utilization import model_flops_utilization
from sim.analysis.whole_job import JobPlan
from sim.cluster.build import Placement
from sim.epoch import Epoch
from sim.events import STALLS
from sim.parallel.lower.exchange_plan import gradient_volume
from sim.report.assumed_network import network_assumption, network_figures
from sim.report.energy import with_energy
from sim.report.expected_error import expected_error
from sim.report.inputs import inputs as values_of
from sim.report.kinds import fullest_memory
from sim.report.loader_workers import worker_figures
from sim.report.power_error import with_energy_error
from sim.report.prices import date_of, market_assumptions, missing_price, source_of
from sim.report.verdict import assumptions, moment_warning, verdict, warnings
from sim.report.whole_job import job_of_run
from sim.simulate import Run
from sim.study.rent import gpus_by_node, price_of_job
from sim.training.job import Job
from sim.training.server_plan import ServerPlan
from sim.units import pluralized, show

SCHEMA = 1
_MOST_RANGES = 6
"""Maximum number of ranges of nodes or GPUs that are written out."""


def run_document(
    run: Run,
    inputs: Mapping[str, str],
    noted: Sequence[str] = (),
    bottlenecks: Sequence[Bottleneck] = (),
    market: Market = "on_demand",
    plan: JobPlan | None = None,
) -> dict[str, Any]:
    """Return the document of *run* at the prices of *market*; several jobs give ``{"jobs": [...]}``.

    *inputs* are the SHA-256 of each description, *noted* are additional warnings. *bottlenecks*, one per job, tell what freeing a
    resource would save; without them ``freed_step_time_s`` is null. *plan* is the whole job; its time and cost are listed under
    ``whole_job``, which is null without a plan.
    """
    documents = [_job_document(run, number, inputs, noted, market) for number in range(len(run.jobs))]
    for number, document in enumerate(documents):
        document |= freed_figures(run, number, bottlenecks[number] if bottlenecks else None)
        document["warnings"] += moment_warning(bottlenecks[number]) if bottlenecks else []
        document["whole_job"] = job_of_run(plan, document, run.hardware, run.jobs[number].job.workload)
    if len(documents) == 1:
        return documents[0]
    places = [placement_text(job.job.placement) for job in run.jobs]
    jobs = [{"job": number, "placement": places[number], **document} for number, document in enumerate(documents)]
    return {"schema": SCHEMA, "jobs": jobs}


def infeasible_document(hardware: str, workload: str, nodes: int, gpus: int, problem: str, brief: str) -> dict[str, Any]:
    """Return the document of a point of a scaling table that cannot run: *problem* is the reason in a sentence, *brief* in a few words."""
    point = {"hardware": hardware, "workload": workload, "nodes": nodes, "gpus": gpus}
    return {"schema": SCHEMA, **point, "infeasible": problem, "infeasible_briefly": brief}


def _job_document(run: Run, number: int, inputs: Mapping[str, str], noted: Sequence[str], market: Market) -> dict[str, Any]:
    figures, error = run_figures(run, number, market), expected_error(run, number)
    return {
        **figures,
        "energy": with_energy_error(figures["energy"], error),
        "burst_credits_end": burst_credits_end(run, number),
        "collective": collective(run, number),
        "expected_error": error,
        "assumptions": [
            *assumptions(run, number),
            *network_assumption(run.hardware, len(run.jobs[number].job.placement)),
            *_charged(run, number),
            *market_assumptions(market),
        ],
        "warnings": [
            *(text for text in noted if not _of_another_job(text, number)),
            *warnings(run, number),
            *run_credits_end(run, number),
            *missing_price(run.hardware, market, price_of_job(run, number, market)),
        ],
        "seed": run.seed,
        "version": __version__,
        "inputs_sha256": dict(inputs),
        "inputs": values_of(run, number),
    }


def _of_another_job(note: str, number: int) -> bool:
    """Return whether *note* is about one job of several, and that is not job *number*."""
    place, _, _ = note.partition(": ")
    return place.startswith("jobs.") and place != f"jobs.{number}"


def _utilization(run: Run, number: int) -> float | None:
    """Return the model FLOPs utilization of job *number*, relative to the 16-bit peak of its GPUs."""
    job = run.jobs[number]
    lent = [(slot.node.gpu, slot.count * len(gpus)) for slot in run.cluster for each, gpus in slot.lent_gpus if each == number]
    return model_flops_utilization(job.job.workload.model.layers, job.throughput, lent)


def job_settings(job: Job) -> dict[str, Any]:
    """Return what *job* is: workload, stack, GPUs, batch and precision."""
    training = job.workload.training
    micro_batches = training.gradient_accumulation_steps
    return {
        "workload": job.workload.name,
        "stack": training.stack.name,
        "nodes": len(job.placement),
        "gpus": job.ranks,
        "batch_per_gpu": training.batch,
        **({"batches_per_gpu": list(training.batches)} if training.batches else {}),
        **({"micro_batches": micro_batches} if micro_batches > 1 else {}),
        "global_batch": job.samples,
        "precision": training.precision,
    }


def run_figures(run: Run, number: int = 0, market: Market = "on_demand") -> dict[str, Any]:
    """Return the figures of one job: the first part of its document, and all that a table of many runs shows."""
    job = run.jobs[number]
    workload = job.job.workload
    price = price_of_job(run, number, market)
    tokens = workload.tokens_per_sample
    figures = {
        "schema": SCHEMA,
        "hardware": run.hardware.name,
        **job_settings(job.job),
        "step_time_s": job.warm.step_time,
        "throughput_samples_per_s": job.throughput,
        **({} if tokens is None else {"tokens_per_s": job.throughput * tokens}),
        **({} if workload.model.transformer is None else {"model_flops_utilization": _utilization(run, number)}),
        "epoch_time_s": job.warm.time,
        "cost_per_epoch_usd": None if price is None else price * job.warm.time,
        "price": _rate(run, price, market),
        "stalls_s": _stalls(job.warm),
        **worker_figures(run, number),
        **network_figures(run.hardware, len(job.job.placement)),
        "first_epoch": {
            "step_time_s": job.first.step_time,
            "epoch_time_s": job.first.time,
            "stalls_s": _stalls(job.first),
            "cost_usd": None if price is None else price * job.first.time,
        },
        "gpu_memory_bytes": fullest_memory(run, number).by_use(),
    }
    used, everyone = gpus_by_node(run)
    return with_energy(figures, run.hardware, workload, used[number], everyone)


def freed_figures(run: Run, number: int, bottleneck: Bottleneck | None) -> dict[str, Any]:
    """Return the verdict on a job, its step time (s) with each resource it waits for infinitely fast, and the step time's uncertainty."""
    return {
        "step_time_spread_s": list(bottleneck.spread) if bottleneck and bottleneck.phases else None,
        "step_time_half_width_s": run.jobs[number].warm.interval,
        "verdict": verdict(run, number, bottleneck),
        "tied_resources": list(bottleneck.tied) if bottleneck and bottleneck.tied else None,
        "tied_doubled_step_time_s": bottleneck.doubled_time if bottleneck else None,
        "freed_step_time_s": dict(bottleneck.freed_times) if bottleneck else None,
        "without_buffer_broadcast_step_time_s": bottleneck.without_broadcast if bottleneck else None,
    }


def _rate(run: Run, price: float | None, market: Market) -> dict[str, Any]:
    """Return the price a job pays per hour, with its market, date, region and source."""
    prices = run.hardware.first_workers.price
    return {
        "market": market,
        "usd_per_h": None if price is None else 3600 * price,
        "date": None if prices is None else date_of(prices, market),
        "region": (prices.region or None) if prices else None,
        "source": None if prices is None else source_of(prices, market),
    }


def _charged(run: Run, number: int) -> list[str]:
    """Return how costs are charged, if the job does not simply pay for the whole machine."""
    sentences = []
    own_gpus, total = run.jobs[number].job.ranks, sum(job.job.ranks for job in run.jobs)
    if len(run.jobs) > 1:
        sentences.append(
            f"jobs share the price and the power of a node in proportion to their GPUs on it: this job has {own_gpus:,} of the {total:,} "
            "GPUs in use"
        )
    workers = sum(group.count for group in run.hardware.worker_groups)
    idle = workers - len({part.node for job in run.jobs for part in job.job.placement})
    if idle:
        sentences.append(f"{pluralized(idle, 'node')} without a job {'are' if idle > 1 else 'is'} not paid for")
    return sentences


def run_credits_end(run: Run, number: int = 0) -> list[str]:
    """Return a warning if job *number* of *run* slows noticeably once the disk's burst credits run out."""
    return credits_end(burst_credits_end(run, number), run.jobs[number].warm.step_time)


def credits_end(end: Mapping[str, Any] | None, now: float) -> list[str]:
    """Return a warning if steps of *now* seconds change noticeably at *end*, as in `burst_credits_end`."""
    if end is None or abs(end["step_time_s"] - now) < 0.01 * now:
        return []
    later, when = show(end["step_time_s"], "time"), f"epoch {end['epoch']}" if end["epoch"] > 2 else "epoch 2, the warm one"
    return [f"burst credits of the disk run out in {when}; from then on a step takes {later} instead of {show(now, 'time')}"]


def burst_credits_end(run: Run, number: int = 0) -> dict[str, Any] | None:
    """Return the epoch from which the disk has no burst credits left, and the step and epoch times then; None if the credits last."""
    end, warm = run.credits_end, run.jobs[number].warm
    if end is None:
        return None
    later = end.step_times[number]
    return {"epoch": end.epoch, "step_time_s": later, "epoch_time_s": warm.time + warm.steps * (later - warm.step_time)}


def _stalls(epoch: Epoch) -> dict[str, float]:
    return {cause.value: epoch.stalls[cause] for cause in STALLS}


def collective(run: Run, number: int) -> dict[str, Any] | None:
    """Return how gradients are exchanged: algorithm, protocol, channels, and the bus bandwidth of one all-reduce of all gradients."""
    plan = run.rings[number]
    if plan is None:
        return None
    workload = run.jobs[number].job.workload
    nbytes = gradient_volume(workload)
    if isinstance(plan, ServerPlan):
        time, bottleneck = plan.uncontended_time()
        return {
            "algorithm": workload.training.stack.exchange.strategy,
            "protocol": None,
            "channels": None,
            "busbw_bytes_per_s": 2 * nbytes / time,  # of one worker: push and pull
            "bottleneck": bottleneck,
        }
    cost = plan.cost(nbytes)
    moved = 2 * (plan.ranks - 1) / plan.ranks * nbytes
    return {
        "algorithm": cost.algorithm,
        "protocol": cost.protocol,
        "channels": cost.channels,
        "busbw_bytes_per_s": moved / cost.uncontended_time,
        "bottleneck": cost.bottleneck,
    }


def placement_text(placement: Sequence[Placement]) -> str:
    """Return *placement* as text, as in ``nodes 0..1+4, GPUs 0..3; node 5, GPU 6``: nodes by the GPUs used on them."""
    nodes_of: dict[tuple[int, ...], list[int]] = {}
    for part in placement:
        nodes_of.setdefault(tuple(sorted(part.gpus)), []).append(part.node)
    return "; ".join(f"{_numbers('node', nodes)}, {_numbers('GPU', gpus)}" for gpus, nodes in nodes_of.items())


def _numbers(what: str, numbers: Sequence[int]) -> str:
    """Return sorted *numbers* as text, with consecutive ones combined into ranges."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in spans]
    if len(texts) > _MOST_RANGES:
        texts = [*texts[:2], f"... {texts[-1]} ({len(numbers)} in all)"]
    return f"{what}{'s' * (len(numbers) > 1)} {'+'.join(texts)}"
