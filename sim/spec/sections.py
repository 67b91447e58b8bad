"""How is a block of a file divided for the code? Into sections, whose keys stand side by side in the file.

A stack's file is one flat list of keys. The code reads ``stack.exchange.overlap``, where ``exchange`` is a section: one class, or a union
of classes (variants), told apart by the value of one key, the tag: ``strategy`` of an exchange. A variant has only the keys that apply to
it. A description that changes the tag of the one it extends does not inherit keys that do not apply to the new variant.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, GetJsonSchemaHandler, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.spec.fields import Section, Spec

AnySpec = TypeVar("AnySpec", bound=Spec)


class SectionClasses(NamedTuple):
    """A section of a block: its classes by tag (None: the only class), and the *key* that holds the tag (empty: there is none)."""

    key: str
    variants: Mapping[str | None, type[Section]]

    @property
    def names(self) -> Mapping[str, None]:
        """Return the keys of all variants, in order, the tag first."""
        names = [name for variant in self.variants.values() for name in variant.model_fields]
        return dict.fromkeys([self.key, *names] if self.key else names)

    def tags_with(self, name: str) -> list[str]:
        """Return the tags of the variants that have the key *name*."""
        return [tag for tag, variant in self.variants.items() if tag is not None and name in variant.model_fields]

    def foreign(self, data: Mapping[str, Any]) -> list[str]:
        """Return the keys in *data* that belong to other variants than that of its tag; none for an unknown tag."""
        tag = data.get(self.key) if self.key else None
        chosen = self.variants.get(tag) if tag is None or isinstance(tag, str) else None
        return [name for name in data if name in self.names and name not in chosen.model_fields] if chosen else []


class Sectioned(Spec):
    """A block with sections. It is read from a flat block and dumped as one."""

    @model_validator(mode="before")
    @classmethod
    def _divided(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        block = dict(data)
        for name, classes in sections_of(cls).items():
            if isinstance(data.get(name), Section):
                continue
            if name in data:
                raise ValueError(f"{name} is not a key; write its keys, such as {next(iter(classes.names))}, beside the others")
            dropped = [key for key in classes.foreign(data) if data[key] is None]
            block = {key: value for key, value in block.items() if key not in classes.names}
            block[name] = {key: data[key] for key in data if key in classes.names and key not in dropped}
        return block

    @model_serializer(mode="wrap")
    def _flat(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = dump(self)
        for name in sections_of(type(self)):
            dumped |= dumped.pop(name, {})
        return dumped

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        required = {name for name, field in file_fields(cls).items() if field.is_required()}
        for name, classes in sections_of(cls).items():
            section = schema["properties"].pop(name)
            flat: dict[str, Any] = {}
            for variant in section.get("oneOf", [section]):
                flat = {**handler.resolve_ref_schema(variant)["properties"], **flat}
            if classes.key:
                flat[classes.key] = {"enum": list(classes.variants), "title": classes.key.title(), "type": "string"}
            schema["properties"] |= flat
        return schema | {"required": [name for name in schema["properties"] if name in required]}


@lru_cache(maxsize=256)
def sections_of(kind: type[BaseModel]) -> Mapping[str, SectionClasses]:
    """Return the sections of *kind* by name."""
    sections = {}
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        classes = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Section)]
        if classes:
            key = field.discriminator if isinstance(field.discriminator, str) else ""
            tags = [get_args(one.model_fields[key].annotation)[0] if key else None for one in classes]
            sections[name] = SectionClasses(key, dict(zip(tags, classes, strict=True)))
    return sections


@lru_cache(maxsize=256)
def file_fields(kind: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of *kind* as a file has them: those of its sections beside its own.

    A key that only some variants have is not required, and the key of the tag takes the tags of all.
    """
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
    values = spec.__dict__
    sections = sections_of(type(spec))
    if not sections:
        return values
    own = {name: value for name, value in values.items() if name not in sections}
    return own | {key: value for name in sections for key, value in values[name].__dict__.items()}


def with_fields(spec: AnySpec, **fields: Any) -> AnySpec:
    """Return *spec* with other values of *fields*, by their keys in a file. They are not validated, as with ``model_copy``.

    Raise ValueError for a field that *spec* does not have.
    """
    if unknown := fields.keys() - file_values(spec).keys():
        raise ValueError(f"{type(spec).__name__} has no {', '.join(sorted(unknown))}")
    update = {name: value for name, value in fields.items() if name in type(spec).model_fields}
    for name in sections_of(type(spec)):
        section = getattr(spec, name)
        if own := {key: value for key, value in fields.items() if key in type(section).model_fields}:
            update[name] = section.model_copy(update=own)
    return spec.model_copy(update=update)


def written_keys(spec: Spec) -> set[str]:
    """Return the keys of *spec* in its file, without those left at their defaults."""
    sections = sections_of(type(spec))
    return (spec.model_fields_set - sections.keys()).union(*(getattr(spec, name).model_fields_set for name in sections))


def inherited_foreign(kind: type[BaseModel] | None, part: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the block *part* of *kind* that do not apply once the tags of *own* replace those of *part*."""
    for classes in sections_of(kind).values() if kind is not None else ():
        if classes.key and own.get(classes.key) not in (None, part.get(classes.key)):
            yield from classes.foreign({**part, classes.key: own[classes.key]})
