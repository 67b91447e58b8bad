"""What is the conclusion of a run in one sentence, what does it assume, and what does it warn of?

With counterfactual runs (`sim.analysis.bottleneck`), the sentence names the resource that would save most if it were infinitely fast,
and what would bound the job then. Without them (``--fast``), it names the largest direct stall.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sim.analysis.bottleneck import SAME, Bottleneck
from sim.analysis.stalls import Blame
from sim.causes import CAUSES, Resource
from sim.check import copied_prices
from sim.cluster.gpu import ALIGNMENT
from sim.epoch import Epoch
from sim.events import Cause
from sim.report.loader_workers import worker_assumptions
from sim.report.nccl_choice import NOTEWORTHY, choice_warnings
from sim.report.replayed import replay_assumptions, replay_warnings
from sim.simulate import JobRun, Run
from sim.spec.hardware import Hardware, Node
from sim.spec.library import SYNTHETIC
from sim.spec.model import Model
from sim.spec.servers import Servers
from sim.spec.stack import AsyncParameterServer, ServerExchange
from sim.spec.workload import Workload
from sim.training.collectives.price.collective_plan import CORES_COPY, OF_BROADCAST
from sim.training.input_pipeline import STORAGE_NETWORK
from sim.units import pluralized, rate_text, show

LONGER_FIRST = 0.1
"""Share by which the first epoch must exceed a warm one to be mentioned."""
_MOMENT = 0.005
"""Smallest dependence on the timing of the loaders that is reported, as a share of the step."""
_LONG_START = 0.25
"""Largest share of a warm epoch spent waiting for its first batch that is not reported."""

_LIMITS: Mapping[Resource, str] = {
    "disk": "the disk limits",
    "cpu": "the CPU limits",
    "decode": "decoding on the GPU limits",
    "copy": "the copy to the GPU limits",
    "nvlink": "NVLink limits",
    "pcie": "PCIe limits",
    "network": "the network limits",
    "launch": "launching kernels limits",
    "spread": "the slowest rank limits",
    "gpu": "the GPUs limit",
}


def verdict(run: Run, number: int = 0, bottleneck: Bottleneck | None = None) -> str:
    """Return what bounds job *number* of *run* and, with *bottleneck*, what would bound it next; also a first epoch that is much longer."""
    job = run.jobs[number]
    sentences = _in_warm_epochs(job, bottleneck) + _unequal(run, number) + _spent_credits(run, job, bottleneck)
    return _of_job(sentences + first_epoch_sentence(job.first.time, job.warm.time), run, number)


def _of_job(text: str, run: Run, number: int) -> str:
    """Return *text* with the keys that it suggests to set as those of job *number*, if *run* has several."""
    return re.sub(r"--set (?=(?:dataset|input|model|training)[.=])", f"--set jobs.{number}.workload.", text) if len(run.jobs) > 1 else text


def _unequal(run: Run, number: int) -> str:
    """Return how long faster GPUs wait for slower ones with equal batches, which no faster resource shortens; empty if not noteworthy."""
    job = run.jobs[number]
    gpus = {node.gpu.name for node in run.nodes(number)}
    waited = job.warm.stalls[Cause.STRAGGLER] / job.warm.step_time
    if len(gpus) < 2 or job.job.workload.training.batches or waited < NOTEWORTHY:
        return ""
    samples = round(job.throughput * job.warm.step_time)
    return (
        f" Unlike GPUs with equal batches wait {100 * waited:.0f}% of the step for the slowest: 'python -m sim batches' with "
        f"--global-batch {samples} divides the samples among them."
    )


def _spent_credits(run: Run, job: JobRun, bottleneck: Bottleneck | None) -> str:
    """Return why a disk limits a job that waits longer for prepared samples: only burst credits let it read as fast as now."""
    stalls = job.warm.stalls
    if bottleneck is None or bottleneck.first != "disk" or not run.credits or stalls[Cause.PREP] <= stalls[Cause.FETCH]:
        return ""
    return " Faster preparation alone would use up the burst credits of the disk."


def first_epoch_sentence(first: float, warm: float) -> str:
    """Return a sentence on the *first* epoch (s) if it is much longer than a *warm* one."""
    return f" First epoch: {show(first, 'time')} instead of {show(warm, 'time')}." if first_is_longer(first, warm) else ""


def first_is_longer(first: float, warm: float) -> bool:
    """Return whether the *first* epoch (s) is so much longer than a *warm* one that the warm one does not describe it."""
    return first > (1 + LONGER_FIRST) * warm


def _in_warm_epochs(job: JobRun, bottleneck: Bottleneck | None) -> str:
    """Return one sentence that names what bounds *job* in warm epochs."""
    if bottleneck is None:
        return _direct(job)
    if _broadcast_first(bottleneck):
        return f"{_broadcast(job)} would save {100 * bottleneck.saved_broadcast:.0f}% of the step."
    first = bottleneck.first
    compute_bound = _compute_bound(job, f"Removing any other bottleneck would save less than {100 * NOTEWORTHY:.0f}%{_next(bottleneck)}")
    if first is None:
        return compute_bound
    if bottleneck.tied:
        return _together(bottleneck, *bottleneck.tied)
    if bottleneck.saved(first) >= NOTEWORTHY:
        return f"{_sentence(first, job, bottleneck)}; {_gain(job, bottleneck, first)}.{_more_workers(job, bottleneck)}"
    if job.warm.stalls[Cause.COMPUTE] < 0.5 * job.warm.step_time:
        return _direct(job)
    return compute_bound


def _together(bottleneck: Bottleneck, first: Resource, second: Resource) -> str:
    """Return the sentence that two resources bound the step together, with the savings from freeing one, freeing both and doubling both."""
    one, other = _subject(first), _subject(second)
    alone = max(bottleneck.saved(resource) for resource in (first, second) if resource in bottleneck.freed_times)
    most = f"under {100 * NOTEWORTHY:.0f}%" if alone < NOTEWORTHY else f"at most {100 * alone:.0f}%"
    doubled = bottleneck.saved_by_doubling
    return (
        f"{one[0].upper()}{one[1:]} and {other} bound the step together: freeing either alone saves {most}, "
        f"both {100 * bottleneck.saved_by_both:.0f}%{'' if doubled is None else f', doubling both {100 * doubled:.0f}%'}."
    )


def _next(bottleneck: Bottleneck) -> str:
    """Return the resource that binds nearly as much as the GPUs of a compute-bound job, and the saving from doubling both."""
    if bottleneck.first is not None or bottleneck.tied is None or bottleneck.saved_by_doubling is None:
        return ""
    _, other = bottleneck.tied
    alone = bottleneck.saved("gpu")  # below zero if other jobs on the node, whose GPUs are faster too, then take more of what they share
    return (
        f"; faster GPUs alone would save {'nothing' if alone < SAME else f'at most {100 * alone:.0f}%'}, because then {_LIMITS[other]}; "
        f"doubling both saves {100 * bottleneck.saved_by_doubling:.0f}%"
    )


def bound_by(run: Run, number: int = 0, bottleneck: Bottleneck | None = None) -> Resource:
    """Return the resource that `verdict` names first."""
    job = run.jobs[number]
    if bottleneck and _broadcast_first(bottleneck):
        return _resource(_broadcasts(job)[0].cause)
    first = bottleneck.first if bottleneck else None
    if bottleneck and first and (bottleneck.saved(first) >= NOTEWORTHY or bottleneck.tied):
        return first
    if bottleneck and (first is None or job.warm.stalls[Cause.COMPUTE] >= 0.5 * job.warm.step_time):
        return "gpu"
    worst = _worst_stall(job)
    return _resource(worst) if job.warm.stalls[worst] >= NOTEWORTHY * job.warm.step_time else "gpu"


def _resource(stall: Cause) -> Resource:
    """Return the resource that is named for a *stall* if no run with freed resources tells which."""
    return CAUSES[stall].blamed[0]


def _broadcast_first(bottleneck: Bottleneck) -> bool:
    """Return whether leaving out the broadcast of buffers saves as much, within a tolerance, as freeing any resource but the GPUs."""
    most = max((bottleneck.saved(resource) for resource in bottleneck.freed_times if resource != "gpu"), default=0.0)
    return bottleneck.saved_broadcast >= max(NOTEWORTHY, most - SAME)


def _broadcasts(job: JobRun) -> list[Blame]:
    """Return the waits for the broadcast of buffers, largest first."""
    return [row for row in job.warm.resources if row.resource.endswith(OF_BROADCAST)]


def _broadcast(job: JobRun) -> str:
    rows = _broadcasts(job)
    waited, latency = show(sum(row.seconds for row in rows), "time"), rows[0].resource.removesuffix(OF_BROADCAST)
    return (
        f"Before each forward the buffers (BatchNorm statistics) are broadcast from GPU to GPU: {waited} per step, {latency} "
        f"over {job.job.ranks:,} GPUs; turning that off (--set training.stack.broadcast_buffers=false)"
    )


def share(seconds: float, job: JobRun) -> str:
    """Return *seconds* as a percentage of the warm step."""
    return f"{100 * seconds / job.warm.step_time:.0f}%"


def _direct(job: JobRun) -> str:
    """Return the sentence for the largest direct stall."""
    stalls, worst = job.warm.stalls, _worst_stall(job)
    if stalls[worst] < NOTEWORTHY * job.warm.step_time:
        return _compute_bound(job, f"No stall reaches {100 * NOTEWORTHY:.0f}%")
    if (waited := sum(row.seconds for row in _broadcasts(job))) > 0.5 * stalls[worst] and worst in (Cause.INTERCONNECT, Cause.NETWORK):
        return f"{_broadcast(job)} saves up to {share(waited, job)} of the step."
    return f"{_sentence(_resource(worst), job)} ({share(stalls[worst], job)} of the step)."


def _worst_stall(job: JobRun) -> Cause:
    stalls = {cause: seconds for cause, seconds in job.warm.stalls.items() if cause is not Cause.COMPUTE}
    return max(stalls, key=lambda cause: stalls[cause])


def _compute_bound(job: JobRun, rest: str) -> str:
    return f"Compute-bound: GPUs are busy {share(job.warm.stalls[Cause.COMPUTE], job)} of each step. {rest}."


def _subject(resource: Resource) -> str:
    """Return *resource* as the subject of a sentence."""
    return _LIMITS[resource].rpartition(" ")[0]


def _the(link: str) -> str:
    """Return the description of a link, with an article if it needs one."""
    return f"the {link}" if link.startswith(("single", "double", "PCIe", "host", "socket")) else link


def _gain(job: JobRun, bottleneck: Bottleneck, first: Resource) -> str:
    """Return the saving from freeing *first*, and what limits the job then."""
    saved = f"freeing it would save {100 * bottleneck.saved(first):.0f}% of the step"
    if bottleneck.next_limit is None or (first, bottleneck.next_limit) == ("cpu", "gpu"):  # `_prep` already names the rate of the GPUs
        return saved
    return f"{saved}, then {_LIMITS[bottleneck.next_limit]} at {_rate(job, bottleneck.freed_times[first])}"


def _more_workers(job: JobRun, bottleneck: Bottleneck) -> str:
    """Return a sentence on the rate with as many loader workers as the GPUs need, if idle cores can run them."""
    if bottleneck.more_workers is None:
        return ""
    workers, step = bottleneck.more_workers
    if bottleneck.step_time - step < NOTEWORTHY * bottleneck.step_time:
        return ""
    option = "num_workers" if job.job.workload.input.loader == "pytorch" else "num_threads"
    return f" Cores are idle: --set input.{option}={workers} gives {_rate(job, step)}."


def _rate(job: JobRun, step_time: float) -> str:
    """Return the throughput of *job* at another step time (s)."""
    return f"{rate_text(job.throughput * job.warm.step_time / step_time)} samples/s"


def _sentence(resource: Resource, job: JobRun, bottleneck: Bottleneck | None = None) -> str:
    """Return how *resource* limits the job; *bottleneck* provides the rate that the GPUs could reach."""
    also = STORAGE_NETWORK if resource == "network" else ""
    rows = job.warm.resources  # largest first
    where = next((row.resource for row in rows if resource in CAUSES[row.cause].blamed or row.resource == also), "")
    if resource in ("cpu", "decode"):
        return _prep(resource, where, job, bottleneck)
    if resource == "disk" or where == STORAGE_NETWORK:
        limit = where or "disk"
        return f"Disk fetch: the {limit}, with {100 * job.hit_ratio:.0f}% of the reads cached, feeds {_rate(job, job.warm.step_time)}"
    copy = f"The copy to the GPU ({show(job.job.workload.training.batch * job.job.workload.dataset.prepared, 'size')} per step)"
    if resource == "copy":
        return f"{copy} is not overlapped"
    if where == "host to device":
        return f"{copy} and gradient exchange wait on PCIe"
    if resource in ("nvlink", "pcie", "network"):
        return f"Gradient exchange waits on {_the(where) or _subject(resource)}"
    if resource == "launch":
        return "The host launches kernels more slowly than the GPU runs them"
    return "Ranks wait for the slowest one"


def _prep(resource: Resource, where: str, job: JobRun, bottleneck: Bottleneck | None) -> str:
    loader, delivered = job.job.workload.input, _rate(job, job.warm.step_time)
    if resource == "cpu" and not where and any(row.resource == CORES_COPY for row in job.warm.resources):
        return f"Gradient exchange waits on {CORES_COPY}"
    if resource == "decode" or where == "GPU decode":
        return f"Prep: decoding on the GPUs during training allows {delivered}"
    threads = loader.num_workers if loader.loader == "pytorch" else loader.num_threads
    what = "worker" if loader.loader == "pytorch" else "DALI thread"
    hands = pluralized(threads * job.job.ranks, what) if threads else "the training processes themselves"
    delivers = "delivers" if threads * job.job.ranks == 1 else "deliver"
    text = f"CPU prep: {hands} {delivers} {delivered}"
    if bottleneck is None:
        return f"{text}, the GPUs could take {_rate(job, job.warm.step_time - job.warm.stalls[Cause.PREP])}"
    if bottleneck.next_limit in ("gpu", None):
        return f"{text}, the GPUs could take {_rate(job, bottleneck.freed_times['cpu'])}"
    return text


def assumptions(run: Run, number: int = 0) -> list[str]:
    """Return what the simulation assumed because the user did not specify it."""
    job = run.jobs[number]
    workload = job.job.workload
    sentences = [stack_assumption(workload), *volume_assumption(run.hardware, run.nodes(number), workload)]
    sentences += machine_notes(run.hardware)
    sentences += kernel_assumptions(run.nodes(number), workload)
    if workload.dataset.name == SYNTHETIC:
        samples = f"{workload.dataset.samples:,} samples per epoch"
        sentences.append(f"synthetic data: nothing is read or prepared, {samples} (--set dataset=NAME, 'python -m sim list datasets')")
    elif workload.input.loader != "synthetic":
        sentences.append(f"{100 * job.hit_ratio:.0f}% of the data set is in the page cache in warm epochs")
    sentences += [*adapter_assumptions(workload.model), *worker_assumptions(run, number)]
    if workload.training.stack.unpadded and (lengths := workload.dataset.lengths) is not None:
        sentences.append(
            f"no padding is computed: the mean sequence of {workload.dataset.name} has {100 * lengths.mean:.0f}% of the maximum length"
        )
    exchange = workload.training.stack.exchange
    if isinstance(exchange, ServerExchange):
        sentences.append(_servers(exchange.servers, isinstance(exchange, AsyncParameterServer)))
    sentences.append("the host waits for the GPU at the end of each step")
    return [_of_job(sentence, run, number) for sentence in sentences]


def adapter_assumptions(model: Model) -> list[str]:
    """Return a sentence on the products of *model* that have adapters, and on routed experts without any; empty if it trains none."""
    if model.lora is None:
        return []
    beside = [target for target in model.lora.targets if any(layer.name.endswith(f".{target}.lora_a") for layer in model.layers)]
    without = "; routed experts have none" if any(layer.groups for layer in model.layers) else ""
    return [f"adapters of rank {model.lora.rank} beside {', '.join(beside)} (model.lora.targets){without}"]


def stack_assumption(workload: Workload) -> str:
    """Return the software stack, precision and batch of *workload* as text."""
    training = workload.training
    return f"software stack {training.stack.name}, {training.precision}, {batches_text(workload)}"


def batches_text(workload: Workload) -> str:
    """Return the number of samples per GPU and step as text."""
    training = workload.training
    own = " and ".join(str(batch) for batch in training.batches)
    return f"{own} samples per GPU, by group" if own else f"{pluralized(training.batch, 'sample')} per GPU"


def kernel_assumptions(nodes: Sequence[Node], workload: Workload) -> list[str]:
    """Return the assumptions about kernel times: rates of unmeasured GPUs of *nodes*, sizes that do not suit the units, scaled times."""
    return [*_unmeasured(nodes, workload), *_unaligned(workload), *replay_assumptions(nodes, workload)]


def _unaligned(workload: Workload) -> list[str]:
    """Return the widths of a transformer in 16 bits or less that are not multiples of what Tensor Cores need."""
    shape = workload.model.transformer
    if shape is None or workload.training.precision in ("fp32", "tf32"):
        return []
    widths = {name: getattr(shape, name) for name in ("hidden", "head_dim", "ffn", "expert_ffn", "vocab")}
    odd = [f"{name} {width:,}" for name, width in widths.items() if width and width % ALIGNMENT]
    if not odd:
        return []
    kind = f"is not a multiple of {ALIGNMENT}" if len(odd) == 1 else f"are not multiples of {ALIGNMENT}"
    return [f"{' and '.join(odd)} {kind}: products are timed as if padded; without padding they take longer (pad the model)"]


def _unmeasured(nodes: Sequence[Node], workload: Workload) -> list[str]:
    """Return the GPUs of *nodes* without measured kernel times by shape; empty if no layer specifies its shape."""
    if not any(layer.tokens or layer.attention for layer in workload.model.layers):
        return []
    bare = dict.fromkeys(node.gpu.name for node in nodes if node.gpu.kernels is not None and not node.gpu.kernels.measured)
    return [f"no kernels were measured on {name}: its rates are estimated from its data sheet and other GPUs" for name in bare]


def machine_notes(hardware: Hardware) -> list[str]:
    """Return the machine's own remark, such as that a tray reaches its rack over NICs, an assumed processor, and notes on its price."""
    return [*([hardware.note.removesuffix(".")] if hardware.note else []), *_assumed_processors(hardware), *_price_notes(hardware)]


