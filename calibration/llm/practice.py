"""What do the scripts of a row's source set that its table does not say? Read from ``practice.yaml``; a row's own columns win."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from calibration.llm.shapes import CannotDescribe, records_yaml
from calibration.llm.table import LARGEST_STAGE, LlmRow
from calibration.llm.words import Recompute, means_yes, modules_of, recompute_of, saves_of, shards_of_software, zero_of
from sim.spec.library import load_part
from sim.spec.stack import Stack

_SPLITTERS: Final = re.compile(r"megatron|nemo|mcore|bridge|nanotron|neox")
"""Software that splits models along other axes, whatever the stage of ZeRO."""
_REPLICATES: Final = re.compile(r"\bddp\b|distributed.?data.?parallel|nano.?gpt")
"""Software or strategies without any axis but data parallelism (karpathy/nanoGPT train.py: DistributedDataParallel)."""
EAGER_STACKS: Final = {name: f"{name}-eager" for name in ("torchtitan-2.x", "torchtitan-0.2")}
"""Stacks whose blocks torch.compile compiles, and those of the same software without it."""
COMPILED_STACKS: Final = dict.fromkeys(("hf-fsdp1", "hf-ddp", "hf-ddp-bf16"), "torchtitan-2.x")
"""Stacks that run operator by operator, and those that stand in for the same software with torch.compile."""
_COMPILED_ZERO: Final = "hf-deepspeed"
"""A stack whose software may compile, without another that stands in for it then."""
FUSED: Final = ("fused_latents", "fused_squares")
"""Options of a stack's mesh in which software may differ from it."""
_UNITS: Final = {"GiB": 2.0**30, "GB": 1e9}


def practice_of(row: LlmRow) -> Mapping[str, Any]:
    """Return the settings of the scripts of *row*'s source: the first entry of ``practice.yaml`` that matches."""
    for entry in records_yaml("practice.yaml"):
        if all(re.search(pattern, _cell(row, column), re.IGNORECASE) for column, pattern in entry["match"].items()):
            return entry
    raise AssertionError("practice.yaml ends with an entry that matches all")


def _cell(row: LlmRow, column: str) -> str:
    """Return the text of *column*; that of ``software`` is its framework and its source, that of ``trained`` what says what is trained."""
    if column == "trained":
        return " ".join(row.text[name] for name in ("class", "model", "set"))
    return f"{row.text['framework']} {row.text['source']}" if column == "software" else row.text_or_number(column)


def practice_assumptions(row: LlmRow, practice: Mapping[str, Any]) -> list[str]:
    """Return what is assumed about the software of *row*."""
    assumed = ["software settings that the table does not state: " + practice["place"]] if practice["place"].startswith("assumed") else []
    if not names_software(practice):
        stated, stack = row.text["framework"], practice["stack"]
        assumed.append(f"framework {stated!r} is unknown; predicted as {stack}" if stated else f"framework {stack}")
    return assumed


def names_software(practice: Mapping[str, Any]) -> bool:
    """Return whether *practice* is that of a known source or software, not what is assumed for unknown software."""
    return not {"source", "framework", "software"}.isdisjoint(practice["match"])


def stack_with(stack: str, family: str, axes: Mapping[str, int], compiled: bool, assumed: list[str]) -> str:
    """Return *stack* if its software splits models along all of *axes* with more than one rank, or else a stack that does.

    The other stack is the simulated one of the same kind: torchtitan for FSDP, Megatron-Core for the rest. It goes into *assumed*. A stack
    of compiled blocks is that without if the run is not *compiled*, and the reverse.
    """
    stack = COMPILED_STACKS.get(stack, stack) if compiled else stack
    if compiled and stack == _COMPILED_ZERO:
        assumed.append("operator by operator: compiled blocks under ZeRO are not described")
    mesh = load_part(Stack, stack).mesh
    missing = [axis for axis, size in axes.items() if size > 1 and mesh is not None and axis not in mesh.axes]
    if not missing:
        return stack if compiled else EAGER_STACKS.get(stack, stack)
    other = "torchtitan-2.x" if family.startswith("fsdp") else "megatron-core"
    assumed.append(f"{' and '.join(missing)} ranks as in {other}: {stack} has none")
    return other if compiled else EAGER_STACKS.get(other, other)


_COMPILES: Final = re.compile(
    r"(?:\b(?P<no>no|not|without|w/o|non|never)[- ]+(?:us(?:e|ing) )?)?(?<![a-z])(?:torch[. _]?)?compiled?\b"
    r"(?! (?:from|with|against|for|on)\b)(?:(?: (?:is|was))?\s*[=:]?\s*(?P<off>off|false|no|none|not|disabled)\b)?"
)
"""Words on torch.compile, but not on what a library was compiled from or with."""


def is_compiled(row: LlmRow, practice: Mapping[str, Any], assumed: list[str]) -> bool:
    """Return whether torch.compile compiles the blocks: as the row's column says, or else words beside the framework or in the notes.

    By default, no software does; for software whose stack is compiled, this goes into *assumed*.
    """
    if said := row.text["compile"]:
        return means_yes(said, False) and "eager" not in said.lower()
    if words := _COMPILES.search(f"{row.text['framework']} {row.text['notes']}".lower()):
        return not (words["no"] or words["off"])
    if practice["stack"] in EAGER_STACKS:
        assumed.append("not compiled, which is the default")
    return False


