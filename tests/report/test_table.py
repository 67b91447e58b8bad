"""Does the terminal show what the document says? Oracles: a document of a run, lengths of bars, efficiencies by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.memory import THRASHING
from sim.documents import document as described
from sim.report.table import BAR, bar, run_text, scaling_text
from sim.study.scenario import Scenario, answer
from tests.report.page.cases import case_answer, document, html


@given(st.floats(-0.5, 1.5))
def test_a_bar_is_as_long_as_its_share(share: float) -> None:
    eighths = {"█": 8, "▉": 7, "▊": 6, "▋": 5, "▌": 4, "▍": 3, "▎": 2, "▏": 1}
    length = sum(eighths[letter] for letter in bar(share)) / (8 * BAR)
    assert length == pytest.approx(min(1.0, max(0.0, share)), abs=1 / (16 * BAR) + 1e-9)


def test_every_cause_that_a_step_has_is_a_line() -> None:
    own, run = document("slow disk"), case_answer("slow disk").run
    text = run_text(run, own)
    for cause, seconds in own["stalls_s"].items():
        line = next((line for line in text.splitlines() if line.startswith(f"  {cause} ")), "")
        assert bool(line) == (max(seconds, own["first_epoch"]["stalls_s"][cause]) > 1e-12)
        assert not line or f"{100 * seconds / own['step_time_s']:.1f}%" in line
    assert own["verdict"] in text and all(note in text for note in (*own["assumptions"], *own["warnings"]))


def test_an_epoch_of_tokens_says_how_many() -> None:
    """The stream of tokens that workloads are trained on has 100 billion; a table of layers reads samples."""
    assert "\n  epoch of 100 billion tokens: " in run_text(case_answer("tokens").run, document("tokens"))
    assert "<dt>Epoch of 100 billion tokens</dt>" in html("tokens")
    assert "\n  epoch: " in run_text(case_answer("exchange").run, document("exchange"))


def test_the_first_line_has_the_tokens_of_a_sample_and_the_micro_batches_of_a_step() -> None:
    """Oracle: the workload. Without its sequence and its micro-batches, a step of some samples says little about a decoder."""
    run, own = case_answer("tokens").run, document("tokens")
    sequence = run.jobs[0].job.workload.sequence
    assert f" sample of {sequence:,} tokens per GPU, " in run_text(run, own | {"batch_per_gpu": 1}).splitlines()[0]
    assert f", 8 micro-batches of 1 sample of {sequence:,} tokens per GPU, " in run_text(
        run, own | {"batch_per_gpu": 1, "micro_batches": 8}
    )
    accumulated = ("training.gradient_accumulation_steps=3",)
    scenario = Scenario("p3.2xlarge", "resnet18", accumulated, batch=8)
    figures = described(scenario)
    assert figures["micro_batches"] == 3
    assert "micro_batches" not in document("tokens")


def test_a_job_of_tokens_shows_its_own_energy_and_not_an_epoch() -> None:
    """Closed form: 2 kW for 10 h are 20 kWh, 8 kg at 0.4 kg/kWh. An epoch of the stream says nothing about such a job."""
    run, own = case_answer("tokens").run, document("tokens")
    energy = own["energy"] | {"site_power_w": 2000.0, "grid": own["energy"]["grid"] | {"kg_per_kwh": 0.4}}
    job = {
        "given": "tokens",
        "tokens": 5e7,
        "epochs": 5e-4,
        "time_s": 36000.0,
        "cost_usd": 10.0,
        "parts_s": {"start_up": 0.0, "first_epoch": 36000.0, "later_epochs": 0.0},
    }
    text = run_text(run, own | {"energy": energy, "whole_job": job})
    assert "energy: 20 kWh (PUE" in text and "and 8 kg CO2 for the whole job (400 g/kWh" in text
    assert "whole job, 50 million tokens: 10 h, $10.00" in text and "epoch of" not in text
    assert "\n  epoch of 100 billion tokens: " in run_text(run, own | {"whole_job": job | {"given": "epochs"}})


def test_an_epoch_of_less_than_a_cent_says_what_it_costs() -> None:
    cheap = document("exchange") | {"cost_per_epoch_usd": 0.0003}
    assert ", $0.0003;  first: " in run_text(case_answer("exchange").run, cheap)


def test_verbose_lists_resources() -> None:
    own, run = document("exchange"), case_answer("exchange").run
    assert "waited for, in a warm step:" not in run_text(run, own)
    text = run_text(run, own, verbose=True)
    assert all(row.resource in text for row in run.jobs[0].warm.resources)


def size(gpus: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "nodes": 1, "gpus": gpus, "step_time_s": 0.1, "throughput_samples_per_s": rate, "cost_per_epoch_usd": None, "whole_job": None,
        "stalls_s": {"compute": 0.08, "network": 0.02}, "warnings": [],
    } | more  # fmt: skip


def test_efficiency_is_against_the_first_size_of_each_job() -> None:
    """By hand: 150 samples/s of 2 GPUs against 100 of one are 75%; each job has its own beginning."""
    text = scaling_text([size(1, 100.0), size(2, 150.0, warnings=["beware"])])
    assert "100.0%" in text.splitlines()[1] and "75.0%" in text.splitlines()[2] and "network 20%" in text and "- beware" in text
    jobs = scaling_text([size(1, 100.0, job=0), size(1, 10.0, job=1), size(2, 20.0, job=1)])
    assert jobs.count("100.0%") == 3


def test_sizes_that_cannot_run_say_why() -> None:
    failed = {"nodes": 9, "gpus": 72, "infeasible": "long", "infeasible_briefly": "too few nodes"}
    assert scaling_text([size(1, 100.0), failed]).splitlines()[-1].endswith("72  too few nodes")
    assert "too few nodes" in scaling_text([failed])


def test_a_gpu_that_is_nearly_full_is_told() -> None:
    """Of the largest batch that fits, by the share from which layouts warn as well."""
    for batch, full in ((64, False), ("max", True)):
        scenario = Scenario("p3.16xlarge", "vgg16", batch=batch)
        done, figures = answer(scenario), described(scenario)
        assert (figures["gpu_memory_bytes"]["total"] > THRASHING * done.run.node().gpu.memory) == full
        assert (", nearly full: the allocator frees and retries" in run_text(done.run, figures)) == full
