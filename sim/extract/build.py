"""How is the user's model built? From a callable, a class of transformers or an exported program, on the meta device.

A class of transformers takes a configuration. It is built from the class's own ``config_class`` with the arguments as settings, without the
key-value cache that only inference needs. A ``.pt2`` file, written by ``torch.export.save``, is moved to the meta device and unflattened,
so its layers keep the names of their original modules. It contains its own example inputs, and its batch must be a dynamic
dimension. While a model of transformers runs, its checks whether masks hide anything are answered for it (``unpadded``).
"""

from __future__ import annotations

import difflib
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch.export.passes import move_to_device_pass
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sim.extract import target
from sim.extract.archive import check_archive, without_pickles
from sim.spec.yaml import SpecError


def build(path: str, make: Any, arguments: Mapping[str, Any]) -> torch.nn.Module:
    """Return the model that calling *make* with *arguments* returns, on the meta device and in training mode."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about initialization and deprecated names, which do not affect a table
            model = _from_configuration(path, make, arguments) if _is_transformers_model(make) else make(**arguments)
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        raise SpecError(explain_failure(path, "calling it", error) + _likely_argument(make, arguments)) from error
    if not isinstance(model, torch.nn.Module):
        raise SpecError(f"{path}: returned {type(model).__name__}; expected a torch.nn.Module")
    if (scripted := next((name for name, part in model.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)) is not None:
        raise SpecError(
            f"{path}: {f'its part {scripted}' if scripted else 'the model'} is a TorchScript module, which hides its layers; "
            "name a callable that returns it before torch.jit.script or torch.jit.trace"
        )
    return _trainable(path, model).to("meta").train()


def _trainable(path: str, model: torch.nn.Module) -> torch.nn.Module:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(f"{path}: the model has no parameter to train")
    return model


def _is_transformers_model(make: Any) -> bool:
    """Return whether *make* is a model class of the transformers package or derived from one."""
    library = sys.modules.get("transformers")
    return library is not None and isinstance(make, type) and issubclass(make, library.PreTrainedModel)


def _from_configuration(path: str, make: Any, arguments: Mapping[str, Any]) -> Any:
    configuration = _configuration(path, make, arguments)
    dtype = getattr(configuration, "dtype", None)  # from_pretrained applies it, but the class itself does not
    model = make(configuration)
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model


def _configuration(path: str, make: Any, arguments: Mapping[str, Any]) -> Any:
    configuration = make.config_class()
    if unknown := [name for name in arguments if not hasattr(configuration, name)]:
        raise SpecError(f"{path}: --arg {unknown[0]}: {type(configuration).__name__} has no such field")
    configuration = make.config_class(**arguments)
    if hasattr(configuration, "use_cache"):
        configuration.use_cache = False
    if getattr(configuration, "is_encoder_decoder", False) and getattr(configuration, "decoder_start_token_id", None) is None:
        configuration.decoder_start_token_id = getattr(configuration, "pad_token_id", None) or 0  # T5's; no shape depends on it
    return configuration


class _NothingHidden(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Answers the check of transformers whether a mask is all ones with True, because samples are neither padded nor packed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__bool__, torch.Tensor.item) and args[0].is_meta and _called_by_masks():
            return True
        return func(*args, **(kwargs or {}))


def _called_by_masks() -> bool:
    frame = sys._getframe(2)
    return any(outer.f_code.co_filename.endswith("masking_utils.py") for outer in _frames(frame, 6))


def _frames(frame: FrameType | None, count: int) -> Iterator[FrameType]:
    while frame is not None and count:
        yield frame
        frame, count = frame.f_back, count - 1


def unpadded() -> AbstractContextManager[Any]:
    """Return a context in which models of transformers treat samples as unpadded, as their eager code does if a mask is all ones."""
    return _NothingHidden() if "transformers" in sys.modules else nullcontext()


def load_exported(path: str) -> tuple[torch.nn.Module, Any]:
    """Return the model in the ``.pt2`` file *path*, and a function that returns its inputs for a batch size."""
    check_archive(Path(path))
    try:
        with without_pickles(), _silenced(torch.export.__name__):
            program = torch.export.load(path)
    except Exception as error:
        why = target.error_line(error)
        why = f"; export it again with torch {torch.__version__}" if "warnings above" in why else f": {why}"
        raise SpecError(f"{path}: is not a program written by torch.export.save of this torch version{why}") from error
    if program.example_inputs is None:
        raise SpecError(f"{path}: has no example inputs; export it with some")
    size = _batch(path, program)
    positional, named = program.example_inputs
    model: torch.nn.Module = torch.export.unflatten(move_to_device_pass(program, "meta"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(program.state_dict[name].requires_grad if name in program.state_dict else True)

    def inputs(batch: int) -> tuple[Any, Any]:
        resized: tuple[Any, Any] = tree_map(lambda value: _resized(value, size, batch), (positional, named))
        return resized

    return _trainable(path, model), inputs


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Disable the logger *name* in this context: torch logs a traceback of the exception that it then raises."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _batch(path: str, program: Any) -> int:
    """Return the batch size of the example inputs: the size of their first dimension, which must be dynamic."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.name in program.graph_signature.user_inputs and isinstance(value, torch.Tensor) and value.ndim:
            if not isinstance(value.shape[0], torch.SymInt):
                raise SpecError(
                    f"{path}: was exported for a batch of {value.shape[0]} only, but the cost per sample is measured with two batches; "
                    f"export it with dynamic_shapes={{'{node.name}': {{0: torch.export.Dim('batch')}}}}"
                )
            leaves = torch.utils._pytree.tree_leaves(program.example_inputs)
            return next(int(leaf.shape[0]) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim)
    raise SpecError(f"{path}: takes no tensor, so it has no batch")


