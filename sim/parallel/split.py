"""Which part of the model does one rank hold, and what must it exchange for it? Units, stages, and shares of layers.

A *unit* is a numbered block of the model, or what comes before the first or after the last one, or a part of these where a pipeline is
cut inside: what FSDP wraps, activation checkpointing recomputes and pipelines place. A layer's ``share`` says how a tensor group splits
it (`sim.spec.workload.TensorShare`); the messages follow from where the split begins and ends (Megatron-LM, arXiv 2205.05198: with
sequence parallelism an all-gather in and a reduce-scatter out, else one all-reduce out; the mirror image in backward).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, islice, pairwise
from typing import Final, Literal, NamedTuple

from sim.parallel.mesh import divisors
from sim.parallel.routing import expert_load
from sim.parallel.wraps import TORCHS_SIZE, WrapChain, chains
from sim.spec.parallel import Parallel, Wrapping
from sim.spec.segments import block
from sim.spec.workload import Attention, Layer, Model
from sim.spec.yaml import SpecError

UnitKind = Literal["first", "block", "last"]
_SPLIT = frozenset({"colwise", "heads", "per_head"})


class LayerMessage(NamedTuple):
    """One exchange of a rank per sample, in bytes for elements of 4; *beside* names the layer's own work that it overlaps."""

    axis: Literal["tensor", "context", "expert"]
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    nbytes: float
    beside: bool = False
    skew: float = 1.0
    """Of an all-to-all: what the most loaded rank receives, or in combine sends, over the mean."""


class LayerPiece(NamedTuple):
    """One rank's share of a layer, and what it exchanges before or after it."""

    layer: Layer
    forward: tuple[LayerMessage, ...] = ()
    backward: tuple[LayerMessage, ...] = ()
    counted: bool = False
    """Whether the host must read how many tokens each expert has before it launches this layer: the one behind the dispatch."""
    begins_experts: bool = False
    """Whether a run of experts begins with this layer."""


@dataclass(frozen=True)
class Unit:
    """A block of the model, or its head or tail, as one rank holds it. Units with equal *content* take equal time."""

    name: str
    kind: UnitKind
    pieces: tuple[LayerPiece, ...]
    content: int
    """Number of the first unit that asks the same of a rank."""
    wraps: WrapChain | None = None
    """FSDP's wraps around it, from the outside in, where the layout says what is wrapped; None: units and the root are."""
    begins_stage: bool = False
    """Whether the layout begins a stage with it."""
    asked: tuple[Hashable, ...] = field(default=(), repr=False)
    """What it asks of a rank before it is split: its kind, and all of its layers but their names. Equal in units of equal content."""

    @property
    def has_backward(self) -> bool:
        """Whether gradients come to it: not before the first layer that trains."""
        return any(
            layer.gradients or layer.backward or layer.backward_arithmetic or layer.backward_traffic
            for layer in (piece.layer for piece in self.pieces)
        )

    @cached_property
    def elements(self) -> float:
        """Return the parameters of one rank before sharding that are not experts."""
        return float(sum(sum(piece.layer.gradients) + sum(piece.layer.frozen) for piece in self.pieces if piece.layer.share != "expert"))

    @cached_property
    def expert_elements(self) -> float:
        """Return the parameters of one rank's experts before sharding."""
        return float(sum(sum(piece.layer.gradients) + sum(piece.layer.frozen) for piece in self.pieces if piece.layer.share == "expert"))

    @cached_property
    def trained(self) -> float:
        """Return the parameters of one rank before sharding that are not experts and get gradients."""
        return float(sum(sum(piece.layer.gradients) for piece in self.pieces if piece.layer.share != "expert"))

    @cached_property
    def trained_experts(self) -> float:
        """Return the parameters of one rank's experts before sharding that get gradients."""
        return float(sum(sum(piece.layer.gradients) for piece in self.pieces if piece.layer.share == "expert"))

    def summed(self, sequence: bool) -> tuple[int, ...]:
        """Return the elements of each trained tensor whose gradient tensor ranks have parts of.

        They all hold it, and use it for different heads, or with *sequence* parallelism for different tokens.
        """
        shares = ("sequence", "per_head") if sequence else ("per_head",)
        return tuple(elements for piece in self.pieces if piece.layer.share in shares for elements in piece.layer.gradients)

    def flattened(self, sequence: bool) -> int:
        """Return the elements whose gradients Megatron-LM adds up over tensor ranks in one buffer: those of norms of heads.

        With *sequence* parallelism all that it marks ``sequence_parallel``, too: other norms, biases of rowwise products, and what all
        ranks hold (routers, MLA's down projections). Positions are looked up for all tokens before these are split.
        """
        layers = [piece.layer for piece in self.pieces]
        heads = sum(sum(layer.gradients) for layer in layers if layer.share == "per_head")
        if not sequence:
            return heads
        replicated = sum(sum(layer.gradients) for layer in layers if layer.share in ("sequence", "replicated") and layer.op != "embedding")
        return heads + replicated + sum(layer.gradients.count(bias) * bias for layer in layers if (bias := _rowwise_bias(layer)))

    @property
    def boundary(self) -> float:
        """Return the bytes per sample (elements of 4) that enter the unit."""
        return self.pieces[0].layer.received if self.pieces else 0.0


