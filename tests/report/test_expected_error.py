"""Which runs does an expected error quote? Oracle: the groups that `hardware/validated.json` has."""

from __future__ import annotations

import math
import re

import pytest

from sim.cli import main
from sim.cluster.build import place
from sim.report import expected_error
from sim.report.document import run_document
from sim.report.expected_error import error_sentence, interval_text, missing_factor, traffic
from sim.report.layouts import layout_error
from sim.report.table import run_text
from sim.report.validated import validated_groups
from sim.spec.catalog import locate
from sim.spec.hardware import Gpu, Hardware
from sim.spec.library import load, load_part
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.study.scenario import Scenario, answer
from sim.training.job import Job


def test_what_computes_on_processors_quotes_no_gpu() -> None:
    answered = answer(Scenario("p3.2xlarge", "resnet18", ("node.gpu.host_cores=1", "node.gpu.name=my-processor")))
    document = run_document(answered.run, answered.inputs)
    assert document["expected_error"] is None
    assert "expected error: unknown, because no run on this kind of machine was measured" in run_text(answered.run, document)


def test_a_gpu_that_nobody_measured_quotes_others() -> None:
    answered = answer(Scenario("p3.2xlarge", "resnet18", ("node.gpu.name=my-gpu",)))
    error = run_document(answered.run, answered.inputs)["expected_error"]
    assert "measured runs on one GPU" in error["basis"] and "extrapolated: no measured run on my-gpu" in error["basis"]
    assert error["extrapolates"] and error["beyond"] == ["no measured run on my-gpu"]
    assert error_sentence(error).endswith("; extrapolated: no measured run on my-gpu.")


def test_the_interval_of_a_step_stands_in_words() -> None:
    """0.9 and 1.5 times 286 ms."""
    said = interval_text({"measured_over_predicted_95": {"low": 0.9, "high": 1.5}}, 0.286)
    assert said == "95% of measured steps were 0.9 to 1.5 times the prediction: here 257 ms to 429 ms"
    answered = answer(Scenario("p3.2xlarge", "resnet18"))
    document = run_document(answered.run, answered.inputs)
    assert f"\n    {interval_text(document['expected_error'], document['step_time_s'])};\n    based on " in run_text(answered.run, document)


@pytest.mark.parametrize(
    ("machine", "gpus", "overrides", "said"),
    [
        ("p4d.24xlarge", "8", (), "NVLink"),
        ("p4d.24xlarge", "1", (), "one GPU"),
        ("p4d.24xlarge", "8", ("node.topology.nvlink=null", "node.topology.peer_to_peer=none"), "host memory"),
        ("p4d.24xlarge", "8", ("node.topology.isolated=nic",), "efa-read inside a node"),
        ("p4d.24xlarge", "8", ("node.topology.nvlink=null", "node.topology.peer_to_peer=sys"), "PCIe"),
        ("p4d.24xlarge", "8", ("node.topology.nvlink=null", "node.topology.peer_to_peer=phb"), "host memory"),
        ("p4d.24xlarge", "4", ("node.topology.nvlink=null", "node.topology.peer_to_peer=phb"), "PCIe"),
    ],
)
def test_gpus_that_cannot_address_each_other_are_a_group_of_their_own(
    machine: str, gpus: str, overrides: tuple[str, ...], said: str
) -> None:
    """The descriptions: four GPUs of p4d.24xlarge lie below each socket."""
    hardware = load(Hardware, locate(machine, "hardware"), overrides).spec
    workload = load(Workload, locate("resnet18", "workloads")).spec
    assert traffic(hardware.groups[0].node, Job(workload, place(hardware, None, gpus))) == said


def error_of(hardware: str, monkeypatch: pytest.MonkeyPatch, *overrides: str, **changed: object) -> dict:
    """Return what a run on *hardware* quotes where only eight V100s and sockets, and everything, were measured."""
    group = {"points": 9, "median": 0.1, "p90": 0.2, "low": 0.8, "high": 1.2, "most_nodes": 2, "most_gpus": 16, "sources": ["a", "b"]}
    group |= {"most_parameters": 10**10, "shortest_step_s": 1e-3, "families": ["a convolutional network", "a transformer"]}
    names = ("V100-SXM2-16GB, NVLink", "NVLink", "V100-SXM2-16GB, tcp between nodes", "all runs")
    monkeypatch.setattr(expected_error, "validated_groups", lambda: {name: group | changed for name in names})
    answered = answer(Scenario(hardware, "resnet50", overrides))
    return run_document(answered.run, answered.inputs)["expected_error"]


