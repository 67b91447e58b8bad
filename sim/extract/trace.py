"""Which operators do one forward and one backward pass run, and in which order? The model runs once on torch's meta device.

Meta tensors have shapes but no data, so nothing is computed and no memory is used. A dispatch mode sees every aten operator below
autograd, in forward and backward. Each operator belongs to the module whose ``forward`` runs. Autograd's sequence numbers connect each
autograd node to the forward operator that made it, so a backward operator is recorded with its forward operator. Hooks on parameters
detect when a gradient is complete (for a shared parameter, after its last use); hooks on saved tensors detect what backward keeps.

On the meta device, torch would decompose attention and dropout into elementary operators; ``fused.as_on_cuda`` gives them the fused
kernels that they have on a GPU. Segments that torch.utils.checkpoint would recompute run once and are numbered (``checkpointing``);
the simulator adds their recomputation. Limits: one thread, one device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sim.extract.alive import DataFlow
from sim.extract.arithmetic import arithmetic
from sim.extract.checkpointing import checkpointing
from sim.extract.fused import as_on_cuda
from sim.extract.layers import LayerTable, Parameter, ReadyGradient
from sim.extract.operators import FLOAT_BYTES, Operand, OperatorCall, OperatorCost, cost
from sim.spec.fields import Dtype

LOSS = "loss"
"""Module path under which the loss after the model is recorded."""


_SHOWN = 4
"""Maximum number of shapes in a message."""
_DTYPES: Final[Mapping[torch.dtype, Dtype]] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.complex64: "complex64",
}
"""All types except the one-byte types."""
_LOOK_UPS = frozenset({"embedding", "_embedding_bag"})


@dataclass
class Event:
    """One forward operator and everything that its backward runs; bytes and FLOP are for the whole batch."""

    operator: str
    module: str
    call: int
    """Number of the module call; a module that is called twice has two numbers."""
    leaf: bool
    """Whether the module has no submodules."""
    recurrent: bool
    """Whether the module is an RNN, LSTM or GRU."""
    cost: OperatorCost
    saved: int = 0
    arithmetic: int = 0
    """FLOP of operators other than matrix products."""
    backward_flop: int = 0
    backward_arithmetic: int = 0
    backward_traffic: int = 0
    backward_kernels: int = 0
    parameters: list[int] = field(default_factory=list)
    """Numbers of the parameters that it uses, in the order of ``model.parameters()``."""
    table: LayerTable | None = None
    """The table in which it looks up rows."""
    looked_up: int = 0
    """Number of rows that it looks up."""
    sparse: bool = False
    """Whether its backward makes a sparse gradient."""
    segment: int = 0
    """Number of the activation-checkpointed segment in which it runs; 0 outside of segments."""
    entering: int = 0
    """Bytes of activations that were made before it and are read by it or by a later operator."""


@dataclass
class ForwardTrace:
    """The forward operators in order, the gradients in the order in which they became ready, and all parameters."""

    events: list[Event] = field(default_factory=list)
    ready: list[ReadyGradient] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)


def trace(model: torch.nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> ForwardTrace:
    """Run the forward pass of *model*, the loss and the backward pass on meta tensors, and return the recorded trace."""
    _initialize_lazy(model, positional, named)
    input_tensors = [tensor for tensor in tree_leaves((positional, named)) if isinstance(tensor, torch.Tensor)]
    recorder = _Recorder(list(model.parameters()), input_tensors)
    inputs = {tensor.untyped_storage()._cdata for tensor in input_tensors}
    saved: list[tuple[int, Any, torch.Tensor]] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append((_sequence() - 1, tensor.untyped_storage(), tensor))
        return tensor

    with torch.device("meta"), as_on_cuda(), checkpointing(recorder.segment), recorder.watching(model), recorder:
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                output = model(*positional, **named)
                with recorder.inside(LOSS):
                    loss = loss_of(output, recorder.paused)
            recorder.record_saved(saved, inputs)
            recorder.record_entering()
            recorder.follow(loss)
            loss.backward()
        except (Exception, SystemExit) as error:
            raise StepFailed(recorder.where()) from error
    model.zero_grad(set_to_none=True)
    return recorder.trace


def _initialize_lazy(model: torch.nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Initialize lazy modules with a first call, which determines the shapes of their parameters."""
    if any(isinstance(parameter, torch.nn.parameter.UninitializedParameter) for parameter in model.parameters()):
        with torch.no_grad(), torch.device("meta"):
            model(*positional, **named)


