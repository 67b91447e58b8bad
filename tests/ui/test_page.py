"""Can the page be read and used before anything is computed? Labels, names, and nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from sim.spec.listing import Row
from sim.ui.choice import CONTROLS
from sim.ui.download import FILES
from sim.ui.page import SLIDERS, control_page


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def html() -> str:
    hardware: list[Row] = [
        {"name": "p4d.24xlarge", "provider": "aws", "gpus": 8, "gpu": "A100", "nodes": 1},
        {"name": "mine & yours", "provider": "", "gpus": 16, "gpu": "H100", "nodes": 2},
    ]
    workloads: list[Row] = [
        {"name": "resnet50", "dataset": "imagenet-1k", "parameters": 25_557_032},
        {"name": "llama-3.1-8b", "dataset": "tokens", "parameters": 8.03e9},
        {"name": "odd", "dataset": "", "parameters": None},
    ]
    return control_page(hardware, workloads)


@pytest.fixture(scope="module")
def elements(html: str) -> list[tuple[str, dict[str, str | None]]]:
    return Elements(html).found


def test_every_control_is_there_once_and_has_a_label(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    named = [attributes for tag, attributes in elements if tag in ("input", "select", "textarea") and "name" in attributes]
    assert sorted(str(attributes["name"]) for attributes in named) == sorted(set(CONTROLS) - {"hours"}), "hours: by URL alone"
    labels = {attributes["for"] for tag, attributes in elements if tag == "label" and "for" in attributes}
    assert {attributes["id"] for attributes in named} <= labels
    sliders = [attributes for tag, attributes in elements if tag == "input" and attributes["type"] == "range"]
    assert len(sliders) == len(SLIDERS)
    assert all(slider["aria-label"] and slider["data-for"] in labels for slider in sliders)
    idents = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(idents) == len(set(idents))
    described = {attributes["aria-describedby"] for attributes in named if attributes.get("aria-describedby")}
    assert described <= set(idents)


def test_the_catalog_can_be_chosen(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    values = {attributes.get("value") for tag, attributes in elements if tag == "option"}
    assert {"p4d.24xlarge", "mine & yours", "resnet50", "llama-3.1-8b", "odd", "bf16", "parameters", "zbv", "blocks", "spot"} <= values
    groups = [attributes["label"] for tag, attributes in elements if tag == "optgroup"]
    assert groups == ["imagenet-1k", "tokens", "others", "aws", "others"]
    chosen = [attributes["value"] for tag, attributes in elements if tag == "option" and "selected" in attributes]
    assert chosen == ["resnet50", "p4d.24xlarge", "on-demand", "size"]


def test_nothing_is_loaded_from_elsewhere(html: str, elements: list[tuple[str, dict[str, str | None]]]) -> None:
    loaded = [attributes[key] for _, attributes in elements for key in ("src", "href", "action") if attributes.get(key)]
    assert [address for address in loaded if not str(address).startswith(("#", "data:"))] == []
    assert re.findall(r"@import|url\(", html) == []


def test_every_file_has_a_link(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    assert [attributes["data-file"] for tag, attributes in elements if tag == "a" and "data-file" in attributes] == list(FILES)


def test_a_long_choice_is_cut_before_the_arrow_of_its_list(html: str) -> None:
    """Chromium paints text of a select below its arrow, unless it ends in an ellipsis."""
    assert re.search(r"\.control select\{[^}]*text-overflow:ellipsis", html)
