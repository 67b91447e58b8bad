"""What is said of a plan? Its document, its table, its command and its refusals. Oracles: the plan itself, and the command run again."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sim.cli import main
from sim.report import plan as plan_report
from sim.report.page.layout_plan import plan_page
from sim.report.plan import candidate_name, plan_document
from sim.report.plan_text import plan_text
from sim.report.whole_job import long_time
from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.plan.question import LayoutPlan, PlanQuestion, plan, prepare_plan
from sim.study.plan.search import Limits
from sim.study.plan.sensitivity import sensitivity
from sim.study.scenario import Scenario
from sim.units import rounded_dollars, show
from tests.study.plan.planned import ANY_SCHEDULE, SMALL, UNEVEN_EXPERTS, WRAPPED, assert_commands_repeat


def test_each_change_that_is_tried_is_told() -> None:
    """Oracle: the change that the message names is the last one tried."""
    tried: list[str] = []
    with pytest.raises(Infeasible) as refused:
        plan(PlanQuestion(Scenario("hgx-h100", "llama-3.1-70b", global_batch=16), (1,)), trying=tried.append)
    assert str(refused.value).endswith(f"; {tried[-1]} would fit")


@pytest.mark.parametrize(
    ("model", "overrides", "fixed"),
    [
        pytest.param("deepseek-v2-lite", UNEVEN_EXPERTS, {"ep": "8", "micro_batches": "4"}, marks=pytest.mark.nightly),
        pytest.param("llama-3.2-1b", WRAPPED, {"shard": "parameters", "micro_batches": "4"}, marks=pytest.mark.nightly),
        (
            "llama-3.2-1b",
            ("training.parallel.pipeline=2", "training.parallel.tensor=2", "training.activation_checkpointing=blocks", "training.batch=7"),
            {"tp": "1", "pp": "1", "recompute": "blocks"},
        ),
    ],
)
def test_the_command_says_what_the_plan_decided_and_what_it_kept(model: str, overrides: tuple[str, ...], fixed: dict[str, str]) -> None:
    """Also where the workload has a layout of its own."""
    scenario = Scenario("hgx-h100", model, overrides, global_batch=64, stack="torchtitan-2.x")
    made = plan(PlanQuestion(scenario, (2,), fixed=fixed, limits=Limits(simulations=3)))
    assert made.tally.outcomes
    assert_commands_repeat(made, made.tally.outcomes[:3])


def test_the_cost_of_a_layout_that_thrashes_is_that_of_the_step_shown() -> None:
    """Closed form: USD per token are the price over tokens/s. The penalty ranks; it multiplied costs, but not the step beside them."""
    question = PlanQuestion(Scenario("1h200.141s.44v", "llama-3.1-8b", global_batch=8), (1,), tokens="50M")
    document = plan_document(plan(question))
    row, usd_per_s = document["layouts"][0], 3.39 / 3600
    assert row["memory_verdict"] == "thrashes" and row["penalized_step_time_s"] == 3 * row["step_time_s"]
    assert row["cost_per_token_usd"] == pytest.approx(usd_per_s / row["tokens_per_s_per_gpu"])
    assert row["cost_per_step_usd"] == pytest.approx(usd_per_s * row["step_time_s"])
    assert row["job_time_s"] == pytest.approx(5e7 / row["tokens_per_s_per_gpu"], rel=1e-3)
    assert row["job_cost_usd"] == pytest.approx(usd_per_s * row["job_time_s"])
    own = "; the workload's own stack holds the whole model on each GPU: --stack torch-2.x-ddp plans it"
    assert any(line.endswith(f"each with the layouts that it supports (--stack){own}") for line in document["assumptions"])
    assert "Its memory is nearly full, so steps may take up to 3 times as long." in document["verdict"]


def test_the_document_counts_every_layout_and_its_command_simulates_the_same_step(small: LayoutPlan) -> None:
    document = plan_document(small)
    assert document["candidates"] == document["infeasible"] + document["excluded_by_bound"] + document["open"] + document["simulated"]
    json.dumps(document)
    assert_commands_repeat(small, small.tally.outcomes[:6])
    text, page = plan_text(document), plan_page(document)
    assert document["layouts"][0]["name"] in text
    assert "optimal under the model" in text
    priced = document["layouts"][0] | {"job_time_s": 60.0, "job_energy_kwh": None}
    for usd, shown in ((0.0003, "$0.0003"), (7.4341, "$7.43"), (7434.1, "$7,430"), (27_853_155.27, "$27,900,000")):
        priced_text = plan_text(document | {"tokens": 5e7, "layouts": [priced | {"job_cost_usd": usd}]})
        assert f"  50 million tokens: 1 min, {shown} with the best" in priced_text
    assert document["layouts"][0]["name"] in page


@pytest.mark.nightly
def test_where_things_change_another_layout_may_win() -> None:
    scenario = Scenario("hgx-h100", "qwen3-0.6b", global_batch=64)
    question = PlanQuestion(scenario, (2,), fixed={"batch": "2", "tp": "1", "cp": "1"}, limits=Limits(shown=2))
    made = plan(question)
    turns = {turn.change: turn for turn in sensitivity(made)}
    assert set(turns) == {"NICs half as fast", "sequence doubled", "global batch halved"}
    for turn in turns.values():
        assert turn.of_plan is not None or not turn.same  # one that wins can run
        assert turn.best is None or turn.of_plan is None or turn.of_plan.time >= turn.best.time * (1 - 1e-9)  # which is equal where it wins
    slower = turns["NICs half as fast"]
    assert slower.best is not None
    assert slower.best.value >= made.tally.outcomes[0].value * (1 - 1e-9)
    if not slower.same:
        assert slower.flips_at is not None
        assert 0.25 <= slower.flips_at <= 1.0


@pytest.mark.nightly
def test_what_still_wins_with_smaller_micro_batches_is_told_its_time() -> None:
    """Oracle: with sequences twice as long the plan's micro-batch of 2 may not fit; the same layout with one that does has a time."""
    question = PlanQuestion(
        Scenario("hgx-h100", "llama-3.2-1b", global_batch=16), gpus=4, fixed={"tp": "2", "stack": "megatron-core"}, limits=Limits(shown=1)
    )
    turn = next(turn for turn in sensitivity(plan(question)) if turn.change == "sequence doubled")
    assert turn.same and turn.best is not None
    assert turn.of_plan is turn.best


