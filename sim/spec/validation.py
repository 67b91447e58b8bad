"""What is wrong with a description? Checks plain data against a typed model and reports all problems as sentences with their places.

Each problem has the form ``file:line:col: dotted.key: what is wrong; what is accepted``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from sim.spec import memo, schema
from sim.spec.adapters import FOUR_BITS, NOT_QUANTIZED
from sim.spec.catalog import catalog, suggestions
from sim.spec.fields import Key
from sim.spec.hardware import Node
from sim.spec.parallel import NOT_SIMULATED, Parallel
from sim.spec.references import UNRESOLVED
from sim.spec.sections import SectionClasses, file_values, sections_of
from sim.spec.training import Training
from sim.spec.yaml import Document, SpecError
from sim.units import any_of, shorten

Described = TypeVar("Described", bound=BaseModel)

_ADVICE: Final = {
    ("model", "workload"): "; write one that uses this layer table, such as '{{extends: resnet50, name: mine, model: {file}}}' with its "
    "own data set and batch"
}
"""Advice for a file of one kind if another is expected: (kind of the file, expected kind)."""

_PART: Final = re.compile(r"name of a file in \S+/(datasets|stacks|gpus|links|cpus|transports|volumes|models)/$")
"""Matches the description of a part that may be given by name, for parts that ``list`` can show."""
MANY: Final = 3
"""Number of missing blocks from which the user probably did not intend to describe the machine in full."""
LISTED_PARTS: Final = ("cpus", "gpus", "links", "transports", "volumes")
"""Folders of parts of machines that ``list`` shows."""

_RAISED: Final = "value_error"
"""pydantic's error type for errors raised by our own validators; their text is already a sentence."""


def validate(kind: type[Described], document: Document, problems: list[str]) -> Described:
    """Return *document* as a *kind*; raise SpecError with the earlier *problems* and all problems of the document."""
    try:
        spec = kind.model_validate(_with_known(kind, document.value))
    except ValidationError as error:
        errors: list[Any] = error.errors(include_url=False)
        raise SpecError([*problems, *_sentences(kind, document, [_in_file(kind, each) for each in errors])]) from None
    if problems:
        raise SpecError(problems)
    if memo.is_open():
        _keep_parts(spec, document.value)
    return spec


def require_kind(kind: type[BaseModel], document: Document) -> None:
    """Raise SpecError if *document* describes something other than a *kind*."""
    if "schema" in document.value and document.root.file.endswith(".json"):
        raise SpecError(f"{document.root}: is a result of this program; expected a {kind.__name__.lower()} file")
    if other := _other_kind(kind, document):
        advice = _ADVICE.get((other, kind.__name__.lower()), "").format(file=document.root.file)
        raise SpecError(f"{document.root}: this is a {other} file; expected a {kind.__name__.lower()} file{advice}")


def _with_known(kind: type[BaseModel], value: Any) -> Any:
    """Return the block *value* with the data of every part that was validated before replaced by the validated part."""
    if not memo.is_open() or not isinstance(value, dict):
        return value
    block = value
    for name, model in schema.children(kind).items():
        inner = value.get(name)
        if isinstance(inner, dict):
            valid = memo.lookup((model, id(inner))) or _with_known(model, inner)
        elif isinstance(inner, list):
            valid = [_with_known(model, item) for item in inner]
        else:
            continue
        block = {**block, name: valid}
    return block


def _keep_parts(spec: BaseModel, value: Any) -> None:
    """Cache every valid part of *spec* under the identity of its data, which are never modified in place."""
    parts = file_values(spec)
    for name, model in schema.children(type(spec)).items():
        inner, part = value.get(name), parts.get(name, ())
        if isinstance(inner, list):
            for item, one in zip(inner, part, strict=True):
                _keep_parts(one, item)
        elif isinstance(inner, dict) and isinstance(part, model):
            if model in schema.FOLDERS:
                memo.get_or_make((model, id(inner)), partial(_same, part), inner)
            _keep_parts(part, inner)


def _same(part: BaseModel) -> BaseModel:
    return part


