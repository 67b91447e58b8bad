"""How do operators become layers? Two traces with different batches give the work of one sample; runs of operators form layers.

The work of an operator is linear in the batch, ``a + b * batch``: *b* is the cost of a sample, *a* the cost of the weights (reading
them, writing their gradients) or of work that is independent of the batch (a causal mask). The layer table holds *b*, so it does not matter
which operand is a weight. An operator that grows faster than the batch is rejected. Layers: an operator with a class of its own
(convolution, matrix product, norm, pooling, ...) is one layer; consecutive elementwise operators of one module call form one; an
RNN module is one; the loss is one. Limits: *a* is dropped; the GPU model adds the traffic of the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from sim.extract.operators import OperatorCost
from sim.spec.fields import Dtype, OperatorClass
from sim.spec.layer import Layer
from sim.spec.yaml import SpecError

_RECURRENT: Final = 2
"""Kernels per product of a recurrent layer: the product and the gates' arithmetic (Appleyard et al., arXiv 1604.01946, section 3.1)."""


class LayerEvent(Protocol):
    """One forward operator and the operators of its backward pass; see ``sim.extract.trace.Event``."""

    operator: str
    module: str
    call: int
    leaf: bool
    recurrent: bool
    cost: OperatorCost
    saved: int
    backward_flop: int
    arithmetic: int
    backward_arithmetic: int
    backward_traffic: int
    backward_kernels: int
    parameters: list[int]
    table: LayerTable | None
    looked_up: int
    sparse: bool
    segment: int
    entering: int


class LayerTable(NamedTuple):
    """Dimensions of the table of an embedding."""

    rows: int
    width: int


class Parameter(NamedTuple):
    """One parameter tensor."""

    elements: int
    trainable: bool
    dtype: Dtype = "fp32"


class ReadyGradient(NamedTuple):
    """A gradient that became ready: the event whose backward completed it, its number of elements, and its data type."""

    event: int
    elements: int
    dtype: Dtype = "fp32"


class OperatorWork(NamedTuple):
    """The cost of one sample in one operator or layer: FLOP and bytes. Kernels are launches, independent of the batch."""

    forward: int = 0
    backward: int = 0
    read: int = 0
    write: int = 0
    backward_traffic: int = 0
    saved: int = 0
    arithmetic: int = 0
    backward_arithmetic: int = 0
    forward_kernels: int = 0
    backward_kernels: int = 0

    def __add__(self, other: object) -> OperatorWork:
        """Add field by field."""
        return (
            OperatorWork(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))
            if isinstance(other, OperatorWork)
            else NotImplemented
        )


@dataclass
class _OperatorGroup:
    """Operators that will be one layer. *op* is None while they are only views and kernels without traffic."""

    module: str
    call: int
    leaf: bool
    operator: str
    op: OperatorClass | None = None
    cost: OperatorCost | None = None
    work: OperatorWork = field(default_factory=lambda: OperatorWork())
    gradients: list[ReadyGradient] = field(default_factory=list)
    table: LayerTable | None = None
    looked_up: int = 0
    sparse: bool = False
    frozen: list[Parameter] = field(default_factory=list)
    shares: _OperatorGroup | None = None
    segment: int = 0
    entering: int = 0

    @property
    def empty(self) -> bool:
        """Return whether the group runs no kernel and has no gradient."""
        return not (self.work.forward_kernels or self.work.backward_kernels or self.gradients)


