"""What does Stash's characterization of Amazon's P2 and P3 instances give in simulation? The same models, batches, machines and runs.

Stash (arXiv 2208.14344) profiles training with RUN0 to RUN3 (`sim.study.profile`) on each instance. It also compares RUN1 on two networked
instances with RUN1 on one instance with the same number of GPUs. This study uses the models and batches of Stash's code, its software stack
(apex, one all-reduce per gradient tensor, AMP O1, so 32-bit gradients) and DALI decoding on the GPU; for BERT, torch's DDP and a loader on
the CPU. It includes three slices of p3.8xlarge, because it is unknown which one Amazon allocated. The micro study trains variants of
networks that differ in layers and gradients, at a batch of 32. Nothing is fitted to Stash's results.

Limits: the paper's tables are not public, so results can be compared only with its abstract; the only data sets are ImageNet-1k and SQuAD;
prices are current ones, which for these instances equal those in Stash's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from sim.analysis import differential
from sim.analysis.cost import price
from sim.analysis.differential import RunTimes
from sim.simulate import Run
from sim.spec.model import Model
from sim.spec.yaml import SpecError
from sim.study.descriptions import Descriptions, descriptions
from sim.study.pool import Progress, each
from sim.study.profile import Runs, one_gpu_run, runs, synthetic_run
from sim.study.scenario import Scenario

Computed = TypeVar("Computed")

SMALL_MODELS = ("alexnet", "resnet18", "shufflenet_v2_x0_5", "mobilenet_v2", "squeezenet1_0")
LARGE_MODELS = ("resnet50", "vgg11")
BERT = "bert-large-seq384"
MICRO_MODELS = (
    *(f"resnet{layers}" for layers in (10, 12, 16, 18, 34, 50, 101, 152)),
    *(f"vgg{layers}" for layers in (11, 13, 16, 19)),
    *(f"resnet{layers}_nobn" for layers in (10, 12, 16, 18, 34, 50, 101, 152)),
    *(f"resnet{layers}_noresidue" for layers in (10, 12, 16, 18, 34)),
)
MICRO_BATCH = 32
STACK = "apex-per-tensor"
BERT_STACK = "torch-1.12-ddp"
"""Models, batches and stacks are from aakash-sharma/DS-Analyzer, run scripts and analyze.py. In its variants without residuals, bottleneck
blocks keep theirs."""


@dataclass(frozen=True)
class InstanceFamily:
    """One generation of instances, with the models that Stash trained on it."""

    name: str
    machines: Mapping[str, int]
    """Processor threads of each GPU's loader (``-j`` of the run scripts), by machine."""
    twins: Mapping[str, str]
    """Two networked instances with the same total number of GPUs, by machine."""
    batches: Mapping[str, tuple[int, ...]]
    """Samples per GPU, by model."""


P2 = InstanceFamily(
    "P2",
    {"p2.xlarge": 2, "p2.8xlarge": 16, "p2.16xlarge": 32, "2x-p2.8xlarge": 16},
    {"p2.16xlarge": "2x-p2.8xlarge"},
    dict.fromkeys(SMALL_MODELS, (32, 64, 96, 128)),
)
P3 = InstanceFamily(
    "P3",
    {
        "p3.2xlarge": 4, "p3.8xlarge": 16, "p3.8xlarge-mixed-quad": 16, "p3.8xlarge-two-islands": 16, "p3.16xlarge": 32,
        "2x-p3.8xlarge": 16,
    },
    {"p3.16xlarge": "2x-p3.8xlarge"},
    dict.fromkeys(SMALL_MODELS, (32, 64, 128, 256)) | dict.fromkeys(LARGE_MODELS, (32, 48, 64, 80)) | {BERT: (4,)},
)  # fmt: skip
FAMILIES = (P2, P3)
SLICES = ("p3.8xlarge-mixed-quad", "p3.8xlarge-two-islands")
"""Hypothetical slices for p3.8xlarge with worse links than a complete quad of the NVLink mesh."""


@dataclass(frozen=True)
class StashCase:
    """One model with one batch per GPU on one machine, as Stash trained it."""

    machine: str
    model: str
    batch: int
    threads: int

    @property
    def scenario(self) -> Scenario:
        """Return the scenario to simulate."""
        if self.model == BERT:
            return Scenario(self.machine, self.model, batch=self.batch, precision="amp_fp16", stack=BERT_STACK)
        loader = ("input.loader=dali_gpu", f"input.num_threads={self.threads}")
        return Scenario(self.machine, self.model, loader, batch=self.batch, precision="amp_fp16", stack=STACK)


