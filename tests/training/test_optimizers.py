"""Optimizers of decoders: bytes of their states by their papers, and Muon's products by hand."""

from __future__ import annotations

import pytest

from sim.analysis.memory import gpu_memory
from sim.cluster.gpu import memory_time
from sim.spec.library import load_hardware, load_workload
from sim.spec.optimizer import Optimizer
from sim.spec.parallel import MeshOptions
from sim.training.layouts.times import optimizer_time
from sim.training.muon import matrices, muon_work
from sim.training.step_plan import optimizer_work

GPU = load_hardware("hgx-h100").spec.groups[0].node.gpu


def test_states_of_a_decoder() -> None:
    """In bfloat16: Adam two copies; 8 bits two bytes and two scales of 4 B for 256; Muon one copy, but two of embedding and vectors."""
    wrong = []
    for name, expected in {
        "adam": lambda blocks, rest: 4.0 * (blocks + rest),
        "adam8bit": lambda blocks, rest: 2.0 * (1 + 4 / 256) * (blocks + rest),
        "muon": lambda blocks, rest: 2.0 * blocks + 4.0 * rest,
        "sgd": lambda blocks, rest: 0.0,
    }.items():
        options = [f"training.optimizer.name={name}", "training.stack.optimizer=fused"]
        workload = load_workload("llama-3.2-1b", options).spec
        blocks = sum(count * inner * outer for (inner, outer), count in matrices(workload.model).items())
        expected_bytes = expected(blocks, workload.model.parameters - blocks)
        if gpu_memory(workload, GPU).optimizer_state != pytest.approx(expected_bytes, rel=1e-9, abs=1):
            wrong.append((name, gpu_memory(workload, GPU).optimizer_state, expected_bytes))
    assert not wrong
    assert 0 < Optimizer(name="adafactor").state_width(4.0) < 0.01


def newton_schulz_flop(inner: int, outer: int) -> float:
    """Return the FLOP to orthogonalize one matrix: five iterations of ``A = X X^T; X = a X + (b A + c A A) X``."""
    short, long = sorted((inner, outer))
    return 5 * (4.0 * short**2 * long + 2.0 * short**3)


def test_muon_multiplies_matrices() -> None:
    """Ten matrices of m x m take ``10 x 5 x 6 m^3`` FLOP; half of them, half the time; a GPU is at its peak at best."""
    assert newton_schulz_flop(64, 64) == 5 * 6 * 64**3
    assert newton_schulz_flop(64, 256) == newton_schulz_flop(256, 64) == 5 * (4 * 64**2 * 256 + 2 * 64**3)
    muon = load_workload("llama-3.2-1b", ["training.optimizer.name=muon"]).spec
    adam = load_workload("llama-3.2-1b").spec
    flop = sum(count * newton_schulz_flop(*shape) for shape, count in matrices(muon.model).items())
    assert sum(matrices(muon.model).values()) == 16 * 4
    work = muon_work(muon, GPU)
    assert flop / GPU.peak["bf16"] < work.time < 5 * flop / GPU.peak["bf16"]
    assert muon_work(muon, GPU, 0.5).time == pytest.approx(work.time / 2)
    assert muon_work(adam, GPU).time == 0
    assert optimizer_work(muon, GPU).time > work.time


def test_adafactor_moves_more_than_sgd_in_layouts_too() -> None:
    """Its update is written, then read again with the weight once its norm is known: three more passes of 32 bits."""

    def seconds(name: str) -> float:
        options = [f"training.optimizer.name={name}", "training.stack.optimizer=fused"]
        workload = load_workload("llama-3.2-1b", options).spec
        return optimizer_time(workload, GPU, MeshOptions(framework="fsdp2", source={"*": "a test"}), 1e9, 100)[0]

    assert seconds("adafactor") - seconds("sgd") == pytest.approx(memory_time(3 * 4e9, GPU), rel=0.02)
