"""Which layers are recomputed, on tables written by hand."""

from __future__ import annotations

import pytest

from sim.spec.library import load_workload
from sim.spec.segments import block, layers_to_recompute, segments


@pytest.mark.parametrize(
    ("name", "expected"),
    [("layer1.0.conv1", "layer1.0"), ("fc", "fc"), ("bert.layer.11.query", "bert.layer.11"), ("features.3", "features")],
)
def test_blocks_are_paths_up_to_their_first_number(name: str, expected: str) -> None:
    assert block(name) == expected


def test_blocks_of_resnet50_are_its_sixteen_bottlenecks() -> None:
    workload = load_workload("resnet50", ["training.activation_checkpointing=blocks"]).spec
    numbers = segments(workload)
    assert max(numbers) == 3 + 4 + 6 + 3
    inside = {layer.name.split(".")[0] for layer, number in zip(workload.model.layers, numbers, strict=True) if number}
    assert inside == {"layer1", "layer2", "layer3", "layer4"}


@pytest.mark.parametrize("wanted", ["model", "none"])
def test_the_catalog_checkpoints_nothing_by_itself(wanted: str) -> None:
    assert not any(segments(load_workload("gpt2", [f"training.activation_checkpointing={wanted}"]).spec))


def test_a_segment_runs_again_before_its_last_layers_backward() -> None:
    assert layers_to_recompute([0, 1, 1, 2, 2, 2, 0]) == {2: range(1, 3), 5: range(3, 6)}
