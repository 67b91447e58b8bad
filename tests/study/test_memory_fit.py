"""Does it say rightly what fits? Oracle: the memory of batches one by one."""

from __future__ import annotations

from sim.analysis.memory import gpu_memory
from sim.spec.library import load_hardware, load_workload
from sim.study.memory_fit import memory_problem, most_that_fits, shortage

GPU = load_hardware("p3.2xlarge").spec.groups[0].node.gpu
SMALL = load_hardware("p2.xlarge").spec.groups[0].node.gpu
VGG = load_workload("vgg16").spec


def with_batch(batch: int):
    return VGG.model_copy(update={"training": VGG.training.model_copy(update={"batch": batch})})


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    most = most_that_fits([GPU], VGG, ranks=8)
    assert gpu_memory(with_batch(most), GPU, ranks=8).total <= GPU.memory < gpu_memory(with_batch(most + 1), GPU, ranks=8).total
    assert memory_problem(GPU, with_batch(most), 8) is None
    said = memory_problem(GPU, with_batch(most + 1), 8)
    assert said is not None and f"the largest batch that fits is {most}" in said and "needs 16" in said


def test_the_smallest_gpu_decides() -> None:
    assert most_that_fits([GPU, SMALL], VGG, 8) == min(most_that_fits([gpu], VGG, 8) for gpu in (GPU, SMALL))


def test_where_nothing_fits_it_says_so() -> None:
    tiny = GPU.model_copy(update={"memory": 1e9})
    said = memory_problem(tiny, VGG, 1)
    assert said is not None and "not even one sample fits" in said
    assert most_that_fits([tiny], VGG, 1) == 1 and shortage(tiny, VGG, 1).startswith("does not fit: needs ")
