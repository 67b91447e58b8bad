"""Oracles: sizes worked out by hand for VGG-16, published parameter counts, linearity, and a measured effect of DDP's buckets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis import memory
from sim.analysis.memory import MemoryUse, gpu_memory, largest_batch
from sim.spec.hardware import Gpu
from sim.spec.sections import with_fields
from sim.spec.workload import Workload

MIB, GIB = 2.0**20, 2.0**30
NCCL = 2 * 2 * (4 * MIB + 4800 * 1024 + 512 * 1024)  # channels x connections x (Simple, LL128, LL)
CUBLAS = 8.125 * MIB
VGG16_PARAMETERS = 138_357_544
PRECISIONS = ["fp32", "tf32", "amp_fp16", "amp_bf16", "fp16", "bf16", "fp8"]

# Simonyan and Zisserman (arXiv 1409.1556), column D: channels out, or "M" for 2x2 max pooling.
VGG16 = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]


def vgg16_layers() -> list[dict[str, Any]]:
    """Convolutions that save their input, pools that save nothing, and three linear layers that save theirs; FP32 bytes."""
    layers: list[dict[str, Any]] = []
    channels, edge = 3, 224
    for out in VGG16:
        here = 4 * channels * edge**2
        if out == "M":
            edge //= 2
            layers.append({"name": f"pool{edge}", "op": "pool", "read": f"{here} B", "write": f"{here // 4} B"})
            continue
        assert isinstance(out, int)
        layers.append(
            {
                "name": f"conv{len(layers)}",
                "op": "conv",
                "gradients": [out, 9 * channels * out],
                "read": f"{here} B",
                "write": f"{4 * out * edge**2} B",
                "saved": f"{here} B",
                "kernel_size": 3,
            }
        )
        channels = out
    for inputs, outputs in [(512 * 49, 4096), (4096, 4096), (4096, 1000)]:
        sizes = {"read": f"{4 * inputs} B", "write": f"{4 * outputs} B", "saved": f"{4 * inputs} B"}
        layers.append({"name": f"linear{outputs}", "op": "gemm", "gradients": [outputs, inputs * outputs], **sizes})
    return layers


def workload(
    layers: list[dict[str, Any]] | None = None,
    parameters: int = VGG16_PARAMETERS,
    *,
    strategy: str = "ddp",
    optimizer: str = "momentum",
    precision: str = "fp32",
    batch: int = 32,
    loader: str = "pytorch",
    **model: Any,
) -> Workload:
    stack = {
        "name": "s",
        "strategy": strategy,
        "gradient_copy_passes": 4,
        "optimizer": "per_tensor",
        "launch_cpu": "8 us",
        "source": "test",
    }
    return Workload.model_validate(
        {
            "name": "vgg16",
            "model": {
                "name": "vgg16",
                "parameters": parameters,
                "input": "602112 B",
                "layers": vgg16_layers() if layers is None else layers,
                "source": "test",
                **model,
            },
            "dataset": {"name": "d", "samples": 1000, "sample": "110 KB", "prepared": "602112 B", "prep": "7 ms", "source": "test"},
            "input": {"loader": loader},
            "training": {"batch": batch, "precision": precision, "optimizer": {"name": optimizer}, "stack": stack},
        }
    )


def gpu(memory: str = "16 GiB", capability: str = "7.0") -> Gpu:
    return Gpu.model_validate(
        {
            "name": "V100",
            "architecture": "volta",
            "compute_capability": capability,
            "memory": memory,
            "memory_bandwidth": "900 GB/s",
            "memory_efficiency": 0.8,
            "peak": {"fp32": "15.7 TFLOP/s"},
            "efficiency": {"gemm": {"fp32": 0.8}},
            "kernel_time": "5 us",
            "context_memory": "0.5 GiB",
            "source": "test",
        }
    )


def layer(op: str, saved: int, elements: int = 10) -> dict[str, Any]:
    return {"name": op, "op": op, "gradients": [elements], "saved": f"{saved} B"}


def test_the_table_above_is_vgg16() -> None:
    """torchvision's vgg16 has 138 357 544 parameters."""
    assert sum(sum(row["gradients"]) for row in vgg16_layers() if "gradients" in row) == VGG16_PARAMETERS


