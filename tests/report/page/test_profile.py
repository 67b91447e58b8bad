"""Does the page of a profile say what its JSON says? Oracles: the printed document, Stash's formulas, sums of causes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cli import main
from sim.report.page.profile import profile_page
from tests.report.page.browser import browser
from tests.report.page.reading import Page
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, tip, verdict, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = ["profile", "p3.16xlarge", "resnet18", "--batch", "32"]
    return written(tmp_path_factory.mktemp("profile"), command)


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "profile", 50)


def test_the_verdict_is_the_largest_stall_of_the_machine_itself(path: Path) -> None:
    runs = {name: run["epoch_time_s"] for name, run in document(path, "profile")["runs"].items()}
    prep, twin = 1 - runs["run1_synthetic"] / runs["run3_warm"], runs["twin_synthetic"] / runs["run1_synthetic"] - 1
    assert verdict(read(path)) == (
        f"The largest stall in Stash's runs is prep, {100 * prep:.1f}% of RUN3: decoding and augmentation. Over the network, two nodes of "
        f"half the GPUs would take {100 * twin:.0f}% longer."
    )


def test_bars_of_causes_are_the_two_epochs_steps(path: Path) -> None:
    contents, page = document(path, "profile"), read(path)
    for kind, run in (("warm", "run3_warm"), ("cold", "run2_cold")):
        pieces = [mark for mark in page.all("div", class_="piece") if f"direct_stalls_s/{kind}" in mark.attributes["data-at"]]
        total = sum(float(mark.attributes["data-value"]) for mark in pieces)
        assert total == pytest.approx(contents["runs"][run]["step_time_s"], rel=1e-3)


def test_causes_that_changed_are_named_with_their_sign(path: Path) -> None:
    fetch = next(row for row in read(path).all("tr") if row.text.startswith("fetch"))
    assert "fetch +" in fetch.text and "prep -" in fetch.text  # a loader that waits for the disk prepares less


def test_why_the_two_methods_differ_is_told(path: Path) -> None:
    apart = document(path, "profile")["apart"]["stalls"]
    rows = [row.text for row in read(path).all("tr")]
    for name, gap in ((name, gap) for name, both in apart.items() for gap in both["gaps"][:1]):
        matching = [row for row in rows if row.startswith(name) and str(gap["why"]) in row]
        assert bool(matching) == (abs(gap["difference_s"]) > 0.05 * max(abs(apart[name]["subtraction_s"]), apart[name]["direct_s"]))


def test_without_a_twin_or_a_stall_it_still_tells(path: Path) -> None:
    contents = document(path, "profile")
    calm = contents | {
        "stash": {name: {"time_s_per_epoch": 0.0, "percent": 0.0} for name in ("interconnect", "prep", "fetch")} | {"network": None},
        "runs": contents["runs"] | {"twin_synthetic": None}, "needs": dict.fromkeys(contents["needs"]),
        "cost_per_epoch_usd": dict.fromkeys(contents["cost_per_epoch_usd"]),
    }  # fmt: skip
    page = Page(profile_page(calm))
    assert verdict(page).startswith("Stash's runs show no significant stall") and "two nodes" not in verdict(page)
    assert any("keep up with the GPUs" in text.text for text in page.all("p"))


def test_thousands_of_steps_have_a_comma(path: Path) -> None:
    page = Page(profile_page({**document(path, "profile"), "steps_per_epoch": 2002}))
    assert any("2,002 steps per epoch" in text.text for text in page.all("p"))


def test_rates_are_those_of_the_formulas(path: Path) -> None:
    """Oracle: samples over the runs' times; the cold epoch's own rate is below all of them."""
    contents, rows = document(path, "profile"), {row.inside[0].text: row.text for row in read(path).all("tr") if row.inside}
    samples = contents["steps_per_epoch"] * contents["gpus"] * contents["batch_per_gpu"]
    cold, warm = (contents["runs"][name]["epoch_time_s"] for name in ("run2_cold", "run3_warm"))
    assert contents["rates_samples_per_s"]["fetch"] == pytest.approx(samples / (cold - warm), rel=1e-9)
    assert samples / cold < min(contents["rates_samples_per_s"].values())
    assert rows["fetch"] and any("samples / (RUN2 - RUN3): time added by reading" in row.text for row in read(path).all("tr"))
    assert not any("bounds the job" in text.text for text in read(path).all("p"))


def test_it_says_by_which_formulas(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [text.text for text in read(path).all("p")]
    assert document(path, "profile")["formulas"] == "corrected" and any(text.startswith("Formulas: corrected") for text in said)
    literal = written(tmp_path, ["profile", "p3.2xlarge", "resnet18", "--literal"])
    assert document(literal, "profile")["formulas"] == "literal"
    assert any(text.text.startswith("Formulas: literal") for text in read(literal).all("p"))
    assert main(["profile", "p3.2xlarge", "resnet18", "--literal", "-q"]) == 0
    assert "Formulas: literal" in capsys.readouterr().out


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert tip(tab, "#runs .piece").startswith("RUN0")
        assert tip(tab, "#direct .piece").startswith("compute")
