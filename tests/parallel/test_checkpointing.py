"""Oracles: Korthikanti's table of what a block keeps, and the forward FLOP that is done again."""

from __future__ import annotations

from typing import Any

import pytest

from sim.analysis.kept_activations import kept_bytes
from sim.events import Cause
from sim.mesh import LayoutRun, run_layout
from sim.parallel.checkpointing import MODULES, checkpoint_count, discarded_shares, recomputed_pieces, restored_bytes
from sim.parallel.split import Unit, split
from sim.spec.library import load_hardware, load_workload
from sim.spec.parallel import Parallel
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from tests.parallel.torch_blocks import products_again


def trained(model: str = "llama-3.1-8b", **training: Any) -> Workload:
    values = {"batch": 1, "stack": "megatron-core", "precision": "bf16", "parallel.shard": "optimizer", **training}
    return load_workload(model, [f"training.{name}={value}" for name, value in values.items()]).spec


def block(workload: Workload) -> Unit:
    return next(unit for unit in split(workload.model, Parallel()) if unit.kind == "block")


def routed_block(workload: Workload) -> Unit:
    return [unit for unit in split(workload.model, Parallel()) if unit.kind == "block"][-1]


def run(**training: Any) -> LayoutRun:
    return run_layout(load_hardware("hgx-h100").spec, trained(**training))


def test_modules_are_those_of_a_block() -> None:
    """An MLP again is its three layers; of a block of experts the router and shared experts come with them."""
    dense, routed = block(trained()), block(trained("mixtral-8x7b"))
    names = {
        module: [
            [each.piece.layer.name.split(".", 2)[2] for each in recomputed_pieces(trained(recompute_modules=f"[{module}]").training, unit)]
            for unit in (dense, routed)
        ]
        for module in MODULES
    }
    feed = ["feed.gate_up", "feed.activation", "feed.down"]
    assert names["mlp"] == [feed, []]
    assert names["moe"] == [[], ["router", "experts.dispatch", "experts.gate_up", "experts.activation", "experts.down", "experts.combine"]]
    units = split(trained("nemotron-3-super-120b-a12b").model, Parallel())
    latent = next(unit for unit in units if any(piece.layer.name.endswith("experts_down") for piece in unit.pieces))
    again = recomputed_pieces(trained(recompute_modules="[moe]").training, latent)
    assert {"experts_down", "experts_up"} < {each.piece.layer.name.split(".", 2)[2] for each in again}
    assert names["moe_act"] == [[], ["experts.activation"]]
    assert names["layernorm"] == [[], ["ffn_norm"]]  # TELayerNormColumnParallelLinear runs the others (gpt_layer_specs.py: IdentityOp)
    assert names["core_attn"] == [["attention.core"]] * 2
    assert names["mla_up_proj"] == [[], []]  # Megatron refuses it without latent attention
    latent = trained("deepseek-v3", recompute_modules="[mla_up_proj]")
    again = recomputed_pieces(latent.training, block(latent))  # Megatron's qkv_up_proj_and_rope_apply
    up = ["attention.q_norm", "attention.q_up", "attention.kv_norm", "attention.kv_up", "attention.rope"]  # norms are joined with products
    assert [each.piece.layer.name.split(".", 2)[2] for each in again] == up
    without = trained("deepseek-v2-lite", recompute_modules="[mla_up_proj]")  # queries have no latents: their product runs again
    again = recomputed_pieces(without.training, block(without))
    assert [each.piece.layer.name.split(".", 2)[2] for each in again] == ["attention.q", *up[2:]]
    norms = trained("deepseek-v3", recompute_modules="[layernorm]")
    assert [each.piece.layer.name.split(".", 2)[2] for each in recomputed_pieces(norms.training, routed_block(norms))] == [
        "attention_norm",
        "ffn_norm",
    ]


@pytest.mark.parametrize(
    ("model", "training", "count"),
    [
        ("llama-3.1-8b", {}, 0),
        ("llama-3.1-8b", {"activation_checkpointing": "blocks"}, 1),
        ("llama-3.1-8b", {"activation_checkpointing": "selective"}, 1),
        ("llama-3.1-8b", {"recompute_modules": "[core_attn, mlp]"}, 2),
        ("llama-3.1-8b", {"recompute_modules": "[layernorm, moe_act, mla_up_proj]"}, 0),  # it has none of these
        ("mixtral-8x7b", {"recompute_modules": "[layernorm, moe_act, mlp]"}, 2),
        ("deepseek-v3", {"recompute_modules": "[layernorm, moe_act, mla_up_proj]"}, 4),  # two norms
    ],
)
def test_each_module_that_runs_again_is_a_checkpoint(model: str, training: dict[str, Any], count: int) -> None:
    workload = trained(model, **training)
    assert checkpoint_count(workload.training, routed_block(workload)) == count