def test_vgg16_by_hand() -> None:
    """FP32, SGD with momentum: 553 MB each of weights, gradients and momentum.

    Backward peaks at the second convolution: it and the first saved 224 x 224 x (3 + 64) values, its input and output have
    224 x 224 x 128 gradients, and as much is scratch (estimate), against 9.6 M values that all layers save; its own new gradients
    wait to be added to the old ones.
    """
    use = gpu_memory(workload(), gpu())
    assert use.weights == use.gradients == use.optimizer_state == 4 * VGG16_PARAMETERS
    assert use.activations == 32 * 4 * 224**2 * (3 + 64 + 128)
    assert use.workspace == 32 * 4 * 224**2 * 128 + 4 * (9 * 64 * 64 + 64) + CUBLAS
    assert use.input == 2 * 32 * 602112
    assert use.context == 0.5 * GIB
    assert use.communication_buffers == 0.0
    assert use.total == pytest.approx(1.660e9 + 1.252e9 + 0.831e9 + 0.0385e9 + 0.537e9, rel=1e-3)


def test_total_is_the_sum_of_the_uses() -> None:
    by_use = gpu_memory(workload(), gpu(), ranks=8).by_use()
    assert by_use.pop("total") == pytest.approx(sum(by_use.values()))
    assert list(by_use) == list(MemoryUse._fields)


def test_what_saves_most_peaks_at_the_end_of_forward() -> None:
    """Twenty layers save 1 MB each and work on 2 MB: at the last one all 20 MB are held."""
    layers = [{"name": str(i), "op": "gemm", "saved": "1 MB", "read": "1 MB", "write": "1 MB"} for i in range(20)]
    assert gpu_memory(workload(layers), gpu()).activations == 32 * 22e6


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("lamb", 2)])
def test_optimizer_state(optimizer: str, states: int) -> None:
    assert gpu_memory(workload(optimizer=optimizer), gpu()).optimizer_state == states * 4 * VGG16_PARAMETERS


@pytest.mark.parametrize(
    ("precision", "weights", "gradients"),
    [("fp32", 4, 4), ("tf32", 4, 4), ("amp_fp16", 4, 4), ("amp_bf16", 4, 4), ("fp16", 2, 2), ("bf16", 2, 2), ("fp8", 6, 4)],
)
def test_bytes_per_parameter(precision: str, weights: int, gradients: int) -> None:
    """In pure half precision everything half; autocast casts the weights as well.

    At the peak, when the largest weight's gradient exists in 16 and 32 bits, those of the 13 convolutions are left: 14,714,688 elements.
    """
    use = gpu_memory(workload(precision=precision, optimizer="adam"), gpu())
    casts = 2 * 14_714_688 if precision.startswith("amp") else 0
    assert use.weights == weights * VGG16_PARAMETERS + casts
    assert use.gradients == gradients * VGG16_PARAMETERS
    assert use.optimizer_state == 2 * gradients * VGG16_PARAMETERS


def test_only_matrix_operators_have_cast_weights() -> None:
    """200 of 210 parameters belong to linear layers. The peak: the later one's gradient in 16 and 32 bits beside the earlier one's cast."""
    layers = [layer("embedding", 0, 10), layer("gemm", 0, 100), layer("gemm", 0, 100) | {"name": "later"}]
    use = gpu_memory(workload(layers, 210, precision="amp_fp16"), gpu())
    assert (use.weights, use.workspace) == (210 * 4 + 100 * 2, CUBLAS + 100 * (2 + 4))


def test_a_first_layers_cast_is_gone_after_forward() -> None:
    """Its input needs no gradient, so backward does not need its weight; FLOP of backward tell."""
    first = layer("gemm", 0, 100) | {"forward": "1 FLOP", "backward": "1 FLOP"}
    use = gpu_memory(workload([first, layer("gemm", 0, 100) | {"name": "later"}], 200, precision="amp_fp16"), gpu())
    assert (use.weights, use.workspace) == (200 * 4, CUBLAS + 100 * (2 + 4))


def test_what_autocast_keeps_is_what_the_table_says() -> None:
    """Widths alone: half of 4 000 bytes a sample; the table knows of 3 000."""
    by_precision = {precision: gpu_memory(workload([layer("elementwise", 4000)], 10, precision=precision, autocast_saved="3000 B"), gpu())
            for precision in ("fp32", "amp_fp16")}  # fmt: skip
    assert (by_precision["fp32"].activations, by_precision["amp_fp16"].activations) == (32 * 4000, 32 * 3000)
    assert gpu_memory(workload([layer("elementwise", 4000)], 10, precision="amp_fp16"), gpu()).activations == 32 * 2000


