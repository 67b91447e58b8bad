"""How many modules of its software run a layer on the host? Each has code of its own around the kernels that it launches.

Transformer Engine's modules, as Megatron-LM composes blocks of them (models/gpt/gpt_layer_specs.py; models/mamba/mamba_layer_specs.py): one
for each product, attention and scan, and for each norm that is not joined with the product after it (``TELayerNormColumnParallelLinear``).
A dense decoder's block has five. Blocks with experts have a norm of their own before the router, and latent attention has one before its
products. Routers and routed experts are left out, because the host time of experts includes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sim.spec.fields import SCANS
from sim.spec.layer import Layer

DECODER_MODULES: Final = 5
"""Modules of a dense decoder's block: q, k and v; attention; output; gate and up; down."""


def module_count(layers: Sequence[Layer], number: int, joined: tuple[str, ...]) -> int:
    """Return the modules of layer *number* of a block's *layers*; norms belong to the next layer if its name ends with one of *joined*."""
    layer = layers[number]
    if layer.op == "norm":
        return 0 if is_joined(layers, number, joined) else layer.forward_kernels
    if layer.share == "expert" or layer.name.endswith("router"):
        return 0
    return int(layer.op in ("gemm", "attention", *SCANS))


def is_joined(layers: Sequence[Layer], number: int, joined: tuple[str, ...]) -> bool:
    """Return whether the next one of *layers* after layer *number* runs it, as its name ends with one of *joined*."""
    return number + 1 < len(layers) and bool(joined) and layers[number + 1].name.endswith(joined)
