"""Which weights of a decoder are trained? Frozen layers, and low-rank adapters next to frozen weights (LoRA, Hu et al., arXiv 2106.09685).

A frozen product has no product for its weight's gradient and does not save its input; layers before the first trained one have no
backward at all. The adapter of a fused product is fused too: one pair of factors, as in NVIDIA's Megatron-Bridge. Its element-wise passes
are those of Hugging Face's PEFT, which adapts each of the separate products.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from sim.spec.decoder import decoder_layers
from sim.spec.fields import Count, Spec
from sim.spec.layer import Layer, TensorShare
from sim.spec.transformer import Transformer

TARGETS: Final = (
    "attention.qkv", "attention.q", "attention.q_down", "attention.q_up", "attention.kv_down", "attention.kv_up", "attention.output",
    "mamba.input", "mamba.output", "delta.input", "delta.output", "conv.input", "conv.output",
    "feed.gate_up", "feed.down", "shared.gate_up", "shared.down",
)  # fmt: skip
"""Products of a block that have an adapter by default: all but routers and experts, whose grouped products can have none."""
FOUR_BITS: Final = frozenset({"nf4", "int4", "4bit", "loadin4bit", "qlora", "quantization", "quantizationconfig", "quantized"})
"""Keys and values, without separators and in small letters, by which users ask for quantized weights."""
NOT_QUANTIZED: Final = (
    "weights of 4 bits (NF4, QLoRA) are not simulated; write precision: bf16 and model.lora: {rank: 16}, without the time of unpacking; "
    "frozen weights then take 2 bytes each in GPU memory, where NF4 takes 0.52 (arXiv 2305.14314)"
)
_RANGE: Final = re.compile(r"(.*\.)(\d+)\.\.(\d+)")


class Lora(Spec):
    """Low-rank adapters of *rank*; only they are trained."""

    rank: Count
    """Rank of the adapters: columns of the first factor, rows of the second."""
    targets: tuple[str, ...] = TARGETS
    """Products that have adapters, by the ends of their names."""


@lru_cache(maxsize=64)
def trained_layers(transformer: Transformer, sequence: int, lora: Lora | None, frozen: tuple[str, ...]) -> tuple[Layer, ...]:
    """Return the layers of *transformer* with adapters, and with the *frozen* ones untrained.

    Raise ValueError for a name that matches no layer, and for a sequence that is too long.
    """
    layers = decoder_layers(transformer, sequence)
    if lora is not None:
        layers = with_lora(layers, lora.rank, lora.targets)
    if frozen:
        names = [name for text in frozen for name in _names(text)]
        for name in names:
            if not any(_inside(layer.name, name) for layer in layers):
                raise ValueError(f"frozen: no layer is called {name}; expected a name such as tokens, layers.0 or layers.0.attention")
        layers = with_frozen(layers, [any(_inside(layer.name, name) for name in names) for layer in layers])
    return layers


def with_lora(layers: Sequence[Layer], rank: int, targets: Sequence[str] = TARGETS) -> tuple[Layer, ...]:
    """Return *layers*, all frozen, with a pair of factors of *rank* after each product whose name ends in one of *targets*.

    Raise ValueError if there is no such product.
    """
    wide: list[Layer] = []
    for layer in layers:
        wide.append(layer)
        if layer.op == "gemm" and layer.channels and not layer.groups and any(_ends(layer.name, target) for target in targets):
            wide += _adapter(layer, rank)
    if len(wide) == len(layers):
        able = [target for target in TARGETS if any(_ends(layer.name, target) for layer in layers)]
        raise ValueError(f"lora: no product is called {', '.join(targets)}; choose from {', '.join(able)}")
    return with_frozen(wide, [".lora_" not in layer.name for layer in wide])


def with_frozen(layers: Sequence[Layer], frozen: Sequence[bool]) -> tuple[Layer, ...]:
    """Return *layers* without the gradients of the *frozen* ones, and without backward before the first trained one."""
    shared = {layer.name for layer, is_frozen in zip(layers, frozen, strict=True) if is_frozen}
    trains = [
        (not is_frozen and (bool(layer.gradients) or (bool(layer.shares) and layer.shares not in shared)))
        for layer, is_frozen in zip(layers, frozen, strict=True)
    ]
    first = trains.index(True) if True in trains else len(layers)
    return tuple(
        _without_backward(layer, is_frozen) if number < first else _without_gradients(layer) if is_frozen else layer
        for number, (layer, is_frozen) in enumerate(zip(layers, frozen, strict=True))
    )


def _without_gradients(layer: Layer) -> Layer:
    """Return *layer* without gradients of its weights; gradients of activations still pass through it."""
    update: dict[str, object] = {"gradients": (), "frozen": layer.frozen + layer.gradients}
    if layer.op == "gemm":
        alone = layer.read + layer.write
        update |= {"backward": layer.forward, "backward_traffic": alone, "backward_kernels": 1, "saved": 0.0}
    if layer.op == "embedding":
        update |= {"rows": 0, "rows_per_sample": 0}
    return layer.model_copy(update=update)


def _without_backward(layer: Layer, is_frozen: bool) -> Layer:
    """Return *layer* without backward, because no gradient reaches it."""
    passive = {"backward": 0.0, "backward_arithmetic": 0.0, "backward_traffic": 0.0, "backward_kernels": 0, "saved": 0.0}
    return (_without_gradients(layer) if is_frozen else layer).model_copy(update=passive)


def _adapter(layer: Layer, rank: int) -> Iterator[Layer]:
    inner, outer = layer.channels
    shares: tuple[TensorShare, TensorShare] = (
        "rowwise" if layer.share == "rowwise" else "replicated",
        "colwise" if layer.share == "colwise" else "replicated",
    )
    for end, sizes, share in zip("ab", ((inner, rank), (rank, outer)), shares, strict=True):
        flop = 2.0 * layer.tokens * sizes[0] * sizes[1]
        read, write = 4.0 * layer.tokens * sizes[0], 4.0 * layer.tokens * sizes[1]
        yield Layer.model_construct(
            name=f"{layer.name}.lora_{end}",
            op="gemm",
            gradients=(sizes[0] * sizes[1],),
            forward=flop,
            backward=2.0 * flop,
            read=read,
            write=write,
            backward_traffic=2.0 * (read + write),
            saved=read,
            casts=layer.tokens * sizes[0] if end == "a" and layer.casts else 0,
            backward_kernels=2,
            channels=sizes,
            share=share,
            tokens=layer.tokens,
        )
    yield _scaled_and_added(layer, inner, outer)


def _scaled_and_added(layer: Layer, inner: int, outer: int) -> Layer:
    """Return the element-wise passes of an adapter (PEFT, tuners/lora/layer.py): its result is scaled and added to the layer's result.

    Backward scales the gradient and adds up the gradients of the input, two for each product that *layer* represents.
    """
    modules = max(1, layer.casts // (layer.tokens * inner))  # each of them casts the input separately
    added = (2 * modules - 1) * layer.tokens * inner
    output = 4.0 * layer.tokens * outer
    return Layer.model_construct(
        name=f"{layer.name}.lora_add",
        op="elementwise",
        arithmetic=2.0 * layer.tokens * outer,
        backward_arithmetic=1.0 * layer.tokens * outer + added,
        read=3.0 * output,
        write=2.0 * output,
        backward_traffic=2.0 * output + 3.0 * 4.0 * added,
        forward_kernels=2 * modules,
        backward_kernels=3 * modules - 1,
        share="sequence" if layer.share == "rowwise" else "heads" if layer.share == "colwise" else "replicated",
    )


def _names(text: str) -> list[str]:
    """Return the names that *text* represents: itself, or each name of a range such as ``layers.0..15``."""
    match = _RANGE.fullmatch(text)
    return [f"{match[1]}{number}" for number in range(int(match[2]), int(match[3]) + 1)] if match else [text]


def _inside(name: str, part: str) -> bool:
    return name == part or name.startswith(part + ".")


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith("." + target)