def layers(
    small: Sequence[LayerEvent],
    large: Sequence[LayerEvent],
    batches: tuple[int, int],
    ready: Sequence[ReadyGradient],
    parameters: Sequence[Parameter] = (),
) -> list[Layer]:
    """Return the layers of two traces with these *batches*; *ready* holds the gradients in the order in which they became ready.

    *parameters* are the parameters to which events refer by number.
    """
    _same_operators(small, large, batches)
    groups: list[_OperatorGroup] = []
    member: list[_OperatorGroup] = []
    for event, other in zip(small, large, strict=True):
        work = _per_sample(event, other, batches)
        group = _matching_group(groups[-1] if groups else None, event, work)
        if group is None:
            entering = max(0, (other.entering - event.entering) // (batches[1] - batches[0]))
            group = _OperatorGroup(event.module, event.call, event.leaf, event.operator, segment=event.segment, entering=entering)
            groups.append(group)
        _add(group, event, work)
        if event.table is not None:
            group.table, group.sparse = event.table, event.sparse
            group.looked_up = (other.looked_up - event.looked_up) // (batches[1] - batches[0])
        member.append(group)
    _assign_gradients(groups, member, ready)
    _assign_parameters(member, small, parameters)
    return _to_layers([group for group in groups if not group.empty])


def _same_operators(small: Sequence[LayerEvent], large: Sequence[LayerEvent], batches: tuple[int, int]) -> None:
    pairs = zip([*small, None], [*large, None], strict=False)
    first = next((pair for pair in pairs if pair[0] is None or pair[1] is None or _identity(pair[0]) != _identity(pair[1])), None)
    if first is None or first == (None, None):
        return
    shown = " and ".join(f"{event.operator} in {event.module or 'the model'}" if event else "nothing more" for event in first)
    raise SpecError(
        f"the model runs different operators for batches of {batches[0]} and {batches[1]} ({shown}): a layer table needs control flow "
        "that does not depend on data, batch or randomness"
    )


def _identity(event: LayerEvent) -> tuple[str, str, int]:
    return event.operator, event.module, event.call


def _per_sample(small: LayerEvent, large: LayerEvent, batches: tuple[int, int]) -> OperatorWork:
    """Return the work per sample: the slope between the two batches. Raise SpecError if the work is not proportional to the batch."""
    step = batches[1] - batches[0]
    slopes = []
    for low, high in zip(_linear(small), _linear(large), strict=True):
        slope = (high - low) // step
        if slope < 0 or slope * step != high - low or slope * batches[0] > low:
            raise SpecError(
                f"{small.operator} in {small.module or 'the model'}: costs {low} at a batch of {batches[0]} and {high} at {batches[1]}; "
                "a layer table needs work proportional to the batch"
            )
        slopes.append(slope)
    done = [(high - low) // step for low, high in zip(_arithmetic(small), _arithmetic(large), strict=True)]  # unchecked: sorting is n log n
    return OperatorWork._make([*slopes, *done, *_kernels(small)])


def _arithmetic(event: LayerEvent) -> tuple[int, int]:
    return event.arithmetic, event.backward_arithmetic


def _kernels(event: LayerEvent) -> tuple[int, int]:
    """Return the forward and backward launches; cuDNN adds one fused elementwise kernel to each product of a recurrent layer."""
    if event.recurrent:
        return (_RECURRENT, _RECURRENT) if event.cost.op == "gemm" else (0, 0)
    return event.cost.kernels, event.backward_kernels


def _linear(event: LayerEvent) -> tuple[int, ...]:
    return event.cost.flop, event.backward_flop, event.cost.read, event.cost.write, event.backward_traffic, event.saved


def _matching_group(group: _OperatorGroup | None, event: LayerEvent, work: OperatorWork) -> _OperatorGroup | None:
    """Return *group* if *event* belongs to the same layer, else None."""
    if group is None or (group.call, group.segment) != (event.call, event.segment):
        return None
    op = _class(event, work)
    if op is None or group.op is None:
        return group
    return group if op == group.op and op in ("elementwise", "rnn", "loss") else None


def _class(event: LayerEvent, work: OperatorWork) -> OperatorClass | None:
    """Return the class that *event* gives its layer; None for views and for elementwise kernels without traffic per sample."""
    if event.recurrent:
        return "rnn"
    if event.module == "loss":
        return "loss"
    if event.cost.op == "elementwise" and not (work.read or work.write):
        return None
    return event.cost.op


def _add(group: _OperatorGroup, event: LayerEvent, work: OperatorWork) -> None:
    group.work += work
    if group.op is None and (op := _class(event, work)) is not None:
        group.op, group.operator = op, "rnn" if op == "rnn" else event.operator
    if group.cost is None and (event.cost.channels or event.cost.attention):
        group.cost = event.cost


def _assign_gradients(groups: Sequence[_OperatorGroup], member: Sequence[_OperatorGroup], ready: Sequence[ReadyGradient]) -> None:
    """Assign each gradient to the layer whose backward completes it, without changing the order in which they became ready.

    Backward runs layers in reverse. A gradient that became ready after the turn of its own layer goes to the layer whose turn it was.
    """
    position = {id(group): index for index, group in enumerate(groups)}
    turn = len(groups)
    for gradient in ready:
        turn = min(turn, position[id(member[gradient.event])])
        groups[turn].gradients.append(gradient)


def _assign_parameters(member: Sequence[_OperatorGroup], events: Sequence[LayerEvent], parameters: Sequence[Parameter]) -> None:
    """Record for each layer the frozen parameters that it is the first to use, and the earlier layer with which it shares a parameter."""
    owner: dict[int, _OperatorGroup] = {}
    for group, event in zip(member, events, strict=True):
        for number in event.parameters:
            if number not in owner:
                owner[number] = group
                group.frozen += [] if parameters[number].trainable else [parameters[number]]
            elif owner[number].call != group.call and group.shares is None:
                group.shares = owner[number]


def _to_layers(groups: Sequence[_OperatorGroup]) -> list[Layer]:
    """Return the layers; a repeated name gets a number: ``layer1.0.relu``, ``layer1.0.relu.2``."""
    calls = Counter(group.call for group in groups)
    seen: Counter[str] = Counter()
    names: dict[int, str] = {}
    for group in groups:
        is_module = bool(group.module) and group.leaf and calls[group.call] == 1
        name = group.module if is_module else ".".join(part for part in (group.module, group.operator.strip("_")) if part)
        seen[name] += 1
        names[id(group)] = name if seen[name] == 1 else f"{name}.{seen[name]}"
    return [_layer(group, names[id(group)], names.get(id(group.shares), "")) for group in groups]


def _layer(group: _OperatorGroup, name: str, shares: str) -> Layer:
    cost, work = group.cost or OperatorCost(None), group.work
    table = group.table or LayerTable(0, 0)
    owned = bool(group.looked_up and group.gradients and group.gradients[0].elements == table.rows * table.width)
    products = bool(work.forward or work.backward)
    return Layer.model_construct(
        name=name,
        op=group.op or "elementwise",
        gradients=tuple(gradient.elements for gradient in group.gradients),
        dtypes=_dtypes([gradient.dtype for gradient in group.gradients] + [parameter.dtype for parameter in group.frozen]),
        forward=float(work.forward),
        backward=float(work.backward),
        arithmetic=0.0 if products else float(work.arithmetic),
        backward_arithmetic=0.0 if products else float(work.backward_arithmetic),
        read=float(work.read),
        entering=float(group.entering) if group.entering != work.read else None,
        write=float(work.write),
        backward_traffic=float(work.backward_traffic),
        saved=float(work.saved),
        forward_kernels=work.forward_kernels,
        backward_kernels=work.backward_kernels,
        kernel_size=cost.kernel_size,
        stride=cost.stride,
        channels=cost.channels,
        attention=cost.attention,
        rows=table.rows if owned else 0,
        rows_per_sample=group.looked_up if owned else 0,
        sparse=group.sparse,
        frozen=tuple(parameter.elements for parameter in group.frozen),
        shares=shares,
        segment=group.segment,
    )


def _dtypes(types: Sequence[Dtype]) -> tuple[Dtype, ...]:
    """Return *types* in the shortest form: none if all are fp32, one if all are equal."""
    if len(set(types)) < 2:
        return tuple(dtype for dtype in types[:1] if dtype != "fp32")
    return tuple(types)
