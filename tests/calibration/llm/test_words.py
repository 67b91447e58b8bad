"""Oracles: what such words mean to whoever writes them; every variation of a table is predicted or listed, and none aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.cells import read_cell
from calibration.llm import closed_form, engine
from calibration.llm.case import Case
from calibration.llm.chips import _chips, chip_named, similar_chips
from calibration.llm.describe import describe
from calibration.llm.engine import memory_need, workload_document
from calibration.llm.priors import defaults
from calibration.llm.shapes import CannotDescribe
from calibration.llm.table import read_table
from calibration.llm.validate import llm_table, validate_tables
from calibration.llm.words import SAVED_LAYERS, Shards, is_float16, means_yes, precision_of, recompute_of, shards_of, zero_of
from calibration.network_words import nic_of
from sim.spec.hardware import Gpu
from sim.spec.library import load_part
from tests.calibration.llm.tables import table
from tests.calibration.llm.test_case import one


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("bf16-mixed", "16bit"), ("BF16 (AMP)", "16bit"), ("float16", "16bit"), ("16-true", "16bit"), ("e4m3 hybrid", "fp8"),
        ("FP8 blockwise", "fp8"), ("mxfp8", "fp8"), ("NVFP4", "fp4"), ("native_amp", "16bit"), ("O2", "16bit"), ("torch.bfloat16", "16bit"),
        ("bf16 (no fp8)", "16bit"), ("bf16 with 8-bit Adam", "16bit"), ("bf16, fp8 optimizer states", "16bit"),
    ],
)  # fmt: skip
def test_precisions(text: str, meant: str) -> None:
    assert precision_of(text)[0] == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("fp8-cs", "tensorwise"), ("fp8 (current scaling)", "tensorwise"), ("fp8 (tensorwise, fp8 all-gather)", "tensorwise"),
        ("fp8-mx", "mxfp8"), ("MXFP8", "mxfp8"), ("fp8_sc", "blockwise"), ("FP8 blockwise", "blockwise"), ("fp8 ds", "delayed"),
        ("float8 rowwise", "rowwise"), ("fp8", None), ("fp8 (TransformerEngine)", None), ("NVFP4", None), ("bf16", None),
    ],
)  # fmt: skip
def test_recipes_of_8_bits(text: str, meant: str | None) -> None:
    """NVIDIA-NeMo/Megatron-Bridge scripts/performance: cs, mx, sc and ds are current, MX, sub-channel and delayed scaling."""
    assert precision_of(text)[1] == meant


def test_a_recipe_is_the_rows_or_the_stacks(tmp_path: Path) -> None:
    cells = {"gpu": "H100", "gpus": "8", "dp": "8", "tp": "1", "pp": "1", "global_batch": "64", "micro_batch": "1"}
    titan = one(tmp_path, **cells, framework="torchtitan", precision="fp8")
    assert (titan.stated_recipe, titan.recipe) == (None, "tensorwise")
    assert one(tmp_path, **cells, framework="torchtitan", precision="fp8 rowwise").recipe == "rowwise"
    assert one(tmp_path, **cells, framework="torchtitan", precision="bf16").recipe is None
    assert workload_document(titan)["training"].get("fp8_recipe") is None
    assert workload_document(one(tmp_path, **cells, framework="torchtitan", precision="fp8 rowwise"))["training"]["fp8_recipe"] == "rowwise"


@pytest.mark.parametrize("text", ["float32", "tf32", "int8", "unknown"])
def test_other_precisions_are_no_guess(text: str) -> None:
    with pytest.raises(CannotDescribe, match="is not supported; use bf16, fp16"):
        precision_of(text)


def test_yes_no_and_stages() -> None:
    assert [means_yes(text, True) for text in ("True", "yes (SDPA)", "no (fused)", "False", "0", "")] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert [zero_of(text) for text in ("ZeRO-3", "stage 1", "2")] == [3, 1, 2]
    assert [zero_of(text) for text in ("distributed optimizer", "dist-opt", "no distributed optimizer")] == [1, 1, 0]
    assert [zero_of(text) for text in ("none", "DDP", "FSDP", "ZeRO-1 (dist opt)", "Z2")] == [0, 0, 3, 1, 2]
    assert [zero_of(text) for text in ("FSDP1", "FSDP2", "fsdp-2", "FSDP (ZeRO-2)")] == [3, 3, 3, 2]  # versions are no stages
    assert [zero_of(text) for text in ("none", "DDP", "FSDP", "ZeRO-1 (dist opt)", "Z2", "FSDP2", "FSDP1")] == [0, 0, 3, 1, 2, 3, 3]
    texts = ("TRUE", "full", "False", "none (default)", "selective", "selective: mlp")
    assert [recompute_of(text, "megatron")[0] for text in texts] == ["full", "full", "none", "none", "attention", "none"]
    for wrong in (lambda: recompute_of("sometimes", "megatron"), lambda: zero_of("16"), lambda: zero_of("sometimes")):
        with pytest.raises(CannotDescribe):
            wrong()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("uniform", ("full", 0)), ("enabled", ("full", 0)), ("gradient_checkpointing=True", ("full", 0)), ("full recompute", ("full", 0)),
        ("activation checkpointing off", ("none", 0)), ("checkpointing disabled", ("none", 0)), ("recompute: none", ("none", 0)),
        ("gradient_checkpointing=False", ("none", 0)), ("w/o recompute", ("none", 0)), ("no recompute", ("none", 0)), ("-", ("none", 0)),
        ("full (block, 10)", ("full", 10)), ("block 4", ("full", 4)), ("full && export ACM=block && export ACL=21", ("full", 21)),
        ("null", ("none", 0)), ("-r 0 (recompute GELU)", ("none", 0)),
        ("gradient checkpointing=off", ("none", 0)), ("activation checkpointing: disabled", ("none", 0)), ("recompute: none", ("none", 0)),
        ("--recompute-granularity full", ("full", 0)), ("--recompute-activations", ("attention", 0)),
        ("recompute_granularity=selective", ("attention", 0)), ("recompute-granularity selective", ("attention", 0)),
        ("recompute attention", ("attention", 0)), ("full, block, num_layers=12", ("full", 12)),
        ("full, uniform, num_layers=12", ("full", 0)),
    ],
)  # fmt: skip
def test_what_is_recomputed_in_words(text: str, meant: tuple[str, int]) -> None:
    assert recompute_of(text, "megatron", 32) == meant


def test_a_number_of_layers_without_a_method_is_no_guess() -> None:
    """Oracle: Megatron-LM's --recompute-num-layers, which means the layers recomputed (block) or those of a group (uniform)."""
    with pytest.raises(CannotDescribe, match=r"which layers: write 'block, num_layers=12' if the first 12 of each stage are recomputed"):
        recompute_of("full, num_layers=12", "megatron", 32)