@pytest.mark.nightly
def test_a_layout_that_is_hardly_beaten_under_a_change_is_not_said_to_lose() -> None:
    """A layout that is half a percent quicker than the plan's under a change ties with it; one that takes half the time does not."""
    question = PlanQuestion(
        Scenario("hgx-h100", "llama-3.2-1b", global_batch=16), (1,), fixed={"tp": "1", "pp": "1"}, limits=Limits(shown=2)
    )
    made = plan(question)
    turn = next(turn for turn in sensitivity(made) if turn.change == "sequence doubled")
    assert turn.of_plan is not None
    turn = replace(turn, same=False, best=replace(made.tally.outcomes[1], value=0.995 * turn.of_plan.value))
    assert turn.best is not None and turn.of_plan is not None
    assert turn.of_plan.value < 1.01 * turn.best.value
    document = plan_document(made, [turn])
    assert document["sensitivity"][0]["tie"]
    name = re.escape(candidate_name(turn.best.placed_layout.candidate))
    assert re.search(
        rf"doubled: the same layout, [\d.]+ ms per step, is within the expected error of the best, {name}", plan_text(document)
    )
    apart = replace(turn, of_plan=replace(turn.of_plan, value=2 * turn.best.value))
    assert not plan_document(made, [apart])["sensitivity"][0]["tie"]


def test_no_two_lines_of_a_table_are_called_alike(small: LayoutPlan) -> None:
    """Every field in which two layouts of a plan may differ is in their names: no two of all there are have one name."""
    scenario = replace(SMALL.scenario, overrides=ANY_SCHEDULE)
    question = replace(SMALL, scenario=scenario, allowed=frozenset({"fp8", "gpipe", "zero_bubble", "selective", "no_sequence"}))
    for plan_of in (small, prepare_plan(question)):
        every = [(setting.nodes, each.stack, candidate_name(each)) for setting, candidates in plan_of.layouts for each in candidates]
        assert len(every) == len(set(every)) > 100


def test_everything_that_a_step_goes_to_has_words(small: LayoutPlan) -> None:
    parts = plan_report.PARTS
    assert all(set(plan_report.parts(outcome)) <= set(parts) for outcome in small.tally.outcomes)


def test_bad_input_is_one_message_that_says_what_would_do() -> None:
    scenario = Scenario("hgx-h100", "llama-3.1-8b")
    cases = [
        (PlanQuestion(scenario, fixed={"tp": "3"}), "tp may be 1, 2, 4, 8"),
        (PlanQuestion(scenario, fixed={"tp": "8", "pp": "16"}), "pp may be 1 with the others"),
        (
            PlanQuestion(replace(scenario, global_batch=64), fixed={"pp": "4", "schedule": "zbv"}),
            "needs to be allowed; add --allow zero_bubble",
        ),
        (PlanQuestion(scenario, fixed={"precision": "fp8"}), "needs to be allowed; add --allow fp8"),
        (PlanQuestion(scenario, fixed={"foo": "1"}), "there is no field foo"),
        (PlanQuestion(scenario, fixed={"data": "4"}), "follows from the GPUs that tp, cp and pp leave; fix those"),
        (PlanQuestion(scenario, fixed={"nodes": "4"}), "write --nodes or --gpus"),
        (PlanQuestion(scenario, tokens="0"), "above 0"),
        (PlanQuestion(scenario, tokens="1000"), "--tokens 1000: one step takes "),
        (PlanQuestion(scenario, allowed=frozenset({"magic"})), "--allow magic"),
        (PlanQuestion(scenario, (5,), 12), "5 nodes of 8 GPUs"),
        (PlanQuestion(replace(scenario, stack="torch-2.x-ddp")), "without --stack torch-2.x-ddp it would fit"),
        (
            PlanQuestion(replace(scenario, workload="llama-3.1-70b", global_batch=16), fixed={"stack": "megatron-core"}),
            "--nodes 2 would fit",
        ),
        (PlanQuestion(scenario, limits=Limits(memory=2.0**30)), "without --max-memory it would fit"),
    ]
    for question, text in cases:
        with pytest.raises(SpecError) as caught:
            plan(question)
        assert len(caught.value.problems) == 1
        assert text in caught.value.problems[0]
    assert isinstance(caught.value, Infeasible)


