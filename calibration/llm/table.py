"""Which runs does a table of transformer training contain? One `LlmRow` per line of a CSV file such as ``records/llm/training.csv``.

The columns distinguish such a table from other records. Text in a numeric cell is not an error of the file: it is kept in
`LlmRow.non_numeric`, and the row is described without it, or listed with it in the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from calibration.cells import read_cell
from calibration.foreign_columns import IN_MS, OTHER_NAMES, TIMES_OF_STEPS, all_have_units, translate_header
from calibration.run_words import NAMES_OF_COLUMNS, plain_column
from sim.spec.strict import csv_lines, csv_rows
from sim.spec.yaml import SpecError

NUMBER_COLUMNS: Final = (
    "params", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "experts", "topk", "seq_len", "nodes", "gpus", "dp", "tp",
    "pp", "virtual_pp", "cp", "ep", "zero_stage", "micro_batch", "global_batch", "grad_accum", "step_time_s", "tokens_per_s_per_gpu",
    "memory_peak_GiB_reported",
)  # fmt: skip
TEXT_COLUMNS: Final = (
    "source", "set", "model", "gpu", "node_type", "network", "framework", "framework_version", "precision", "sp", "fsdp_mode",
    "activation_checkpointing", "flash_attention", "offload", "compile", "status", "class", "notes",
)  # fmt: skip
MEASURED_COLUMNS: Final = ("params", "global_batch", "step_time_s", "tokens_per_s_per_gpu", "memory_peak_GiB_reported")
"""Columns of numbers that need not be whole."""
LARGEST_STAGE: Final = 3
"""Largest stage of ZeRO."""
REQUIRED_COLUMNS: Final = ("model", "seq_len", "gpu", "gpus", "global_batch")
"""Columns without which no row can be described."""
RATE_COLUMNS: Final = ("step_time_s", "tokens_per_s_per_gpu")
"""Columns of which one is needed to score a table."""
DISTINCTIVE_COLUMNS: Final = frozenset(
    {"model", "seq_len", "gpu", "tp", "pp", "cp", "ep", "dp", "zero_stage", "micro_batch", "global_batch", "ffn_hidden"}
)
"""Most of these columns are in every table of transformer runs, and none are in other records."""


MACHINE_COLUMNS: Final = frozenset({"hardware", "system", *(name for name, column in NAMES_OF_COLUMNS.items() if column == "hardware")})
"""Columns that name a machine in tables of data-parallel runs; tables of transformer runs name its ``gpu``."""


SAMPLE_COLUMNS: Final = frozenset({"batch_per_gpu", "local_batch", "throughput_samples_per_s", "throughput_samples_per_s_per_gpu", "unit"})
"""Columns of tables of data-parallel runs, which count samples."""
AXIS_COLUMNS: Final = frozenset({"tp", "pp", "cp", "ep", "dp", "zero_stage"})
"""Columns that say how a model is divided."""
COMMON_COLUMNS: Final = frozenset({"nodes", "gpus", "grad_accum", "step_time_s"})
"""Columns of numbers that tables of data-parallel runs have as well."""


_OTHER_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("accelerator", "gpu_model", "gpu_name", "gpu_type"), "gpu"),
    **dict.fromkeys(("gpu_count", "n_gpus", "num_gpus", "total_gpus", "total_num_gpus", "world_size"), "gpus"),
    **dict.fromkeys(("n_nodes", "nnodes", "node_count", "num_nodes"), "nodes"),
    **dict.fromkeys(
        ("context_length", "seq", "seqlen", "max_seq_len", "max_seq_length", "seq_length", "sequence", "sequence_length"), "seq_len"
    ),
    **dict.fromkeys(("gbs", "global_batch_size"), "global_batch"),
    **dict.fromkeys(("mbs", "micro_batch_size"), "micro_batch"),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum_steps"), "grad_accum"),
    **dict.fromkeys(("tp_size", "tensor_parallel", "tensor_parallel_degree", "tensor_parallel_size"), "tp"),
    **dict.fromkeys(("pp_size", "pipeline_parallel", "pipeline_parallel_degree", "pipeline_parallel_size"), "pp"),
    **dict.fromkeys(("cp_size", "context_parallel", "context_parallel_degree", "context_parallel_size"), "cp"),
    **dict.fromkeys(("dp_size", "data_parallel", "data_parallel_degree", "data_parallel_size"), "dp"),
    **dict.fromkeys(("ep_size", "expert_parallel", "expert_parallel_degree", "expert_parallel_size"), "ep"),
    **dict.fromkeys(("vp", "vpp", "virtual_pipeline", "virtual_pipeline_parallel_size"), "virtual_pp"),
    **dict.fromkeys(("ac", "recompute", "recomputation", "gradient_checkpointing", "activation_recompute"), "activation_checkpointing"),
    **dict.fromkeys(("interconnect", "fabric", "inter_node"), "network"),
    **dict.fromkeys(("zero", "zero_level", "distributed_optimizer"), "zero_stage"),
    **dict.fromkeys(OTHER_NAMES["step_time_s"], "step_time_s"),
    "tgs": "tokens_per_s_per_gpu",
}
"""Columns by names that other tables have for them."""
_RATE_OF_A_GPU: Final = re.compile(
    r"(?:(?:train|training)_)?(?:throughput_)?\(?tok(?:en)?s?"
    r"(?:(?:_per_|/)s(?:ec|econd)?(?:_per_|/)(?:gpu|device)|(?:_per_|/)(?:gpu|device)(?:_per_|/)s(?:ec|econd)?)\)?"
)


@dataclass(frozen=True)
class LlmRow:
    """One line of a table; numbers that are blank or unreadable are missing."""

    line: int
    text: Mapping[str, str]
    number: Mapping[str, float]
    non_numeric: Mapping[str, str] = field(default_factory=dict)
    """Cells of numeric columns that hold something else."""
    unassigned: int = 0
    """Cells beyond the last column."""
    readings: tuple[str, ...] = ()
    """How cells with a unit or a remark were read, in words."""

    @property
    def source(self) -> str:
        """Return the repository of the row, without its release and path."""
        return repository(self.text["source"])

    def text_or_number(self, name: str) -> str:
        """Return the content of the cell in column *name* as text; empty if it is blank."""
        return self.text.get(name) or self.non_numeric.get(name) or (f"{self.number[name]:g}" if name in self.number else "")

    def problem(self, name: str) -> str:
        """Return what is wrong with the cell in column *name* of `non_numeric`."""
        kind = "number" if name in MEASURED_COLUMNS else "whole number"
        return f"{name} is {self.non_numeric[name]!r}, not a {kind} {'from 0 to 3' if name == 'zero_stage' else 'above 0'}"

    @property
    def status(self) -> str:
        """Return the outcome of the run; ``ok`` if the table does not state it, or calls it a success."""
        stated = self.text.get("status", "")
        return "ok" if stated.lower() in SUCCESS_WORDS else stated

    @property
    def step_time(self) -> float | None:
        """Return the measured seconds of a step, or those that follow from tokens per second; None if the row has neither."""
        if self.number.get("step_time_s", 0.0) > 0:
            return self.number["step_time_s"]
        names = ("tokens_per_s_per_gpu", "gpus", "global_batch", "seq_len")
        if all(self.number.get(name, 0.0) > 0 for name in names):
            rate, gpus, batch, length = (self.number[name] for name in names)
            return batch * length / (rate * gpus)
        return None


def repository(source: str) -> str:
    """Return the repository that *source* (``owner/name@commit:path``) names; all rounds of MLPerf's results are one source."""
    name = source.split("@")[0].split(":")[0].strip()
    return "mlcommons/training_results" if name.startswith("mlcommons/training_results") else name


