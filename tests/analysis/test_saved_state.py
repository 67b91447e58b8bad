"""How many bytes has a checkpoint, and who writes it? Oracle: the bytes per parameter that frameworks save, counted by hand."""

from __future__ import annotations

from sim.analysis.saved_state import saved_state
from sim.spec.library import load_workload


def test_bytes_of_a_parameter_and_writers() -> None:
    plain = load_workload("gpt2-xl", ["training.optimizer.name=adam"]).spec
    parameters = plain.model.parameters
    cases = [
        ([], 64, 12, 1),  # fp32 weights and two moments, by one rank
        (["training.optimizer.name=sgd"], 64, 4, 1),  # without momentum
        (["training.precision=bf16"], 8, 10, 1),  # weights of two bytes; states stay in fp32
    ]
    for sets, gpus, each, writers in cases:
        found = saved_state(load_workload("gpt2-xl", ["training.optimizer.name=adam", *sets]).spec, gpus)
        assert (found.nbytes, found.writers) == (each * parameters, writers), sets
        assert sum(found.parts.values()) == found.nbytes


def test_sharded_states_are_written_by_all_ranks_of_a_replica() -> None:
    base = ["training.stack=megatron-core", "training.parallel.tensor=8"]
    cases = [([], 8), (["training.parallel.pipeline=4"], 32), (["training.parallel.shard=optimizer"], 512)]
    for sets, writers in cases:
        found = saved_state(load_workload("llama-3.1-70b", [*base, *sets]).spec, 512)
        assert found.writers == writers, sets
        assert found.nbytes / load_workload("llama-3.1-70b").spec.model.parameters in (12.0, 14.0)
