"""What do whole layers add to kernels, and how do predictions compare with measured steps?

Oracle: records whose layers take what the model says, times a known factor.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.machines import fit_run, step_factors
from calibration.machines.layer_factors import PRODUCT_OPERATORS, layer_ratios, trace_model
from calibration.machines.machine_fit import Fit, fits, merge_records
from calibration.machines.machine_yaml import device_block, with_layers
from calibration.machines.posterior import fit_mean
from calibration.machines.predicted_steps import measured_step, predicted_step
from calibration.machines.step_comparison import compare, comparison_table, is_disturbed
from calibration.machines.step_factors import is_significant, step_fit, with_factor
from calibration.measure.machine_record import MachineRecord, ProbeRecord, write_record
from sim.cluster.gpu import layer_time
from sim.spec.hardware import Gpu
from sim.spec.library import load, load_hardware, load_part
from sim.spec.stack import Stack
from tests.calibration.machine_records import cpu_record, gpu_record

pytestmark = pytest.mark.needs("torch")
NETWORK = {"model": "calibration.measure.probes.small_nets:deep", "inputs": ["3x32x32"], "arguments": [], "batch": 64}


def layers_of(folder: Path, factor: float) -> dict:
    """Return the row of a network whose layers take *factor* times what the device of the record's kernels is modeled to take."""
    write_record(folder / "kernels.json", cpu_record())
    fit_run.fit([folder / "kernels.json"], folder / "kernels.yaml")
    gpu = load_hardware(str(folder / "kernels.yaml")).spec.groups[0].node.gpu
    stack = load_part(Stack, "gloo-ddp")
    rows = [
        {
            "layer": layer.name,
            "type": "Conv2d" if layer.op in PRODUCT_OPERATORS else "ReLU",
            **{
                f"{way}_s": [factor * layer_time(layer, gpu, "fp32", stack, 64, way == "backward").time] * 3
                for way in ("forward", "backward")
            },
        }
        for layer in trace_model(NETWORK["model"], ("3x32x32",), ()).layers
    ]
    row = NETWORK | {"whole_s": [1.0], "layers": rows}
    assert layer_ratios(row, trace_model(NETWORK["model"], ("3x32x32",), ()), gpu) == (pytest.approx(factor), pytest.approx(factor))
    return row


def with_steps(folder: Path, factor: float) -> MachineRecord:
    record = cpu_record()
    record.probes["layers"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=[layers_of(folder, factor)])
    steps = [
        NETWORK | {"exchange": exchange, "ranks": 2, "times_by_rank_s": [[0.1, 0.2, 0.3], [0.2, 0.1, 0.5]]} for exchange in (True, False)
    ]
    record.probes["steps"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=steps)
    return record


def test_layers_slow_the_device_and_only_its_steps(tmp_path: Path) -> None:
    """Layers twice as slow as kernels say: the description's products take twice as long, and so does the compute of a step."""
    write_record(tmp_path / "r.json", with_steps(tmp_path, 2.0))
    fitted = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml")
    gpu = load_hardware(str(tmp_path / "r.yaml")).spec.groups[0].node.gpu
    assert gpu.vector_factor == pytest.approx(2.0, rel=1e-2)
    assert load(Stack, tmp_path / "r-stack.yaml").spec.kernels.elementwise_traffic == pytest.approx(2.0, rel=1e-2)
    rows, notes = compare(fitted.records, fitted.files, fitted.step_ratios)
    assert notes == [] and [row.exchange for row in rows] == [True, False]
    alone = rows[1]
    assert alone.from_layers / alone.from_kernels == pytest.approx(2.0, rel=0.1)
    assert alone.predicted == alone.from_layers  # there is no other model to learn from
    assert all(row.measured == pytest.approx(0.2) for row in rows)  # of 0.2, 0.2, 0.5
    assert "median error, own model left out of the fit" in comparison_table(rows)


