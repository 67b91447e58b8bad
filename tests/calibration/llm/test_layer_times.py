"""How long do the layers of a rank take? Oracle: the simulator's times of a mean block, without its factors for whole steps."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration.llm.case import Case
from calibration.llm.closed_form import predict
from calibration.llm.engine import compute_workload, simulation_inputs
from calibration.llm.layer_times import layer_times
from calibration.llm.priors import defaults
from calibration.llm.weights import blocks_of_stages
from calibration.llm.work import StepWork
from sim.mesh import compute_times_of, layout_prices, prepare
from sim.parallel.checkpointing import MODULES
from sim.spec.sections import with_fields
from tests.calibration.llm.test_case import one

BLANK = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
SHAPES = {
    "tensor": dict(tp="4"),
    "tensor and pipeline": dict(tp="2", pp="4", virtual_pp="2"),
    "FP8": dict(tp="2", precision="fp8"),
    "eager": dict(framework="nanotron", tp="2"),
    "FSDP": dict(framework="torchtitan", zero_stage="3"),
    "scaled rotation": dict(BLANK, model="Llama 3.1 8B"),
    "windows": dict(BLANK, model="Gemma 2 9B"),
    "experts": dict(BLANK, model="Mixtral 8x7B", framework="torchtitan", zero_stage="3", ep="8"),
    "Mamba layers": dict(BLANK, model="Nemotron-H 56B", tp="4"),
    "adapters": {"class": "lora", "tp": "2"},
    "attention in several kernels": dict(flash_attention="no", tp="2"),
    "unaligned heads": dict(source="bigscience-workshop/bigscience@1:x", gpu="A100", tp="4", heads="28", hidden="4200", kv_heads="28"),
}


def simulated(case: Case) -> tuple[float, float]:
    """Return the simulator's seconds of a mean block without messages, forward and backward, with no factor fitted to whole steps."""
    units = simulated_units(case)
    blocks = [unit for unit in units if unit[0] == "block"]
    return sum(unit[1] for unit in blocks) / len(blocks), sum(unit[2] for unit in blocks) / len(blocks)


def simulated_sum(case: Case) -> float:
    """Return the simulator's seconds of all blocks and of what is before and after them, without messages."""
    return sum(forward + backward for _, forward, backward in simulated_units(case))


