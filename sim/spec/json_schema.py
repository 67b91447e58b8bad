"""What may a description contain? JSON schemas of every kind of file, for completion and validation in editors.

In addition to the rules of the typed models, a name may replace a block of a kind that has files, any such block may have ``extends``, and
a block that has it requires nothing else. Hardware may have ``node`` and ``price`` at its top level instead of ``groups``.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

from sim.spec import schema
from sim.spec.hardware import Group
from sim.spec.whole_file import write_files

Schema = dict[str, Any]

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_DEFAULTED: Final = {
    "Hardware": ("name",),
    "Workload": ("name", "dataset", "training"),
    "Training": ("batch", "stack"),
    "Model": ("parameters", "input", "layers"),
}
"""Keys that may be left out because `sim.spec.defaults`, the file's name, or the model's ``transformer`` provides them."""
_PARTIAL: Final = "Partial"
"""Suffix of the names of definitions in which nothing is required."""


def json_schemas() -> dict[str, Schema]:
    """Return the JSON schema of every kind of description by name: ``hardware``, ``workload``, ``gpu``, ..., ``stack``."""
    return {name: _schema(name) for name in schema.KINDS}


def write_schemas(folder: Path) -> list[Path]:
    """Write ``NAME.schema.json`` for every kind into *folder* and return the files.

    Each file is written completely or not at all. Raise SpecError for a folder that cannot be written.
    """
    files = {f"{name}.schema.json": json.dumps(content, indent=1) + "\n" for name, content in json_schemas().items()}
    write_files(folder, files)
    return [folder / name for name in files]


def _schema(name: str) -> Schema:
    kind = schema.KINDS[name]
    document = kind.model_json_schema(ref_template="#/definitions/{model}")
    if name == "hardware":
        document = _unfolded(document)
    definitions = document.pop("$defs", {})
    top = kind.__name__
    definitions[top] = document
    referable = {model.__name__: folder for model, folder in schema.FOLDERS.items()}
    result: Schema = {}
    for model, content in definitions.items():
        content = _without_defaulted(model, content)
        extendable = model in referable
        result[model] = _linked(_with_extends(content) if extendable else content, referable, "")
        result[model + _PARTIAL] = _linked(_with_extends(_optional(content)) if extendable else _optional(content), referable, _PARTIAL)
    return {"$schema": _DRAFT, "title": name, **_full_or_partial(top), "definitions": result}


def _unfolded(content: Schema) -> Schema:
    """Return *content*, the schema of hardware, with a group's keys allowed at the top level instead of ``groups``."""
    group = Group.model_json_schema(ref_template="#/definitions/{model}")["properties"]
    properties = content["properties"] | {name: group[name] for name in schema.UNFOLDED}
    required = [name for name in content["required"] if name != "groups"]
    return content | {"properties": properties, "required": required, "oneOf": [{"required": ["groups"]}, {"required": ["node"]}]}


def _without_defaulted(model: str, content: Schema) -> Schema:
    """Return *content*, the schema of block *model*, without requiring keys that have defaults; Model needs layers or a transformer."""
    left = [name for name in content.get("required", []) if name not in _DEFAULTED.get(model, ())]
    required = [name for name in content.get("required", []) if name not in left]
    either = {"anyOf": [{"required": required}, {"required": ["transformer", "sequence"]}]} if model == "Model" else {}
    return content | {"required": left} | either if required else content


def _with_extends(content: Schema) -> Schema:
    extends = {
        "type": "string",
        "description": "the name or path of a description to extend; keys given here override it, and null removes a key",
    }
    return content | {"properties": {"extends": extends, **content.get("properties", {})}}


def _optional(content: Schema) -> Schema:
    """Return *content* with nothing required and null allowed for every value, because null drops a key."""
    dropped = copy.deepcopy({key: value for key, value in content.items() if key not in ("required", "oneOf", "anyOf")})
    dropped["properties"] = {name: {"anyOf": [value, {"type": "null"}]} for name, value in dropped.get("properties", {}).items()}
    return dropped


def _full_or_partial(model: str) -> Schema:
    """Return the schema of a block *model*: one that extends another requires nothing."""
    return {
        "if": {"type": "object", "required": ["extends"]},
        "then": {"$ref": f"#/definitions/{model}{_PARTIAL}"},
        "else": {"$ref": f"#/definitions/{model}"},
    }


def _linked(content: Any, referable: dict[str, str], ending: str) -> Any:
    """Return *content* with every link to a definition pointing to the one with suffix *ending*; *referable* blocks may be names."""
    if isinstance(content, list):
        return [_linked(item, referable, ending) for item in content]
    if not isinstance(content, dict):
        return content
    if "$ref" not in content:
        return {key: _linked(value, referable, ending) for key, value in content.items()}
    model = content["$ref"].rpartition("/")[2]
    rest = {key: value for key, value in content.items() if key not in ("$ref", "default")}
    if model not in referable:
        return {**rest, "allOf": [{"$ref": f"#/definitions/{model}{ending}"}]}
    block = _full_or_partial(model) if not ending else {"$ref": f"#/definitions/{model}{ending}"}
    return {
        "description": f"the name of a file in {referable[model]}/, or a block",
        **rest,
        "type": ["string", "object"],
        "if": {"type": "string"},
        "else": block,
    }
