"""Oracle: the closed form, which knows no contention, where there is none; and what a source's scripts set reaches the simulator."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from calibration import HARDWARE
from calibration.llm.chips import chip_named
from calibration.llm.closed_form import predict
from calibration.llm.constants import fitted_constants
from calibration.llm.engine import hardware_of, memory_of, practice_overrides, simulate_case, workload_document, workload_of
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from tests.calibration.llm.test_case import one
from tests.calibration.llm.test_closed_form import nanotron

ALIKE: Final = 0.15
"""Most by which both may differ (logarithm) where each rank's collectives have the links to themselves."""
AT: Final = fitted_constants("nobody").constants


@pytest.mark.parametrize(
    "layout",
    [
        dict(dp="8"),
        dict(dp="8", zero_stage="3", framework="torchtitan", compile="yes"),
        dict(tp="2", dp="4"),
        dict(tp="8", dp="1"),
        dict(pp="2", dp="4"),
        dict(tp="2", pp="2", dp="2"),
        dict(cp="2", dp="4"),
    ],
    ids=lambda layout: " ".join(f"{name}={value}" for name, value in layout.items()),
)
def test_without_contention_simulator_and_closed_form_agree(tmp_path: Path, layout: dict[str, str]) -> None:
    case = one(tmp_path, **{"global_batch": "64", **layout})
    assert abs(math.log(simulate_case(case, AT).step_time / predict(case, AT).step_time)) < ALIKE


@pytest.mark.parametrize(
    "layout",
    [
        dict(tp="4", dp="2", zero_stage="1"),
        dict(tp="2", pp="2", dp="2", zero_stage="0"),
        dict(gpus="16", nodes="2", tp="8", pp="2", dp="1", zero_stage="0"),
    ],
    ids=("tensor", "pipeline", "compared between ranks"),
)
def test_they_agree_where_torch_compares_collectives_too(tmp_path: Path, layout: dict[str, str]) -> None:
    case = nanotron(tmp_path, **{"global_batch": "32", "node_type": "p5.48xlarge class", **layout})
    assert case.checks_collectives is (case.gpus > 8)
    assert abs(math.log(simulate_case(case, AT).step_time / predict(case, AT).step_time)) < ALIKE


def test_a_model_of_the_catalog_is_simulated_by_its_name(tmp_path: Path) -> None:
    """Its epsilon of 1e-6 is written as YAML reads it."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    case = one(tmp_path, **blank, model="Qwen2.5-7B", seq_len="4096")
    assert case.shape.norm_epsilon == 1e-6
    assert workload_of(case, AT).model.transformer == case.shape


def test_a_node_type_of_the_catalog_is_the_machine(tmp_path: Path) -> None:
    nodes = {
        text: hardware_of(nanotron(tmp_path, node_type=text)).name for text in ("p5.48xlarge class (EFA)", "p4d.24xlarge", "DGX H100", "")
    }
    usual = nodes[""]
    assert nodes == {"p5.48xlarge class (EFA)": "p5.48xlarge", "p4d.24xlarge": usual, "DGX H100": usual, "": usual}  # p4d has another GPU


def test_a_shape_of_four_gpus_of_a_rack_is_simulated_in_the_rack(tmp_path: Path) -> None:
    """BM.GPU.GB200.4 is a quarter of a node of 72 GPUs over NVLink; two of them are in one rack."""
    case = one(tmp_path, gpu="GB200", node_type="BM.GPU.GB200.4", nodes="2", network="InfiniBand 400 Gbps per GPU")
    assert hardware_of(case).groups[0].node.gpu_count >= case.domain > 4
    assert simulate_case(case, AT).step_time > 0


@pytest.mark.parametrize(
    ("layout", "stack"),
    [
        (dict(framework="FairScale FSDP", tp="2", dp="4", zero_stage="3"), "torchtitan-2.x-eager"),
        (dict(framework="MaxText", tp="4", dp="2", zero_stage="3"), "megatron-core"),
        (dict(framework="DeepSpeed", cp="2", dp="4", zero_stage="3"), "megatron-core"),
        (dict(framework="DeepSpeed", tp="2", dp="4"), "megatron-deepspeed"),
    ],
)
def test_axes_that_a_stack_lacks_are_simulated_in_another(tmp_path: Path, layout: dict[str, str], stack: str) -> None:
    case = one(tmp_path, **layout)
    assert case.stack == stack
    assert any("ranks as in" in each for each in case.assumptions) == (stack != "megatron-deepspeed")
    assert simulate_case(case, AT).step_time > 0


def test_nodes_of_four_gh200_are_simulated(tmp_path: Path) -> None:
    """Alps has four in a node, whose network carries what leaves it; most others have one."""
    row = dict(gpu="GH200", gpus="8", dp="8", node_type="", network="Slingshot 200 Gbps per GPU")
    four, one_each = (one(tmp_path, nodes=nodes, **row) for nodes in ("2", "8"))
    assert (four.domain, one_each.domain) == (4, 1)
    assert simulate_case(four, AT).step_time < simulate_case(one_each, AT).step_time


def test_the_machine_of_a_gpu_has_it() -> None:
    """Every GPU of the table but those of no described machine: NVLink's fours of H200 NVL stand in no table of shapes."""
    chips = {chip.name: chip for name in ("A800", "H800", "H20", "H100-NVL", "H200-NVL", "GH200", "L40S", "MI350X", "H100", "B300")
             if (chip := chip_named(name).chip)}  # fmt: skip
    without = {name for name, chip in chips.items() if not chip.machine}
    wrong = {
        name
        for name, chip in chips.items()
        if chip.machine and load_hardware(chip.machine, library=HARDWARE).spec.groups[0].node.gpu.name != name
    }
    assert (without, wrong) == ({"H200-NVL-141GB"}, set())