def test_the_same_gpu_and_network_interpolate_unless_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_of("p3.16xlarge", monkeypatch)["basis"].endswith("; within the sizes measured")
    more = error_of("p3.16xlarge", monkeypatch, most_gpus=4)
    assert more["extrapolates"] and more["basis"].endswith("extrapolated: 8 GPUs, measured up to 4")


def test_reasons_that_have_a_comma_are_told_apart_by_semicolons(monkeypatch: pytest.MonkeyPatch) -> None:
    more = error_of("p3.16xlarge", monkeypatch, most_gpus=4, most_parameters=1_000_000)
    assert more["beyond"] == ["8 GPUs, measured up to 4", "26 million parameters, measured up to 1 million"]
    assert more["basis"].endswith(f"; extrapolated: {'; '.join(more['beyond'])}")


def test_parameters_are_counted_in_words() -> None:
    counts = {26e6: "26 million", 6.7e9: "6.7 billion", 671e9: "671 billion", 1.026e12: "1.03 trillion"}
    assert {count: expected_error._count(count) for count in counts} == counts


def test_a_step_much_shorter_than_those_measured_extrapolates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within five times; the step is of resnet50 on V100s, 0.2 s or so."""
    short = error_of("p3.16xlarge", monkeypatch, shortest_step_s=10.0)
    assert short["extrapolates"] and re.search(r"; extrapolated: a step of \d+ ms, measured from 10 s$", short["basis"])
    assert not error_of("p3.16xlarge", monkeypatch, shortest_step_s=0.5)["extrapolates"]


def test_another_gpu_and_another_network_extrapolate(monkeypatch: pytest.MonkeyPatch) -> None:
    other = error_of("hgx-h100", monkeypatch)
    assert (
        other["basis"].startswith("based on 9 measured runs on NVLink (a, b)")
        and "no measured run on H100-SXM5-80GB over NVLink" in other["basis"]
    )
    strange = error_of("p2.8xlarge", monkeypatch)
    assert strange["basis"].startswith("based on all 9 measured runs (a, b)") and strange["extrapolates"]


def test_a_gpu_that_nobody_measured_has_a_wider_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 9 / 25% of chips that were left out of the fit, added in squares; 95% of normal errors lie within 1.19 times the p90."""
    measured, new = (error_of(name, monkeypatch) for name in ("p3.16xlarge", "hgx-h100"))
    assert (measured["median"], measured["p90"]) == (0.1, 0.2)
    assert new["median"] == pytest.approx((0.1**2 + 0.09**2) ** 0.5)
    assert new["p90"] == pytest.approx((0.2**2 + 0.25**2) ** 0.5)
    ends = new["measured_over_predicted_95"]
    wider = math.log(1.25) * 1.96 / 1.645
    assert math.log(ends["low"]) == pytest.approx(-((math.log(0.8) ** 2 + wider**2) ** 0.5))
    assert math.log(ends["high"]) == pytest.approx((math.log(1.2) ** 2 + wider**2) ** 0.5)


def test_a_decoder_is_no_surer_than_decoders_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: where the group holds no decoder, the larger errors of both answer, and the wider interval."""
    group = {"points": 9, "median": 0.1, "p90": 0.2, "low": 0.95, "high": 1.9, "most_nodes": 2, "most_gpus": 16, "sources": ["a"]}
    group |= {"most_parameters": 10**12, "shortest_step_s": 1e-3, "families": ["a transformer"]}
    of_layouts = {"points": 6, "median": 0.24, "p90": 0.37, "low": 0.7, "high": 1.3, "most_gpus": 64, "sources": ["b"]}
    monkeypatch.setattr(expected_error, "validated_groups", lambda: {"H100-SXM5-80GB, NVLink": group})
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"data, gated, H100-SXM5-80GB": of_layouts})
    for workload, median, p90, low in (("llama-3.2-1b", 0.24, 0.37, 0.7), ("bert-base-seq128", 0.1, 0.2, 0.95)):
        answered = answer(Scenario("hgx-h100", workload, ("training.batch=1",)))
        error = run_document(answered.run, answered.inputs)["expected_error"]
        assert (error["median"], error["p90"]) == (median, p90)
        assert error["measured_over_predicted_95"] == {"low": low, "high": 1.9}
        assert ("at least the errors of 6 similar measured training runs" in error["basis"]) == (median == 0.24)
        assert ("no measured run of a decoder without a layout" in error["beyond"]) == (median == 0.24)


def test_a_family_that_was_measured_elsewhere_is_missing_in_its_group_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all runs are the group, the family was measured nowhere."""
    others = {"families": ["a recurrent model"]}
    beyond = error_of("p3.16xlarge", monkeypatch, **others)["beyond"]
    assert beyond == ["no measured run of a convolutional network on V100-SXM2-16GB, NVLink"]
    assert "no measured run of a convolutional network" in error_of("p2.8xlarge", monkeypatch, **others)["beyond"]


