"""Does the picture of a layout show its step and its memory? Oracle: the document's figures, and the bars in the SVG."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import stallsim
from sim.cli import main
from sim.report.layouts.layout_plot import USES

SVG_TEXT = "{http://www.w3.org/2000/svg}text"
LAYOUTS = [
    {"parallel": {"shard": "parameters"}, "stack": "torchtitan-2.x"},
    {"parallel": {"tensor": 2, "pipeline": 2, "shard": "optimizer"}, "stack": "megatron-core"},
    {"parallel": {"pipeline": 2}, "stack": "nanotron"},
]


@pytest.mark.parametrize("options", LAYOUTS, ids=lambda options: str(options["stack"]))
def test_the_bars_add_up_to_the_memory_of_a_stage_and_name_every_cause(options: dict[str, object]) -> None:
    result = stallsim.run("hgx-h100", "llama-3.2-1b", nodes=1, batch=1, micro_batches=4, **options)  # type: ignore[arg-type]
    for stage in result.document["memory_by_stage"]:
        assert sum(stage[use] for use in USES) == pytest.approx(stage["total"])
    drawn = result.plot().svg.decode()
    step = result.document["step_time_s"]
    seen = [cause for cause, seconds in result.document["stalls_s"].items() if seconds > 2e-3 * step]
    assert seen and all(f">{cause}<" in drawn for cause in seen)
    assert "memory of the GPU" in drawn and "llama-3.2-1b on hgx-h100, 8 GPUs" in drawn


def test_the_key_of_the_memory_is_inside_the_picture() -> None:
    """A letter of the key (8 points) is narrower than 5.5 points on average."""
    options = {"parallel": {"shard": "parameters"}, "overrides": {"training.gradient_accumulation_steps": 2}}
    drawn = ElementTree.fromstring(stallsim.run("hgx-h100", "llama-3.2-1b", nodes=2, **options).plot().svg)  # type: ignore[arg-type]
    width = float(drawn.attrib["viewBox"].split()[2])
    named = {each.text: float(each.get("x", 0.0)) for each in drawn.iter(SVG_TEXT)}
    uses = [use.replace("_", " ") for use in USES]
    assert not [use for use in uses if use not in named]
    assert not [use for use in uses if named[use] + 5.5 * len(use) > width]


def test_a_folder_of_a_layout_holds_its_picture(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert main(["run", "hgx-h100", "llama-3.2-1b", "--nodes", "1", "--shard", "parameters", "-o", str(folder)]) == 0
    assert (folder / "step.png").read_bytes().startswith(b"\x89PNG") and "<svg" in (folder / "step.svg").read_text()