@pytest.mark.parametrize(
    ("op", "amp", "fp8"),
    [("conv", 0.5, 0.25), ("pointwise_conv", 0.5, 0.25), ("gemm", 0.5, 0.25), ("elementwise", 0.5, 0.5), ("softmax", 1, 1), ("loss", 1, 1)],
)
def test_activations_by_precision_and_operator(op: str, amp: float, fp8: float) -> None:
    """torch.amp: matrix operators in FP16, element-wise ones in their input's type, softmax and losses in FP32."""
    for precision, share in [("fp32", 1.0), ("amp_fp16", amp), ("fp8", fp8), ("fp16", 0.5)]:
        use = gpu_memory(workload([layer(op, 1000)], 10, precision=precision, batch=7), gpu())
        assert use.activations == 7 * 1000 * share, precision


def test_batch_norm_follows_its_input_and_layer_norm_does_not() -> None:
    convolutional = workload([layer("conv", 0), layer("norm", 1000)], 20, precision="amp_fp16", buffers="80 B", batch=1)
    transformer = workload([layer("gemm", 0), layer("norm", 1000)], 20, precision="amp_fp16", batch=1)
    assert gpu_memory(convolutional, gpu()).activations == 500
    assert gpu_memory(transformer, gpu()).activations == 1000


def test_frozen_parameters_have_neither_gradients_nor_state() -> None:
    use = gpu_memory(workload([layer("gemm", 0, 10)], 1000, optimizer="adam"), gpu())
    assert (use.weights, use.gradients, use.optimizer_state) == (4000, 40, 80)


def test_types_of_the_models_own_win_over_the_precisions() -> None:
    """LoRA by hand: 1000 frozen elements of BF16 beside 10 trained ones of FP32, and 40 trained ones of BF16; Adam keeps two states."""
    layers = [
        layer("gemm", 0, 10) | {"name": "adapter"},
        layer("gemm", 0, 40) | {"name": "narrow", "dtypes": ["bf16"]},
        {"name": "frozen", "op": "gemm", "frozen": [1000], "dtypes": ["bf16"]},
    ]
    use = gpu_memory(workload(layers, 1050, optimizer="adam"), gpu())
    assert (use.weights, use.gradients, use.optimizer_state) == (4 * 10 + 2 * 1040, 4 * 10 + 2 * 40, 2 * (4 * 10 + 2 * 40))
    cast = gpu_memory(workload(layers, 1050, optimizer="adam", precision="amp_bf16"), gpu())
    assert cast.weights == use.weights + 2 * 10  # autocast's copy of what is FP32, at the other's backward
    doubles = gpu_memory(workload([layer("gemm", 0, 10) | {"dtypes": ["fp64"]}], 10), gpu())
    assert (doubles.weights, doubles.gradients) == (80, 80)


def test_ddp_buckets_hold_the_gradients_again() -> None:
    """pytorch pull 41954 measured it: gradients as views lowered the peak of a ResNet with 97 MB of parameters by 101 MB."""
    resnet = workload([layer("conv", 0, 25_557_032)], 25_557_032)  # torchvision's resnet50: 97.5 MiB
    copies = gpu_memory(resnet, gpu(), ranks=8).communication_buffers - NCCL
    assert copies == 4 * 25_557_032
    assert copies == pytest.approx(101 * MIB, rel=0.05)


def test_communication_buffers_by_strategy() -> None:
    """Flat: one copy of all gradients. Per tensor: a copy of the largest, linear layer 1 with 25 088 x 4 096 weights."""
    flat, per_tensor = (gpu_memory(workload(strategy=name), gpu(), ranks=2) for name in ("flat", "apex_per_tensor"))
    assert flat.communication_buffers == 4 * VGG16_PARAMETERS + NCCL
    assert per_tensor.communication_buffers == 4 * 25088 * 4096 + NCCL
    more = gpu_memory(workload(strategy="flat"), gpu(), ranks=2, channels=12)
    assert more.communication_buffers - flat.communication_buffers == pytest.approx(5 * NCCL)


def test_synthetic_input_is_one_batch_and_hopper_has_a_larger_cublas_workspace() -> None:
    assert gpu_memory(workload(loader="synthetic"), gpu()).input == 32 * 602112
    volta, hopper = (gpu_memory(workload(), gpu(capability=capability)).workspace for capability in ("7.0", "9.0"))
    assert hopper - volta == 32 * MIB - CUBLAS


@given(batch=st.integers(1, 4096), precision=st.sampled_from(PRECISIONS), ranks=st.integers(1, 64))
def test_memory_grows_with_the_batch_and_ever_faster(batch: int, precision: str, ranks: int) -> None:
    """The peak is the maximum over moments that are each linear in the batch, so it is convex; weights and states stay."""
    job = workload(precision=precision)
    before, some, after, double = (gpu_memory(job, gpu(), ranks=ranks, batch=size) for size in (batch, batch + 1, batch + 2, 2 * batch))
    assert before.total < some.total < after.total
    assert after.total - some.total >= (some.total - before.total) * (1 - 1e-9)
    assert double.activations >= before.activations
    assert (before.weights, before.gradients, before.optimizer_state) == (after.weights, after.gradients, after.optimizer_state)


