"""Which part of the model does one rank hold? Its units, each with the rank's share of every layer and its messages.

This module combines units (`units`), shares (`shares`) and messages (`layer_messages`), and rejects layouts that a model cannot have.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby, islice, pairwise
from math import lcm
from typing import Final, NamedTuple

from sim.parallel.layer_messages import (
    SPLIT,
    LayerMessage,
    begins_experts,
    context_messages,
    expert_messages,
    key_bytes,
    scan_copies,
    scan_messages,
    tensor_messages,
)
from sim.parallel.mesh import nearest_divisors
from sim.parallel.ring import Ring, ring_attention, ring_messages
from sim.parallel.shares import rank_layer, rowwise_bias
from sim.parallel.units import UnitKind, cut_layers, units, wrapping
from sim.parallel.wraps import WrapChain, chains
from sim.spec.fields import SCANS
from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.parallel import Parallel, Wrapping
from sim.spec.transformer import Mamba
from sim.spec.yaml import SpecError


class LayerPiece(NamedTuple):
    """One rank's share of a layer, and the messages before or after it."""

    layer: Layer
    forward: tuple[LayerMessage, ...] = ()
    backward: tuple[LayerMessage, ...] = ()
    awaits_counts: bool = False
    """Whether the host must read the number of tokens of each expert before it launches this layer (the one after the dispatch)."""
    begins_experts: bool = False
    """Whether a run of experts begins with this layer."""


@dataclass(frozen=True)
class Unit:
    """A block of the model, or its beginning or end, as one rank holds it. Units with equal *content* take equal time."""

    name: str
    kind: UnitKind
    pieces: tuple[LayerPiece, ...]
    content: int
    """Number of the first unit with the same contents."""
    wraps: WrapChain | None = None
    """FSDP's wraps around it, from the outside in, if the layout specifies what is wrapped; None: the units and the root are wrapped."""
    begins_stage: bool = False
    """Whether the layout begins a stage with it."""
    unsplit_content: tuple[Hashable, ...] = field(default=(), repr=False)
    """Its contents before it is split: its kind, and all fields of its layers except names. Equal for units of equal content."""

    @cached_property
    def has_backward(self) -> bool:
        """Whether gradients reach it; they do not reach units before the first trained layer."""
        return any(
            layer.gradients or layer.backward or layer.backward_arithmetic or layer.backward_traffic
            for layer in (piece.layer for piece in self.pieces)
        )

    @cached_property
    def elements(self) -> float:
        """Return the number of parameters of one rank before sharding, without experts."""
        return float(sum(piece.layer.parameters for piece in self.pieces if piece.layer.share != "expert"))

    @cached_property
    def expert_elements(self) -> float:
        """Return the number of parameters of one rank's experts before sharding."""
        return float(sum(piece.layer.parameters for piece in self.pieces if piece.layer.share == "expert"))

    @cached_property
    def trained(self) -> float:
        """Return the number of trained parameters of one rank before sharding, without experts."""
        return float(sum(sum(piece.layer.gradients) for piece in self.pieces if piece.layer.share != "expert"))

    @cached_property
    def trained_experts(self) -> float:
        """Return the number of trained parameters of one rank's experts before sharding."""
        return float(sum(sum(piece.layer.gradients) for piece in self.pieces if piece.layer.share == "expert"))

    def summed(self, sequence: bool) -> tuple[int, ...]:
        """Return the elements of each trained tensor whose gradient must be summed over tensor ranks.

        All tensor ranks hold these tensors, but use them for different heads or, with *sequence* parallelism, for different tokens.
        """
        shares = ("sequence", "per_head") if sequence else ("per_head",)
        return tuple(elements for piece in self.pieces if piece.layer.share in shares for elements in piece.layer.gradients)

    def flattened(self, sequence: bool) -> int:
        """Return the number of elements whose gradients Megatron-LM sums over tensor ranks in one buffer: the norms of heads.

        With *sequence* parallelism, add everything that it marks ``sequence_parallel``: other norms, biases of rowwise products, and layers
        that all ranks hold (routers, MLA's down projections). Position embeddings are not among them: all tokens are looked up before they
        are split.
        """
        layers = [piece.layer for piece in self.pieces]
        heads = sum(sum(layer.gradients) for layer in layers if layer.share == "per_head")
        if not sequence:
            return heads
        replicated = sum(sum(layer.gradients) for layer in layers if layer.share in ("sequence", "replicated") and layer.op != "embedding")
        return heads + replicated + sum(layer.gradients.count(bias) * bias for layer in layers if (bias := rowwise_bias(layer)))

    @property
    def boundary(self) -> float:
        """Return the bytes per sample (4-byte elements) that enter the unit."""
        return self.pieces[0].layer.received_bytes if self.pieces else 0.0


