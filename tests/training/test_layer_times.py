"""Are layer times those of the layer model, whatever was asked before? Oracle: `sim.cluster.gpu.layer_time`, layer by layer."""

from __future__ import annotations

import pytest

from sim.cluster.gpu import layer_time
from sim.spec.hardware import Gpu
from sim.spec.lengths import Lengths
from sim.spec.library import load_part, load_workload
from sim.spec.sections import with_fields
from sim.spec.workload import Workload
from sim.training.layer_times import layer_times
from sim.training.sequences import layers_run


def one_by_one(workload: Workload, gpu: Gpu) -> list[list[float]]:
    training, stack = workload.training, workload.layer_stack
    ways = (
        [layer_time(layer, gpu, training.precision, stack, training.batch, way) for layer in layers_run(workload)] for way in (False, True)
    )
    return [[kernels[place] for kernels in way] for way in ways for place in (0, 1)]


def moved(workload: Workload, part: str, **changed: object) -> Workload:
    training = workload.training
    if part == "stack":
        changed = {"stack": with_fields(training.stack, **changed)}
    return workload.with_training(**changed)


def unpadded(workload: Workload, mean: float) -> Workload:
    lengths = Lengths(mean=mean, square=mean**2, source="test")
    with_lengths = workload.model_copy(update={"dataset": workload.dataset.model_copy(update={"lengths": lengths})})
    return moved(with_lengths, "stack", unpadded=True)


V100 = load_part(Gpu, "v100-sxm2-16gb")
BERT = load_workload("bert-large-seq384").spec

WORKLOADS = {
    "as it is": BERT,
    "batch": moved(BERT, "training", batch=3),
    "precision": moved(BERT, "training", precision="amp_fp16"),
    "launches": moved(BERT, "stack", launch_cpu=BERT.training.stack.kernels.launch_cpu * 2),
    "user's factor": moved(BERT, "training", compute_factor=2.0),
    "stack's factor": moved(BERT, "stack", compute_factor=2.0),
    "fused": moved(BERT, "stack", elementwise_traffic=0.5),
    "composed": moved(BERT, "stack", composed_traffic=1.5),
    "half as long": unpadded(BERT, 0.5),
    "a third as long": unpadded(BERT, 1 / 3),
    "attention in one kernel": moved(BERT, "stack", score_passes=4.0),
    "another model": load_workload("gpt2").spec,
}
GPUS = {
    "as it is": V100,
    "memory": V100.model_copy(update={"memory_bandwidth": V100.memory_bandwidth / 2}),
    "peak": V100.model_copy(update={"peak": {kind: peak / 2 for kind, peak in V100.peak.items()}}),
    "spread": V100.model_copy(update={"compute_cv": 0.1, "persistent_cv": 0.1}),
}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("gpu", GPUS)
def test_times_are_those_of_the_layer_model(workload: str, gpu: str) -> None:
    """Every case after all others have been asked, so that each finds the answers to the others kept."""
    for other in WORKLOADS.values():
        for device in GPUS.values():
            layer_times(other, device)
    times = layer_times(WORKLOADS[workload], GPUS[gpu])
    assert list(map(list, times)) == one_by_one(WORKLOADS[workload], GPUS[gpu])


def test_what_changes_no_layer_is_not_worked_out_again() -> None:
    plain = layer_times(BERT, V100)
    for same in ("as it is", "launches", "user's factor"):
        assert layer_times(WORKLOADS[same], GPUS["spread"]) is plain
    assert layer_times(WORKLOADS["batch"], V100) is not plain


def test_layers_that_differ_in_name_only_may_differ_in_time() -> None:
    """A stack may fuse the casts of products that it names, by several parts of the name."""
    llama, h100 = load_workload("llama-3.2-1b").spec, load_part(Gpu, "h100-sxm5-80gb")
    in_fp8 = moved(llama, "training", precision="fp8")
    fused = moved(in_fp8, "stack", fused_casts=("attention.qkv",))
    for workload in (in_fp8, fused):
        assert list(map(list, layer_times(workload, h100))) == one_by_one(workload, h100)
    assert layer_times(fused, h100) != layer_times(in_fp8, h100)