@pytest.mark.parametrize("text", ["offloaded", "recompute mlp", "one block in two", "only mlp", "12 layers", "partial", "sometimes"])
def test_words_that_only_begin_like_yes_or_no_are_no_guess(text: str) -> None:
    """Before, ``offloaded`` meant off, ``one`` meant on, and ``12`` meant 1."""
    with pytest.raises(CannotDescribe):
        recompute_of(text, "megatron")


def test_policies_of_maxtext_are_blocks_that_save_outputs(tmp_path: Path) -> None:
    """MaxText/layers/models.py, ``get_remat_policy``; what its policies of other layers name is no guess."""
    assert {recompute_of(policy, "jax") for policy in SAVED_LAYERS} == {("full", 0)}
    case = one(tmp_path, activation_checkpointing="save_out_proj")
    assert (case.recompute, case.saved_layers) == ("full", ("attention.output",))
    with pytest.raises(CannotDescribe, match="MaxText's policies"):
        recompute_of("save_dot_with_context_except_mlp", "jax")


def test_a_share_of_the_blocks_is_recomputed(tmp_path: Path) -> None:
    """torchtitan's and fms-fsdp's selective mode: of 32 blocks, 16 or 8; a step between those with none and with all."""
    texts = {
        "0.5": 16,
        ".25": 8,
        "50%": 16,
        "1/2": 16,
        "1 of 4": 8,
        "every 2nd layer": 16,
        "selective (1 of 2 blocks)": 16,
        "selective (every other layer)": 16,
        "selective every 2": 16,
    }
    assert {text: recompute_of(text, "fsdp2", 32) for text in texts} == {text: ("full", blocks) for text, blocks in texts.items()}
    assert [recompute_of(text, "fsdp2", 32) for text in ("100%", "0.01", "selective every 1")] == [
        ("full", 0),
        ("none", 0),
        ("full", 0),
    ]
    staged = one(tmp_path, activation_checkpointing="1/2", pp="4", dp="2", framework="torchtitan")
    assert (staged.recompute, staged.recomputed_layers) == ("full", 4)
    for predict in (closed_form.predict, engine.predict):
        none, half, full = (predict(one(tmp_path, activation_checkpointing=text), defaults()).step_time for text in ("none", "1/2", "full"))
        assert half == pytest.approx((none + full) / 2, rel=0.03)


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("seq_len", "4k", 4096), ("seq_len", "32K tokens", 32768), ("step_time_s", "2900 ms", 2.9), ("step_time_s", "3.2 s", 3.2),
        ("step_time_s", "~3.3", 3.3), ("step_time_s", "3.3 \u00b1 0.1", 3.3), ("gpus", "16 (2x8)", 16),
        ("tokens_per_s_per_gpu", "9.8k", 9800),
        ("tokens_per_s_per_gpu", "9,800 tok/s/GPU", 9800), ("global_batch", "128 seqs", 128), ("global_batch", "524288 tokens", 128),
        ("memory_peak_GiB_reported", "61 GiB", 61.0), ("memory_peak_GiB_reported", "64 GB", 64e9 / 2**30),
        ("memory_peak_GiB_reported", "61,440 MiB", 60.0), ("memory_peak_GiB_reported", "61000 MB", 61e9 / 2**30),
        ("global_batch", "4M tokens", 1024), ("global_batch", "0.5M tokens", 128), ("params", "175B", 175e9),
    ],
)  # fmt: skip
def test_numbers_with_units(column: str, text: str, value: float) -> None:
    """K of a sequence is 1,024; of 4 Mi tokens only powers of two are whole sequences of 4,096."""
    reading = read_cell(column, text, 4096)
    assert reading is not None and reading.value == pytest.approx(value)
    assert text in reading.words


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("seq_len", "4096 bytes"), ("step_time_s", "3,3"), ("step_time_s", "2.9 h"), ("gpus", "16k"), ("global_batch", "1000 tokens"),
        ("tp", "2x"), ("step_time_s", "-1"), ("step_time_s", "1e400"), ("step_time_s", "2.9 3.0"), ("step_time_s", "2.9-3.1"),
    ],
)  # fmt: skip
def test_numbers_with_two_meanings_stay_text(column: str, text: str) -> None:
    assert read_cell(column, text, 4096) is None