def test_unlike_machines_are_told_the_command_that_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the command in the message runs as it is written."""
    own = tmp_path / "two kinds.yaml"
    own.write_text("name: two kinds\ngroups:\n  - {node: p2.xlarge, count: 2}\n  - {node: p3.2xlarge, count: 1}\n")
    words = ["--global-batch", "48", "--precision", "fp32", "--stack", "torch-1.13-ddp", "--set", "input.loader=synthetic"]
    assert main(["plan", str(own), "resnet18", *words, "--set", "training.parallel.tensor=1"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and error.startswith("two kinds: has 2 groups of different workers")
    command = shlex.split(error[error.index("'python") + 1 : error.rindex("' divides a batch")])
    assert command[:3] == ["python", "-m", "sim"] and main([*command[3:], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["global_batch"] == 48 and answer["precision"] == "fp32"


def test_groups_of_equal_machines_are_one() -> None:
    scenario = Scenario("2x-p3.8xlarge", "resnet18", ("groups=[{node: p3.2xlarge, count: 2}, {node: p3.2xlarge, count: 1}]",))
    with pytest.raises(SpecError, match="2 groups of identical workers; for layouts write one group with count: 3"):
        prepare_plan(PlanQuestion(scenario))


def test_an_unlike_group_without_gpus_or_of_servers_is_no_other_kind() -> None:
    """Parameter servers beside workers of one kind stop no plan; the message is for workers alone."""
    scenario = Scenario(
        "2x-p3.8xlarge", "gpt2", ("groups=[{node: p3.8xlarge, count: 2}, {node: p2.xlarge, count: 1, role: server}]",), precision="amp_fp16"
    )
    assert any(every for _, every in prepare_plan(PlanQuestion(scenario)).layouts)


def test_sizes_without_a_layout_among_the_best_are_named() -> None:
    """Four nodes are faster than one by more than any bound misses: those of one are excluded, and the text says how to see them."""
    made = plan(PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=512), (1, 4)))
    assert {outcome.placed_layout.setting.nodes for outcome in made.tally.outcomes} == {4}
    text = plan_text(plan_document(made))
    assert "8 or 32 GPUs, 1 or 4 nodes" in text
    assert "- no layout on 1 node is among the best; --nodes 1 shows the best one there" in text
    assert "    1 node: none\n" in text
    assert f"   4 nodes: {show(made.tally.outcomes[0].step_time, 'time')} per step; row 1\n" in text


def test_each_size_has_its_best_layout_with_time_and_cost_of_the_job() -> None:
    """By hand from the rows of the document: cost is lowest on one node, and time on two."""
    scenario = Scenario("p4d.24xlarge", "gpt2", global_batch=512)
    document = plan_document(plan(PlanQuestion(scenario, (1, 2), limits=Limits(objective="cost"), tokens="1B")))
    text = plan_text(document, shown=1)
    for nodes, name in ((1, "1 node"), (2, "2 nodes")):
        place, row = next((place, row) for place, row in enumerate(document["layouts"]) if row["nodes"] == nodes)
        job = f"{long_time(row['job_time_s'])}, ${rounded_dollars(row['job_cost_usd'])}"
        where = "row 1" if place == 0 else f"{row['name']} [{row['stack']}]"
        assert f" {name}: {show(row['step_time_s'], 'time')} per step, {job}; {where}\n" in text
    assert plan_text(document | {"nodes": [1]}).count("per step, ") == 1, "one size has no such list"


@pytest.mark.parametrize(
    ("batch", "note"), [(12, "--global-batch 16 allows them"), (16, ""), pytest.param(4, "", marks=pytest.mark.nightly)]
)
def test_a_batch_that_the_gpus_do_not_divide_is_named(batch: int, note: str) -> None:
    """By hand: 8 GPUs have no equal shares of 12 samples, but of 16; 4 samples are fewer than the GPUs, whose other axes split them."""
    text = plan_text(plan_document(plan(PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=batch), limits=Limits(simulations=1)))))
    assert ("8 GPUs do not divide 12 samples" in text) == bool(note) and note in text


def test_money_is_named_where_there_is_a_price(small: LayoutPlan) -> None:
    page = plan_page(plan_document(small))
    assert "Pareto-optimal in time and memory" in page and "memory and money" not in page
