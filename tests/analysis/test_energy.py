"""Does energy add up? Oracles: shares of TDP by hand, power times time, the curve of caps at its points, grids as their source has them."""

from __future__ import annotations

import pytest

from sim.analysis.energy import (
    KWH,
    NodesOfKind,
    energy_figures,
    gpu_power,
    grid_of,
    limited_speed,
    named_grid,
    node_power,
    power_caps,
    power_model,
    shares_of,
    with_slower_compute,
)
from sim.spec.energy import KernelMix
from sim.spec.hardware import Node
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.training.layer_times import mix_of

STALLS = {"compute": 0.6, "fetch": 0.1, "network": 0.2, "straggler": 0.05, "launch": 0.05}


@pytest.fixture(scope="module")
def node() -> Node:
    return load_hardware("hgx-h100").spec.groups[0].node


def test_power_is_the_share_of_each_activity_times_tdp(node: Node) -> None:
    model = power_model()
    assert shares_of(STALLS) == pytest.approx((0.6, 0.25, 0.15))
    power = node_power(node, model, shares_of(STALLS), several=True)
    draw = gpu_power(node.gpu, model)
    assert power is not None
    assert power.gpus == pytest.approx(8 * 700 * (0.6 * draw.compute + 0.25 * draw.waiting + 0.15 * draw.idle))
    adapters = 7 * model.nic  # the eighth is part of the host
    assert power.network == adapters + 8 * 2 * model.switch_port
    inside = power.gpus + model.host + adapters
    assert power.total - 8 * 2 * model.switch_port == pytest.approx(inside / 0.95)
    assert power.host == pytest.approx(inside / 0.95 - power.gpus - adapters)  # what power supplies lose counts to the host
    alone = node_power(node, model, shares_of(STALLS), several=False)
    assert alone is not None and alone.network == adapters  # adapters are in the node, and its meter covers them, whatever the job
    half = node_power(node, model, (1.0, 0.0, 0.0), several=False, gpus=4)
    assert half is not None and half.gpus == pytest.approx(700 * (4 * draw.compute + 4 * draw.idle))
    assert node_power(node.model_copy(update={"gpu": node.gpu.model_copy(update={"power": None})}), model, (1, 0, 0), False) is None


@pytest.mark.parametrize(("gpus", "at_the_wall", "working"), [(1347.0, 2930.0, True), (480.0, 1421.0, False)])
def test_a_node_draws_at_the_wall_what_its_parts_draw_and_its_supplies_lose(gpus: float, at_the_wall: float, working: bool) -> None:
    """Measured: servers of 8 A100 and one NIC in AcmeTrace, the mean and the first percentile, with the power of their GPUs."""
    ampere = load_hardware("dgx-a100").spec.groups[0].node
    ampere = ampere.model_copy(update={"nic": ampere.nic.model_copy(update={"count": 1})})
    tdp, draw = 8 * (ampere.gpu.power or 0.0), gpu_power(ampere.gpu, power_model())
    computing = (gpus / tdp - draw.idle) / (draw.compute - draw.idle)
    power = node_power(ampere, power_model(), (computing, 0.0, 1 - computing), several=False, working=working)
    assert power is not None and power.gpus == pytest.approx(gpus)
    assert power.total == pytest.approx(at_the_wall, rel=0.003)


def test_network_power_does_not_grow_with_interfaces_of_one_adapter() -> None:
    """EFA's 32 interfaces of 100 Gbps carry what eight adapters of 400 Gbps do."""
    shares = (1.0, 0.0, 0.0)
    powers = [
        node_power(load_hardware(name).spec.groups[0].node, power_model(), shares, several=True)
        for name in ("hgx-h100", "p5.48xlarge", "p5en.48xlarge")
    ]
    assert len({power.network for power in powers if power is not None}) == 1


@pytest.mark.parametrize(("machine", "more"), [("p3.2xlarge", 0), ("p3.16xlarge", 0), ("p4d.24xlarge", 3), ("dgx-2", 6)])
def test_the_host_s_own_adapter_counts_once(machine: str, more: int) -> None:
    """By hand: of one adapter none is added, of p4d's four three; a DGX-2 has eight and, with 16 GPUs, two hosts' worth of the rest."""
    node = load_hardware(machine).spec.groups[0].node
    power = node_power(node, power_model(), (1.0, 0.0, 0.0), several=False)
    assert power is not None and power.network == more * power_model().nic


