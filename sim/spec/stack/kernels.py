"""Which kernels does a software stack run on one GPU, and what do launches cost? Forward, backward and update, exchange apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from sim.spec.fields import Factor, Fp8Recipe, Seconds, Span, Spec


class StackKernels(Spec):
    """How forward and backward run on one GPU, relative to the layer model."""

    launch_cpu: Seconds
    """Host time to launch one kernel."""
    cuda_graphs: bool = False
    """A whole step is captured once and replayed: its kernels cost the host one launch together."""
    compilation: Span = (0.0, 0.0)
    """Until a started process has compiled and tuned its kernels, at each start of a job; nothing where operators run one by one."""
    capture: Span = (11.0, 58.0)
    """Until CUDA graphs are captured, at each start of a job with ``cuda_graphs``: 58 s of Llama 3 8B on 8 H100
    (NVIDIA-NeMo/Megatron-Bridge #682), 11 s of smaller graphs (pytorch/torchtitan #3145)."""
    kernels_per_operator: Factor = 1.0
    """Kernels per operator of the layer table, relative to the table's own count: what the host launches and the GPU starts."""
    compute_factor: Factor = 1.0
    """GPU time of this stack relative to the layer model."""
    factor_by_kernels: bool = False
    """``compute_factor`` was fitted to steps of layouts, mostly on Hopper: others' ``kernels`` scale it (``whole_steps``)."""
    tensor_core_factor: Factor = 1.0
    """The same of convolutions and recurrent layers on tensor cores, on top of ``compute_factor``."""
    tensor_core_gemm_factor: Factor = 1.0
    """The same of matrix products and attention on tensor cores."""
    elementwise_traffic: Factor = 1.0
    """Bytes that element-wise operators, norms and softmax move, relative to the layer table's: below 1 where they are fused."""
    operator_traffic: Mapping[str, Factor] = Field(default_factory=dict)
    """The same of single operators in place of that, by the last part of their layers' names: ``loss``, ``activation``, ``rope``,
    ``residual``."""
    operator_memory: Mapping[str, Factor] = Field(default_factory=dict)
    """Bytes that single operators keep for backward in layouts, relative to the layer table's, by the last part of their layers' names:
    ``activation``."""
    logit_bytes: float = Field(default=12.0, ge=2)
    """Bytes of a logit of layouts at the loss's fullest moment: copies in 16 and 32 bits, the softmax, gradients."""
    split_logit_bytes: float | None = Field(default=None, ge=2)
    """The same where tensor ranks split the vocabulary; None: as many."""
    freed_logit_bytes: float = Field(default=0.0, ge=0)
    """Bytes of a logit that were freed before that moment, in blocks that nothing after them fits in: the allocator keeps them."""
    composed_traffic: Factor = 1.0
    """The same once more in models with attention, where the stack builds LayerNorm, GELU and dropout of many small kernels."""
    composed_gelu: bool = False
    """GELU that the model's code composes of operators (``composed_gelu`` of its transformer) has a kernel for each; else one."""
    composed_norms: bool = False
    """RMS norms have a kernel for each of their operators, in 32 bits; else one."""
    fused_dropout: bool = False
    """Dropout is part of the kernel that adds what is left of it to the residual stream; else a kernel writes it and another reads it."""
    score_passes: float | None = Field(default=None, ge=0)
    """Memory passes over attention's scores in a step where one kernel holds both products, softmax and dropout; None: as many as the
    layer table has, in kernels of their own."""
    fp8_recipes: tuple[Fp8Recipe, ...] = ()
    """How the stack can scale 8 bits, first what it does unasked; empty: all ways, unasked Transformer Engine's default on the GPU."""
    fused_casts: tuple[str, ...] = ()
    """Products whose input the norm or activation before them casts, as far as the recipe of 8 bits lets it, by the last parts of their
    layers' names: ``attention.qkv``."""
    casts_again: bool = False
    """Inputs of products are kept in 16 bits, and brought to 8 again in backward."""
    fused_maxima: bool = False
    """What compiled operators write they search for the largest magnitude at once, so that only what no operator wrote (of products and
    attention) is read again for that; backward takes a forward's scale."""
    weight_casts: Factor = 1.0
    """How often a batch brings a weight to 8 bits: below 1 where several micro-batches share the copy."""
    attention_kernel: Literal["", "flash2", "flash3", "flash4", "cudnn", "triton"] = ""
    """Which fused attention runs where layers say its shape; empty, or one that the GPU lacks: the first that its ``kernels`` list."""
    channels_last: bool = False
    """Images are stored channels last, as tensor cores want them; else cuDNN transposes around each convolution."""
    transposed_norms: bool = False
    """In 16 bits images are channels last, but norms work channels first, and transpose what they read and write."""
    persistent_norms: bool = False
    """In 16 bits backward of BatchNorm has kernels that do not end while a collective runs beside them: cuDNN's persistent ones, for
    channels last, whose blocks wait for each other, and for those that the collective keeps off the GPU."""
    unaligned_products: bool = True
    """Tensor cores take matrix products of any shape (cuBLAS 11 and later, or software that pads); else multiples of 8 only."""
    fp32_convolution: Literal["fp32", "tf32"] = "tf32"
    """What 'fp32' means for convolutions on GPUs with TF32 tensor cores; it changed with PyTorch's versions."""
    fp32_matmul: Literal["fp32", "tf32"] = "fp32"
    """The same for matrix products."""
    cudnn: str = Field(default="8.0", pattern=r"^\d+(\.\d+)*$")
    """Version that decides which kernels convolutions have: before 5.1 no Winograd on GPUs older than Maxwell."""


class UpdateWork(Spec):
    """What happens to gradients between backward and the next step, exchange apart."""

    gradient_clipping: bool = False
    """Gradients are scaled by their global norm: a pass to read them, and one to write them, after all have come."""
    optimizer: Literal["per_tensor", "foreach", "fused"]
    """How many kernels the step takes: some for each tensor, for each list of tensors, or one for all."""
    optimizer_factor: Factor = 1.0
    """Kernels of the optimizer step over those of torch's own rule, where the stack adds clipping, norms or statistics per tensor."""
    accumulates_gradients: bool = False
    """Gradients are zeroed before each step and added to, two kernels and four passes for each tensor; else the first one is taken as it is
    (torch.optim.Optimizer.zero_grad: set_to_none is its default since 2.0)."""
    frees_gradients: bool = False
    """Gradients' memory is free from the optimizer's step until backward makes them anew (torch 2's ``zero_grad`` drops them)."""
    gradient_hooks: float = Field(default=0.0, ge=0)
    """Kernels that hooks launch on each gradient tensor as it becomes ready, each a pass over it."""
    gradient_checks: float = Field(default=0.0, ge=0)
    """What the host does to each gradient tensor after backward, in launches; the GPU waits, for results are read back one by one."""
