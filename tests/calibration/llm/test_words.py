"""Oracles: what such words mean to whoever writes them; every variation of a table is predicted or listed, and none aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.llm.case import Case, describe
from calibration.llm.chips import chip_named
from calibration.llm.engine import workload_document
from calibration.llm.network import nic_of
from calibration.llm.shapes import CannotDescribe
from calibration.llm.table import read_table
from calibration.llm.validate import llm_table, validate_tables
from calibration.llm.words import SAVED_LAYERS, Shards, means_yes, precision_of, recompute_of, shards_of, zero_of
from tests.calibration.llm.tables import table
from tests.calibration.llm.test_case import one


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("bf16-mixed", "16bit"), ("BF16 (AMP)", "16bit"), ("float16", "16bit"), ("16-true", "16bit"), ("e4m3 hybrid", "fp8"),
        ("FP8 blockwise", "fp8"), ("mxfp8", "fp8"), ("NVFP4", "fp4"),
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
    texts = ("TRUE", "full", "False", "none (default)", "selective", "selective: mlp", "selective (every 2nd layer)")
    assert [recompute_of(text, "megatron")[0] for text in texts] == ["full", "full", "none", "none", "attention", "none", "attention"]
    for wrong in (lambda: recompute_of("sometimes", "megatron"), lambda: zero_of("FSDP")):
        with pytest.raises(CannotDescribe):
            wrong()


def test_policies_of_maxtext_are_blocks_that_save_outputs(tmp_path: Path) -> None:
    """MaxText/layers/models.py, ``get_remat_policy``; what its policies of other layers name is no guess."""
    assert {recompute_of(policy, "jax") for policy in SAVED_LAYERS} == {("full", 0)}
    case = one(tmp_path, activation_checkpointing="save_out_proj")
    assert (case.recompute, case.saved_layers) == ("full", ("attention.output",))
    with pytest.raises(CannotDescribe, match="MaxText's policies"):
        recompute_of("save_dot_with_context_except_mlp", "jax")


def test_a_share_of_the_blocks_is_no_guess() -> None:
    for text in ("0.5", ".25", "50%"):
        with pytest.raises(CannotDescribe, match="share of the blocks"):
            recompute_of(text, "megatron")


def test_what_programs_write_into_empty_cells(tmp_path: Path) -> None:
    empty = one(tmp_path, activation_checkpointing="n/a", zero_stage="nan", cp="N/A", network="unknown")
    blank = one(tmp_path, activation_checkpointing="", zero_stage="", cp="", network="")
    assert (empty.recompute, empty.zero, empty.context, empty.nic) == (blank.recompute, blank.zero, blank.context, blank.nic)
    unsaid = table(tmp_path, [{"tp": "unknown"}])
    assert describe(read_table(unsaid)[0]) == "tp is 'unknown', not a number above 0"  # one rank is no guess to make


def test_four_bits_where_the_gpu_has_none(tmp_path: Path) -> None:
    described = [describe(read_table(table(tmp_path, [{"gpu": gpu, "precision": "nvfp4"}]))[0]) for gpu in ("H100", "B200")]
    assert described[0] == "H100-SXM5-80GB has no fp4"
    assert isinstance(described[1], Case) and described[1].precision == "fp4"


@pytest.mark.parametrize(
    ("framework", "family", "stage"),
    [
        ("torchtune", "fsdp2", 3), ("Axolotl (FSDP)", "fsdp1", 3), ("Lightning + DeepSpeed", "deepspeed", 0), ("Levanter", "jax", 0),
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
    ("text", "each"),
    [
        ("InfiniBand NDR400, 8 rails", 400.0), ("4x HDR200 IB", 100.0), ("25GbE", 25 / 8), ("EFA 3200 Gbps", 400.0), ("NDR", 400.0),
        ("400 Gbps per GPU", 400.0), ("1600 Gbps per node RoCE", 200.0), ("RoCE", None), ("3200", None),
    ],
)  # fmt: skip
def test_networks_in_words(text: str, each: float | None) -> None:
    named = chip_named("H100")
    assert named is not None
    rate, is_stated = nic_of(text, named.chip, None)
    assert is_stated is (each is not None)
    assert rate == pytest.approx((each or 400.0) * 1e9 / 8)


def test_a_model_by_its_name_alone_has_the_catalogue_s_shape(tmp_path: Path) -> None:
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
    assert set(VARIATIONS) - set(described) == {"precision", "tp", "seq_len", "pp", "gpus"}


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
    assert [chip_named(name) for name in ("V100-SXM2-16GB", "v100-16gb", "A100 64GB", "H100 94GB")] == [None] * 4
    memory_by_name = {"V100 32GB": 32, "A100 40GB": 40, "B200 192GB": 180, "NVIDIA GH200 480GB": 95, "H200 141GB": 141}
    assert {name: named_chip.chip.memory / 2**30 for name in memory_by_name if (named_chip := chip_named(name))} == memory_by_name


def test_what_is_offloaded_is_listed(tmp_path: Path) -> None:
    described = [describe(read_table(table(tmp_path, [{"offload": word}]))[0]) for word in ("cpu", "optimizer (NVMe)", "none", "no", "")]
    assert described[0] == "offload 'cpu' is not supported; only none, with all data on the GPU, is"
    assert isinstance(described[1], str) and all(isinstance(each, Case) for each in described[2:])
    four_bits, adapters = (describe(read_table(table(tmp_path, [{"class": word}]))[0]) for word in ("QLoRA", "LoRA"))
    assert four_bits == "QLoRA keeps weights in 4 bits, which is not supported; LoRA on 16-bit and 8-bit weights is"
    assert isinstance(adapters, Case) and adapters.lora


def test_strategies_of_torchs_fsdp(tmp_path: Path) -> None:
    """torch.distributed.fsdp.ShardingStrategy: gradients and states, what FULL_SHARD adds, and the same inside replicas."""
    assert shards_of("ShardingStrategy.SHARD_GRAD_OP") == Shards(2)
    assert (shards_of("ZeRO-1"), shards_of("")) == (None, None)
    cases = {
        mode: one(tmp_path, framework="FSDP", fsdp_mode=mode, zero_stage="") for mode in ("FULL_SHARD, mixed", "SHARD_GRAD_OP", "NO_SHARD")
    }
    assert [case.zero for case in cases.values()] == [3, 2, 0]
    hybrid = one(tmp_path, framework="FSDP", fsdp_mode="HYBRID_SHARD", zero_stage="3")
    assert hybrid.zero == 3 and "sharded over all data-parallel ranks, not inside each replica" in hybrid.assumptions


def test_replicas_that_do_not_multiply_out_are_taken_from_the_gpus(tmp_path: Path) -> None:
    case = one(tmp_path, dp="4")
    assert case.data == 8 and "dp 8, as 8 GPUs leave it: the row says 4" in case.assumptions
    assert not [note for note in one(tmp_path).assumptions if note.startswith("dp ")]


def test_sequences_beyond_the_positions_that_the_name_tells(tmp_path: Path) -> None:
    """Who measured them had positions for them; the simulator then says what memory they take."""
    case = one(tmp_path, model="gemma-2-9b", layers="", hidden="", heads="", kv_heads="", ffn_hidden="", vocab="", seq_len="16384")
    assert case.shape.max_seq == 16384 and "16,384 positions: the model has 8,192" in case.assumptions
    assert case.memory_need.nbytes > 0


@pytest.mark.parametrize(("name", "layers"), [("Gemma 3 27B", 62), ("google/gemma-3-27b-it", 62), ("gemma-3-27b-pt", 62), ("Phi 4", 40)])
def test_models_are_known_without_how_they_were_tuned(name: str, layers: int, tmp_path: Path) -> None:
    """Their configurations on the hub; the catalogue calls one gemma-3-27b-pt."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    assert one(tmp_path, model=name, **blank).shape.layers == layers


def test_an_unknown_framework_is_noted(tmp_path: Path) -> None:
    assert "framework 'banana' is unknown; predicted as megatron-core" in one(tmp_path, framework="banana").assumptions
    assert "framework megatron-core" in one(tmp_path, framework="").assumptions
    for framework in ("NeMo/Megatron-Core", "Megatron-LM", "DeepSpeed"):
        assert not any(note.startswith("framework") for note in one(tmp_path, framework=framework).assumptions)


def test_a_negative_size_is_a_number_but_not_above_0(tmp_path: Path) -> None:
    assert describe(read_table(table(tmp_path, [{"seq_len": "-4096"}]))[0]) == "seq_len is '-4096', not a number above 0"