def simulated_units(case: Case) -> list[tuple[str, float, float]]:
    """Return the kind of each unit, and its seconds of a forward and of a backward."""
    hardware, workload, (nodes, gpus_per_node) = simulation_inputs(case, defaults())
    training = workload.training
    stack = with_fields(training.stack, compute_factor=1.0, factor_by_kernels=False)
    workload = workload.with_training(stack=stack, activation_checkpointing="none", recompute_modules=())
    layout = prepare(hardware, workload, gpus_per_node, nodes)
    times = compute_times_of(hardware, workload, layout, layout_prices(hardware, workload, layout, None).book)
    return [(unit.kind, times(number, "F").compute, times(number, "B").compute) for number, unit in enumerate(layout.units)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_takes_as_long_as_simulated(shape: str, tmp_path: Path) -> None:
    """One micro-batch, so that no gradient is accumulated."""
    case = replace(one(tmp_path, **SHAPES[shape]), micro_batches=1, recompute="none", recomputed_modules=())
    own = [sum(getattr(time, part) for time in layer_times(case)["block"].values()) for part in ("forward", "backward")]
    assert own == pytest.approx(list(simulated(case)), rel=0.01)


def test_letters_that_share_a_block_take_as_long_as_simulated(tmp_path: Path) -> None:
    """A layer with a delta net and its feed-forward block are two letters of the pattern, and the closed form counts letters."""
    case = replace(one(tmp_path, **dict(BLANK, model="Qwen3-Next-80B-A3B")), micro_batches=1, recompute="none", recomputed_modules=())
    without_experts = {"experts": 0, "experts_per_token": 0, "shared_experts": 0, "shared_expert_ffn": None, "expert_ffn": None}
    dense = case.shape.model_copy(
        update={**without_experts, "pattern": (case.shape.pattern or "").replace("E", "-"), "ffn": 5120},
    )
    case = replace(case, shape=dense)
    assert dense.letters_per_block == 2 and sum(blocks_of_stages(case)[0]) == dense.layers == 2 * dense.block_count
    own = [dense.layers * sum(getattr(time, part) for time in layer_times(case)["block"].values()) for part in ("forward", "backward")]
    assert own == pytest.approx([dense.block_count * seconds for seconds in simulated(case)], rel=0.01)


@pytest.mark.parametrize("factors", [{"compute_factor": 3.0}, {"factor_by_kernels": True}, {"factor_by_kernels": False}])
def test_no_factor_of_a_stack_counts(factors: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were fitted to the runs that predictions are scored on."""
    case = one(tmp_path, gpu="B200", framework="nanotron")
    assert case.gpu.kernels is not None and case.gpu.kernels.whole_steps != 1.0
    times, workload = layer_times(case), compute_workload(case)
    stack = with_fields(workload.training.stack, **factors)
    fitted = workload.with_training(stack=stack)
    monkeypatch.setattr("calibration.llm.layer_times.compute_workload", lambda case: fitted)
    assert layer_times(replace(case)) == times


def test_constants_scale_the_layers_they_name(tmp_path: Path) -> None:
    case = one(tmp_path, precision="fp8", vocab="50257")
    at = defaults()
    times = layer_times(case)
    narrow = [time.forward for time in times["block"].values() if time.narrow]
    assert len(narrow) == 4 and not times["last"]["head"].narrow and not times["last"]["head"].is_aligned
    forward = StepWork(case, at).products.forward
    assert StepWork(case, {**at, "product.fp8": 2.0}).products.forward - forward == pytest.approx(sum(narrow))
    assert StepWork(case, {**at, "product.hopper": 2.0}).products.forward == pytest.approx(2 * forward)
    ends = [StepWork(case, {**at, "unaligned": factor}).ends["last"].forward for factor in (1.0, 2.0)]
    assert ends[1] - ends[0] == pytest.approx(times["last"]["head"].forward)


@pytest.mark.parametrize(
    "modules", [["moe"], ["moe_act"], ["layernorm"], ["mla_up_proj"], ["mlp"], ["moe", "moe_act"], ["core_attn", "moe_act", "layernorm"]]
)
def test_modules_are_the_layers_that_the_simulator_recomputes(modules: list[str], tmp_path: Path) -> None:
    """Each layer once, besides dispatch and combine, which the closed form counts by itself, and copies of outputs that are discarded."""
    case = one(tmp_path, **BLANK, model="DeepSeek V3", gpus="64", nodes="8", dp="64", ep="64", global_batch="512")
    work, names = StepWork(case, defaults()), layer_times(case)["block"]
    pattern = "|".join(MODULES[module] for module in modules if module != "core_attn")
    inside = [name for name, time in names.items() if re.fullmatch(pattern, name) and time.kind != "routing"]
    routing = work.routing if "moe" in modules else 0.0
    readers = {"moe_act": ["experts.down"], "layernorm": ["attention.q_down", "router"], "mla_up_proj": ["attention.core"]}
    copied = sum(names[reader].restored for module in modules for reader in readers.get(module, []))
    assert inside and work.modules(modules) - routing == pytest.approx(sum(map(work.layer, inside)) + copied)


@pytest.mark.parametrize("model", ["DeepSeek V3", "Nemotron 3 Super"])
def test_layers_of_prediction_take_as_long_as_simulated(model: str, tmp_path: Path) -> None:
    """They are a block each, or of a hybrid two letters, with a head of their own; here without experts."""
    of_model = one(tmp_path, **dict(BLANK, model=model)).shape
    without_experts = {"experts": 0, "experts_per_token": 0, "shared_experts": 0, "shared_expert_ffn": None, "expert_ffn": None}
    dense = of_model.model_copy(
        update={**without_experts, "expert_latent": None, "pattern": of_model.pattern and of_model.pattern.replace("E", "-"), "ffn": 5120}
    )
    steps = {}
    for predicted in (0, 2):
        case = one(tmp_path, **dict(BLANK, model=model))
        shape = dense.model_copy(update={"prediction_layers": predicted})
        case = replace(case, shape=shape, micro_batches=1, recompute="none", recomputed_modules=())
        blocks = sum(blocks_of_stages(case)[0])
        counts = {"first": 1, "block": blocks, "last": 1 + predicted}
        own = sum(counts[place] * (time.forward + time.backward) for place, times in layer_times(case).items() for time in times.values())
        steps[predicted] = own, simulated_sum(case)
    more = [steps[2][which] - steps[0][which] for which in (0, 1)]
    assert more[1] > 0 and more[0] == pytest.approx(more[1], rel=0.01)


def test_attention_of_gpus_without_a_fused_one_is_in_several_kernels(tmp_path: Path) -> None:
    """Where rows of Megatron-LM do not say; torch's own attention runs on a V100 in one kernel."""
    fields = dict(gpu="V100-SXM2-32GB", node_type="", network="", precision="fp16")
    said = {answer: one(tmp_path, **fields, flash_attention=answer) for answer in ("", "no", "yes")}
    assert [said[answer].flash for answer in ("", "no", "yes")] == [False, False, True]
    assert any("several kernels" in assumed for assumed in said[""].assumptions)
    assert not any("several kernels" in assumed for assumed in said["no"].assumptions)
    assert one(tmp_path, **fields, framework="torchtitan").flash and one(tmp_path).flash
    core = {answer: layer_times(case)["block"]["attention.core"] for answer, case in said.items()}
    assert core[""] == core["no"] and core["no"].forward > 2 * core["yes"].forward


@pytest.mark.parametrize("gpu", ["V100-SXM2-32GB", "P100", "Titan V", "RTX 4090", "MI250X", "MI355X", "A800", "GB300"])
def test_every_gpu_has_times(gpu: str, tmp_path: Path) -> None:
    """Those without described kernels, by their efficiency; none beats its peak."""
    case = one(tmp_path, gpu=gpu, node_type="", network="", precision="fp16" if gpu in ("P100", "V100-SXM2-32GB", "Titan V") else "bf16")
    flop = 6.0 * 8192 * case.shape.hidden * case.shape.inner * 3
    feed = sum(time.forward + time.backward for name, time in layer_times(case)["block"].items() if name in ("feed.gate_up", "feed.down"))
    assert 1.0 < feed / (flop * case.micro_batch / case.chip.peak["16bit"]) < 6.0
    assert predict(case, defaults()).step_time > 0
