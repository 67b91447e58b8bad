"""Does the page of a division of workers say what its JSON says? Oracles: the printed document, places of bars."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.report.page.share import share_page
from tests.report.page.browser import browser
from tests.report.page.reading import Page
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, tip, verdict, written

JOBS = """
name: three
jobs:
  - {workload: alexnet, placement: "2", epochs: 0.2}
  - {workload: vgg11, placement: "4", epochs: 0.1}
  - {workload: shufflenet_v2_x0_5, placement: "2", start: 40 s, epochs: 0.1}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    (folder / "jobs.yaml").write_text(JOBS, encoding="utf-8")
    return written(folder, ["share", "p3.16xlarge", str(folder / "jobs.yaml"), "--policy", "greedy"])


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "share", 60)


def test_the_verdict_names_the_best_policy_and_its_gains(path: Path) -> None:
    even, greedy = document(path, "share")["policies"]
    ratios = [
        mine["throughput_samples_per_s"] / theirs["throughput_samples_per_s"]
        for mine, theirs in zip(greedy["jobs"], even["jobs"], strict=True)
    ]
    gain, sooner = sum(ratios) / len(ratios) - 1, 1 - greedy["makespan_s"] / even["makespan_s"]
    assert verdict(read(path)) == (
        f"With the policy greedy, jobs run {100 * gain:.0f}% faster on average than with an even division; the last job ends "
        f"{100 * sooner:.0f}% earlier."
    )


def test_bars_lie_from_start_to_end(path: Path) -> None:
    policies = document(path, "share")["policies"]
    longest = max(policy["makespan_s"] for policy in policies)
    stacks = [stack for stack in read(path).all("div", class_="stack")]
    jobs = [job for policy in policies for job in policy["jobs"]]
    for stack, job in zip(stacks, jobs, strict=True):
        widths = [float(re.findall(r"width:([\d.]+)%", part.attributes["style"])[0]) for part in stack.inside if part.name == "div"]
        assert sum(widths) == pytest.approx(100 * job["end_s"] / longest, abs=1e-3)
        assert sum(widths[:-1]) == pytest.approx(100 * job["start_s"] / longest, abs=1e-3)


def test_where_nothing_is_gained_it_says_so(path: Path) -> None:
    contents = document(path, "share")
    page = Page(share_page(contents | {"policies": contents["policies"][:1]}))
    assert verdict(page) == "No policy is faster than an even division."


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "per GPU while most jobs run" in tip(tab, ".piece")
