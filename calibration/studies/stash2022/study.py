"""What does Stash's characterisation of Amazon's P2 and P3 instances look like here? Its models, batches and machines, run by run.

Stash (arXiv 2208.14344) profiles training with RUN0 to RUN3 (`sim.study.profile`) on each instance, and RUN1 on two networked instances
against one with as many GPUs. Here: the lists of its code, its stack (apex, one all-reduce per gradient tensor, AMP O1, so gradients
of 32 bits), DALI decoding on the GPU; for BERT torch's DDP and a loader on the CPU; and three cuts of p3.8xlarge, as nobody knows which
one Amazon lent. The micro study trains networks of one family that differ in layers and gradients, at a batch of 32. Nothing is fitted
to what Stash found.

Limits: the paper's tables are not public, so only its abstract can be compared with; of data sets ImageNet-1k and SQuAD; prices of
today, which for these instances are those in Stash's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sim.analysis import differential
from sim.analysis.cost import price
from sim.analysis.differential import RunTimes
from sim.simulate import Run
from sim.spec.workload import Model
from sim.spec.yaml import SpecError
from sim.study.descriptions import Descriptions, descriptions
from sim.study.pool import each
from sim.study.profile import Runs, one_gpu_run, runs, synthetic_run
from sim.study.scenario import Scenario

SMALL = ("alexnet", "resnet18", "shufflenet_v2_x0_5", "mobilenet_v2", "squeezenet1_0")
LARGE = ("resnet50", "vgg11")
BERT = "bert-large-seq384"
MICRO = (
    *(f"resnet{layers}" for layers in (10, 12, 16, 18, 34, 50, 101, 152)),
    *(f"vgg{layers}" for layers in (11, 13, 16, 19)),
    *(f"resnet{layers}_nobn" for layers in (10, 12, 16, 18, 34, 50, 101, 152)),
    *(f"resnet{layers}_noresidue" for layers in (10, 12, 16, 18, 34)),
)
MICRO_BATCH = 32
STACK = "apex-per-tensor"
BERT_STACK = "torch-1.13-ddp"
"""Models, batches and stacks: aakash-sharma/DS-Analyzer, run scripts and analyze.py; bottleneck blocks keep their residuals there."""


@dataclass(frozen=True)
class InstanceFamily:
    """One generation of instances, and what Stash trained on it."""

    name: str
    machines: Mapping[str, int]
    """Machines by name, and the processor threads that each GPU's loader gets (``-j`` of the run scripts)."""
    twins: Mapping[str, str]
    """Machine, and the two networked instances of as many GPUs."""
    batches: Mapping[str, tuple[int, ...]]
    """Samples per GPU, by model."""


P2 = InstanceFamily(
    "P2",
    {"p2.xlarge": 2, "p2.8xlarge": 16, "p2.16xlarge": 32, "2x-p2.8xlarge": 16},
    {"p2.16xlarge": "2x-p2.8xlarge"},
    dict.fromkeys(SMALL, (32, 64, 96, 128)),
)
P3 = InstanceFamily(
    "P3",
    {
        "p3.2xlarge": 4, "p3.8xlarge": 16, "p3.8xlarge-mixed-quad": 16, "p3.8xlarge-two-islands": 16, "p3.16xlarge": 32,
        "2x-p3.8xlarge": 16,
    },
    {"p3.16xlarge": "2x-p3.8xlarge"},
    dict.fromkeys(SMALL, (32, 64, 128, 256)) | dict.fromkeys(LARGE, (32, 48, 64, 80)) | {BERT: (4,)},
)  # fmt: skip
FAMILIES = (P2, P3)
SLICES = ("p3.8xlarge-mixed-quad", "p3.8xlarge-two-islands")
"""Cuts of p3.8xlarge that would be worse than a whole quad of its NVLink mesh."""


@dataclass(frozen=True)
class StashCase:
    """One model and batch per GPU on one machine, as Stash trained it."""

    machine: str
    model: str
    batch: int
    threads: int

    @property
    def scenario(self) -> Scenario:
        """Return the run as a user would name it."""
        if self.model == BERT:
            return Scenario(self.machine, self.model, batch=self.batch, precision="amp_fp16", stack=BERT_STACK)
        loader = ("input.loader=dali_gpu", f"input.num_threads={self.threads}")
        return Scenario(self.machine, self.model, loader, batch=self.batch, precision="amp_fp16", stack=STACK)


