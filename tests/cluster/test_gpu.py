"""Oracle: the roofline worked by hand for a GPU of round figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.gpu import NATIVE_BATCH_NORM, KernelWork, efficiency_class, element_bytes, layer_time, memory_time, peaks_for
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from tests.cluster.machines import stack


def gpu(**keys):
    """10 TFLOP/s in FP32 and 80 in FP16, half of it reached by convolutions; 100 GB/s of memory, 80% of it reached; 10 us a kernel."""
    described = {
        "name": "g", "architecture": "a", "compute_capability": "7.0", "memory": "16 GiB", "memory_bandwidth": "100 GB/s",
        "memory_efficiency": 0.8, "peak": {"fp32": "10 TFLOP/s", "fp16": "80 TFLOP/s"},
        "efficiency": {"conv": {"fp32": 0.5, "fp16": 0.25}, "gemm": {"fp32": 0.8}}, "kernel_time": "10 us",
        "context_memory": "0.5 GiB", "source": "test",
    }  # fmt: skip
    return Gpu.model_validate(described | keys)


def layer(op="conv", **keys):
    """1 GFLOP per sample forward and 2 backward; 4 MB in and 4 MB out forward, 16 MB backward; no parameters."""
    described = {
        "name": "l", "op": op, "forward": "1 GFLOP", "backward": "2 GFLOP", "read": "4 MB", "write": "4 MB", "backward_traffic": "16 MB",
        "forward_kernels": 1, "backward_kernels": 2,
    }  # fmt: skip
    return Layer.model_validate(described | keys)


# --- a layer ---------------------------------------------------------------------------------------------------------


def test_a_layer_bound_by_compute():
    """10 x 1 GFLOP at 5 TFLOP/s: 2 ms, and one kernel; its 80 MB would take 1 ms."""
    time, launches = layer_time(layer(), gpu(), "fp32", stack(), batch=10)
    assert (time, launches) == (pytest.approx(2e-3 + 10e-6), 1)


def test_a_layer_bound_by_memory():
    """10 x 8 MB at 80 GB/s: 1 ms; no efficiency is known of an element-wise operator, so its FLOP do not count."""
    assert layer_time(layer("elementwise"), gpu(), "fp32", stack(), batch=10).time == pytest.approx(1e-3 + 10e-6)
    assert layer_time(layer(forward="0.1 GFLOP"), gpu(), "fp32", stack(), batch=10).time == pytest.approx(1e-3 + 10e-6)


def test_backward_has_its_own_work_traffic_and_kernels():
    """10 x 2 GFLOP at 5 TFLOP/s: 4 ms, and two kernels; bound by memory 10 x 16 MB at 80 GB/s: 2 ms."""
    assert layer_time(layer(), gpu(), "fp32", stack(), 10, backward=True) == (pytest.approx(4e-3 + 20e-6), 2)
    assert layer_time(layer("norm"), gpu(), "fp32", stack(), 10, backward=True).time == pytest.approx(2e-3 + 20e-6)


def test_half_precision_has_its_own_peak_and_efficiency_and_half_the_bytes():
    """Compute 10 GFLOP at 80 x 0.25 = 20 TFLOP/s: 0.5 ms; memory 10 x 4 MB at 80 GB/s: 0.5 ms as well."""
    last = stack(channels_last=True)
    assert layer_time(layer(), gpu(), "amp_fp16", last, 10).time == pytest.approx(0.5e-3 + 10e-6)
    assert layer_time(layer(forward="2 GFLOP"), gpu(), "amp_fp16", last, 10).time == pytest.approx(1e-3 + 10e-6)
    assert layer_time(layer(read="12 MB"), gpu(), "amp_fp16", last, 10).time == pytest.approx(1e-3 + 10e-6)


def test_channels_first_costs_tensor_cores_a_transpose_before_and_after():
    """What 10 x 8 MB of FP32 count, 40 MB in FP16, is read and written once more: 1 ms at 80 GB/s; twice in backward; FP32 needs none.

    A norm that does so: 10 x 4 MB written, 20 MB in FP16, for its input and output; in backward for its input and both gradients."""
    last = stack(channels_last=True)
    for op, first, times in (("conv", stack(), (1e-3, 2e-3)), ("norm", stack(channels_last=True, transposed_norms=True), (1e-3, 1.5e-3))):
        for backward, seconds in zip((False, True), times, strict=True):
            slow, fast = (layer_time(layer(op), gpu(), "amp_fp16", layout, 10, backward).time for layout in (first, last))
            assert slow - fast == pytest.approx(seconds)
        assert layer_time(layer(op), gpu(), "fp32", first, 10) == layer_time(layer(op), gpu(), "fp32", last, 10)


def test_autocast_converts_weights_and_their_gradients():
    """20 M weights: 6 bytes each to convert, and 2 to read, or 4 in backward to read and write, at 80 GB/s, in a kernel more each way.

    Pure FP16 converts nothing."""
    weighty = layer("gemm", gradients=[20_000_000], forward="0 FLOP", backward="0 FLOP", read="0 B", write="0 B", backward_traffic="0 B")
    for precision, forward, backward, casts in (("amp_fp16", 8, 10, 1), ("fp16", 2, 4, 0)):
        assert layer_time(weighty, gpu(), precision, stack(), 4) == (
            pytest.approx(forward * 20e6 / 80e9 + (1 + casts) * 10e-6),
            1 + casts,
        )
        assert layer_time(weighty, gpu(), precision, stack(), 4, backward=True) == (
            pytest.approx(backward * 20e6 / 80e9 + (2 + casts) * 10e-6),
            2 + casts,
        )


def test_autocast_converts_the_activations_that_a_product_takes():
    """1 M elements of each of 4 samples: 6 bytes each at 80 GB/s and a kernel, forward as backward; without autocast nothing."""
    casting = layer("gemm", casts=1_000_000)
    for backward in (False, True):
        for precision, more in (("amp_fp16", 4 * 6e6 / 80e9 + 10e-6), ("fp16", 0.0)):
            plain, cast = (layer_time(each, gpu(), precision, stack(), 4, backward) for each in (layer("gemm"), casting))
            assert cast.time - plain.time == pytest.approx(more) and cast.launches - plain.launches == (more > 0)


def test_dropout_has_a_kernel_of_its_own_unless_the_stack_fuses_it():
    """1 M elements of each of 4 samples, written and read again at 80 GB/s, 4 bytes each or 2: one more kernel; backward reads once more.

    Where no gradient comes, and where no layer asks for it, nothing."""
    dropping = layer("elementwise", dropped=1_000_000)
    for precision, width in (("fp32", 4), ("fp16", 2)):
        for backward, passes, kernels in ((False, 2, 1), (True, 1, 0)):
            plain, fused, apart = (
                layer_time(each, gpu(), precision, stack(fused_dropout=fuses, elementwise_traffic=1.5), 4, backward)
                for each, fuses in ((layer("elementwise"), False), (dropping, True), (dropping, False))
            )
            assert fused == plain
            assert apart.time - plain.time == pytest.approx(1.5 * passes * 4 * width * 1e6 / 80e9 + kernels * 10e-6)
            assert apart.launches - plain.launches == kernels
    no_gradient = {"backward": "0 FLOP", "backward_traffic": "0 B", "backward_kernels": 0, "casts": 1_000_000, "dropped": 1_000_000}
    assert layer_time(layer("gemm", **no_gradient), gpu(), "amp_fp16", stack(), 4, backward=True) == (0.0, 0.0)


def test_a_composed_gelu_has_a_kernel_for_each_operator_where_the_stack_composes_it():
    """1 M elements of each of 4 samples at 80 GB/s: 18 passes and 8 kernels, 28 and 11 in backward; under autocast all in 32 bits, and the
    result cast for the product after it. Other stacks have the one kernel of the table."""
    gelu = layer("elementwise", composed=1_000_000)
    for precision, wide, cast in (("fp32", 4, 0), ("fp16", 2, 0), ("amp_fp16", 4, 1)):
        assert layer_time(gelu, gpu(), precision, stack(), 4) == layer_time(layer("elementwise"), gpu(), precision, stack(), 4)
        for backward, passes, kernels in ((False, 18, 8), (True, 28, 11)):
            gelu_time = layer_time(gelu, gpu(), precision, stack(composed_gelu=True, elementwise_traffic=3), 4, backward)
            assert gelu_time.time == pytest.approx(4e6 * (passes * wide + 6 * cast) / 80e9 + (kernels + cast) * 10e-6)
            assert gelu_time.launches == kernels + cast


def test_windows_of_one_element_are_not_transposed():
    last, first = stack(channels_last=True), stack()
    for size, same in ((1, True), (3, False)):
        one = layer(kernel_size=size)
        assert (layer_time(one, gpu(), "fp16", first, 10) == layer_time(one, gpu(), "fp16", last, 10)) is same


def test_norms_channels_first_gain_nothing_from_autocast_and_batch_norm_in_bf16_is_slower():
    """A norm of layers writes statistics for each sample, so that it writes more than it reads; one of batches does not."""
    chip = gpu(peak={"fp32": "10 TFLOP/s", "fp16": "80 TFLOP/s", "bf16": "80 TFLOP/s"})
    of_batches, of_layers = layer("norm"), layer("norm", write="4.001 MB")

    def time(one, precision, **keys):
        return layer_time(one, chip, precision, stack(**keys), 10).time - 10e-6

    full = time(of_batches, "fp32")
    assert time(of_batches, "amp_fp16") == time(of_layers, "amp_bf16") / 1.000125 == pytest.approx(full)
    assert time(of_batches, "amp_bf16") == pytest.approx(NATIVE_BATCH_NORM * full)
    assert time(of_batches, "amp_fp16", channels_last=True) == pytest.approx(full / 2)


def test_channels_that_tensor_cores_cannot_take_are_padded_or_left_to_vector_units():
    """Three channels of an image count like eight, on 80 x 0.25 TFLOP/s; a matrix product of 30 522 columns has 10 x 0.8 TFLOP/s."""
    tight = {"forward": "3 GFLOP", "read": "0 B", "write": "0 B"}
    last = stack(channels_last=True)
    assert layer_time(layer(channels=[3, 64], **tight), gpu(), "fp16", last, 10).time == pytest.approx(80e9 / 20e12 + 10e-6)
    both = gpu(efficiency={"gemm": {"fp32": 0.8, "fp16": 0.5}})
    for columns, rate in ((30528, 40e12), (30522, 8e12)):
        product = layer("gemm", channels=[768, columns], **tight)
        assert layer_time(product, both, "fp16", stack(unaligned_products=False), 10).time == pytest.approx(30e9 / rate + 10e-6)
    ampere = both.model_copy(update={"compute_capability": "8.0"})
    for chip, software in ((both, stack()), (ampere, stack(unaligned_products=False))):  # cuBLAS 11, and what comes with it
        product = layer("gemm", channels=[768, 30522], **tight)
        assert layer_time(product, chip, "fp16", software, 10).time == pytest.approx(30e9 / 40e12 + 10e-6)


def test_factors_of_networks_and_stacks():
    """Twice the time on vector units, or three times on tensor cores and half as much again by the stack; element-wise bytes halved."""
    slow = {"vector_factor": 2.0, "tensor_core_factor": 3.0, "tensor_core_gemm_factor": 5.0}
    fused = stack(tensor_core_factor=1.5, elementwise_traffic=0.5, channels_last=True)
    quiet = layer(read="0 B", write="0 B")
    assert layer_time(quiet, gpu(**slow), "fp32", fused, 10).time == pytest.approx(2 * 2e-3 + 10e-6)
    assert layer_time(quiet, gpu(**slow), "fp16", fused, 10).time == pytest.approx(4.5 * 0.5e-3 + 10e-6)
    assert layer_time(layer("elementwise"), gpu(**slow), "fp32", fused, 10).time == pytest.approx(0.5e-3 + 10e-6)


def test_weights_are_read_once_a_batch_and_their_gradients_written():
    """20 M parameters, 80 MB: 1 ms forward and 2 ms backward at 80 GB/s, whatever the batch; activations are nothing here."""
    weighty = layer("elementwise", gradients=[15_000_000, 5_000_000], read="0 B", write="0 B", backward_traffic="0 B")
    for batch in (1, 100):
        assert layer_time(weighty, gpu(), "fp32", stack(), batch).time == pytest.approx(1e-3 + 10e-6)
        assert layer_time(weighty, gpu(), "fp32", stack(), batch, backward=True).time == pytest.approx(2e-3 + 20e-6)


def test_a_look_up_does_not_read_its_table():
    """20 M elements, 80 MB: forward only its launch, backward 1 ms to fill the gradient; nothing where that is sparse."""
    keys = {"gradients": [20_000_000], "rows": 1_000_000, "rows_per_sample": 1, "read": "0 B", "write": "0 B", "backward_traffic": "0 B"}
    table = layer("embedding", forward="0 FLOP", backward="0 FLOP", **keys)
    assert layer_time(table, gpu(), "fp32", stack(), 1).time == pytest.approx(10e-6)
    assert layer_time(table, gpu(), "fp32", stack(), 1, backward=True).time == pytest.approx(1e-3 + 20e-6)
    for sparse, kind in ((table.model_copy(update={"sparse": True}), stack()), (table, stack(sparse_embeddings=True))):
        assert layer_time(sparse, gpu(), "fp32", kind, 1, backward=True).time == pytest.approx(20e-6)


def test_frozen_weights_are_read_and_cast_but_have_no_gradient():
    """20 M parameters, 80 MB at 80 GB/s: 1 ms each way; under autocast 0.5 ms each way, and 1.5 ms of casts in forward alone."""
    frozen = layer("gemm", frozen=[20_000_000], forward="0 FLOP", backward="0 FLOP", read="0 B", write="0 B", backward_traffic="0 B")
    for precision, forward, backward in (("fp32", 1e-3, 1e-3), ("amp_fp16", 2e-3, 0.5e-3)):
        casts = 10e-6 if precision == "amp_fp16" else 0.0
        assert layer_time(frozen, gpu(), precision, stack(), 1).time == pytest.approx(forward + casts + 10e-6)
        assert layer_time(frozen, gpu(), precision, stack(), 1, backward=True).time == pytest.approx(backward + 20e-6)


def test_efficiency_follows_the_time_of_one_kernel_at_peak():
    """Half way (in the logarithm) between 0.1 ms at 0.1 and 10 ms at 0.5 is 10 GFLOP's 1 ms at 0.3; backward's 2 kernels have half each."""
    curve = gpu(efficiency={"conv": {"fp32": [["0.1 ms", 0.1], ["10 ms", 0.5]]}})
    assert layer_time(layer(), curve, "fp32", stack(), 10).time == pytest.approx(10e9 / 3e12 + 10e-6)
    assert layer_time(layer(), curve, "fp32", stack(), 10, backward=True).time == pytest.approx(20e9 / 3e12 + 20e-6)


def test_a_stack_scales_time_and_launches_apart():
    """2 ms of products and one kernel of 10 us; three kernels are launched three times, and start three times on the GPU."""
    assert layer_time(layer(), gpu(), "fp32", stack(compute_factor=1.5), 10) == (pytest.approx(1.5 * (2e-3 + 10e-6)), 1.0)
    slow = stack(compute_factor=1.5, kernels_per_operator=3.0)
    assert layer_time(layer(), gpu(), "fp32", slow, 10) == (pytest.approx(1.5 * (2e-3 + 30e-6)), 3.0)


def test_a_layer_without_kernels_still_does_its_work():
    """A fused operator: counted with the kernel of another."""
    assert layer_time(layer(forward_kernels=0), gpu(), "fp32", stack(), 10) == KernelWork(pytest.approx(2e-3), 0.0)


def test_a_pointwise_convolution_has_a_class_of_its_own_where_the_gpu_gives_one():
    """Winograd lifts 3x3 convolutions above the peak; a 1x1 has nothing to gain."""
    both = gpu(efficiency={"conv": {"fp32": 1.4}, "pointwise_conv": {"fp32": 0.7}})
    for size, own, there, elsewhere in ((1, 0.7, "pointwise_conv", "conv"), (3, 1.4, "conv", "conv")):
        convolution = layer(kernel_size=size, forward="2 GFLOP")
        classes = tuple(efficiency_class(convolution, on, stack().kernels) for on in (both, gpu()))
        assert classes == (there, elsewhere)
        assert layer_time(convolution, both, "fp32", stack(), 10).time == pytest.approx(20e9 / (10e12 * own) + 10e-6)


@pytest.mark.parametrize(
    ("capability", "version", "share"),
    [
        *(("3.5", "5.0", 0.6), ("3.5", "5.1", 1.4), ("5.2", "5.0", 1.4), ("3.7", "10.2", 1.4), ("3.7", "4", 0.6)),
        *(("6.1", "5.0", 0.6), ("6.1", "5.1", 1.4), ("10.0", "9.1", 1.4)),
    ],
)
def test_winograd_is_maxwells_before_cudnn_5_1(capability, version, share):
    """cuDNN's release notes: 5.0 has fused kernels, taken to be Maxwell's alone; 5.1 brought separate transforms for all."""
    chip = gpu(compute_capability=capability, efficiency={"conv": {"fp32": 1.4}, "direct_conv": {"fp32": 0.6}})
    convolution = layer(kernel_size=3, forward="2 GFLOP")
    seconds = layer_time(convolution, chip, "fp32", stack(cudnn=version), 10).time
    assert seconds == pytest.approx(20e9 / (10e12 * share) + 10e-6)


def test_hooks_run_on_each_gradient():
    """By hand: 3 kernels on each of two tensors, 10 us each, and 3 passes of 4 bytes over 3 M elements at 80 GB/s, in backward alone."""
    trained, hooked = layer(gradients=[1_000_000, 2_000_000]), stack(gradient_hooks=3)
    plain, more = (layer_time(trained, gpu(), "fp32", kind, 10, backward=True) for kind in (stack(), hooked))
    assert more.time - plain.time == pytest.approx(6 * 10e-6 + 3 * 4 * 3e6 / 80e9)
    assert more.launches - plain.launches == 6
    assert layer_time(trained, gpu(), "fp32", hooked, 10) == layer_time(trained, gpu(), "fp32", stack(), 10)


def test_gradients_that_are_zeroed_and_added_to():
    """By hand: two kernels for each of two tensors; a write, then two reads and a write, of 4 bytes over 3 M elements at 80 GB/s."""
    trained = layer(gradients=[1_000_000, 2_000_000])
    plain, more = (layer_time(trained, gpu(), "fp32", kind, 10, backward=True) for kind in (stack(), stack(accumulates_gradients=True)))
    assert more.time - plain.time == pytest.approx(4 * 10e-6 + 4 * 4 * 3e6 / 80e9)
    assert more.launches - plain.launches == 4


def test_sums_of_bias_gradients_run_beside_products():
    """By hand: two products of backward move 2 x (4 + 4) MB a sample, hidden by 2.5 ms of compute; 8 MB more take 1 ms of their own."""
    least, more = (
        layer_time(layer("gemm", backward_traffic=traffic), gpu(), "fp32", stack(), 10, backward=True).time
        for traffic in ("16 MB", "24 MB")
    )
    assert least == pytest.approx(20e9 / 8e12 + 20e-6)
    assert more - least == pytest.approx(1e-3)


def test_tensor_cores_that_a_board_holds_back():
    """By hand: 80 of 160 TFLOP/s are let through. Products at a quarter of 160 stay so; faster ones are held at 0.9 of 80."""
    held = {"tensor_core_rate": 0.5, "kernel_time": "0 s"}
    slow = {"conv": {"fp16": 0.25}, "gemm": {"fp16": 0.9}}
    last = stack(channels_last=True)
    heavy = layer(forward="10 GFLOP", read="0 B", write="0 B")
    assert layer_time(heavy, gpu(efficiency=slow, **held), "fp16", last, 10).time == pytest.approx(100e9 / 40e12)
    fast = layer("gemm", forward="10 GFLOP", read="0 B", write="0 B")
    assert layer_time(fast, gpu(efficiency=slow, **held), "fp16", last, 10).time == pytest.approx(100e9 / 72e12)
    assert layer_time(heavy, gpu(efficiency=slow, **held), "fp32", last, 10) == layer_time(
        heavy, gpu(efficiency=slow, kernel_time="0 s"), "fp32", last, 10
    )


def test_depthwise_convolutions_work_on_vector_units_in_every_precision():
    """By hand: 100 GFLOP at a fortieth of 10 TFLOP/s; without a share of peak only their bytes count."""
    alone = layer("depthwise_conv", forward="10 GFLOP", channels=[1, 32], kernel_size=3, read="0 B", write="0 B")
    for precision in ("fp32", "fp16", "amp_fp16"):
        chip = gpu(efficiency={"depthwise_conv": {"fp32": 0.025}}, kernel_time="0 s")
        assert layer_time(alone, chip, precision, stack(), 10).time == pytest.approx(100e9 / 0.25e12)
        assert layer_time(alone, gpu(kernel_time="0 s"), precision, stack(), 10).time == 0.0


def test_a_recurrent_layer_makes_its_weights_gradients_at_once():
    """By hand: steps of 0.01 ms at peak reach a tenth of it; the weights' gradients, one product of ten steps, half."""
    curves = {"rnn": {"fp32": [["0.001 ms", 0.1], ["0.01 ms", 0.1]]}, "gemm": {"fp32": [["0.02 ms", 0.5], ["1 ms", 0.5]]}}
    recurrent = layer("rnn", forward="0.1 GFLOP", backward="0.2 GFLOP", forward_kernels=10, read="0 B", write="0 B", backward_traffic="0 B")
    chip = gpu(efficiency=curves, kernel_time="0 s")
    assert layer_time(recurrent, chip, "fp32", stack(), 10).time == pytest.approx(0.1e-3 / 0.1)
    assert layer_time(recurrent, chip, "fp32", stack(), 10, backward=True).time == pytest.approx(0.1e-3 / 0.1 + 0.1e-3 / 0.5)
    assert layer_time(recurrent, chip, "fp32", stack(), 20).time < 2 * 0.1e-3 / 0.1 * 0.9  # larger steps become matrix products
    assert layer_time(recurrent, chip, "fp32", stack(), 10).launches == pytest.approx(1.0)  # cuDNN launches a step from C