def test_idle_nodes_draw_what_was_measured(node: Node) -> None:
    """Oracle: BLOOM's nodes of 8 A100 and 4 NICs, idle, with the network: 256,646 kWh in 1,082,990 GPU-hours (arXiv 2211.02001).

    MLPerf's nodes of 8 H100 draw 2,090 W at the tenth percentile outside of timed runs, model loading included: an upper bound.
    """
    ampere = load_hardware("p4d.24xlarge").spec.groups[0].node
    idle, hopper = (
        node_power(each, power_model(), (0.0, 0.0, 1.0), several, working=False) for each, several in ((ampere, True), (node, False))
    )
    assert idle is not None and hopper is not None and ampere.nic.count == 4
    assert idle.total == pytest.approx(256_646e3 / (1_082_990 / 8), rel=0.15)
    assert hopper.total < 2090


def test_a_mix_of_kernels_draws_the_mean_of_their_draws(node: Node) -> None:
    model = power_model()
    draw = gpu_power(node.gpu, model)
    assert draw.products is not None and draw.memory is not None and draw.idle < draw.memory < draw.products <= 1
    mixed = gpu_power(node.gpu, model, KernelMix(0.5, 0.3))
    assert mixed.compute == pytest.approx(0.5 * draw.products + 0.3 * draw.memory + 0.2 * draw.idle)
    power = node_power(node, model, (0.6, 0.25, 0.15), several=True, mix=KernelMix(0.5, 0.3))
    assert power is not None
    assert power.gpus == pytest.approx(8 * 700 * (0.6 * mixed.compute + 0.25 * draw.waiting + 0.15 * draw.idle))
    ampere = load_hardware("p4d.24xlarge").spec.groups[0].node.gpu  # nobody measured what its kernels draw by kind
    assert gpu_power(ampere, model, KernelMix(0.5, 0.3)) == gpu_power(ampere, model)


def test_recurrent_kernels_draw_like_kernels_that_wait() -> None:
    """DeepSpeech2's time is in recurrent layers, whose kernels reach a twentieth to a third of the peak."""
    mix = mix_of(load_workload("deepspeech2").spec, load_hardware("p3.16xlarge").spec.groups[0].node.gpu)
    assert mix is not None and mix.products < 0.1 < 0.8 < mix.memory


def test_power_lies_between_the_draws_of_its_kernels() -> None:
    """ResNet-50 in 16 bits is bound by memory, a decoder's blocks by products; both lie between the two draws."""
    gpu = load_hardware("hgx-h100").spec.groups[0].node.gpu
    decoder, pictures = (mix_of(load_workload(name).spec, gpu) for name in ("llama-3.1-8b", "resnet50"))
    assert decoder is not None and pictures is not None
    assert decoder.products > 0.5 > pictures.products
    draw = gpu_power(gpu, power_model())
    for mix in (decoder, pictures):
        assert draw.idle < gpu_power(gpu, power_model(), mix).compute <= (draw.products or 0)
    assert gpu_power(gpu, power_model(), pictures).compute < gpu_power(gpu, power_model(), decoder).compute


def test_energy_of_a_sample_is_power_times_time_over_samples(node: Node) -> None:
    figures = energy_figures([NodesOfKind(node, 4, 8)], STALLS, 64.0, grid_of("us-east-1", "aws"), tokens=1024)
    assert figures is not None
    site = 4 * figures["node_power_w"] * figures["pue"]
    assert figures["site_power_w"] == pytest.approx(site)
    assert figures["energy_per_sample_j"] == pytest.approx(site * 1.0 / 64)
    assert figures["energy_per_token_j"] == pytest.approx(figures["energy_per_sample_j"] / 1024)
    assert figures["co2_per_sample_kg"] == pytest.approx(figures["energy_per_sample_j"] / KWH * 0.4158)
    assert sum(figures["parts_w"].values()) == pytest.approx(figures["node_power_w"])


def test_nodes_of_several_kinds_are_summed(node: Node) -> None:
    """Oracle: each kind alone, times its nodes."""
    other, grid = load_hardware("dgx-a100").spec.groups[0].node, grid_of(None)
    together = energy_figures([NodesOfKind(node, 3, 8), NodesOfKind(other, 1, 4)], STALLS, 64.0, grid)
    alone = [node_power(one, power_model(), shares_of(STALLS), True, gpus) for one, gpus in ((node, 8), (other, 4))]
    assert together is not None and alone[0] is not None and alone[1] is not None
    assert 4 * together["node_power_w"] == pytest.approx(3 * alone[0].total + alone[1].total)
    assert 32 * together["gpu_power_w"] == pytest.approx(3 * alone[0].gpus + alone[1].gpus)
    assert together["power_caps"] == []


