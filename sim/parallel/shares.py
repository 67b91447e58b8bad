"""Which part of a layer does one rank of a tensor, context and expert group compute and hold? It depends on the layer's ``share``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sim.parallel.routing import expert_load
from sim.spec.layer import Layer, TensorShare
from sim.spec.parallel import Parallel


def inside_experts(layers: Sequence[Layer], index: int) -> TensorShare:
    """Return how tensor ranks split layer *index*, in a run of experts, if they hold a part of every expert, as in a dense feed-forward.

    Products are split by columns, the last one by rows, and what is between them like their columns. Around them, every rank dispatches and
    combines all copies of the group's tokens (torchtitan's TensorParallel of experts; Megatron-LM's expert tensor parallelism).
    """
    first = last = index
    while first > 0 and layers[first - 1].share == "expert":
        first -= 1
    while last + 1 < len(layers) and layers[last + 1].share == "expert":
        last += 1
    products = [number for number in range(first, last + 1) if len(layers[number].channels) == 2]
    if not products or not products[0] <= index <= products[-1]:
        return "replicated"
    if index == products[-1]:
        return "rowwise"
    return "colwise" if index in products else "heads"


def rank_layer(layers: Sequence[Layer], index: int, parallel: Parallel, regathers: bool = True) -> Layer:
    """Return the part that one rank computes and holds of layer *index* of *layers*, the layers of a unit; *regathers* as in `split`."""
    layer = layers[index]
    holds_parts = layer.share == "expert" and parallel.expert == 1 and parallel.tensor > 1
    return rank_share(layer, parallel, regathers, inside_experts(layers, index) if holds_parts else None)


def rank_share(layer: Layer, parallel: Parallel, regathers: bool = True, inside: TensorShare | None = None) -> Layer:
    """Return the part of *layer* that one rank computes and holds; *regathers* as in `split`.

    *inside* says how tensor ranks split a layer of experts of which they hold parts (`inside_experts`); None: the layer's own ``share``.
    """
    share = layer.share if inside is None else inside
    load = expert_load(parallel).maximum if layer.share == "expert" else 1.0
    if parallel.tensor == parallel.context == parallel.expert == 1 and load == 1.0:
        return layer
    tensor, context = parallel.tensor, parallel.context
    work, read, write, weights = _shares(share, tensor, parallel.sequence_parallel, parallel.expert)
    uneven = _uneven(layer, share, tensor)
    work, weights = work * uneven, weights * uneven
    read, write = (read * uneven, write) if share == "rowwise" else (read, write * uneven)
    work, read, write = work * load / context, read * load / context, write * load / context
    saved = layer.saved * _saved_share(share, parallel, read, write, regathers and inside is None)
    within = {
        "forward": layer.forward * work,
        "backward": layer.backward * work,
        "arithmetic": layer.arithmetic * work,
        "backward_arithmetic": layer.backward_arithmetic * work,
        "read": layer.read * read,
        "entering": None if layer.entering is None else layer.entering * read,
        "write": layer.write * write,
        "backward_traffic": layer.backward_traffic * (layer.read * read + layer.write * write) / max(layer.read + layer.write, 1.0),
        "saved": saved,
        "casts": round(layer.casts * read),
        "dropped": round(layer.dropped * write),
        "composed": round(layer.composed * write),
        "gradients": _parts(layer, layer.gradients, weights),
        "frozen": _parts(layer, layer.frozen, weights),
    }
    return layer.model_copy(update=within | _shape(layer, share, parallel))


@lru_cache(maxsize=8192)
def _shares(share: TensorShare, tensor: int, sequence: bool, expert: int) -> tuple[float, float, float, float]:
    """Return the shares of a layer's work, input, output and weights that one rank of a tensor (and expert) group has."""
    one = 1.0 / tensor
    if share == "colwise":
        return one, 1.0, one, one
    if share == "rowwise":
        return one, one, 1.0, one
    if share == "vocabulary":
        return one, one, 1.0, one
    if share == "heads":
        return one, one, one, one
    if share == "per_head":
        return one, one, one, 1.0
    if share == "sequence":
        return (one, one, one, 1.0) if sequence else (1.0, 1.0, 1.0, 1.0)
    if share == "expert":
        if expert == 1:
            return one, one, one, one
        of_tokens = one if sequence else 1.0  # every rank sends its own tokens
        return of_tokens, of_tokens, of_tokens, 1.0 / expert
    return 1.0, 1.0, 1.0, 1.0