@pytest.mark.parametrize(
    ("gpu", "pcie"), [("A100 PCIe 80GB", 4), ("RTX 4090", 4), ("V100-PCIe-32GB", 3), ("T4", 3), ("L4", 4), ("RTX 5090", 5)]
)
def test_a_gpu_of_no_described_machine_is_in_a_server_with_eight_slots(tmp_path: Path, gpu: str, pcie: int) -> None:
    """Its memory and its generation of PCIe are the GPU's own, its NICs the row's; the step is about that of the closed form."""
    case = one(tmp_path, gpu=gpu, model="Llama-3.2-1B", nodes="2", gpus="16", dp="16", global_batch="64", network="HDR InfiniBand per GPU")
    assert not case.chip.machine
    node = hardware_of(case).groups[0].node
    assert (node.gpu_count, node.topology.pcie.name) == (8, f"pcie{pcie}-x16")
    assert node.gpu.memory == case.chip.memory and node.nic.bandwidth * node.nic.count == 8 * case.nic == 8 * 25e9
    assert simulate_case(case, AT).step_time == pytest.approx(predict(case, AT).step_time, rel=0.6)
    assert memory_of(case).nbytes > 0


@pytest.mark.parametrize(("gpu", "precision"), [("T4", "fp16"), ("P100", "fp16"), ("V100", "fp16"), ("A30", "bf16"), ("L4", "bf16")])
def test_old_gpus_train_in_float16(tmp_path: Path, gpu: str, precision: str) -> None:
    """Oracle: NVIDIA's table of compute capabilities: no products in bfloat16 below 8.0, where torch would emulate them."""
    case = one(tmp_path, gpu=gpu, precision="bf16")
    assert workload_document(case)["training"]["precision"] == precision


def test_what_scripts_set_reaches_the_simulator(tmp_path: Path) -> None:
    case = one(tmp_path, source="NVIDIA-NeMo/Megatron-Bridge@1:x")
    changed = replace(case, one_copy=True, expert_overlap=True, uses_cuda_graphs=True, checks_collectives=True)
    overrides = [dict(each.split("=") for each in practice_overrides(which, AT)) for which in (case, changed)]
    names = {name.removeprefix("training.stack.") for name in overrides[1] if overrides[0].get(name) != overrides[1][name]}
    assert names == {"mesh.one_copy", "mesh.paired_schedules", "mesh.expert_blocks", "mesh.collective_check", "cuda_graphs"}


@pytest.mark.parametrize("framework", ["DeepSpeed", "Megatron-LM"])
@pytest.mark.parametrize("flash", ["yes", "no"])
def test_attention_is_the_rows_whatever_its_stack_was_described_with(tmp_path: Path, framework: str, flash: str) -> None:
    layout = {"framework": framework, "zero_stage": "3", "global_batch": "64", "activation_checkpointing": "full", "seq_len": "4096"}
    case = one(tmp_path, flash_attention=flash, **layout)
    assert abs(math.log(simulate_case(case, AT).step_time / predict(case, AT).step_time)) < ALIKE


def test_packed_documents_are_no_longer_than_their_sequence(tmp_path: Path) -> None:
    short = one(tmp_path, model="Llama3 8b Finetuning SFT BF16", framework="Megatron-Bridge", seq_len="128")
    assert short.document_tokens == 128
    for predictor in (simulate_case, predict):
        assert predictor(short, AT).step_time == pytest.approx(predictor(replace(short, document_tokens=0), AT).step_time)


def test_packed_documents_attend_only_inside_each(tmp_path: Path) -> None:
    squad = one(tmp_path, model="Llama3 8b Finetuning SFT BF16", framework="NeMo/Megatron-Core", seq_len="4096")
    undivided = replace(squad, document_tokens=0)
    shapes = [
        next(layer.attention for layer in workload_of(case, AT).model.layers if layer.attention is not None) for case in (undivided, squad)
    ]
    assert [(round(shape.documents * shape.keys), shape.keys) for shape in shapes] == [
        (squad.seq, squad.seq), (pytest.approx(squad.seq, rel=0.01), squad.document_tokens),
    ]  # fmt: skip
    shape = squad.shape
    pairs = squad.micro_batches * squad.micro_batch * squad.seq * (squad.seq - squad.document_tokens) / 2
    flop = 3.5 * 4 * pairs * shape.layers * shape.heads * shape.head_size  # backward recomputes scores: 2.5 times forward
    for predictor in (simulate_case, predict):
        saved = predictor(undivided, AT).step_time - predictor(squad, AT).step_time
        assert 1 < saved * squad.chip.peak["16bit"] / flop < 3


def test_nodes_larger_than_any_machine_are_not_simulated_as_several(tmp_path: Path) -> None:
    """H100 NVL: the machine of the catalog has two, and those of one node would exchange over NICs."""
    nodes = {"gpu": "H100 NVL", "node_type": "", "network": "", "global_batch": "256"}
    with pytest.raises(SpecError, match="has 2 of the 8 GPUs of a node"):
        hardware_of(one(tmp_path, **nodes, nodes="2", gpus="16", dp="16"))
    assert hardware_of(one(tmp_path, **nodes, nodes="8", gpus="16", dp="16")).groups[0].node.gpu_count == 2