def _sequence() -> int:
    """Return the number that the next autograd node will get."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def _parameter(parameter: torch.Tensor) -> Parameter:
    return Parameter(parameter.numel(), parameter.requires_grad, dtype_of(parameter))


def dtype_of(tensor: torch.Tensor) -> Dtype:
    """Return the data type of *tensor* as layer tables name it."""
    return _DTYPES.get(tensor.dtype) or ("fp8" if tensor.is_floating_point() else "int8")


class StepFailed(Exception):
    """Raised if a step fails. The message names the part of the step; the cause is the original exception."""


class _ModuleFrame(NamedTuple):
    """A module whose forward is running; fields as in `Event`."""

    module: str
    call: int
    leaf: bool
    recurrent: bool


class _Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Records every operator with the module and the forward operator to which it belongs."""

    def __init__(self, parameters: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._flow = DataFlow(inputs, lambda tensor: int(_operand(tensor).nbytes), element_bytes)
        self.trace = ForwardTrace(parameters=[_parameter(parameter) for parameter in parameters])
        self._parameters = {parameter.untyped_storage()._cdata: number for number, parameter in enumerate(parameters)}
        self._segment = 0
        self._segments = 0
        self._stack: list[_ModuleFrame] = [_ModuleFrame("", 0, False, False)]
        self._arguments: list[tuple[str, Any]] = [("", ())]  # for each frame: the class of the module and its arguments
        self._calls = 0
        self._owner: dict[int, int] = {}  # autograd sequence number -> event
        self._numbers: list[int] = []  # these numbers, in increasing order
        self._backward: int | None = None  # event whose backward is running
        self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            self._record(func, args, kwargs or {}, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        call = _call(func, args, kwargs, result)
        operator_cost = cost(call)
        elementwise = arithmetic(call) if operator_cost.op is not None and not operator_cost.flop else 0
        if self._backward is not None:
            event = self.trace.events[self._backward]
            event.backward_flop += operator_cost.flop
            event.backward_arithmetic += elementwise
            event.backward_traffic += operator_cost.read + operator_cost.write
            event.backward_kernels += operator_cost.kernels
            event.sparse |= isinstance(result, torch.Tensor) and result.layout is torch.sparse_coo
            return
        if (number := _sequence() - 1) not in self._owner:
            self._owner[number] = len(self.trace.events)
            self._numbers.append(number)
        event = Event(func.overloadpacket.__name__, *self._stack[-1], operator_cost, segment=self._segment, arithmetic=elementwise)
        event.parameters = self._used((args, kwargs))
        if event.operator in _LOOK_UPS:
            event.table, event.looked_up = LayerTable(*args[0].shape), args[1].numel()
        self.trace.events.append(event)
        self._flow.record((args, kwargs), result)

    def _used(self, arguments: Any) -> list[int]:
        """Return the numbers of the parameters of which *arguments* contain all or a part."""
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
        storages = dict.fromkeys(tensor.untyped_storage()._cdata for tensor in tensors)
        return [self._parameters[storage] for storage in storages if storage in self._parameters]

    @contextmanager
    def segment(self) -> Iterator[None]:
        """Record operators inside this context as one activation-checkpointed segment; nested segments belong to the outermost."""
        if self._segment:
            yield
            return
        self._segments += 1
        self._segment = self._segments
        yield
        self._segment = 0

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Track which module's forward runs, and when the gradient of each parameter is complete."""
        hooks = []
        for path, module in model.named_modules():
            leaf = not any(True for _ in module.children())
            entering = self._entering(path, leaf, isinstance(module, torch.nn.RNNBase))
            hooks.append(module.register_forward_pre_hook(entering, with_kwargs=True))
            hooks.append(module.register_forward_hook(self._leave))
        for parameter in model.parameters():
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(self._gradient))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def inside(self, path: str) -> Iterator[None]:
        """Record operators inside this context as a module named *path*."""
        self._entering(path, True, False)()
        yield
        self._leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not record operators inside this context, because they are not part of a training step."""
        self._paused = True
        yield
        self._paused = False

    def _entering(self, path: str, leaf: bool, recurrent: bool) -> Callable[..., None]:
        def enter(module: Any = None, *arguments: Any) -> None:
            self._calls += 1
            self._stack.append(_ModuleFrame(path, self._calls, leaf, recurrent))
            self._arguments.append((type(module).__name__, arguments))

        return enter

    def _leave(self, *_: Any) -> None:
        self._stack.pop()
        self._arguments.pop()

    def where(self) -> str:
        """Return which part of the step is running, and the shapes of its tensors."""
        module, (kind, arguments) = self._stack[-1].module, self._arguments[-1]
        if self._backward is not None:
            return "backward"
        if module == LOSS and kind == type(None).__name__:
            return "the loss after the model"
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        shapes = ", ".join("x".join(map(str, tensor.shape)) or "a scalar" for tensor in tensors[:_SHOWN])
        more = ", ..." if len(tensors) > _SHOWN else ""
        described = f"called with {shapes}{more}, including the batch" if shapes else "called without tensors"
        return f"{f'layer {module}' if module else 'the forward of the model'} ({kind}, {described})"

    def _gradient(self, parameter: torch.Tensor) -> None:
        self.trace.ready.append(ReadyGradient(self._backward or 0, parameter.numel(), dtype_of(parameter)))

    def record_saved(self, saved: Sequence[tuple[int, Any, torch.Tensor]], exclude: set[int]) -> None:
        """Record each storage that backward keeps with the operator that saved it first; *exclude* has the model's inputs."""
        seen = set(exclude)
        for number, storage, tensor in saved:
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                elements = storage.nbytes() // tensor.element_size()
                self.trace.events[self._event_of(number)].saved += elements * element_bytes(tensor)

    def record_entering(self) -> None:
        """Record for each operator the activations that are live before it."""
        for event, nbytes in zip(self.trace.events, self._flow.entering(), strict=True):
            event.entering = nbytes

    def follow(self, loss: torch.Tensor) -> None:
        """From now on, record operators as the backward of the event whose autograd node is running."""
        self._backward = len(self.trace.events) - 1
        pending, seen = [loss.grad_fn], set()
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if not hasattr(node, "variable"):  # not the gradient accumulator of a parameter
                node.register_prehook(self._running(self._event_of(node._sequence_nr())))
            pending.extend(following for following, _ in node.next_functions)

    def _running(self, event: int) -> Callable[..., None]:
        def run(*_: Any) -> None:
            self._backward = event

        return run

    def _event_of(self, number: int) -> int:
        """Return the event that made the autograd node with this sequence *number*, or else the next event that made a node."""
        if number in self._owner:
            return self._owner[number]
        later = bisect_right(self._numbers, number)
        return self._owner[self._numbers[later]] if later < len(self._numbers) else len(self.trace.events) - 1


def _call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> OperatorCall:
    arguments = list(args)
    for argument in func._schema.arguments[len(args) :]:
        arguments.append(kwargs.get(argument.name, argument.default_value))
    name = func.overloadpacket.__name__ if func.namespace == "aten" else f"{func.namespace}::{func.overloadpacket.__name__}"
    aliases = [returned.alias_info for returned in func._schema.returns if returned.alias_info is not None]
    view = bool(aliases) and not any(alias.is_write for alias in aliases)
    results = [_operand(tensor) for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
    return OperatorCall(
        name,
        [tree_map(_operand, argument) for argument in arguments],
        results,
        "view" if view else "pointwise" if torch.Tag.pointwise in func.tags else "other",
    )


def _operand(value: Any) -> Any:
    """Convert a tensor to an operand; return other values unchanged. An expanded dimension (stride 0) holds one element."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        return Operand(tuple(value.shape), value._values().numel() * element_bytes(value))
    held = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        held *= 1 if stride == 0 and size > 0 else size
    return Operand(tuple(value.shape), held * element_bytes(value))


def element_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes counted per element: 4 for any floating-point type, otherwise the actual size."""
    return FLOAT_BYTES if tensor.is_floating_point() else tensor.element_size()


# --- loss ----------------------------------------------------------------------------------------------------------------


def loss_of(output: Any, paused: Callable[[], AbstractContextManager[Any]] = nullcontext) -> torch.Tensor:
    """Return the loss in *output* if it contains one, else softmax cross-entropy over the last dimension of each output.

    Operators that are not part of a step run inside *paused*.
    """
    outputs = differentiable(output)
    if (scalar := next((tensor for tensor in outputs if tensor.ndim == 0), None)) is not None:
        return scalar
    losses = [_cross_entropy(tensor, paused) for tensor in outputs if tensor.ndim > 1]
    if not losses:
        raise ValueError("forward returns no floating-point tensor that depends on a parameter, so there is nothing to train")
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total


def differentiable(output: Any) -> list[torch.Tensor]:
    """Return the outputs to train on; from a mapping, its loss, else its logits, else its first value."""
    if isinstance(output, Mapping):
        names = [name for name in output if name == LOSS] or [name for name in output if "logits" in str(name)] or list(output)[:1]
        output = [output[name] for name in names]
    tensors = [tensor for tensor in tree_leaves(output) if isinstance(tensor, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.requires_grad]


def _cross_entropy(output: torch.Tensor, paused: Callable[[], AbstractContextManager[Any]]) -> torch.Tensor:
    rows = output.reshape(-1, output.shape[-1])
    with paused():
        target = torch.empty(rows.shape[0], dtype=torch.long)
    return torch.nn.functional.cross_entropy(rows, target)