_SPLITTING: Final = (
    "tensor",
    "sequence",
    "context",
    "context_exchange",
    "expert",
    "expert_imbalance",
    "capacity_factor",
    "pad_to_capacity",
)
"""Fields of a layout that determine one rank's part of a unit."""

_NAMES: Final = frozenset({"name", "segment", "shares"})
"""Fields of a layer that may differ between equal units."""


@lru_cache(maxsize=1024)
def _split(
    model: ModelKey, parallel: Parallel, regathers: bool, ring: Ring | None, wrapping_rule: Wrapping | None, cuts: tuple[str, ...]
) -> tuple[Unit, ...]:
    _check(model.model, parallel, ring)
    begin = _stage_starts(model.model, parallel, cuts)
    around = iter(() if wrapping_rule is None else chains(model.model, wrapping_rule))
    of_layer = iter(_contents(model))
    contents: dict[tuple[object, ...], tuple[Unit, ...]] = {}
    result: list[Unit] = []
    for name, kind, layers in units(model.model, cuts):
        of_layers = tuple(islice(around, len(layers))) or (None,) * len(layers)
        runs = [(chain, len(list(members))) for chain, members in groupby(of_layers)]
        key = (kind, *(length for _, length in runs), *islice(of_layer, len(layers)))
        if key not in contents:
            pieces = iter(_shared(model, _pieces(layers, parallel, regathers, ring, _mamba(model.model))))
            parts = (tuple(islice(pieces, length)) for _, length in runs)
            contents[key] = tuple(
                Unit(name, kind, part, len(result) + index, unsplit_content=(index, *key)) for index, part in enumerate(parts)
            )
        for index, ((chain, _), template) in enumerate(zip(runs, contents[key], strict=True)):
            result.append(replace(template, name=name, wraps=chain, begins_stage=index == 0 and layers[0].name in begin))
    return tuple(result)


def _stage_starts(model: Model, parallel: Parallel, cuts: tuple[str, ...]) -> frozenset[str]:
    """Return the layers with which stages begin according to *cuts*. Raise SpecError for a cut between layers that ranks hold in parts."""
    starts = cut_layers(model, cuts)
    if not starts:
        return frozenset()
    inside = False
    for number, (before, layer) in enumerate(pairwise(model.layers), 1):
        inside = parallel.tensor > 1 and tensor_messages(before, parallel, inside, False, [], [])
        if number in starts and (inside or before.share == layer.share == "expert"):
            raise SpecError(
                f"training.parallel.cuts: {cuts[starts.index(number)]} is between layers that {'tensor' if inside else 'expert'} ranks "
                "split; cut in front of a block"
            )
    return frozenset(model.layers[number].name for number in starts)