def _largest(size: int, ranks: int) -> int:
    """Return how many of *size* rows or columns the first of *ranks* has with the chunking of torch's DTensor; others may have fewer."""
    return -(-size // ranks)


def _uneven(layer: Layer, share: TensorShare, tensor: int) -> float:
    """Return the first rank's part of a split product relative to an even share. Gate and up, one product here, are two in torch."""
    if tensor == 1 or len(layer.channels) != 2 or share not in ("colwise", "rowwise"):
        return 1.0
    size = layer.channels[1] if share == "colwise" else layer.channels[0]
    return _largest(size, tensor) * tensor / size


def _saved_share(share: TensorShare, parallel: Parallel, read: float, write: float, regathers: bool) -> float:
    """Return the part that one rank keeps of the saved activations of a layer with this *share*."""
    if share == "colwise" and parallel.sequence_parallel and regathers:
        return read / parallel.tensor
    return min(read, write) if share in ("heads", "per_head", "sequence", "expert", "rowwise") else read


def rowwise_bias(layer: Layer) -> int:
    """Return the number of elements of a rowwise product's bias, if it has one; 0 for other layers."""
    return layer.channels[1] if layer.share == "rowwise" and len(layer.channels) == 2 and layer.channels[0] > 1 else 0


def _parts(layer: Layer, elements: Sequence[int], share: float) -> tuple[int, ...]:
    """Return one rank's elements of tensors of *elements*; a rowwise product's bias is added to the sum, so every rank holds it whole."""
    bias = rowwise_bias(layer)
    return tuple(count if count == bias else max(1, round(count * share)) for count in elements) if share != 1.0 else tuple(elements)


def _shape(layer: Layer, share: TensorShare, parallel: Parallel) -> dict[str, object]:
    """Return the shape of one rank's product or attention."""
    tensor, context = parallel.tensor, parallel.context
    shape: dict[str, object] = {}
    if layer.rows and layer.share == "vocabulary":
        shape["rows"] = _largest(layer.rows, tensor)
        elements = max(1, round(layer.gradients[0] / layer.rows)) * _largest(layer.rows, tensor) if layer.gradients else 0
        shape["gradients"] = (elements, *layer.gradients[1:]) if layer.gradients else ()
    if layer.tokens:
        tokens = layer.tokens / context
        if layer.share == "expert":
            tokens *= expert_load(parallel).maximum / (tensor if parallel.sequence_parallel and parallel.expert > 1 else 1)
            shape["groups"] = max(1, layer.groups // parallel.expert)
        elif layer.share == "sequence" and parallel.sequence_parallel:
            tokens /= tensor
        shape["tokens"] = max(1, round(tokens))
    if len(layer.channels) == 2 and share in ("colwise", "rowwise") and tensor > 1:
        k, n = layer.channels
        shape["channels"] = (k, _largest(n, tensor)) if share == "colwise" else (_largest(k, tensor), n)
    if layer.attention is not None:
        own = layer.attention
        if layer.share == "replicated":
            tensor = 1
        heads, kv_heads = max(1, own.heads // tensor), max(1, own.kv_heads // tensor)
        shape["attention"] = own.model_copy(
            update={"heads": heads, "kv_heads": kv_heads, "queries": max(1, own.queries // context), "shares": own.shares * context}
        )
    return shape
