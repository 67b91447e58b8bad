"""Which columns and words of other tables correspond to ours, and in which unit? Only what is unambiguous is read, and a note reports it.

Numbers with grouped digits, or with the unit that the column has anyway, are read without a note.

Ambiguous names are not read: a batch (per GPU or global), a time without a unit (in its name or in all its cells), a number of GPUs (per
node or in total).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from calibration.cells import read_cell
from calibration.run_words import number_meant, plain_column, precision_meant
from calibration.stack_words import read_stack
from sim.spec.strict import whole_number

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "hardware": ("cluster", "instance", "instance_type", "machine", "node_type", "platform", "server", "system"),
    "gpu": ("accelerator", "gpu_model", "gpu_name", "gpu_type"),
    "workload": ("model", "model_name"),
    "stack": ("framework",),
    "nodes": ("hosts", "n_nodes", "nnodes", "node_count", "num_hosts", "num_machines", "num_nodes"),
    "gpus_per_node": ("gpus/node", "gpus_per_host", "gpus_per_machine", "nproc_per_node", "num_gpus_per_node"),
    "total_gpus": ("gpu_count", "n_gpus", "num_gpus", "total_num_gpus", "world_size"),
    "batch_per_gpu": (
        "batch/gpu",
        "batch_per_device",
        "batch_size/gpu",
        "batch_size_per_device",
        "batch_size_per_gpu",
        "local_batch",
        "local_batch_size",
        "local_micro_batch",
        "local_microbatch",
        "micro_batch",
        "micro_batch_size",
        "per_device_batch",
        "per_device_batch_size",
        "per_device_train_batch_size",
        "per_gpu_batch",
        "per_gpu_batch_size",
    ),
    "global_batch": ("global_batch_size", "total_batch_size"),
    "gradient_accumulation_steps": ("accum", "accumulation_steps", "grad_accum", "grad_accum_steps"),
    "precision": ("dtype",),
    "step_time_s": (
        "elapsed_time_per_iteration_s",  # as Megatron-LM's log
        "iter_time_s",
        "iteration_time_s",
        "s/it",
        "s/iter",
        "s/step",
        "s_per_step",
        "s_per_iter",
        "sec/it",
        "sec/iter",
        "sec/step",
        "sec_per_iter",
        "sec_per_step",
        "seconds/step",
        "seconds_per_step",
        "step_s",
        "step_time_sec",
        "step_time_seconds",
        "time_per_iter_s",
        "time_per_iteration_s",
        "time_per_step_s",
    ),
    "note": ("comment", "comments", "notes", "remark"),
}
_DATA: Final = frozenset({"data", "data_source", "data_type", "dataset", "real_or_synthetic_data"})
"""Names of columns that say which samples were read."""
TIMES_OF_STEPS: Final = frozenset(
    {"iter_time", "iteration_time", "step_time", "time_per_iter", "time_per_iteration", "time_per_step", "time/iter", "time/step"}
    | {"elapsed_time_per_iteration"}
)
"""Names of step times, which are read if every cell has its unit."""
_RATES: Final = frozenset({"speed", "throughput"})
"""Names of rates whose unit is in a column `_UNIT`."""
_UNIT: Final = "unit"
_MOST_GPUS_OF_A_NODE: Final = 16
"""Most GPUs of one machine of the catalog (a2-megagpu-16g, DGX-2, p2.16xlarge)."""
_SYNTHETIC: Final = re.compile(r".*\b(synthetic|fake|dummy|random)\b.*")
IN_MS: Final[Mapping[str, tuple[str, ...]]] = {
    "step_time_s": (
        "elapsed_time_per_iteration_ms",
        "iter_time_ms",
        "iteration_time_ms",
        "ms/it",
        "ms/iter",
        "ms/step",
        "ms_per_step",
        "step_ms",
        "step_time_in_ms",
        "step_time_ms",
        "time_per_iter_ms",
        "time_per_iteration_ms",
        "time_per_step_ms",
    ),
    "exposed_sync_s": ("exposed_sync_ms",),
}
"""Names that other tables have for our columns of seconds, in milliseconds."""
_RATE: Final = re.compile(
    r"(?:(?:total|train|training)_)?(?:throughput_)?\(?(?:image|img|sample|sequence|seq|sentence|example)s?(?:_per_|/)s(?:ec|econd)?"
    r"(?P<gpu>(?:_per_|/)(?:gpu|device))?\)?"
)
"""Names of rates of samples; those without a GPU count the samples of all."""
_TOKENS: Final = re.compile(r"(?:(?:total|train|training)_)?(?:throughput_)?\(?tok(?:en)?s?(?:_per_|/)s(?:ec|econd)?\)?")
"""Names of rates of tokens of all GPUs."""
_WORDS: Final[Mapping[str, Callable[[str], tuple[str, str]]]] = {"precision": lambda text: (precision_meant(text), ""), "stack": read_stack}
"""Columns whose words are translated, each with what returns the meaning of a cell and what that assumes."""
_NUMBERS: Final = frozenset(
    {"nodes", "gpus_per_node", "total_gpus", "batch_per_gpu", "global_batch", "gradient_accumulation_steps", "step_time_s"}
    | {"exposed_sync_s", "throughput_samples_per_s", "throughput_samples_per_s_per_gpu", "throughput_tokens_per_s"}
)
"""Columns with numbers."""
_BLANK: Final = frozenset({"-", "--", "?", "n/a", "na", "nan", "none", "null"})
"""Contents of cells without a value."""

_SPLITS: Final = frozenset(
    name
    for axis, word in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert"))
    for name in (axis, f"{word}_parallel", f"{word}_parallel_size", f"{axis}_size")
) | {"virtual_pp", "zero", "zero_stage"}
"""Numeric columns that indicate a layout if the value is above one (for a ZeRO stage, above zero)."""
_SHARDS: Final = frozenset({"fsdp", "fsdp_mode", "shard", "sharding", "sharding_strategy", "parallelism", "strategy"})
"""Text columns that indicate a layout if the value matches `_SHARDED`."""
_SHARDED: Final = re.compile(
    r"fsdp\d?|hsdp|zero[-_ ]?[1-3]?|deepspeed|megatron|full_shard|shard_grad_op|hybrid_shard(_zero2)?|parameters|gradients|optimizer|"
    r"(tp|pp|cp|ep|3d)([-_+ x\d].*)?"
)
_NETWORK: Final = frozenset({"fabric", "interconnect", "inter_node", "network"})
"""Columns that say what joins the nodes, beside one that names the model (which some call a network)."""
_SEQUENCE: Final = frozenset({"max_seq_len", "max_seq_length", "seq", "seq_len", "seq_length", "sequence", "sequence_length"})

Cells = Sequence[str]
FitCells = Callable[[Cells], list[str]]
"""Converts the cells of a row to the translated columns."""


class TranslatedHeader(NamedTuple):
    """The columns of a table by our names, how its rows are converted to them, and notes on what was translated, which rows add to."""

    columns: list[str]
    fitting: FitCells
    notes: list[str]


def translate_header(header: Sequence[str], rows: Sequence[Cells] = (), own: Sequence[str] = ()) -> TranslatedHeader:
    """Return *header* with foreign names replaced, and a note for each replaced name.

    ``fitting`` adds a note for each word in a cell that it translated. The cells of *rows* tell what a column ``gpus`` counts. Names of
    our *own* columns are read in any case, and with blanks.
    """
    named = {other: column for column, others in OTHER_NAMES.items() for other in others}
    in_ms = {other: column for column, others in IN_MS.items() for other in others}
    columns, notes, ms_places, data_places, unit_place = list(header), [], set(), set(), None
    for place, name in enumerate(header):
        plain = plain_column(name)
        column = named.get(plain) or in_ms.get(plain) or _rate_meant(plain) or ("input" if plain in _DATA else None)
        column = plain if plain in own else column
        if plain == "gpus":
            column = _gpus_counted(header, rows)
        if plain in _RATES and _UNIT in (plain_names := [*map(plain_column, header)]):
            unit_place = plain_names.index(_UNIT)
            column = _unit_counts(unit_place, rows)
        if plain in TIMES_OF_STEPS and all_have_units(place, rows):
            column = "step_time_s"
        if column is None or column in header or column in columns:
            continue
        columns[place] = column
        if plain in in_ms:
            ms_places.add(place)
        if plain in _DATA:
            data_places.add(place)
        how = ", from milliseconds" if plain in in_ms else ", synthetic or else real" if plain in _DATA else ""
        notes.append(f"column '{name}' was read as {column}{how}")

    def fitting(cells: Cells) -> list[str]:
        filled = ["" if cell.strip().lower() in _BLANK else cell for cell in cells]
        filled = [_input_meant(cell) if place in data_places and cell else cell for place, cell in enumerate(filled)]
        if unit_place is not None:
            filled = _with_unit(columns, filled, unit_place)
        return [_meant(column, cell, place in ms_places, notes) for place, (column, cell) in enumerate(_paired(columns, filled))]

    return TranslatedHeader(columns, fitting, notes)


def describes_input(header: Cells) -> bool:
    """Return whether *header* has a column that can describe the loader of samples; the name of a data set does not."""
    return not {"input", "set"}.isdisjoint(plain_column(name) for name in header)


def without_loaders(header: TranslatedHeader) -> TranslatedHeader:
    """Return *header* with a column ``input`` that has synthetic samples in it: which loader read a data set is not said."""
    columns, fitting, notes = header
    if "input" not in columns:
        return TranslatedHeader(["input", *columns], lambda cells: ["synthetic", *fitting(cells)], notes)
    place = columns.index("input")

    def without(cells: Cells) -> list[str]:
        fitted = fitting(cells)
        return [*fitted[:place], "synthetic", *fitted[place + 1 :]] if len(fitted) > place else fitted

    return TranslatedHeader(columns, without, notes)


def _gpus_counted(header: Cells, rows: Sequence[Cells]) -> str | None:
    """Return what a column ``gpus`` counts, ``total_gpus`` or ``gpus_per_node``; None if *rows* leave it open.

    Rows on one node do not tell. More than any machine has are those of all nodes, and so are numbers that grow with the nodes; a number
    that the nodes do not divide is that of each.
    """
    plain = [plain_column(name) for name in header]
    if not rows or not {"gpus_per_node", "total_gpus", *OTHER_NAMES["gpus_per_node"], *OTHER_NAMES["total_gpus"]}.isdisjoint(plain):
        return None
    place, of_nodes = plain.index("gpus"), next((plain.index(name) for name in ("nodes", *OTHER_NAMES["nodes"]) if name in plain), None)
    if of_nodes is None:
        return "total_gpus"
    counts = {(nodes, gpus) for cells in rows if (nodes := _whole(cells, of_nodes)) and (gpus := _whole(cells, place)) and nodes > 1}
    if any(gpus % nodes for nodes, gpus in counts):
        return "gpus_per_node"
    grows = any(
        first < second and first_gpus * second == second_gpus * first for first, first_gpus in counts for second, second_gpus in counts
    )
    return "total_gpus" if grows or not counts or max(gpus for _, gpus in counts) > _MOST_GPUS_OF_A_NODE else None


def _unit_counts(place: int, rows: Sequence[Cells]) -> str:
    """Return the column of a rate whose unit is at *place* of *rows*: that of tokens if all units are, or else that of samples."""
    units = [unit for cells in rows if place < len(cells) and (unit := cells[place].strip().lower())]
    of_tokens = units and all(re.fullmatch(r"k?\s*tok(en)?s?\s*/\s*s(ec|econd)?", unit) for unit in units)
    return "throughput_tokens_per_s" if of_tokens else "throughput_samples_per_s"


def all_have_units(place: int, rows: Sequence[Cells]) -> bool:
    """Return whether each cell at *place* of *rows* that is not blank is a time with its unit, and there is such a cell."""
    cells = [cell for one in rows if place < len(one) and (cell := one[place].strip()) and cell.lower() not in _BLANK]
    return bool(cells) and all((reading := read_cell("step_time_s", cell)) is not None and reading.words for cell in cells)


def _whole(cells: Cells, place: int) -> int:
    """Return the whole number in the cell at *place*; 0 if there is none."""
    text = cells[place].strip().replace(",", "") if place < len(cells) else ""
    return int(float(text)) if re.fullmatch(r"\d{1,9}(\.0*)?", text) else 0


def _with_unit(columns: Cells, cells: list[str], place: int) -> list[str]:
    """Return *cells* with the unit at *place* after the number of the column of samples per second, if that has none."""
    unit = cells[place].strip() if place < len(cells) else ""
    return [
        f"{cell} {unit}"
        if unit and column in ("throughput_samples_per_s", "throughput_tokens_per_s") and re.fullmatch(r"[\d.,]+", cell.strip())
        else cell
        for column, cell in _paired(columns, cells)
    ]


def _input_meant(cell: str) -> str:
    """Return the input of records that the name of a data set means."""
    return "synthetic" if _SYNTHETIC.fullmatch(cell.strip().lower()) else "real"


def _rate_meant(plain: str) -> str | None:
    """Return the column that the name of a rate means, such as ``images/sec``, ``samples_per_s_per_gpu`` or ``tokens/s``; else None."""
    if _TOKENS.fullmatch(plain):
        return "throughput_tokens_per_s"
    rate = _RATE.fullmatch(plain)
    return f"throughput_samples_per_s{'_per_gpu' if rate['gpu'] else ''}" if rate else None


def _paired(columns: Sequence[str], cells: Cells) -> list[tuple[str, str]]:
    """Return each of *cells* with its column; cells beyond the last column have none."""
    return [(columns[place] if place < len(columns) else "", cell) for place, cell in enumerate(cells)]


def _meant(column: str, cell: str, is_in_ms: bool, notes: list[str]) -> str:
    """Return the content of *cell* in the words and units of *column*; a note on every word that was translated goes into *notes*."""
    if column in _WORDS and cell:
        meant, assumed = _WORDS[column](cell.strip())
        note = f"{column} '{cell.strip()}' was read as {meant}{f'; assumed: {assumed}' if assumed else ''}"
        if meant.lower() != cell.strip().lower() and note not in notes:
            notes.append(note)
        return meant
    if column not in _NUMBERS:
        return cell
    if is_in_ms and not re.search("[a-z]", cell.lower().replace("e", "")):
        return _from_ms(number_meant(column, cell))
    if column == "gradient_accumulation_steps" and cell.strip() == "0":
        return "1"  # no further micro-batches
    meant = number_meant(column, cell)
    _note_unit(column, cell.strip(), meant, notes)
    return meant


def _note_unit(column: str, cell: str, meant: str, notes: list[str]) -> None:
    """Add to *notes* that *cell* was read as *meant* seconds if it has another unit, once for each unit."""
    unit = cell.lstrip("0123456789.,")
    number = cell.removesuffix(unit).strip().replace(",", "")
    begin, middle = f"{column} '", f"{unit}' was read as "
    if unit and meant not in (cell, number) and not any(note.startswith(begin) and middle in note for note in notes):
        seconds = " seconds" if column.endswith("time_s") or column.endswith("sync_s") else ""
        notes.append(f"{begin}{cell}' was read as {meant}{seconds}, and others likewise")


def is_recognized(name: str) -> bool:
    """Return whether the column *name*, which records do not have, is read because it specifies a layout, a length, a network or a unit."""
    return plain_column(name) in _SPLITS | _SHARDS | _SEQUENCE | _NETWORK | {_UNIT}


def layout_of(header: Sequence[str], cells: Cells) -> str:
    """Return the first cell that indicates a layout, after its column name; empty if none does (plain data parallelism)."""
    for name, cell in zip(header, cells, strict=False):
        plain, value = plain_column(name), cell.strip().lower()
        minimum = 1 if plain.startswith("zero") else 2
        split = plain in _SPLITS and value.isdigit() and ((number := whole_number(value)) is None or number >= minimum)
        if split or (plain in _SHARDS and _SHARDED.fullmatch(value)):
            return f"{name} {cell.strip()}"
    return ""


def sequence_of(header: Sequence[str], cells: Cells) -> str:
    """Return the tokens per sample that a column specifies; empty if none does."""
    tokens = next((cell.strip() for name, cell in zip(header, cells, strict=False) if plain_column(name) in _SEQUENCE and cell.strip()), "")
    return re.sub(r"(?<=\d)\.0+$", "", tokens)


def network_of(header: Sequence[str], cells: Cells) -> str:
    """Return what a column says of the network between nodes; empty if none does."""
    return next((cell.strip() for name, cell in zip(header, cells, strict=False) if plain_column(name) in _NETWORK and cell.strip()), "")


def _from_ms(cell: str) -> str:
    """Return *cell* converted from milliseconds to seconds; text that is no number is unchanged, so that errors quote it as written."""
    try:
        return f"{float(cell) / 1e3:.12g}"
    except ValueError:
        return cell
