"""In which order are gradients ready, of which module each? What a backward with real numbers completes, beside what a layer table says."""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.spec.model import Model


class Ready(NamedTuple):
    """A gradient: the path of the module that owns its parameter, or of the layer that it stands in, and its elements."""

    path: str
    elements: int


def watched(model: Any) -> list[Ready]:
    """Return a list that the gradients of *model* are put on as they become complete."""
    order: list[Ready] = []
    for name, parameter in model.named_parameters():
        path = name.rpartition(".")[0]
        parameter.register_post_accumulate_grad_hook(lambda done, path=path: order.append(Ready(path, done.numel())))
    return order


def listed(table: Model) -> list[Ready]:
    """Return the gradients in the order in which a layer table says that they are ready."""
    return [Ready(layer.name, elements) for layer in reversed(table.layers) for elements in layer.gradients]


def assert_same_order(table: Model, order: list[Ready]) -> None:
    """Assert that *table* has the gradients of *order*, in that order, each in a layer of the module that owns it."""
    gradients = listed(table)
    assert [each.elements for each in gradients] == [each.elements for each in order]
    for mine, expected in zip(gradients, order, strict=True):
        assert not expected.path or f"{mine.path}.".startswith(f"{expected.path}."), (mine, expected)
