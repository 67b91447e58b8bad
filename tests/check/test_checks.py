"""Oracle: descriptions that are valid key by key but make no sense together, and the message each must give."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.check import check_hardware, check_part, check_workload, require
from sim.spec.hardware import Gpu
from sim.spec.library import load, load_hardware, load_workload
from sim.spec.yaml import SpecError


def test_the_toys_make_sense() -> None:
    machine, workload = load_hardware("toy"), load_workload("toy-job")
    assert check_hardware(machine.spec, machine.document) == []
    assert check_workload(workload.spec, workload.document) == []


HARDWARE = {
    "node.gpu_count=0": "node.gpu_count: no worker has a GPU; write at least 1 in one group of role worker",
    "groups.0.role=server": "node.gpu_count: no worker has a GPU; write at least 1 in one group of role worker",
    "node.gpu.source.memry=x": "node.gpu.source.memry: is not a key of this block; did you mean 'memory'?",
    "node.nic.source={zzz: x}": "node.nic.source.zzz: is not a key of this block; write a key of the block, or '*' for the rest",
    "node.storage.volume.max_iops=100 IOPS": "node.storage.volume.max_iops: 100 is below baseline_iops (3000); write at least that",
    "node.storage.volume.burst_iops=9000 IOPS": "node.storage.volume.burst_credits: is missing or zero although burst_iops is set; "
    "write the number of operations in a full credit bucket",
    "price.date=tomorrow": "price.date: 'tomorrow' is not a date; write for example 2026-07-20 or 2026-07",
    "price.date=2026-13-01": "price.date: '2026-13-01' is not a date; write for example 2026-07-20 or 2026-07",
}


@pytest.mark.parametrize("override", HARDWARE)
def test_hardware_that_makes_no_sense(override: str) -> None:
    """``node.gpu_count=0`` leaves GPUs without a number too, which is the business of the link graph."""
    assert HARDWARE[override] in check_hardware(load_hardware("toy", [override]).spec)


WORKLOADS = {
    "training.batch=100000000": "training.batch: 100000000 samples per GPU exceed the 1000 of the data set; write at most that",
    "training.batch=1001": "training.batch: 1001 samples per GPU exceed the 1000 of the data set; write at most that",
    "model.layers=[{name: a, op: gemm, forward: 1 FLOP}]": "model.layers: no layer has gradients, so there is nothing to train; "
    "write the number of elements of each gradient tensor",
    "training.stack.sparse_embeddings=true": "training.stack.sparse_embeddings: toy-net has no layer with rows and rows_per_sample, "
    "so no gradient can be exchanged by rows; write both for its embeddings, or leave sparse_embeddings out",
    "training.stack.sync_batch_norm=true": "training.stack.sync_batch_norm: toy-net has no BatchNorm layers to synchronize; leave it out",
    "training.stack.unpadded=true": "training.stack.unpadded: the sequence lengths of pictures are not specified; write "
    "dataset.lengths={mean: ..., square: ..., source: ...} as fractions of the longest, or leave unpadded out",
    "training.stack.score_passes=4": "training.stack.score_passes: toy-net has no attention that one kernel could fuse "
    "(no layer of it, nor two products around a softmax); leave it out",
    "training.stack.length_imbalance=0": "training.stack.length_imbalance: padded sequences all have the same length; leave it out, "
    "or write unpadded: true",
    "model.layers=[{name: a, op: gemm, gradients: [110]}]": "model.layers: no layer has FLOP or bytes; "
    "add them, or generate the table with 'python -m sim extract'",
    "model.parameters=120": "model.parameters: 120 differs from 110, the sum of the layers' gradients, frozen tensors and 'unused'; "
    "write parameters: 110, or unused: 10 for parameters that no layer uses",
    "model.unused=10": "model.parameters: 110 differs from 120, the sum of the layers' gradients, frozen tensors and 'unused'; "
    "write parameters: 120",
    "model.layers.1.gradients=[4];model.layers.1.frozen=[5]": "model.parameters: 110 differs from 109, the sum of the layers' "
    "gradients, frozen "
    "tensors and 'unused'; write parameters: 109, or unused: 1 for parameters that no layer uses",
    "model.layers.0.dtypes=[bf16];model.layers.1.dtypes=[bf16]": "training.precision: fp32, but the model's code creates bf16 parameters "
    "and therefore computes in bf16; write bf16",
    "dataset.source={smples: x}": "dataset.source.smples: is not a key of this block; did you mean 'samples'?",
}


@pytest.mark.parametrize("override", WORKLOADS)
def test_workloads_that_make_no_sense(override: str) -> None:
    assert check_workload(load_workload("toy-job", [override]).spec) == [WORKLOADS[override]]


def test_a_decoder_whose_layers_are_all_frozen_trains_nothing(library: Path) -> None:
    sizes = "{layers: 1, hidden: 8, heads: 1, ffn: 8, vocab: 8, activation: gelu, norm: layernorm, positions: none}"
    model = f"{{name: a, sequence: 8, source: x, frozen: [tokens, layers.0, norm, head], transformer: {sizes}}}"
    path = library / "workloads/frozen.yaml"
    path.write_text((library / "workloads/toy-job.yaml").read_text().replace("model: toy-net", f"model: {model}"))
    said = "model.frozen: all layers are frozen, so there is nothing to train; leave out those that train"
    assert said in check_workload(load_workload("frozen").spec)


def test_sources_may_speak_of_one_value_inside_a_key(library: Path) -> None:
    gpu = load(Gpu, library / "hardware/parts/gpus/toy-gpu.yaml")
    assert check_part(gpu.spec, gpu.document) == []


def test_problems_come_in_the_order_of_the_file(library: Path) -> None:
    path = library / "hardware/toy.yaml"
    text = path.read_text().replace("3 USD/h", "3000 USD/h").replace("25 Gbps", "25 Tbps").replace("0-1: 1", "0-9: 1")
    path.write_text(text)
    machine = load_hardware("toy")
    lines = [problem.removeprefix(f"{path}:").partition(":")[0] for problem in check_hardware(machine.spec, machine.document)]
    assert lines == ["7", "12", "17"]


def test_require_raises_all_problems_or_nothing() -> None:
    require([])
    with pytest.raises(SpecError) as caught:
        require(["a: wrong", "b: wrong"])
    assert caught.value.problems == ["a: wrong", "b: wrong"]


@pytest.mark.usefixtures("whole_catalog")
def test_scores_of_decoders_may_cross_memory() -> None:
    """A decoder's attention is one layer, which `layer_work` of sim/cluster/gpu.py gives as many passes."""
    assert check_workload(load_workload("llama-2-7b", ["training.stack.score_passes=16"]).spec) == []