def _in_file(kind: type[BaseModel], error: Any) -> Any:
    """Return *error* at its place in the file, where the keys of a section stand in the block around it."""
    place: Key = ()
    for index, part in enumerate(error["loc"]):
        block = schema.model_at(kind, place) if place else kind
        classes = sections_of(block).get(part) if block is not None else None
        if classes is None:
            place = (*place, part)
            continue
        inside = error["loc"][index + 1 :]
        inside = inside[1:] if classes.key is not None and inside and inside[0] in classes.variants else inside
        if not inside and error["type"] == "union_tag_not_found":
            return error | {"type": "missing", "loc": (*place, classes.key)}
        if not inside and error["type"] == "union_tag_invalid":
            return error | {"loc": (*place, classes.key), "input": error["input"][classes.key]}
        return error | {"loc": (*place, *inside)}
    return error


def _sentences(kind: type[BaseModel], document: Document, errors: list[Any]) -> list[str]:
    errors = [error for error in errors if error.get("input") is not UNRESOLVED and not _is_consequence(error, errors)]
    errors = _one_per_union(errors, document)
    placed = [
        (document.mark(key), document.message_start(key) + text) for key, text in (_sentence(kind, document, error) for error in errors)
    ]
    sentences = [text for _, text in sorted(placed, key=lambda pair: (pair[0].file, pair[0].line, pair[0].column))]
    missing = [tuple(error["loc"]) for error in errors if error["type"] == "missing"]
    if kind is schema.KINDS["hardware"] and len(missing) >= MANY:
        sentences[-1] += _to_extend(kind, missing)
    return sentences


def _to_extend(kind: type[BaseModel], missing: Sequence[Key]) -> str:
    """Return what to extend in place of writing all *missing* keys: a part of the catalog if they are of one part, else a machine."""
    blocks = {key[:-1] for key in missing}
    block = schema.model_at(kind, next(iter(blocks))) if len(blocks) == 1 and next(iter(blocks)) else None
    folder = schema.FOLDERS.get(block, "") if block is not None else ""
    what = folder.rpartition("/")[2] if folder.startswith("hardware/parts/") else ""
    if what in LISTED_PARTS:
        return f"; or write 'extends:' there with one of 'python -m sim list {what}', and then only what differs from it"
    return "; or write 'extends: p4d.24xlarge', or another machine of 'python -m sim list hardware', and then only what differs from it"


def _other_kind(kind: type[BaseModel], document: Document) -> str:
    """Return the kind that *document* looks like if it has none of the required keys of *kind*; empty otherwise."""
    due = {name for name, field in kind.model_fields.items() if field.is_required()} - {"name", "source"}
    other = None if due & document.value.keys() else schema.kind_of(document.value)
    return other.__name__.lower() if other not in (None, kind) else ""


def _one_per_union(errors: list[Any], document: Document) -> list[Any]:
    """Return *errors* with a single error for a value that fits no member of a union, instead of one error per member."""
    kept: dict[Any, Any] = {}
    for error in errors:
        key = _existing_key(document.value, tuple(error["loc"]))
        is_member = len(key) < len(error["loc"]) and error["type"] != "missing" and not isinstance(error["input"], dict | list)
        each = key if is_member else (*key, len(kept))
        kept[each] = {**error, "type": "union"} if each in kept else error
    return list(kept.values())


def _is_consequence(error: Any, errors: list[Any]) -> bool:
    """Return whether *error* only reports an empty list that is empty because of other errors in its items."""
    return error["type"] == "too_short" and any(
        other is not error and other["loc"][: len(error["loc"])] == error["loc"] for other in errors
    )


def _sentence(kind: type[BaseModel], document: Document, error: Any) -> tuple[Key, str]:
    """Return the key to which *error* refers and the message about it."""
    location = tuple(error["loc"])
    if location and location[-1] == "[key]":
        return location[:-1], _unknown(kind, location[:-1])
    key = _existing_key(document.value, location)
    if error["type"] == "missing":
        missing = (*key, location[-1])
        if missing == ("groups",):
            return (
                "node",
            ), "is missing; write the block of one machine, 'groups', a list of machines, or 'extends: p3.8xlarge' and what differs"
        due = schema.describe(kind, missing)
        listed = _PART.search(due)
        shows = f" ('python -m sim list {listed[1]}' lists them)" if listed else ""
        if (variant := _variant(kind, document, missing)) is not None:
            shown = schema.FOLDERS[variant.block].rpartition("/")[2]
            return missing, f"is missing, but {variant} needs it; write {due}, or extend one that has it ('python -m sim list {shown}')"
        return missing, f"is missing; write {due}{shows}"
    if any(isinstance(word, str) and _plain(word) in FOUR_BITS for word in (*key[-1:], error["input"])):
        return key, NOT_QUANTIZED
    if error["type"] == "extra_forbidden":
        if (variant := _variant(kind, document, key)) is not None:
            others = variant.classes.tags_with(str(key[-1]))
            return (
                key,
                f"applies only to {any_of(others)}, but this is {variant}; leave it out, or write {variant.classes.key}: {others[0]}",
            )
        return key, _unknown(kind, key)
    if error["type"] == _RAISED:
        text = str(error["msg"]).removeprefix("Value error, ")
        place = _option_of(document, key, text)
        return place, _in_options(text) if _OF_LAYOUT.match(document.mark(place).file) else text
    if error["type"] == "too_short":
        return key, "is empty; write at least one item"
    if key[-1:] == ("gpu",) and isinstance(error["input"], list):
        return key, _UNLIKE
    due = _naming(error["input"], schema.describe(kind, key), schema.describe(kind, (*key, "name")))
    if due == "text" and type(error["input"]) in (int, float):
        due = "text, in quotes"  # 2.20 without them is the number 2.2
    return key, f"{_describe_value(error['input'])};{_suggestion(error['input'], due)} write {due}"