def _assumed_processors(hardware: Hardware) -> list[str]:
    """Return a sentence for each processor that stands for one that is not known."""
    several = len(hardware.groups) > 1
    return [
        f"the processor of {hardware.name}{f', group {index},' if several else ''} is not known, so {group.node.host.cpu.name} is assumed "
        f"(--set {f'groups.{index}.' if several else ''}node.host.cpu=NAME, 'python -m sim list cpus')"
        for index, group in enumerate(hardware.groups)
        if group.node.host.cpu.assumed
    ]


def _price_notes(hardware: Hardware) -> list[str]:
    """Return a sentence if a machine has a copy of another's price, or if a provider's machine has none, as with other GPUs."""
    if copied := copied_prices(hardware):
        return copied
    if not hardware.provider or any(group.price and (group.price.on_demand or group.price.spot) for group in hardware.groups):
        return []
    return [f"no price for {hardware.name} as described, so no cost (--set price.on_demand='10 USD/h')"]


def volume_assumption(hardware: Hardware, nodes: Sequence[Node], workload: Workload) -> list[str]:
    """Return the volume that is assumed for *nodes* that come without one; empty if *workload* reads no data."""
    if workload.input.loader == "synthetic" or workload.dataset.name == SYNTHETIC:
        return []
    without = [node for node in nodes if node.storage is not None and node.storage.volume.assumed]
    key = "" if len(hardware.groups) == 1 else "groups.N."
    sentences: dict[str, str] = {}
    for node in without:
        if node.storage is not None:
            volume = node.storage.volume
            what = hardware.name if len(without) == len(nodes) else f"{hardware.name} with {node.gpu.name}"
            text = f"{what} comes without a volume, so one {volume.name} of {show(volume.size, 'binary size')} is assumed"
            sentences.setdefault(text, f"{text} (--set {key}node.storage.volume=...)")
    return list(sentences.values())


