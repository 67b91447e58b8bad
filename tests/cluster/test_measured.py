"""Are measured times carried to another GPU and batch as they should be? Oracles: ratios of data sheets, and the model's own ratio."""

from __future__ import annotations

import pytest

from sim.cluster.gpu import layer_time, memory_time
from sim.cluster.measured import PassSetting, pass_time
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.library import load_part, load_workload
from sim.spec.measured import MeasuredOn
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.training.layer_times import layer_times

V100, A100 = (load_part(Gpu, name) for name in ("v100-sxm2-16gb", "a100-sxm4-40gb"))
STACK = load_part(Stack, "torch-2.x-ddp")
ON = MeasuredOn(gpu=V100, batch=32, precision="fp32", source="a test")


def here(gpu: Gpu = V100, batch: int = 32) -> PassSetting:
    return PassSetting(gpu, "fp32", STACK, batch)


def layer(op: str = "elementwise", **keys: object) -> Layer:
    times = {"forward": "2 ms", "backward": "4 ms", "upkeep": "1 ms", "forward_launches": 3, "backward_launches": 5}
    return Layer.model_validate({"name": "seen", "op": op, "measured": times, **keys})


def test_where_it_was_measured_a_layer_takes_what_was_measured() -> None:
    table = layer("conv", forward="1 GFLOP", backward="2 GFLOP", read="1 MB", write="1 MB", kernel_size=3)
    for seen in (layer(), layer("gemm"), layer("conv"), layer("attention"), table):
        ahead, back = (pass_time(seen, ON, here(), backward) for backward in (False, True))
        assert (ahead.time, back.time) == pytest.approx((2e-3, 5e-3)) and (ahead.launches, back.launches) == (3, 5)


def test_what_moves_memory_goes_by_its_bandwidth_and_the_batch_and_upkeep_by_bandwidth_alone() -> None:
    faster = memory_time(1.0, V100) / memory_time(1.0, A100)
    assert pass_time(layer(), ON, here(A100, 64)).time == pytest.approx(2 * 2e-3 / faster)
    assert pass_time(layer(), ON, here(A100, 64), backward=True).time == pytest.approx((2 * 4e-3 + 1e-3) / faster)


def test_large_products_go_by_the_peak_and_the_share_of_it_that_products_reach() -> None:
    """Ten times as long as the last point of any curve: both GPUs are at their best share."""

    def rate(gpu: Gpu) -> float:
        return gpu.peak["fp32"] * gpu.efficiency["gemm"]["fp32"][-1][1] / gpu.vector_factor

    seen = Layer.model_validate({"name": "seen", "op": "gemm", "measured": {"forward": "10 s"}})
    assert pass_time(seen, ON, here(A100)).time == pytest.approx(10 * rate(V100) / rate(A100), rel=1e-3)


def test_a_layer_that_says_its_work_goes_by_the_model_s_ratio() -> None:
    plain = Layer.model_validate({"name": "one", "op": "conv", "forward": "1 GFLOP", "read": "1 MB", "write": "1 MB", "kernel_size": 3})
    seen = plain.model_copy(update={"measured": layer().measured})
    ratio = layer_time(plain, *here(A100, 48)).time / layer_time(plain, *here()).time
    assert pass_time(seen, ON, here(A100, 48)).time == pytest.approx(2e-3 * ratio)


def test_a_model_measured_as_computed_takes_what_is_computed_everywhere() -> None:
    base = load_workload("resnet18", ("training.stack=torch-2.x-ddp", "training.batch=32")).spec
    times = layer_times(base, V100)
    layers = tuple(
        row.model_copy(update={"measured": layer().measured.model_copy(update={"forward": ahead, "backward": back, "upkeep": 0.0})})  # type: ignore[union-attr]
        for row, ahead, back in zip(base.model.layers, times.forward, times.backward, strict=True)
    )
    measured = base.model_copy(update={"model": base.model.model_copy(update={"layers": layers, "measured": ON})})
    for gpu in (V100, A100):
        assert layer_times(measured, gpu).forward == pytest.approx(layer_times(base, gpu).forward)
        assert layer_times(measured, gpu).backward == pytest.approx(layer_times(base, gpu).backward)


WRONG = {
    "names no GPU of the catalog": ({"gpu": "V1000", "batch": 32, "precision": "fp32", "source": "x"}, "1 ms", "V1000 is not in the cat"),
    "no place": (None, "1 ms", "layer one has measured times, but the model does not state where"),
    "no times": ({"gpu": "V100-SXM2-16GB", "batch": 32, "precision": "fp32", "source": "x"}, None, "layer one has no measured times"),
    "no unit": ({"gpu": "V100-SXM2-16GB", "batch": 32, "precision": "fp32", "source": "x"}, 0.001, "has no unit; write for example"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str, tmp_path: object) -> None:
    place, time, sentence = WRONG[case]
    table = {"name": "one", "op": "gemm", "gradients": [10]} | ({"measured": {"forward": time}} if time is not None else {})
    model = {"name": "m", "parameters": 10, "input": "1 kB", "source": "x", "layers": [table]} | ({"measured": place} if place else {})
    with pytest.raises(SpecError, match=sentence):
        workload(tmp_path, {"model": model})


def test_measured_layers_are_not_laid_out_otherwise(tmp_path: object) -> None:
    place = {"gpu": "V100-SXM2-16GB", "batch": 32, "precision": "fp32", "source": "x"}
    table = {"name": "one", "op": "gemm", "gradients": [10], "measured": {"forward": "1 ms"}}
    model = {"name": "m", "parameters": 10, "input": "1 kB", "source": "x", "layers": [table], "measured": place}
    assert workload(tmp_path, {"model": model}).model.measured.gpu == V100  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="layers measured with 1 tensor ranks can only be replayed with 1, not 2"):
        workload(tmp_path, {"model": model, "training": {"batch": 1, "parallel": {"tensor": 2}}})


def workload(folder: object, keys: dict[str, object]) -> Workload:
    """Load a workload of *keys* and what else it takes."""
    import json
    from pathlib import Path

    path = Path(str(folder)) / "mine.yaml"
    path.write_text(json.dumps({"name": "mine", "dataset": "synthetic-images", "training": {"batch": 32}} | keys))
    return load_workload(str(path)).spec
