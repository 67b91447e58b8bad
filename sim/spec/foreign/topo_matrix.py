"""What is in a pasted `nvidia-smi topo -m`? The matrix of path types, affinities and NIC names, read token by token.

Pasted text loses its tabs, contains color codes, prompts and quote marks, and is wrapped at the width of the terminal. It is therefore
read as a stream of tokens, each with its line: column names from ``GPU0`` on, then for each of them its name, one path type per column,
and the entries under CPU Affinity, NUMA Affinity and GPU NUMA ID. Lines such as ``GPU 0: Tesla V100-SXM2-16GB (UUID: ...)``
(`nvidia-smi -L`) before or after the matrix name the GPUs.

Only a wrap inside a word cannot be repaired; the error message then has its line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sim.spec.wiring import CLASSES, MOST_DEVICES, Branch, Card, Near, Pair, Tree, Wiring, WiringContradiction, pairs, tree
from sim.spec.yaml import SpecError
from sim.units import shorten

FORM: Final = "nvidia-smi topo -m"
MOST_CPUS: Final = 4096
ACCEPTED: Final = f"X, NV1 and so on, {', '.join(CLASSES)}"

COLOR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_GPU = re.compile(r"GPU(\d{1,4})")
_NVLINK = re.compile(r"NV([1-9]\d?)")
_AFFINITY = re.compile(r"N/A|\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*,?")
_LEGEND = re.compile(r"(NIC\d{1,4})\s*:\s*([\w.:-]{1,64})")
_LISTED = re.compile(r"GPU\s+\d{1,4}:\s*(.{1,80}?)\s*\(UUID")
_TITLES = ("CPU", "NUMA", "GPU", "AFFINITY", "ID")
"""Words of the columns after the devices: CPU Affinity, NUMA Affinity, GPU NUMA ID."""


@dataclass(frozen=True)
class _MatrixCell:
    text: str
    line: int

    @property
    def symbol(self) -> str:
        return self.text.upper()

    @property
    def is_class(self) -> bool:
        return self.symbol == "X" or self.symbol in CLASSES or _NVLINK.fullmatch(self.symbol) is not None


@dataclass
class _MatrixRow:
    label: _MatrixCell
    cells: list[_MatrixCell] = field(default_factory=list)
    tail: list[_MatrixCell] = field(default_factory=list)


def read_matrix(text: str, file: str) -> Wiring:
    """Return the wiring in *text*; *file* is the name used in messages. Raise SpecError with the line of the error."""
    tokens = _tokens(text, file)
    columns = _columns(tokens, file)
    rows = _rows(tokens[len(columns) :], columns, file)
    _check_square(rows, columns, file)
    gpus = sum(_GPU.fullmatch(column.text) is not None for column in columns)
    classes, nvlinks = _pair_types(rows, gpus)
    cpus, places, numa = _affinities(rows[:gpus])
    tree = _tree(rows, gpus, classes, places or cpus, file)
    return Wiring(
        form=FORM,
        gpus=gpus,
        cards=_cards(text, [column.text for column in columns[gpus:]]),
        domains=tree.domains,
        branches=tree.branches,
        nvlinks=nvlinks,
        classes={pair: near for pair, near in classes.items() if max(pair) < gpus},
        gpu_names=tuple(dict.fromkeys(match[1] for match in _LISTED.finditer(text))),
        vcpus=_count_cpus(cpus),
        numa_nodes=numa,
        notes=tuple(_notes(tree, nvlinks, [column.text for column in columns], gpus)),
    )


def _wrong(file: str, line: int, message: str) -> SpecError:
    return SpecError(f"{file}:{line}: {message}")


def _words(line: str) -> list[str]:
    return COLOR.sub("", line).replace("|", " ").replace("`", " ").lstrip(" \t>#").split()


def _tokens(text: str, file: str) -> list[_MatrixCell]:
    """Return the tokens from the first line that starts with GPU0 to the legend."""
    lines = [_words(line) for line in text.splitlines()]
    start = next((index for index, words in enumerate(lines) if words[:1] == ["GPU0"]), None)
    if start is None:
        raise _wrong(file, 1, "no topology matrix: no line starts with GPU0; paste the whole output of 'nvidia-smi topo -m'")
    tokens: list[_MatrixCell] = []
    for index, words in enumerate(lines[start:], start=start):
        if words and (words[0].rstrip(":").lower() == "legend" or words[:2] == ["NIC", "Legend:"]):
            break
        tokens += [_MatrixCell(word, index + 1) for word in words]
    return tokens


def _columns(tokens: Sequence[_MatrixCell], file: str) -> list[_MatrixCell]:
    """Return the names of the columns, GPUs first."""
    columns: list[_MatrixCell] = []
    for token in tokens:
        if token.symbol in _TITLES or (columns and token.text == columns[0].text):
            break
        if token.is_class:
            raise _wrong(file, token.line, "the line of column names is missing (GPU0 GPU1 ...); paste the whole output")
        if token.text in (column.text for column in columns):
            raise _wrong(file, token.line, f"column {shorten(token.text)} appears twice; paste the output of one machine")
        columns.append(token)
        if len(columns) > MOST_DEVICES:
            raise _wrong(file, token.line, f"more than {MOST_DEVICES} columns, which is too many for one machine")
    numbers = [int(match[1]) for column in columns if (match := _GPU.fullmatch(column.text))]
    if numbers != list(range(len(numbers))) or any(_GPU.fullmatch(column.text) is None for column in columns[: len(numbers)]):
        raise _wrong(file, tokens[0].line, "the columns are not GPU0, GPU1, ... followed by the NICs; paste the output unchanged")
    return columns


def _rows(tokens: Sequence[_MatrixCell], columns: Sequence[_MatrixCell], file: str) -> list[_MatrixRow]:
    """Return one row per column, in the order of the columns."""
    labels = [column.text for column in columns]
    at = next((index for index, token in enumerate(tokens) if token.text == labels[0]), len(tokens))
    end = tokens[-1].line if tokens else columns[-1].line
    rows: list[_MatrixRow] = []
    for number, label in enumerate(labels):
        if at == len(tokens) or tokens[at].text != label:
            line = tokens[at].line if at < len(tokens) else end
            raise _wrong(file, line, f"row {label} is missing: {len(labels)} columns, {len(rows)} rows; paste the whole output")
        row = _MatrixRow(tokens[at])
        at = _fill(row, tokens, at + 1, labels, file)
        at = _take_tail(row, tokens, at, labels[number + 1 :], file)
        rows.append(row)
    if at < len(tokens) and tokens[at].line > rows[-1].label.line and [token.is_class for token in tokens[at : at + 2]] == [False, True]:
        raise _wrong(file, tokens[at].line, f"row {shorten(tokens[at].text)} has no column; paste the whole output unchanged")
    return rows


def _fill(row: _MatrixRow, tokens: Sequence[_MatrixCell], at: int, labels: Sequence[str], file: str) -> int:
    """Read the path types of *row* from *at* on; return the position after them."""
    for label in labels:
        token = tokens[at] if at < len(tokens) else None
        if token is None or token.text in labels or _AFFINITY.fullmatch(token.text):
            line = token.line if token is not None and token.text not in labels else tokens[at - 1].line
            raise _wrong(file, line, f"row {row.label.text} has {len(row.cells)} entries for {len(labels)} columns; paste the whole output")
        if not token.is_class:
            raise _wrong(
                file, token.line, f"row {row.label.text}, column {label}: {shorten(token.text)} is not a path type; write {ACCEPTED}"
            )
        row.cells.append(token)
        at += 1
    return at


def _take_tail(row: _MatrixRow, tokens: Sequence[_MatrixCell], at: int, later: Sequence[str], file: str) -> int:
    """Read the affinities of *row* from *at* on; return the position after them: at the next row, or after the last one."""
    while at < len(tokens) and tokens[at].text not in later:
        token = tokens[at]
        if not later and (token.line > row.cells[-1].line + 1 or not (_AFFINITY.fullmatch(token.text) or token.is_class)):
            break
        if token.is_class:
            raise _wrong(
                file, token.line, f"row {row.label.text} has more entries than there are columns; paste the whole output unchanged"
            )
        if not _AFFINITY.fullmatch(token.text):
            due = "CPUs such as 0-23,48-71, a NUMA node, or N/A"
            raise _wrong(file, token.line, f"row {row.label.text} ends with {shorten(token.text)}; expected {due}, then row {later[0]}")
        row.tail.append(token)
        at += 1
    return at


def _check_square(rows: Sequence[_MatrixRow], columns: Sequence[_MatrixCell], file: str) -> None:
    for index, row in enumerate(rows):
        if row.cells[index].symbol != "X":
            cell = row.cells[index]
            raise _wrong(file, cell.line, f"row {row.label.text}, column {row.label.text}: found {cell.text}, expected X")
    for one, other in pairs(len(rows)):
        there, back = rows[one].cells[other], rows[other].cells[one]
        if "X" in (there.symbol, back.symbol):
            cell = there if there.symbol == "X" else back
            raise _wrong(
                file,
                cell.line,
                f"{columns[one].text} and {columns[other].text}: found X between two devices; X belongs only on the diagonal",
            )
        if there.symbol != back.symbol:
            raise _wrong(
                file,
                back.line,
                f"not symmetric: row {columns[other].text}, column {columns[one].text} is {back.text}, but line {there.line} has "
                f"{there.text} for the reverse; both must agree",
            )


def _pair_types(rows: Sequence[_MatrixRow], gpus: int) -> tuple[dict[Pair, Near], dict[Pair, int]]:
    """Return the PCIe path types and the numbers of NVLinks by pair."""
    classes: dict[Pair, Near] = {}
    nvlinks: dict[Pair, int] = {}
    for one, other in pairs(len(rows)):
        symbol = rows[one].cells[other].symbol
        match = _NVLINK.fullmatch(symbol)
        if match is None:
            classes[one, other] = CLASSES[symbol]
        elif other < gpus:
            nvlinks[one, other] = int(match[1])
    return classes, nvlinks


def _affinities(rows: Sequence[_MatrixRow]) -> tuple[list[str], list[str], int]:
    """Return the CPUs and the NUMA node of each GPU (empty if unknown), and the number of NUMA nodes."""
    tails = [_joined(row.tail) for row in rows]
    cpus = [tail[0] if tail and tail[0] != "N/A" else "" for tail in tails]
    nodes = [tail[1] if len(tail) > 1 and tail[1].isdigit() else "" for tail in tails]
    return cpus, nodes if all(nodes) else [], len(set(nodes)) if all(nodes) else 0


def _joined(tail: Sequence[_MatrixCell]) -> list[str]:
    """Return the affinities, with lists that were wrapped after a comma joined again."""
    lists: list[str] = []
    for token in tail:
        if lists and lists[-1].endswith(","):
            lists[-1] += token.text
        else:
            lists.append(token.text)
    return lists


def _count_cpus(cpus: Sequence[str]) -> int | None:
    """Return the total number of hardware threads in the lists; None if there are none."""
    threads: set[int] = set()
    for piece in {piece for text in cpus for piece in text.split(",") if piece}:
        first, _, last = piece.partition("-")
        if int(last or first) < MOST_CPUS:
            threads.update(range(int(first), int(last or first) + 1))
    return len(threads) or None


def _tree(rows: Sequence[_MatrixRow], gpus: int, classes: dict[Pair, Near], places: Sequence[str], file: str) -> Tree:
    try:
        return tree(len(rows), gpus, classes, [*places, *[""] * (len(rows) - gpus)])
    except WiringContradiction as error:
        one, other = error.pair
        cell = rows[one].cells[other]
        names = f"{rows[one].label.text} and {rows[other].label.text}"
        raise _wrong(file, cell.line, f"{names} are {cell.text}, but must be {error.needed}; check the paste") from None


def _cards(text: str, columns: Sequence[str]) -> tuple[Card, ...]:
    names = dict(_LEGEND.findall(text))
    return tuple(Card(names.get(column, column)) for column in columns)


def _notes(tree: Tree, nvlinks: dict[Pair, int], devices: Sequence[str], gpus: int) -> list[str]:
    notes = []
    torn = [f"{one}-{other}" for one, other in tree.torn if other < gpus]
    if torn:
        shown = ", ".join(torn[:4]) + (" and more" if len(torn) > 4 else "")
        notes.append(f"Path types and NUMA affinity disagree on the sockets of GPUs {shown}; used the path types.")
    if nvlinks and {gpu for branch in tree.branches for gpu in branch.gpus} < set(range(gpus)):
        notes.append("NVLink hides the PCIe path of its pairs: GPUs without a nearer device are attached directly to their socket.")
    if distant := _distant_cards(tree.branches, devices[gpus:]):
        notes.append(
            f"{', '.join(distant)} {'share' if len(distant) > 1 else 'shares'} no PCIe switch with a GPU, unlike other cards: counted as "
            "cards of the network between GPUs; if they serve only storage, delete their rows and columns and read the print again."
        )
    if not nvlinks and gpus > 1 and all(not branch.gpus for branch in tree.branches):
        notes.append("No PCIe switch is visible between GPUs; a virtual machine may hide switches and sockets.")
    return notes


def _distant_cards(branches: Sequence[Branch], cards: Sequence[str]) -> list[str]:
    """Return those of *cards* below whose outermost switch there is no GPU, if others have one there."""
    parents = {branch.name: branch.parent for branch in branches}

    def outermost(name: str) -> str:
        return outermost(parents[name]) if parents[name] in parents else name

    shared = {outermost(branch.name) for branch in branches if branch.gpus}
    near = {card for branch in branches if outermost(branch.name) in shared for card in branch.nics}
    return [card for number, card in enumerate(cards) if number not in near] if near else []