def prediction_layers_of(row: LlmRow, practice: Mapping[str, Any]) -> int:
    """Return how many layers of multi-token prediction *row* trains: as its model's name says (``w/ MTP``), or else its scripts."""
    said = re.search(r"(w/o|without|no)?\s*\bmtp\b", row.text["model"].lower())
    if said:
        return 0 if said.group(1) else 1
    return int(practice.get("prediction_layers", 0))


def blocks_of_chunks(layers: int, chunks: int, first_less: int) -> tuple[int, ...]:
    """Return the number of blocks of each of *chunks*, if scripts give the last one what others leave; empty if that is not possible.

    The first has *first_less* blocks fewer than the others, and one fewer again if the last would have less than none.
    """
    each = math.ceil((layers + first_less) / chunks)
    last = layers - each * (chunks - 1) + first_less
    lacking = max(0, -last)
    first = each - first_less - lacking
    return (first, *[each] * (chunks - 2), last + lacking) if chunks > 1 and lacking <= 1 and first >= 0 else ()


def data_parallel_by(row: LlmRow) -> str:
    """Return what says that *row*, which states no axis, is data-parallel; empty if nothing does.

    Megatron's distributed optimizer is a stage of ZeRO beside any axes, so that its first stage alone does not tell.
    """
    stage, framework = row.text_or_number("zero_stage"), row.text["framework"].lower()
    named = shards_of_software(framework)
    with suppress(CannotDescribe):
        shards = zero_of(stage) if stage else named.stage if named else 0
        if shards == LARGEST_STAGE or row.text["fsdp_mode"] or (not stage and re.search("fsdp", framework)):
            return "parameters are sharded"
        if shards and not _SPLITTERS.search(framework):
            return f"the model's states are sharded (ZeRO-{shards})"
    return "each GPU has the whole model" if _REPLICATES.search(framework) else ""


def is_sequence_parallel(row: LlmRow, practice: Mapping[str, Any]) -> bool:
    """Return whether tensor ranks of *row* split the sequence between them too; by default, they do."""
    return means_yes(row.text["sp"], bool(practice.get("sequence_parallel", True)))


def recompute_in(row: LlmRow, practice: Mapping[str, Any], blocks: int) -> tuple[Recompute, int]:
    """Return what *row* recomputes, and in how many of the *blocks* of a rank (0: all)."""
    stated, usual = row.text["activation_checkpointing"], practice["recompute"]
    if not stated and not saves_of(usual):
        return usual, 0
    return recompute_of(stated or usual, practice["family"], blocks)


def modules_in(row: LlmRow, practice: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that the row recomputes, from a text such as ``selective: mlp, core_attn``; if it is blank, its source's."""
    if not row.text["activation_checkpointing"]:
        return tuple(practice.get("modules", ()))
    return modules_of(row.text["activation_checkpointing"])


def uses_graphs(row: LlmRow, practice: Mapping[str, Any]) -> bool:
    """Return whether blocks are replayed as CUDA graphs: from a note or the source's scripts; by default, Megatron on Grace racks."""
    notes = row.text["notes"].lower()
    if "graphs" in notes:
        return "no graphs" not in notes
    return bool(practice.get("graphs", practice["family"] == "megatron" and row.text["gpu"].startswith("GB")))


def launch_settings(row: LlmRow, practice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Case` on how the host launches kernels: as graphs, or each when the one before it is over."""
    return {"uses_cuda_graphs": uses_graphs(row, practice), "launch_blocking": bool(practice.get("launch_blocking"))}


def expert_settings(row: LlmRow, notes: str, practice: Mapping[str, Any]) -> dict[str, Any]:
    """Return how tokens reach experts, and what is fused before: from the row or else from its source's scripts."""
    return {
        "expert_overlap": "EP overlap on" in notes or ("EP overlap off" not in notes and bool(practice.get("expert_overlap"))),
        "one_copy": "HybridEP" in notes or ("alltoall" not in notes and bool(practice.get("one_copy"))),
        "fused": {name: bool(practice[name]) for name in FUSED if name in practice},
        "drops_tokens": "tokendrop" in row.text["model"].lower() or bool(practice.get("token_drop")),
    }


def data_settings(practice: Mapping[str, Any], sequence: int) -> dict[str, Any]:
    """Return the fields of a `Case` on data, from the scripts of a source: what adapters train, documents, and keys of context ranks.

    No document is longer than the *sequence* (tokens) that it is packed into.
    """
    return {
        "lora_targets": tuple(practice.get("lora_targets", ())),
        "document_tokens": min(int(practice.get("document_tokens", 0)), sequence),
        "context_exchange": str(practice.get("context_exchange", "ring")),
    }


def memory_settings(practice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Case` on memory, from the scripts of a source: how it is read, and what changes it."""
    return {
        "memory_unit": _UNITS[practice.get("memory_unit", "GiB")],
        "optimizer_states": str(practice.get("states", "")),
        "activation_kept": float(practice.get("activation_kept", 1.0)),
        "logit_bytes": float(practice.get("logit_bytes", 0.0)),
        "memory_reading": str(practice.get("memory", "allocated")),
        "memory_rank": str(practice.get("memory_rank", "fullest")),
    }
