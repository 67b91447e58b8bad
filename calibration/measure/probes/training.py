"""How long do a model's layers and its training steps take? Hooks around every layer, and whole steps on all ranks.

Layers are timed on one device. Forward hooks run before and after the layer, backward hooks before and after the autograd node that
produced its output. On CUDA each hook records an event in the stream and nothing waits until the pass is done, so launches run ahead of
the device as in a step. Limits: if a layer consists of several autograd nodes (attention), only the backward of the last one is timed; if
the host is slower than the GPU, the time of a layer is the host's. Steps are those of `calibration.measure.ddp_steps`, with gradient
exchange and without.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from calibration.measure.ddp_steps import StepRequest, prepare_model, run_rank
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, JobModel, Probe
from calibration.measure.probes.products import tf32
from calibration.measure.probes.timing import synchronize
from calibration.measure.team import TeamRank

SMALL_MODELS: Final = (
    JobModel("calibration.measure.probes.small_nets:wide", ("3x32x32",), 16),
    JobModel("calibration.measure.probes.small_nets:deep", ("3x32x32",), 16),
)
NETWORKS: Final = {
    "cpu": (("alexnet", 4), ("squeezenet1_0", 4), ("resnet18", 4)),
    "cuda": (("alexnet", 128), ("squeezenet1_0", 64), ("resnet50", 32), ("vgg16", 32)),
}
"""Networks of torchvision with many, few and a medium number of parameters, with a batch for which a step takes at most some tenths of a
second."""
REPETITIONS: Final = 4
STEPS, QUICK_STEPS = 6, 3


def models(bench: Bench) -> Sequence[JobModel]:
    """Return the user's model if specified, else the default ones."""
    if bench.models:
        return bench.models
    if bench.quick or importlib.util.find_spec("torchvision") is None:
        return SMALL_MODELS
    return [JobModel(f"torchvision.models:{name}", ("3x224x224",), batch) for name, batch in NETWORKS[bench.device]]


def step_request(question: AnswerRow, bench: Bench, exchange: bool) -> StepRequest:
    """Return the steps to run for the model of *question*."""
    steps = QUICK_STEPS if bench.quick else STEPS
    inputs, arguments = tuple(question["inputs"]), tuple(question["arguments"])
    request = StepRequest(question["model"], inputs, question["batch"], steps, 2, exchange, arguments=arguments, threads=bench.threads)
    return request if bench.device == "cuda" else replace(request, device="cpu")


def layer_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per model."""
    return [model.question for model in models(bench)]


def layer_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time every layer of one model, forward and backward."""
    import torch

    with warnings.catch_warnings(), tf32(allowed=False):
        warnings.simplefilter("ignore")  # torchvision warns of missing extensions
        model, next_inputs, loss = prepare_model(step_request(question, bench, exchange=False), torch.device(bench.device))
        return layer_times(model, next_inputs, loss, bench.device)


def layer_times(model: Any, next_inputs: Callable[[], Any], loss: Callable[[Any], Any], device: str) -> AnswerRow:
    """Return the times (s) of the passes of each layer and of whole passes, one value per repetition without the first."""
    timer = _LayerWatch(device)
    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    hooks = [hook for name, module in leaves for hook in timer.around(name, module)]
    try:
        for _ in range(REPETITIONS + 1):
            positional, named = next_inputs()
            timer.next_repetition()
            timer.begin("", "whole")
            loss(model(*positional, **named)).backward()
            timer.end("", "whole")
            synchronize(device)
            model.zero_grad(set_to_none=True)
    finally:
        for hook in hooks:
            hook.remove()
    return {"whole_s": timer.times("", "whole"), "layers": [timer.row(name, type(module).__name__) for name, module in leaves]}


def _wall(begin: float, end: float) -> float:
    return end - begin


def _cuda_mark() -> Any:
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _cuda_between(begin: Any, end: Any) -> float:
    return float(begin.elapsed_time(end)) * 1e-3


class _LayerWatch:
    """Records when each layer begins and ends. Times of several calls of a layer in one step are summed."""

    def __init__(self, device: str) -> None:
        on_cuda = device == "cuda"
        self._mark: Callable[[], Any] = _cuda_mark if on_cuda else time.perf_counter
        self._between: Callable[[Any, Any], float] = _cuda_between if on_cuda else _wall
        self._started: dict[tuple[str, str], Any] = {}
        self._repetitions: list[dict[tuple[str, str], list[tuple[Any, Any]]]] = []

    def next_repetition(self) -> None:
        """Begin another repetition."""
        self._repetitions.append(defaultdict(list))

    def around(self, name: str, module: Any) -> list[Any]:
        """Register hooks around the forward pass of *module*, which register those around its backward pass; return their handles."""
        return [
            module.register_forward_pre_hook(lambda *_: self.begin(name, "forward")),
            module.register_forward_hook(lambda _, inputs, output: self._forward_done(name, inputs, output)),
        ]

    def _forward_done(self, name: str, inputs: Any, output: Any) -> None:
        self.end(name, "forward")
        node = getattr(output, "grad_fn", None)
        if node is not None and not any(getattr(tensor, "grad_fn", None) is node for tensor in inputs):
            node.register_prehook(lambda *_: self.begin(name, "backward"))
            node.register_hook(lambda *_: self.end(name, "backward"))

    def row(self, name: str, kind: str) -> AnswerRow:
        """Return the times of one layer. The device must have finished all passes."""
        return {"layer": name, "type": kind} | {f"{way}_s": self.times(name, way) for way in ("forward", "backward")}

    def times(self, name: str, way: str) -> list[float]:
        """Return the times (s) of one layer's passes, without the first repetition."""
        return [sum(self._between(*marks) for marks in repetition[name, way]) for repetition in self._repetitions[1:]]

    def begin(self, name: str, way: str) -> None:
        """Record the begin of a pass."""
        self._started[name, way] = self._mark()

    def end(self, name: str, way: str) -> None:
        """Record the end of a pass."""
        start = self._started.pop((name, way), None)
        if start is not None:
            self._repetitions[-1][name, way].append((start, self._mark()))


def step_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per model without exchange, and one with exchange if there are several ranks."""
    ways = (True, False) if bench.team.ranks > 1 else (False,)
    return [model.question | {"exchange": exchange, "ranks": bench.team.ranks} for model in models(bench) for exchange in ways]


def step_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time whole steps: step times (s) by rank, and processor time (s) per step and rank."""
    by_rank = bench.team.ask(step_task, step_request(question, bench, question["exchange"]))
    return {
        "parameters": by_rank[0].parameters,
        "cpu_s": [one.cpu_time for one in by_rank],
        "times_by_rank_s": [one.times for one in by_rank],
    }


def step_task(rank: TeamRank, request: StepRequest) -> Any:
    """Run the steps of one rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_rank(request)


LAYERS = Probe("layers", "time of each layer of a few models", layer_questions, layer_answer)
STEPS_PROBE = Probe("steps", "training steps of a few models on all ranks, with and without gradient exchange", step_questions, step_answer)
