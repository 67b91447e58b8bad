"""Does the Stash study say what single runs say? Oracles: single runs and profiles, Stash's abstract and code (arXiv 2208.14344)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.studies.stash2022 import plots as stash2022_plots
from calibration.studies.stash2022 import study as module
from calibration.studies.stash2022.document import cost_rows, findings_text, micro_row, stall_row, study_document, study_text
from calibration.studies.stash2022.findings import PRICES, Finding, by_case, count_slower_pairs, findings, fit, observations
from calibration.studies.stash2022.study import FAMILIES, MICRO_MODELS, P2, P3, Crossing, StashCase, StashRow, StashStudy, cases, gradients
from sim.analysis import differential
from sim.analysis.differential import RunTimes
from sim.cli import main
from sim.spec.library import load_workload
from sim.study.profile import profile
from sim.study.scenario import answer
from tests.calibration.studies.small_study import SMALL_P3, small_study


@pytest.fixture(scope="module")
def study() -> StashStudy:
    return small_study()


def by_check(study: StashStudy) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings(study)}


def row(study: StashStudy, machine: str, batch: int) -> StashRow:
    return next(study_row for study_row in study.rows_on(machine) if study_row.case.batch == batch)


def test_figures_are_those_of_the_profile(study: StashStudy) -> None:
    """Oracle: `sim profile` of one case, whose runs are made one by one."""
    study_row = row(study, "p3.16xlarge", 32)
    alone = profile(study_row.case.scenario)
    assert study_row.times == alone.times
    assert stall_row(study_row)["interconnect_stall_percent"] == 100 * differential.interconnect_stall(alone.times).share
    assert study_row.cost == alone.costs["warm"]
    step = answer(study_row.case.scenario).run.jobs[0].warm.step_time
    assert stall_row(study_row)["run3_step_time_s"] == pytest.approx(step, rel=0.01)  # an epoch fills the pipeline once


def test_a1_what_peaks_is_a_slice(study: StashStudy) -> None:
    """Abstract: up to 90% of training time. 79% is reached at Stash's least batch, which is not called a success."""
    finding = by_check(study)["A1"]
    peak = finding.figures["peak_percent"]
    assert peak is not None
    assert peak > 75
    assert (finding.verdict == "yes") == (80 <= peak <= 95)
    assert "p3.8xlarge-two-islands" in finding.evidence[0]
    [crossing] = study.stall_crossings
    assert crossing.batch is not None
    case = StashCase(crossing.machine, crossing.model, crossing.batch, 16)
    for batch, stalls in ((crossing.batch, True), (crossing.batch + 1, False)):
        times = profile(replace(case, batch=batch).scenario, "none").times
        assert (differential.interconnect_stall(times).share >= 0.8) == stalls


def test_a2_the_network_slows_training_several_times(study: StashStudy) -> None:
    """Abstract: up to 5 times; a larger figure is reported, with the batch from which it holds."""
    finding = by_check(study)["A2"]
    peak = finding.figures["peak_slowdown"]
    assert peak is not None
    assert peak > 4
    assert (finding.verdict == "yes") == (4 <= peak <= 6)
    [crossing] = study.slowdown_crossings
    assert f"alexnet {crossing.batch} or more" in finding.evidence[-1]
    before, after = (row(study, "p3.16xlarge", batch).network for batch in (32, 128))
    assert before is not None
    assert after is not None
    assert before > after


def test_a3_a4_directions_of_the_abstract(study: StashStudy) -> None:
    """Abstract: dearer is not always faster; the interconnect can be allocated sub-optimally."""
    finding_of = by_check(study)
    assert finding_of["A3"].verdict == finding_of["A4"].verdict == "yes"
    dear, cheap = row(study, "2x-p3.8xlarge", 32), row(study, "p3.8xlarge", 32)
    assert dear.price == 2 * cheap.price
    assert dear.times.warm > cheap.times.warm
    assert row(study, "p3.8xlarge-two-islands", 32).interconnect > cheap.interconnect + 0.3
    ranked = [line for line in cost_rows(study) if line["batch_per_gpu"] == 32]
    assert [line["rank_by_cost"] for line in ranked] == [1, 2, 3, 4]
    assert ranked[-1]["hardware"] == "2x-p3.8xlarge"
    costs = [line["warm_cost_per_epoch_usd"] for line in ranked]
    assert costs == sorted(costs)


def test_a5_costs_are_times_at_the_prices_of_stashs_code(study: StashStudy) -> None:
    """By hand: cost = T x price / 3600; prep = T3 - T1, fetch = T2 - T3, as shares of T3 and T2."""
    for study_row in study.rows:
        line, times = stall_row(study_row), study_row.times
        price = PRICES.get(study_row.case.machine, PRICES["p3.8xlarge"])
        assert line["cold_cost_per_epoch_usd"] == pytest.approx(times.cold * price / 3600, rel=1e-9)
        assert line["prep_stall_percent"] == pytest.approx(100 * max(0.0, times.warm - times.synthetic) / times.warm, rel=1e-9)
        assert line["fetch_stall_percent"] == pytest.approx(100 * max(0.0, times.cold - times.warm) / times.cold, rel=1e-9)
    assert by_check(study)["A5"].verdict == "yes"


def test_a6_layers_and_gradients(study: StashStudy) -> None:
    """Directions: as many bytes in more tensors, and more bytes in about as many tensors, take longer over the network."""
    apart = {study_row.case.model: study_row for study_row in study.micro if study_row.nodes == 2}
    assert apart["resnet10"].communication > apart["resnet10_nobn"].communication
    assert apart["vgg11"].communication > apart["resnet10_nobn"].communication
    assert micro_row(apart["vgg11"])["communication_s_per_step"] == apart["vgg11"].communication
    assert by_check(study)["A6"].verdict in ("yes", "in direction")


