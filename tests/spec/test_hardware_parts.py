"""Are the parts of the catalog physically possible, and do they reproduce what was measured on them?

Check values are written out here with their source; nothing is derived from the catalog itself.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from sim.spec.fields import Spec, curve_value
from sim.spec.hardware import LAYOUT_HOST_SPEED, Cpu, Gpu, Link, Volume
from sim.spec.library import catalog, load_hardware, load_part
from sim.spec.yaml import SpecError
from tests.for_each import for_each

KINDS: dict[str, type[Spec]] = {"gpus": Gpu, "links": Link, "cpus": Cpu, "volumes": Volume}


@cache
def part(folder: str, name: str) -> Any:
    return load_part(KINDS[folder], name)


GPUS = sorted(catalog("hardware/parts/gpus"))


@for_each(GPUS)
def test_gpu_is_physically_possible(name: str) -> None:
    """Widest ranges from K80 (2014) to MI355X (2025): a unit misread by 8 or 1000 falls outside."""
    gpu: Gpu = part("gpus", name)
    assert 8e9 <= gpu.memory <= 320e9
    assert 150e9 <= gpu.memory_bandwidth <= 9e12
    assert all(4e12 <= peak <= (1.6e16 if name == "nvfp4" else 6e15) for name, peak in gpu.peak.items())
    assert 8 <= gpu.peak["fp32"] / gpu.memory_bandwidth <= 120, "FLOP per byte at the ridge of the roofline"
    assert 1e-6 <= gpu.kernel_time <= 2e-5
    assert 0.2e9 <= gpu.context_memory <= 2e9
    assert gpu.power is not None and 50 <= gpu.power <= 1400


@pytest.mark.parametrize(
    ("name", "units"),
    [
        *((name, {"fp16", "bf16"}) for name in ("mi210", "mi250-gcd", "mi250x-gcd")),
        *((name, {"tf32", "fp16", "bf16", "fp8"}) for name in ("mi300x", "mi325x")),
        *((name, {"fp16", "bf16", "fp8"}) for name in ("mi350x", "mi355x")),
    ],
)
def test_a_generation_does_not_inherit_the_matrix_cores_of_another(name: str, units: set[str]) -> None:
    """AMD's instruction sets: TF32 exists only in CDNA3, and FP8 since then."""
    gpu: Gpu = part("gpus", name)
    assert gpu.kernels is not None
    assert set(gpu.peak) - {"fp32"} == set(gpu.kernels.product_share) == units


@for_each(GPUS)
def test_only_convolutions_beat_the_peak_and_only_in_fp32(name: str) -> None:
    """Winograd saves at most 2.25 of the multiplications of a 3x3 window (Lavin and Gray, CVPR 2016, F(2x2, 3x3))."""
    gpu: Gpu = part("gpus", name)
    for operator, curves in gpu.efficiency.items():
        for peak, curve in curves.items():
            assert max(level for _, level in curve) <= (2.25 if operator == "conv" and peak == "fp32" else 1.0)


@for_each(GPUS)
def test_larger_kernels_are_never_less_efficient(name: str) -> None:
    for curves in part("gpus", name).efficiency.values():
        for curve in curves.values():
            levels = [level for _, level in curve]
            assert levels == sorted(levels)


# Median TFLOP/s of the 76 GEMMs with M*N*K above 5e9 in baidu-research/DeepBench results/train, counted apart from the curves.
LARGE_GEMM = [
    ("v100-sxm2-16gb", "fp32", 13.2),
    ("v100-sxm2-16gb", "fp16", 99.2),
    ("p100-pcie-16gb", "fp32", 8.9),
    ("t4", "fp32", 4.2),
    ("t4", "fp16", 38.9),
    ("m40", "fp32", 4.6),
    ("gtx1080ti", "fp32", 10.7),
]


@pytest.mark.parametrize(("name", "peak", "rate"), LARGE_GEMM)
def test_large_gemm_runs_at_the_measured_rate(name: str, peak: Any, rate: float) -> None:
    gpu: Gpu = part("gpus", name)
    assert gpu.peak[peak] * curve_value(gpu.efficiency["gemm"][peak], 1.6e11 / gpu.peak[peak]) == pytest.approx(rate * 1e12, rel=0.06)


# DeepBench's V100 sheets, forward and both backward passes together: FLOP of one pass of each layer, and seconds of all of them.
# "Resnet" 1x1 layers at batch 16 and stride 1 (ten, of equal FLOP); "Vision" 3x3 layers at batch 8 behind the first (VGG's five).
VGG = [14797504512, 14797504512, 14797504512, 7398752256, 1849688064]
LAYERS = [
    ("pointwise_conv", "fp32", [1644167168] * 10, 0.006095),
    ("pointwise_conv", "fp16", [1644167168] * 10, 0.001440),
    ("conv", "fp32", VGG, 0.007668),
    ("conv", "fp16", VGG, 0.002436),
]


