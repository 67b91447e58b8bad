"""Measured record: what Stash's abstract says (arXiv 2208.14344), as directions; nothing here is coded into the simulator.

RUN0 is one GPU, RUN1 all GPUs of an instance, both on synthetic data; the interconnect stall is (T1 - T0) / T1, the network slowdown
T1 of two instances over T1 of one with as many GPUs. Stack and precision are those of Stash's code: apex, one all-reduce per tensor,
AMP O1. Figures reached are in the comments; batch sizes matter, the paper's body is not at hand.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from sim.study.scenario import Scenario, answer

STASH = ("training.stack=apex-per-tensor", "input.loader=synthetic")
P2 = ("p2.8xlarge", "p2.16xlarge")
P3 = ("p3.8xlarge", "p3.8xlarge-mixed-quad", "p3.8xlarge-two-islands", "p3.16xlarge", "p3dn.24xlarge")
SMALL = ("alexnet", "resnet18", "shufflenet_v2_x0_5", "mobilenet_v2", "squeezenet1_0")
"""The models that Stash ran on P2."""
FEWEST = {model: 32 for model in (*SMALL, "resnet50", "vgg11", "vgg13", "vgg16", "vgg19")} | {"bert-large-seq384": 4}
"""The smallest batch of each of its models."""


@lru_cache
def step_time(hardware: str, model: str, batch: int) -> float:
    return answer(Scenario(hardware, model, STASH, batch=batch, precision="amp_fp16")).run.jobs[0].warm.step_time


def interconnect_share(single: str, several: str, model: str, batch: int) -> float:
    alone, together = step_time(single, model, batch), step_time(several, model, batch)
    return (together - alone) / together


def network_slowdown(model: str, batch: int) -> float:
    return step_time("2x-p3.8xlarge", model, batch) / step_time("p3.16xlarge", model, batch)


@lru_cache
def largest_interconnect_share() -> tuple[float, str, str]:
    """Return the largest share, and the instance and model that have it, at Stash's fewest samples: more only add compute."""
    return max(
        (interconnect_share(single, several, model, batch), several, model)
        for single, wholes in (("p2.xlarge", P2), ("p3.2xlarge", P3))
        for several in wholes
        for model, batch in FEWEST.items()
        if single == "p3.2xlarge" or model in SMALL
    )


@pytest.mark.xfail(strict=True, reason="77.7% reached: AlexNet, 32 images per GPU, on the p3.8xlarge slice of two islands")
def test_a1_interconnect_overhead_peaks_at_80_to_95_percent() -> None:
    """A1: "up to 90% of DNN training time", so a peak of 80 to 95% is the aim."""
    assert 0.80 < largest_interconnect_share()[0] < 0.95


def test_a1_interconnect_overhead_can_be_most_of_the_step() -> None:
    """A1 as a direction: where a slice has no NVLink between its halves, a model of many parameters and few FLOP mostly waits."""
    share, instance, model = largest_interconnect_share()
    assert share > 0.5
    assert (instance, model) == ("p3.8xlarge-two-islands", "alexnet")


@pytest.mark.parametrize(("single", "several"), [("p2.xlarge", "p2.16xlarge"), ("p3.2xlarge", "p3.8xlarge-two-islands")])
def test_a1_more_samples_shrink_the_overhead(single: str, several: str) -> None:
    """AlexNet at Stash's batches: compute grows with the batch, gradients do not."""
    shares = [interconnect_share(single, several, "alexnet", batch) for batch in (32, 64, 128)]
    assert shares == sorted(shares, reverse=True)


def test_a2_network_slows_vgg_down_several_times() -> None:
    """A2: "up to 5x" for network-connected instances, as a direction: several times for VGG-11 at Stash's largest batch (80).

    As a peak it is not met: VGG-11 is slowed 4.1 times at 80 and 4.9 at 64, but 8.2 at 32, and AlexNet 14.8 at 32.
    """
    assert 4 < network_slowdown("vgg11", 80) < 12


def test_a3_a_dearer_instance_is_not_always_faster_per_dollar() -> None:
    """A3: 8 GPUs at 24.48 USD/h against 1 at 3.06 USD/h cost the same per GPU, so any stall makes the dearer one worse."""
    for model, batch in (("alexnet", 128), ("shufflenet_v2_x0_5", 128), ("resnet18", 128)):
        per_dollar = {
            name: gpus / step_time(name, model, batch) / price for name, gpus, price in (("p3.16xlarge", 8, 24.48), ("p3.2xlarge", 1, 3.06))
        }
        assert per_dollar["p3.16xlarge"] < per_dollar["p3.2xlarge"]


def test_a4_a_bad_slice_stalls_more_than_the_whole_quad() -> None:
    """A4: "AWS can sub-optimally allocate hardware interconnect resources"."""
    for model in ("alexnet", "vgg11"):
        quad, mixed, islands = (
            interconnect_share("p3.2xlarge", name, model, 32) for name in ("p3.8xlarge", "p3.8xlarge-mixed-quad", "p3.8xlarge-two-islands")
        )
        assert islands > quad + 0.1
        assert mixed >= quad - 1e-9
