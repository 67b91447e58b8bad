"""Over how many GPUs does a measured run go, on which nodes, and along which axes is its model divided?

What a row leaves blank follows from its other columns or from what is usual for its GPU, and is noted. Numbers that do not multiply out
raise `CannotDescribe`.
"""

from __future__ import annotations

import math
import re
from typing import Final

from calibration.gpu_names import count_of
from calibration.llm.chips import PCIE_NODE, RACK, Chip
from calibration.llm.practice import data_parallel_by
from calibration.llm.shapes import CannotDescribe, axis, count
from calibration.llm.table import LlmRow
from sim.spec.transformer import Transformer


def gpus_of(row: LlmRow, chip: Chip, assumed: list[str]) -> int:
    """Return the number of GPUs: that of the row or, if it is blank, of its axes, or of its nodes."""
    gpus = count(row, "gpus")
    axes = [count(row, name) for name in ("dp", "tp", "pp", "cp")]
    ranks = math.prod(max(1, size) for size in axes) if axes[0] and "dp" not in row.non_numeric else 0
    if chip.dies > 1 and gpus and ranks == chip.dies * gpus:
        assumed.append(f"{ranks} GPUs, the product of dp, tp, pp and cp; the row counts {gpus} cards of {chip.dies}")
        return ranks
    nodes, on_each = count(row, "nodes"), count_of(row.text["gpu"])
    if gpus <= chip.usual_gpus and nodes > 1 and gpus and ranks == nodes * gpus:
        assumed.append(f"{ranks} GPUs, the product of dp, tp, pp and cp; the row counts {gpus} on each of {nodes} nodes")
        return ranks
    if gpus:
        return gpus
    if ranks:
        assumed.append(f"{ranks} GPUs, the product of dp, tp, pp and cp")
        return ranks
    if on_each:
        assumed.append(f"{max(1, nodes) * on_each} GPUs, {on_each} on each node by {row.text['gpu']!r}")
        return max(1, nodes) * on_each
    if not nodes:
        raise CannotDescribe("neither gpus nor nodes is a number; add gpus")
    assumed.append(f"{nodes * chip.usual_gpus} GPUs, {chip.usual_gpus} on each node")
    return nodes * chip.usual_gpus


def gpus_of_node(row: LlmRow, chip: Chip, gpus: int, assumed: list[str]) -> int:
    """Return how many GPUs the run uses on each node: what its nodes and GPUs say, or else, and in a rack, what is usual."""
    nodes = count(row, "nodes")
    several = chip.usual_gpus < gpus <= PCIE_NODE or gpus in chip.other_domains  # more than NVLink joins, or as in known machines
    if nodes == 1 and chip.domain < RACK and (chip.domain == 1 or several):
        return gpus
    if not nodes and chip.domain == 1 and chip.pcie:
        of_node = min(gpus, PCIE_NODE)
        assumed += [f"{of_node} {chip.name}s on each node"] if of_node > 1 else []
        return of_node
    return gpus // nodes if chip.domain < RACK and nodes > 1 and gpus % nodes == 0 else chip.usual_gpus


def domain_of(row: LlmRow, chip: Chip, gpus: int, of_node: int) -> int:
    """Return how many GPUs the fabric joins: no more than the run has on a node, and more than usual in nodes that are known for it."""
    if chip.domain >= RACK:
        return chip.domain
    largest = gpus if count(row, "nodes") == 1 else of_node
    if chip.pcie:  # joins all GPUs of a node
        return largest
    return largest if largest in chip.other_domains else min(chip.domain, of_node)