class ModelKey:
    """A model as part of a cache key, compared by identity."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelKey) and self.model is other.model

    def __hash__(self) -> int:
        return id(self.model)


@lru_cache(maxsize=256)
def tied_layers(held: ModelKey) -> frozenset[str]:
    """Return the layers of a model whose parameters other layers use as well."""
    return frozenset(layer.shares for layer in held.model.layers if layer.shares)


class _LayerFields:
    """All fields of a layer except names, with their hash, which is slow to compute."""

    __slots__ = ("fields", "number")

    def __init__(self, layer: Layer) -> None:
        self.fields = tuple([value for name, value in layer.__dict__.items() if name not in _NAMES])
        self.number = hash(self.fields)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _LayerFields) and self.number == other.number and self.fields == other.fields)

    def __hash__(self) -> int:
        return self.number


@lru_cache(maxsize=256)
def _contents(held: ModelKey) -> tuple[_LayerFields, ...]:
    """Return the content of each layer of a model; layers of equal content share one object."""
    unique: dict[_LayerFields, _LayerFields] = {}
    return tuple(unique.setdefault(each, each) for each in map(_LayerFields, held.model.layers))


@lru_cache(maxsize=256)
def _equal_parts(held: ModelKey) -> tuple[dict[tuple[object, ...], Layer], dict[tuple[object, ...], LayerPiece]]:
    """Return layers and pieces of any split of a model, by their contents."""
    return {}, {}


def _shared(held: ModelKey, pieces: Iterable[LayerPiece]) -> Iterator[LayerPiece]:
    """Yield *pieces*, of which those with equal contents in any split are one object: results cached by identity then serve all splits."""
    of_layers, of_pieces = _equal_parts(held)
    for piece in pieces:
        layer = of_layers.setdefault(tuple(piece.layer.__dict__.values()), piece.layer)
        yield of_pieces.setdefault((id(layer), *piece[1:]), piece._replace(layer=layer))


def split(model: Model, parallel: Parallel, regathers: bool = True, ring: Ring | None = None) -> tuple[Unit, ...]:
    """Return the units of *model* as one rank of a tensor, context and expert group holds them.

    With *regathers*, the inputs of split products are not kept, and backward gathers them again (Megatron-LM); otherwise they are kept
    (torch). Context ranks attend around torch's *ring*, or, without it, as in Transformer Engine.

    Raise SpecError if heads or experts cannot be divided evenly, for layers without a tensor plan, for context without attention, and for
    cuts where no stage can begin.
    """
    own = {name: getattr(parallel, name) for name in _SPLITTING}
    return _split(ModelKey(model), Parallel(**own), regathers, ring, wrapping(model, parallel), parallel.cuts)


def split_block(units: Sequence[Unit], model: Model) -> str:
    """Return the name of the first numbered block of *model* that FSDP wraps in parts, so that it has several *units*; empty if none."""
    return next((one.name for one, other in pairwise(units) if one.kind == "block" and one.name == other.name != model.name), "")


def _check(model: Model, parallel: Parallel, ring: Ring | None) -> None:
    heads = [layer.attention for layer in model.layers if layer.attention is not None]
    if parallel.tensor > 1:
        _check_tensor(model, parallel)
    if parallel.context > 1 and not heads:
        raise SpecError(f"training.parallel.context: {model.name} has no attention to split by sequence; use context: 1")
    if parallel.context > 1 and any(layer.op in SCANS for layer in model.layers):
        _check_scans(model, parallel, ring)
    if parallel.context > 1 and model.transformer is not None and model.transformer.short_conv is not None:
        raise SpecError(f"training.parallel.context: short convolutions of {model.name} over context ranks are not modeled; use context: 1")
    groups = max((layer.groups for layer in model.layers), default=0)
    if parallel.expert > 1 and not groups:
        raise SpecError(f"training.parallel.expert: {model.name} has no experts; use expert: 1")
    if parallel.capacity_factor is not None and not groups:
        raise SpecError(f"training.parallel.capacity_factor: {model.name} has no experts; leave it out")
    if parallel.expert_imbalance > 1 and not groups:
        raise SpecError(f"training.parallel.expert_imbalance: {model.name} has no experts; leave it out")
    if groups and groups % parallel.expert:
        near = nearest_divisors(groups, parallel.expert)
        raise SpecError(f"training.parallel.expert: {parallel.expert} ranks do not divide {groups} experts; use {near}")


def _check_scans(model: Model, parallel: Parallel, ring: Ring | None) -> None:
    """Raise SpecError if context ranks cannot divide the heads of scans, as core/ssm/mamba_context_parallel.py of Megatron-LM requires."""
    mamba, ranks = _mamba(model), parallel.context
    if mamba is None or ring is not None:
        what = "gated delta nets" if mamba is None else "state-space layers"
        how = "" if mamba is None else " that attend around torch's ring"
        raise SpecError(f"training.parallel.context: {what} of {model.name} over context ranks{how} are not modeled; use context: 1")
    for name, count in (("heads", mamba.heads // parallel.tensor), ("groups", mamba.groups // parallel.tensor)):
        if count % ranks and not (name == "groups" and ranks % count == 0):  # several ranks may share a group
            raise SpecError(
                f"training.parallel.context: {ranks} ranks do not divide mamba.{name} of a tensor rank ({count}), as Megatron-LM requires; "
                f"use {nearest_divisors(count, ranks)}"
            )


def _mamba(model: Model) -> Mamba | None:
    """Return the sizes of Mamba-2 layers of *model*; None if it has none, or other state spaces as well."""
    shape = model.transformer
    return shape.mamba if shape is not None and shape.has_mamba and "G" not in (shape.pattern or "") else None


def _check_tensor(model: Model, parallel: Parallel) -> None:
    """Raise SpecError if tensor ranks cannot split *model*."""
    if model.tensor_plan and parallel.sequence_parallel and "sequence" not in model.tensor_plan.values():
        raise SpecError(
            f"training.parallel.sequence: the tensor_plan of {model.name} has no sequence layers, so tokens are not split; write "
            "sequence: false, or sequence for its norms"
        )
    if parallel.expert > 1 and not parallel.sequence_parallel:
        raise SpecError(
            "training.parallel.sequence: experts with tensor parallelism need sequence parallelism (Megatron-LM); write sequence: "
            "true, or expert: 1"
        )
    if any(not layer.share and (layer.gradients or layer.forward) for layer in model.layers):
        raise SpecError(
            f"training.parallel.tensor: {model.name} has no tensor plan, which says what each rank holds of a layer; write one, "
            "model.tensor_plan={NAME: colwise, NAME: rowwise}, and sequence: false unless it splits tokens, or use tensor: 1"
        )
    require_heads(model, parallel)
    for sizes, count in _scan_groups(model):
        if count % parallel.tensor:
            raise SpecError(
                f"training.parallel.tensor: {parallel.tensor} ranks do not divide {sizes} ({count}), as Megatron-LM requires; "
                f"use {nearest_divisors(count, parallel.tensor)}"
            )


def token_multiple(parallel: Parallel) -> int:
    """Return the number of which the tokens of a sequence must be a multiple.

    Each context rank takes two equal parts, one from either end, and with sequence parallelism tensor ranks divide both together
    (``seq_len_divisor`` of torchtitan, ``validate_args`` of Megatron-LM and its mappings).
    """
    context, tensor = parallel.context, parallel.tensor if parallel.sequence_parallel else 1
    return lcm(2 * context if context > 1 else 1, context * tensor)


def require_tokens(tokens: int | None, parallel: Parallel) -> None:
    """Raise SpecError if context and tensor ranks do not divide sequences of *tokens*; None: samples are no sequences."""
    multiple = token_multiple(parallel)
    if tokens is None or tokens % multiple == 0:
        return
    ranks = [f"{parallel.context} context ranks of two parts each"] if parallel.context > 1 else []
    ranks += [f"{parallel.tensor} tensor ranks with sequence parallelism"] if parallel.sequence_parallel else []
    below = tokens // multiple * multiple
    near = f"{below} or {below + multiple}" if below else f"{multiple}"
    who = " and ".join(ranks)
    raise SpecError(f"training.parallel: {who} do not divide a sequence of {tokens} tokens; use {near} tokens (--sequence), or other axes")


def require_heads(model: Model, parallel: Parallel, gpus: int = 0) -> None:
    """Raise SpecError if tensor ranks do not divide the attention heads of *model*, with numbers that do, also of the *gpus* if given."""
    wrong = next((count for count in _split_heads(model.layers) if count % parallel.tensor), None)
    if wrong is not None:
        others = parallel.pipeline * parallel.context
        near = nearest_divisors(wrong, parallel.tensor, gpus // others if gpus % others == 0 else 0)
        raise SpecError(f"training.parallel.tensor: {parallel.tensor} ranks do not divide {wrong} attention heads; use {near}")


def _split_heads(layers: Iterable[Layer]) -> Iterator[int]:
    """Yield the number of heads of each attention that tensor ranks split; for attention in separate products, from their columns."""
    columns = 0
    for layer in layers:
        if layer.share == "colwise" and layer.channels:
            columns = layer.channels[-1]
        elif layer.attention is not None and layer.share in SPLIT:
            yield layer.attention.heads
        elif layer.op == "attention" and layer.share in SPLIT and columns and layer.channels:
            yield columns // layer.channels[0]
            columns = 0  # the product with values sums over keys, not over the elements of a head


def _scan_groups(model: Model) -> Iterator[tuple[str, int]]:
    """Yield what tensor ranks divide of the state-space layers of *model*: groups of Mamba-2, key heads of delta nets, which divide heads.

    Megatron-LM's core/ssm/mamba_mixer.py and gated_delta_net.py refuse others.
    """
    shape = model.transformer
    if shape is not None and shape.mamba is not None and shape.has_mamba:
        yield "mamba.groups", shape.mamba.groups
    if shape is not None and shape.delta_net is not None and "G" in (shape.pattern or ""):
        yield "delta_net.key_heads", shape.delta_net.key_heads


def _pieces(layers: Sequence[Layer], parallel: Parallel, regathers: bool, ring: Ring | None, mamba: Mamba | None) -> list[LayerPiece]:
    """Return one rank's pieces of the layers of one unit; a unit begins and ends outside of any split."""
    inside = False
    pieces = []
    for index, layer in enumerate(layers):
        forward: list[LayerMessage] = []
        backward: list[LayerMessage] = []
        if parallel.tensor > 1:
            inside = tensor_messages(layer, parallel, inside, regathers, forward, backward)
        if layer.share == "expert":
            expert_messages(layers, index, parallel, forward, backward)
        own = rank_layer(layers, index, parallel, regathers)
        if parallel.context > 1 and mamba is not None and layer.op == "scan":
            scan_messages(layer, mamba, parallel, forward, backward)
        if parallel.context > 1 and mamba is not None and index + 1 < len(layers) and layers[index + 1].op == "scan":
            copies = scan_copies(layer, mamba, parallel)
            own = own.model_copy(update={"read": own.read + copies, "backward_traffic": own.backward_traffic + copies})
        if parallel.context > 1 and layer.attention is not None and own.attention is not None:
            if ring is None:
                context_messages(layer.attention, parallel, forward, backward)
            else:
                own = own.model_copy(update={"attention": ring_attention(own.attention, ring)})
                local = key_bytes(ring_attention(layer.attention, ring), parallel)
                forward += ring_messages(local, parallel.context, ring, backward=False)
                backward += ring_messages(local, parallel.context, ring, backward=True)
        pieces.append(
            LayerPiece(
                own,
                tuple(forward),
                tuple(backward),
                _needs_counts(layers, index),
                begins_experts(layers, index),
            )
        )
    return pieces


def _needs_counts(layers: Sequence[Layer], index: int) -> bool:
    """Return whether layer *index* is the second layer of a run of experts."""
    return [layer.share == "expert" for layer in layers[max(0, index - 2) : index + 1]] in ([True, True], [False, True, True])
