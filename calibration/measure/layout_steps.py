"""How long are the steps of one rank that shards, splits or pipelines the model? With torch's own FSDP2, DTensor and pipelining.

    python -m calibration.measure.layout_steps STEPS LAYOUT

runs one rank. STEPS is the document of a `StepRequest`, with one micro-batch as its batch, and LAYOUT the document of a `LayoutRequest`.
With an *isolated_rank* the process runs that rank in isolation: torch's fake backend, which sends nothing, replaces the other ranks. The
step then consists of the rank's own work only, and the printed result includes the time of each part of the model. Limits: those of
`calibration.measure.ddp_steps`; at most one axis in addition to data parallelism; the loss is cross-entropy, with ``loss_parallel``
for tensor ranks.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibration.measure import ddp_steps
from calibration.measure.ddp_steps import RankSteps, StepRequest
from calibration.measure.division import Division
from sim.extract import target
from sim.spec.yaml import SpecError

Marker = Callable[[str], None]
"""Called with the name of each part of a step when that part ends."""


@dataclass(frozen=True)
class LayoutRequest:
    """How the ranks divide the model, and which rank this process runs if it runs in isolation."""

    layout: Division
    ranks: int
    isolated_rank: int | None = None
    """The rank that this process runs in isolation; None if the other ranks exist."""

    @classmethod
    def read(cls, text: str) -> LayoutRequest:
        """Return the object that the JSON document *text* describes."""
        fields = json.loads(text)
        return cls(Division.model_validate(fields["layout"]), fields["ranks"], fields["alone"])

    def text(self) -> str:
        """Return this as a JSON document."""
        return json.dumps({"layout": self.layout.model_dump(), "ranks": self.ranks, "alone": self.isolated_rank})


class LayoutRank:
    """One rank of a layout, with its part of the model and the function that runs a step."""

    def __init__(self, request: StepRequest, layout_request: LayoutRequest, device: Any) -> None:
        import torch

        layout = layout_request.layout
        self.device = device
        self.request, self.layout, self.ranks, self.is_isolated = (
            request,
            layout,
            layout_request.ranks,
            layout_request.isolated_rank is not None,
        )
        torch.set_num_threads(request.threads)
        torch.set_flush_denormal(True)  # in isolation, weights from other ranks are uninitialized memory
        torch.manual_seed(0)
        arguments = target.parse_arguments(request.arguments)
        self.model = target.load_target(request.model)(**arguments).to(device)
        (shape,) = [target.parse_input(text) for text in request.inputs]
        self.inputs = torch.zeros(shape.sizes(request.batch * layout.micro_batches), dtype=torch.int64, device=device)
        self.mark: Marker = lambda part: None
        self.run = self._pipeline_step() if layout.pipeline > 1 else self._whole_model_step()
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-6, momentum=0.9)

    def step(self) -> None:
        """Run one step."""
        self.run()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.mark("update")

    # --- all of the model on every rank -------------------------------------------------------------------------------

    def _whole_model_step(self) -> Callable[[], None]:
        """Return a function that runs forward and backward of a model that is sharded, split over tensor ranks, or neither."""
        from torch.distributed.device_mesh import init_device_mesh

        model, layout = self.model, self.layout
        context: Callable[[], AbstractContextManager[Any]] = nullcontext
        if layout.tensor > 1:
            from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

            from calibration.measure.decoder import split_plan

            parallelize_module(model, init_device_mesh(self.device.type, (layout.tensor,)), dict(split_plan(model, layout.sequence)))
            context = loss_parallel
        if layout.shard == "parameters":
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.ranks,))
            for unit in [model.embedding, *model.blocks, [model.norm, model.head]]:
                fully_shard(unit, mesh=mesh, reshard_after_forward=layout.reshard_after_forward and not isinstance(unit, list))
            fully_shard(model, mesh=mesh, reshard_after_forward=False)
            if layout.asynchronous:
                for unit in [model, model.embedding, *model.blocks, model.norm]:
                    unit._set_unshard_async_op(True)
        self.parameters = list(model.parameters())
        self._mark_units([model.embedding, *model.blocks])

        def run() -> None:
            with context():
                loss = _loss(model(self.inputs))
                self.mark(f"F{len(model.blocks) + 1}")
                loss.backward()
            self.mark("B0")

        return run

    def _mark_units(self, units: Sequence[Any]) -> None:
        """Mark the end of each unit's forward pass, and of the backward pass of the unit after it."""
        for number, unit in enumerate(units):

            def ended(module: Any, inputs: Any, output: Any, number: int = number) -> None:
                self.mark(f"F{number}")
                if output.requires_grad:
                    output.register_hook(lambda gradient: self.mark(f"B{number + 1}"))

            unit.register_forward_hook(ended)

    # --- stages -------------------------------------------------------------------------------------------------------

    def _pipeline_step(self) -> Callable[[], None]:
        """Return a function that runs the pipeline schedule of this rank's stages."""
        import torch
        import torch.distributed as dist
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

        layout, rank = self.layout, dist.get_rank()
        count = layout.pipeline * layout.virtual_stages
        own = range(rank, count, layout.pipeline)
        parts = [self._chunk(number, count) for number in own]
        self.parameters = [parameter for part in parts for parameter in part.parameters()]
        stages = []
        for number, part in zip(own, parts, strict=True):
            width = self.model.head.in_features
            hidden = torch.empty(self.request.batch, self.inputs.shape[1], width, device=self.device, requires_grad=True)
            scores = torch.empty(self.request.batch, self.inputs.shape[1], self.model.head.out_features, device=self.device)
            entering = self.inputs[: self.request.batch] if number == 0 else hidden
            leaving = scores if number == count - 1 else hidden
            stage = PipelineStage(part, number, count, self.device, input_args=entering, output_args=leaving)
            if self.is_isolated:  # no other stage takes part in the votes, and the layout determines their result
                stage._warmup_forward_vote = stage._warmup_backward_result = lambda *given, **named: torch.ones(1, dtype=torch.int32)
            self._mark_passes(stage)
            stages.append(stage)
        loss: Any = lambda scores, targets: _loss(scores)  # noqa: E731
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}.get(layout.schedule)
        if kind is not None:
            schedule: Any = kind(stages[0], layout.micro_batches, loss_fn=loss)
        else:
            schedule = ScheduleInterleaved1F1B(stages, layout.micro_batches, loss_fn=loss)
        first, last = rank == 0, rank == (count - 1) % layout.pipeline

        def run() -> None:
            arguments = (self.inputs,) if first else ()
            schedule.step(*arguments, target=self.inputs if last else None, **({"losses": []} if last else {}))
            self.mark("idle")

        return run

    def _chunk(self, number: int, count: int) -> Any:
        """Return the part of the model that chunk *number* of *count* holds."""
        import torch

        model = self.model
        each = len(model.blocks) // count
        if each * count != len(model.blocks):
            raise SpecError(f"lab: {len(model.blocks)} blocks do not divide into {count} chunks")
        part = type(model)(1, 0, 1, False, False)
        part.embedding = model.embedding if number == 0 else None
        part.blocks = torch.nn.ModuleList(model.blocks[number * each : (number + 1) * each])
        part.norm, part.head = (model.norm, model.head) if number == count - 1 else (None, None)
        return part

    def _mark_passes(self, stage: Any) -> None:
        """Mark the end of each pass over a micro-batch, and the idle time before it."""
        forward, backward = stage.forward_one_chunk, stage.backward_one_chunk

        def marked(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                self.mark("idle")
                result = run(*arguments, **named)
                self.mark(f"{name} of stage {stage.stage_index}")
                return result

            return call

        stage.forward_one_chunk, stage.backward_one_chunk = marked("F", forward), marked("B", backward)


def _loss(scores: Any) -> Any:
    import torch

    flat = scores.flatten(0, 1)
    return torch.nn.functional.cross_entropy(flat, torch.zeros(len(flat), dtype=torch.int64, device=flat.device))


def run_rank(request: StepRequest, layout_request: LayoutRequest, interface: str = "") -> RankSteps:
    """Run the steps of *request* as one rank of a layout; in isolation, also measure the median time (s) of each part of a step.

    Sent bytes are counted on the network *interface*.
    """
    device = ddp_steps.device_of(request)
    rank = LayoutRank(request, layout_request, device)
    before = _sent(interface)
    times, cpu_time = ddp_steps.time_steps(rank.step, request, device)
    sent = (_sent(interface) - before) / (len(times) + request.warmup)
    parameters = sum(parameter.numel() for parameter in rank.parameters)
    of_parts = part_times(rank, len(times)) if rank.is_isolated else {}
    if request.trace:
        ddp_steps.write_profile(rank.step, Path(request.trace), device)
    return RankSteps(int(os.environ.get("RANK", "0")), tuple(times), cpu_time, parameters, of_parts, sent)


def _sent(interface: str) -> int:
    """Return the bytes that this host has sent on *interface*; 0 if there is no interface of that name."""
    counter = Path(f"/sys/class/net/{interface}/statistics/tx_bytes")
    return int(counter.read_text(encoding="ascii")) if counter.exists() else 0


def part_times(rank: LayoutRank, steps: int) -> Mapping[str, float]:
    """Return the time (s) of each part of a step, summed over its passes; the median over *steps* steps."""
    by_step: list[dict[str, float]] = []
    last = [time.perf_counter()]

    def mark(part: str) -> None:
        now = time.perf_counter()
        by_step[-1][part] += now - last[0]
        last[0] = now

    rank.mark = mark
    for _ in range(steps):
        by_step.append(defaultdict(float))
        last[0] = time.perf_counter()
        rank.step()
    return {part: statistics.median(times[part] for times in by_step) for part in by_step[0]}


def _join_fake_group(layout_request: LayoutRequest) -> None:
    """Join a process group in which the other ranks do not exist."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=layout_request.isolated_rank or 0, world_size=layout_request.ranks)


def main(arguments: Sequence[str]) -> int:
    """Run one rank; see the module's docstring."""
    try:
        request, layout_request = ddp_steps.read_request(arguments[0]), LayoutRequest.read(arguments[1])
        if layout_request.isolated_rank is None:
            ddp_steps.join(request)  # without leaving the group later: Gloo's threads may abort a process that does
        else:
            _join_fake_group(layout_request)
        print(ddp_steps.RESULT_PREFIX + json.dumps(asdict(run_rank(request, layout_request, *arguments[2:]))), flush=True)
    except SpecError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    ddp_steps.exit_now(main(sys.argv[1:]))