def test_a_memory_pass():
    assert memory_time(8e9, gpu()) == pytest.approx(0.1)


# --- precisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["amp_fp16", "amp_bf16", "fp16", "bf16", "fp8"])
def test_half_precision_keeps_softmax_and_loss_in_full(precision):
    """Activations beside 8-bit matrix products are 16 bits wide; autocast's list keeps softmax and losses in FP32."""
    assert [element_bytes(op, precision) for op in ("conv", "norm", "softmax", "loss")] == [2.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_full_precision_moves_four_bytes(precision):
    assert element_bytes("conv", precision) == 4.0


def test_what_fp32_means_is_the_stacks_choice():
    """torch allows TF32 in convolutions by default, in matrix products from 1.7 to 1.11."""
    assert peaks_for("conv", "fp32", stack().kernels) == ("tf32", "fp32")
    assert peaks_for("gemm", "fp32", stack().kernels) == ("fp32", "fp32")
    assert peaks_for("gemm", "fp32", stack(fp32_matmul="tf32").kernels) == ("tf32", "fp32")
    assert peaks_for("conv", "tf32", stack(fp32_convolution="fp32").kernels) == ("tf32", "fp32")


def seconds_per_petaflop(op, precision, **keys):
    """Bound by compute alone, so 1e15 / (peak x efficiency)."""
    heavy = layer(op, forward="1 TFLOP", read="0 B", write="0 B")
    return layer_time(heavy, gpu(kernel_time="0 s", **keys), precision, stack(), 1000).time


def test_units_that_a_gpu_lacks_give_way_to_fp32():
    for precision in ("fp32", "tf32", "amp_bf16", "bf16"):
        assert seconds_per_petaflop("conv", precision) == pytest.approx(1e15 / 5e12)
    tensor_cores = {
        "peak": {"fp32": "10 TFLOP/s", "tf32": "40 TFLOP/s", "bf16": "80 TFLOP/s"},
        "efficiency": {"conv": {"fp32": 0.5, "tf32": 0.25, "bf16": 0.2}},
    }
    for precision, rate in (("fp32", 10e12), ("tf32", 10e12), ("bf16", 16e12), ("fp16", 5e12)):
        assert seconds_per_petaflop("conv", precision, **tensor_cores) == pytest.approx(1e15 / rate)


def test_an_operator_without_kernels_for_the_units_runs_on_the_next_wider_ones():
    """No FP16 figure for matrix products: 80% of the FP32 peak. FP8 is for matrix products; convolutions run in BF16 beside them."""
    assert seconds_per_petaflop("gemm", "fp16") == pytest.approx(1e15 / 8e12)
    peaks = {"fp32": "10 TFLOP/s", "bf16": "80 TFLOP/s", "fp8": "160 TFLOP/s"}
    efficiency = {"gemm": {"fp32": 0.9, "bf16": 0.5, "fp8": 0.4}, "conv": {"fp32": 1.4, "bf16": 0.5}}
    assert seconds_per_petaflop("gemm", "fp8", peak=peaks, efficiency=efficiency) == pytest.approx(1e15 / 64e12)
    assert seconds_per_petaflop("conv", "fp8", peak=peaks, efficiency=efficiency) == pytest.approx(1e15 / 40e12)


def test_an_operator_measured_on_other_units_only_is_not_free():
    """Measured on tensor cores only, requested in FP32: the same share of the FP32 peak."""
    assert seconds_per_petaflop("conv", "fp32", efficiency={"conv": {"fp16": 0.25}}) == pytest.approx(1e15 / 2.5e12)


def test_every_gpu_has_an_fp32_peak():
    with pytest.raises(ValueError, match="peak has no fp32"):
        gpu(peak={"fp16": "80 TFLOP/s"})


@given(st.integers(1, 512), st.integers(1, 8), st.sampled_from(["conv", "gemm", "norm", "softmax"]), st.booleans())
def test_a_layer_is_never_faster_than_either_bound_and_grows_with_the_batch(batch, factor, op, backward):
    """The roofline: at least peak compute x efficiency and memory bandwidth; more samples never take less."""
    one, more = (layer_time(layer(op), gpu(), "fp32", stack(), size, backward).time for size in (batch, batch * factor))
    assert one <= more <= factor * one * (1 + 1e-12)
    assert one > batch * (16e6 if backward else 8e6) / 80e9
    if op in ("conv", "gemm"):
        assert one > batch * (2e9 if backward else 1e9) / (5e12 if op == "conv" else 8e12)


# --- a GPU in time ---------------------------------------------------------------------------------------------------
