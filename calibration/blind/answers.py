"""What does this machine's GPU measure for each question? Training steps with their memory and power, and kernel probes."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from calibration.blind.megatron import megatron_step
from calibration.blind.questions import MEGATRON, TITAN, BlindQuestion, BlindTraining, QuestionKind
from calibration.blind.titan import titan_step
from calibration.measure.ddp_steps import StepRequest, run_rank, time_steps
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.attention import attention_answer
from calibration.measure.probes.copies import copy_answer
from calibration.measure.probes.experts import experts_answer
from calibration.measure.probes.loading import loading_answer
from calibration.measure.probes.passes import launch_answer, memory_answer
from calibration.measure.probes.probe import Bench
from calibration.measure.probes.products import convolution_answer, gemm_answer
from calibration.measure.team import SpawnedTeam, TeamRank
from sim.spec.yaml import SpecError
from sim.study.pool import cores

STEP_SECONDS: Final = 1.5
TRAINING_LIMIT: Final = 600.0
"""Time (s) after which a training run counts as failed: imports, compilation, steps and profile."""
_PROFILED: Final = 3
"""Steps that are profiled for the times of their kernels."""
_PROBES: Final[dict[QuestionKind, Callable[[Bench, AnswerRow], AnswerRow]]] = {
    "product": gemm_answer,
    "convolution": convolution_answer,
    "attention": attention_answer,
    "pass": memory_answer,
    "launch": launch_answer,
    "copy": copy_answer,
    "loader": loading_answer,
    "experts": experts_answer,
}


class KernelTime(NamedTuple):
    """The time of one kernel in a step of a training run."""

    training: str
    precision: str
    batch: int
    kernel: str
    launches: float
    """Launches per step."""
    seconds: float
    """Time of all launches of one step together."""


class TrainingAnswer(NamedTuple):
    """What a training run measured, with a note, and the times of its kernels."""

    measured: dict[QuestionKind, float]
    note: str
    kernels: list[KernelTime]


class QuestionRunner:
    """Answers questions on this machine's GPU, each training run in a fresh process: libraries keep memory and caches of earlier runs."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise SpecError("torch finds no GPU; run --measure on the machine that was predicted")
        self.device = torch.cuda.get_device_name()
        self._bench = Bench("cuda", cores(), cores(), 0.1, Path.cwd(), SpawnedTeam(1, "cuda", cores()))
        self._trained: dict[BlindTraining, TrainingAnswer] = {}
        self.kernels: list[KernelTime] = []
        """Kernel times of the training runs answered so far."""

    def answer(self, question: BlindQuestion) -> tuple[float | None, str]:
        """Return the measured value of *question*, or None, and a note."""
        try:
            if question.training is not None:
                trained = self._training(question.training)
                return trained.measured.get(question.kind), trained.note
            assert question.request is not None
            times = _PROBES[question.kind](self._bench, question.request)["times_s"]
            return statistics.median(times), ""
        except Exception as error:  # a failed question does not stop the others
            return None, f"failed: {_first_line(error)}"

    def _training(self, run: BlindTraining) -> TrainingAnswer:
        if run not in self._trained:
            team = SpawnedTeam(1, "cuda", cores(), limit=TRAINING_LIMIT)
            try:
                (answer,) = team.ask(train, run)
            except SpecError as error:  # a failed training run does not stop the others
                answer = TrainingAnswer({}, f"failed: {_first_line(error)}", [])
            finally:
                team.close()
            self._trained[run] = answer
            self.kernels += answer.kernels
        return self._trained[run]


def train(rank: TeamRank, run: BlindTraining) -> TrainingAnswer:
    """Measure, as a task, step time, peak memory and median power of the steps of *run*, and the times of its kernels."""
    import torch

    measured: dict[QuestionKind, float] = {}
    kernels: list[KernelTime] = []
    note = ""
    with PowerReader() as power:

        def record_memory_and_kernels(step: Callable[[], None]) -> None:
            nonlocal note
            power.end()
            measured["memory"] = float(torch.cuda.max_memory_allocated())
            note = f"reserved {torch.cuda.max_memory_reserved():.4g} B"
            try:
                kernels.extend(_kernel_times(run, step))
            except Exception as error:  # the step time is valid anyway
                note += f"; kernels not profiled: {_first_line(error)}"

        measured["step"], processor = _median_step(run, record_memory_and_kernels)
    if (watts := power.median_power()) is not None:
        measured["power"] = watts
    return TrainingAnswer(measured, f"{note}; processor {processor:.4g} s a step", kernels)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _median_step(run: BlindTraining, afterwards: Callable[[Callable[[], None]], None]) -> tuple[float, float]:
    """Return the median step time of *run* and the processor time of a step (s); *afterwards* gets a function that runs one more step."""
    import torch

    if run.model.startswith((TITAN, MEGATRON)):
        steps, warmup = (6, 5) if run.model.startswith(TITAN) else (4, 3)  # Megatron's have several micro-batches each
        request = StepRequest(run.model, run.inputs, run.batch, steps, warmup, False, "bf16", seconds=STEP_SECONDS)
        step = titan_step(run) if run.model.startswith(TITAN) else megatron_step(run)
        times, processor = time_steps(step, request, torch.device("cuda", torch.cuda.current_device()))
        afterwards(step)
        return statistics.median(times), processor
    assert run.precision != "fp8"
    request = StepRequest(
        run.model, run.inputs, run.batch, 8, 3, False, run.precision, run.arguments, seconds=STEP_SECONDS, optimizer=run.optimizer
    )
    measured = run_rank(request, afterwards=afterwards)
    return measured.median, measured.cpu_time


def _kernel_times(run: BlindTraining, step: Callable[[], None]) -> list[KernelTime]:
    """Return the time of each kernel per step, averaged over a few steps, longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    steps = 1 if run.model.startswith(MEGATRON) else _PROFILED  # of several micro-batches
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kernels: list[Any] = sorted(profiler.key_averages(), key=lambda kernel: -kernel.device_time_total)
    return [
        KernelTime(run.name, run.precision, run.batch, kernel.key, kernel.count / steps, kernel.device_time_total / 1e6 / steps)
        for kernel in kernels
        if kernel.device_time_total > 0
    ]


class PowerReader:
    """Samples the GPU's power from NVML while a block runs."""

    INTERVAL = 0.05

    def __init__(self) -> None:
        self._read: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PowerReader:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        """Stop sampling."""
        self.end()

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        import torch

        while not self._ended.wait(self.INTERVAL):
            try:
                self._read.append(torch.cuda.power_draw() / 1e3)
            except Exception:  # NVML's Python package is missing, or the driver reports nothing
                return

    def median_power(self) -> float | None:
        """Return the median power (W) over the last second of sampling; None if nothing was read."""
        last = self._read[-round(1.0 / self.INTERVAL) :]
        return statistics.median(last) if last else None
