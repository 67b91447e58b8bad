"""Oracle: a table written by hand; the nearest group answers, and what was not measured widens."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from sim.events import Cause
from sim.report.expected_error import interval_text
from sim.report.layouts import layout_error
from sim.report.layouts.layout_error import WIDER, expected_layout_error, kind_of
from sim.spec.parallel import Parallel
from sim.spec.transformer import DeltaNet, Transformer

GROUP = {
    "points": 10, "median": 0.1, "p90": 0.2, "low": 0.8, "high": 1.3, "sources": ["a"],
    "most_gpus": 64, "most_sequence": 8192, "most_context": 2, "least_context_tokens": 1024, "least_network": 50e9,
}  # fmt: skip
KINDS = ("data", "tensor", "pipeline", "expert")


@pytest.fixture(autouse=True)
def without_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_error, "validated_part", lambda *_: {})


def run(
    gpu: str,
    gpus: int,
    decoder: bool = True,
    framework: str = "megatron",
    overlap: float = 0.0,
    sequence: int = 8192,
    network: float = 50e9,
    cores: int = 0,
    batch: int = 4,
    **parallel: Any,
) -> Any:
    training = SimpleNamespace(parallel=Parallel(**parallel), batch=batch)
    transformer = SimpleNamespace(experts=0, gated=True, pattern=None, causal=True) if decoder else None
    workload = SimpleNamespace(training=training, model=SimpleNamespace(transformer=transformer), sequence=sequence)
    layout = SimpleNamespace(
        schedule=training.parallel.schedule or "1f1b", options=SimpleNamespace(framework=framework, tensor_overlap=overlap), own_passes=None
    )
    node = SimpleNamespace(gpu=SimpleNamespace(name=gpu, host_cores=cores), gpu_count=8, nic=SimpleNamespace(count=8, bandwidth=network))
    stalls = {Cause.COMPUTE: 6.0}
    return SimpleNamespace(layout=layout, workload=workload, node=node, gpus=gpus, nodes=-(-gpus // 8), stalls=stalls, step_time=8.0)


def test_ranks_on_processors_quote_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"all layouts": GROUP})
    assert expected_layout_error(run("my-processor", 8, cores=1)) is None
    assert expected_layout_error(run("Y", 8)) is not None


def test_the_nearest_group_answers_and_others_widen(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"tensor, X": GROUP, "tensor": {**GROUP, "median": 0.3}, "all layouts": GROUP}
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: groups)
    near = expected_layout_error(run("X", 8, tensor=2))
    assert near is not None and not near["extrapolates"] and near["median"] == 0.1
    far = expected_layout_error(run("X", 128, tensor=2))
    assert far is not None and far["extrapolates"] and far["median"] == pytest.approx(WIDER * 0.1)
    assert far["measured_over_predicted_95"]["high"] == pytest.approx(1.3**WIDER, abs=1e-4)
    other = expected_layout_error(run("Y", 8, tensor=2))
    assert (
        other is not None
        and other["median"] == pytest.approx(WIDER * 0.3)
        and "no or too few measured tensor layouts on Y" in other["basis"]
    )
    groups["tensor, X"] = {
        **GROUP,
        "low": 0.98,
        "high": 2.0,
    }  # all slower than predicted: outside, some may be as much faster as they differ
    biased = expected_layout_error(run("X", 128, tensor=2))
    assert biased is not None
    ends = biased["measured_over_predicted_95"]
    assert ends == pytest.approx({"low": 0.98 * (0.98 / 2.0) ** (0.5 * (WIDER - 1)), "high": 2.0**WIDER}, abs=1e-3)
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {})
    assert expected_layout_error(run("X", 8, tensor=2)) is None


def test_intervals_are_at_least_as_wide_as_the_law_for_a_new_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale is 0.1, doubled for few samples, tripled for what is beyond, and a quarter of the step is exposed."""
    effects = {"experts": 5.0, "few_samples": math.log(2), "exposed": 4.0, "novel": math.log(3)}
    law = {"intercept": math.log(0.1), "effects": effects, "factor": 2.0}
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"tensor, X": GROUP})
    monkeypatch.setattr(layout_error, "validated_part", lambda *_: law)
    for given, scale in (({}, 1.0), ({"batch": 2}, 2.0), ({"gpus": 128}, 3.0)):
        answer = expected_layout_error(run("X", **{"gpus": 8, "tensor": 2, **given}))
        assert answer is not None
        half = 2.0 * 0.1 * scale * math.e
        assert answer["measured_over_predicted_95"] == {"low": round(math.exp(-half), 4), "high": round(math.exp(half), 4)}
    law["intercept"] = math.log(0.001)  # runs that were measured differ more
    answer = expected_layout_error(run("X", 8, tensor=2))
    assert answer is not None and answer["measured_over_predicted_95"] == {"low": 0.8, "high": 1.3}
    assert "95% interval for a cluster that was not measured: 0.8 to 1.3 times the prediction, 8 s to 13 s" in interval_text(answer, 10.0)


