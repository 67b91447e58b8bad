"""From operators to layers, on events written by hand; no torch needed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.extract.layers import LayerTable, Parameter, ReadyGradient, layers
from sim.extract.operators import OperatorCost
from sim.spec.layer import Layer
from sim.spec.yaml import SpecError


@dataclass
class Event:
    """What ``sim.extract.trace`` would have recorded."""

    operator: str
    module: str = ""
    call: int = 0
    leaf: bool = True
    recurrent: bool = False
    cost: OperatorCost = field(default=OperatorCost("elementwise", 0, 0, 0, 1))
    saved: int = 0
    backward_flop: int = 0
    arithmetic: int = 0
    backward_arithmetic: int = 0
    backward_traffic: int = 0
    backward_kernels: int = 1
    parameters: list[int] = field(default_factory=list)
    table: LayerTable | None = None
    looked_up: int = 0
    sparse: bool = False
    segment: int = 0
    entering: int = 0


def scaled(event: Event, batch: int, constant: int = 0) -> Event:
    """Return *event* at a batch: its own numbers per sample, *constant* whatever the batch."""
    cost = event.cost._replace(
        flop=event.cost.flop * batch,
        read=event.cost.read * batch + constant,
        write=event.cost.write * batch + (constant if event.cost.write else 0),
    )
    per_sample = {"saved": event.saved * batch, "entering": event.entering * batch + constant}
    return replace(event, cost=cost, backward_traffic=event.backward_traffic * batch + constant, **per_sample)


def made(*events: Event, ready: tuple[ReadyGradient, ...] = (), constant: int = 0) -> list[Layer]:
    return layers([scaled(event, 2, constant) for event in events], [scaled(event, 3, constant) for event in events], (2, 3), ready)


def conv(module: str, call: int, **more: int) -> Event:
    return Event("convolution", module, call, cost=OperatorCost("conv", 100, 8, 6, 1, 3, 2, (3, 4)), **more)


@given(st.integers(0, 10**6), st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 10**9))
def test_what_does_not_grow_with_the_batch_is_no_part_of_a_sample(read: int, write: int, saved: int, constant: int) -> None:
    """The table holds the slope exactly, whatever the weights' constant share."""
    event = Event("relu", "act", 1, cost=OperatorCost("elementwise", 0, read, write, 1), saved=saved)
    (layer,) = made(event, constant=constant)
    assert (layer.read, layer.write, layer.saved) == (read, write, saved)


def test_elementwise_neighbors_of_one_call_are_one_layer_and_classes_of_their_own_are_not() -> None:
    add, mul = (Event(name, "block", 1, leaf=False, cost=OperatorCost("elementwise", 0, 4, 2, 1)) for name in ("add", "mul"))
    softmax = Event("_softmax", "block", 1, leaf=False, cost=OperatorCost("softmax", 0, 4, 4, 1))
    made_layers = made(conv("block.conv", 2), add, mul, softmax, replace(add))
    assert [(layer.name, layer.op, layer.forward_kernels, layer.read) for layer in made_layers] == [
        ("block.conv", "conv", 1, 8),
        ("block.add", "elementwise", 2, 8),
        ("block.softmax", "softmax", 1, 4),
        ("block.add.2", "elementwise", 1, 4),
    ]
    assert (made_layers[0].kernel_size, made_layers[0].stride, made_layers[0].channels) == (3, 2, (3, 4))


def test_views_and_kernels_without_traffic_join_what_follows() -> None:
    """A batch norm's counter is a kernel of the norm's layer, not a layer."""
    counter = Event("add_", "bn", 1, cost=OperatorCost("elementwise", 0, 0, 0, 1), backward_kernels=0)
    norm = Event("native_batch_norm", "bn", 1, cost=OperatorCost("norm", 0, 16, 8, 1))
    (layer,) = made(counter, norm)
    assert (layer.name, layer.op, layer.forward_kernels) == ("bn", "norm", 2)
    view = Event("view", "", 0, cost=OperatorCost(None), backward_kernels=0)
    assert [layer.name for layer in made(view, counter, norm, replace(view))] == ["bn"]


