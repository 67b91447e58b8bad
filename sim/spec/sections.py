"""How is a block of a file divided for the code? Into sections, whose keys stand side by side in the file.

A stack's file is one flat list of keys. The code reads ``stack.exchange.overlap``, where ``exchange`` is a section: one class, or a union
of classes (variants), told apart by the value of one key, the tag: ``strategy`` of an exchange. A variant has only the keys that apply to
it. A description that changes the tag of the one it extends does not inherit keys that do not apply to the new variant.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.spec.fields import Key, Spec

AnySpec = TypeVar("AnySpec", bound=Spec)


class Section(Spec):
    """Fields of a block that the code reads together."""


class SectionClasses(NamedTuple):
    """A section of a block: its classes by tag, *key* that holds the tag, and all *names* of keys. With one class, both are None."""

    key: str | None
    variants: Mapping[str | None, type[Section]]
    names: tuple[str, ...]

    def tags_with(self, name: str) -> list[str]:
        """Return the tags of the variants that have the key *name*."""
        return [tag for tag, variant in self.variants.items() if tag is not None and name in variant.model_fields]

    def foreign(self, data: Mapping[str, Any]) -> list[str]:
        """Return the keys in *data* that belong to other variants than that of its tag; none for an unknown tag."""
        tag = None if self.key is None else data.get(self.key)
        if self.key is None or not isinstance(tag, str) or tag not in self.variants:
            return []
        own = self.variants[tag].model_fields
        return [name for name in self.names if name in data and name not in own]


class Sectioned(Spec):
    """A block with sections, which is read from a flat one."""

    @model_validator(mode="before")
    @classmethod
    def _divided(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        block = dict(data)
        for name, classes in sections_of(cls).items():
            if name in data:
                raise ValueError(f"{name} is not a key; write its keys, such as {classes.names[0]}, beside the others")
            section = {key: block.pop(key) for key in classes.names if key in data}
            for key in classes.foreign(data):
                if data[key] is None:
                    del section[key]
            block[name] = section
        return block

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values of its own fields; those of sections change with `with_fields`. Raise ValueError for others."""
        if unknown := (update or {}).keys() - type(self).model_fields:
            raise ValueError(f"{type(self).__name__} has no {', '.join(sorted(unknown))} of its own")
        return super().model_copy(update=update, deep=deep)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        required = {name for name, field in file_fields(cls).items() if field.is_required()}
        for name, classes in sections_of(cls).items():
            section = schema["properties"].pop(name)
            flat: dict[str, Any] = {}
            for variant in section.get("oneOf", [section]):
                flat = {**handler.resolve_ref_schema(variant)["properties"], **flat}
            if classes.key is not None:
                flat[classes.key] = {"enum": list(classes.variants), "title": classes.key.title(), "type": "string"}
            schema["properties"] |= flat
        return schema | {"required": [name for name in schema["properties"] if name in required]}


@lru_cache(maxsize=256)
def sections_of(kind: type[BaseModel]) -> Mapping[str, SectionClasses]:
    """Return the sections of *kind* by name."""
    sections: dict[str, SectionClasses] = {}
    if not issubclass(kind, Sectioned):
        return sections
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        classes = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Section)]
        if classes:
            key = field.discriminator if isinstance(field.discriminator, str) else None
            tags = [None if key is None else get_args(one.model_fields[key].annotation)[0] for one in classes]
            names = [each for one in classes for each in one.model_fields]
            ordered = tuple(dict.fromkeys(names if key is None else [key, *names]))
            sections[name] = SectionClasses(key, dict(zip(tags, classes, strict=True)), ordered)
    return sections