@dataclass(frozen=True)
class StashRow:
    """The results of Stash's procedure for one case."""

    case: StashCase
    gpus: int
    nodes: int
    steps: int
    """Steps per epoch."""
    times: RunTimes
    price: float
    """Price of all nodes in USD/s."""
    tensors: int
    """Gradient tensors: the number of all-reduces per step, without those of scalars."""
    gradient_bytes: float

    @property
    def interconnect(self) -> float:
        """Return the share of RUN1 that the gradient exchange adds; on two nodes this includes the network."""
        return differential.interconnect_stall(self.times).share

    @property
    def network(self) -> float | None:
        """Return the step time on two networked instances over that on this machine; None without a twin."""
        return None if self.times.twin is None else self.times.twin / self.times.synthetic

    @property
    def communication(self) -> float:
        """Return the time (s) that the gradient exchange adds to a step: RUN1 - RUN0."""
        return (self.times.synthetic - self.times.one_gpu) / self.steps

    @property
    def cost(self) -> float:
        """Return the cost of a warm epoch in USD."""
        return self.price * self.times.warm


@dataclass(frozen=True)
class Crossing:
    """The batch at which a model crosses a threshold on a machine; None if it does so at no batch that fits."""

    model: str
    machine: str
    batch: int | None


@dataclass(frozen=True)
class StashStudy:
    """All results of the study."""

    rows: tuple[StashRow, ...]
    skipped_cases: tuple[str, ...]
    """Cases that cannot run, and why."""
    micro: tuple[StashRow, ...]
    """Networks of the micro study on 8 GPUs of P3; they use synthetic data only, so their times of RUN2 and RUN3 equal RUN1."""
    stall_crossings: tuple[Crossing, ...]
    """Largest batch of each P3 model that loses `STALL_THRESHOLD` of RUN1 to the interconnect, on the machine with the worst stall."""
    slowdown_crossings: tuple[Crossing, ...]
    """Least batch of each P3 model at which the network slows training by at most a factor of `SLOWDOWN_THRESHOLD`."""

    def rows_on(self, machine: str) -> list[StashRow]:
        """Return the rows of one machine."""
        return [row for row in self.rows if row.case.machine == machine]


def study_inputs(study: StashStudy) -> Descriptions:
    """Return the machines and workloads of *study*."""
    machines = {row.case.machine: row.case for row in (*study.rows, *study.micro)}
    models = {row.case.model: row.case for row in (*study.rows, *study.micro)}
    hardware = [descriptions(case.scenario).hardware[0] for case in machines.values()]
    return Descriptions(hardware, [descriptions(case.scenario).workloads[0] for case in models.values()])


STALL_THRESHOLD = 0.8
"""Least peak that counts as the abstract's "up to 90% of DNN training time"."""
SLOWDOWN_THRESHOLD = 5.0
"""The abstract's "up to 5x slowdown"."""
_MOST_SAMPLES = 512
"""Largest batch of the run scripts."""


def cases(families: Sequence[InstanceFamily]) -> list[StashCase]:
    """Return every case of *families*."""
    return [
        StashCase(machine, model, batch, threads)
        for family in families
        for model, batches in family.batches.items()
        for batch in batches
        for machine, threads in family.machines.items()
    ]


def stash2022(processes: int | None = None, progress: Progress | None = None) -> StashStudy:
    """Run the whole study on *processes* processes; *progress* is called with the number of finished tasks and of all tasks."""
    main = cases(FAMILIES)
    micro = [StashCase(machine, model, MICRO_BATCH, threads) for model in MICRO_MODELS for machine, threads in _micro_machines().items()]
    tasks = [*(partial(_run_case, case) for case in main), *(partial(_run_synthetic_case, case) for case in micro)]
    outcomes: list[StashRow | str] = []
    search_count = 2 * len(P3.batches)
    for outcome in each(_call, tasks, processes):
        outcomes.append(outcome)
        _report_progress(progress, len(outcomes), len(tasks) + search_count)
    main_rows = _with_twins([row for row in outcomes[: len(main)] if isinstance(row, StashRow)])
    micro_rows = _with_twins([row for row in outcomes[len(main) :] if isinstance(row, StashRow)])
    worst = max((row for row in main_rows if row.nodes == 1), key=lambda row: row.interconnect).case
    searches = [
        *(partial(_last_stalled_batch, worst, model) for model in P3.batches),
        *(partial(_first_bearable_batch, model) for model in P3.batches),
    ]
    crossings: list[Crossing] = []
    for crossing in each(_call, searches, processes):
        crossings.append(crossing)
        _report_progress(progress, len(tasks) + len(crossings), len(tasks) + search_count)
    skipped = tuple(problem for problem in outcomes if isinstance(problem, str))
    return StashStudy(
        tuple(main_rows), skipped, tuple(micro_rows), tuple(crossings[: len(P3.batches)]), tuple(crossings[len(P3.batches) :])
    )


