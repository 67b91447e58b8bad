"""How long does the whole job take on a machine, from start-up to end? From the document of a run and options to the parts of the job.

Every command that covers whole jobs (``run``, ``compare``, ``recommend``) takes ``--epochs N`` or ``--hours H``, ``--evaluation``
and ``--no-checkpoints`` and goes through here; `sim.analysis.whole_job` adds up the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, Final, NamedTuple

from sim.analysis.saved_state import saved_parts_of, saved_state
from sim.analysis.whole_job import JobPlan, MachinePace, WholeJob, epochs_in, evaluation_share, whole_job
from sim.cluster import page_cache
from sim.cluster.storage import most_bandwidth
from sim.spec.hardware import Hardware
from sim.spec.library import load_part
from sim.spec.pretraining import tokens_in
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.job_length import MOST_TOKENS, require_length
from sim.units import show_tokens


class Course(NamedTuple):
    """A whole job on one machine: how many *epochs*, and the seconds of its *parts*."""

    epochs: float
    parts: WholeJob


def plan_of(
    epochs: float | None, hours: float | None, evaluation: float = 0.0, checkpoints: bool = True, tokens: str | None = None
) -> JobPlan | None:
    """Return the whole job that the options of a command request; None if they request none. Raise SpecError for invalid options."""
    if epochs is None and hours is None and tokens is None:
        if evaluation or not checkpoints:
            given = "--evaluation" if evaluation else "--no-checkpoints"
            raise SpecError(f"{given}: belongs to a whole job; add --epochs, --hours or --tokens as well")
        return None
    return plan_due(epochs, hours, evaluation, checkpoints, tokens)


def plan_due(
    epochs: float | None, hours: float | None, evaluation: float = 0.0, checkpoints: bool = True, tokens: str | None = None
) -> JobPlan:
    """Return the whole job that the options of a command request, one epoch by default. Raise SpecError for invalid options."""
    if tokens is not None:
        if epochs is not None or hours is not None:
            raise SpecError("--tokens, --epochs and --hours: write one of the three")
        return plan_due(None, None, evaluation, checkpoints)._replace(epochs=None, tokens=token_count(tokens))
    if epochs is not None and hours is not None:
        raise SpecError("--epochs and --hours: write one of the two")
    for option, value in (("--epochs", epochs), ("--hours", hours)):
        require_length(option, value)
    if not 0 <= evaluation <= 1:
        raise SpecError(f"--evaluation {evaluation:g}: write a fraction of the training samples from 0 to 1, such as 0.04")
    if hours is not None:
        return JobPlan(None, evaluation, checkpoints, time=3600.0 * hours)
    return JobPlan(1.0 if epochs is None else epochs, evaluation, checkpoints)


def token_count(text: str | float) -> float:
    """Return the number of tokens in *text*, such as ``300B`` or ``1.5T``, or a number. Raise SpecError for anything else."""
    tokens = tokens_in(text) if isinstance(text, str) else tokens_in(f"{text:f}") if type(text) in (int, float) else None
    if tokens is None:
        raise SpecError(f"--tokens {text}: write a number of tokens above 0, such as 300B or 15.6T (K, M, B, T: thousands to trillions)")
    if tokens > MOST_TOKENS:
        raise SpecError(f"--tokens {text}: write {MOST_TOKENS / 1e12:,.0f}T or less")
    return tokens


_FULL: Final = 0.99
"""Share of the final hit ratio from which on an epoch counts as warm (estimate)."""
_MOST_FILLING: Final = 1000
"""Limit of such epochs: caches of hundreds of nodes take longer to fill, but then the first epochs decide the sum."""


def in_epochs(plan: JobPlan, samples: int, workload: Workload) -> JobPlan:
    """Return *plan* with its tokens as epochs of the data set. Raise SpecError if they are fewer than a step of *samples*."""
    if plan.tokens is None:
        return plan
    tokens = workload.tokens_per_sample
    if tokens is None:
        raise SpecError(f"--tokens: {workload.model.name} has no token sequences; write --epochs, or use a model with a transformer")
    if plan.tokens < samples * tokens:
        raise SpecError(
            f"--tokens {show_tokens(plan.tokens)}: one step takes {samples * tokens:,.0f} ({samples} samples of {tokens:,.0f}); write at "
            "least that many"
        )
    return plan._replace(epochs=plan.tokens // tokens / workload.dataset.samples)  # whole sequences


def course(plan: JobPlan, document: Mapping[str, Any], machine: Hardware, workload: Workload) -> Course:
    """Return the job of *plan* on *machine*, given the *document* of its run of *workload*."""
    samples = round(document["throughput_samples_per_s"] * document["step_time_s"])
    plan = in_epochs(plan, samples, workload)
    pace = _pace(plan, document, machine, workload)
    return Course(epochs_in(plan, pace), whole_job(plan, pace))


def _pace(plan: JobPlan, document: Mapping[str, Any], machine: Hardware, workload: Workload) -> MachinePace:
    end, parts, stalls = document.get("burst_credits_end"), document.get("pretraining"), document["stalls_s"]
    first, warm = document["first_epoch"]["epoch_time_s"], document["epoch_time_s"]
    if parts and plan.epochs:  # of steps that change during the job
        first = warm = parts["time_s"] / plan.epochs
    return MachinePace(
        first,
        warm,
        evaluation_share(document["step_time_s"], stalls["compute"], stalls["prep"], workload.input.ahead),
        disk_checkpoint_time(_as_run(document, workload), machine, document["gpus"], document["nodes"]),
        end["epoch"] if end else inf,
        end["epoch_time_s"] if end else 0.0,
        filling_times(document, machine, workload),
    )


def filling_times(document: Mapping[str, Any], machine: Hardware, workload: Workload) -> tuple[float, ...]:
    """Return the seconds of each epoch after the first in which the page caches of several nodes still fill, given the run's *document*.

    Each epoch gives a node samples that only others have read before. Such an epoch takes the first one's time multiplied by
    its share of cache misses, but at least as long as a warm one.
    """
    first, warm, nodes = document["first_epoch"]["epoch_time_s"], document["epoch_time_s"], document["nodes"]
    node, size = machine.first_workers.node, workload.dataset.samples * workload.dataset.sample
    if first <= warm or nodes == 1 or not size:
        return ()
    held = page_cache.cached_fraction(page_cache.capacity(node.host.memory, node.page_cache), size)
    ratio = partial(page_cache.hit_ratio, node.page_cache, held, nodes)
    hits = takewhile(lambda hit: hit < _FULL * ratio(), map(ratio, range(1, _MOST_FILLING)))
    return tuple(takewhile(lambda seconds: seconds > warm, (first * (1.0 - hit) for hit in hits)))


def checkpoint_bytes(workload: Workload) -> float:
    """Return the bytes of one checkpoint, as `sim.analysis.saved_state` counts them."""
    return sum(saved_parts_of(workload).values())


def disk_checkpoint_time(workload: Workload, machine: Hardware, gpus: int = 1, nodes: int = 1) -> float:
    """Return the seconds to write one checkpoint to the disks of the nodes of its writers; 0 without a disk.

    With a layout, the nodes of one replica write their parts; otherwise the first node writes everything.
    """
    storage, saved = machine.first_workers.node.storage, saved_state(workload, gpus, nodes)
    return saved.nbytes * saved.holders.writers_on_node / saved.writers / most_bandwidth(storage) if storage else 0.0


def _as_run(document: Mapping[str, Any], workload: Workload) -> Workload:
    """Return *workload* with the layout and the software stack of the run of *document*, which may have been planned for its machine."""
    if "parallel" not in document:
        return workload
    training, layout = workload.training, {name: value for name, value in document["parallel"].items() if name != "data"}
    same = document["stack"] == training.stack.name
    stack = training.stack if same else load_part(Stack, document["stack"])
    changed = {"parallel": type(training.parallel).model_validate(layout), "stack": stack}
    return workload.with_training(**changed)
