"""What the user wrote of a layout stays in every plan; what no plan can keep is refused in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.analysis.whole_job import JobPlan
from sim.cli import main
from sim.documents import Documents, RentalOptions, comparison_rows, document, recommendation
from sim.report.comparison import comparison_document, comparison_text
from sim.report.layouts.layout import layout_document
from sim.spec.yaml import SpecError
from sim.study.compare import compare
from sim.study.computing import Computing
from sim.study.journal import Journal
from sim.study.plan import machines
from sim.study.plan.machines import MachinePlanning, planned_rows, specified_layout
from sim.study.plan.question import PlanQuestion, plan
from sim.study.recommend import Budget
from sim.study.scenario import Scenario


def test_a_plan_keeps_the_layout_that_was_written() -> None:
    """Tensor parallelism of 4 is not what the search would choose; both ways of writing it are kept."""
    free = Scenario("", "llama-3.2-1b", global_batch=16)
    kept = Scenario("", "llama-3.2-1b", ("training.parallel.tensor=4",), global_batch=16)
    documents = [planned_rows(each, ["hgx-h100"], (1,), MachinePlanning(layout_document))[0].document for each in (free, kept)]
    assert [each["parallel"]["tensor"] == 4 for each in documents if each is not None] == [False, True]
    by_option = Scenario("", "llama-3.2-1b", layout=(("--tp", "parallel.tensor", 4),))
    assert specified_layout(by_option) == specified_layout(kept) == {"tensor": "4"}


def test_a_search_in_this_process_tells_its_progress() -> None:
    """Several machines are planned in processes, which cannot tell theirs."""
    told: list[str] = []
    planned_rows(Scenario("", "llama-3.2-1b", global_batch=16), ["hgx-h100"], (2,), MachinePlanning(layout_document, searching=told.append))
    assert told and all(text.startswith("hgx-h100, 2 nodes: ") for text in told), told
    assert "1 layout simulated" in told[-1], told


def test_ctrl_c_in_the_search_of_a_machine_ends_the_comparison_and_keeps_no_row(tmp_path: Path) -> None:
    """The best layout of an interrupted search may not be the best of its machine, whose search begins again when the journal is read."""
    told: list[str] = []

    def stop(text: str) -> None:
        told.append(text)
        if text.startswith("hgx-h100, 2 nodes: 1 layout simulated"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Journal(tmp_path / "rows") as journal:
        by = Computing(1, journal=journal)
        planning = MachinePlanning(layout_document, computing=by, searching=stop)
        planned_rows(Scenario("", "llama-3.2-1b", global_batch=16), ["hgx-h100"], (2,), planning)
    assert told and not (tmp_path / "rows").exists()  # as of a journal without a row


@pytest.mark.parametrize("text", ["training.parallel={tensor: 4}", "training.parallel.layers_per_stage=[8,8]"])
def test_what_no_plan_keeps_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="cannot be fixed here, where a layout is chosen for each machine; leave it out"):
        specified_layout(Scenario("", "llama-3.2-1b", (text,)))


def _problem(name: str) -> str:
    return compare(Scenario("", "llama-3.1-8b"), [name], document)[0].problem


@pytest.mark.nightly
def test_a_machine_with_too_little_memory_is_compared_in_the_layout_that_plan_finds() -> None:
    """Oracle: `plan` on that machine at the batch of its GPUs; one that can run the model keeps the figures of its own run."""
    names = ["hgx-h100", "nc40ads_h100_v5"]
    assert "GPU memory" in _problem("hgx-h100")
    rows = comparison_rows(Scenario("", "llama-3.1-8b"), names)
    comparison = comparison_document("llama-3.1-8b", rows)
    by_name = {row["hardware"]: row for row in comparison["rows"]}
    best = plan(PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", global_batch=8))).tally.outcomes[0].run.step_time
    assert best <= by_name["hgx-h100"]["step_time_s"] <= best / (1 - by_name["hgx-h100"]["layout_gap"]) * (1 + 1e-9)
    assert by_name["nc40ads_h100_v5"]["layout"] is None and not comparison["left_out"]
    assert f"hgx-h100: {by_name['hgx-h100']['layout']}" in comparison_text(comparison)


def test_a_machine_that_no_layout_fits_is_told_what_its_own_stack_would_need() -> None:
    """Oracle: the options in the reason, which the same comparison takes."""
    (row,) = comparison_rows(Scenario("", "llama-3.1-8b"), ["gpu_1x_h100_sxm5"])
    options = "--set training.activation_checkpointing=blocks"
    assert "fits in none of" in row.problem and row.problem.endswith(f"; on the workload's own stack, batch 1 fits with {options}")
    (changed,) = comparison_rows(Scenario("", "llama-3.1-8b", (options.removeprefix("--set "),)), ["gpu_1x_h100_sxm5"])
    assert changed.document is not None and "layout_gap" not in changed.document


def test_a_layout_that_was_written_is_not_replaced() -> None:
    rows = comparison_rows(Scenario("", "llama-3.1-8b", layout=(("--shard", "parallel.shard", "none"),)), ["hgx-h100"])
    assert rows[0].document is None


def test_recommend_says_what_becomes_of_a_batch_per_gpu_and_how_good_layouts_are(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["recommend", "llama-3.2-3b", "hgx-h100", "--set", "price.on_demand=20 USD/h", "--set", "node.gpu.memory=40 GiB"]
    assert main([*command, "--budget-hours", "48", "--tokens", "1B", "--nodes", "1", "--batch", "2"]) == 0
    said = capsys.readouterr().out
    assert "for a global batch of 16 samples (--global-batch), from --batch 2 on all GPUs" in said
    assert re.search(r"layouts are (proven best|at most [\d.]+% of a step slower than the best)", said)
    assert "--batch N sets the batch per GPU instead" not in said and "global batches range" not in said


def test_a_recipe_of_8_bits_that_no_machine_uses_is_refused() -> None:
    with pytest.raises(SpecError, match="--fp8-recipe rowwise: has no effect in bf16; add --precision fp8, or leave it out"):
        planned_rows(Scenario("", "llama-3.1-8b", fp8_recipe="rowwise"), ["hgx-h100"], (1,), MachinePlanning(layout_document))


def test_a_machine_without_a_price_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be recommended, whatever its best layout is: the reason comes at once."""
    planned: list[object] = []
    monkeypatch.setattr(machines, "plan", planned.append)
    scenario = Scenario("", "llama-3.1-8b", plan=JobPlan(None, tokens=10**12))
    contents, ran = recommendation(scenario, RentalOptions(Budget(money=1e6), ["hgx-h100"], nodes=[2]))
    assert "price specified" in contents["left_out"]["hgx-h100"] and not ran and not planned


def test_machines_are_planned_on_several_processes() -> None:
    """Oracle: one process. Five machines, since fewer start none."""
    names = ["hgx-h100", "nc40ads_h100_v5", "g6e.12xlarge", "a2-highgpu-8g", "a3-highgpu-2g"]
    job = Scenario("", "qwen3-0.6b", ("training.parallel.tensor=1", "training.parallel.pipeline=1"), global_batch=16)
    heard: list[tuple[int, int]] = []
    alone, together = (
        planned_rows(
            job,
            names,
            (1,),
            MachinePlanning(
                Documents().layout_document, computing=Computing(processes), progress=lambda done, of: heard.append((done, of))
            ),
        )
        for processes in (1, 2)
    )
    assert [row.hardware for row in together] == names and heard == [(done, 5) for done in range(6)] * 2
    assert [row.problem for row in alone] == [row.problem for row in together]
    assert [(row.document or {}).get("step_time_s") for row in alone] == [(row.document or {}).get("step_time_s") for row in together]
