"""Which operators does one forward and backward pass run, in which order? Runs the model once on torch's meta device.

Meta tensors have shapes but no data, so nothing is computed and no memory is used. A dispatch mode sees every aten operator below
autograd, forward and backward alike. Each operator belongs to the module whose ``forward`` runs; each autograd node to the forward
operator that made it, through autograd's sequence numbers, so a backward operator is booked on its forward one. Hooks on parameters
tell when a gradient is complete (a shared parameter's only after its last use), hooks on saved tensors what backward keeps.

On the meta device torch would take attention and dropout apart into elementary operators; ``fused.as_on_cuda`` gives them the fused
kernels they have on a GPU. Segments that torch.utils.checkpoint would recompute run once and are numbered
(``checkpointing``): recomputing them is the simulator's affair. Limits: one thread, one device.
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
"""Name of the module path that the loss after the model stands under."""


_SHOWN = 4
"""Shapes that a message shows."""
_DTYPES: Final[Mapping[torch.dtype, Dtype]] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.complex64: "complex64",
}
"""All but those of one byte."""
_LOOK_UPS = frozenset({"embedding", "_embedding_bag"})


@dataclass
class Event:
    """One forward operator and everything its backward runs; bytes and FLOP of the whole batch."""

    operator: str
    module: str
    call: int
    """Number of the module call; one module called twice has two."""
    leaf: bool
    """The module has no modules inside."""
    recurrent: bool
    """Part of an RNN, LSTM or GRU module."""
    cost: OperatorCost
    saved: int = 0
    arithmetic: int = 0
    """FLOP beside products."""
    backward_flop: int = 0
    backward_arithmetic: int = 0
    backward_traffic: int = 0
    backward_kernels: int = 0
    parameters: list[int] = field(default_factory=list)
    """Numbers of the parameters it uses, in the model's own order."""
    table: LayerTable | None = None
    """The table it looks rows up in."""
    looked_up: int = 0
    """How many rows."""
    sparse: bool = False
    """Its backward makes a sparse gradient."""
    segment: int = 0
    """Number of the activation-checkpointed segment it runs in; 0 outside."""
    entering: int = 0
    """Bytes of activations that were made before it and are read by it or later."""


@dataclass
class ForwardTrace:
    """The forward operators in order, the gradients in the order they became ready, and all parameters."""

    events: list[Event] = field(default_factory=list)
    ready: list[ReadyGradient] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)


