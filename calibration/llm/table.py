"""Which runs does a table of transformer training contain? One `LlmRow` per line of a CSV file such as ``records/llm/training.csv``.

The columns distinguish such a table from other records. Text in a numeric cell is not an error of the file: it is kept in
`LlmRow.non_numeric`, and the row is described without it, or listed with it in the reason.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
REQUIRED_COLUMNS: Final = (
    "source", "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "seq_len", "gpu", "nodes", "gpus", "framework",
    "precision", "dp", "tp", "pp", "cp", "zero_stage", "micro_batch", "global_batch", "activation_checkpointing", "step_time_s",
)  # fmt: skip
"""Columns without which a table cannot be scored."""
DISTINCTIVE_COLUMNS: Final = frozenset(
    {"model", "seq_len", "gpu", "tp", "pp", "cp", "ep", "dp", "zero_stage", "micro_batch", "global_batch", "ffn_hidden"}
)
"""Most of these columns are in every table of transformer runs, and none are in other records."""


MACHINE_COLUMNS: Final = frozenset({"hardware", "cluster", "instance", "instance_type", "machine", "system"})
"""Columns that name a machine in tables of data-parallel runs; tables of transformer runs name its ``gpu``."""


@dataclass(frozen=True)
class LlmRow:
    """One line of a table; numbers that are blank or unreadable are missing."""

    line: int
    text: Mapping[str, str]
    number: Mapping[str, float]
    non_numeric: Mapping[str, str] = field(default_factory=dict)
    """Cells of numeric columns that hold something else."""

    @property
    def source(self) -> str:
        """Return the repository of the row, without its release and path."""
        return repository(self.text["source"])

    def text_or_number(self, name: str) -> str:
        """Return the content of the cell in column *name* as text; empty if it is blank."""
        return self.text.get(name) or self.non_numeric.get(name) or (f"{self.number[name]:g}" if name in self.number else "")

    def problem(self, name: str) -> str:
        """Return what is wrong with the cell in column *name* of `non_numeric`."""
        return f"{name} is {self.non_numeric[name]!r}, not a number {'from 0 to 3' if name == 'zero_stage' else 'above 0'}"

    @property
    def status(self) -> str:
        """Return the outcome of the run; ``ok`` if the table does not state it."""
        return self.text.get("status") or "ok"

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
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = set(next(csv.reader(line for line in file if not line.startswith("#")), []))
    except (OSError, UnicodeDecodeError):
        return False
    if {"workload", *MACHINE_COLUMNS} & header:
        return False
    return "model" in header or len(DISTINCTIVE_COLUMNS & header) >= len(DISTINCTIVE_COLUMNS) - 4


def read_table(path: Path) -> list[LlmRow]:
    """Return the rows of *path*. Raise SpecError, in one sentence, if a column needed for scoring is missing or the file is unreadable."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
    lines = text.splitlines()
    skipped = next((number for number, line in enumerate(lines) if not line.startswith("#")), 0)
    reader = csv.DictReader(lines[skipped:])
    missing = [name for name in REQUIRED_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise SpecError(f"{path}:{skipped + 1}: column{'s' * (len(missing) > 1)} missing: {', '.join(missing)}; blank cells are allowed")
    return [_row(reader.line_num + skipped, cells) for cells in reader]


BLANK_WORDS: Final = ("n/a", "nan", "null")
"""What programs write into a cell without a value."""
UNKNOWN_WORDS: Final = ("unknown", "?", "not stated", "unspecified")
"""What people write into a text cell if the value is not stated."""


def _row(line: int, cells: Mapping[str, str | None]) -> LlmRow:
    texts = {name: _cell(cells, name, BLANK_WORDS + UNKNOWN_WORDS) for name in TEXT_COLUMNS}
    numbers: dict[str, float] = {}
    non_numeric: dict[str, str] = {}
    for name in NUMBER_COLUMNS:
        cell = _cell(cells, name, BLANK_WORDS)
        if not cell:
            continue
        value = _number(cell)
        if value is None:
            non_numeric[name] = cell
        else:
            numbers[name] = value
    return LlmRow(line, texts, numbers, non_numeric)


def _cell(cells: Mapping[str, str | None], name: str, blank: Sequence[str]) -> str:
    """Return the text in column *name*; empty if it is one of the words *blank*."""
    cell = (cells.get(name) or "").strip()
    return "" if cell.lower() in blank else cell


def _number(cell: str) -> float | None:
    """Return the number in *cell*, which may group its digits by commas; None if it holds something else."""
    try:
        value = float(cell.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", cell) else cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