def test_a_recurrent_module_is_one_layer() -> None:
    steps = [
        Event(name, "rnn", 1, recurrent=True, cost=OperatorCost(op, 4, 4, 4, 1))
        for name, op in (("addmm", "gemm"), ("tanh", "elementwise"))
    ]
    (layer,) = made(*steps, *steps)
    assert (layer.op, layer.forward, layer.forward_kernels) == ("rnn", 16, 4)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_gradients_keep_the_order_in_which_they_became_ready(owners: list[int]) -> None:
    """Whatever layer a gradient belongs to, reading the layers in reverse gives back the order of readiness."""
    events = [conv(f"layer{index}", index + 1) for index in range(6)]
    ready = tuple(ReadyGradient(owner, 100 + index) for index, owner in enumerate(owners))
    made_layers = made(*events, ready=ready)
    assert [elements for layer in reversed(made_layers) for elements in layer.gradients] == [gradient.elements for gradient in ready]
    for layer, event in zip(made_layers, range(6), strict=True):  # never before its own layer's turn
        assert all(owners[elements - 100] >= event for elements in layer.gradients)


def test_work_must_be_in_proportion_to_the_batch() -> None:
    event = Event("mm", "head", 1, cost=OperatorCost("gemm", 4, 0, 0, 1))
    large = replace(event, cost=event.cost._replace(flop=9))
    with pytest.raises(SpecError, match=r"mm in head: costs 4 at a batch of 2 and 9 at 3"):
        layers([event], [large], (2, 3), ())


def test_both_batches_must_run_the_same_operators() -> None:
    with pytest.raises(SpecError, match=r"relu in a and nothing more"):
        layers([Event("relu", "a", 1)], [], (2, 3), ())
    with pytest.raises(SpecError, match=r"relu in a and tanh in a"):
        layers([Event("relu", "a", 1)], [Event("tanh", "a", 1)], (2, 3), ())


def test_frozen_and_shared_parameters_and_segments_are_noted_on_their_layers() -> None:
    """Parameter 0 is frozen and used by three module calls, parameter 1 is trained; the second call runs in a checkpointed segment."""
    events = [conv("a", 1), replace(conv("b", 2), segment=1), conv("c", 3)]
    for event, numbers in zip(events, ([0, 1], [0], [1]), strict=True):
        event.parameters = numbers
    first, second, third = _owned(events)
    assert (first.frozen, first.shares, first.segment) == ((7,), "", 0)
    assert (second.frozen, second.shares, second.segment) == ((), "a", 1)
    assert (third.frozen, third.shares, third.segment) == ((), "a", 0)


def _owned(events: list[Event]) -> list[Layer]:
    small, large = ([scaled(event, batch) for event in events] for batch in (2, 3))
    return layers(small, large, (2, 3), (), [Parameter(7, False), Parameter(5, True)])


@pytest.mark.parametrize(("elements", "rows"), [(800, (50, 3)), (17, (0, 0))])
def test_rows_are_those_of_one_sample_and_stand_beside_the_tables_own_gradient(elements: int, rows: tuple[int, int]) -> None:
    """Four samples look up 12 rows of 50 x 16 and six look up 18: three a sample; a gradient of another size is not the table's."""
    event = Event("embedding", "words", 1, cost=OperatorCost("embedding", 0, 0, 4, 1), table=LayerTable(50, 16), sparse=True)
    small, large = replace(scaled(event, 4), looked_up=12), replace(scaled(event, 6), looked_up=18)
    (layer,) = layers([small], [large], (4, 6), [ReadyGradient(0, elements)])
    assert (layer.rows, layer.rows_per_sample, layer.sparse) == (*rows, True)


def test_a_recurrent_layer_launches_two_kernels_for_each_product() -> None:
    """Three products among nine operators of one module call: a product and a fused elementwise kernel each, in both directions."""
    product = Event("mm", "rnn", 1, recurrent=True, cost=OperatorCost("gemm", 8, 4, 4, 1), backward_kernels=2)
    gate = Event("tanh", "rnn", 1, recurrent=True, cost=OperatorCost("elementwise", 0, 4, 4, 1))
    (layer,) = made(*([product, gate, gate] * 3))
    assert (layer.op, layer.forward_kernels, layer.backward_kernels) == ("rnn", 6, 6)
