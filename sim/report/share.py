"""How is a division of loader workers reported? A line for each job and policy, compared with an even division; also as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim import __version__
from sim.report.picture import Picture, figure, picture
from sim.report.verdict import stack_assumption, volume_assumption
from sim.study.share import PolicyOutcome, SharedMachine
from sim.units import rate_text, show, signed_percent


def share_document(answer: SharedMachine) -> dict[str, Any]:
    """Return the JSON document of *answer*; gains are relative to the first policy, an even division."""
    return {
        "schema": 1, "hardware": answer.hardware, "workers": answer.cores[0], "most_workers": answer.cores[1],
        "policies": [_policy(answer, outcome) for outcome in answer.outcomes],
        "assumptions": _assumed(answer), "warnings": [], "version": __version__, "inputs_sha256": dict(answer.inputs),
    }  # fmt: skip


def _assumed(answer: SharedMachine) -> list[str]:
    workloads = {job.workload.name: job.workload for job in answer.jobs}
    nodes = [group.node for group in answer.machine.worker_groups]
    volumes = [text for workload in workloads.values() for text in volume_assumption(answer.machine, nodes, workload)]
    return [
        *(f"{name}: {stack_assumption(workload)}" for name, workload in workloads.items()),
        *dict.fromkeys(volumes),
        "page caches are warm from the start, and jobs run at their steady-state speed next to the others",
        "workers move to another job immediately when a job starts or ends",
    ]


def _policy(answer: SharedMachine, outcome: PolicyOutcome) -> dict[str, Any]:
    baseline = answer.outcomes[0]
    jobs: list[dict[str, Any]] = [
        {
            "workload": job.workload.name, "gpus": job.ranks, "start_s": answer.arrivals[number], "epochs": answer.epochs[number],
            "workers_per_gpu": outcome.workers[number], "throughput_samples_per_s": outcome.throughput[number],
            "end_s": outcome.done[number], "throughput_gain": outcome.throughput[number] / baseline.throughput[number] - 1,
        }
        for number, job in enumerate(answer.jobs)
    ]  # fmt: skip
    return {
        "policy": outcome.policy,
        "throughput_gain": sum(job["throughput_gain"] for job in jobs) / len(jobs),
        "makespan_s": outcome.makespan,
        "makespan_gain": 1 - outcome.makespan / baseline.makespan,
        "jobs": jobs,
    }


def share_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of *document*, one for each policy and job."""
    return [{"policy": policy["policy"], **job} for policy in document["policies"] for job in policy["jobs"]]


def workers_of(document: Mapping[str, Any]) -> str:
    """Return the number of workers per node as text: one number, or the smallest and the largest."""
    least, most = document["workers"], document["most_workers"]
    return str(least) if least == most else f"{least} to {most}"


def share_text(document: dict[str, Any]) -> str:
    """Return *document* as a table of text."""
    lines = [
        f"{workers_of(document)} loader workers of each node of {document['hardware']} among {len(document['policies'][0]['jobs'])} jobs",
        "",
    ]
    longest = max(len(row["workload"]) for row in share_rows(document))
    lines.append(f"{'policy':13} {'job':{longest}} {'GPUs':>5} {'workers/GPU':>12} {'samples/s':>10} {'gain':>8} {'from':>9} {'to':>9}")
    for policy in document["policies"]:
        lines += [_line(policy["policy"] if not number else "", job, longest) for number, job in enumerate(policy["jobs"])]
        if policy is not document["policies"][0]:
            gains = f"throughput {signed_percent(policy['throughput_gain'])} (mean of jobs)"
            lines.append(f"{'':13} {gains}, makespan {signed_percent(-policy['makespan_gain'])} compared with an even division")
    return "\n".join([*lines, "", *_notes()])


def _line(name: str, job: dict[str, Any], longest: int) -> str:
    rates = f"{rate_text(job['throughput_samples_per_s']):>10} {signed_percent(job['throughput_gain']):>8}"
    times = f"{show(job['start_s'], 'time'):>9} {show(job['end_s'], 'time'):>9}"
    return f"{name:13} {job['workload']:{longest}} {job['gpus']:>5} {job['workers_per_gpu']:>12} {rates} {times}"


def _notes() -> Sequence[str]:
    return (
        "  workers/GPU: while most jobs run; divided again whenever a job starts or ends. samples/s: mean from start to end, warm caches.",
    )


def share_plot(document: Mapping[str, Any]) -> Picture:
    """Return a plot of when each job runs under each policy; a dashed line shows when the last one ends with an even division."""
    policies = document["policies"]
    drawn, axes = figure(len(policies), (9, 1.0 + 0.9 * len(policies) + 0.28 * len(share_rows(dict(document)))))
    longest = max(policy["makespan_s"] for policy in policies) / 60
    for place, policy in zip(axes, policies, strict=True):
        jobs = policy["jobs"]
        for row, job in enumerate(jobs):
            start, end = job["start_s"] / 60, job["end_s"] / 60
            place.barh(row, end - start, left=start, color="#4477aa", height=0.7)
            place.text(start + 0.006 * longest, row, f"{job['workers_per_gpu']} per GPU", color="white", va="center", fontsize=8)
        place.axvline(policies[0]["makespan_s"] / 60, color="black", linestyle="--", linewidth=1)
        place.set_yticks(range(len(jobs)), [job["workload"] for job in jobs], fontsize=8)
        place.set_xlim(0, 1.02 * longest)
        place.invert_yaxis()
        place.set_title(f"{policy['policy']}, throughput {signed_percent(policy['throughput_gain'])}", fontsize=10, loc="left")
        place.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("minutes")
    return picture(drawn)
