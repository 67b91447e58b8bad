"""How fast are convolutions and scans of linear attention? Oracle: kernels that others measured (``calibration/records/scans.csv``)."""

from __future__ import annotations

import csv
from statistics import median

import pytest

from calibration import RECORDS
from sim.cluster.gpu import layer_time, memory_time
from sim.parallel.routing import gated_norm_time
from sim.spec.decoder import decoder_layers
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.state_space import ScanCost, scan_cost, scan_layers
from sim.spec.transformer import DeltaNet, Mamba, Transformer
from sim.training.layouts.times import unfused_time

MACHINES = {"H100-SXM5-80GB": "hgx-h100", "B200-SXM-180GB": "hgx-b200", "B300-SXM-288GB": "hgx-b300", "GB300-288GB": "gb300-nvl72"}
"""Machines of the catalog with the measured GPUs."""
STACK = load_part(Stack, "megatron-core")


def rows(op: str, gpu: str) -> list[dict[str, str]]:
    with (RECORDS / "scans.csv").open(encoding="utf-8") as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return [row for row in lines if row["op"] == op and row["gpu"] == gpu]


def gpu_of(name: str) -> Gpu:
    return load_hardware(MACHINES[name]).spec.worker_groups[0].node.gpu


def tokens(row: dict[str, str]) -> int:
    return int(row["batch"]) * int(row["seq"])


def scan(row: dict[str, str]) -> ScanCost:
    """Return what a token of the delta rule in *row* costs."""
    return scan_cost(
        DeltaNet(key_heads=int(row["k_heads"]), value_heads=int(row["heads"]), key_dim=int(row["k_dim"]), value_dim=int(row["head_dim"]))
    )


@pytest.mark.parametrize("name", MACHINES)
def test_rates_of_delta_rules_are_those_measured(name: str) -> None:
    kernels = gpu_of(name).kernels
    assert kernels is not None and len(rows("gdn", name)) == 6
    rates = [scan(row).flop[0] * tokens(row) / (1e-6 * float(row["time_us"])) / kernels.sm_count for row in rows("gdn", name)]
    assert kernels.delta_rate == pytest.approx(median(rates), rel=0.06)
    assert all(abs(rate / kernels.delta_rate - 1) < 0.2 for rate in rates)


def test_the_rate_of_mamba_2_is_that_of_its_kernels_in_a_training_step() -> None:
    """One capture sets the rate; another, with more samples and forward twice, was left out."""
    kernels, name = gpu_of("H100-SXM5-80GB").kernels, "H100-SXM5-80GB"
    assert kernels is not None
    sizes = Mamba(heads=64, head_dim=64, state=128, groups=8, chunk=128)
    cost, states = scan_cost(sizes), 2.0 * sizes.inner * sizes.state
    flop = {
        "mamba2": sum(cost.flop),
        "mamba2_again": cost.flop[0] + sum(cost.flop),
        "mamba2_states": states,
        "mamba2_outputs": states + sizes.chunk * sizes.inner,
    }
    rates = {
        op: [each * tokens(row) / (1e-6 * float(row["time_us"])) / kernels.sm_count / kernels.scan_rate for row in rows(op, name)]
        for op, each in flop.items()
    }
    assert rates["mamba2"] == [pytest.approx(1.0, abs=0.01)] and rates["mamba2_again"] == [pytest.approx(1.0, abs=0.06)]
    assert all(1.2 < rate < 1.7 for op in ("mamba2_states", "mamba2_outputs") for rate in rates[op])


