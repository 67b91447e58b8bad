"""Is the use of links what the run put on them? Oracle: bytes that are known to cross a link in a step, and arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.report.page.timeline import shown_span
from sim.report.page.use import Use, coarsen, merge_shares, uses
from sim.report.trace.excerpt import excerpt
from sim.study.scenario import Scenario, answer
from tests.report.page.cases import case_answer

STEPS = st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 1)), min_size=1, max_size=40)


def laid(parts: list[tuple[float, float]]) -> list[tuple[float, float, float]]:
    made, now = [], 0.0
    for width, share in parts:
        made.append((now, now + width, share))
        now += width
    return made


@given(STEPS, st.integers(1, 20))
def test_rough_steps_keep_the_mean(parts: list[tuple[float, float]], most: int) -> None:
    shares = laid(parts)
    rougher = coarsen(shares, most)
    assert len(rougher) <= max(most, 1) and (rougher[0][0], rougher[-1][1]) == (shares[0][0], shares[-1][1])
    assert Use("", "", 1, 1, rougher).mean == pytest.approx(Use("", "", 1, 1, shares).mean, abs=1e-9)
    assert Use("", "", 1, 1, merge_shares(shares)).mean == pytest.approx(Use("", "", 1, 1, shares).mean, abs=1e-9)


@pytest.mark.parametrize("case", ["exchange", "one GPU", "NVSwitch"])
def test_copies_to_the_gpu_fill_its_port(case: str) -> None:
    """Oracle: each step copies one batch of prepared samples over the port of a GPU, and in one node nothing else comes that way."""
    run = case_answer(case).run
    chosen = excerpt(run, 2)
    span = shown_span(chosen.ranks)
    by_name = uses(run, chosen, span.start, span.end)
    workload, links = run.jobs[0].job.workload, run.log.links["n0"]
    port = next(by_name[links[link]] for link in links if link.endswith(">gpu0") and links[link] in by_name and not link.startswith("gpu"))
    carried = port.mean * port.capacity * (span.end - span.start) / len(span.ends)
    copied = workload.training.batch * workload.dataset.prepared
    if case == "one GPU":
        assert carried == pytest.approx(copied, rel=1e-6)
    else:
        assert carried >= copied * (1 - 1e-6)


def test_gradients_fill_the_nic() -> None:
    """Oracle: what two nodes' all-reduce of n bytes sends out of each, from n (ring: 2 (m-1)/m of it each way around, m ranks) upward."""
    run = case_answer("exchange").run
    chosen = excerpt(run, 2)
    span = shown_span(chosen.ranks)
    nic = uses(run, chosen, span.start, span.end)["n0.nic0>net"]
    sent = nic.mean * nic.capacity * (span.end - span.start) / len(span.ends)
    nbytes = 4.0 * run.jobs[0].job.workload.model.parameters
    assert nbytes * 0.9 <= sent <= 2 * nbytes
    assert nic.description.startswith("NIC 0, 10 Gbps") and nic.label == "NIC0 → network" and 0 < nic.mean <= nic.peak <= 1.0001


def test_resources_are_named() -> None:
    run = case_answer("servers").run
    chosen = excerpt(run, 2)
    span = shown_span(chosen.ranks)
    words = {name: use.label for name, use in uses(run, chosen, span.start, span.end).items()}
    assert words["s0.cores"] == "CPU cores of s0" and words["s0.nic0>net"] == "NIC0 → network of s0"


def test_links_of_a_fabric_are_named() -> None:
    run = answer(Scenario("128x-hgx-h100-oversubscribed", "resnet50"), keep_rates=True).run
    chosen = excerpt(run, 2)
    span = shown_span(chosen.ranks)
    labels = {name: use.label for name, use in uses(run, chosen, span.start, span.end).items() if name.startswith("fabric.")}
    assert labels and labels["fabric.leaf0.up"] == "leaf0 up of the fabric"