def units(model: Model, cuts: Sequence[str] = ()) -> list[tuple[str, UnitKind, tuple[Layer, ...]]]:
    """Return the units of *model* in order: (name, kind, layers). Layers between two numbered blocks belong to the later one.

    A unit in which a module of *cuts* begins is two; raise SpecError where no stage can begin (`cut_layers`).
    """
    uncut = _units(model)
    if not cuts:
        return uncut
    path = dict(zip(cut_layers(model, cuts), cuts, strict=True))
    made: list[tuple[str, UnitKind, tuple[Layer, ...]]] = []
    first = 0
    for name, kind, layers in uncut:
        last = first + len(layers)
        for start, end in pairwise([first, *(at for at in path if first < at < last), last]):
            made.append((name if start == first else path[start], kind, model.layers[start:end]))
        first = last
    return made


def cut_layers(model: Model, cuts: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the layers that the modules *cuts* begin with.

    Raise SpecError for a module that *model* does not have, for the first one, for modules out of order, and inside a decoder's block,
    whose table does not say what is alive there.
    """
    names = [layer.name for layer in model.layers]
    of_units = {0, *accumulate(len(layers) for _, _, layers in _units(model))}
    starts: list[int] = []
    for cut in cuts:
        at = next((number for number, name in enumerate(names) if name == cut or name.startswith(f"{cut}.")), None)
        if at is None:
            near = difflib.get_close_matches(cut, dict.fromkeys([*names, *(block(name) for name in names)]), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it begins with {', '.join(names[:_NAMED])}, ..."
            raise SpecError(f"training.parallel.cuts: {model.name} has no module {cut}; {hint}")
        if at <= max([0, *starts]):
            before = "begins the model" if at == 0 else f"does not come behind {cuts[len(starts) - 1]}"
            raise SpecError(f"training.parallel.cuts: {cut} {before}; write modules in the order of the model, without the first")
        if model.transformer is not None and at not in of_units:
            raise SpecError(f"training.parallel.cuts: {cut} is inside of {block(cut)}; decoders are cut between blocks: write {block(cut)}")
        starts.append(at)
    return tuple(starts)


def _units(model: Model) -> list[tuple[str, UnitKind, tuple[Layer, ...]]]:
    runs = [(name, tuple(members)) for name, members in groupby(model.layers, key=lambda layer: block(layer.name))]
    numbered = {index for index, (name, _) in enumerate(runs) if re.search(r"\.\d+$", name)}
    if not numbered:
        return [(model.name, "block", model.layers)]
    made: list[tuple[str, UnitKind, tuple[Layer, ...]]] = []
    waiting: tuple[Layer, ...] = ()
    for index, (name, layers) in enumerate(runs):
        if index not in numbered:
            waiting += layers
            continue
        if not made and waiting:
            made.append((waiting[0].name, "first", waiting))
            waiting = ()
        made.append((name, "block", waiting + layers))
        waiting = ()
    return [*made, (waiting[0].name, "last", waiting)] if waiting else made


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
"""Fields of a layout that decide what one rank holds of a unit."""

_NAMES: Final = frozenset({"name", "segment", "shares"})
"""Fields of a layer in which equal units differ."""


def wrapping(model: Model, parallel: Parallel) -> Wrapping | None:
    """Return what FSDP wraps where that is said or the model has no numbered blocks; None: units."""
    if parallel.shard != "parameters" or parallel.wrap is not None or parallel.pipeline > 1:
        return parallel.wrap
    return None if _is_numbered(model) else TORCHS_SIZE


_NAMED: Final = 6
"""Layers that a message names."""


def _is_numbered(model: Model) -> bool:
    return any(re.search(r"\.\d+$", block(layer.name)) for layer in model.layers)


@lru_cache(maxsize=256)
def _split(model: _Held, parallel: Parallel, regathers: bool, wanted: Wrapping | None, cuts: tuple[str, ...]) -> tuple[Unit, ...]:
    _check(model.model, parallel)
    begin = _stage_starts(model.model, parallel, cuts)
    around = iter(() if wanted is None else chains(model.model, wanted))
    contents: dict[tuple[object, ...], tuple[Unit, ...]] = {}
    made: list[Unit] = []
    for name, kind, layers in units(model.model, cuts):
        of_layers = tuple(islice(around, len(layers))) or (None,) * len(layers)
        runs = [(chain, len(list(members))) for chain, members in groupby(of_layers)]
        key = (kind, *(length for _, length in runs), *(_content(layer) for layer in layers))
        if key not in contents:
            pieces = iter(_pieces(layers, parallel, regathers))
            parts = (tuple(islice(pieces, length)) for _, length in runs)
            contents[key] = tuple(Unit(name, kind, part, len(made) + index, asked=(index, *key)) for index, part in enumerate(parts))
        for index, ((chain, _), like) in enumerate(zip(runs, contents[key], strict=True)):
            made.append(replace(like, name=name, wraps=chain, begins_stage=index == 0 and layers[0].name in begin))
    return tuple(made)


def _stage_starts(model: Model, parallel: Parallel, cuts: tuple[str, ...]) -> frozenset[str]:
    """Return the layers that stages begin with by *cuts*. Raise SpecError for one between layers that ranks hold in parts."""
    starts = cut_layers(model, cuts)
    inside = False
    for number, (before, layer) in enumerate(pairwise(model.layers), 1):
        inside = parallel.tensor > 1 and _tensor_messages(before, parallel, inside, False, [], [])
        if number in starts and (inside or before.share == layer.share == "expert"):
            raise SpecError(
                f"training.parallel.cuts: {cuts[starts.index(number)]} is between layers that {'tensor' if inside else 'expert'} ranks "
                "hold in parts; cut in front of a block"
            )
    return frozenset(model.layers[number].name for number in starts)


class _Held:
    """A model as part of a key: equal to itself alone."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.model is other.model

    def __hash__(self) -> int:
        return id(self.model)


def _content(layer: Layer) -> tuple[object, ...]:
    return tuple([value for name, value in layer.__dict__.items() if name not in _NAMES])


def split(model: Model, parallel: Parallel, regathers: bool = True) -> tuple[Unit, ...]:
    """Return the units of *model* as one rank of a tensor, context and expert group holds them.

    With *regathers* backward gathers the inputs of split products again, which are not kept (Megatron-LM); else they are (torch).

    Raise SpecError where heads or experts do not divide, for layers without a tensor plan, for context without attention, and for cuts
    where no stage can begin.
    """
    own = {name: getattr(parallel, name) for name in _SPLITTING}
    return _split(_Held(model), Parallel(**own), regathers, wrapping(model, parallel), parallel.cuts)


def block_in_parts(units: Sequence[Unit], model: Model) -> str:
    """Return the first numbered block of *model* of which FSDP wraps parts, so that several of *units* are its; empty: none."""
    return next((one.name for one, other in pairwise(units) if one.kind == "block" and one.name == other.name != model.name), "")


def _check(model: Model, parallel: Parallel) -> None:
    heads = [layer.attention for layer in model.layers if layer.attention is not None]
    if parallel.tensor > 1:
        if model.tensor_plan and parallel.sequence_parallel and "sequence" not in model.tensor_plan.values():
            raise SpecError(
                f"training.parallel.sequence: the tensor_plan of {model.name} has no sequence layers, and tokens stay whole; "
                "write sequence: false, or sequence for its norms"
            )
        if parallel.expert > 1 and not parallel.sequence_parallel:
            raise SpecError(
                "training.parallel.sequence: experts beside tensor ranks need sequence parallelism (Megatron-LM); "
                "write sequence: true, or expert: 1"
            )
        bare = next((layer.name for layer in model.layers if not layer.share and (layer.gradients or layer.forward)), None)
        if bare is not None:
            raise SpecError(
                f"training.parallel.tensor: layer {bare} of {model.name} has no tensor plan; write its share (colwise, rowwise, ...) "
                "in model.tensor_plan, or use tensor: 1"
            )
        wrong = next((count for count in _split_heads(model.layers) if count % parallel.tensor), None)
        if wrong is not None:
            raise SpecError(
                f"training.parallel.tensor: {parallel.tensor} ranks do not divide {wrong} attention heads; "
                f"use {divisors(wrong, parallel.tensor)}"
            )
    if parallel.context > 1 and not heads:
        raise SpecError(f"training.parallel.context: {model.name} has no attention whose sequence could be split; use context: 1")
    groups = max((layer.groups for layer in model.layers), default=0)
    if parallel.expert > 1 and not groups:
        raise SpecError(f"training.parallel.expert: {model.name} has no experts; use expert: 1")
    if parallel.capacity_factor is not None and not groups:
        raise SpecError(f"training.parallel.capacity_factor: {model.name} has no experts; leave it out")
    if parallel.expert_imbalance > 1 and not groups:
        raise SpecError(f"training.parallel.expert_imbalance: {model.name} has no experts; leave it out")
    if groups and groups % parallel.expert:
        raise SpecError(
            f"training.parallel.expert: {parallel.expert} ranks do not divide {groups} experts; use {divisors(groups, parallel.expert)}"
        )


def _split_heads(layers: Iterable[Layer]) -> Iterator[int]:
    """Yield the heads of each attention that tensor ranks split; of separate products those that the columns before them hold."""
    columns = 0
    for layer in layers:
        if layer.share == "colwise" and layer.channels:
            columns = layer.channels[-1]
        elif layer.attention is not None and layer.share in _SPLIT:
            yield layer.attention.heads
        elif layer.op == "attention" and layer.share in _SPLIT and columns and layer.channels:
            yield columns // layer.channels[0]
            columns = 0  # the product with values combines keys, not the elements of a head


def _pieces(layers: Sequence[Layer], parallel: Parallel, regathers: bool) -> list[LayerPiece]:
    """Return the shares of the layers of one unit; a unit begins and ends outside of any split."""
    inside = False
    pieces = []
    for index, layer in enumerate(layers):
        forward: list[LayerMessage] = []
        backward: list[LayerMessage] = []
        if parallel.tensor > 1:
            inside = _tensor_messages(layer, parallel, inside, regathers, forward, backward)
        if layer.share == "expert":
            _expert_messages(layers, index, parallel, forward, backward)
        if parallel.context > 1 and layer.attention is not None:
            _context_messages(layer.attention, parallel, forward, backward)
        pieces.append(
            LayerPiece(shared(layer, parallel, regathers), tuple(forward), tuple(backward), _counted(layers, index), _begins(layers, index))
        )
    return pieces


def _begins(layers: Sequence[Layer], index: int) -> bool:
    """Tell whether layer *index* is the first of a run of experts."""
    return layers[index].share == "expert" and (index == 0 or layers[index - 1].share != "expert")


def _counted(layers: Sequence[Layer], index: int) -> bool:
    """Tell whether layer *index* is the second of a run of experts."""
    return [layer.share == "expert" for layer in layers[max(0, index - 2) : index + 1]] in ([True, True], [False, True, True])


def _tensor_messages(
    layer: Layer, parallel: Parallel, inside: bool, regathers: bool, forward: list[LayerMessage], backward: list[LayerMessage]
) -> bool:
    """Add what the tensor group exchanges for *layer*; return whether the layers after it work on split activations."""
    sequence, context = parallel.sequence_parallel, parallel.context
    if layer.op == "loss" and layer.share in _SPLIT:  # maximum, sum and target's logit of each token
        forward += [LayerMessage("tensor", "all_reduce", 4.0 * max(layer.tokens, 1) / context)] * 3
        return False
    if layer.share in _SPLIT and not inside:
        entering = layer.read / context
        if sequence:
            forward.append(LayerMessage("tensor", "all_gather", entering))
            backward.append(LayerMessage("tensor", "reduce_scatter", entering))
            if regathers:
                backward.append(LayerMessage("tensor", "all_gather", entering, beside=True))  # the input, for the weights' gradient
        else:
            backward.append(LayerMessage("tensor", "all_reduce", entering))
        return True
    if layer.share in ("rowwise", "vocabulary"):
        leaving = layer.write / context
        if sequence:
            forward.append(LayerMessage("tensor", "reduce_scatter", leaving))
            backward.append(LayerMessage("tensor", "all_gather", leaving))
        else:
            forward.append(LayerMessage("tensor", "all_reduce", leaving))
        return False
    return inside


def _expert_messages(
    layers: Sequence[Layer], index: int, parallel: Parallel, forward: list[LayerMessage], backward: list[LayerMessage]
) -> None:
    """Add dispatch before the first and combine after the last layer of a run of experts; without expert ranks tensor ranks split them."""
    begins = _begins(layers, index)
    ends = index + 1 == len(layers) or layers[index + 1].share != "expert"
    tokens = parallel.context * (parallel.tensor if parallel.sequence_parallel or parallel.expert == 1 else 1)
    if parallel.expert > 1:
        for there, nbytes in ((begins, layers[index].write), (ends, layers[index].read)):
            if there:
                load = expert_load(parallel)
                message = LayerMessage("expert", "all_to_all", nbytes * load.mean / tokens, skew=load.most / load.mean)
                forward.append(message)
                backward.append(message)
    elif parallel.tensor > 1 and parallel.sequence_parallel:
        if begins:
            forward.append(LayerMessage("tensor", "all_gather", layers[index].read / parallel.context))
            backward.append(LayerMessage("tensor", "reduce_scatter", layers[index].read / parallel.context))
        if ends:
            forward.append(LayerMessage("tensor", "reduce_scatter", layers[index].write / parallel.context))
            backward.append(LayerMessage("tensor", "all_gather", layers[index].write / parallel.context))
    elif parallel.tensor > 1:
        if begins:
            backward.append(LayerMessage("tensor", "all_reduce", layers[index].read / parallel.context))
        if ends:
            forward.append(LayerMessage("tensor", "all_reduce", layers[index].write / parallel.context))


def _context_messages(attention: Attention, parallel: Parallel, forward: list[LayerMessage], backward: list[LayerMessage]) -> None:
    """Add the exchange of keys and values: round a ring beside the attention of each piece, or gathered before it."""
    width = 4.0 * (attention.head_dim + (attention.value_dim or attention.head_dim))
    local = attention.keys / parallel.context * max(1.0, attention.kv_heads / parallel.tensor) * width
    if parallel.context_exchange == "ring":
        forward.append(LayerMessage("context", "all_gather", local * parallel.context, beside=True))  # as many steps round the ring
        backward.append(LayerMessage("context", "all_gather", 2.0 * local * parallel.context, beside=True))
    else:
        gathered = LayerMessage("context", "all_gather", local * parallel.context)
        forward.append(gathered)
        backward += [gathered, gathered._replace(op="reduce_scatter")]


@lru_cache(maxsize=8192)
def _shares(share: str, tensor: int, sequence: bool, expert: int) -> tuple[float, float, float, float]:
    """Return what part of its work, input, output and weights one rank of a tensor (and expert) group has of a layer."""
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
        of_tokens = one if sequence else 1.0  # every rank sends the tokens it has
        return of_tokens, of_tokens, of_tokens, 1.0 / expert
    return 1.0, 1.0, 1.0, 1.0


def shared(layer: Layer, parallel: Parallel, regathers: bool = True) -> Layer:
    """Return the part of *layer* that one rank computes and holds; *regathers* as in `split`."""
    load = expert_load(parallel).most if layer.share == "expert" else 1.0
    if parallel.tensor == parallel.context == parallel.expert == 1 and load == 1.0:
        return layer
    tensor, context = parallel.tensor, parallel.context
    work, read, write, weights = _shares(layer.share, tensor, parallel.sequence_parallel, parallel.expert)
    work, read, write = work * load / context, read * load / context, write * load / context
    saved = layer.saved * _saved_share(layer, parallel, read, write, regathers)
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
        "gradients": _parts(layer, layer.gradients, weights),
        "frozen": _parts(layer, layer.frozen, weights),
    }
    return layer.model_copy(update=within | _shape(layer, parallel))