def test_a_number_with_a_unit_is_noted(tmp_path: Path) -> None:
    plain, worded = one(tmp_path), one(tmp_path, seq_len="8k", global_batch="1M tokens", step_time_s="14,000 ms")
    assert (worded.seq, worded.global_batch, worded.measured) == (plain.seq, plain.global_batch, plain.measured)
    assert set(worded.assumptions) - set(plain.assumptions) == {
        "seq_len 8,192 by '8k'", "global_batch 128 by '1M tokens'", "step_time_s 14 by '14,000 ms'",
    }  # fmt: skip


def test_dashes_and_words_for_success(tmp_path: Path) -> None:
    dashes = one(tmp_path, pp="-", cp="none", precision="-", zero_stage="-", status="-", activation_checkpointing="-")
    assert (dashes.pipeline, dashes.context, dashes.precision, dashes.recompute) == (1, 1, "16bit", "none")
    assert [one(tmp_path, status=word).row.status for word in ("OK", "Success", "completed", "-", "")] == ["ok"] * 5
    assert one(tmp_path, status="OOM").row.status == "OOM"


def test_half_precision_by_any_name() -> None:
    assert all(is_float16(text) for text in ("fp16", "FP16", "float16", "torch.float16", "half", "16-mixed", "fp16 O2", "O1"))
    assert not any(is_float16(text) for text in ("bf16", "BF16-mixed", "bfloat16", "bf16 mixed", "fp8", ""))


def test_what_programs_write_into_empty_cells(tmp_path: Path) -> None:
    empty = one(tmp_path, activation_checkpointing="n/a", zero_stage="nan", cp="N/A", network="unknown")
    blank = one(tmp_path, activation_checkpointing="", zero_stage="", cp="", network="")
    assert (empty.recompute, empty.zero, empty.context, empty.nic) == (blank.recompute, blank.zero, blank.context, blank.nic)
    unsaid = table(tmp_path, [{"tp": "unknown"}])
    assert describe(read_table(unsaid)[0]) == "tp is 'unknown', not a whole number above 0"  # one rank is no guess to make


