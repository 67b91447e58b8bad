"""Does the layout that the user gave agree with the profile? A replay with another one would predict another job without a warning.

A profile of torch shows FSDP's annotations, gathers and scatters, messages between ranks, and how often each gradient is accumulated.
Limits: further uses of a kind of collective are not told apart, so only kinds that are missing, FSDP without sharded weights, and messages
without any axis that sends them contradict a layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from calibration.traces.import_trace import MESSAGE
from calibration.traces.kineto import RankTrace
from sim.parallel.lower.layouts import Layout
from sim.parallel.units import units
from sim.spec.model import Model
from sim.spec.yaml import SpecError

_GATHERS: Final = re.compile(r"all_?gather|reduce_?scatter", re.IGNORECASE)
_WHOLE: Final = 0.05
"""Largest distance from a whole number of a count of micro-batches: with a part of a step, or another model, it is anything (estimate)."""


def require_layout(traces: Sequence[RankTrace], layout: Layout, model: Model) -> None:
    """Raise SpecError, which says what to write, if *traces* of real ranks show another layout of *model* than *layout*."""
    first, parallel = traces[0], layout.mesh.parallel
    names = {span.name for trace in traces for span in trace.collectives}
    messages = next((name for name in sorted(names) if MESSAGE.match(name)), "")
    gathers = any(_GATHERS.search(name) for name in names)
    problem = ""
    if first.fsdp and parallel.shard != "parameters":
        problem = "shows FSDP, but the layout does not shard weights; add --shard parameters"
    elif parallel.shard == "parameters" and layout.mesh.pool > 1 and not gathers:
        problem = "shows no all-gather, so its ranks do not shard weights; leave out --shard parameters"
    elif parallel.pipeline > 1 and not messages:
        problem = "shows no messages between ranks, so there are no pipeline stages; leave out --pp"
    elif messages and parallel.pipeline * parallel.context * parallel.expert == 1:
        problem = f"shows {messages}, but the layout has no stages that send messages; add --pp"
    elif parallel.sequence_parallel and not gathers:
        problem = "shows no all-gather, so tensor ranks do not split the sequence between products; add --parallel sequence=false"
    if problem:
        raise SpecError(f"{first.file}: {problem}")
    for trace in traces:
        _require_micro_batches(trace, layout, model)


def _require_micro_batches(trace: RankTrace, layout: Layout, model: Model) -> None:
    """Raise SpecError if every gradient of the rank's stage is accumulated another number of times per step than *layout* says."""
    members = [layers for _, _, layers in units(model)]
    stage = layout.mesh.stage_of(trace.rank)
    tensors = sum(len(layer.gradients) for unit in layout.units_of(stage) for layer in members[unit])
    steps = trace.steps.values()
    kept = sum(any(step.t0 <= span.t0 < step.t1 for step in steps) for span in trace.gradients)
    passes = kept / len(steps) / tensors if tensors else 0.0
    count = round(passes)
    if count > 0 and abs(passes - count) <= _WHOLE and count != layout.micro_batches:
        raise SpecError(
            f"{trace.file}: shows {count} micro-batch{'es' * (count > 1)} in a step, but the layout has {layout.micro_batches}; "
            f"write --micro-batches {count}"
        )
