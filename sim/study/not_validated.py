"""Which features of a layout are not validated by any measured run? Every report with a figure of such a run states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sim.mesh import LayoutRun

MEASURED_SCHEDULES: Final = ("1f1b", "interleaved_1f1b")
"""Schedules of the measured runs with pipelines."""
OVERLAPPED: Final = ("megatron",)
"""Frameworks with several measured runs that overlap tensor-parallel messages
(``tensor_overlap`` of calibration/records/llm/practice.yaml)."""
_MIXERS: Final = (
    ("G", "gated delta nets are not", "them"),
    ("C", "short convolutions are not", "them"),
    ("P", "attention beside Mamba-2 is not", "it"),
)
"""Letters of ``Transformer.pattern`` for layers without a measured run."""
_ZERO: Final[Mapping[str, int]] = {"gradients": 2, "parameters": 3}
"""Stages of DeepSpeed's ZeRO without a measured run, by what they shard."""


def not_validated(run: LayoutRun) -> list[str]:
    """Return a sentence for each feature of the layout of *run* that no measured training run in the records uses, or too few to validate.

    Every report with a figure of the run includes them.
    """
    parallel, options, schedule = run.workload.training.parallel, run.layout.options, run.layout.schedule
    transformer = run.workload.model.transformer
    letters = {*(transformer.pattern or "")} if transformer is not None else set[str]()
    sentences = [f"{mixer} validated: no measured run in the records has {it}" for letter, mixer, it in _MIXERS if letter in letters]
    if transformer is not None and not transformer.causal:
        sentences.append("attention both ways, of an encoder, is not validated: no measured run of a layout in the records has it")
    if letters & {*"MP"} and parallel.context > 1:
        sentences.append("context ranks of state-space layers are not validated: no measured run in the records has them")
    if run.layout.own_passes is not None:
        sentences.append(f"schedule {schedule} is user-defined and not validated; the expected error shown is that of other schedules")
    elif parallel.pipeline > 1 and schedule not in MEASURED_SCHEDULES:
        sentences.append(f"schedule {schedule} is not validated: no measured run in the records uses it")
    if parallel.tensor > 1 and options.tensor_overlap and options.framework not in OVERLAPPED:
        sentences.append(
            f"overlapped tensor-parallel messages of {options.framework} are not validated: at most one measured run uses them"
        )
    if options.framework == "deepspeed" and parallel.shard in _ZERO:
        sentences.append(f"ZeRO stage {_ZERO[parallel.shard]} of DeepSpeed is not validated: no measured run in the records uses it")
    return sentences
