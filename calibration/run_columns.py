"""Which columns does a table of measured runs have, and is a header valid? All problems of a header are reported at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from calibration.run_words import NAMES_OF_COLUMNS
from sim.spec.yaml import SpecError

MEANINGS: Final[Mapping[str, str]] = {
    "source": "Who measured it. When a source is scored, all its rows are left out of the fit.",
    "hardware": "The machine or cluster: a name from the catalog or the committed records, or of a file in `--hardware-dir`. This or "
    "`gpu` is required.",
    "workload": "Required. What was trained: a name from the catalog, or of a file in `--workload-dir`.",
    "stack": "Software stack, such as `torch-2.x-ddp`.",
    "software": "Versions, as free text. Rows with the same software share one compute speed.",
    "input": "`synthetic` or `real`: the source of the samples.",
    "nodes": "Number of nodes of the job.",
    "gpus_per_node": "Number of GPUs used on each node.",
    "placement": "The same if nodes have different numbers of GPUs: `1+2` is one GPU on one node and two on another.",
    "batch_per_gpu": "Samples per GPU and micro-batch.",
    "gradient_accumulation_steps": "Number of micro-batches per step.",
    "precision": "Precision, such as `fp32`, `amp_fp16` or `bf16`.",
    "strategy": "How gradients are exchanged, such as `ddp` or `horovod`.",
    "set": "Other fields to change, as for `--set`: `KEY=VALUE; KEY=VALUE`.",
    "step_time_s": "Seconds of one optimizer step. This or `throughput_samples_per_s` is required.",
    "exposed_sync_s": "Seconds of the step spent waiting for the gradient exchange.",
    "throughput_samples_per_s": "Samples per second over all GPUs.",
    "role": "Required. What the row is used for: `compute` and `network` rows calibrate, `prediction` rows are only scored.",
    "note": "Anything else.",
    "total_gpus": "Number of GPUs on all nodes, instead of `gpus_per_node`; if both are given, they must agree.",
    "throughput_samples_per_s_per_gpu": "Samples per second of one GPU, instead of `throughput_samples_per_s`.",
    "throughput_tokens_per_s": "Tokens per second over all GPUs, instead of `throughput_samples_per_s`.",
    "global_batch": "Samples per step over all GPUs and micro-batches, instead of `batch_per_gpu`.",
    "gpu": "The GPU. It replaces that of the machine if this has another, and stands for a machine if `hardware` names none.",
}
"""The content of each column; a blank cell means the workload's own value."""
COLUMNS: Final = tuple(MEANINGS)
REQUIRED: Final = ("hardware", "workload", "role")
SPEEDS: Final = ("step_time_s", "throughput_samples_per_s", "throughput_samples_per_s_per_gpu", "throughput_tokens_per_s")
"""Columns of which every row needs one."""
_SEPARATORS: Final[Mapping[str, str]] = {";": "semicolons", "\t": "tabs", "|": "bars"}

_SYNONYMS: Final[Mapping[str, str]] = {
    **NAMES_OF_COLUMNS,
    "accumulation": "gradient_accumulation_steps", "amp": "precision", "batch_size": "batch_per_gpu", "bs": "batch_per_gpu",
    "dtype": "precision", "framework": "stack", "gpus": "gpus_per_node", "images_per_s": "throughput_samples_per_s",
    "images_per_second": "throughput_samples_per_s", "images_sec": "throughput_samples_per_s", "model": "workload",
    "network": "workload", "overrides": "set", "samples_per_s": "throughput_samples_per_s",
    "samples_per_second": "throughput_samples_per_s", "speed": "throughput_samples_per_s", "system": "hardware",
    "throughput": "throughput_samples_per_s", "time": "step_time_s",
}  # fmt: skip
"""Names of columns in other tables."""
_UNITS: Final[Mapping[str, str]] = {
    "step_time_s": " It is in seconds. It holds the time of one optimizer step; cells may have a unit, such as 250 ms.",
    "exposed_sync_s": " It is in seconds.",
    "throughput_samples_per_s": " It counts samples of all GPUs.",
    "batch_per_gpu": " It counts samples per GPU and micro-batch; for samples per step over all GPUs and micro-batches, use global_batch.",
    "gpus_per_node": " For the GPUs of all nodes, use total_gpus.",
}


def check_header(path: Path, line: int, header: Sequence[str], text: str, understood: Callable[[str], bool]) -> list[str]:
    """Return notes on columns that are not read, except those for which *understood* is true; *text* is the whole line.

    Raise SpecError with all problems.
    """
    where = f"{path}:{line}"
    if mark := _separator(header, text):
        raise SpecError(f"{where}: appears to be separated by {_SEPARATORS[mark]}; save it with commas, and with decimal points in numbers")
    notes: list[str] = []
    problems = [f"column '{name}' appears twice" for name in sorted({name for name in header if header.count(name) > 1})]
    meanings = {name: column_meant(name) for name in header if name not in COLUMNS}
    for name, meant in meanings.items():
        if meant and meant not in header:
            problems.append(f"unknown column '{name}'; did you mean '{meant}'?{_UNITS.get(meant, '')}")
        elif not understood(name):
            notes.append(f"{where}: column '{name}' is not part of a record and is ignored")
    present = {*header, *meanings.values()}
    needless = {"hardware"} if "gpu" in header else set()
    if missing := [f"'{name}'" for name in REQUIRED if name not in present | needless]:
        which = f"columns {', '.join(missing)} are" if len(missing) > 1 else f"column {missing[0]} is"
        problems.append(f"{which} missing; the columns are {', '.join(COLUMNS)}")
    if present.isdisjoint(SPEEDS):
        problems.append(f"expected a column {' or '.join(SPEEDS[:2])}")
    if problems:
        raise SpecError([f"{where}: {problem}" for problem in problems])
    return notes


def _separator(header: Sequence[str], text: str) -> str | None:
    """Return the separator that splits *text* into more recognized columns than commas do; None if none does."""
    by_comma = sum(name in COLUMNS for name in header)
    return next((mark for mark in _SEPARATORS if sum(column_meant(name) is not None for name in text.split(mark)) > max(1, by_comma)), None)


def column_meant(name: str) -> str | None:
    """Return the column of which *name* may be a typo or a synonym; None if it resembles none."""
    plain = name.strip().lower().replace(" ", "_").replace("-", "_")
    begins = [column for column in COLUMNS if column.startswith(f"{plain}_")]
    near = difflib.get_close_matches(plain, COLUMNS, n=1, cutoff=0.75)
    return _SYNONYMS.get(plain) or (begins[0] if len(begins) == 1 else None) or (near[0] if near else None)
