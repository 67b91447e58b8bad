"""Oracles: Korthikanti's table of what a block keeps, and the forward FLOP that is done again."""

from __future__ import annotations

from typing import Any

import pytest

from sim.analysis.layout_memory import kept_bytes
from sim.mesh import LayoutRun, run_layout
from sim.parallel.checkpointing import MODULES, discarded, recomputed
from sim.parallel.split import Unit, split
from sim.spec.library import load_hardware, load_workload
from sim.spec.parallel import Parallel
from sim.spec.workload import Workload


def trained(model: str = "llama-3.1-8b", **training: Any) -> Workload:
    values = {"batch": 1, "stack": "megatron-core", "precision": "bf16", "parallel.shard": "optimizer", **training}
    return load_workload(model, [f"training.{name}={value}" for name, value in values.items()]).spec


def block(workload: Workload) -> Unit:
    return next(unit for unit in split(workload.model, Parallel()) if unit.kind == "block")


def run(**training: Any) -> LayoutRun:
    return run_layout(load_hardware("hgx-h100").spec, trained(**training))


def test_modules_are_those_of_a_block() -> None:
    """An MLP again is its three layers; of a block of experts the router and shared experts come with them."""
    dense, routed = block(trained()), block(trained("mixtral-8x7b"))
    names = {
        module: [
            [each.piece.layer.name.split(".", 2)[2] for each in recomputed(trained(recompute_modules=f"[{module}]").training, unit)]
            for unit in (dense, routed)
        ]
        for module in MODULES
    }
    feed = ["feed.gate_up", "feed.activation", "feed.down"]
    assert names["mlp"] == [feed, []]
    assert names["mlp_up"] == [feed[:2], []]
    assert names["moe"] == [[], ["router", "experts.dispatch", "experts.gate_up", "experts.activation", "experts.down", "experts.combine"]]
    assert names["moe_act"] == [[], ["experts.activation"]]
    assert names["layernorm"] == [["attention_norm", "ffn_norm"]] * 2
    assert names["core_attn"] == [["attention.core"]] * 2
    assert names["mla_up_proj"] == [[], []]


def test_an_mlp_again_keeps_its_input_alone() -> None:
    """Korthikanti et al., arXiv 2205.05198: of a gated MLP 2 s b h stay; both sides (4 s b f) and their product (2 s b f) go."""
    plain, again = trained(), trained(recompute_modules="[mlp]")
    shape = plain.model.transformer
    assert shape is not None
    tokens = plain.model.sequence or 0
    assert kept_bytes(block(plain), plain) - kept_bytes(block(again), again) == pytest.approx(6.0 * tokens * shape.inner)
    assert sum(discarded(["layernorm"], block(plain))) == pytest.approx(2 * 4.0 * tokens * shape.hidden)  # in elements of 4 bytes


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
    mlp = sum(each.piece.layer.forward for unit in plain.layout.units for each in recomputed(again.workload.training, unit))
    share = mlp / (3 * sum(done))
    assert again.step_time / plain.step_time - 1 == pytest.approx(share, rel=0.2)
    assert again.memory_peak_bytes < plain.memory_peak_bytes