def axes_of(row: LlmRow, shape: Transformer, gpus: int, assumed: list[str]) -> tuple[int, int, int, int]:
    """Return the number of tensor, pipeline, context and data ranks. Raise CannotDescribe if they do not multiply out."""
    _refuse_sequence_ranks(row, axis(row, "tp"))
    if gpus > 1 and not any(row.text_or_number(name) for name in ("dp", "tp", "pp", "cp")):
        how = "only expert ranks are" if axis(row, "ep") > 1 else data_parallel_by(row)
        if not how:
            raise CannotDescribe(f"dp, tp, pp and cp are blank, so the layout is unknown; for data parallelism write dp {gpus}")
        assumed.append(f"dp {gpus}: no axis is stated, and {how}")
    tensor, pipeline, context = axis(row, "tp"), axis(row, "pp"), axis(row, "cp")
    model_ranks = tensor * pipeline * context
    if gpus % model_ranks:
        raise CannotDescribe(f"tp {tensor} x pp {pipeline} x cp {context} does not divide {gpus} GPUs")
    if context > 1 and "G" in (shape.pattern or ""):
        raise CannotDescribe(f"cp {context}: context ranks of layers with gated delta nets are not modeled")
    data = gpus // model_ranks
    if pipeline > shape.block_count:
        raise CannotDescribe(f"pp {pipeline} is more than {shape.block_count} layers")
    if tensor > 1 and shape.heads % tensor:
        raise CannotDescribe(f"tp {tensor} does not divide {shape.heads} heads")
    if row.number.get("dp", data) not in (0, data):
        assumed.append(f"dp {data}, from {gpus} GPUs; the row says {row.number['dp']:g}")
    return tensor, pipeline, context, data


_SEQUENCE_RANKS: Final = re.compile(
    r"(?<![a-z])(?:ulysses|sequence[- ]parallel(?:ism)?|sp)(?:[-_ ]?(?:sp|degree|size))?(?:\s*[=:x]\s*|[- ]?)(\d+)(?![\d.])"
)
_OTHER_SEQUENCE_RANKS: Final = re.compile(r"(?<![a-z])(ulysses|ring)(?![a-z])")
"""Words in the column ``sp`` for ranks that divide sequences otherwise than tensor ranks do."""
_ULYSSES: Final = re.compile(r"(?<!no )(?<!not )(?<!without )ulysses")


def _refuse_sequence_ranks(row: LlmRow, tensor: int) -> None:
    """Raise CannotDescribe if more ranks than *tensor* divide sequences: DeepSpeed-Ulysses (arXiv 2309.14509), not Megatron's tensor ranks.

    Without a column, the framework or the notes say it; ranks of all other axes that multiply out leave none for it.
    """
    stated, beside = row.text["sp"], " ".join(row.text[name] for name in ("framework", "fsdp_mode", "set", "notes")).lower()
    if (other := _OTHER_SEQUENCE_RANKS.search(stated.lower())) and not re.search(r"[=: ]\s*1\b|off|none|false", stated.lower()):
        raise CannotDescribe(f"sp {stated!r}: {other.group()} is not modeled; only sequences that tensor ranks divide are, and ranks in cp")
    degree = re.match(r"\s*(\d+)(?![\d.])", stated) if stated else _SEQUENCE_RANKS.search(beside)
    if degree and int(degree.group(1)) > tensor:
        raise CannotDescribe(f"sp {degree.group(1)}: ranks that divide sequences beside tp {tensor} (Ulysses) are not modeled")
    ranks = math.prod(max(1, count(row, name)) for name in ("dp", "tp", "pp", "cp"))
    if not stated and degree is None and _ULYSSES.search(beside) and not (count(row, "dp") and ranks == count(row, "gpus")):
        raise CannotDescribe("ranks that divide sequences (Ulysses) are not modeled; if there are none, write 1 into the column sp")


def expert_ranks(row: LlmRow, shape: Transformer, ranks: int) -> int:
    """Return the number of expert ranks among the tensor, context and data *ranks*. Raise CannotDescribe if they do not multiply out."""
    expert = axis(row, "ep")
    if expert == 1:
        return 1
    if not shape.experts:
        raise CannotDescribe(f"ep is {expert}, but experts is blank and {row.text['model']!r} is not known to have any")
    if shape.experts % expert:
        raise CannotDescribe(f"ep {expert} does not divide {shape.experts} experts")
    if ranks % expert:
        raise CannotDescribe(f"ep {expert} does not divide the {ranks} tensor, context and data ranks")
    return expert