@given(precision=st.sampled_from(PRECISIONS))
def test_large_batches_scale_activations(precision: str) -> None:
    """Once activations outweigh the gradients of the largest layer, twice the batch takes twice the activations."""
    job = workload(precision=precision)
    some, more = (gpu_memory(job, gpu(), batch=size) for size in (1024, 2048))
    assert more.activations == pytest.approx(2 * some.activations)


def test_a_small_batch_peaks_where_the_largest_weights_get_their_gradient() -> None:
    """Batch 1 of VGG-16: the first linear layer's new gradient of 411 MB outweighs all activations."""
    use = gpu_memory(workload(batch=1), gpu())
    assert use.workspace == 4 * (25088 * 4096 + 4096) + CUBLAS


@pytest.mark.parametrize(("optimizer", "copies"), [("per_tensor", 3), ("foreach", 10), ("fused", 0)])
def test_the_optimizers_moment_counts_where_activations_are_small(optimizer: str, copies: int) -> None:
    """Three layers of 3, 3 and 4 gradients without activations: backward needs 4 of them at once, foreach copies all 10."""
    job = workload([layer("gemm", 0, size) for size in (3, 3, 4)], 10, batch=1)
    stack = with_fields(job.training.stack, optimizer=optimizer)
    job = job.with_training(stack=stack)
    assert gpu_memory(job, gpu()).workspace == 4 * max(4, copies) + CUBLAS


def test_a_shared_weights_gradient_waits_for_its_first_use() -> None:
    """An output matrix of 1000 elements tied to the embedding: at the embedding the waiting gradient, the new one and their sum exist."""
    layers = [layer("embedding", 0, 1000), layer("gemm", 0, 10), {"name": "out", "op": "gemm", "shares": "embedding"}]
    assert gpu_memory(workload(layers, 1010), gpu()).workspace == 3 * 4 * 1000 + CUBLAS


def test_sparse_gradients_hold_the_rows_that_were_looked_up() -> None:
    table = {**layer("embedding", 0, 8000), "rows": 1000, "rows_per_sample": 2}
    dense, sparse = (gpu_memory(workload([{**table, "sparse": wanted}], 8000, batch=32), gpu()) for wanted in (False, True))
    assert (dense.gradients, sparse.gradients) == (4 * 8000, 4 * 8 * 64)