def test_outputs_that_are_made_again_are_copied() -> None:
    """Bytes of a token (4-byte elements), once for each module that discards its output: norms, activations, and q, k and v."""
    workload = trained("deepseek-v3", recompute_modules="[layernorm, moe_act, mla_up_proj]")
    shape, tokens = workload.model.transformer, workload.model.sequence
    assert shape is not None and shape.mla is not None and shape.expert_ffn is not None and tokens is not None
    copied = dict(
        (piece.layer.name.split(".", 2)[2], nbytes / tokens / 4)
        for piece, nbytes in zip(routed_block(workload).pieces, restored_bytes(workload.training, routed_block(workload)), strict=True)
        if nbytes
    )
    heads = shape.heads * (2 * (shape.mla.nope_dim + shape.mla.rope_dim) + shape.mla.value_dim)
    assert copied == {
        "attention.q_down": shape.hidden,
        "attention.core": heads,
        "router": shape.hidden,
        "experts.down": shape.experts_per_token * shape.expert_ffn,
    }
    plain = trained("deepseek-v3", recompute_modules="[core_attn, mlp]")
    assert not any(restored_bytes(plain.training, routed_block(plain)))  # checkpoints that keep their output


def test_copies_of_outputs_take_memory_time() -> None:
    """Activations of experts again: their forward pass, and their output read and written, in 16 bits."""
    node = load_hardware("hgx-h100").spec.groups[0].node
    compute = {}
    for modules in ("[]", "[moe_act]"):
        given = {
            "stack.mesh.shares_device": "false",
            "compute_factor": 1.0,
            "stack.mesh.expert_host": "0 s",
            "stack.mesh.expert_launch": "0 s",
        }
        compute[modules] = run_layout(
            load_hardware("hgx-h100").spec, trained("mixtral-8x7b", **{"parallel.expert": 8}, recompute_modules=modules, **given)
        ).stalls[Cause.COMPUTE]
    workload = trained("mixtral-8x7b")
    (activation,) = [piece.layer for piece in block(workload).pieces if piece.layer.name.endswith("experts.activation")]
    moved = 32 * (activation.read + activation.write + 2 * activation.write) / 2
    expected = moved / (node.gpu.memory_bandwidth * node.gpu.memory_efficiency)
    assert compute["[moe_act]"] - compute["[]"] == pytest.approx(expected, rel=0.1)


def test_an_mlp_again_keeps_its_input_alone() -> None:
    """Korthikanti et al., arXiv 2205.05198: of a gated MLP 2 s b h stay; both sides (4 s b f) and their product (2 s b f) go."""
    plain, again = trained(), trained(recompute_modules="[mlp]")
    shape = plain.model.transformer
    assert shape is not None
    tokens = plain.model.sequence or 0
    assert kept_bytes(block(plain), plain) - kept_bytes(block(again), again) == pytest.approx(6.0 * tokens * shape.inner)
    assert sum(discarded_shares(["layernorm"], block(plain))) == pytest.approx(2 * 4.0 * tokens * shape.hidden)  # in elements of 4 bytes


def test_attention_again_frees_nothing() -> None:
    """Fused attention keeps q, k, v, which checkpointing keeps as well, and its result, which the product after it reads.

    Measured on Moonlight (calibration/records/llm/training.csv): 36.614 GB with core_attn recomputed, 36.618 GB without.
    """
    for model in ("llama-3.1-8b", "deepseek-v2-lite"):
        plain, again = trained(model), trained(model, recompute_modules="[core_attn]")
        assert kept_bytes(block(plain), plain) == pytest.approx(kept_bytes(block(again), again))


def test_attention_in_several_kernels_keeps_its_scores_unless_it_is_recomputed() -> None:
    """Korthikanti et al., arXiv 2205.05198: 5 a s^2 b with dropout, 2 a s^2 b without; selective recomputation frees all."""
    for model, each in (("gpt2", 5.0), ("llama-3.1-8b", 2.0)):
        fused, separate = trained(model), trained(model, **{"stack.score_passes": 16})
        again = trained(model, **{"stack.score_passes": 16}, activation_checkpointing="selective")
        shape, tokens = fused.model.transformer, fused.model.sequence or 0
        assert shape is not None
        kept = {name: kept_bytes(block(of), of) for name, of in (("fused", fused), ("separate", separate), ("again", again))}
        assert kept["separate"] - kept["fused"] == pytest.approx(each * shape.heads * tokens**2)
        assert kept["again"] == kept["fused"]


def test_a_part_of_the_blocks_costs_its_part() -> None:
    """8 of 32 blocks recomputed take a quarter of the time that all take, and free a quarter of the memory."""
    none, some, all_ = (
        run(activation_checkpointing=mode, recompute_blocks=count) for mode, count in (("none", 0), ("blocks", 8), ("blocks", 0))
    )
    assert some.step_time - none.step_time == pytest.approx((all_.step_time - none.step_time) / 4, rel=0.02)
    kept = [run_.memory[0].activations for run_ in (none, some, all_)]
    assert kept[0] - kept[1] == pytest.approx((kept[0] - kept[2]) / 4, rel=0.1)


