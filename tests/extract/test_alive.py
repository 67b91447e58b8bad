"""What enters a layer? Oracle: what torch.distributed.pipelining hands the second of two stages, cut at the layer's module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.extract import extract
from sim.parallel.units import cut_layers
from sim.spec.model import Model
from tests.extract.conftest import NETS
from tests.extract.test_extract import built
from tests.late import torch

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]


def handed_over(model: Any, inputs: Any, cut: str) -> int:
    """Return the bytes of a sample in FP32 that torch's second stage takes where it begins at the module *cut*; *inputs* are a batch."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    stage = pipeline(model.eval(), (inputs,), split_spec={cut: SplitPoint.BEGINNING}).get_stage_module(1)
    elements = sum(node.meta["val"].numel() for node in stage.graph.nodes if node.op == "placeholder")
    return int(4 * elements // len(inputs))


def entering(table: Model, cut: str) -> float:
    (number,) = cut_layers(table, [cut])
    return table.layers[number].received_bytes


CUTS = {
    "ReusedLater": ("down.0", "down.1", "inner", "up", "leave"),
    "Attention": ("out",),
    "normed": ("1", "2", "3", "6"),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_stage_receives_what_torchs_pipeline_hands_it(name: str) -> None:
    shape = {"ReusedLater": (3, 16, 16), "Attention": (5, 32), "normed": (3, 8, 8)}[name]
    table = extract(f"{NETS}:{name}", ["x".join(map(str, shape))], name)
    ours = {cut: entering(table, cut) for cut in CUTS[name]}
    assert ours == {cut: handed_over(built(name), torch.randn(2, *shape), cut) for cut in CUTS[name]}


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        pytest.param("resnet18", ("layer1.0.relu", "layer2.0", "layer2.0.conv2", "layer3.0.downsample", "fc"), marks=pytest.mark.nightly),
        pytest.param("vgg11", ("features.3", "features.8", "classifier.3"), marks=pytest.mark.nightly),
        ("squeezenet1_0", ("features.3.expand3x3", "features.4")),
    ],
)
def test_a_stage_of_a_catalog_model_receives_what_torchs_pipeline_hands_it(name: str, cuts: tuple[str, ...]) -> None:
    models = pytest.importorskip("torchvision.models", reason="compares with torchvision's models")
    table = extract(f"torchvision.models:{name}", ["3x64x64"], name)
    for cut in cuts:
        assert entering(table, cut) == handed_over(getattr(models, name)(), torch.randn(2, 3, 64, 64), cut), cut


def test_views_of_a_storage_count_as_one_and_weights_not_at_all(net: Callable[[str], str]) -> None:
    """Worked out by hand: query, key and value are one storage of 5 x 96 elements, and what attention returns has 5 x 32."""
    table = {layer.name: layer for layer in extract(net("Attention"), ["5x32"], "attention").layers}
    assert [table[name].received_bytes for name in ("project", "scaled_dot_product_efficient_attention", "out")] == [
        4 * 5 * 32,
        4 * 5 * 96,
        4 * 5 * 32,
    ]
