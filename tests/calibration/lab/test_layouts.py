"""Are steps of divided models foreseen? Oracles: measured steps over namespaces, and bytes that left each host's interface."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.lab.layout_score import STACK, layout_rows, measured_lines, score_layouts, sent_bytes, simulate_point
from calibration.lab.plan import WORKLOADS, LabPlan, PointBlock, plan_points
from calibration.lab.records import RecordLine
from calibration.measure.division import Division
from calibration.questions import workload_named
from sim.spec.yaml import SpecError

RATE, ALONE = {"rate": "100 Mbps"}, {"alone": True}


def test_steps_are_foreseen() -> None:
    """Bands a little wider than what is reached (median 3.4, 90th percentile 8.2%); no point of these is fitted."""
    rows = {row["group"]: row for row in layout_rows(score_layouts())}
    assert rows["all"]["points"] >= 28
    assert rows["all"]["median"] < 0.04
    assert rows["all"]["p90"] < 0.10
    assert {name: row["median"] < 0.075 for name, row in rows.items()} == dict.fromkeys(("FSDP2", "pipeline", "tensor", "all"), True)


def test_chunks_whose_idle_time_was_not_told_apart_are_refused(tmp_path: Path) -> None:
    lines = [line for line in measured_lines() if line["point"]["layout"]["pipeline"] == 2]
    for line in lines:
        line["point"]["layout"] |= {"schedule": "interleaved_1f1b", "virtual_stages": 2}
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    with pytest.raises(SpecError, match="2 virtual stages cannot be scored; write virtual_stages: 1"):
        score_layouts(tmp_path / "own.jsonl")


def test_lines_without_a_point_to_predict_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They ended in an IndexError."""
    lines = [line for line in measured_lines() if line["role"] == "compute"][:2]
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert main(["lab", "--layouts", "--score", str(tmp_path / "own.jsonl")]) == 2
    assert "own.jsonl: has no measured layout of role prediction on 2 hosts" in capsys.readouterr().err


def operation_cost() -> float:
    """Seconds that an operation over Gloo costs beyond its bytes, from the one point of role network.

    The step time is linear in this cost, because each operation is waited for.
    """
    (line,) = [line for line in measured_lines() if line["role"] == "network"]
    (alone,) = [other for other in measured_lines() if other["role"] == "compute" and _split(other) == _split(line)]
    at = {launch: simulate_point(line, alone, (f"training.stack.gloo_transport.launch={launch} ms",)).step_time for launch in (0, 1)}
    return float((line["step_time_s"] - at[0]) / (at[1] - at[0]) * 1e-3)


def _split(line: RecordLine) -> tuple[object, ...]:
    point = line["point"]
    return point["model"], point["batch"], point["hosts"], point["layout"]


def test_the_stack_holds_the_constant_of_the_calibrating_point() -> None:
    transport = workload_named("lab-decoder", (f"training.stack={STACK}",), WORKLOADS).training.stack.library.gloo_transport
    assert transport is not None
    assert transport.launch == pytest.approx(operation_cost(), rel=0.005)


@pytest.mark.parametrize("kind", ["shard", "tensor", "pipeline"])
def test_a_rank_sends_the_bytes_that_its_program_says(kind: str) -> None:
    """The interface also counts headers and the ranks' messages before the first step, 0.1 to 1.5%. A pipeline's last gradient may still
    wait in the socket when its rank's step ends: one of all messages of the steps that were run."""
    lines = [line for line in measured_lines() if line["point"]["layout"][kind] not in (1, "none") and not line["point"]["alone"]]
    assert {line["point"]["hosts"] for line in lines} > {2}
    for line in lines:
        for number, rank in enumerate(line["ranks"]):
            nbytes = sent_bytes(line, number if kind == "pipeline" else 0)
            waiting = 1 / 4 / len(rank["times_s"]) if kind == "pipeline" else 0.0
            assert (1 - waiting) * nbytes <= rank["sent_bytes"] <= 1.015 * nbytes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tensor": 2, "pipeline": 2}, "one axis"),
        ({}, "one axis"),
        ({"tensor": 2, "micro_batches": 4}, "micro_batches require a pipeline"),
    ],
)
def test_a_layout_of_the_laboratory_has_one_axis(given: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Division.model_validate(given)


def test_points_of_a_layout_come_alone_or_over_a_network() -> None:
    layout = {"pipeline": 2, "micro_batches": 4}
    joined, alone = (PointBlock.model_validate({"model": "m", "batch": 8, "hosts": 2, "layout": layout} | more) for more in (RATE, ALONE))
    plan = LabPlan.model_validate({"name": "own", "hardware": "h", "models": {}, "points": [joined, alone]})
    assert {point.text: role for point, role in plan_points(plan).items()} == {
        "m, batch 8, 2 hosts, pipeline 2 1f1b, 4 micro-batches, 100 Mbps": "prediction",
        "m, batch 8, 2 hosts, pipeline 2 1f1b, 4 micro-batches, each rank alone": "compute",
    }


def test_the_command_shows_every_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--layouts", "--score"]) == 0
    output = capsys.readouterr().out
    assert all(
        word in output for word in ("FSDP2, no reshard, batch 8, 200 Mbps", "pipeline 2 gpipe", "tensor 2 + sequence", "median/p90%")
    )