def test_the_backward_of_gated_norms_waits_for_each_row() -> None:
    """Its programs, one or two a multiprocessor, take their rows in turn, on Blackwell as long as on an H100."""
    (row,) = rows("mamba2_norm", "H100-SXM5-80GB")
    options = STACK.mesh
    assert options is not None
    for heads, share in ((64, 1.0), (128, 1.0), (32, 0.5)):  # 8 groups of 512 or 1,024; 4 of 512, as on one of two tensor ranks
        sizes = Mamba(heads=64 if share < 1 else heads, head_dim=64, state=128, groups=8)
        one = load_workload(
            "nemotron-3-nano-30b-a3b", [f"model.sequence={row['seq']}", f"model.transformer.mamba.heads={sizes.heads}"]
        ).spec
        norm = next(layer for layer in one.model.layers if layer.name.endswith("mamba.norm"))
        part = norm.model_copy(update={name: share * getattr(norm, name) for name in ("write", "backward_traffic")})
        for name in MACHINES:
            gpu, batch = gpu_of(name), int(row["batch"])
            seconds = gated_norm_time(part, sizes, gpu.kernels.sm_count if gpu.kernels else 0, batch)
            beside = memory_time(part.backward_traffic / 2.0 * batch, gpu)
            late = unfused_time(part, one.model.transformer, options, gpu, "bf16", batch, True)
            assert seconds > beside and late == pytest.approx(seconds - beside)
            assert unfused_time(part, one.model.transformer, options, gpu, "bf16", batch, False) == 0.0
            passive = part.model_copy(update={"backward_kernels": 0, "backward_traffic": 0.0})  # below frozen weights
            assert unfused_time(passive, one.model.transformer, options, gpu, "bf16", batch, True) == 0.0
            if (name, heads) == (row["gpu"], int(row["heads"])):
                assert seconds == pytest.approx(1e-6 * float(row["time_us"]), rel=0.01) and seconds > 1.2 * beside


@pytest.mark.parametrize(
    ("faster", "slower", "measured"), [("gb200-nvl72", "hgx-h200", 360.4 / 239.2), ("hgx-h200", "dgx-a100-80gb", 239.2 / 102.5)]
)
def test_rates_of_other_gpus_are_derived_from_a_measured_model(faster: str, slower: str, measured: float) -> None:
    """A Mamba-2 model of 48 layers, four samples of 4,096 tokens in BF16: TFLOP/s of state-spaces/mamba issue 904."""
    sizes = Mamba(heads=64, head_dim=64, state=128, groups=1, chunk=256)
    model = Transformer(
        layers=48, hidden=2048, heads=32, ffn=8192, vocab=50288, norm="rmsnorm", positions="none", tied=True, pattern="M" * 48, mamba=sizes,
    )  # fmt: skip
    stack = load_part(Stack, "torch-2.x-ddp")
    steps = {}
    for machine in (faster, slower):
        gpu = load_hardware(machine).spec.worker_groups[0].node.gpu
        layers = decoder_layers(model, 4096)
        steps[machine] = sum(layer_time(layer, gpu, "bf16", stack, 4, back).time for layer in layers for back in (False, True))
    assert steps[slower] / steps[faster] == pytest.approx(measured, rel=0.03)


def test_an_l40s_is_limited_by_its_memory() -> None:
    """Where memory is slow, kernels take as long as the counted passes at 80% of its bandwidth, 864 GB/s (NVIDIA's data sheet)."""
    for row in rows("gdn", "L40S"):
        reached = 2.0 * scan(row).elements[0] * tokens(row) / (1e-6 * float(row["time_us"]))
        assert 0.65 * 864e9 < reached < 0.9 * 864e9, row


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("H100-SXM5-80GB", 0.95, 1.05), ("B200-SXM-180GB", 0.9, 1.0), ("B300-SXM-288GB", 0.95, 1.05), ("GB300-288GB", 0.95, 1.05)],
)
def test_convolutions_take_as_long_as_measured(name: str, low: float, high: float) -> None:
    """Inputs and outputs pass through memory once; on Blackwell, the measured kernel reaches less than half of the memory bandwidth."""
    stack = with_fields(STACK, compute_factor=1.0, factor_by_kernels=False)
    ratios = []
    for row in rows("conv", name):
        moved = 4.0 * int(row["seq"]) * int(row["channels"])
        layer = Layer.model_construct(name="mamba.conv", op="causal_conv", read=moved, write=moved)
        time = layer_time(layer, gpu_of(name), "bf16", stack, int(row["batch"])).time
        ratios.append(time / (1e-6 * float(row["time_us"])))
    assert len(ratios) >= 5 and low < median(ratios) < high
    made = next(scan_layers(Mamba(heads=64), "mamba", 4096, 4.0))
    assert made.read == made.write == 4.0 * 4096 * Mamba(heads=64).channels