def test_a_cap_slows_compute_alone_and_never_costs_more_power(node: Node) -> None:
    model = power_model()
    full = 700 * gpu_power(node.gpu, model).compute
    for share, speed in model.cap:
        assert limited_speed(node, model, share * full) == pytest.approx(speed)
    capped = power_caps([NodesOfKind(node, 2, 8)], STALLS, 64.0)
    for row in capped:
        speed = limited_speed(node, model, row["gpu_cap_w"])
        assert row["step_time_s"] == pytest.approx(0.3 + max(0.7, 0.6 / speed))  # 0.1 s of fetching is hidden
    powers = [row["energy_per_sample_j"] / row["step_time_s"] for row in capped]
    assert powers == sorted(powers)
    figures = energy_figures([NodesOfKind(node, 2, 8)], STALLS, 64.0, grid_of(None))
    assert figures is not None and figures["power_caps"] == capped
    assert powers[-1] < figures["energy_per_sample_j"]


def test_caps_count_the_gpus_of_uneven_nodes() -> None:
    """Oracle: power is linear in the GPUs in use, so 1 and 3 of them draw as much as 2 and 2."""
    node = load_hardware("p3.8xlarge").spec.groups[0].node
    uneven, even = (
        power_caps(kinds, STALLS, 64.0) for kinds in ([NodesOfKind(node, 1, 1), NodesOfKind(node, 1, 3)], [NodesOfKind(node, 2, 2)])
    )
    for one, other in zip(uneven, even, strict=True):
        assert one == pytest.approx(other)


def test_jobs_on_one_node_draw_its_power_together(node: Node) -> None:
    """Oracle: one job on all their GPUs. By hand: jobs of 2 and 4 of the eight have one and two thirds of the host and the idle GPUs."""
    shares, model = shares_of(STALLS), power_model()
    together = node_power(node, model, shares, True, gpus=6)
    small, large = (node_power(node, model, shares, True, gpus=gpus, others=6 - gpus) for gpus in (2, 4))
    assert together is not None and small is not None and large is not None
    for part in ("gpus", "host", "network"):
        assert getattr(small, part) == pytest.approx(getattr(together, part) / 3)
        assert getattr(large, part) == pytest.approx(getattr(together, part) * 2 / 3)
    per_gpu = energy_figures([NodesOfKind(node, 1, 2, None, 4)], STALLS, 64.0, grid_of(None))
    assert per_gpu is not None and per_gpu["gpu_power_w"] == pytest.approx(together.gpus / 8)


def test_loaders_work_while_slower_gpus_compute() -> None:
    """By hand: 0.6 s of compute take 0.8 s at three quarters of the speed; of the 0.2 s more, waits of up to that for input are hidden."""
    assert with_slower_compute({"compute": 0.6, "network": 0.4}, 0.75) == pytest.approx({"compute": 0.8, "network": 0.4})
    waits = {"compute": 0.6, "fetch": 0.1, "prep": 0.3, "network": 0.4}
    assert with_slower_compute(waits, 0.75) == pytest.approx({"compute": 0.8, "fetch": 0.0, "prep": 0.2, "network": 0.4})
    assert with_slower_compute(waits, 0.75, ahead=False) == pytest.approx(waits | {"compute": 0.8})
    short = {"compute": 0.6, "fetch": 0.05, "prep": 0.05}
    assert sum(with_slower_compute(short, 0.75).values()) == pytest.approx(0.8)


def test_no_gpu_draws_more_than_its_cap(node: Node) -> None:
    """GPUs that wait draw 30% of 700 W, and those that have nothing to do 12%."""
    drawn = [node_power(node, power_model(), shares, False, gpus=4, cap=60.0) for shares in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert [power and power.gpus for power in drawn] == [8 * 60.0] * 3
    waiting = node_power(node, power_model(), shares_of({"network": 1.0}), True, cap=200.0)
    assert waiting is not None and waiting.gpus == 8 * 200.0


def test_grids_are_those_of_their_source_and_the_world_stands_in() -> None:
    intensities = {"us-east-1": 415.8, "europe-north1": 46.0, "FRA": 56.0}
    for region, grams in intensities.items():
        assert grid_of(region).intensity * KWH * 1000 == pytest.approx(grams)
        assert named_grid(region).year
    assert grid_of("atlantis").assumed and grid_of(None).region == "WORLD"
    with pytest.raises(SpecError, match="--region atlantis: no grid intensity"):
        named_grid("atlantis")


def test_a_region_is_that_of_its_provider() -> None:
    """Google's us-central1 is in Iowa, Nebius's in Missouri; a source gives the intensity of the former only."""
    assert not grid_of("us-central1", "gcp").assumed
    assert grid_of("us-central1", "nebius").assumed
    assert not grid_of("us-central1").assumed and not grid_of("USA", "nebius").assumed