def is_llm_table(path: Path) -> bool:
    """Return whether the header of *path* has most columns of a table of transformer runs."""
    try:
        _, first = next(csv_rows(csv_lines(path)[:1], str(path)), (0, []))
    except SpecError:
        return False
    header = set(_columns(first))
    others = {*map(plain_column, header - {*NUMBER_COLUMNS, *TEXT_COLUMNS})}
    if {"workload", *MACHINE_COLUMNS} & others:
        return False
    read = {*others, *translate_header(sorted(others)).columns}
    if SAMPLE_COLUMNS & read and AXIS_COLUMNS.isdisjoint(header) and not header >= {*REQUIRED_COLUMNS}:
        return False
    if "step_time_s" in header | read and header.isdisjoint({*NUMBER_COLUMNS} - COMMON_COLUMNS):
        return False
    return "model" in header or len(DISTINCTIVE_COLUMNS & header) >= len(DISTINCTIVE_COLUMNS) - 4


def read_table(path: Path, failed: bool = False) -> list[LlmRow]:
    """Return the rows of *path*; runs that *failed* need no time.

    Raise SpecError, in one sentence, if a column needed for scoring is missing or the file is unreadable.
    """
    lines = csv_lines(path)
    rows = list(csv_rows(lines, str(path)))
    first, written = rows.pop(0) if rows else (1, [])
    header = _columns(written, [cells for _, cells in rows])
    if twice := [f"'{name}'" for name in dict.fromkeys(header) if name and header.count(name) > 1]:
        raise SpecError(f"{path}:{first}: column {', '.join(twice)} appears twice")
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    missing += [] if failed or {*RATE_COLUMNS} & {*header} else [" or ".join(RATE_COLUMNS)]
    if missing:
        unread = f"; not read: {', '.join(others)}" if (others := _unread(header)) else ""
        raise SpecError(f"{path}:{first}: column{'s' * (len(missing) > 1)} missing: {', '.join(missing)}{unread}; blank cells are allowed")
    in_ms = [plain_column(name) in IN_MS["step_time_s"] for name in written]
    return [_row(line, {**dict(zip(header, _in_units(cells, in_ms), strict=False)), BEYOND: cells[len(header) :]}) for line, cells in rows]


