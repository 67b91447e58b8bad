"""What ``show`` says of a model, against its layer table and the closed form of the roofline."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.report.layers import group_near, layers_plot, layers_text, ranges_text, stall_by_gradients_plot, stall_by_gradients_text
from sim.spec.hardware import Gpu
from sim.spec.library import catalog, load_part, load_workload
from sim.spec.yaml import SpecError
from sim.study.show import compare_with_gradients, layer_document, match_workloads
from sim.training.step_plan import plan_key, timed_pass

PNG = b"\x89PNG"


def test_totals_are_the_tables() -> None:
    """138,357,544 parameters in 32 tensors and 30.94 GFLOP (torchvision's vgg16, torch's counter)."""
    document = layer_document("vgg16")
    assert (document["parameters"], document["gradient_tensors"]) == (138357544, 32)
    assert document["forward_flop_per_sample"] == 30_940_528_640
    assert document["backward_flop_per_sample"] == sum(layer.backward for layer in load_workload("vgg16").spec.model.layers)
    assert sum(block["parameters"] for block in document["blocks"]) == 138357544
    assert sum(block["layers"] for block in document["blocks"]) == len(document["layers"])
    assert document["roofline"] is None and "forward_time_s" not in document["layers"][0]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("resnet50", []),
        ("bert-large-seq512", ["training.stack=mlperf-pytorch-bert", "training.stack.score_passes=0"]),
        ("bert-base-seq384", ["training.stack.composed_traffic=2"]),
    ],
)
def test_times_are_those_of_a_step(name: str, overrides: list[str]) -> None:
    """Oracle: the step plan's own forward and backward, with padding left out and operators composed of many as well."""
    document = layer_document(name, "p3.16xlarge", overrides, batch=32)
    gpu = load_part(Gpu, "v100-sxm2-16gb")
    timed = timed_pass(plan_key(load_workload(name, ["training.batch=32", *overrides]).spec, gpu, 1.0))
    assert sum(row["forward_time_s"] for row in document["layers"]) == pytest.approx(sum(part.compute for part in timed.forward))
    assert sum(row["backward_time_s"] for row in document["layers"]) == pytest.approx(sum(part.compute for part in timed.backward))


def test_intensity_of_a_matrix_product_by_hand() -> None:
    """VGG-16's last layer at 64 samples: 3 products of 4096 x 1000; its activations, weights read twice and their gradients written."""
    row = next(row for row in layer_document("vgg16", batch=64)["layers"] if row["name"] == "classifier.6")
    moved = 16384 + 4000 + 44768 + 3 * 4 * (4096 * 1000 + 1000) / 64
    assert row["intensity_flop_per_byte"] == pytest.approx(3 * 2 * 4096 * 1000 / moved)


def test_intensity_of_a_batch_norm_by_hand() -> None:
    """ResNet-18's first at 32 samples: 64 x 112 x 112 elements, 8 + 9 operations each; 8 passes over them, weights and their gradients."""
    elements = 64 * 112 * 112
    row = next(row for row in layer_document("resnet18", "p3.2xlarge", batch=32)["layers"] if row["name"] == "bn1")
    assert (row["forward_arithmetic_flop"], row["backward_arithmetic_flop"]) == (8 * elements, 9 * elements)
    assert row["intensity_flop_per_byte"] == pytest.approx(17 * elements / (4 * 8 * elements + 3 * 4 * 128 / 32))


def test_every_layer_that_computes_is_in_the_roofline() -> None:
    """What is left out copies and fills."""
    rows = layer_document("transformer-big", "p3.2xlarge")["layers"]
    assert {row["op"] for row in rows if row["intensity_flop_per_byte"] > 0} >= {"norm", "elementwise", "softmax", "loss", "gemm"}
    silent = {[part for part in row["name"].split(".") if not part.isdigit()][-1] for row in rows if not row["intensity_flop_per_byte"]}
    assert silent == {"clone", "view", "ones"}


def test_ridge_is_peak_over_bandwidth() -> None:
    roof = layer_document("vgg16", "p3.2xlarge")["roofline"]
    assert roof["ridge_flop_per_byte"] == pytest.approx(roof["peak_flop_per_s"] / roof["memory_bytes_per_s"])


def test_text_names_every_block_and_with_layers_every_layer() -> None:
    document = layer_document("resnet18", "p3.16xlarge")
    text, every = layers_text(document), layers_text(document, every=True)
    assert all(block["name"] in text for block in document["blocks"])
    assert all(row["name"][-20:] in every for row in document["layers"])
    assert layers_plot(document).png.startswith(PNG) and layers_plot(layer_document("resnet18")).png.startswith(PNG)


def test_stashs_micro_study_layers_against_gradients() -> None:
    """Stash (arXiv 2208.14344): between nodes VGG's gradient volume stalls a step longer than ResNet's depth does."""
    document = compare_with_gradients(["vgg11", "resnet50", "resnet18"], "2x-p3.8xlarge", batch=32)
    assert [row["gradient_tensors"] for row in document["rows"]] == [22, 62, 161]
    stalls = {row["workload"]: row["stall_s"] for row in document["rows"]}
    assert stalls["vgg11"] > stalls["resnet50"] > stalls["resnet18"] > 0
    assert all(row["workload"] in stall_by_gradients_text(document) for row in document["rows"])
    assert stall_by_gradients_plot(document).png.startswith(PNG)


def test_winograd_is_named_where_dots_lie_above_the_roof() -> None:
    """VGG-16's 3x3 convolutions run above the nominal peak of a V100 (u39kun: 18 of 15.7 TFLOP/s); a ResNet-50 in AMP stays below."""
    assert "12 convolutions above that peak: Winograd" in layers_text(layer_document("vgg16", "p3.2xlarge"))
    assert "Winograd" not in layers_text(layer_document("resnet50", "p3.2xlarge", ["training.precision=amp_fp16"]))
    assert "Winograd" not in layers_text(layer_document("vgg16"))


def test_dots_that_would_hide_each_other_share_a_label() -> None:
    """By hand: spans are 10 and 1; the first two lie within a tenth of both, the third of one only."""
    assert group_near([(0.0, 0.0), (0.9, 0.09), (0.5, 0.5), (10.0, 1.0)], 0.1) == [[1, 2], [3], [4]]
    assert group_near([(1.0, 1.0), (1.0, 1.0)], 0.1) == [[1, 2]]
    assert ranges_text([1, 2, 3, 5, 6, 9]) == "1-3, 5, 6, 9"


def test_patterns_and_what_is_refused() -> None:
    assert match_workloads(["vgg*", "vgg16", "resnet18"]) == ["vgg11", "vgg13", "vgg16", "vgg19", "resnet18"]
    with pytest.raises(SpecError, match="no catalog workload matches"):
        match_workloads(["wgg*"])
    with pytest.raises(SpecError, match="write --hardware HW"):
        layer_document("vgg16", overrides=["node.gpu.memory=1 GiB"])


def test_a_layer_table_alone_is_shown_as_that_of_its_workload(tmp_path: Path) -> None:
    """Oracle: the workload that names the table, with the stack of a table alone."""
    path = tmp_path / "net.yaml"
    path.write_bytes(catalog("workloads/models")["resnet18"].read_bytes())
    set_up = ["training.precision=amp_fp16", "training.stack=torch-2.x-ddp"]
    alone, expected = (layer_document(name, "p3.2xlarge", set_up, batch=16) for name in (str(path), "resnet18"))
    assert (alone["layers"], alone["roofline"]) == (expected["layers"], expected["roofline"])
