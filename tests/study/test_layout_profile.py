"""Stash's method on a layout. Oracles: runs with other fields set by hand, the disk's rate, sums that must telescope."""

from __future__ import annotations

import pytest

from sim.cli import main
from sim.events import Cause
from sim.report.layouts.layout_profile import layout_profile_document, layout_profile_text
from sim.report.page.layout_profile import layout_profile_page
from sim.study.layout import layout_answer
from sim.study.layout_options import layout_of
from sim.study.layout_profile import FULL, RUN0, RUN1, RUN2, RUN3, LayoutProfile, layout_profile
from sim.study.scenario import Scenario
from sim.training.layouts.loader import feed_of

STAGED = Scenario("hgx-h100", "llama-3.2-1b", nodes=2, layout=layout_of(["tp=4,pp=2,shard=optimizer,micro_batches=4"]))
SLOW = Scenario(
    "p4d.24xlarge", "resnet50", ("node.storage.bandwidth=300 MB/s", "dataset.samples=20000000"), batch=128, precision="amp_bf16",
    stack="torchtitan-2.x", layout=layout_of(["shard=parameters"]),
)  # fmt: skip


@pytest.fixture(scope="module")
def staged() -> LayoutProfile:
    return layout_profile(STAGED)


@pytest.fixture(scope="module")
def slow() -> LayoutProfile:
    return layout_profile(SLOW)


def step(profile: LayoutProfile, name: str) -> float:
    return profile.runs[name].step_time


def test_runs_are_those_of_the_method(staged: LayoutProfile) -> None:
    """Oracle: the job as it is and on synthetic data, asked for by themselves; a free network is a NIC of 10 Tbps."""
    assert step(staged, RUN2) == pytest.approx(layout_answer(STAGED).run.step_time, rel=1e-12)
    synthetic = Scenario(STAGED.hardware, STAGED.workload, ("input.loader=synthetic",), nodes=2, layout=STAGED.layout)
    assert step(staged, FULL) == pytest.approx(layout_answer(synthetic).run.step_time, rel=1e-12)
    assert step(staged, RUN0) < step(staged, RUN1) < step(staged, FULL) <= step(staged, RUN2)
    for cause in (Cause.INTERCONNECT, Cause.NETWORK):
        assert staged.runs[RUN0].stalls[cause] < 1e-3 * step(staged, RUN0)
    nics = Scenario(
        STAGED.hardware, STAGED.workload, ("node.nic.bandwidth=10000 Gbps", "input.loader=synthetic"), nodes=2, layout=STAGED.layout
    )
    assert step(staged, RUN1) == pytest.approx(layout_answer(nics).run.step_time, rel=5e-3)


def test_stalls_sum_to_what_the_runs_differ_by(staged: LayoutProfile) -> None:
    assert sum(stall.time for stall in staged.stalls.values()) == pytest.approx(step(staged, RUN2) - step(staged, RUN0), rel=1e-9)
    for name, both in staged.comparisons.items():
        assert sum(staged.stall_causes(name).values()) == pytest.approx(both.subtraction, abs=1e-9)
        assert both.subtraction == pytest.approx(both.direct + sum(gap.seconds for gap in both.gaps), abs=1e-12)
    assert staged.stalls["interconnect"].share == pytest.approx(1 - step(staged, RUN0) / step(staged, RUN1), rel=1e-9)


def test_a_slow_disk_is_a_fetch_stall(slow: LayoutProfile) -> None:
    """Oracle: what its disk and, once samples are in memory, its cores need for the samples of a step."""
    run = slow.answer.run
    feed = feed_of(run.node, run.workload, run.mesh)
    assert feed is not None and feed.disk > feed.cores
    assert step(slow, RUN2) == pytest.approx(feed.disk, rel=1e-6)
    assert step(slow, RUN3) == pytest.approx(max(feed.cores, feed.prep / feed.workers), rel=1e-3)
    assert slow.stalls["fetch"].time == pytest.approx(step(slow, RUN2) - step(slow, RUN3))
    assert slow.stalls["prep"].time == pytest.approx(step(slow, RUN3) - step(slow, FULL)) and step(slow, FULL) < step(slow, RUN3)


def test_one_node_has_no_network_stall(slow: LayoutProfile) -> None:
    assert step(slow, RUN1) == pytest.approx(step(slow, FULL), rel=1e-12) and slow.stalls["network"].time == 0.0


def test_text_json_and_page_say_what_the_method_cannot(staged: LayoutProfile) -> None:
    document = layout_profile_document(staged)
    text = layout_profile_text(document)
    idle = staged.runs[RUN0].stalls[Cause.PIPELINE]
    assert idle > 0 and "the pipeline leaves GPUs idle" in text and "the twin" in text and "has no cold epoch" in text
    assert document["stash"]["network"]["time_s"] == staged.stalls["network"].time
    assert set(document["runs"]) == {RUN0, RUN1, FULL, RUN2, RUN3}
    assert "Stalls by subtraction" in layout_profile_page(staged.answer.run, document)


@pytest.mark.parametrize("option", [["--twin", "p4d.24xlarge"], ["--literal"]])
def test_what_has_no_meaning_is_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "hgx-h100", "llama-3.2-1b", "--shard", "parameters", *option]) == 2
    assert "of a layout" in (message := capsys.readouterr().err) or "layouts do not have" in message