def test_a_step_over_its_layers_is_the_stacks_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measured step of 3 s: the layers of the model, times the factor found, and its optimizer take 3 s."""
    record = with_steps(tmp_path, 1.0)
    record.probes["steps"].rows[1]["times_by_rank_s"] = [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    write_record(tmp_path / "r.json", record)
    fitted = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml")
    [[ratio]] = fitted.step_ratios.values()
    row = record.rows("steps")[1]
    assert predicted_step(row, fitted.files, stack={"compute_factor": ratio}) == pytest.approx(3.0, rel=1e-6)
    assert load(Stack, tmp_path / "r-stack.yaml").spec.kernels.compute_factor == 1.0  # one model does not say it of all
    monkeypatch.setattr(step_factors, "LEAST_STEPS", 1)
    fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml")
    stack = load(Stack, tmp_path / "r-stack.yaml").spec
    assert (
        stack.kernels.compute_factor == pytest.approx(ratio, rel=1e-3) and "steps without exchange take" in stack.source["compute_factor"]
    )


def test_other_models_factor_is_used_where_it_is_sure(tmp_path: Path) -> None:
    """Three models agree on 1.3 within 1%: the fourth is predicted with it. Models that scatter around 1 give no factor."""
    sure = step_fit({"a": [1.3], "b": [1.31], "c": [1.29], "d": [9.0]}, excluded="d")
    assert sure is not None and sure["factor"].value == pytest.approx(1.3, rel=0.01) and is_significant(sure)
    assert not is_significant(step_fit({"a": [0.9], "b": [1.1], "c": [1.2]}))
    assert not is_significant(step_fit({"a": [1.3], "b": [1.3]})) and step_fit({"a": [2.0]}, excluded="a") is None
    assert with_factor({"name": "x", "source": {"name": "y"}}, sure, "z")["source"] == {"name": "y", "compute_factor": "z"}


def test_a_known_gpu_keeps_the_factor_that_its_layers_multiply(tmp_path: Path) -> None:
    """Layers that take 1.5 times as long as predicted multiply the factor that the catalog's V100 already has."""
    write_record(tmp_path / "g.json", gpu_record())
    measured = merge_records([tmp_path / "g.json"])
    kernels = device_block(measured, fits(measured))
    before = load_part(Gpu, kernels["extends"]).vector_factor
    assert before > 1
    layers = {"products in networks": Fit("products in networks", "layers", np.ones(3), np.full(3, 1.5), fit_mean("factor", [1.5] * 3))}
    assert with_layers(kernels, measured, layers, before)["vector_factor"] == pytest.approx(1.5 * before, rel=1e-3)


def test_the_slowest_rank_is_the_step() -> None:
    assert measured_step({"times_by_rank_s": [[1.0, 5.0, 2.0], [3.0, 1.0, 1.0]]}) == 3.0


def test_ranks_without_their_cores_were_disturbed() -> None:
    """Of a step of 0.2 s a rank computed 0.19 s, or 0.1 s; with an exchange it may wait."""
    row = {"exchange": False, "times_by_rank_s": [[0.2, 0.2], [0.2, 0.2]], "cpu_s": [0.19, 0.19]}
    assert not is_disturbed(row) and is_disturbed(row | {"cpu_s": [0.19, 0.1]})
    assert not is_disturbed(row | {"cpu_s": [0.19, 0.1], "exchange": True})


def test_a_model_that_is_gone_is_told(tmp_path: Path) -> None:
    record = with_steps(tmp_path, 1.0)
    for row in record.rows("steps"):
        row["model"] = "absent_module:net"
    write_record(tmp_path / "r.json", record)
    fitted = fit_run.fit([tmp_path / "r.json"], tmp_path / "r.yaml")
    rows, notes = compare(fitted.records, fitted.files, fitted.step_ratios)
    assert rows == [] and len(notes) == 1 and "absent_module:net: not predicted" in notes[0]