def checkpointed(wanted: str) -> Workload:
    """Four blocks of two layers, 10 bytes saved by each and 4 read; the model's own code checkpoints the second block."""
    layers = [
        {"name": f"block.{i // 2}.{i % 2}", "op": "gemm", "saved": "10 B", "read": "4 B", "segment": int(i // 2 == 1)} for i in range(8)
    ]
    job = workload(layers, 1, batch=1)
    return job.with_training(activation_checkpointing=wanted)


@pytest.mark.parametrize(("wanted", "held"), [("none", 8 * 10 + 4), ("model", 6 * 10 + 4 + 4), ("blocks", 4 * 4 + 2 * 10 + 4)])
def test_checkpointed_segments_keep_their_input_alone(wanted: str, held: int) -> None:
    """At the last layer's backward: what is kept, its own block recomputed, and 4 bytes of maps."""
    assert gpu_memory(checkpointed(wanted), gpu()).activations == held


@given(memory=st.integers(2, 141), precision=st.sampled_from(PRECISIONS), ranks=st.sampled_from([1, 8]))
def test_the_largest_batch_fits_and_one_more_does_not(memory: int, precision: str, ranks: int) -> None:
    job, device = workload(precision=precision), gpu(f"{memory} GiB")
    largest = largest_batch(job, device, ranks=ranks)
    assert gpu_memory(job, device, ranks=ranks, batch=largest + 1).total > device.memory
    assert largest == 0 or gpu_memory(job, device, ranks=ranks, batch=largest).total <= device.memory


def test_a_batch_that_is_known_to_fit_fits() -> None:
    """tf_cnn_benchmarks trained VGG-16 with 64 images per 16 GB P100 in FP32 (TensorFlow benchmarks page, 2017)."""
    assert largest_batch(workload(), gpu(), ranks=8) >= 64


def test_a_model_too_large_fits_no_batch() -> None:
    assert largest_batch(workload(optimizer="adam"), gpu("2 GiB")) == 0


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        gpu_memory(workload(), gpu(), batch=0)
    with pytest.raises(ValueError, match="any batch fits"):
        largest_batch(workload([layer("gemm", 0)], 10, input="0 B"), gpu())


def test_frozen_embeddings_have_no_cast_copy() -> None:
    """Autocast copies the weights of matrix operators: the earlier 100 of them beside the later's gradient, not the 900 of an embedding."""
    layers = [{"name": "words", "op": "embedding", "frozen": [900]}, layer("gemm", 0, 100), layer("gemm", 0, 100) | {"name": "later"}]
    assert gpu_memory(workload(layers, 1100, precision="amp_fp16"), gpu()).weights == 1100 * 4 + 100 * 2


def test_time_steps_of_a_recurrent_layer_do_not_exist_together() -> None:
    """Its operators read and write 90 bytes a sample over all steps and save 15; the gradients that coexist are a third of those."""
    layers = [{"name": "gru", "op": "rnn", "saved": "15 B", "read": "50 B", "write": "40 B"}]
    assert gpu_memory(workload(layers, 1, batch=3), gpu()).activations == 3 * (15 + 5)


def test_what_was_asked_before_changes_no_answer() -> None:
    """Jobs that differ in one thing each, all asked twice. Oracle: an empty cache."""
    from sim.analysis.memory import _communication, _on_any_gpu

    plain = workload()

    def trained(**keys: Any) -> Workload:
        return plain.with_training(**keys)

    stack, small = plain.training.stack, {"layers": plain.model.layers[:5]}
    jobs = [
        plain, trained(batch=3), trained(precision="amp_fp16"), trained(activation_checkpointing="blocks"),
        trained(optimizer=plain.training.optimizer.model_copy(update={"name": "adam"})),
        trained(stack=with_fields(stack, optimizer="fused")),
        trained(stack=workload(strategy="apex_per_tensor").training.stack),
        plain.model_copy(update={"input": plain.input.model_copy(update={"loader": "synthetic"})}),
        plain.model_copy(update={"model": plain.model.model_copy(update=small)}),
    ]  # fmt: skip
    chip = gpu()
    chips = [chip, *(chip.model_copy(update=one) for one in ({"context_memory": 1e9}, {"compute_capability": "9.0"}))]
    options: list[dict[str, Any]] = [
        {},
        {"ranks": 8},
        {"ranks": 8, "channels": 4},
        {"batch": 7},
    ]
    questions = [(job, one, more) for job in jobs for one in chips for more in options]
    kept = [gpu_memory(job, one, **more) for job, one, more in questions * 2][len(questions) :]
    for (job, one, more), cached in zip(questions, kept, strict=True):
        _on_any_gpu.cache_clear()
        _communication.cache_clear()
        assert gpu_memory(job, one, **more) == cached


def test_products_cast_the_slices_of_a_table_that_they_take() -> None:
    """A table of 10 x 4, of which two products take 3 and 5 rows: casts of 12 and 20 elements; one that takes all casts 40, once."""

    def casts(*rows: int) -> float:
        table = {"name": "table", "op": "embedding", "gradients": [40], "rows": 10, "rows_per_sample": 1}
        sizes = {"op": "gemm", "forward": "8 FLOP", "backward": "16 FLOP", "read": "4 B", "write": "4 B", "shares": "table"}
        uses = [{**sizes, "name": f"use{number}", "channels": [4, taken]} for number, taken in enumerate(rows)]
        own = {**sizes, "name": "own", "gradients": [9], "channels": [3, 3], "shares": ""}
        job = workload([table, own, *uses], 49, precision="amp_fp16")
        return max(moment.casts for moment in memory._moments(job, 1))

    assert casts(3, 5) == 2 * (9 + 12 + 20)
    assert casts(10, 10) == 2 * (9 + 40)


def test_gradients_that_a_step_frees_are_not_there_while_activations_peak() -> None:
    """Layers that save 0, 0 and 1000 B with 3, 3 and 4 gradients: the last backward finds none, the first those of the two after it.

    With several micro-batches, or without freeing, all ten are there at every moment.
    """
    job = workload([layer("gemm", saved, size) for saved, size in ((0, 3), (0, 3), (1000, 4))], 10, batch=1)
    stack = with_fields(job.training.stack, frees_gradients=True, optimizer="fused")
    freed = job.with_training(stack=stack)
    assert (gpu_memory(job, gpu()).gradients, gpu_memory(freed, gpu()).gradients) == (4 * 10, 0)
    assert [moment.gradients for moment in memory._moments(freed, 1, freed=True)] == [4 * 10, 4 * 7, 4 * 4, 0]
    several = freed.with_training(gradient_accumulation_steps=2)
    assert gpu_memory(several, gpu()).gradients == 4 * 10