def test_four_bits_where_the_gpu_has_none(tmp_path: Path) -> None:
    described = [describe(read_table(table(tmp_path, [{"gpu": gpu, "precision": "nvfp4"}]))[0]) for gpu in ("H100", "B200")]
    assert described[0] == "H100-SXM5-80GB has no fp4"
    assert isinstance(described[1], Case) and described[1].precision == "fp4"


@pytest.mark.parametrize(
    ("framework", "family", "stage"),
    [
        ("torchtune", "fsdp2", 3), ("Axolotl (FSDP)", "fsdp1", 3), ("Lightning + DeepSpeed", "deepspeed", 0),
        ("GPT-NeoX 2.0", "deepspeed", 0),
        ("Levanter", "jax", 3),
        ("trl", "fsdp1", 3), ("Megatron-LM", "megatron", 0),
    ],
)  # fmt: skip
def test_frameworks_and_the_stage_that_goes_without_saying(tmp_path: Path, framework: str, family: str, stage: int) -> None:
    case = one(tmp_path, framework=framework, zero_stage="", fsdp_mode="")
    assert (case.family, case.zero) == (family, stage)
    assert ("zero_stage 3" in case.assumptions) is (stage == 3)
    assert one(tmp_path, framework=framework, zero_stage="0").zero == 0


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("8x NVIDIA H200 141GB HBM3e", "H200-SXM-141GB"), ("nvidia h100 pcie", "H100-PCIe-80GB"), ("AMD Instinct MI355X OAM", "MI355X"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"), ("A800", "A800-SXM4-80GB"), ("H100", "H100-SXM5-80GB"), ("TPU v5p", None), ("80GB", None),
    ],
)  # fmt: skip
def test_gpus_by_what_people_call_them(name: str, chip: str | None) -> None:
    named_chip = chip_named(name)
    assert (named_chip.chip.name if named_chip else None) == chip
    assert named_chip is None or bool(named_chip.assumption) is (name not in ("A800", "H100"))


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"), ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"), ("Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"), ("NVIDIA GH200 120GB", "GH200-96GB"), ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA A40", "A40"), ("NVIDIA RTX A6000", "RTXA6000"), ("NVIDIA GeForce RTX 3090", "RTX3090"), ("Tesla T4", "T4"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"), ("Quadro RTX 8000", "QuadroRTX8000"), ("NVIDIA A10G", "A10G"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"), ("NVIDIA H200", "H200-SXM-141GB"), ("NVIDIA H100 80GB HBM2e", "H100-PCIe-80GB"),
        ("AMD Instinct MI250X", "MI250X-GCD"), ("NVIDIA L40", "L40"), ("NVIDIA A30", "A30"),
    ],
)  # fmt: skip
def test_gpus_as_torch_names_them(name: str, chip: str | None) -> None:
    """What ``torch.cuda.get_device_name`` and ``nvidia-smi -L`` print; neither memory nor the form of the board may change."""
    named_chip = chip_named(name)
    assert (named_chip.chip.name if named_chip else None) == chip


def test_memory_and_form_without_a_maker_s_order() -> None:
    meant = {"A100-40G": "A100-SXM4-40GB", "A100 SXM 40 GB": "A100-SXM4-40GB", "40GB A100 PCIe": "A100-PCIe-40GB", "2080 Ti": "RTX2080Ti"}
    meant |= {"16GB V100 PCIe": "V100-PCIe-16GB", "V100 PCIe 32 GB": "V100-PCIe-32GB", "A100-80": "A100-SXM4-80GB"}
    meant |= {"A100 SXM 40": "A100-SXM4-40GB", "V100-32": "V100-SXM2-32GB", "H100 80": "H100-SXM5-80GB"}
    assert {name: named_chip.chip.name for name in meant if (named_chip := chip_named(name))} == meant


def test_an_unknown_board_is_answered_with_those_of_its_number() -> None:
    """Those nearest to its form and memory first; spelling alone suggested the V100 of 16 GB for an H100 of 96 GB."""
    assert similar_chips("H100 96GB")[0] == "H100-SXM5-96GB-HBM2e"
    assert similar_chips("8x A100 64GB")[0] == "A100-SXM4-80GB"
    assert similar_chips("A800 PCIe 80GB") == ["A800-SXM4-80GB"]
    assert similar_chips("H10O")[0] == "H100-SXM5-80GB"