def test_no_gpu_inherits_what_the_power_of_another_board_costs() -> None:
    """The factors fitted on the 300 W of the RTX 6000 Ada are that board's alone; others take the mean of the architectures."""
    mean = load_part(Gpu, "b200-sxm-180gb")
    for name in ("l4", "l40s", "rtx4090", "rtx5090"):
        gpu = load_part(Gpu, name)
        assert (gpu.tensor_core_factor, gpu.tensor_core_gemm_factor) == (mean.tensor_core_factor, mean.tensor_core_gemm_factor)
    held_back = load_part(Gpu, "rtx6000ada")
    assert held_back.tensor_core_gemm_factor > 1.5 * mean.tensor_core_gemm_factor


def test_a_prediction_outside_its_interval_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Measured steps on these machines all took longer than predicted: the interval lies above the step shown beside it."""
    both = {"measured_over_predicted_95": {"low": 0.95, "high": 1.2}}
    above, below = ({"measured_over_predicted_95": {"low": low, "high": high}} for low, high in ((1.0166, 1.2), (0.7, 0.98)))
    assert "expect" not in interval_text(both, 1.0)
    assert interval_text(above, 0.5).endswith(
        "were 1.02 to 1.2 times the prediction: here 508 ms to 600 ms, so expect a longer step than predicted"
    )
    assert interval_text(below, 0.5).endswith("so expect a shorter step than predicted")
    outside = [name for name, group in validated_groups().items() if not group["low"] <= 1 <= group["high"]]
    assert outside, "if no group is biased any more, the sentence has no use"
    assert main(["run", "p2.8xlarge", "alexnet", "--stack", "tensorflow-1.1", "--fast"]) == 0
    assert "so expect a longer step than predicted;" in capsys.readouterr().out


def test_errors_of_decoders_with_layouts_have_a_factor_that_data_parallel_stacks_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their steps have compute_factor 1.04 and, on Blackwell, 1.15 times that: a step without both may take as long as predicted, or that
    much longer. Stacks with a factor of their own, fitted to their own runs, need none.
    """
    stacks = {name: load_part(Stack, name) for name in ("torch-2.x-ddp", "megatron-core", "ngc-pytorch-22.09")}
    gpus = {name: load_part(Gpu, name) for name in ("h100-sxm5-80gb", "b200-sxm-180gb", "a100-sxm4-80gb")}
    ddp = [missing_factor(stacks["torch-2.x-ddp"], gpu) for gpu in gpus.values()]
    assert ddp == pytest.approx([1.04, 1.04 * 1.15, 1.04 * 0.93])
    assert all(missing_factor(stacks[name], gpu) == 1.0 for name in ("megatron-core", "ngc-pytorch-22.09") for gpu in gpus.values())
    group = {"median": 0.05, "p90": 0.1, "basis": "runs", "measured_over_predicted_95": {"low": 0.2, "high": 4.0}}
    monkeypatch.setattr(expected_error, "decoder_error", lambda *_: group)
    for stack, ends in (("torch-2.x-ddp", (0.2, 4.0 * 1.04 * 1.15)), ("ngc-pytorch-22.09", (0.2, 4.0))):
        answered = answer(Scenario("gpu_1x_b200_sxm6", "llama-3.2-1b", (f"training.stack={stack}",)))
        error = run_document(answered.run, answered.inputs)["expected_error"]
        interval = error["measured_over_predicted_95"]
        assert (interval["low"], interval["high"]) == pytest.approx(ends, rel=1e-4)
        assert (f"with 1.20 times the compute that {stack} has" in error["basis"]) == (stack == "torch-2.x-ddp")
