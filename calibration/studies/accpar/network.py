"""Which weighted layers does a CNN have, how large are their tensors, and how are they connected? Read from its layer table.

A layer table has one row per operator call and no edges. Weighted layers are connected in the order of the table; operators between them
(norms, activations, pooling) only change the size of the tensor that is passed on. A residual block ends in ``NAME.add``. Its layers are
those below ``NAME``; layers below ``NAME.downsample`` are on the shortcut (torchvision's names). Other networks with parallel paths are
rejected.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.yaml import SpecError

_MERGES = ("cat", "concat", "mul")
_CONVOLUTIONS = ("conv", "pointwise_conv", "direct_conv")


class LayerNode(NamedTuple):
    """A weighted layer, or the sum at the end of a residual block, for one batch; sizes are in elements."""

    name: str
    kind: Literal["conv", "gemm", "join"]
    weights: float
    input: float
    output: float
    flop: float
    """FLOP of forward, backward and weight gradient."""
    rows: float
    """Samples."""
    inputs: float
    """Input channels."""
    outputs: float
    shrink: float = 1.0
    """Elements of the input over elements of the source node's output; below 1 after pooling."""
    first: bool = False
    """Whether the input is the data, which needs no gradient."""


class NetworkSegment(NamedTuple):
    """The paths from the end of the previous segment to ``end``; an empty path is a direct edge."""

    paths: tuple[tuple[int, ...], ...]
    end: int


class LayerNetwork(NamedTuple):
    """Nodes by number and their segments, in forward order."""

    nodes: tuple[LayerNode, ...]
    segments: tuple[NetworkSegment, ...]

    def edges(self) -> list[tuple[int, int]]:
        """Return the pairs of nodes in which the first feeds the second."""
        pairs = []
        before = -1
        for paths, end in self.segments:
            for path in paths if before >= 0 else ((),):
                chain = (before, *path, end)
                pairs += [pair for pair in pairwise(chain) if pair[0] >= 0]
            before = end
        return pairs


def network_of(model: Model, batch: int) -> LayerNetwork:
    """Return the network of *model* for *batch* samples. Raise SpecError if it is not a CNN or layer names do not identify its paths."""
    blocks = tuple(layer.name.removesuffix(".add") for layer in model.layers if layer.name.endswith(".add"))
    if merge := next((layer.name for layer in model.layers if layer.name.rpartition(".")[2].partition("_")[0] in _MERGES), None):
        raise SpecError(f"{model.name}: {merge} merges paths in a way that layer names do not show; use a chain of layers, or a ResNet")
    builder = _NetworkBuilder(model.name, batch)
    for layer in model.layers:
        block = next((name for name in blocks if layer.name.startswith(f"{name}.")), "")
        if not block:
            builder.follow(layer)
        elif layer.name == f"{block}.add":
            builder.join(layer)
        else:
            builder.branch(layer, block)
    if not any(node.kind == "conv" for node in builder.nodes):
        raise SpecError(f"{model.name}: has no convolution; AccPar splits CNNs such as vgg16 or resnet50")
    return LayerNetwork(tuple(builder.nodes), tuple(builder.segments))


class _NetworkBuilder:
    """Builds a network while its layer table is read."""

    def __init__(self, name: str, batch: int) -> None:
        self.name, self.batch = name, batch
        self.nodes: list[LayerNode] = []
        self.segments: list[NetworkSegment] = []
        self.end = -1
        self.block = ""
        self.paths: tuple[list[int], list[int]] = ([], [])

    def follow(self, layer: Layer) -> None:
        """Add a layer outside of blocks."""
        if _weighted(layer):
            self.end = self._add(self._node(layer), self.end)
            self.segments.append(NetworkSegment(((),), self.end))

    def branch(self, layer: Layer, block: str) -> None:
        """Add a layer of *block*. Its paths begin at the sum of the previous block, or at an additional node if a layer precedes it."""
        if not _weighted(layer):
            return
        node = self._node(layer)
        if block != self.block:
            self.block, self.paths = block, ([], [])
            if self.end >= 0 and self.nodes[self.end].kind != "join":
                fork = LayerNode(f"{layer.name} input", "join", 0.0, node.input, node.input, 0.0, self.batch, node.inputs, node.inputs)
                self.end = self._add(fork, self.end)
                self.segments.append(NetworkSegment(((),), self.end))
        path = self.paths[1 if layer.name.startswith(f"{block}.downsample") else 0]
        path.append(self._add(node, path[-1] if path else self.end))

    def join(self, layer: Layer) -> None:
        """Add the sum at the end of a block. Raise SpecError if no layer leads to it."""
        if not layer.name.startswith(f"{self.block}.") or not self.paths[0] or self.end < 0:
            raise SpecError(f"{self.name}: {layer.name} does not end a residual block of convolutions; use a chain of layers, or a ResNet")
        size, last = layer.write / 4.0 * self.batch, self.nodes[self.paths[0][-1]]
        joined = self._add(LayerNode(layer.name, "join", 0.0, size, size, 0.0, self.batch, last.outputs, last.outputs), self.paths[0][-1])
        self.segments.append(NetworkSegment((tuple(self.paths[0]), tuple(self.paths[1])), joined))
        self.end = joined

    def _add(self, node: LayerNode, source: int) -> int:
        if node.kind == "conv" and source >= 0 and node.inputs != self.nodes[source].outputs:
            raise SpecError(f"{self.name}: {node.name} is a grouped convolution, which AccPar does not split; use a model without any")
        shrink = node.input / self.nodes[source].output if source >= 0 else 1.0
        self.nodes.append(node._replace(shrink=shrink, first=source < 0))
        return len(self.nodes) - 1

    def _node(self, layer: Layer) -> LayerNode:
        """Return the node of a convolution or a matrix product; the size of its output follows from its FLOP and weights."""
        if layer.op not in (*_CONVOLUTIONS, "gemm"):
            raise SpecError(f"{self.name}: {layer.name} is of kind {layer.op}, which AccPar does not split; use a CNN such as resnet50")
        inputs, outputs = layer.channels[0], layer.channels[-1]
        weights = float(max(layer.gradients))  # a bias is smaller
        output = layer.forward / (2.0 * weights / outputs)
        extra = layer.write / 4.0 - output  # a separate kernel for the bias reads and writes the output again
        return LayerNode(
            layer.name, "gemm" if layer.op == "gemm" else "conv", weights, (layer.read / 4.0 - extra) * self.batch, output * self.batch,
            (layer.forward + layer.backward) * self.batch, float(self.batch), float(inputs), float(outputs),
        )  # fmt: skip


def _weighted(layer: Layer) -> bool:
    return bool(layer.gradients and layer.channels and layer.forward)