@pytest.mark.parametrize(
    ("text", "each"),
    [
        ("InfiniBand NDR400, 8 rails", 400.0), ("4x HDR200 IB", 100.0), ("25GbE", 25 / 8), ("EFA 3200 Gbps", 400.0), ("NDR", 400.0),
        ("400 Gbps per GPU", 400.0), ("1600 Gbps per node RoCE", 200.0), ("Omni-Path 4x100 Gbps per node", 50.0),
        ("3.2 Tbps", 400.0), ("IB HDR 200Gb/s (1 per node)", 25.0), ("ConnectX-6 200G, four per node", 100.0),
        ("one 200 Gb/s NIC per node", 25.0), ("Spectrum-X 400GbE", 400.0), ("EFA 400 Gbps (p4d)", 50.0),
        ("8x HDR InfiniBand 200 Gbps per node, three-level fat tree", 200.0), ("RoCE", None), ("3200", None),
        ("HDR100", 100 / 8), ("4x NDR200", 100.0), ("NDR", 400.0), ("dual-rail EDR", 25.0), ("Slingshot-11 4x200", 100.0),
        ("4x Slingshot 11", 100.0), ("HDR200 InfiniBand x2", 50.0), ("IB 200Gb x4", 100.0), ("RoCE 400G", 400.0),
        ("Slingshot-11 4x200G", 100.0), ("EFA 4x100G", 50.0), ("32x100G EFA", 400.0), ("2x10GbE", 2.5), ("4\u00d7200 Gbit/s", 100.0),
        ("400 Gbps EFA", 50.0), ("p4d 400 Gbps ENA/EFA", 50.0), ("EFA v1 400 Gbps", 50.0), ("3.2T IB", 400.0), ("3,200 Gbps", 400.0),
        ("8 mlx5 NICs at 400 Gb/s", 400.0), ("single 200 Gbps HDR", 25.0), ("one 400G NIC per GPU", 400.0), ("400 Gbps/GPU", 400.0),
        ("2x 400G per GPU", 800.0), ("8x 400G NICs (1 per GPU)", 400.0),
        ("50 GB/s", 400.0), ("25 GB/s per GPU", 200.0), ("8x 25 GB/s", 200.0), ("100 GB/s per node", 100.0),  # bytes
        ("NVLink 900 GB/s", None), ("NVLink 4.0 900 GB/s + IB NDR 400", 400.0), ("NVLink4 + 8x400G IB", 400.0), ("28.8 Tb/s NVL72", None),
        ("PCIe 4.0 x16", None), ("PCIe Gen4 x16 + 100GbE", 12.5), ("PCIe Gen5 x16, 400G NDR", 400.0),
        ("8x400G compute, 2x200G storage", 400.0), ("2x200G storage, 8x400G compute", 400.0),
        ("Storage: 2x ConnectX-7 NDR 400Gb/s, Compute: 4x ConnectX-7 NDR 400Gb/s, Management: 100Gb/s Ethernet", 200.0),
        ("400 Gbps/node", 50.0), ("800Gb/s per server", 100.0), ("400G per node", 50.0), ("800 Gbps total", 100.0),
        ("100G per GPU", 100.0), ("100 Gbit/s per GPU", 100.0), ("50Gbps/GPU", 50.0), ("12.5 Gbps per GPU", 12.5),
        ("25.6 Tbps fat-tree, 400G per GPU", 400.0), ("200 Gbps per GPU pair", 100.0), ("1 NIC per 2 GPUs, 200 Gbps", 100.0),
        ("Slingshot 11 200 Gbps", 200.0), ("ConnectX 7 400 Gb/s", 400.0), ("BlueField 3 400G", 400.0), ("one HDR200 NIC per node", 25.0),
        ("NVLink 900 GB/s + InfiniBand 400 Gb/s", 400.0), ("NVSwitch; 8x HDR InfiniBand", 200.0), ("NVLink 900 GB/s", None),
        ("8x IB NDR (3200 Gbps)", 400.0), ("50 GB/s per GPU", 400.0), ("Slingshot 4x25GB/s", 100.0), ("NDR 400GB/s", 400.0),
        ("800 Gbps", 100.0), ("XDR 800 Gbps", 800.0), ("InfiniBand EDR 4X", 100 / 8), ("HDR 4x", 200.0), ("8x NDR 4x", 400.0),
        ("4X HDR InfiniBand", 100.0), ("Slingshot 200 Gbps", 200.0), ("4xNDR", 200.0), ("4xHDR200", 100.0), ("2xHDR", 50.0),
        ("800Gbps IB per node", 100.0), ("Omni-Path 100", 12.5), ("2x Intel OPA-100", 25.0), ("Omni-Path", None),
        ("8 NICs of 200 Gbps per node", 200.0), ("InfiniBand 800 Gbps", 100.0), ("400Gb/s InfiniBand per GPU", 400.0),
    ],
)  # fmt: skip
def test_networks_in_words(text: str, each: float | None) -> None:
    named = chip_named("H100")
    assert named is not None
    rate, is_stated = nic_of(text, named.chip, None)
    assert is_stated is (each is not None)
    assert rate == pytest.approx((each or 400.0) * 1e9 / 8)


