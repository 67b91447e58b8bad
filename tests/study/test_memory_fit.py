"""Does it say rightly what fits? Oracle: the memory of batches one by one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sim.analysis.memory import gpu_memory
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer, short_frozen_weights
from sim.study.layout_options import layout_of
from sim.study.memory_fit import largest_fitting_batch, memory_problem, memory_shortage
from sim.study.scenario import Scenario, answer

GPU = load_hardware("p3.2xlarge").spec.groups[0].node.gpu
SMALL = load_hardware("p2.xlarge").spec.groups[0].node.gpu
VGG = load_workload("vgg16").spec


def with_batch(batch: int):
    return VGG.with_training(batch=batch)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    most = largest_fitting_batch([GPU], VGG, ranks=8)
    assert gpu_memory(with_batch(most), GPU, ranks=8).total <= GPU.memory < gpu_memory(with_batch(most + 1), GPU, ranks=8).total
    assert memory_problem(GPU, with_batch(most), 8) is None
    said = memory_problem(GPU, with_batch(most + 1), 8)
    assert said is not None and f"the largest batch that fits is {most}" in said and "needs 16" in said


def test_the_smallest_gpu_decides() -> None:
    assert largest_fitting_batch([GPU, SMALL], VGG, 8) == min(largest_fitting_batch([gpu], VGG, 8) for gpu in (GPU, SMALL))


def test_where_nothing_fits_it_says_so() -> None:
    tiny = GPU.model_copy(update={"memory": 1e9})
    shortage = memory_shortage(tiny, VGG, 1)
    assert shortage is not None and "even batch 1 needs " in shortage.sentence and not shortage.remedy
    assert largest_fitting_batch([tiny], VGG, 1) == 1 and shortage.brief.startswith("does not fit: needs ")


def test_the_nearest_remedy_is_named_and_helps() -> None:
    """Oracle: the memory of the workload as the options say; a linear model's one weight is helped by none."""
    bert = load_workload("bert-large-seq384", ["training.batch=16"]).spec
    shortage = memory_shortage(GPU, bert, 1)
    assert shortage is not None and shortage.sentence.endswith(f"; {shortage.remedy}")
    assert shortage.remedy == "batch 16 fits with --set training.activation_checkpointing=blocks"
    changed = load_workload("bert-large-seq384", ["training.batch=16", "training.activation_checkpointing=blocks"]).spec
    assert gpu_memory(changed, GPU).total <= GPU.memory < gpu_memory(bert, GPU).total
    none = memory_problem(GPU.model_copy(update={"memory": 1e9}), bert, 1)
    assert none is not None and "even batch 1 needs " in none


def test_where_no_batch_fits_the_largest_with_recomputation_is_named() -> None:
    """Oracle: the memory of the workload as the message says; LoRA on 24 GiB had been sent to look for a layout."""
    gpu = load_hardware("g5.xlarge").spec.groups[0].node.gpu
    options = ["model.lora.rank=16", "model.sequence=2048", "training.batch=4"]
    said = memory_problem(gpu, load_workload("llama-3.1-8b", options).spec, 1, plan="plan") or ""
    most = int(
        re.findall(r"even batch 1 needs .*; batch (\d+) fits with --batch \1 --set training.activation_checkpointing=blocks$", said)[0]
    )
    blocks = "training.activation_checkpointing=blocks"
    recomputed = [
        gpu_memory(load_workload("llama-3.1-8b", [*options, f"training.batch={batch}", blocks]).spec, gpu).total
        for batch in (most, most + 1)
    ]
    assert recomputed[0] <= gpu.memory < recomputed[1]