def column_notes(path: Path) -> list[str]:
    """Return a note on each column of *path* that is read under another name, and one on those that are not read."""
    rows = list(csv_rows(csv_lines(path), str(path)))
    first, written = rows.pop(0) if rows else (1, [])
    columns = _columns(written, [cells for _, cells in rows])
    notes = [f"column '{name}' was read as {column}" for name, column in zip(written, columns, strict=True) if name != column]
    unread = _unread(columns)
    notes += [f"column{'s' * (len(unread) > 1)} {', '.join(unread)} {'are' if len(unread) > 1 else 'is'} not read"] if unread else []
    return [f"{path}:{first}: {note}" for note in notes]


def _unread(columns: Sequence[str]) -> list[str]:
    """Return those of *columns* that no table of transformer runs has, in quotes."""
    return [f"'{name}'" for name in columns if name and name not in (*NUMBER_COLUMNS, *TEXT_COLUMNS)]


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return the columns that the names in *header* mean: case, blanks and other tables' names do not matter; strange names stay.

    A time of steps whose name has no unit is read if each of its cells in *rows* has one.
    """
    columns = list(header)
    own = {name.lower(): name for name in (*NUMBER_COLUMNS, *TEXT_COLUMNS)}
    for place, name in enumerate(header):
        plain = plain_column(name)
        column = own.get(plain) or _OTHER_NAMES.get(plain)
        if _RATE_OF_A_GPU.fullmatch(plain):
            column = "tokens_per_s_per_gpu"
        elif plain in IN_MS["step_time_s"] or (plain in TIMES_OF_STEPS and all_have_units(place, rows)):
            column = "step_time_s"
        if column is not None and column not in columns:
            columns[place] = column
    return columns


def _in_units(cells: Sequence[str], in_ms: Sequence[bool]) -> list[str]:
    """Return *cells* with the unit after the plain numbers of columns *in_ms*."""
    return [
        f"{cell} ms" if place < len(in_ms) and in_ms[place] and re.fullmatch(r"[\d.,]+", cell.strip()) else cell
        for place, cell in enumerate(cells)
    ]


BLANK_WORDS: Final = ("n/a", "na", "n.a.", "nan", "null", "-", "--", "\u2013", "\u2014")
"""What programs and people write into a cell without a value."""
UNKNOWN_WORDS: Final = ("unknown", "?", "not stated", "unspecified")
"""What people write into a text cell if the value is not stated."""
UNUSED_WORDS: Final = ("none",)
"""Cells for the number of ranks of an axis that is not used."""
SUCCESS_WORDS: Final = ("", "ok", "success", "successful", "succeeded", "pass", "passed", "completed", "complete", "done", "finished")
"""Cells for a run that ended successfully."""
DASH_MEANS_NONE: Final = ("activation_checkpointing", "flash_attention", "offload", "compile", "sp")
"""Text columns in which a dash says that something was not used."""


BEYOND: Final = "cells beyond the last column"
"""Key under which the reader keeps the cells beyond the last column."""


def _row(line: int, cells: Mapping[str, Any]) -> LlmRow:
    texts = {name: _text(cells, name) for name in TEXT_COLUMNS}
    numbers: dict[str, float] = {}
    non_numeric: dict[str, str] = {}
    readings: list[str] = []
    for name in ("seq_len", *(name for name in NUMBER_COLUMNS if name != "seq_len")):
        cell = _cell(cells, name, BLANK_WORDS if name == "zero_stage" else BLANK_WORDS + UNUSED_WORDS)
        if not cell:
            continue
        reading = read_cell(name, cell, numbers.get("seq_len", 0.0))
        if reading is None or not _belongs(name, reading.value):
            non_numeric[name] = cell
        else:
            numbers[name] = reading.value
            readings += [reading.words] if reading.words and name != "params" else []
    return LlmRow(line, texts, numbers, non_numeric, len(cells.get(BEYOND) or ()), tuple(readings))


def _belongs(name: str, value: float) -> bool:
    """Return whether column *name* can have the value *value*."""
    if name == "zero_stage" and value > LARGEST_STAGE:
        return False
    return name in MEASURED_COLUMNS or value == int(value)


def _text(cells: Mapping[str, Any], name: str) -> str:
    """Return the text in column *name*; empty if it is not stated."""
    cell = _cell(cells, name, UNKNOWN_WORDS)
    if cell.lower() not in BLANK_WORDS:
        return cell
    return "none" if name in DASH_MEANS_NONE and not cell[0].isalpha() else ""


def _cell(cells: Mapping[str, Any], name: str, blank: Sequence[str]) -> str:
    """Return the text in column *name*; empty if it is one of the words *blank*."""
    cell = (cells.get(name) or "").strip()
    return "" if cell.lower() in blank else cell