def _servers(servers: Servers, asynchronous: bool) -> str:
    shared = (
        "whole variables assigned round-robin" if servers.sharding == "variables" else f"chunks of {show(servers.chunk, 'binary size')}"
    )
    place = "hosts of role server" if servers.placement == "group" else "worker nodes"
    pace = "workers run independently" if asynchronous else "workers run in step"
    return f"{pluralized(servers.count, 'parameter server')} on {place}, {shared}; {pace}; the servers run the optimizer"


def warnings(run: Run, number: int = 0) -> list[str]:
    """Return the reasons why this run's figures are less certain than usual."""
    job = run.jobs[number]
    epochs = {"first": job.first, "warm": job.warm}
    loose = {name: epoch for name, epoch in epochs.items() if not epoch.exact and not epoch.drawn_steps}
    sentences = [
        f"the {name} epoch has no exact period; its figures are means over the simulated steps, {_within(epoch)}"
        for name, epoch in loose.items()
    ]
    if job.warm.drawn_steps:
        sentences.append(_drawn(job.warm, run.seed))
    if (start := job.warm.time - job.warm.steps * job.warm.step_time) > _LONG_START * job.warm.time:
        sentences.append(
            f"a warm epoch has {pluralized(job.warm.steps, 'step')}, and waits {show(start, 'time')} of its "
            f"{show(job.warm.time, 'time')} for the first batch; figures of a step exclude that"
        )
    sentences += replay_warnings(job.job.workload) + choice_warnings(run, number)
    return [_of_job(sentence, run, number) for sentence in sentences]


def moment_warning(bottleneck: Bottleneck) -> list[str]:
    """Return a warning if the step depends noticeably on when in it the loaders work."""
    low, high = bottleneck.spread
    if high - low < _MOMENT * bottleneck.step_time:
        return []
    return [
        f"the step takes {show(low, 'time')} to {show(high, 'time')}, depending on when the loaders copy, pin or decode on the GPU "
        f"({1 + len(bottleneck.phases)} points in the step tried); a batch that is built slightly faster or slower changes it"
    ]


def _drawn(epoch: Epoch, seed: int) -> str:
    """Return a sentence on the uncertainty of the mean of randomly drawn steps."""
    drawn = f"{min(epoch.drawn_steps, epoch.steps):,} of {epoch.steps:,} in the warm epoch"
    return f"steps are drawn at random (seed {seed}): {drawn}, {_within(epoch)}"


def _within(epoch: Epoch) -> str:
    if epoch.interval is None:
        return "too few for an interval"
    percent = 100 * epoch.interval / epoch.step_time
    return f"the 95% interval of the step time is {f'±{percent:.2g}' if percent >= 0.01 else 'below ±0.01'}%"
