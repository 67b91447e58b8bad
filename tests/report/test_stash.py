"""Does a profile's document follow from its runs? Oracles: Stash's formulas by hand on the document's own times."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest

from sim.report.page.profile import profile_page
from sim.report.stash import RUNS, profile_document, profile_plot, profile_rows, profile_text
from sim.study.profile import Profile, profile
from sim.study.scenario import Scenario
from tests.harness import run
from tests.report.page.reading import Page
from tests.test_epoch import bursting


@cache
def profiled() -> Profile:
    return profile(Scenario("p3.16xlarge", "alexnet", ("dataset.samples=40000",)))


def document(literal: bool = False) -> dict[str, Any]:
    return profile_document(profiled(), literal)


def test_stalls_are_differences_of_epochs() -> None:
    """Facts of Stash: interconnect (RUN1 - RUN0) / RUN1, prep (RUN3 - RUN1) / RUN3, fetch (RUN2 - RUN3) / RUN2, network against RUN1."""
    contents = document()
    one, synthetic, cold, warm, twin = (contents["runs"][name]["epoch_time_s"] for name in RUNS)
    for name, seconds, base in (
        ("interconnect", synthetic - one, synthetic), ("prep", warm - synthetic, warm), ("fetch", cold - warm, cold),
        ("network", twin - synthetic, synthetic),
    ):  # fmt: skip
        assert contents["stash"][name]["time_s_per_epoch"] == pytest.approx(max(0.0, seconds), abs=1e-9)
        assert contents["stash"][name]["percent"] == pytest.approx(100 * max(0.0, seconds) / base, abs=1e-9)


def test_rates_are_samples_over_times() -> None:
    contents = document()
    samples = contents["steps_per_epoch"] * contents["gpus"] * contents["batch_per_gpu"]
    assert contents["rates_samples_per_s"]["ingestion"] == pytest.approx(samples / contents["runs"]["run1_synthetic"]["epoch_time_s"])
    assert contents["rates_samples_per_s"]["prep"] == pytest.approx(samples / contents["runs"]["run3_warm"]["epoch_time_s"])


def test_direct_stalls_sum_to_the_steps_of_the_real_runs() -> None:
    contents = document()
    for kind, name in (("warm", "run3_warm"), ("cold", "run2_cold")):
        assert sum(contents["direct_stalls_s"][kind].values()) == pytest.approx(contents["runs"][name]["step_time_s"])


def test_what_a_stall_is_made_of_sums_to_the_change_of_the_step() -> None:
    contents = document()
    step = {name: each["step_time_s"] for name, each in contents["runs"].items()}
    made = {name: sum(causes.values()) for name, causes in contents["made_of_s_per_step"].items()}
    assert made["interconnect"] == pytest.approx(step["run1_synthetic"] - step["run0_synthetic_one_gpu"], abs=1e-9)
    assert made["fetch"] == pytest.approx(step["run2_cold"] - step["run3_warm"], abs=1e-9)


def test_literal_formulas_are_others_and_say_so() -> None:
    assert document(True)["stash"] != document()["stash"]
    assert "literal, as in upstream" in profile_text(profiled(), document(True)) and "corrected, as Stash" in profile_text(
        profiled(), document()
    )


def test_every_run_has_a_row_and_a_line() -> None:
    rows = profile_rows(document())
    assert [row["run"] for row in rows] == list(RUNS)
    text = profile_text(profiled(), document())
    assert all(title.split("  ")[0] in text for title in RUNS.values())


def test_it_says_on_what_it_rests() -> None:
    contents = document()
    assert contents["inputs_sha256"].keys() == {"hardware", "workload", "stack", "records"} and contents["seed"] == 0
    assert contents["assumptions"][0].startswith("software stack torch-1.13-ddp")


def test_the_picture_is_one() -> None:
    assert ElementTree.fromstring(profile_plot(document()).svg).tag.endswith("svg")


def test_the_end_of_burst_credits_is_told_where_needs_are() -> None:
    """Closed form: a disk whose credits the fourth epoch empties; a step then takes 50 ms."""
    contents = profile_document(replace(profiled(), real=run(*bursting(100))))
    assert (contents["burst_credits_end"]["epoch"], contents["burst_credits_end"]["step_time_s"]) == (4, pytest.approx(0.05, rel=0.02))
    assert any("burst credits of the disk run out in epoch 4" in text for text in contents["warnings"])
    items = {item.text.replace("\u00a0", " ") for item in Page(profile_page(contents)).all("li")}
    assert "Disk reads use burst credits, which run out in epoch 4; from then on a step takes 50 ms" in items