class _Variant(NamedTuple):
    """The *classes* of a *block*, whose key has the value *tag*."""

    block: type[BaseModel]
    classes: SectionClasses
    tag: str

    def __str__(self) -> str:
        return f"{self.classes.key} {self.tag}"


def _variant(kind: type[BaseModel], document: Document, key: Key) -> _Variant | None:
    """Return the variant of the section that some variants give the key *key*; None if all do, or if *key* is in no section."""
    block, name = schema.model_at(kind, key[:-1]) if key[:-1] else kind, str(key[-1])
    value: Any = document.value
    for part in key[:-1]:
        value = value[part]
    if block is None:
        return None
    tagged = (each for each in sections_of(block).values() if 0 < len(each.tags_with(name)) < len(each.variants))
    return next((_Variant(block, each, value[each.key]) for each in tagged), None)


_OF_LAYOUT: Final = re.compile(r"--(wrap|replicate|schedule|parallel) ")
_OPTIONS: Final = {
    "shard": "--shard ", "schedule": "--schedule ", "replicate": "--replicate ", "pipeline": "--pp ",
    "virtual_stages": "--parallel virtual_stages=", "reshard_after_forward": "--parallel reshard_after_forward=",
}  # fmt: skip
"""Options of a layout for the keys of `Parallel` that its problems name."""


def _in_options(text: str) -> str:
    """Return *text* with options in place of the keys and values that it tells to write."""
    return re.sub(rf"\b({'|'.join(_OPTIONS)}): (?=\w)", lambda match: _OPTIONS[match[1]], text)


def _option_of(document: Document, key: Key, text: str) -> Key:
    """Return the field below *key* with which *text* begins, if an option set that field on its own; else *key*."""
    inner = (*key, text.partition(" ")[0])
    mark = document.mark(inner)
    return inner if not mark.line and mark is not document.mark(key) and mark.file.startswith("--") else key


_UNLIKE: Final = (
    "found a list; all GPUs of a node are of the same model: write one name, and describe different GPUs as groups of nodes, for example "
    "'groups: [{node: {extends: box, gpu: RTX4090, gpu_count: 1}, count: 6}, "
    "{node: {extends: box, gpu: RTX3090, gpu_count: 1}, count: 6}]'"
)


def _naming(value: object, due: str, names: str) -> str:
    """Return *due*, a text with an example block, with *value* as the name in the example if it is one of *names* (``one of a, b``)."""
    return re.sub(r"(?<=such as \{name: )\w+", str(value), due) if value in names.removeprefix("one of ").split(", ") else due


_FILE_IN: Final = re.compile(r"the name of a file in (\S+)/$")


def _suggestion(value: object, due: str) -> str:
    """Return a question such as "did you mean a?" if *value* resembles a word that is *due* (``one of a, b``); else empty.

    A name of digits alone, such as 4090, was read as a number: it may be part of the name of a file that is due.
    """
    if type(value) is int and value > 99 and (folder := _FILE_IN.search(due)):
        near = suggestions(str(value), list(catalog(folder[1])))
        return f" did you mean {any_of(near)}?" if near else ""
    if not isinstance(value, str) or not due.startswith("one of "):
        return ""
    words = due.removeprefix("one of ").split(", ")
    near = [word for word in _SYNONYMS.get(_plain(value), ()) if word in words] or suggestions(value, words, most=1)
    return f" did you mean {any_of(near)}?" if near else ""


