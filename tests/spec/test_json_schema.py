"""Oracles: the ``jsonschema`` package where it is installed, and the loader itself: what one accepts the other must accept."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sim.spec import json_schema, schema, yaml
from sim.spec.yaml import SpecError
from tests.spec.documents import FILES, MACHINE, WORKLOAD


@cache
def schemas() -> dict[str, dict[str, Any]]:
    return json_schema.json_schemas()


def references(content: Any) -> list[str]:
    if isinstance(content, dict):
        own = [content["$ref"]] if "$ref" in content else []
        return own + [reference for value in content.values() for reference in references(value)]
    return [reference for item in content for reference in references(item)] if isinstance(content, list) else []


@pytest.mark.parametrize("name", schema.KINDS)
def test_every_link_leads_to_a_definition(name: str) -> None:
    content = schemas()[name]
    assert {link.removeprefix("#/definitions/") for link in references(content)} <= content["definitions"].keys()


def test_there_is_a_schema_for_every_kind_of_file(tmp_path: Path) -> None:
    written = json_schema.write_schemas(tmp_path / "schemas")
    assert {path.name for path in written} == {f"{name}.schema.json" for name in schema.KINDS}
    assert sorted(path.name for path in (tmp_path / "schemas").iterdir()) == sorted(path.name for path in written)  # and no drafts
    assert json.loads(written[0].read_text()) == schemas()["hardware"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written: "):
        json_schema.write_schemas(tmp_path / "file" / "inside")


def test_names_and_extends_are_allowed_where_a_part_is_due() -> None:
    content = schemas()["hardware"]["definitions"]
    gpu = content["Node"]["properties"]["gpu"]
    assert gpu["type"] == ["string", "object"]
    assert gpu["else"]["then"] == {"$ref": "#/definitions/GpuPartial"}
    assert "required" not in content["GpuPartial"]
    assert content["Gpu"]["required"] == [name for name, field in schema.KINDS["gpu"].model_fields.items() if field.is_required()]
    assert "extends" in content["Gpu"]["properties"]
    assert "extends" not in content["Nic"]["properties"]


def judge(name: str, text: str) -> list[str]:
    """Return the keys that the ``jsonschema`` package finds fault with."""
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is an oracle only")
    validator = jsonschema.Draft7Validator(schemas()[name])
    return [str(error.json_path) for error in validator.iter_errors(yaml.parse(text).value)]


@pytest.mark.parametrize("name", schema.KINDS)
def test_the_schemas_are_schemas(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is an oracle only")
    jsonschema.Draft7Validator.check_schema(schemas()[name])


def test_good_descriptions_pass() -> None:
    kinds = {"gpus": "gpu", "links": "link", "cpus": "cpu", "transports": "transport", "volumes": "volume", "jobs": "jobs",
             "models": "model",
             "datasets": "dataset", "stacks": "stack", "hardware": "hardware", "workloads": "workload"}  # fmt: skip
    assert {name: judge(kinds[Path(name).parent.name], text) for name, text in FILES.items()} == {name: [] for name in FILES}
    for text in (
        "name: x\ngroups: [{node: toy, count: 3}]",
        "extends: toy\nnode: {nic: {bandwidth: 1 Gbps}, storage: null}",
        MACHINE.replace("gpu: Toy-GPU", "gpu: {extends: Toy-GPU, peak: {fp16: 1 TFLOP/s}}"),
    ):
        assert judge("hardware", text) == []


def test_bad_descriptions_do_not() -> None:
    assert judge("hardware", MACHINE.replace("bandwidth: 25 Gbps", "bandwidth: 25")) == ["$.node.nic.bandwidth"]
    assert judge("hardware", MACHINE.replace("gpu_count", "gpus")) == ["$.node", "$.node"]  # one key unknown, one missing
    assert judge("hardware", MACHINE + "groups: [{node: toy}]\n") == ["$"]
    assert judge("hardware", "name: x\n") == ["$"]
    assert judge("workload", WORKLOAD.replace("batch: 32", "batch: 0")) == ["$.training.batch"]