def test_no_nic_is_faster_than_its_slot() -> None:
    """PCIe 4.0 beside A100s has 256 Gbps: clusters of "800 Gbps InfiniBand" have four links of 200 on each node."""
    named = chip_named("A100")
    assert named is not None
    rates = [nic_of(text, named.chip, None)[0] * 8 / 1e9 for text in ("InfiniBand 800 Gbps", "IB 400 Gbps", "InfiniBand 200 Gbps")]
    assert rates == pytest.approx([100.0, 50.0, 200.0])


@pytest.mark.parametrize(
    ("text", "each"), [("Slingshot 11", 100.0), ("HPE Slingshot-11", 100.0), ("4x Slingshot 11", 100.0), ("Slingshot 200 Gbps", 100.0)]
)
def test_two_dies_share_the_nic_of_their_card(text: str, each: float) -> None:
    """Frontier and LUMI-G: 4 NICs of 200 Gbps for 4 MI250X, which are 8 GPUs (OLCF's Frontier User Guide)."""
    named = chip_named("MI250X")
    assert named is not None
    assert nic_of(text, named.chip, None) == (pytest.approx(each * 1e9 / 8), True)


def test_a_model_by_its_name_alone_has_the_catalog_s_shape(tmp_path: Path) -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    case = one(tmp_path, model="Qwen/Qwen2.5-7B-Instruct", **blank)
    assert (case.shape.layers, case.shape.hidden, case.shape.groups) == (28, 3584, 4)
    assert one(tmp_path, seq_len="4,096").seq == 4096


VARIATIONS: dict[str, str] = {
    "gpu": "RTX 5090", "network": "25GbE", "node_type": "my box", "framework": "colossalai", "framework_version": "nightly",
    "precision": "float32", "tp": "two", "seq_len": "4k", "zero_stage": "ZeRO-3", "activation_checkpointing": "TRUE", "model": "",
    "flash_attention": "False", "status": "running?", "step_time_s": "3.2 s", "global_batch": "1023", "pp": "999", "gpus": "1e30",
    "dp": "-2", "compile": "maybe", "notes": "EP overlap on; no graphs",
}  # fmt: skip


def test_rows_that_nobody_expected_are_predicted_or_listed(tmp_path: Path) -> None:
    """Twenty rows, each odd in one cell: the counts add up, and each that is left out has its reason in the text."""
    path = table(tmp_path, [{name: value} for name, value in VARIATIONS.items()])
    validation = validate_tables([path])
    assert len(validation.scored) + len(validation.not_described) + len(validation.not_scored) == validation.row_count == len(VARIATIONS)
    text = llm_table(validation)
    assert all(one.reason in text for one in (*validation.not_described, *validation.not_scored))
    described = [name for name, row in zip(VARIATIONS, read_table(path), strict=True) if isinstance(describe(row), Case)]
    assert set(VARIATIONS) - set(described) == {"precision", "tp", "pp", "gpus"}


def test_a_note_after_a_gpu_is_no_part_of_its_name() -> None:
    named_chip = chip_named("RTX A6000 (NVLink bridge)")
    assert named_chip is not None
    assert (named_chip.chip.name, named_chip.assumption) == ("RTXA6000", "RTXA6000 by 'RTX A6000 (NVLink bridge)'")
    assert chip_named("some board (H100-like)") is None