@lru_cache(maxsize=256)
def file_fields(kind: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of *kind* as a file has them: those of its sections beside its own.

    A key that only some variants have is not required, and the key of the tag takes the tags of all.
    """
    if not issubclass(kind, Sectioned):
        return kind.model_fields
    sections = sections_of(kind)
    fields = {name: field for name, field in kind.model_fields.items() if name not in sections}
    for classes in sections.values():
        for name in classes.names:
            having = [variant.model_fields[name] for variant in classes.variants.values() if name in variant.model_fields]
            field = having[0]
            if name == classes.key:
                field = FieldInfo.from_annotation(Literal[tuple(classes.variants)])  # type: ignore[arg-type]
            elif len(having) < len(classes.variants) and field.is_required():
                field = copy(field)
                field.default = None
            fields[name] = field
    return fields


def file_values(spec: BaseModel) -> dict[str, Any]:
    """Return the values of *spec* by their keys in a file; the keys are those of the variants that it has."""
    if not isinstance(spec, Sectioned):
        return spec.__dict__
    sections = sections_of(type(spec))
    own = {name: value for name, value in spec.__dict__.items() if name not in sections}
    return own | {key: value for name in sections for key, value in spec.__dict__[name].__dict__.items()}


def with_fields(spec: AnySpec, **fields: Any) -> AnySpec:
    """Return *spec* with other values of *fields*, by their keys in a file. They are not validated, as with ``model_copy``.

    Raise ValueError for a field that *spec* does not have.
    """
    if unknown := fields.keys() - file_values(spec).keys():
        raise ValueError(f"{type(spec).__name__} has no {', '.join(sorted(unknown))}")
    if not isinstance(spec, Sectioned):
        return spec.model_copy(update=fields)
    sections = sections_of(type(spec))
    update = {name: value for name, value in fields.items() if name in type(spec).model_fields}
    for name in sections:
        section = getattr(spec, name)
        if own := {key: value for key, value in fields.items() if key in type(section).model_fields}:
            update[name] = section.model_copy(update=own)
    return spec.model_copy(update=update)


def written_keys(spec: Spec) -> set[str]:
    """Return the keys of *spec* in its file, without those left at their defaults."""
    if not isinstance(spec, Sectioned):
        return spec.model_fields_set
    sections = sections_of(type(spec))
    return (spec.model_fields_set - sections.keys()).union(*(getattr(spec, name).model_fields_set for name in sections))


def inherited_foreign(kind: type[BaseModel] | None, part: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the block *part* of *kind* that do not apply once the tags of *own* replace those of *part*."""
    for classes in sections_of(kind).values() if kind is not None else ():
        if classes.key is not None and own.get(classes.key) not in (None, part.get(classes.key)):
            yield from classes.foreign({**part, classes.key: own[classes.key]})


def blocks(spec: Spec, key: Key = (), skip: Callable[[Spec], bool] = lambda _: False) -> Iterator[tuple[Key, Spec]]:
    """Yield *spec*, which is at *key*, and every block inside it, each with its key; blocks for which *skip* is true are left out.

    A section is not a block of its own: its fields are those of the block around it.
    """
    if not isinstance(spec, Section):
        yield key, spec
    values = spec.__dict__
    for name in _block_fields(type(spec)):
        value = values[name]
        if isinstance(value, Spec):
            if not skip(value):
                yield from blocks(value, key if isinstance(value, Section) else (*key, name), skip)
        elif isinstance(value, tuple) and value and isinstance(value[0], Spec):
            for index, item in enumerate(value):
                yield from blocks(item, (*key, name, index), skip)


@lru_cache(maxsize=256)
def _block_fields(kind: type[Spec]) -> tuple[str, ...]:
    """Return the fields of *kind* that may hold one or more blocks: few do, and checking every value takes ten times as long."""
    return tuple(name for name, field in kind.model_fields.items() if _may_hold_block(field.annotation))


def _may_hold_block(annotation: object) -> bool:
    if arguments := get_args(annotation):
        return get_origin(annotation) is not dict and any(map(_may_hold_block, arguments))
    return annotation is Any or (isinstance(annotation, type) and issubclass(annotation, Spec))
