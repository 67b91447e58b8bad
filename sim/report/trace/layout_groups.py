"""Which collective does a kernel in a trace belong to? The arguments that PyTorch's profiler adds to NCCL kernels, by operation.

The names are those of torch/csrc/profiler/util.h, which HolisticTraceAnalysis and other readers of Kineto traces look for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sim.mesh import LayoutRun
from sim.parallel.lower.layouts import program
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Receive, Send, Start, Tag
from sim.spec.precision import PRECISION_TRAITS

_NAMES: Final = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_reduce": "allreduce",
    "all_to_all": "all_to_allv",
    "send_recv": "send",
    "broadcast": "broadcast",
}
_DESCRIPTIONS: Final[Mapping[GroupAxis, str]] = {
    "everyone": "default_pg", "tensor": "mesh_tp", "context": "mesh_cp", "shard": "mesh_dp_shard", "reshard": "mesh_dp_reshard",
    "replicate": "mesh_dp_replicate", "expert": "mesh_ep", "expert_data": "mesh_dp_shard_mod_ep", "pool": "mesh_dp", "pipeline": "mesh_pp",
    "ends": "embedding_group",
}  # fmt: skip
"""Descriptions of groups as in torch's DeviceMesh; the group of the pipeline's ends has Megatron's name."""
_ORDER: Final = tuple(_DESCRIPTIONS)
_SHOWN: Final = 30
"""Number of ranks of a group that torch lists before it writes three dots."""


class SentMessage(NamedTuple):
    """One collective, or a message to or from the rank at the same position in another stage."""

    op: str
    axis: GroupAxis
    nbytes: float
    stage: int = -1
    """The other stage of a message."""
    sends: bool = True


def sent_by(run: LayoutRun, stage: int) -> dict[Tag, SentMessage]:
    """Return the collectives and messages of the ranks of *stage* by tag."""
    sent_of: dict[Tag, SentMessage] = {}
    for each in program(run.layout, stage):
        if isinstance(each, Start):
            sent_of[each.tag] = SentMessage(each.op, each.axis, sum(message.nbytes for message in each.messages))
        elif isinstance(each, Send | Receive):
            sent_of[each.tag] = SentMessage("send_recv", "pipeline", each.nbytes, each.stage, isinstance(each, Send))
    return sent_of


def arguments(run: LayoutRun, rank: int, tag: Tag, sent: SentMessage) -> dict[str, Any]:
    """Return the arguments of the kernel of *sent* on *rank*."""
    width, mesh = _width(run, tag, sent), run.mesh
    ranks = mesh.group(rank, sent.axis)
    elements = round(sent.nbytes / width)
    part = elements // len(ranks)
    into, out = {"all_gather": (part, elements), "reduce_scatter": (elements, part)}.get(sent.op, (elements, elements))
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")
    values: dict[str, Any] = {
        "Collective name": _NAMES[sent.op],
        "dtype": _dtype(run, width),
        "In msg nelems": into,
        "Out msg nelems": out,
        "Group size": len(ranks),
        "Process Group Name": _number(run, rank, sent.axis),
        "Process Group Description": _DESCRIPTIONS[sent.axis],
        "Process Group Ranks": f"[{shown}]",
    }
    if sent.op != "send_recv":
        return values
    ends = {"Src Rank": rank, "Dst Rank": ranks[sent.stage]} if sent.sends else {"Src Rank": ranks[sent.stage], "Dst Rank": rank}
    return values | {"Collective name": "send" if sent.sends else "recv"} | ends


def _number(run: LayoutRun, rank: int, axis: GroupAxis) -> str:
    """Return the name of the group of *axis* that *rank* is in: a number that no other group has."""
    return str(_ORDER.index(axis) * run.gpus + min(run.mesh.group(rank, axis)))


def _dtype(run: LayoutRun, width: float) -> str:
    """Return torch's name for the type of elements of *width* bytes."""
    half = "Half" if run.workload.training.precision.endswith("fp16") else "BFloat16"
    return {1.0: "Float8_e4m3fn", 2.0: half}.get(width, "Float")


def groups(run: LayoutRun, rank: int) -> list[dict[str, Any]]:
    """Return the groups of *rank* that its layout uses, in the form of Kineto's ``pg_config``."""
    axes = dict.fromkeys(sent.axis for sent in sent_by(run, run.mesh.stage_of(rank)).values())
    used_axes = dict.fromkeys(("everyone", *axes))
    return [
        {
            "pg_name": _number(run, rank, axis),
            "pg_desc": _DESCRIPTIONS[axis],
            "backend_config": "cuda:nccl",
            "pg_size": run.mesh.group_size(axis),
            "ranks": list(run.mesh.group(rank, axis)),
        }
        for axis in used_axes
    ]


def _width(run: LayoutRun, tag: Tag, sent: SentMessage) -> float:
    """Return the bytes per element of *sent*, the operation with *tag*."""
    if sent.axis == "everyone":
        return 4.0
    if sent.op == "send_recv":
        return PRECISION_TRAITS[run.workload.training.precision].activation
    return run.layout.gathered_width if sent.op == "all_gather" or tag[0] == "partial" else run.layout.reduced_width