@pytest.mark.parametrize(
    "name", ["8xH100", "8x H100", "H100 x8", "H100x8", "8 * H100-SXM", "8\u00d7H100 80GB", "HGX H100", "DGX H100 (x8)"]
)
def test_how_many_gpus_there_are_is_no_part_of_the_name(name: str) -> None:
    named_chip = chip_named(name)
    assert named_chip is not None and named_chip.chip.name == "H100-SXM5-80GB"
    others = {other: named_chip.chip.name for other in ("RTX 4090", "1x RTX 4090", "MI300X") if (named_chip := chip_named(other))}
    assert others == {"RTX 4090": "RTX4090", "1x RTX 4090": "RTX4090", "MI300X": "MI300X"}


def test_a_gpu_of_another_memory_is_another() -> None:
    """Vendors' data sheets: a V100 has 16 or 32 GB, an A100 of Leonardo 64; nvidia-smi calls a GH200 by its CPU's memory."""
    assert [chip_named(name) for name in ("A100 64GB", "NVIDIA A100-SXM-64GB", "H100 94GB", "H100-96GB")] == [None] * 4
    memory_by_name = {
        "V100-SXM2-16GB": 16,
        "v100-16gb": 16,
        "V100 32GB": 32,
        "A100 40GB": 40,
        "B200 192GB": 180,
        "NVIDIA GH200 480GB": 95,
        "H200 141GB": 141,
    }
    assert {name: named_chip.chip.memory / 2**30 for name in memory_by_name if (named_chip := chip_named(name))} == memory_by_name


@pytest.mark.parametrize(
    ("name", "assumed"), [("AMD Instinct MI250X", True), ("MI250X 128GB", True), ("4x MI250X", True), ("MI250X GCD", False)]
)
def test_a_die_of_an_mi250x_is_a_gpu(name: str, assumed: bool) -> None:
    """Frontier's and LUMI's guides: four modules are eight GPUs of 64 GB."""
    named_chip = chip_named(name)
    assert named_chip is not None and (named_chip.chip.name, named_chip.chip.memory) == ("MI250X-GCD", 64 * 2.0**30)
    assert named_chip.assumption == "a GPU is one of the two dies of an MI250X" * assumed


def test_what_is_offloaded_is_listed(tmp_path: Path) -> None:
    described = [describe(read_table(table(tmp_path, [{"offload": word}]))[0]) for word in ("cpu", "optimizer (NVMe)", "none", "no", "")]
    assert described[0] == "offload 'cpu' is not supported; only none, with all data on the GPU, is"
    assert isinstance(described[1], str) and all(isinstance(each, Case) for each in described[2:])
    four_bits, adapters = (describe(read_table(table(tmp_path, [{"class": word}]))[0]) for word in ("QLoRA", "LoRA"))
    assert four_bits == "QLoRA keeps weights in 4 bits, which is not supported; LoRA on 16-bit and 8-bit weights is"
    assert isinstance(adapters, Case) and adapters.lora


def test_strategies_of_torchs_fsdp(tmp_path: Path) -> None:
    """torch.distributed.fsdp.ShardingStrategy: gradients and states, what FULL_SHARD adds, and the same inside replicas."""
    inside = {"DeepSpeed ZeRO-2": 2, "zero=1": 1, "zero_stage_3": 3, "fsdp SHARD_GRAD_OP": 2, "FSDP NO_SHARD": 0, "FSDP": 3, "fsdp2": 3}
    assert {text: shards_of(text) for text in inside} == {text: Shards(stage) for text, stage in inside.items()}
    assert shards_of("hsdp zero2") == shards_of("_HYBRID_SHARD_ZERO2") == Shards(2, True)
    assert shards_of("ShardingStrategy.SHARD_GRAD_OP") == Shards(2)
    assert shards_of("ShardingStrategy.SHARD_GRAD_OP") == shards_of("FSDP shard_grad_op") == Shards(2)
    assert [shards_of(text) for text in ("full shard", "FSDP: Hybrid Sharding", "FSDP+DP")] == [Shards(3), Shards(3, True), None]
    stages = [shards_of(text) for text in ("ZeRO-1", "zero stage 3", "distributed optimizer (recipe)", "")]
    assert stages == [Shards(1), Shards(3), Shards(1), None]
    cases = {
        mode: one(tmp_path, framework="FSDP", fsdp_mode=mode, zero_stage="") for mode in ("FULL_SHARD, mixed", "SHARD_GRAD_OP", "NO_SHARD")
    }
    assert [case.zero for case in cases.values()] == [3, 2, 0]
    assert shards_of("no distributed optimizer") is None
    assert {shards_of(text) for text in ("full", "fully sharded", "Yes", "true")} == {shards_of("full_shard")} == {Shards(3)}
    assert {shards_of(text) for text in ("fully-sharded", "full (8 ranks)", "yes; FSDP2")} == {Shards(3)}
    assert {shards_of(text) for text in ("sharded optimizer", "fully replicated", "full replication", "on demand")} == {None}
    assert shards_of("hybrid") == Shards(3, True) and shards_of("off") is shards_of("false") is None
    hybrid = {"framework": "FSDP", "fsdp_mode": "HYBRID_SHARD", "zero_stage": "3"}
    assert (one(tmp_path, **hybrid).zero, one(tmp_path, **hybrid).replicas) == (3, 1), "one node is one replica"
    nodes = {"nodes": "4", "gpus": "32", "dp": "16", "tp": "2"}
    case = one(tmp_path, **hybrid, **nodes)
    assert (case.replicas, case.shard_ranks) == (4, 4) and "4 replicas, each sharded over the 4 data ranks of a node" in case.assumptions
    assert workload_document(case)["training"]["parallel"]["replicate"] == 4
    staged = one(tmp_path, **hybrid, **nodes | {"pp": "2", "dp": "8"})
    assert staged.replicas == 1 and "sharded over all data-parallel ranks, not inside each replica" in staged.assumptions


