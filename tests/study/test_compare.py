"""Oracle: each machine run by itself; the definition of a Pareto front, by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.documents import document
from sim.report.comparison import comparison_document
from sim.spec.yaml import SpecError
from sim.study.compare import compare, front, machines
from sim.study.scenario import Scenario

points = st.lists(st.tuples(st.integers(1, 5).map(float), st.none() | st.integers(1, 5).map(float)), max_size=12)


@given(points)
def test_front_by_brute_force(times_and_costs: list[tuple[float, float | None]]) -> None:
    for (time, cost), kept in zip(times_and_costs, front(times_and_costs), strict=True):
        if cost is None:
            assert not kept
            continue
        others = [(t, c) for t, c in times_and_costs if c is not None]
        assert kept == (not any(t <= time and c <= cost and (t, c) != (time, cost) for t, c in others))


def test_every_machine_has_the_figures_of_its_own_run() -> None:
    names = ["p3.2xlarge", "p3.8xlarge"]
    rows = compare(Scenario("", "resnet18"), names, document)
    assert [row.document for row in rows] == [document(Scenario(name, "resnet18")) for name in names]


def test_a_machine_that_cannot_run_it_keeps_the_reason() -> None:
    rows = compare(Scenario("", "vgg16", batch=128), ["p3.2xlarge", "hgx-h100"], document)
    comparison = comparison_document("vgg16", rows)
    assert [row["hardware"] for row in comparison["rows"]] == ["hgx-h100"]
    assert "GPU memory" in comparison["left_out"][0]["problem"]


def test_where_chooses_from_the_catalog() -> None:
    assert machines(["p3.2xlarge", "hardware/p3.8xlarge.yaml", "p3.2xlarge"], []) == ["p3.2xlarge", "hardware/p3.8xlarge.yaml"]
    with pytest.raises(SpecError, match="anything is not in the catalog"):
        machines(["p3.2xlarge", "anything"], [])
    assert set(machines([], ["provider=aws", "gpus=16"])) >= {"p2.16xlarge"}
    assert machines(["p2.16xlarge", "p3.2xlarge"], ["gpus=16"]) == ["p2.16xlarge"]
    assert "2x-p3.8xlarge" not in machines([], ["provider=aws"])
    assert machines([], ["provider=aws", "nodes=2", "gpu=V100-SXM2-16GB"]) == ["2x-p3.8xlarge"]
    with pytest.raises(SpecError, match=r"^--where gpus=1152: only clusters match, such as 144x-hgx-h100-dragonfly; name them"):
        machines([], ["gpus=1152"])
    with pytest.raises(
        SpecError, match=r"^--where: no row matches gpus=3; gpus ranges from 1 to 1,152; 'python -m sim list hardware' shows"
    ):
        machines([], ["gpus=3"])
    with pytest.raises(SpecError, match=r"no row matches gpu=V10; did you mean .* or V100-SXM2-16GB\? 'python -m sim list hardware' shows"):
        machines([], ["gpu=V10"])
    with pytest.raises(SpecError, match="no row matches all of provider=aws and provider=gcp; provider=aws,gcp means any of them; "):
        machines([], ["provider=aws", "provider=gcp"])
    with pytest.raises(SpecError, match=r"^--where gpus=8: none of the named machines matches"):
        machines(["p3.2xlarge", "p3.8xlarge"], ["gpus=8"])
    with pytest.raises(SpecError, match="is not in the catalog"):
        machines(["nowhere"], ["gpus=8"])
    with pytest.raises(SpecError, match="--sort color"):
        comparison_document("vgg16", [], "color")