def test_accumulating_gradients_keeps_the_batch() -> None:
    """Oracle: the memory as the message says, and with half as many micro-batches."""
    with pytest.raises(SpecError, match=r"write 1440; --micro-batches 4 keeps 4096; batch 512 fits with --precision amp_fp16"):
        answer(Scenario("p3.16xlarge", "resnet50", global_batch=4096))
    with pytest.raises(SpecError, match=r"; --micro-batches 4 keeps 4096; "):
        answer(Scenario("p3.16xlarge", "resnet50", ("training.gradient_accumulation_steps=2",), global_batch=4096))
    with pytest.raises(SpecError, match=r"fits is 180; --batch 128 --set training.gradient_accumulation_steps=4 keeps 512 samples"):
        answer(Scenario("p3.16xlarge", "resnet50", batch=512))
    resnet = load_workload("resnet50").spec
    fits = [
        gpu_memory(resnet.with_training(**parts), GPU, ranks=8).total <= GPU.memory
        for parts in ({"batch": 128, "gradient_accumulation_steps": 4}, {"batch": 256, "gradient_accumulation_steps": 2})
    ]
    assert fits == [True, False]


def test_asynchronous_workers_do_not_accumulate() -> None:
    said = [
        memory_problem(GPU, load_workload("vgg16", ["training.batch=512", f"training.stack={stack}"]).spec, 8)
        for stack in ("tf-parameter-server-sync", "tf-parameter-server")
    ]
    assert ["gradient_accumulation_steps" in str(text) for text in said] == [True, False]


def test_a_decoder_that_sharding_cannot_help_is_sent_to_the_plan() -> None:
    given = Scenario("hgx-h100", "llama-3.1-70b", nodes=2, precision="bf16")
    with pytest.raises(
        SpecError, match=r"'python -m sim plan hgx-h100 llama-3.1-70b --nodes 2 --precision bf16' looks for a layout that fits"
    ):
        answer(given)


def test_unlike_workers_are_not_sent_to_the_plan_which_refuses_them() -> None:
    with pytest.raises(SpecError) as caught:
        answer(Scenario("256x-tpu-v2-v3", "llama-3.1-8b"))
    assert len(caught.value.problems) == 2 and "sim plan" not in str(caught.value)


def test_the_plan_is_of_the_same_model() -> None:
    """Adapters and tokens of a sample stay; what a plan chooses by itself does not."""
    lora = ("model.lora={rank: 16}", "training.activation_checkpointing=blocks")
    with pytest.raises(SpecError, match=r"'python -m sim plan gpu_1x_a10 llama-3.1-8b --set 'model.lora=\{rank: 16\}'' looks for a layout"):
        answer(Scenario("gpu_1x_a10", "llama-3.1-8b", lora))


def test_an_option_is_not_blamed_for_what_nobody_wrote() -> None:
    with pytest.raises(SpecError) as caught:
        answer(Scenario("p3.2xlarge", "llama-3.2-1b", batch=1))
    assert str(caught.value).partition(": ")[0].endswith("llama-3.2-1b.yaml:1:1") and "training.precision" in str(caught.value)


def test_frozen_weights_of_four_bytes_are_what_may_not_fit() -> None:
    """Oracle: the run as the message says; of a model that trains whole, narrower weights would be another training."""
    lora, blocks, short = "model.lora={rank: 16}", "training.activation_checkpointing=blocks", "training.stack.mesh.weights=bf16"
    given = Scenario("p4d.24xlarge", "llama-3.1-70b", (lora, "model.sequence=2048", blocks), layout=layout_of(["shard=parameters"]))
    with pytest.raises(SpecError, match=rf"; --set {short} would fit$"):
        layout_answer(given)
    layout_answer(replace(given, overrides=(*given.overrides, short)))
    plain = load_workload("llama-3.1-70b", ["training.stack=torchtitan-2.x"]).spec
    adapted = load_workload("llama-3.1-70b", ["training.stack=torchtitan-2.x", lora]).spec
    narrow = load_workload("llama-3.1-70b", ["training.stack=torchtitan-2.x", lora, short]).spec
    assert short_frozen_weights(plain) is None and short_frozen_weights(narrow) is None
    assert short_frozen_weights(adapted) == (f"--set {short}", narrow)