def test_replicas_that_do_not_multiply_out_are_taken_from_the_gpus(tmp_path: Path) -> None:
    case = one(tmp_path, dp="4")
    assert case.data == 8 and "dp 8, from 8 GPUs; the row says 4" in case.assumptions
    assert not [note for note in one(tmp_path).assumptions if note.startswith("dp ")]


def test_sequences_beyond_the_positions_that_the_name_tells(tmp_path: Path) -> None:
    """Who measured them had positions for them; the simulator then says what memory they take."""
    case = one(tmp_path, model="gemma-2-9b", layers="", hidden="", heads="", kv_heads="", ffn_hidden="", vocab="", seq_len="16384")
    assert case.shape.max_seq == 16384 and "16,384 positions: the model has 8,192" in case.assumptions
    assert memory_need(case).nbytes > 0


@pytest.mark.parametrize(("name", "layers"), [("Gemma 3 27B", 62), ("google/gemma-3-27b-it", 62), ("gemma-3-27b-pt", 62), ("Phi 4", 40)])
def test_models_are_known_without_how_they_were_tuned(name: str, layers: int, tmp_path: Path) -> None:
    """Their configurations on the hub; the catalog calls one gemma-3-27b-pt."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    assert one(tmp_path, model=name, **blank).shape.layers == layers


def test_an_unknown_framework_is_noted(tmp_path: Path) -> None:
    assert "framework 'banana' is unknown; predicted as megatron-core" in one(tmp_path, framework="banana").assumptions
    assert "framework megatron-core" in one(tmp_path, framework="").assumptions
    for framework in ("NeMo/Megatron-Core", "Megatron-LM", "DeepSpeed"):
        assert not any(note.startswith("framework") for note in one(tmp_path, framework=framework).assumptions)


def test_a_negative_size_is_a_number_but_not_above_0(tmp_path: Path) -> None:
    assert describe(read_table(table(tmp_path, [{"seq_len": "-4096"}]))[0]) == "seq_len is '-4096', not a whole number above 0"


def test_gpus_of_the_table_have_the_figures_of_their_parts() -> None:
    """The catalog's figures have sources of their own. A board of 500 W keeps clocks that its part's peak does not show."""
    chips = {chip.name: chip for chip in _chips().values() if chip.part}
    parts = {name: load_part(Gpu, chip.part) for name, chip in chips.items()}
    assert len(chips) > 10
    for name, part in parts.items():
        chip = chips[name]
        assert chip.generation == part.architecture
        assert chip.memory_bandwidth == pytest.approx(part.memory_bandwidth, rel=0.005)
        if name != "H100-SXM5-96GB-HBM2e":
            assert chip.peak["16bit"] == pytest.approx(part.dense_16bit, rel=0.002)
        if name != "V100-PCIe-32GB":  # the catalog has the board of 16 GB
            assert chip.memory == pytest.approx(part.memory, rel=0.01)
