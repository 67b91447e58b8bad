"""Which kernels does a software stack run on one GPU, and what do launches cost? Forward, backward and update, without the exchange."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from sim.spec.fields import Factor, Fp8Recipe, Latency, Span
from sim.spec.sections import Section


class StackKernels(Section):
    """How forward and backward run on one GPU, relative to the layer model."""

    launch_cpu: Latency
    """Host time to launch one kernel."""
    cuda_graphs: bool = False
    """Whether a whole step is captured once and replayed, so that all its kernels cost the host only one launch."""
    launch_blocking: bool = False
    """Whether the host waits for each kernel before it launches the next one (``CUDA_LAUNCH_BLOCKING=1``), so that its time adds to that of
    the GPU. Applies to layouts."""
    compilation: Span = (0.0, 0.0)
    """Time to compile and tune kernels at each start of a job; zero if operators run eagerly."""
    capture: Span = (11.0, 58.0)
    """Time to capture CUDA graphs at each start of a job with ``cuda_graphs``: 58 s for Llama 3 8B on 8 H100
    (NVIDIA-NeMo/Megatron-Bridge #682), 11 s for smaller graphs (pytorch/torchtitan #3145)."""
    loads_once: bool = False
    """Whether a job that restarts reads each part of a checkpoint from the store once for all replicas, and its nodes forward it to each
    other (Megatron Core's ``ckpt_fully_parallel_load``, off by default); false: each node reads everything that its GPUs need."""
    kernels_per_operator: Factor = 1.0
    """Factor on the layer table's number of kernels, both those the host launches and those the GPU starts."""
    compute_factor: Factor = 1.0
    """Factor on the GPU time of the layer model."""
    factor_by_kernels: bool = False
    """Whether ``compute_factor`` was fitted to training steps of decoders in layouts, mostly on Hopper: the GPU's ``kernels.whole_steps``
    scales it, and it is 1 for other models."""
    tensor_core_factor: Factor = 1.0
    """Additional factor on the time of convolutions and recurrent layers on tensor cores."""
    tensor_core_gemm_factor: Factor = 1.0
    """Additional factor on the time of matrix products and attention on tensor cores."""
    elementwise_traffic: Factor = 1.0
    """Factor on the bytes that element-wise operators, norms and softmax move in the layer table; below 1 if they are fused."""
    operator_traffic: Mapping[str, Factor] = Field(default_factory=dict)
    """Factors that replace ``elementwise_traffic`` for single operators, by the last part of their layers' names: ``loss``, ``activation``,
    ``rope``, ``residual``."""
    operator_memory: Mapping[str, Factor] = Field(default_factory=dict)
    """Layouts: factors on the bytes that single operators save for backward in the layer table, by the last part of their layers' names:
    ``activation``."""
    logit_bytes: float = Field(default=12.0, ge=2)
    """Layouts: peak bytes per logit in the loss: copies in 16 and 32 bits, the softmax, gradients."""
    split_logit_bytes: float | None = Field(default=None, ge=2)
    """The same peak if tensor ranks split the vocabulary; None: ``logit_bytes``."""
    freed_logit_bytes: float = Field(default=0.0, ge=0)
    """Layouts: bytes per logit freed before that peak, in blocks that no later tensor fits, so that the allocator keeps them."""
    composed_traffic: Factor = 1.0
    """Additional factor on ``elementwise_traffic`` in models with attention, for stacks that build LayerNorm, GELU and dropout from many
    small kernels."""
    composed_gelu: bool = False
    """Whether a GELU that the model's code writes as several operators (``composed_gelu`` of its transformer) runs one kernel for each;
    false: one kernel."""
    composed_norms: bool = False
    """Whether RMS norms run one kernel for each of their operators, in 32 bits; false: one kernel."""
    fused_dropout: bool = False
    """Whether dropout is fused with the addition to the residual stream; false: one kernel writes its result and another reads it."""
    score_passes: float | None = Field(default=None, ge=0)
    """Number of times that attention's scores are read or written in memory per step; 0: never, as in fused attention. None: as in the
    layer table, which for traced models has softmax, mask and dropout in separate kernels."""
    fp8_recipes: tuple[Fp8Recipe, ...] = ()
    """FP8 scaling recipes that the stack supports, its default first; empty: all recipes, with Transformer Engine's default for the GPU."""
    unquantized: tuple[str, ...] = ("head", "lm_head", "router")
    """Products that stay in 16 bits with fp8 or nvfp4, by the last parts of their layers' names (Megatron-LM models/gpt/gpt_model.py and
    transformer/moe/router.py: neither is a layer of Transformer Engine; torchtitan's float8.filter_fqns; MaxText's logits)."""
    fused_casts: tuple[str, ...] = ()
    """Products whose input is cast to 8 bits by the norm or activation before them, as far as the FP8 recipe allows, by the last parts of
    their layers' names: ``attention.qkv``."""
    casts_again: bool = False
    """Whether inputs of products are saved in 16 bits and cast to 8 bits again in backward."""
    fused_maxima: bool = False
    """Whether compiled operators find the largest magnitude of their output as they write it. Only outputs of matrix products and attention
    are then read again for it, and backward reuses the scales of forward."""
    weight_casts: Factor = 1.0
    """Number of times that a weight is cast to 8 bits per micro-batch; below 1 if several micro-batches share the copy."""
    attention_kernel: Literal["", "flash1", "flash2", "flash3", "flash4", "cudnn", "cudnn8", "triton"] = ""
    """Fused attention kernel for layers that specify their attention shape. Empty, or if the GPU lacks it: the first one in the GPU's
    ``kernels``."""
    masks_windows: bool = False
    """Whether a window shorter than the sequence is a mask in memory, with which attention computes all scores, as torch's
    ``scaled_dot_product_attention`` does; false: the kernel skips blocks of keys outside the window, as FlashAttention does."""
    channels_last: bool = False
    """Whether images are stored channels last, as tensor cores require; false: cuDNN transposes around each convolution."""
    transposed_norms: bool = False
    """Whether, in 16 bits, norms work channels first while images are channels last, so that norms transpose their inputs and outputs."""
    persistent_norms: bool = False
    """Whether, in 16 bits, BatchNorm's backward uses cuDNN's persistent kernels (for channels last). Their blocks wait for each other, so
    they cannot finish while a concurrent collective keeps some of them off the GPU."""
    unaligned_products: bool = True
    """Whether tensor cores run matrix products of any shape (cuBLAS 11 and later, or software that pads); false: only multiples of 8."""
    fp32_convolution: Literal["fp32", "tf32"] = "tf32"
    """What fp32 means for convolutions on GPUs with TF32 tensor cores; the default differs between PyTorch versions."""
    fp32_matmul: Literal["fp32", "tf32"] = "fp32"
    """What fp32 means for matrix products on GPUs with TF32 tensor cores."""
    cudnn: str = Field(default="8.0", pattern=r"^\d+(\.\d+)*$")
    """cuDNN version, which decides the kernels of convolutions: before 5.1, only GPUs of the Maxwell architecture have Winograd."""


class UpdateWork(Section):
    """What happens to gradients between backward and the next step, apart from the exchange."""

    gradient_clipping: bool = False
    """Whether gradients are clipped by their global norm: one pass to read them and one to write them, after all are ready."""
    optimizer: Literal["per_tensor", "foreach", "fused"]
    """Kernels of the optimizer step. per_tensor: several for each tensor; foreach: several for each list of tensors; fused: one for all."""
    optimizer_factor: Factor = 1.0
    """Factor on the time and kernels of torch's own optimizer step, for stacks that add clipping, norms or statistics per tensor."""
    accumulates_gradients: bool = False
    """Whether gradients are zeroed before each step and added to: two kernels and four passes per tensor. false: the first gradient is
    stored directly (torch.optim.Optimizer.zero_grad: set_to_none is the default since 2.0)."""
    frees_gradients: bool = False
    """Whether the memory of gradients is free from the optimizer step until backward creates them again (``zero_grad`` of torch 2)."""
    gradient_hooks: float = Field(default=0.0, ge=0)
    """Number of kernels that hooks launch on each gradient tensor when it is ready; each is one pass over the tensor."""
    gradient_checks: float = Field(default=0.0, ge=0)
    """Host work on each gradient tensor after backward, in multiples of ``launch_cpu``. The GPU waits, because the host reads the results
    back one by one."""