def _resized(value: Any, size: int, batch: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    shape = (batch, *value.shape[1:]) if value.ndim and value.shape[0] == size else value.shape
    return torch.empty(shape, dtype=value.dtype, device="meta")


def _likely_argument(make: Any, arguments: Mapping[str, Any]) -> str:
    """Return which argument of *make* was meant by one of *arguments* that it does not have; empty if that is not the mistake."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return ""
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return ""
    name = next((name for name in arguments if name not in parameters), "")
    near = difflib.get_close_matches(name, parameters, n=1)
    return f"; did you mean --arg {near[0]}={arguments[name]}?" if name and near else ""


_NEEDS_VALUE: Final = re.compile(
    r"item\(\)|_local_scalar_dense|nonzero|[Bb]oolean value|data-dependent|no data|DynamicOutputShape|to numpy"
)
_NO_KERNEL: Final = re.compile(r"Could not run '([\w:.]+)'|([\w:.]+): attempted to run this operator with Meta tensors")


_REMEDIES: Final = (
    (
        re.compile(
            r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver|CUDA error|Expected all tensors to be on the same"
            r"|on device \w+(:\d+)? is not on the expected device meta"
        ),
        "tracing needs no GPU: let tensors follow the inputs or the weights, for example x.to(self.weight.device), or torch.zeros(3, "
        "device=x.device) if the code names a device",
    ),
    (
        re.compile(r"Expected inputs of BF16 type"),
        "grouped matrix products of experts support only 16 bits there: build the model in bfloat16, with --arg dtype=bfloat16 for a "
        "class of transformers, otherwise with .to(torch.bfloat16) in the callable; FLOP and parameters do not change",
    ),
    (
        re.compile(r"argument #1 'indices' to have one of the following scalar types|Expected .*scalar types?: Long"),
        "if the model takes integers, such as tokens, write the type of the input: --input 1024:int64",
    ),
    (
        re.compile(r"no fake impl"),
        "without one its shapes are unknown: define one with register_fake, and its backward with register_autograd, or let the callable "
        "use torch's own operators instead",
    ),
)
"""Error messages of torch for models that cannot be traced as they are, and what the user can do."""


def explain_failure(path: str, doing: str, error: BaseException, where: str = "") -> str:
    """Return a message that explains what failed, *where*, and what to do."""
    message = " ".join(str(error).split())
    if remedy := next((remedy for pattern, remedy in _REMEDIES if pattern.search(message)), ""):
        return f"{path}: {doing} failed{where}: {target.error_line(error)}; {remedy}"
    if _NEEDS_VALUE.search(message):
        return (
            f"{path}: {doing} needs the value of a tensor{where}, but on the meta device tensors have only shapes: "
            f"{target.error_line(error)}; make the branch or size depend on shapes or arguments, or name a callable "
            "that leaves that part out"
        )
    if kernel := _NO_KERNEL.search(message):
        operator = kernel[1] or kernel[2]
        return (
            f"{path}: {doing} runs the operator '{operator}'{where}, which torch cannot run on the meta device: {target.error_line(error)}"
        )
    return f"{path}: {doing} failed{where}: {target.error_line(error)}"
