"""In which types do products run under autocast? Oracle: torch.amp's documentation, "CUDA Op-Specific Behavior"."""

from __future__ import annotations

from typing import Any

import pytest

from sim.extract import extract
from sim.spec.composed import composed_bytes, composed_kernels, composed_saved
from sim.spec.layer import Layer
from tests.late import torch

pytestmark = pytest.mark.needs("torch")


def products(model: Any, *inputs: Any) -> dict[str, set[Any]]:
    """Return the types of the arguments of the products and softmaxes that a forward under autocast runs, by operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from sim.extract.autocast import Autocast
    from sim.extract.fused import as_on_cuda

    dtypes: dict[str, set[Any]] = {}

    class Types(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name in ("mm", "addmm", "bmm", "baddbmm", "_softmax", "_scaled_dot_product_efficient_attention"):
                tensors = [value for value in args if isinstance(value, torch.Tensor)]
                dtypes.setdefault(name, set()).update(tensor.dtype for tensor in tensors)
            return func(*args, **(kwargs or {}))

    with torch.device("meta"), as_on_cuda(), Types(), Autocast():
        model.to("meta").train()(*inputs)
    return dtypes


@pytest.mark.parametrize("weights", [False, True])
def test_products_inside_attention_run_in_16_bits(weights: bool) -> None:
    """Multi-head attention is a function in Python: its products cast, its softmax, where it shows its weights, runs in 32 bits."""
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    tensor = torch.empty(3, 5, 8, device="meta")

    class Asking(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, given: Any) -> Any:
            return self.attention(given, given, given, need_weights=weights)[0]

    dtypes = products(Asking(), tensor)
    wide = dtypes.pop("_softmax", set())
    assert wide == ({torch.float32} if weights else set())
    assert {"mm", "addmm"} & set(dtypes) and ("bmm" in dtypes or "baddbmm" in dtypes or "_scaled_dot_product_efficient_attention" in dtypes)
    assert set().union(*dtypes.values()) == {torch.float16}


def test_casts_of_weights_outlive_attention_inside() -> None:
    """A weight is cast once in a forward, inside attention as outside: the same copy is kept for backward."""
    from sim.extract.autocast import Autocast

    layer, tensor = torch.nn.Linear(8, 8, device="meta"), torch.empty(3, 8, device="meta")
    mode = Autocast()
    with mode:
        layer(tensor)
        cast = mode._weights[id(layer.weight)]
        with mode:
            layer(tensor)
        layer(tensor)
        assert mode._weights[id(layer.weight)] is cast
    assert not mode._weights


def test_what_a_composed_gelu_costs_is_what_its_operators_do() -> None:
    """Kernels, elements read and written, and tensors kept beside the input that a GELU of one kernel keeps, plain and under autocast."""
    composed, fused = (extract("tests/extract/casting.py:Gelu", ["64"], "gelu", {"composed": composed}) for composed in (True, False))
    many, one = (next(layer for layer in table.layers if layer.op == "elementwise") for table in (composed, fused))
    elements = 256
    assert (many.forward_kernels, many.backward_kernels) == tuple(composed_kernels(one, "fp32", way) for way in (False, True))
    assert (many.read + many.write, many.backward_traffic) == tuple(elements * composed_bytes(one, "fp32", way) for way in (False, True))
    assert many.saved - one.saved == elements * composed_saved(one, "fp32")
    assert composed.autocast_saved - fused.autocast_saved == elements * composed_saved(one, "amp_bf16")


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_composed_norm_costs_is_what_its_operators_do(frozen: bool) -> None:
    """As for GELU, in 32 bits: sums of rows are a thousandth of what moves."""
    layers = extract("tests/extract/casting.py:RmsNorm", ["8x4096"], "norm", {"frozen": frozen}).layers
    many = next(layer for layer in layers if layer.op == "elementwise")
    elements, weights = 8 * 4096, {"frozen" if frozen else "gradients": (4096,)}
    one = Layer(name="norm", op="norm", **weights)
    assert (many.forward_kernels, many.backward_kernels) == tuple(composed_kernels(one, "fp32", way) for way in (False, True))
    assert many.read + many.write == pytest.approx(elements * composed_bytes(one, "fp32", False), rel=1e-3)
    assert many.backward_traffic == pytest.approx(elements * composed_bytes(one, "fp32", True), rel=1e-3)
    in_one_kernel = 4.0 * elements
    assert many.saved == pytest.approx(in_one_kernel + elements * composed_saved(one, "fp32"), rel=1e-3)


def test_a_table_says_which_activations_a_product_casts() -> None:
    """Two linear layers after one norm each cast its 24 elements a sample; what a linear layer gives the next is in 16 bits already."""
    from sim.extract import extract

    table = extract("tests.extract.casting:NormAndTwo", ["3x8"], "two")
    casts = {layer.name: layer.casts for layer in table.layers if layer.op == "gemm"}
    assert casts == {"left": 24, "right": 24, "after": 0}


def test_fused_attention_says_its_shape_unless_it_is_masked() -> None:
    from sim.extract import extract

    plain, masked = (extract("tests.extract.casting:Attending", ["5x8"], "a", {"masked": masked}) for masked in (False, True))
    (shape,) = [layer.attention for layer in plain.layers if layer.op == "attention"]
    assert shape is not None
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.queries, shape.keys, shape.causal) == (2, 2, 4, 5, 5, True)
    assert [layer.attention for layer in masked.layers if layer.op == "attention"] == [None]
