"""What does the GPU of this machine answer to each question? Steps with their memory and power, and the probes of kernels."""

from __future__ import annotations

import gc
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from calibration.blind.questions import BlindQuestion, BlindTraining, QuestionKind
from calibration.measure.ddp_steps import StepsWanted, run_rank
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.attention import attention_answer
from calibration.measure.probes.copies import copy_answer
from calibration.measure.probes.loading import loading_answer
from calibration.measure.probes.passes import launch_answer, memory_answer
from calibration.measure.probes.probe import Bench
from calibration.measure.probes.products import convolution_answer, gemm_answer
from calibration.measure.team import SpawnedTeam
from sim.spec.yaml import SpecError
from sim.study.pool import cores

STEP_SECONDS: Final = 1.5
_PROBES: Final[dict[QuestionKind, Callable[[Bench, AnswerRow], AnswerRow]]] = {
    "product": gemm_answer,
    "convolution": convolution_answer,
    "attention": attention_answer,
    "pass": memory_answer,
    "launch": launch_answer,
    "copy": copy_answer,
    "loader": loading_answer,
}


class QuestionRunner:
    """Answers questions on the GPU of this process."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise SpecError("torch finds no GPU here; --measure needs the machine that was predicted")
        self.device = torch.cuda.get_device_name()
        self._bench = Bench("cuda", cores(), cores(), 0.1, Path.cwd(), SpawnedTeam(1, "cuda", cores()))
        self._trained: dict[BlindTraining, tuple[dict[QuestionKind, float], str]] = {}

    def answer(self, question: BlindQuestion) -> tuple[float | None, str]:
        """Return the measured value of *question*, or None, and a note."""
        try:
            if question.training is not None:
                measured, note = self._training(question.training)
                return measured.get(question.kind), note
            assert question.asked is not None
            times = _PROBES[question.kind](self._bench, question.asked)["times_s"]
            return statistics.median(times), ""
        except Exception as error:  # one question that fails leaves the others
            return None, f"failed: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}"

    def _training(self, run: BlindTraining) -> tuple[dict[QuestionKind, float], str]:
        if run not in self._trained:
            self._trained[run] = trained(run)
        return self._trained[run]


def trained(run: BlindTraining) -> tuple[dict[QuestionKind, float], str]:
    """Return step time, peak memory and mean power of the steps of *run* on this process's GPU, and a note on what failed."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    wanted = StepsWanted(
        run.model, run.inputs, run.batch, 8, 3, False, run.precision, run.arguments, seconds=STEP_SECONDS, optimizer=run.optimizer
    )
    note = ""
    measured: dict[QuestionKind, float] = {}
    with PowerReader() as power:
        try:
            measured["step"] = run_rank(wanted).median
        except SpecError as error:
            note = f"failed: {str(error).splitlines()[0][:100]}"
    if "step" in measured:
        measured["memory"] = float(torch.cuda.max_memory_allocated())
        note = f"reserved {torch.cuda.max_memory_reserved():.4g} B"
        if (watts := power.typical()) is not None:
            measured["power"] = watts
    gc.collect()
    torch.cuda.empty_cache()
    return measured, note


class PowerReader:
    """Reads the GPU's power while a block runs, as NVML gives it."""

    INTERVAL = 0.05

    def __init__(self) -> None:
        self._read: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PowerReader:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        import torch

        while not self._ended.wait(self.INTERVAL):
            try:
                self._read.append(torch.cuda.power_draw() / 1e3)
            except Exception:  # NVML's Python package is missing, or the driver says nothing
                return

    def typical(self) -> float | None:
        """Return the median of the last second, watts, while steps ran; None where nothing was read."""
        last = self._read[-round(1.0 / self.INTERVAL) :]
        return statistics.median(last) if last else None
