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
    "node.gpu.source.memry=x": "node.gpu.source.memry: names no key of this block; did you mean 'memory'?",
    "node.nic.source={zzz: x}": "node.nic.source.zzz: names no key of this block; write a key of the block, or '*' for the rest",
    "node.storage.volume.max_iops=100 IOPS": "node.storage.volume.max_iops: 100 is below baseline_iops (3000); write at least that",
    "node.storage.volume.burst_iops=9000 IOPS": "node.storage.volume.burst_credits: is missing or zero, but burst_iops is not; "
    "write the operations of a full credit bucket",
    "price.date=tomorrow": "price.date: 'tomorrow' is not a date; write for example 2026-07-20 or 2026-07",
    "price.date=2026-13-01": "price.date: '2026-13-01' is not a date; write for example 2026-07-20 or 2026-07",
}


@pytest.mark.parametrize("override", HARDWARE)
def test_hardware_that_makes_no_sense(override: str) -> None:
    """``node.gpu_count=0`` leaves GPUs without a number too, which is the business of the link graph."""
    assert HARDWARE[override] in check_hardware(load_hardware("toy", [override]).spec)


WORKLOADS = {
    "training.batch=1001": "training.batch: 1001 samples per GPU are more than the data set's 1000; write at most that",
    "model.layers=[{name: a, op: gemm, forward: 1 FLOP}]": "model.layers: have no gradients, so there is nothing to train; "
    "write the elements of each gradient tensor",
    "training.stack.sparse_embeddings=true": "training.stack.sparse_embeddings: toy-net has no layer with rows and rows_per_sample, "
    "so nothing could travel by rows; write both for its embeddings, or leave sparse_embeddings out",
    "training.stack.sync_batch_norm=true": "training.stack.sync_batch_norm: toy-net has no BatchNorm layers to synchronise; leave it out",
    "training.stack.unpadded=true": "training.stack.unpadded: how long the sequences of pictures are is not known; write "
    "dataset.lengths={mean: ..., square: ..., source: ...}, shares of the longest, or leave unpadded out",
    "training.stack.score_passes=4": "training.stack.score_passes: toy-net has no attention of two products with a softmax between, "
    "which one kernel could hold; leave it out",
    "training.stack.length_imbalance=0": "training.stack.length_imbalance: padded sequences are all of one length; leave it out, "
    "or write unpadded: true",
    "model.layers=[{name: a, op: gemm, gradients: [110]}]": "model.layers: do no work: no layer has FLOP or bytes; "
    "write them, or have 'python -m sim extract' write the table",
    "model.parameters=120": "model.parameters: 120 are not the 110 of the layers' gradients and frozen tensors and of 'unused'; "
    "write parameters: 110, or unused: 10 for those that nothing trains",
    "model.unused=10": "model.parameters: 110 are not the 120 of the layers' gradients and frozen tensors and of 'unused'; "
    "write parameters: 120",
    "model.layers.1.gradients=[4];model.layers.1.frozen=[5]": "model.parameters: 110 are not the 109 of the layers' gradients and frozen "
    "tensors and of 'unused'; write parameters: 109, or unused: 1 for those that nothing trains",
    "model.layers.0.dtypes=[bf16];model.layers.1.dtypes=[bf16]": "training.precision: fp32, but the model's code makes its parameters "
    "bf16, and so computes in that; write bf16",
    "dataset.source={smples: x}": "dataset.source.smples: names no key of this block; did you mean 'samples'?",
}


@pytest.mark.parametrize("override", WORKLOADS)
def test_workloads_that_make_no_sense(override: str) -> None:
    assert check_workload(load_workload("toy-job", [override]).spec) == [WORKLOADS[override]]


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