def trace(model: torch.nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> ForwardTrace:
    """Run *model* forward, the loss, and backward on meta tensors and return what ran."""
    _complete(model, positional, named)
    given = [tensor for tensor in tree_leaves((positional, named)) if isinstance(tensor, torch.Tensor)]
    recorder = _Recorder(list(model.parameters()), given)
    inputs = {tensor.untyped_storage()._cdata for tensor in given}
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
            recorder.book_saved(saved, inputs)
            recorder.book_entering()
            recorder.follow(loss)
            loss.backward()
        except (Exception, SystemExit) as error:
            raise Failed(recorder.where()) from error
    model.zero_grad(set_to_none=True)
    return recorder.trace


def _complete(model: torch.nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Let lazy modules take the shapes of their parameters from a first call."""
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
    """Return the type of *tensor* as layer tables name it."""
    return _DTYPES.get(tensor.dtype) or ("fp8" if tensor.is_floating_point() else "int8")


class Failed(Exception):
    """A step that could not be run to its end; its text tells the part of the step, its cause what went wrong."""


class _Frame(NamedTuple):
    """A module whose forward runs; the fields as in Event."""

    module: str
    call: int
    leaf: bool
    recurrent: bool


class _Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Book every operator on the module and the forward operator it belongs to."""

    def __init__(self, parameters: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._flow = DataFlow(inputs, lambda tensor: int(_operand(tensor).nbytes), element_bytes)
        self.trace = ForwardTrace(parameters=[_parameter(parameter) for parameter in parameters])
        self._parameters = {parameter.untyped_storage()._cdata: number for number, parameter in enumerate(parameters)}
        self._segment = 0
        self._segments = 0
        self._stack: list[_Frame] = [_Frame("", 0, False, False)]
        self._given: list[tuple[str, Any]] = [("", ())]  # of each frame: the module's class, and what it was called with
        self._calls = 0
        self._owner: dict[int, int] = {}  # autograd sequence number -> event
        self._numbers: list[int] = []  # those numbers, growing
        self._backward: int | None = None  # event whose backward runs
        self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            self._book(func, args, kwargs or {}, result)
        return result

    def _book(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        call = _call(func, args, kwargs, result)
        operator_cost = cost(call)
        done = arithmetic(call) if operator_cost.op is not None and not operator_cost.flop else 0
        if self._backward is not None:
            event = self.trace.events[self._backward]
            event.backward_flop += operator_cost.flop
            event.backward_arithmetic += done
            event.backward_traffic += operator_cost.read + operator_cost.write
            event.backward_kernels += operator_cost.kernels
            event.sparse |= isinstance(result, torch.Tensor) and result.layout is torch.sparse_coo
            return
        if (number := _sequence() - 1) not in self._owner:
            self._owner[number] = len(self.trace.events)
            self._numbers.append(number)
        event = Event(func.overloadpacket.__name__, *self._stack[-1], operator_cost, segment=self._segment, arithmetic=done)
        event.parameters = self._used((args, kwargs))
        if event.operator in _LOOK_UPS:
            event.table, event.looked_up = LayerTable(*args[0].shape), args[1].numel()
        self.trace.events.append(event)
        self._flow.note((args, kwargs), result)

    def _used(self, arguments: Any) -> list[int]:
        """Return the numbers of the parameters, or parts of them, among *arguments*."""
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
        storages = dict.fromkeys(tensor.untyped_storage()._cdata for tensor in tensors)
        return [self._parameters[storage] for storage in storages if storage in self._parameters]

    @contextmanager
    def segment(self) -> Iterator[None]:
        """Number what runs inside as one activation-checkpointed segment; segments inside belong to the outermost."""
        if self._segment:
            yield
            return
        self._segments += 1
        self._segment = self._segments
        yield
        self._segment = 0

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Note which module's forward runs, and when each parameter's gradient is complete."""
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
        """Book what runs as a module called *path*."""
        self._entering(path, True, False)()
        yield
        self._leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run operators that are not part of a training step."""
        self._paused = True
        yield
        self._paused = False

    def _entering(self, path: str, leaf: bool, recurrent: bool) -> Callable[..., None]:
        def enter(module: Any = None, *given: Any) -> None:
            self._calls += 1
            self._stack.append(_Frame(path, self._calls, leaf, recurrent))
            self._given.append((type(module).__name__, given))

        return enter

    def _leave(self, *_: Any) -> None:
        self._stack.pop()
        self._given.pop()

    def where(self) -> str:
        """Return which part of the step runs, and on tensors of which shapes."""
        module, (kind, given) = self._stack[-1].module, self._given[-1]
        if self._backward is not None:
            return "backward"
        if module == LOSS and kind == type(None).__name__:
            return "the loss after the model"
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        shapes = ", ".join("x".join(map(str, tensor.shape)) or "a scalar" for tensor in tensors[:_SHOWN])
        more = ", ..." if len(tensors) > _SHOWN else ""
        given_it = f"called with {shapes}{more}, including the batch" if shapes else "called without tensors"
        return f"{f'layer {module}' if module else 'the forward of the model'} ({kind}, {given_it})"

    def _gradient(self, parameter: torch.Tensor) -> None:
        self.trace.ready.append(ReadyGradient(self._backward or 0, parameter.numel(), dtype_of(parameter)))

    def book_saved(self, saved: Sequence[tuple[int, Any, torch.Tensor]], exclude: set[int]) -> None:
        """Book each storage that backward keeps on the operator that saved it first; *exclude* the model's inputs."""
        seen = set(exclude)
        for number, storage, tensor in saved:
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                elements = storage.nbytes() // tensor.element_size()
                self.trace.events[self._made(number)].saved += elements * element_bytes(tensor)

    def book_entering(self) -> None:
        """Book on each operator the activations that are there before it."""
        for event, nbytes in zip(self.trace.events, self._flow.entering(), strict=True):
            event.entering = nbytes

    def follow(self, loss: torch.Tensor) -> None:
        """From now on book operators as backward of the event whose autograd node runs."""
        self._backward = len(self.trace.events) - 1
        pending, seen = [loss.grad_fn], set()
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if not hasattr(node, "variable"):  # not a parameter's accumulator
                node.register_prehook(self._running(self._made(node._sequence_nr())))
            pending.extend(following for following, _ in node.next_functions)

    def _running(self, event: int) -> Callable[..., None]:
        def run(*_: Any) -> None:
            self._backward = event

        return run

    def _made(self, number: int) -> int:
        """Return the event that made the autograd node with this sequence *number*, or the next one that made any."""
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
    """Return a tensor's operand, anything else as it is. An expanded dimension (stride 0) holds one element."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        return Operand(tuple(value.shape), value._values().numel() * element_bytes(value))
    held = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        held *= 1 if stride == 0 and size > 0 else size
    return Operand(tuple(value.shape), held * element_bytes(value))


def element_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes an element counts: 4 for floating-point numbers of any type."""
    return FLOAT_BYTES if tensor.is_floating_point() else tensor.element_size()


# --- loss ----------------------------------------------------------------------------------------------------------------


def loss_of(output: Any, paused: Callable[[], AbstractContextManager[Any]] = nullcontext) -> torch.Tensor:
    """Return what the model returned if that is a loss, else softmax cross-entropy over the last dimension of each output.

    What is no part of a step runs inside *paused*.
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
    """Return the outputs to train on: of a mapping the loss, else its logits, else its first value."""
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