def _saved_share(layer: Layer, parallel: Parallel, read: float, write: float, regathers: bool) -> float:
    """Return what part of a layer's saved activations one rank keeps."""
    if layer.share == "colwise" and parallel.sequence_parallel and regathers:
        return read / parallel.tensor
    return min(read, write) if layer.share in ("heads", "per_head", "sequence", "expert", "rowwise") else read


def _rowwise_bias(layer: Layer) -> int:
    """Return the elements that the bias of a rowwise product has if there is one; of other layers 0."""
    return layer.channels[1] if layer.share == "rowwise" and len(layer.channels) == 2 and layer.channels[0] > 1 else 0


def _parts(layer: Layer, elements: Sequence[int], share: float) -> tuple[int, ...]:
    """Return what one rank has of tensors of *elements*; the bias of a rowwise product is added to its sum, and is everywhere."""
    bias = _rowwise_bias(layer)
    return tuple(count if count == bias else max(1, round(count * share)) for count in elements) if share != 1.0 else tuple(elements)


def _shape(layer: Layer, parallel: Parallel) -> dict[str, object]:
    """Return the shape of one rank's product or attention."""
    tensor, context = parallel.tensor, parallel.context
    shape: dict[str, object] = {}
    if layer.rows and layer.share == "vocabulary":
        shape["rows"] = max(1, round(layer.rows / tensor))
        elements = max(1, round(layer.gradients[0] / layer.rows)) * round(layer.rows / tensor) if layer.gradients else 0
        shape["gradients"] = (elements, *layer.gradients[1:]) if layer.gradients else ()
    if layer.tokens:
        tokens = layer.tokens / context
        if layer.share == "expert":
            tokens *= expert_load(parallel).most / (tensor if parallel.sequence_parallel and parallel.expert > 1 else 1)
            shape["groups"] = max(1, layer.groups // parallel.expert)
        elif layer.share == "sequence" and parallel.sequence_parallel:
            tokens /= tensor
        shape["tokens"] = max(1, round(tokens))
    if len(layer.channels) == 2 and layer.share in ("colwise", "rowwise") and tensor > 1:
        k, n = layer.channels
        shape["channels"] = (k, max(1, n // tensor)) if layer.share == "colwise" else (max(1, k // tensor), n)
    if layer.attention is not None:
        own = layer.attention
        if layer.share == "replicated":
            tensor = 1
        heads, kv_heads = max(1, own.heads // tensor), max(1, own.kv_heads // tensor)
        shape["attention"] = own.model_copy(
            update={"heads": heads, "kv_heads": kv_heads, "queries": max(1, own.queries // context), "shares": own.shares * context}
        )
    return shape
