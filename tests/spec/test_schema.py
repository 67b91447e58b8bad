"""Oracle: the typed models themselves, and the phrases written here."""

from __future__ import annotations

from typing import get_args

import pytest

from sim.spec import schema
from sim.spec.fields import OperatorClass
from sim.spec.hardware import Gpu, Group, Hardware, Link, Node, Topology
from sim.spec.model import Model
from sim.spec.workload import Workload

NODE = ("groups", 0, "node")


def test_keys_are_those_of_the_model_through_lists_options_and_dicts() -> None:
    assert schema.keys_at(Hardware, ()) == list(Hardware.model_fields)
    assert schema.keys_at(Hardware, NODE) == list(Node.model_fields)
    assert schema.keys_at(Hardware, (*NODE, "topology", "nvlink", "link")) == list(Link.model_fields)
    assert schema.keys_at(Hardware, (*NODE, "gpu", "efficiency")) == list(get_args(OperatorClass))
    assert schema.keys_at(Hardware, (*NODE, "gpu_count")) == []
    assert schema.keys_at(Hardware, ("nothing", "here")) == []


def test_models_are_found_at_keys() -> None:
    assert schema.model_at(Hardware, ("groups",)) is Group
    assert schema.model_at(Hardware, (*NODE, "topology", "pcie")) is Link
    assert schema.model_at(Workload, ("model",)) is Model
    assert schema.model_at(Hardware, (*NODE, "gpu_count")) is None


def test_names_may_stand_only_where_parts_may() -> None:
    assert dict(schema.children(Topology)).keys() == {"nvlink", "pcie", "switches"}
    assert dict(schema.children(Gpu)).keys() == {"kernels", "bridge"}
    assert dict(schema.children(Model)).keys() == {"measured"}  # so the layers of a model are never walked


PHRASES = {
    (*NODE, "gpu_count"): "a whole number, zero or more",
    (*NODE, "nic", "gpudirect"): "true or false",
    (*NODE, "nic", "count"): "a whole number, 1 or more",
    (*NODE, "nic"): "a block (bandwidth, transport, source ...)",
    (*NODE, "topology", "sockets"): "a list, each item a block (gpus, nics)",
    (*NODE, "topology", "nvlink", "pairs"): "a block with keys of its own, each a whole number, 1 or more",
    (*NODE, "topology", "peer_to_peer"): "one of none, pix, pxb, phb, sys",
    (*NODE, "storage", "volume", "iops_per_gib"): "a number, 0 or more",
    (*NODE, "gpu", "power"): "a power above zero, for example '300 W' (units: W, kW)",
    (*NODE, "page_cache"): "a block (policy, memory_share, lru_share, source)",
    ("groups", 0, "price", "source"): "where the numbers come from: a text, or one text per key; 'estimate (reason)' marks a guess",
    ("name",): "text",
    ("nothing",): "a value",
}


@pytest.mark.parametrize("key", PHRASES, ids=lambda key: ".".join(map(str, key)))
def test_what_is_due_is_said_in_words(key: tuple[str | int, ...]) -> None:
    assert schema.describe(Hardware, key) == PHRASES[key]


@pytest.mark.parametrize("name", schema.KINDS)
def test_a_description_with_all_its_keys_is_known_for_what_it_is(name: str) -> None:
    kind = schema.KINDS[name]
    assert schema.kind_of(dict.fromkeys(kind.model_fields)) is kind


def test_what_has_no_known_key_is_of_no_kind() -> None:
    assert schema.kind_of({"name": "x", "zzz": 1}) is None
    assert schema.kind_of({"node": {}}) is Hardware