@dataclass(frozen=True)
class StashRow:
    """What Stash's procedure measures of one case."""

    case: StashCase
    gpus: int
    nodes: int
    steps: int
    """Of an epoch."""
    times: RunTimes
    price: float
    """USD/s of all nodes."""
    tensors: int
    """Gradient tensors: all-reduces of a step beside the scalars."""
    gradient_bytes: float

    @property
    def interconnect(self) -> float:
        """Return the share of RUN1 that exchanging gradients adds, on two nodes the network too."""
        return differential.interconnect(self.times).share

    @property
    def network(self) -> float | None:
        """Return how many times as long a step takes on two networked instances; None without a twin."""
        return None if self.times.twin is None else self.times.twin / self.times.synthetic

    @property
    def communication(self) -> float:
        """Return the seconds of a step that exchanging gradients adds: RUN1 - RUN0."""
        return (self.times.synthetic - self.times.one_gpu) / self.steps

    @property
    def cost(self) -> float:
        """Return USD of a warm epoch."""
        return self.price * self.times.warm


@dataclass(frozen=True)
class Crossing:
    """The batch at which a model crosses a threshold on a machine; None where no batch that fits does."""

    model: str
    machine: str
    batch: int | None


@dataclass(frozen=True)
class StashStudy:
    """All of it."""

    rows: tuple[StashRow, ...]
    left_out: tuple[str, ...]
    """Cases that cannot run, and why."""
    micro: tuple[StashRow, ...]
    """Models of the micro study on the 8 GPUs of P3; RUN2 and RUN3 stand for RUN1, as it uses synthetic data."""
    stalled: tuple[Crossing, ...]
    """For each P3 model the largest batch that loses `STALLED` of RUN1 to the interconnect, on the machine where it loses most."""
    slowed: tuple[Crossing, ...]
    """For each P3 model the least batch at which the network slows training at most `SLOWED` times."""

    def on(self, machine: str) -> list[StashRow]:
        """Return the rows of one machine."""
        return [row for row in self.rows if row.case.machine == machine]


def read_for(study: StashStudy) -> Descriptions:
    """Return the machines and workloads of *study*."""
    machines = {row.case.machine: row.case for row in (*study.rows, *study.micro)}
    models = {row.case.model: row.case for row in (*study.rows, *study.micro)}
    hardware = [descriptions(case.scenario).hardware[0] for case in machines.values()]
    return Descriptions(hardware, [descriptions(case.scenario).workloads[0] for case in models.values()])


STALLED = 0.8
"""Least peak that passes for the abstract's "up to 90% of DNN training time"."""
SLOWED = 5.0
"""The abstract's "up to 5x slowdown"."""
_MOST = 512
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


def stash2022(processes: int | None = None, progress: Callable[[int, int], None] | None = None) -> StashStudy:
    """Run the whole study on *processes* processes; *progress* hears how many runs of all are done."""
    main = cases(FAMILIES)
    micro = [StashCase(machine, model, MICRO_BATCH, threads) for model in MICRO for machine, threads in _micro_machines().items()]
    tasks = [*(partial(_measured, case) for case in main), *(partial(_synthetic, case) for case in micro)]
    outcomes: list[StashRow | str] = []
    searches = 2 * len(P3.batches)
    for outcome in each(_call, tasks, processes):
        outcomes.append(outcome)
        _tell(progress, len(outcomes), len(tasks) + searches)
    main_rows = _with_twins([row for row in outcomes[: len(main)] if isinstance(row, StashRow)])
    layers = _with_twins([row for row in outcomes[len(main) :] if isinstance(row, StashRow)])
    worst = max((row for row in main_rows if row.nodes == 1), key=lambda row: row.interconnect).case
    questions = [
        *(partial(_last_stalled, worst, model) for model in P3.batches),
        *(partial(_first_bearable, model) for model in P3.batches),
    ]
    crossings: list[Crossing] = []
    for crossing in each(_cross, questions, processes):
        crossings.append(crossing)
        _tell(progress, len(tasks) + len(crossings), len(tasks) + searches)
    left_out = tuple(problem for problem in outcomes if isinstance(problem, str))
    return StashStudy(tuple(main_rows), left_out, tuple(layers), tuple(crossings[: len(P3.batches)]), tuple(crossings[len(P3.batches) :]))


