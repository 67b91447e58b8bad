"""Which keys may stand where? Walks the typed models to name fields in messages and to write JSON schemas for editors."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from sim.spec.yaml import Key


def keys_at(kind: type[BaseModel], key: Key) -> list[str]:
    """Return the known keys of the block that *key* names inside *kind*."""
    model = _model_at(kind, key)
    return list(model.model_fields) if model else []


def describe(kind: type[BaseModel], key: Key) -> str:
    """Return what is due at *key*, for a message about a missing value."""
    model = _model_at(kind, key[:-1])
    found = model.model_fields.get(str(key[-1])) if model else None
    if found is None:
        return "a value is due"
    for piece in found.metadata:
        extra = getattr(piece, "json_schema", None)
        if isinstance(extra, dict) and "description" in extra:
            return f"{extra['description']} is due"
    if block := _models(found.annotation):
        return f"a block of {', '.join(block[0].model_fields)} is due, or the name of one"
    return "a value is due"


def _model_at(kind: type[BaseModel], key: Key) -> type[BaseModel] | None:
    current: Any = kind
    for part in key:
        models = _models(current)
        if isinstance(part, int) or not models:
            continue
        owner = next((model for model in models if part in model.model_fields), None)
        if owner is None:
            return None
        current = owner.model_fields[part].annotation
    models = _models(current)
    return models[0] if models else None


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that *annotation* may hold, through unions, tuples and dicts."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, dict, Annotated):
        return [model for argument in get_args(annotation) for model in _models(argument)]
    return []
