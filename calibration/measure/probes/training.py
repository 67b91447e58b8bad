"""How long do a model's layers and its training steps take? Hooks around every layer, and whole steps on all ranks.

Layers are timed on one device: forward by hooks before and after a layer, backward by hooks before and after the node of the autograd graph
that its output came from. On CUDA each hook records an event in the stream, and nobody waits before the pass has ended, so that launches
run ahead as in a step. Limits: of a layer that is several nodes (attention) only the last one's backward is timed; where the host falls
behind the GPU, a layer's time is the host's. Steps are those of `calibration.measure.ddp_steps`, with gradient exchange and without.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from calibration.measure.ddp_steps import StepsWanted, ready, run_rank
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, JobModel, Probe
from calibration.measure.probes.products import tf32
from calibration.measure.probes.timing import synchronize
from calibration.measure.team import TeamRank

SMALL: Final = (
    JobModel("calibration.measure.probes.small_nets:wide", ("3x32x32",), 16),
    JobModel("calibration.measure.probes.small_nets:deep", ("3x32x32",), 16),
)
NETWORKS: Final = {
    "cpu": (("alexnet", 4), ("squeezenet1_0", 4), ("resnet18", 4)),
    "cuda": (("alexnet", 128), ("squeezenet1_0", 64), ("resnet50", 32), ("vgg16", 32)),
}
"""Of torchvision: many parameters, few, and in between; samples per rank at which a step takes some tenths of a second at most."""
REPETITIONS: Final = 4
STEPS, QUICK_STEPS = 6, 3


def models(bench: Bench) -> Sequence[JobModel]:
    """Return the user's model, or else known ones."""
    if bench.models:
        return bench.models
    if bench.quick or importlib.util.find_spec("torchvision") is None:
        return SMALL
    return [JobModel(f"torchvision.models:{name}", ("3x224x224",), batch) for name, batch in NETWORKS[bench.device]]


def wanted_steps(question: AnswerRow, bench: Bench, exchange: bool) -> StepsWanted:
    """Return the steps of the model that a question names."""
    steps = QUICK_STEPS if bench.quick else STEPS
    inputs, arguments = tuple(question["inputs"]), tuple(question["arguments"])
    how = StepsWanted(question["model"], inputs, question["batch"], steps, 2, exchange, arguments=arguments, threads=bench.threads)
    return how if bench.device == "cuda" else replace(how, device="cpu")


def layer_questions(bench: Bench) -> list[AnswerRow]:
    """Return the models."""
    return [model.asked for model in models(bench)]


def layer_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time every layer of one model, forward and backward."""
    import torch

    with warnings.catch_warnings(), tf32(allowed=False):
        warnings.simplefilter("ignore")  # of what torchvision lacks here
        model, next_inputs, loss = ready(wanted_steps(question, bench, exchange=False), torch.device(bench.device))
        return layer_times(model, next_inputs, loss, bench.device)


def layer_times(model: Any, next_inputs: Callable[[], Any], loss: Callable[[Any], Any], device: str) -> AnswerRow:
    """Return the seconds of each layer's passes and of whole passes, one number a repetition; the first repetition is left out."""
    watch = _Watch(device)
    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    hooks = [hook for name, module in leaves for hook in watch.around(name, module)]
    try:
        for _ in range(REPETITIONS + 1):
            positional, named = next_inputs()
            watch.turn()
            watch.begin("", "whole")
            loss(model(*positional, **named)).backward()
            watch.end("", "whole")
            synchronize(device)
            model.zero_grad(set_to_none=True)
    finally:
        for hook in hooks:
            hook.remove()
    return {"whole_s": watch.times("", "whole"), "layers": [watch.row(name, type(module).__name__) for name, module in leaves]}


def _wall(begin: float, end: float) -> float:
    return end - begin


def _cuda_mark() -> Any:
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _cuda_between(begin: Any, end: Any) -> float:
    return float(begin.elapsed_time(end)) * 1e-3


class _Watch:
    """When did each layer begin and end? Calls of one layer in one step are added up."""

    def __init__(self, device: str) -> None:
        on_cuda = device == "cuda"
        self._mark: Callable[[], Any] = _cuda_mark if on_cuda else time.perf_counter
        self._between: Callable[[Any, Any], float] = _cuda_between if on_cuda else _wall
        self._begun: dict[tuple[str, str], Any] = {}
        self._found: list[dict[tuple[str, str], list[tuple[Any, Any]]]] = []

    def turn(self) -> None:
        """Begin another pass."""
        self._found.append(defaultdict(list))

    def around(self, name: str, module: Any) -> list[Any]:
        """Return hooks around the forward pass of *module*, which hook its backward pass in turn."""
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
        """Return the times of one layer, once the device has done all passes."""
        return {"layer": name, "type": kind} | {f"{way}_s": self.times(name, way) for way in ("forward", "backward")}

    def times(self, name: str, way: str) -> list[float]:
        """Return the seconds of one layer's passes, without the first turn."""
        return [sum(self._between(*marks) for marks in turn[name, way]) for turn in self._found[1:]]

    def begin(self, name: str, way: str) -> None:
        """Note that a pass begins."""
        self._begun[name, way] = self._mark()

    def end(self, name: str, way: str) -> None:
        """Note that a pass ends."""
        start = self._begun.pop((name, way), None)
        if start is not None:
            self._found[-1][name, way].append((start, self._mark()))


def step_questions(bench: Bench) -> list[AnswerRow]:
    """Return models, with exchange where there are several ranks, and without."""
    ways = (True, False) if bench.team.ranks > 1 else (False,)
    return [model.asked | {"exchange": exchange, "ranks": bench.team.ranks} for model in models(bench) for exchange in ways]


def step_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time whole steps: seconds by rank, and processor seconds of a step and rank."""
    by_rank = bench.team.ask(step_task, wanted_steps(question, bench, question["exchange"]))
    return {
        "parameters": by_rank[0].parameters,
        "cpu_s": [one.cpu_time for one in by_rank],
        "times_by_rank_s": [one.times for one in by_rank],
    }


def step_task(rank: TeamRank, wanted: StepsWanted) -> Any:
    """Run the steps as one rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_rank(wanted)


LAYERS = Probe("layers", "time of each layer of a few models", layer_questions, layer_answer)
STEPS_PROBE = Probe("steps", "training steps of a few models on all ranks, with and without gradient exchange", step_questions, step_answer)
