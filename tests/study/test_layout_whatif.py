"""What-if of a layout: resources beside each other, compared with runs of the machine as described."""

import pytest

from sim.causes import Resource
from sim.events import Cause
from sim.report.layouts.layout_whatif import layout_whatif_document, layout_whatif_text
from sim.study.layout import layout_answer
from sim.study.layout_whatif import LayoutWhatIf, layout_whatif
from sim.study.scenario import Scenario

APART = "training.stack.mesh.shares_device=false"
"""Messages do not slow concurrent compute, so that links alone determine the cost of slower ones."""
SHARDED = (("--shard", "parallel.shard", "parameters"),)


@pytest.fixture(scope="module")
def what_if() -> LayoutWhatIf:
    """A ring whose NICs (47.3 GB/s) and NVLinks (51.5 GB/s) are nearly as slow."""
    return layout_whatif(Scenario("hgx-h100", "llama-3.2-1b", (APART,), nodes=2, layout=SHARDED))


def infinite(what_if: LayoutWhatIf, resource: Resource) -> float:
    return next(upgrade.infinite for upgrade in what_if.upgrades if upgrade.resource == resource)


def test_all_links_at_once_leave_no_exposed_message(what_if: LayoutWhatIf) -> None:
    run = what_if.answer.run
    exposed = sum(run.stalls[cause] for cause in run.stalls if cause.value in ("interconnect", "network"))
    assert what_if.links.infinite == pytest.approx(run.step_time - exposed, rel=1e-3)
    assert exposed > 0.0 and what_if.links.infinite <= min(
        infinite(what_if, "network"), infinite(what_if, "nvlink"), infinite(what_if, "pcie")
    )


def test_infinite_network_equals_a_faster_nic_once_nvlink_is_the_limit(what_if: LayoutWhatIf) -> None:
    nics = Scenario("hgx-h100", "llama-3.2-1b", ("node.nic.bandwidth='8000 Gbps'", APART), nodes=2, layout=SHARDED)
    faster = layout_answer(nics).run.step_time
    assert faster - 1e-3 * faster < infinite(what_if, "network") <= faster  # an infinite network has no hop latency either


def test_what_gains_little_is_told_from_what_gains_nothing(what_if: LayoutWhatIf) -> None:
    document = layout_whatif_document(what_if)
    text = layout_whatif_text(document)
    nothing = text.split("No effect even if infinitely fast: ")[1].split(".")[0]
    gained = {row["resource"]: row["infinite_gain"] for row in document["resources"]}
    assert gained["disk"] == pytest.approx(0.0, abs=1e-12) and "disk" in nothing
    assert gained["network"] > 0.0 and "network" not in nothing
    assert "all links at once" in text and document["links"]["infinite_gain"] > gained["network"]


def test_an_infinitely_fast_copy_saves_its_time() -> None:
    """The ranks of a CNN wait for the copy of their samples before each forward pass; links from host memory are part of it."""
    upgraded = layout_whatif(Scenario("p3.16xlarge", "vgg16", stack="torchtitan-2.x", layout=SHARDED))
    run = upgraded.answer.run
    assert infinite(upgraded, "copy") == pytest.approx(run.step_time - run.stalls[Cause.COPY], rel=1e-3)  # the host launches during copies
    assert run.stalls[Cause.COPY] > 0 and infinite(upgraded, "pcie") == pytest.approx(infinite(upgraded, "copy"), rel=1e-3)


@pytest.mark.nightly
def test_a_what_if_says_that_it_keeps_the_channels() -> None:
    """NICs twice as fast let NCCL halve the channels, which frees multiprocessors: the run gains what the what-if cannot."""
    scenario = Scenario("bm.gpu.a100-v2.8", "llama-3.1-8b", nodes=4, layout=SHARDED)
    changed = layout_answer(Scenario("bm.gpu.a100-v2.8", "llama-3.1-8b", ("node.nic.bandwidth='200 Gbps'",), nodes=4, layout=SHARDED))
    document = layout_whatif_document(layout_whatif(scenario))
    twice = next(row["twice_step_time_s"] for row in document["resources"] if row["resource"] == "network")
    assert changed.run.step_time < 0.99 * twice
    assert (
        "collectives keep their algorithms and channels; 'run --set node.nic.bandwidth=...' lets NCCL choose again"
        in layout_whatif_text(document)
    )
