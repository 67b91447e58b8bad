"""How many bytes are moved to quantize a product's operands to 8 or 4 bits? Activations, in backward their gradients, and weights.

Each operand is read in its original width, and written by rows for one product and by columns for another (`sim.spec.fp8_recipe`).
Copies that only weight gradients need are omitted for frozen weights (NVIDIA/TransformerEngine, module/linear.py:
``weight.requires_grad``). Weights that the optimizer writes in 8 bits (``fp8_param_gather``) are only transposed; with block scales they
are still gathered in 16 bits and cast (megatron/core/distributed/param_and_grad_buffer.py, ``reuse_grad_buf_for_mxfp8_param_ag``).
"""

from __future__ import annotations

from typing import Final

from sim.spec.fields import Fp8Recipe, Precision
from sim.spec.fp8_recipe import Quantization, needs_transposes, quantization, usual_recipe
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.stack import Stack, StackKernels

_OPERAND_WIDTH: Final[float] = 2.0
"""Bytes of an element of activations, and of the weights that layouts keep or gather."""
_MASTER_WIDTH: Final[float] = 4.0
"""Bytes of an element of weights if no narrower copy is kept."""


def recipe_of(precision: Precision, kernels: StackKernels, gpu: Gpu) -> Fp8Recipe | None:
    """Return how a stack with these *kernels* scales 8-bit operands on *gpu*; None if *precision* is not FP8."""
    return (next(iter(kernels.fp8_recipes), None) or usual_recipe(gpu)) if precision == "fp8" else None


def quantizing_bytes(layer: Layer, rows: float, gpu: Gpu, precision: Precision, stack: Stack, backward: bool) -> float:
    """Return the bytes moved to quantize the operands of the product *layer*, with *rows* rows of activations."""
    recipe = quantization(precision, next(iter(stack.kernels.fp8_recipes), None), gpu)
    if recipe is None:
        return 0.0
    k, n = layer.channels
    trains = bool(layer.gradients) or not layer.frozen  # a tied head has neither, and its weight trains
    if backward:
        columns = rows * k * column_bytes(recipe, stack.kernels.fused_maxima) if stack.kernels.casts_again and trains else 0.0
        return rows * n * operand_bytes(recipe, gpu, trains, stack.kernels.fused_maxima and recipe.norm == "amax") + columns
    fused = layer.name.endswith(stack.kernels.fused_casts) if stack.kernels.fused_casts else False
    activations = rows * k * operand_bytes(recipe, gpu, trains and not stack.kernels.casts_again, fused)
    trained, frozen = sum(layer.gradients), sum(layer.frozen)
    if not trained + frozen:
        return activations
    kept = _kept_narrow(recipe, stack)
    weights = trained * weight_bytes(recipe, gpu, stack, kept) + frozen * weight_bytes(recipe, gpu, stack, kept or _frozen_narrow(stack))
    return activations + stack.kernels.weight_casts * weights


def operand_bytes(own: Quantization, gpu: Gpu, by_columns: bool, fused: bool = False) -> float:
    """Return the bytes moved per element to quantize an activation or gradient by rows, and by columns as well if *by_columns*.

    *fused*: the operator before the product can do part of this (`Quantizing.norm`), which saves a pass in 16 bits.
    """
    if fused and own.norm == "writes":
        return own.activation - _OPERAND_WIDTH + (2.0 * own.activation if by_columns and needs_transposes(gpu) else 0.0)
    reads = own.reads + (own.column_reads if by_columns else 0.0) - (fused and own.norm == "amax")
    return _OPERAND_WIDTH * reads + own.activation * (own.copies(gpu) if by_columns else 1.0)


def column_bytes(own: Quantization, scaled: bool = False) -> float:
    """Return the bytes moved per element to quantize an activation by columns only; *scaled*: the scale of its tensor is available."""
    return _OPERAND_WIDTH * (own.column_reads or own.reads - (scaled and own.norm == "amax")) + own.activation


def weight_bytes(own: Quantization, gpu: Gpu, stack: Stack, is_stored: bool) -> float:
    """Return the bytes moved per element to quantize a weight by rows and by columns; *is_stored*: it is already stored in few bits."""
    if is_stored:
        return 2.0 * own.weight if needs_transposes(gpu) else 0.0
    return (_OPERAND_WIDTH if stack.mesh is not None else _MASTER_WIDTH) * own.weight_reads + own.weight * own.copies(gpu)


def _kept_narrow(own: Quantization, stack: Stack) -> bool:
    return stack.mesh is not None and stack.mesh.parameters_8bit and not own.own_columns


def _frozen_narrow(stack: Stack) -> bool:
    return stack.mesh is not None and stack.mesh.frozen_8bit