def _tell(progress: Callable[[int, int], None] | None, done: int, of: int) -> None:
    if progress is not None:
        progress(done, of)


def _micro_machines() -> dict[str, int]:
    return {name: P3.machines[name] for pair in P3.twins.items() for name in pair}


def _call(task: Callable[[], StashRow | str]) -> StashRow | str:
    return task()


def _cross(question: Callable[[], Crossing]) -> Crossing:
    return question()


# --- one case --------------------------------------------------------------------------------------------------------


def _measured(case: StashCase) -> StashRow | str:
    """Return what RUN0 to RUN3 measure of *case*, or why it cannot run."""
    try:
        return _row(case, runs(case.scenario))
    except SpecError as error:
        return str(error)


def _synthetic(case: StashCase) -> StashRow | str:
    """Return what RUN0 and RUN1 measure of *case*."""
    try:
        together = synthetic_run(case.scenario)
        return _row(case, Runs(one_gpu_run(case.scenario), together, together))
    except SpecError as error:
        return str(error)


def _row(case: StashCase, runs: Runs) -> StashRow:
    job = runs.real.jobs[0]
    tensors, nbytes = gradients(job.job.workload.model)
    rate = price(runs.real.hardware) or 0.0
    return StashRow(case, job.job.ranks, len(job.job.placement), job.warm.steps, runs.times(), rate, tensors, nbytes)


def gradients(model: Model) -> tuple[int, float]:
    """Return how many gradient tensors *model* has, and their bytes in 32 bits."""
    sizes = [size for layer in model.layers for size in layer.gradients]
    return len(sizes), 4.0 * sum(sizes)


def _with_twins(rows: Sequence[StashRow]) -> list[StashRow]:
    """Return *rows*, those that have networked twins with their time."""
    twins = {twin: machine for family in FAMILIES for machine, twin in family.twins.items()}
    twin_times = {
        (twins[row.case.machine], row.case.model, row.case.batch): row.times.synthetic for row in rows if row.case.machine in twins
    }
    rows_with_twins = []
    for row in rows:
        twin = twin_times.get((row.case.machine, row.case.model, row.case.batch))
        times = row.times._replace(twin=twin)
        rows_with_twins.append(StashRow(row.case, row.gpus, row.nodes, row.steps, times, row.price, row.tensors, row.gradient_bytes))
    return rows_with_twins


# --- batches that a finding needs ------------------------------------------------------------------------------------


def _last_stalled(worst: StashCase, model: str) -> Crossing:
    """Return the largest batch of *model* that loses `STALLED` on the machine of *worst*: the share falls as the batch grows."""

    def stalls(batch: int) -> bool:
        scenario = StashCase(worst.machine, model, batch, worst.threads).scenario
        return 1.0 - _step(one_gpu_run(scenario)) / _step(synthetic_run(scenario)) >= STALLED

    least = _least_batch(lambda batch: not stalls(batch), _fitting(worst.machine, model))
    return Crossing(model, worst.machine, None if least == 1 else (least or _fitting(worst.machine, model) + 1) - 1)


def _first_bearable(model: str) -> Crossing:
    """Return the least batch of *model* at which the network slows it at most `SLOWED` times: ever less as the batch grows."""
    [(machine, twin)] = P3.twins.items()

    def bearable(batch: int) -> bool:
        one_machine, apart = (StashCase(name, model, batch, P3.machines[name]).scenario for name in (machine, twin))
        return _step(synthetic_run(apart)) <= SLOWED * _step(synthetic_run(one_machine))

    return Crossing(model, twin, _least_batch(bearable, min(_fitting(machine, model), _fitting(twin, model))))


def _least_batch(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the least batch from 1 to *most* for which *holds*, which stays true once it is; None where it never is."""
    if not holds(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _fitting(machine: str, model: str) -> int:
    """Return the largest batch of *model* that fits the GPUs of *machine*, up to the largest that Stash trained."""
    scenario = StashCase(machine, model, 1, 1).scenario
    fitting = synthetic_run(Scenario(machine, model, scenario.overrides, batch="max", precision=scenario.precision, stack=scenario.stack))
    return min(_MOST, fitting.jobs[0].job.workload.training.batch)


def _step(run: Run) -> float:
    return run.jobs[0].warm.step_time
