"""Does whatever shows a layout say what of it no measured run has? Oracle: the list of issue and docs, schedules and frameworks by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli import main
from sim.report.layouts.layout_error import expected_layout_error
from sim.study.layout import layout_answer, not_validated
from sim.study.layout_options import layout_of
from sim.study.scenario import Scenario
from tests.report.page.reading import Page

ZBV = ["--parallel", "pp=4,tp=2,schedule=zbv,micro_batches=8"]
SAID = "schedule zbv is not validated: no measured run in the records uses it"
HARDWARE, MODEL = "hgx-h100", "llama-3.2-1b"
COMMANDS = {
    "run": ["run", HARDWARE, MODEL, *ZBV],
    "whatif": ["whatif", HARDWARE, MODEL, *ZBV],
    "compare": ["compare", MODEL, HARDWARE, "dgx-a100", *ZBV, "--jobs", "1"],
    "goodput": ["goodput", HARDWARE, MODEL, *ZBV, "--days", "30"],
    "plan": ["plan", HARDWARE, MODEL, "--global-batch", "32", "--allow", "zero_bubble", "--fix", "pp=4,tp=2,schedule=zbv"],
    "recommend": ["recommend", MODEL, "p4d.24xlarge", "--tokens", "1B", "--budget-usd", "1e6", "--nodes", "1", "--jobs", "1"]
    + [word for field in ("pipeline=4", "tensor=2", "schedule=zbv") for word in ("--set", f"training.parallel.{field}")]
    + ["--set", "training.gradient_accumulation_steps=8"],
}  # fmt: skip


def plain(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").split()).lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_text_document_and_page_say_it(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All three are of one run."""
    assert main([*COMMANDS[command], "-q", "--html", str(tmp_path / "page.html"), "-o", str(tmp_path)]) == 0
    assert SAID in plain(capsys.readouterr().out)
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert any(SAID in plain(element.text) for element in page.elements if element.name in ("li", "p"))
    assert SAID in plain(json.dumps(json.loads((tmp_path / f"{command}.json").read_text(encoding="utf-8"))))


@pytest.mark.nightly
def test_rows_of_a_plan_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", HARDWARE, MODEL, "--global-batch", "32", "--allow", "zero_bubble", "--fix", "pp=4,tp=2", "-q"]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layouts"]
    unproven = [row["parallel"]["schedule"] in ("zb_h1", "zbv", "dualpipev") for row in rows]
    assert [bool(row["not_validated"]) for row in rows] == unproven and {*unproven} == {True, False}
    assert main(command) == 0
    lines = [
        line for line in capsys.readouterr().out.splitlines() if "(1f1b" in line or "_1f1b" in line or "zbv)" in line or "dualpipev" in line
    ]
    assert all(("(not validated)" in line) == ("zb" in line or "dualpipev" in line) for line in lines if "[" in line)


def test_points_of_a_sweep_are_marked(tmp_path: Path) -> None:
    command = ["sweep", HARDWARE, MODEL, *ZBV[:1], "pp=4,tp=2,micro_batches=8", "--vary", "training.parallel.schedule=1f1b,zbv"]
    assert main([*command, "--jobs", "1", "-q", "-o", str(tmp_path / "s.csv"), "--html", str(tmp_path / "s.html")]) == 0
    head, first, second = (tmp_path / "s.csv").read_text().splitlines()
    assert "not_validated" in head.split(",") and SAID not in first and SAID in second
    page = Page((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert [flag.attributes["title"] for flag in page.all("span", class_="flag")] == [SAID]
    assert f"1 point: {SAID}" in {item.text for item in page.all("li")}


def test_a_trace_says_it(tmp_path: Path) -> None:
    assert main([*COMMANDS["run"], "-q", "--trace", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["stallsim"]["not_validated"] == [SAID]


@pytest.mark.parametrize(("stack", "fields", "said"), [
    ("torchtitan-2.x", "pp=4,tp=2,schedule=zb_h1,micro_batches=8", "schedule zb_h1 is"),
    ("torchtitan-2.x", "pp=4,tp=2,schedule=dualpipev,micro_batches=8", "schedule dualpipev is"),
    ("torchtitan-2.x", "tp=2,shard=parameters", "overlapped tensor-parallel messages of fsdp2 are"),
    ("megatron-core", "tp=2,shard=optimizer", ""),
    ("megatron-deepspeed", "shard=optimizer", ""),
    ("megatron-deepspeed", "shard=gradients", "ZeRO stage 2 of DeepSpeed is"),
    ("megatron-deepspeed", "shard=parameters", "ZeRO stage 3 of DeepSpeed is"),
])  # fmt: skip
def test_what_is_not_validated(stack: str, fields: str, said: str) -> None:
    overrides = ("training.stack.mesh.tensor_overlap=0.5", "training.activation_checkpointing=blocks")  # else DeepSpeed's scores do not fit
    answer = layout_answer(Scenario(HARDWARE, MODEL, overrides, nodes=1, stack=stack, layout=layout_of([fields])))
    texts = [text for text in not_validated(answer.run) if said or "overlapped" not in text]
    assert any(text.startswith(f"{said} not validated: ") for text in texts) if said else not texts
    assert {*not_validated(answer.run)} <= {*answer.warnings}


def test_encoders_are_not_validated() -> None:
    """All measured runs of layouts train decoders."""
    encoder = ("model.transformer.causal=false",)
    run = layout_answer(Scenario(HARDWARE, "llama-3.2-1b", encoder, nodes=1, layout=layout_of(["shard=parameters"]))).run
    (sentence,) = not_validated(run)
    assert sentence == "attention both ways, of an encoder, is not validated: no measured run of a layout in the records has it"
    error = expected_layout_error(run)
    assert error is not None and error["extrapolates"]