def test_the_fit_finds_what_made_the_times() -> None:
    """Closed form: communication of 1 ms + 2 us a tensor + 3 ns a byte is found again; where bytes are free, pairs disagree."""
    plain = StashRow(StashCase("toy", "toy", 32, 1), 8, 1, 100, RunTimes(10.0, 10.0, 10.0, 10.0), 0.0, 10, 1e6)

    def made(tensors: int, nbytes: float, per_byte: float) -> StashRow:
        step = 1e-3 + 2e-6 * tensors + per_byte * nbytes
        return replace(plain, tensors=tensors, gradient_bytes=nbytes, times=plain.times._replace(synthetic=10.0 + 100 * step))

    rows = [made(tensors, nbytes, 3e-9) for tensors in (10, 20, 40) for nbytes in (1e6, 2e6, 9e6)]
    assert fit(rows) == pytest.approx((1e-3, 2e-6, 3e-9, 1.0), rel=1e-6)
    assert count_slower_pairs(rows, lambda row: row.tensors, lambda row: row.gradient_bytes, 1.02) == (9, 9)
    cheaper = [made(tensors, nbytes, -1e-10) for tensors in (10, 20) for nbytes in (1e6, 9e6)]
    assert count_slower_pairs(cheaper, lambda row: row.gradient_bytes, lambda row: row.tensors, 1.02) == (0, 2)


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [
        ("resnet18", 62, 11689512), ("resnet50", 161, 25557032), ("resnet152", 467, 60192808), ("vgg11", 22, 132863336),
        ("vgg19", 38, 143667240), ("alexnet", 16, 61100840), ("mobilenet_v2", 158, 3504872), ("shufflenet_v2_x0_5", 170, 1366792),
        ("squeezenet1_0", 52, 1248424),
    ],
)  # fmt: skip
def test_a7_all_reduces_of_a_step(model: str, tensors: int, parameters: int) -> None:
    """Published: parameter tensors and parameters of torchvision's models; Stash's stack exchanges every tensor separately."""
    assert gradients(load_workload(model).spec.model) == (tensors, 4.0 * parameters)


def test_every_case_of_stashs_lists() -> None:
    """By hand: 5 models x 4 batches x 4 machines on P2, (7 x 4 + BERT) x 6 on P3; its micro study has 12 networks and variants of them."""
    assert len(cases(FAMILIES)) == len(set(cases(FAMILIES))) == 80 + 174
    assert len(MICRO_MODELS) == 25
    assert set(PRICES) < {*P2.machines, *P3.machines}
    assert sum(len(family.twins) for family in FAMILIES) == 2


def test_bert_is_trained_with_torchs_ddp_at_four_samples() -> None:
    """Stash's code: BERT on SQuAD with torch's DDP and batches of 4; 391 gradient tensors of 1 336 MB."""
    [one, *_] = [case for case in cases((P3,)) if case.model == module.BERT]
    assert (one.scenario.stack, one.scenario.batch, one.scenario.overrides) == ("torch-1.12-ddp", 4, ())
    tensors, nbytes = gradients(load_workload(module.BERT).spec.model)
    assert (tensors, nbytes) == (391, pytest.approx(1336e6, rel=0.01))


def test_a_time_budget_saves_what_the_cheapest_within_it_saves(study: StashStudy) -> None:
    savings = []
    for rows in by_case(study).values():
        first = min(study_row.times.warm for study_row in rows)
        fastest = next(study_row for study_row in rows if study_row.times.warm == first)
        savings.append(1 - min(study_row.cost for study_row in rows if study_row.times.warm <= 2 * first) / fastest.cost)
    observation = next(line for line in observations(study) if line.startswith("an epoch that may take twice as long"))
    assert f"{100 * max(savings):.0f}% at most" in observation and f"of {len(savings)} cases" in observation


def test_the_report_says_what_was_computed(study: StashStudy) -> None:
    """Round trip: each verdict and figure of the document stands in the text; another outcome makes another text."""
    document, text = study_document(study), study_text(study)
    for finding in document["findings"]:
        assert f"{finding['check']} {finding['published']}: {finding['reappears'].upper()}" in text
        assert all(line in text for line in finding["reached"])
    assert len(document["rows"]) == len(study.rows) == 10
    quiet = replace(
        study, rows=tuple(replace(study_row, times=study_row.times._replace(synthetic=study_row.times.one_gpu)) for study_row in study.rows)
    )
    changed = findings_text(findings(quiet))
    assert "up to 90% of training time: NO" in changed
    assert "sub-optimally: NO" in changed
    moved = replace(study, stall_crossings=(Crossing("alexnet", "toy", None),))
    assert "at no batch that fits: alexnet" in study_text(moved)


def test_the_command_writes_all_its_files(
    study: StashStudy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stash2022_plots, "FAMILIES", (SMALL_P3,))
    monkeypatch.setattr(module, "stash2022", lambda processes, progress: study)
    assert main(["study", "stash2022", "-o", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    drawn = ("interconnect", "network", "prep", "fetch", "cost", "layers")
    pictures = {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    tables = {"stalls.csv": 10, "layers.csv": 8, "costs.csv": 8}
    assert {path.name for path in tmp_path.iterdir()} == pictures | set(tables) | {"stash2022.json", "stash2022.txt", "stash2022.html"}
    assert json.loads((tmp_path / "stash2022.json").read_text()) == document
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml") for name in pictures)
    assert {name: len((tmp_path / name).read_text().splitlines()) - 1 for name in tables} == tables