@pytest.mark.parametrize(("operator", "peak", "flops", "measured"), LAYERS)
def test_convolutions_of_known_networks_take_the_measured_time(operator: Any, peak: Any, flops: list[float], measured: float) -> None:
    gpu: Gpu = part("gpus", "v100-sxm2-16gb")
    curve = gpu.efficiency[operator][peak]
    predicted = sum(3 * (flop / (gpu.peak[peak] * curve_value(curve, flop / gpu.peak[peak])) + gpu.kernel_time) for flop in flops)
    assert predicted == pytest.approx(measured, rel=0.15)


@for_each(sorted(catalog("hardware/parts/gpus")))
def test_only_geforce_boards_since_turing_have_no_peers_over_pcie(name: str) -> None:
    """NVIDIA blocks it on GeForce boards; professional boards are described as extensions of these and must not inherit it."""
    assert part("gpus", name).pcie_peers is not bool(re.fullmatch(r"rtx[2-5]0\d\d(ti)?", name))


@for_each(sorted(catalog("hardware/parts/cpus")))
def test_cpu_is_physically_possible(name: str) -> None:
    cpu: Cpu = part("cpus", name)
    assert 1.5e9 <= cpu.clock <= 4e9
    assert 0.5 <= cpu.speed <= 2.5 and 1.0 <= cpu.smt_gain <= 1.4
    assert 60e9 <= cpu.memory_bandwidth <= 650e9
    assert cpu.socket_link.nccl_bandwidth < cpu.socket_link.bandwidth


def test_grace_launches_as_slowly_as_measured() -> None:
    """One Linear of torch keeps the host busy for 13.48 us on a DGX H100, 37.08 us on a GB200 and 33.17 us on a GH200."""
    server, grace = part("cpus", "xeon-platinum-8480c"), part("cpus", "grace")
    assert grace.launching == pytest.approx(server.launching * 13.48 / (37.08 * 33.17) ** 0.5, rel=0.01)
    assert server.launching == server.speed == LAYOUT_HOST_SPEED and server.host_factor == 1.0
    assert grace.host_factor == pytest.approx((37.08 * 33.17) ** 0.5 / 13.48, rel=0.01)


def test_the_reference_core_has_speed_one() -> None:
    assert part("cpus", "xeon-gold-5118").speed == 1.0


# What NVIDIA/nccl @5067397c src/graph/topo.h and topo.cc assume, in GB/s: NVLink by sm60, 70, 80, 86, 90, 100; PCIe x16; sockets.
NCCL = {"nvlink1": 18, "nvlink2": 20, "nvlink3": 20, "nvlink3-ga102": 12, "nvlink4": 20.6, "nvlink5": 40.1}
NCCL |= {"pcie3-x16": 12, "pcie4-x16": 24, "pcie5-x16": 48, "qpi": 6, "upi-skylake": 10, "upi-sapphire-rapids": 22, "infinity-fabric": 16}


@for_each(NCCL)
def test_link_has_the_rate_nccl_assumes_and_delivers_no_more_than_it_has(name: str) -> None:
    link: Link = part("links", name)
    assert link.nccl_bandwidth == pytest.approx(NCCL[name] * 1e9)
    assert 5e9 <= link.bandwidth <= 200e9 and 0.3 <= link.efficiency <= 1


def test_gp2_follows_its_published_rule() -> None:
    """Oracle: EBS user guide: 3 IOPS per GiB, 5.4 million credits, 30 minutes at 3 000 from full for the smallest volumes."""
    gp2: Volume = part("volumes", "gp2")
    assert (gp2.iops_per_gib, gp2.baseline_iops, gp2.max_iops, gp2.burst_iops) == (3, 100, 16000, 3000)
    assert gp2.burst_credits / 3000 == 30 * 60
    assert gp2.bandwidth == 250 * 2**20 and gp2.io_size == 256 * 2**10


@pytest.mark.parametrize("field", ["product_share.bf16", "sustained", "memory_share", "pass_share"])
def test_a_kernel_that_reaches_nothing_is_refused(field: str) -> None:
    with pytest.raises(SpecError, match="above zero, at most 1"):
        load_hardware("dgx-a100", [f"node.gpu.kernels.{field}=0%"])


def test_a_compute_capability_may_be_a_number() -> None:
    """YAML reads 8.6 without quotes as a number; what is no capability gets the same sentence in either spelling."""
    assert load_hardware("p3.8xlarge", ["node.gpu.compute_capability=8.6"]).spec.groups[0].node.gpu.compute_capability == "8.6"
    for wrong, shown in (("-3.5", "'-3.5'"), ("abc", "'abc'"), ("8.65", "'8.65'")):
        with pytest.raises(SpecError, match=f"compute_capability={wrong}: found {shown}; write major.minor, such as 8.0$"):
            load_hardware("p3.8xlarge", [f"node.gpu.compute_capability={wrong}"])
