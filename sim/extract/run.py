"""How does a torch model become a layer table? It is built on the meta device, traced with two batches, split into layers, and validated.

This needs torch, but no GPU, no weights and hardly any memory. Every failure of the user's code becomes a SpecError that explains what
failed and what to do.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from sim.extract import layers, table, target
from sim.extract.archive import EXPORTED
from sim.extract.autocast import ForwardResult, run_forward
from sim.extract.build import build, explain_failure, load_exported, unpadded
from sim.extract.operators import UnknownOperator
from sim.extract.trace import ForwardTrace, StepFailed, element_bytes, loss_of, trace
from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.yaml import SpecError

BATCHES: Final = (2, 3)
"""Two small batch sizes above 1, because batch norm rejects a single value per channel."""
_LISTS: Final = (torch.nn.ModuleList, torch.nn.ModuleDict)


def run(name: str, path: str, inputs: Sequence[str], arguments: Mapping[str, Any], command: str) -> Model:
    """Return the layer table of the model at *path*: an exported file, or a callable that is called with *arguments*."""
    with redirect_stdout(sys.stderr), warnings.catch_warnings(), target.importable(path):
        warnings.simplefilter("ignore")
        if path.endswith(EXPORTED):
            make: Any = None
            model, example = load_exported(path)
            examples = [example(batch) for batch in BATCHES]
        else:
            make = target.load_target(path)
            model = build(path, make, arguments)
            examples = [_inputs(model, inputs, batch) for batch in BATCHES]
        small, large = (_trace(path, model, *example) for example in examples)
        autocast = _autocast(model, examples)
    try:
        model_layers = layers.layers(small.events, large.events, BATCHES, small.ready, small.parameters)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    input_bytes = (_nbytes(examples[1]) - _nbytes(examples[0])) // (BATCHES[1] - BATCHES[0])
    if input_bytes <= 0:
        same = f"the same size for {BATCHES[0]} samples as for {BATCHES[1]}"
        raise SpecError(f"{path}: the example inputs are {same}; they must contain the requested number of samples")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    drafted = Model.model_construct(
        name=name,
        command=command,
        parameters=parameters,
        unused=parameters - sum(layer.parameters for layer in model_layers),
        input=float(input_bytes),
        buffers=float(_nbytes(list(model.buffers()))),
        autocast_saved=float((autocast[1].kept - autocast[0].kept) // (BATCHES[1] - BATCHES[0])) if autocast else 0.0,
        lists=_paths_of(model, *_LISTS, called=False),
        called_lists=_paths_of(model, *_LISTS, called=True),
        leaves=_paths_of(model, torch.nn.MultiheadAttention, called=True),
        layers=_with_casts(model_layers, autocast),
        source=_source(make),
    )
    return Model.model_validate(table.to_plain(drafted))


def _paths_of(model: torch.nn.Module, *kinds: type[torch.nn.Module], called: bool) -> tuple[str, ...]:
    """Return the paths of the modules of these *kinds* that hold parameters; *called*: whether their class defines ``forward``."""
    return tuple(
        name
        for name, module in model.named_modules()
        if name
        and isinstance(module, kinds)
        and next(module.parameters(), None) is not None
        and (type(module).forward is not torch.nn.Module.forward) == called
    )


def _autocast(model: torch.nn.Module, examples: Sequence[Any]) -> tuple[ForwardResult, ForwardResult] | None:
    """Return the results of autocast for both batches, or None if the model does not run under it, as with some data types."""
    random.seed(0)
    try:
        with unpadded():
            small, large = (run_forward(model, positional, named, loss_of) for positional, named in examples)
    except Exception:  # a step without autocast has succeeded, so describe the model without what autocast adds
        return None
    return small, large


def _with_casts(model_layers: Sequence[Layer], autocast: tuple[ForwardResult, ForwardResult] | None) -> tuple[Layer, ...]:
    """Return *model_layers* with the number of activation elements that autocast casts for their matrix products.

    The products are matched to layers in order. If functions and products do not pair up one to one (``einsum`` may run several, or none),
    no casts are recorded.
    """
    products = [index for index, layer in enumerate(model_layers) if layer.op in ("conv", "gemm", "attention") and layer.forward]
    if autocast is None or not len(products) == len(autocast[0].narrowed) == len(autocast[1].narrowed):
        return tuple(model_layers)
    layers = list(model_layers)
    for index, small, large in zip(products, autocast[0].narrowed, autocast[1].narrowed, strict=True):
        if large > small:
            layers[index] = layers[index].model_copy(update={"casts": (large - small) // (BATCHES[1] - BATCHES[0])})
    return tuple(layers)


def _inputs(model: torch.nn.Module, inputs: Sequence[str], batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named example inputs for *batch* samples."""
    if len(inputs) == 1 and inputs[0].startswith("@"):
        return _example(inputs[0], batch)
    shapes = [target.parse_input(text) for text in inputs]
    target.check_inputs(model.forward, shapes)
    tensors = [(shape.name, torch.empty(shape.sizes(batch), dtype=_dtype(shape), device="meta")) for shape in shapes]
    return tuple(tensor for name, tensor in tensors if not name), {name: tensor for name, tensor in tensors if name}


def _example(text: str, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    make, option = target.load_target(text[1:]), f"--example {text[1:]}"
    try:
        with torch.device("meta"):
            example = make(batch)
    except (Exception, SystemExit) as error:
        raise SpecError(explain_failure(option, f"calling it with a batch of {batch}", error)) from error
    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(example)):
        raise SpecError(
            f"{option}: returned {type(example).__name__} without a tensor; return the inputs of a batch: a tensor, a tuple of forward's "
            "arguments in order, or a dict of them by name"
        )
    example = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, example)
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example if isinstance(example, tuple) else (example,)), {}


def _dtype(shape: target.InputShape) -> torch.dtype:
    dtype = getattr(torch, shape.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise SpecError(f"--input: {shape.dtype} is not a torch type; write, for example, {shape.name or '3x224x224'}:float32 or :int64")
    return dtype


def _nbytes(tensors: Any) -> int:
    leaves = [tensor for tensor in tree_leaves(tensors) if isinstance(tensor, torch.Tensor)]
    return sum(tensor.numel() * element_bytes(tensor) for tensor in leaves)


def _trace(path: str, model: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> ForwardTrace:
    random.seed(0)  # models that drop layers by chance drop the same ones in both traces
    torch.manual_seed(0)
    try:
        with unpadded():
            return trace(model, positional, named)
    except StepFailed as failed:
        error, where = failed.__cause__ or failed, f" in {failed}"
    except (Exception, SystemExit) as failed:
        error, where = failed, ""
    if isinstance(error, UnknownOperator):
        hint = "let the callable use torch's own operators instead, or " if "::" in str(error) else ""
        raise SpecError(
            f"{path}: one training step runs the operator '{error}'{where}, for which FLOP and bytes are not defined; {hint}add a rule "
            "to sim/extract/operators.py"
        )
    raise SpecError(explain_failure(path, "one training step", error, where)) from error


def _source(make: Any) -> str:
    """Return the versions of torch and of the model's package that made the table."""
    package = (getattr(make, "__module__", "") or "").partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "").partition("+")[0]
    made_by = f"PyTorch {torch.__version__.partition('+')[0]}"
    return f"traced on the meta device of {made_by}" + (f", model of {package} {version}" if version and package != "sim" else "")
