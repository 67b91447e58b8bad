"""What a workload means that says little: stack by layout, data and training of a decoder; own words always win."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec.input import Dataset
from sim.spec.library import load_part, load_workload
from sim.spec.yaml import SpecError

SHAPE = "{layers: 2, hidden: 64, heads: 2, ffn: 128, vocab: 100}"
SMALL = f"name: small\nmodel: {{name: small, transformer: {SHAPE}, sequence: 32, source: a test}}\n"


def written(folder: Path, text: str, name: str = "it.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_decoder_needs_no_more_than_its_shape(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, SMALL)).spec
    training = workload.training
    assert (training.batch, training.precision, training.optimizer.name) == (1, "bf16", "adam")
    assert (training.stack.name, workload.dataset.name, workload.input.num_workers) == ("torch-2.x-ddp", "tokens", 1)
    assert workload.dataset.prepared == workload.model.input == 16 * 32


def test_adamw_is_adam(tmp_path: Path) -> None:
    """The name that PyTorch and most configurations use; both have the same states, passes and kernels."""
    text = SMALL + "dataset: {samples: 6400}\ntraining: {batch: 8, optimizer: {name: adamw}}\n"
    assert load_workload(written(tmp_path, text)).spec.training.optimizer.name == "adam"


def test_the_stack_follows_the_layout(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    sharded = written(tmp_path, "extends: it.yaml\nname: sharded\ntraining: {parallel: {shard: parameters}}\n", "sharded.yaml")
    wrong = []
    for name, overrides, stack in (
        (path, [], "torch-2.x-ddp"),
        (path, ["training.parallel.tensor=2"], "torchtitan-2.x"),
        (path, ["training.parallel.tensor=2", "training.stack=megatron-core"], "megatron-core"),
        (path, ["training.stack.bucket_cap=1 MiB"], "torch-2.x-ddp"),
        (sharded, [], "torchtitan-2.x"),
        (sharded, ["training.parallel.shard=none"], "torch-2.x-ddp"),
    ):
        loaded_stack = load_workload(name, overrides).spec.training.stack
        if loaded_stack.name != stack:
            wrong.append((name, overrides, loaded_stack.name))
    assert not wrong
    assert load_workload(path, ["training.stack.bucket_cap=1 MiB"]).spec.training.stack.exchange.bucket_cap == 2**20


def test_own_words_win(tmp_path: Path) -> None:
    text = SMALL + "dataset: {samples: 6400}\ntraining: {batch: 8, optimizer: {name: sgd}, stack: torch-1.13-ddp}\n"
    workload = load_workload(written(tmp_path, text)).spec
    assert (workload.training.batch, workload.training.optimizer.name, workload.training.stack.name) == (8, "sgd", "torch-1.13-ddp")
    assert workload.dataset.samples == 6400 // 32, "the data set counts tokens"
    with pytest.raises(SpecError, match=r"training\.batch"):
        load_workload(written(tmp_path, SMALL + "training: {batch: none}\n"))


def test_a_stream_of_tokens_is_cut_into_sequences() -> None:
    stream = load_part(Dataset, "tokens")
    once, twice = stream.of_sequence(2048), stream.of_sequence(4096)
    assert once.of_sequence(4096) == twice == stream.of_sequence(3000).of_sequence(4096), "nothing is lost on the way"
    assert once.samples * once.sample == pytest.approx(stream.samples * stream.sample, rel=1e-6)
    assert once.prepared == 2048 * stream.prepared
    fixed = load_part(Dataset, "imagenet-1k")
    assert fixed.of_sequence(4096) is fixed


def test_the_sequence_derives_the_table_again() -> None:
    short, long = (load_workload("llama-3.1-405b", [f"model.sequence={tokens}"]).spec for tokens in (1024, 2048))
    linear = [sum(layer.forward for layer in workload.model.layers if layer.op == "gemm") for workload in (short, long)]
    square = [sum(layer.forward for layer in workload.model.layers if layer.op == "attention") for workload in (short, long)]
    assert (linear[1], square[1]) == (2 * linear[0], 4 * square[0])
    assert short.dataset.prepared * 2 == long.dataset.prepared
