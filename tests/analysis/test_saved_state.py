"""How many bytes has a checkpoint, and who writes it? Oracle: the bytes per parameter that frameworks save, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.analysis.memory import gpu_memory
from sim.analysis.saved_state import saved_state
from sim.spec.library import load_hardware, load_workload
from sim.study.whole_job import checkpoint_bytes


def test_bytes_of_a_parameter_and_writers() -> None:
    plain = load_workload("gpt2-xl", ["training.optimizer.name=adam"]).spec
    parameters = plain.model.parameters
    cases = [
        ([], 64, 12, 1),  # fp32 weights and two moments, by one rank
        (["training.optimizer.name=sgd"], 64, 4, 1),  # without momentum
        (["training.precision=bf16"], 8, 6, 1),  # weights of two bytes; torch.optim keeps states in the type of their parameter
    ]
    for sets, gpus, each, writers in cases:
        state = saved_state(load_workload("gpt2-xl", ["training.optimizer.name=adam", *sets]).spec, gpus, gpus // 8)
        assert (state.nbytes, state.writers) == (each * parameters, writers), sets
        assert sum(state.parts.values()) == state.nbytes


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16", "fp16"])
def test_states_are_saved_as_wide_as_they_are_held(precision: str) -> None:
    """Oracle: the optimizer state in GPU memory, which nothing shards (torch's Adam makes it with zeros_like of the parameter)."""
    workload = load_workload("gpt2-xl", ["training.optimizer.name=adam", f"training.precision={precision}"]).spec
    held = gpu_memory(workload, load_hardware("hgx-h100").spec.first_workers.node.gpu)
    assert saved_state(workload, 8, 1).parts["optimizer_state"] == pytest.approx(held.optimizer_state)


def test_adapters_are_saved_alone_and_frozen_weights_have_no_optimizer_state(tmp_path: Path) -> None:
    """Oracle: two factors of rank 8 next to a square product in each of 16 blocks are trained, counted by hand.

    PEFT's save_pretrained writes only adapters (docs/source/developer_guides/checkpoint.md); a restart reads the base model as well.
    Other frozen weights are part of the model's state and saved with it.
    """
    path = tmp_path / "adapted.yaml"
    path.write_text(
        "name: adapted\nmodel: {extends: llama-3.2-1b, lora: {rank: 8, targets: [attention.output]}}\n"
        "training: {optimizer: {name: adam}}\n",
        encoding="utf-8",
    )
    workload = load_workload(str(path), ["training.stack=megatron-core", "training.parallel.tensor=8"]).spec
    full = load_workload("llama-3.2-1b").spec.model.parameters
    trained = 16 * 8 * (2048 + 2048)
    state = saved_state(workload, 8, 1)
    assert state.parts == {"weights": 2 * trained, "master_weights": 4 * trained, "optimizer_state": 8 * trained}
    assert checkpoint_bytes(workload) == state.nbytes == 14 * trained
    assert state.bytes_per_node == pytest.approx(2 * full + 14 * trained) and state.bytes_per_gpu == pytest.approx(state.bytes_per_node / 8)
    sharded = load_workload(str(path), ["training.stack=torchtitan-2.x", "training.parallel.shard=parameters"]).spec
    assert saved_state(sharded, 8, 1).bytes_per_gpu == pytest.approx((4 * full + 12 * trained) / 8)
    frozen = load_workload("llama-3.2-1b", ["model.frozen=[tokens]", "training.optimizer.name=adam", "training.precision=fp32"]).spec
    assert checkpoint_bytes(frozen) == 4 * full + 8 * (full - 128256 * 2048)


def test_sharded_states_are_written_by_all_ranks_of_a_replica() -> None:
    base = ["training.stack=megatron-core", "training.parallel.tensor=8"]
    cases = [([], 8), (["training.parallel.pipeline=4"], 32), (["training.parallel.shard=optimizer"], 512)]
    for sets, writers in cases:
        state = saved_state(load_workload("llama-3.1-70b", [*base, *sets]).spec, 512, 64)
        assert state.writers == writers, sets
        assert state.nbytes / load_workload("llama-3.1-70b").spec.model.parameters in (12.0, 14.0)


def test_writers_are_where_a_replica_is_and_nodes_read_what_their_gpus_need() -> None:
    """Oracle: counted by hand on 64 nodes of 8 GPUs, for weights of 2 bytes a parameter and masters and moments of 12."""
    base = ["training.stack=megatron-core"]
    cases = [  # writers on a node, readers of a node, bytes a parameter that a node and a GPU need, as shares of the model
        ({"tensor": 8, "pipeline": 4}, 8, 8, 14 / 4, 14 / 32),  # one tensor group a node, of one stage
        ({"tensor": 4, "pipeline": 2}, 4, 4, 14 / 2, 14 / 8),  # two replicas a node: the first writes, both read the same
        ({"tensor": 8, "shard": "optimizer"}, 8, 8, 2 + 12 / 64, 2 / 8 + 12 / 512),  # weights are whole in each replica
        ({"shard": "parameters"}, 8, 8, 14 / 64, 14 / 512),
        ({"shard": "parameters", "replicate": 2}, 8, 8, 14 / 32, 14 / 256),  # the first half of the nodes writes
        ({"expert": 16}, 8, 8, 14 / 2, 14 / 16),
    ]
    for layout, writers, readers, of_node, of_gpu in cases:
        sets = [f"training.parallel.{key}={value}" for key, value in layout.items()]
        workload = load_workload("mixtral-8x7b" if "expert" in layout else "llama-3.1-70b", [*base, *sets]).spec
        state, parameters = saved_state(workload, 512, 64), workload.model.parameters
        assert state.nbytes == 14 * parameters
        assert (state.holders.writers_on_node, state.holders.shards_on_node) == (writers, readers), layout
        assert state.bytes_per_node == pytest.approx(of_node * parameters) and state.bytes_per_gpu == pytest.approx(of_gpu * parameters), (
            layout
        )