def _report_progress(progress: Progress | None, done: int, of: int) -> None:
    if progress is not None:
        progress(done, of)


def _micro_machines() -> dict[str, int]:
    return {name: P3.machines[name] for pair in P3.twins.items() for name in pair}


def _call(task: Callable[[], Computed]) -> Computed:
    return task()


# --- one case --------------------------------------------------------------------------------------------------------


def _run_case(case: StashCase) -> StashRow | str:
    """Return the results of RUN0 to RUN3 for *case*, or why it cannot run."""
    try:
        return _row(case, runs(case.scenario))
    except SpecError as error:
        return str(error)


def _run_synthetic_case(case: StashCase) -> StashRow | str:
    """Return the results of RUN0 and RUN1 for *case*, or why it cannot run."""
    try:
        synthetic = synthetic_run(case.scenario)
        return _row(case, Runs(one_gpu_run(case.scenario), synthetic, synthetic))
    except SpecError as error:
        return str(error)


def _row(case: StashCase, runs: Runs) -> StashRow:
    job = runs.real.jobs[0]
    tensors, nbytes = gradients(job.job.workload.model)
    rate = price(runs.real.hardware) or 0.0
    return StashRow(case, job.job.ranks, len(job.job.placement), job.warm.steps, runs.times(), rate, tensors, nbytes)


def gradients(model: Model) -> tuple[int, float]:
    """Return the number of gradient tensors of *model*, and their size in bytes with 32 bits per element."""
    sizes = [size for layer in model.layers for size in layer.gradients]
    return len(sizes), 4.0 * sum(sizes)


def _with_twins(rows: Sequence[StashRow]) -> list[StashRow]:
    """Return *rows* with the times of networked twins filled in."""
    twins = {twin: machine for family in FAMILIES for machine, twin in family.twins.items()}
    twin_times = {
        (twins[row.case.machine], row.case.model, row.case.batch): row.times.synthetic for row in rows if row.case.machine in twins
    }
    rows_with_twins = []
    for row in rows:
        twin = twin_times.get((row.case.machine, row.case.model, row.case.batch))
        rows_with_twins.append(replace(row, times=row.times._replace(twin=twin)))
    return rows_with_twins


# --- batches that a finding needs ------------------------------------------------------------------------------------


def _last_stalled_batch(worst: StashCase, model: str) -> Crossing:
    """Return the largest batch of *model* that stalls for `STALL_THRESHOLD` on the machine of *worst*; stalls fall with the batch."""

    def stalls(batch: int) -> bool:
        scenario = StashCase(worst.machine, model, batch, worst.threads).scenario
        return 1.0 - _step(one_gpu_run(scenario)) / _step(synthetic_run(scenario)) >= STALL_THRESHOLD

    least = _least_batch(lambda batch: not stalls(batch), _largest_batch(worst.machine, model))
    return Crossing(model, worst.machine, None if least == 1 else (least or _largest_batch(worst.machine, model) + 1) - 1)


def _first_bearable_batch(model: str) -> Crossing:
    """Return the least batch of *model* that the network slows by at most `SLOWDOWN_THRESHOLD`; slowdowns fall with the batch."""
    [(machine, twin)] = P3.twins.items()

    def bearable(batch: int) -> bool:
        one_machine, two_machines = (StashCase(name, model, batch, P3.machines[name]).scenario for name in (machine, twin))
        return _step(synthetic_run(two_machines)) <= SLOWDOWN_THRESHOLD * _step(synthetic_run(one_machine))

    return Crossing(model, twin, _least_batch(bearable, min(_largest_batch(machine, model), _largest_batch(twin, model))))


def _least_batch(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the least batch from 1 to *most* for which *holds* is true; None if there is none. *holds* must be monotonic."""
    if not holds(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _largest_batch(machine: str, model: str) -> int:
    """Return the largest batch of *model* that fits on the GPUs of *machine*, up to the largest one of Stash."""
    scenario = StashCase(machine, model, 1, 1).scenario
    fitting = synthetic_run(Scenario(machine, model, scenario.overrides, batch="max", precision=scenario.precision, stack=scenario.stack))
    return min(_MOST_SAMPLES, fitting.jobs[0].job.workload.training.batch)


def _step(run: Run) -> float:
    return run.jobs[0].warm.step_time