def _plain(word: str) -> str:
    """Return *word* in small letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", word.lower())


_SYNONYMS: Final = {
    "bfloat16": ("bf16", "amp_bf16"),
    "float16": ("fp16", "amp_fp16"),
    "half": ("fp16", "amp_fp16"),
    "mixed": ("amp_bf16", "amp_fp16"),
    "amp": ("amp_bf16", "amp_fp16"),
    "float32": ("fp32",),
    "float": ("fp32",),
    "float8": ("fp8",),
    "mxfp8": ("fp8",),
    "fp4": ("nvfp4",),
    "float4": ("nvfp4",),
    "adamw": ("adam",),
    "adamw8bit": ("adam8bit",),
    "zero1": ("optimizer",),
    "zero2": ("gradients",),
    "zero3": ("parameters",),
    "fsdp": ("parameters",),
    "full": ("parameters",),
    "params": ("parameters",),
}
"""The names used here for the terms of other programs."""


_COUNTED: Final = "set the number of nodes with --nodes N, or in a group: 'groups: [{node: hgx-h100, count: 8}]'"
_OF_CLUSTERS: Final = {
    **dict.fromkeys(("nodes", "count", "num_nodes", "node_count"), _COUNTED),
    "network": "describe NICs in node.nic (bandwidth, count, transport), and switches between nodes in fabric",
}
"""Keys that new users write at the top level of a hardware file, and the hint for each."""
_OF_NODES: Final = {
    **dict.fromkeys(("gpus", "num_gpus", "gpus_per_node", "ngpus"), "gpu_count"),
    **dict.fromkeys(("memory", "ram", "mem"), "host.memory"),
    **dict.fromkeys(("cores", "cpus"), "host.physical_cores"),
    **dict.fromkeys(("network", "bandwidth", "ethernet"), "nic.bandwidth"),
    **dict.fromkeys(("disk", "volume", "ssd"), "storage.volume"),
}
"""Keys that new users write in a node, and the correct key for each."""
_OF_TRAINING: Final = {
    **dict.fromkeys(("batch_size", "micro_batch_size", "micro_batch", "per_device_train_batch_size"), "batch"),
    **dict.fromkeys(("dtype", "mixed_precision"), "precision"),
    **dict.fromkeys(("gradient_checkpointing", "recompute"), "activation_checkpointing"),
}
"""Keys that new users write in the block training, and the correct key for each."""


def _unknown(kind: type[BaseModel], key: Key) -> str:
    keys = schema.keys_at(kind, key[:-1])
    if kind is schema.KINDS["hardware"] and len(key) == 1:
        keys = [*keys, *schema.UNFOLDED]
    if kind is schema.KINDS["hardware"] and len(key) == 1 and (hint := _OF_CLUSTERS.get(str(key[-1]))):
        return f"unknown key; {hint}"
    if kind is schema.KINDS["hardware"] and len(key) == 1 and (of_node := _OF_NODES.get(str(key[-1]))):
        return f"unknown key; did you mean 'node.{of_node}'?"
    block = schema.model_at(kind, key[:-1]) if key[:-1] else kind
    if block is Parallel and (hint := NOT_SIMULATED.get(str(key[-1]).lower())):
        return hint
    near = suggestions(str(key[-1]), keys, most=1)
    of_others = _OF_NODES if block is Node else _OF_TRAINING if block is Training else {}
    if correct_key := of_others.get(str(key[-1])):
        return f"unknown key; did you mean '{correct_key}'?"
    if block is not None and (place := schema.home_key(block, str(key[-1]))):
        return f"unknown key; did you mean '{place}'?"
    return f"unknown key; did you mean '{near[0]}'?" if near else f"unknown key; valid keys: {', '.join(sorted(keys)) or 'none'}"


def _describe_value(value: object) -> str:
    if isinstance(value, dict):
        return "found a block of keys"
    if isinstance(value, list | tuple):
        return "found a list"
    if value is None:
        return "found nothing"
    return f"found {'true' if value is True else 'false' if value is False else shorten(value)}"


def _existing_key(value: Any, location: tuple[Any, ...]) -> Key:
    """Return the part of pydantic's *location* that exists in the document; the rest refers to members of a union."""
    key: list[str | int] = []
    for part in location:
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int) and part < len(value)
        if not inside:
            break
        value = value[part]
        key.append(part)
    return tuple(key)
