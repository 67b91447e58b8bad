"""Sections: a flat block becomes nested classes and back. Oracles: the flat block itself, and a block without sections."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from sim.spec.fields import Spec
from sim.spec.library import load, load_workload
from sim.spec.sections import (
    Section,
    Sectioned,
    blocks,
    file_fields,
    file_values,
    inherited_foreign,
    sections_of,
    with_fields,
    written_keys,
)
from sim.spec.stack import Ddp, Flat, Horovod, Stack


class Wheel(Spec):
    size: float = 1.0


class Rides(Section):
    speed: float = 1.0


class Car(Rides):
    kind: Literal["car"]
    seats: int = 5
    wheel: Wheel


class Boat(Rides):
    kind: Literal["boat"]
    sails: int


class Paint(Section):
    color: str = "red"


class Vehicle(Sectioned):
    name: str
    motion: Annotated[Car | Boat, Field(discriminator="kind")]
    paint: Paint


CAR = {"name": "a", "kind": "car", "seats": 2, "wheel": {"size": 3.0}, "color": "blue"}


def test_a_flat_block_is_divided_and_has_the_same_values() -> None:
    car = Vehicle.model_validate(CAR)
    assert car.motion == Car(kind="car", seats=2, wheel=Wheel(size=3.0)) and car.paint == Paint(color="blue")
    assert Vehicle.model_validate(car) is car
    assert file_values(car) == CAR | {"wheel": Wheel(size=3.0), "speed": 1.0}
    assert written_keys(car) == CAR.keys()


def test_a_section_is_no_block_of_its_own() -> None:
    """Keys are those of the file: an error at a section would name a key that nobody can write."""
    car = Vehicle.model_validate(CAR)
    assert [*blocks(car)] == [((), car), (("wheel",), Wheel(size=3.0))]


def test_keys_of_a_file_are_those_of_all_variants() -> None:
    fields = file_fields(Vehicle)
    assert set(fields) == {"name", "speed", "kind", "seats", "wheel", "sails", "color"}
    assert [name for name, field in fields.items() if field.is_required()] == ["name", "kind"]
    assert fields["kind"].annotation == Literal["car", "boat"]
    schema = Vehicle.model_json_schema()
    assert set(schema["properties"]) == set(fields) and set(schema["required"]) == {"name", "kind"}
    assert schema["properties"]["kind"]["enum"] == ["car", "boat"] and not schema["additionalProperties"]
    assert file_fields(Wheel) == Wheel.model_fields


@pytest.mark.parametrize(
    "block, place",
    [
        ({"kind": "boat", "sails": 1, "seats": 2}, ("motion", "boat", "seats")),
        ({"kind": "boat"}, ("motion", "boat", "sails")),
        ({"kind": "boat", "sails": 1, "wings": 2}, ("wings",)),
        ({"kind": "boat", "sails": 1, "motion": {}}, ()),
        ({"kind": "plane"}, ("motion",)),
        ({}, ("motion",)),
    ],
)
def test_a_key_of_another_variant_is_an_error(block: dict[str, object], place: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as raised:
        Vehicle.model_validate({"name": "a"} | block)
    assert [error["loc"] for error in raised.value.errors()] == [place]


def test_null_writes_no_key_of_another_variant() -> None:
    boat = Vehicle.model_validate({"name": "a", "kind": "boat", "sails": 1, "seats": None})
    assert boat.motion == Boat(kind="boat", sails=1)


def test_another_tag_drops_what_does_not_apply_to_it() -> None:
    assert [*inherited_foreign(Vehicle, CAR, {"kind": "boat"})] == ["seats", "wheel"]
    assert not [*inherited_foreign(Vehicle, CAR, {"kind": "car"})] and not [*inherited_foreign(Vehicle, CAR, {"seats": 3})]
    assert not [*inherited_foreign(Vehicle, CAR, {"kind": "plane"})]  # an error of its own
    assert not [*inherited_foreign(Wheel, CAR, {"kind": "boat"})] and not [*inherited_foreign(None, CAR, {"kind": "boat"})]


@given(seats=st.integers(0, 9), name=st.text(), color=st.text())
def test_fields_are_changed_by_their_keys_in_a_file(seats: int, name: str, color: str) -> None:
    """Oracle: the flat block with these values, validated."""
    changes = {"seats": seats, "name": name, "color": color}
    assert with_fields(Vehicle.model_validate(CAR), **changes) == Vehicle.model_validate(CAR | changes)
    assert with_fields(Wheel(), size=3.0) == Wheel(size=3.0)


def test_only_fields_that_are_there_are_changed() -> None:
    with pytest.raises(ValueError, match="Vehicle has no sails"):
        with_fields(Vehicle.model_validate(CAR), sails=3)
    with pytest.raises(ValueError, match="Vehicle has no seats of its own"):
        Vehicle.model_validate(CAR).model_copy(update={"seats": 3})  # pydantic would add an attribute that nothing reads


def test_variants_agree_on_the_type_of_a_shared_key() -> None:
    """The reference and the messages show one type for each key of a file."""
    for classes in sections_of(Stack).values():
        for name in classes.names:
            having = [variant.model_fields[name] for variant in classes.variants.values() if name in variant.model_fields]
            assert name in (classes.key, "overlap") or len({str(field.annotation) for field in having}) == 1, name


FILE = """\
name: mine
extends: {parent}
{own}
"""


@pytest.mark.parametrize(
    "parent, own, dropped",
    [
        ("torch-1.13-ddp", "strategy: flat", "bucket_cap"),
        ("horovod-0.21", "strategy: ddp", "fusion"),
        ("phub", "strategy: flat", "servers"),
        ("gloo-ddp", "strategy: parameter_server\nbackend: nccl\ngloo_transport: null\nservers: {{source: t}}", "broadcast_buffers"),
    ],
)
def test_a_stack_that_extends_one_of_another_strategy_leaves_out_what_does_not_apply(tmp_path, parent, own, dropped) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.format(parent=parent, own=own.format()))
    loaded = load(Stack, path).spec
    assert dropped not in file_values(loaded)
    assert loaded.kernels.launch_cpu == load_workload("resnet50", [f"training.stack={parent}"]).spec.training.stack.kernels.launch_cpu


def test_a_workload_that_extends_one_and_an_option_drop_it_too(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: resnet50\nname: mine\ntraining: {stack: {extends: horovod-0.21}}\n")
    assert isinstance(load_workload(str(path)).spec.training.stack.exchange, Horovod)
    set_ = load_workload(str(path), ["training.stack.strategy=ddp"]).spec.training.stack.exchange
    assert isinstance(set_, Ddp)
    (tmp_path / "again.yaml").write_text("extends: mine\nname: again\ntraining: {stack: {strategy: ddp}}\n")
    assert load_workload(str(tmp_path / "again.yaml")).spec.training.stack.exchange == set_


def test_a_strategy_alone_changes_the_default_stack_of_a_decoder() -> None:
    changed = load_workload("llama-3.2-1b", ["training.stack.strategy=flat"]).spec.training.stack
    default = load_workload("llama-3.2-1b").spec.training.stack
    assert isinstance(changed.exchange, Flat)
    assert (changed.name, changed.kernels, changed.update) == (default.name, default.kernels, default.update)