BEYOND: dict[str, dict[str, Any]] = {
    "128 GPUs, measured up to 64": {"gpus": 128},
    "sequences of 131,072 tokens, measured up to 8,192": {"sequence": 131_072},
    "8 context ranks, measured up to 2": {"context": 8},
    "512 tokens per context rank, measured from 1,024": {"context": 2, "sequence": 1024},
    "a network of 10 Gbps per GPU, measured from 400 Gbps": {"gpus": 16, "network": 1.25e9},
}


@pytest.mark.parametrize("text", BEYOND)
def test_runs_beyond_the_measured_ones_extrapolate(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"tensor, X": GROUP})
    inside, beyond = (expected_layout_error(run("X", **{"gpus": 8, "tensor": 2, **more})) for more in ({}, BEYOND[text]))
    assert inside is not None and "interpolated" in inside["basis"] and not inside["extrapolates"]
    assert beyond is not None and beyond["basis"].endswith(f"extrapolated: {text}")


def test_few_tokens_are_beyond_what_was_measured_only_on_context_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the fewest tokens of a rank in a measured run; without a measured run with context ranks, their number is beyond already."""
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"tensor, X": GROUP})
    for fields in ({"sequence": 512}, {"sequence": 2048, "context": 2}):
        answer = expected_layout_error(run("X", 8, tensor=2, **fields))
        assert answer is not None and not answer["extrapolates"]
    monkeypatch.setattr(
        layout_error, "validated_groups", lambda _: {"tensor, X": {**GROUP, "most_context": 1, "least_context_tokens": None}}
    )
    alone = expected_layout_error(run("X", 8, tensor=2, context=2, sequence=512))
    assert alone is not None and alone["basis"].endswith("extrapolated: 2 context ranks, measured up to 1")


def test_a_slow_network_does_not_matter_inside_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"tensor, X": {**GROUP, "least_network": None}})
    inside, between = (expected_layout_error(run("X", gpus, tensor=2, network=1e9)) for gpus in (8, 16))
    assert inside is not None and not inside["extrapolates"]
    assert between is not None and "a network of 8 Gbps per GPU, measured inside one node only" in between["basis"]


def test_a_gpu_that_was_not_measured_is_no_more_accurate_than_one_that_was(monkeypatch: pytest.MonkeyPatch) -> None:
    worst = {**GROUP, "median": 0.4, "p90": 0.9, "low": 0.3, "high": 4.0}
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"tensor": GROUP, "tensor, gated, X": worst})
    other = expected_layout_error(run("Y", 8, tensor=2))
    assert other is not None and (other["median"], other["p90"]) == (0.4, 0.9)
    assert other["measured_over_predicted_95"] == {"low": 0.3, "high": 4.0}


UNLIKE: dict[str, dict[str, Any]] = {
    "no measured model other than decoders": {"decoder": False, "pipeline": 2},
    "schedule zb_h1 is not validated": {"pipeline": 2, "schedule": "zb_h1"},
    "overlapped tensor-parallel messages of fsdp2 are not validated": {"framework": "fsdp2", "tensor": 2, "overlap": 0.5},
    "ZeRO stage 2 of DeepSpeed is not validated": {"framework": "deepspeed", "shard": "gradients"},
    "ZeRO stage 3 of DeepSpeed is not validated": {"framework": "deepspeed", "shard": "parameters"},
}


@pytest.mark.parametrize("text", UNLIKE)
def test_what_no_run_was_measured_with_extrapolates(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_error, "validated_groups", lambda _: {"all layouts": GROUP, **{f"{kind}, X": GROUP for kind in KINDS}})
    answer = expected_layout_error(run("X", 8, **UNLIKE[text]))
    assert answer is not None and answer["extrapolates"] and answer["median"] == pytest.approx(WIDER * 0.1)
    assert text in answer["basis"] and "runs like it" not in answer["basis"] and "interpolated" not in answer["basis"]
    alike = {key: value for key, value in UNLIKE[text].items() if key not in ("decoder", "schedule", "overlap", "framework")}
    measured = expected_layout_error(run("X", 8, **alike))
    assert measured is not None and not measured["extrapolates"]


def test_kinds_of_layout() -> None:
    assert [kind_of(*axes) for axes in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (2, 1, 4, 1), (1, 1, 4, 8))] == [
        "data", "tensor", "tensor", "pipeline", "expert",
    ]  # fmt: skip


def test_delta_nets_are_nearest_to_all_hybrids_whatever_their_gpu() -> None:
    """Nobody measured a delta net, so the errors of hybrids on the same GPU are not those of runs alike."""
    shape = Transformer(
        layers=4,
        hidden=64,
        heads=4,
        vocab=100,
        ffn=128,
        pattern="G-*-",
        delta_net=DeltaNet(key_heads=2, value_heads=4),
        activation="swiglu",
    )
    family = layout_error.decoder_family(shape)
    assert family != layout_error.HYBRID
    assert layout_error.group_names("expert", family, "H100")[-1] == layout_error.HYBRID
    assert "hybrid, H100" not in layout_error.group_names("expert", family, "H100")