def test_modules_cost_their_forward_and_free_what_they_save() -> None:
    plain, again = run(), run(recompute_modules="[mlp]")
    done = [sum(piece.layer.forward for piece in unit.pieces) for unit in plain.layout.units]
    mlp = sum(each.piece.layer.forward for unit in plain.layout.units for each in recomputed_pieces(again.workload.training, unit))
    share = mlp / (3 * sum(done))
    assert again.step_time / plain.step_time - 1 == pytest.approx(share, rel=0.2)
    assert again.memory_peak_bytes < plain.memory_peak_bytes


GATED = ("qkv", "output", "gate_up", "down")
"""Products of a block of Llama, in order."""


def names(workload: Workload) -> list[str]:
    return [each.piece.layer.name.split(".", 2)[2] for each in recomputed_pieces(workload.training, block(workload))]


def test_blocks_again_but_what_they_save() -> None:
    """Hand count of Llama 3.1 8B, 8,192 tokens: block input 2 s h, q, k and v 2 s (h + 2 h / 4), attention's projection 2 s h bytes."""
    saves = "[attention.qkv, attention.output]"
    again, some = trained(activation_checkpointing="blocks"), trained(activation_checkpointing="blocks", recompute_saves=saves)
    shape, tokens = again.model.transformer, again.model.sequence or 0
    assert shape is not None
    stream = 2.0 * tokens * shape.hidden
    assert kept_bytes(block(again), again) == stream
    assert kept_bytes(block(some), some) == stream * (1 + 1.5 + 1)
    left = set(names(again)) - set(names(some))
    assert left == {"attention.qkv", "attention.output"}
    flop = [sum(each.piece.layer.forward for each in recomputed_pieces(one.training, block(one))) for one in (again, some)]
    assert flop[0] - flop[1] == 2.0 * tokens * shape.hidden * (1.5 * shape.hidden + shape.hidden)


def test_what_blocks_save_costs_memory_and_spares_time() -> None:
    """Of 32 blocks each keeps q, k and v: 1.5 x 64 MiB; a block's share of products is not computed again."""
    again, some = (run(activation_checkpointing="blocks", recompute_saves=saves) for saves in ("[]", "[attention.qkv]"))
    tokens, shape = again.workload.model.sequence or 0, again.workload.model.transformer
    assert shape is not None
    assert some.memory_peak_bytes - again.memory_peak_bytes == pytest.approx(32 * 1.5 * 2.0 * tokens * shape.hidden, rel=0.01)
    product = 2.0 * tokens * 1.5 * shape.hidden**2 * 32
    assert again.step_time - some.step_time == pytest.approx(product / (0.7 * 989e12), rel=0.25)


def test_a_saved_sum_is_split_along_the_sequence() -> None:
    """Megatron's sequence parallelism: a rank has its tokens of what leaves attention; q, k and v are those of its heads."""
    for sequence, share in (("true", 1 / 4), ("false", 1.0)):
        given = {"activation_checkpointing": "blocks", "parallel.tensor": 4, "parallel.sequence": sequence}
        kept = []
        for saves in ("[]", "[attention.output]", "[attention.qkv]"):
            one = trained(**given, recompute_saves=saves)
            unit = next(unit for unit in split(one.model, one.training.parallel) if unit.kind == "block")
            kept.append(kept_bytes(unit, one))
        stream = 2.0 * (one.model.sequence or 0) * 4096
        assert kept[1] - kept[0] == stream * share
        assert kept[2] - kept[0] == stream * 1.5 / 4


def test_operators_keep_the_block_s_input_and_every_second_product() -> None:
    """Torchtitan's selective mode: the input, q and v of the joined product, attention, the gate of gate and up, the last product."""
    one = trained(activation_checkpointing="operators")
    shape, tokens = one.model.transformer, one.model.sequence or 0
    assert shape is not None
    joined = 1.5 * shape.hidden * 2 / 3 + shape.inner
    attention = shape.hidden + 2 * shape.heads  # one number of 32 bits a row and head
    assert kept_bytes(block(one), one) == pytest.approx(2.0 * tokens * (shape.hidden + joined + attention + shape.hidden))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activation_checkpointing": "blocks", "recompute_saves": "[out_proj]"}, "no block has a layer out_proj; write some of"),
        ({"activation_checkpointing": "none", "recompute_saves": "[attention.qkv]"}, "write activation_checkpointing: blocks"),
        ({"recompute_saves": "[attention.qkv]"}, "activation_checkpointing is model"),
    ],
)  # fmt: skip
def test_saves_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        run(**changes)


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("saves", [(), ("qkv",), ("qkv", "output"), ("down",)])
def test_torch_computes_the_same_products_again(saves: tuple[str, ...], early_stop: bool) -> None:
    """Oracle: torch.utils.checkpoint with the saved products' outputs as ``MUST_SAVE``, on the CPU."""
    pytest.importorskip("torch")
    wanted = [f"{'attention' if name in ('qkv', 'output') else 'feed'}.{name}" for name in saves]
    one = trained(
        activation_checkpointing="blocks", recompute_saves=f"[{', '.join(wanted)}]",
        **{"stack.mesh.early_stop": str(early_stop).lower()},
    )  # fmt: skip
    ours = [name.split(".")[1] for name in names(one) if name.split(".")[-1] in GATED]
    assert products_again(GATED, saves, early_stop) == ours
