"""FLOP of operators without products, counted by hand on small tensors; no torch needed."""

from __future__ import annotations

import pytest

from sim.extract.arithmetic import arithmetic
from sim.extract.operators import Operand, OperatorCall
from tests.extract.test_operators import floats

X = floats(2, 8, 6, 6)  # 576 elements
POOLED = floats(2, 8, 3, 3)  # 144
ROWS = floats(4, 10)
INDICES = Operand((4,), 32)


@pytest.mark.parametrize(
    ("name", "arguments", "results", "flop"),
    [
        ("add", [X, X], [X], 576),
        ("relu_", [X], [X], 576),
        ("copy_", [X, X], [X], 0),
        # x sigmoid(x): negation, exponential, addition, division, product
        ("silu", [X], [X], 5 * 576),
        # mean; difference, square, sum; difference, quotient, weight, bias
        ("native_batch_norm", [X, floats(8), floats(8)], [X, floats(8), floats(8)], (1 + 3 + 4) * 576),
        ("native_batch_norm_backward", [X, X, floats(8)], [X, floats(8), floats(8)], (2 + 1 + 2 + 4) * 576),
        ("native_layer_norm_backward", [X, X], [X], (2 + 1 + 2 + 1 + 1 + 2 + 4) * 576),
        ("_fused_rms_norm", [X, [6], floats(6)], [X], (2 + 2) * 576),
        # 8 comparisons among 9, 4 terms and a division, 36 to each mean
        ("max_pool2d_with_indices", [X, [3, 3], [2, 2]], [POOLED, POOLED], 8 * 144),
        ("max_pool2d_with_indices", [X, [3], [2]], [POOLED, POOLED], 8 * 144),
        ("max_pool2d_with_indices_backward", [POOLED, X], [X], 144),
        ("avg_pool2d", [X, [2, 2]], [POOLED], (3 + 1) * 144),
        ("avg_pool2d_backward", [POOLED, X, [2, 2]], [X], (4 + 1) * 144),
        ("mean", [X, [2, 3]], [floats(2, 8)], 16 * (35 + 1)),
        ("sum", [X, [2, 3]], [floats(2, 8)], 16 * 35),
        # 4 rows of 10: a maximum, differences, exponentials, a sum, quotients
        ("_softmax", [ROWS, 1, False], [ROWS], 4 * 10 * 5),
        ("_softmax_backward_data", [ROWS, ROWS, 1], [ROWS], 4 * 10 * (2 + 2)),
        ("nll_loss_forward", [ROWS, INDICES], [floats()], 4),
        ("mse_loss", [ROWS, ROWS], [floats()], 40 * 3),
        ("native_dropout", [X, 0.5, True], [X, X], 3 * 576),
        # nothing is added where rows are only looked up; 20 of 100 rows summed in bags to 4
        ("embedding", [floats(100, 6), Operand((20,), 160)], [floats(20, 6)], 0),
        ("_embedding_bag", [floats(100, 6), Operand((20,), 160)], [floats(4, 6)], 16 * 6),
        ("embedding_dense_backward", [floats(20, 6), Operand((20,), 160), 100], [floats(100, 6)], 120),
        ("index_put_", [floats(100, 6), [INDICES], ROWS, True], [floats(100, 6)], 40),
        ("index_put_", [floats(100, 6), [INDICES], ROWS, False], [floats(100, 6)], 0),
        ("cat", [[X, X]], [floats(2, 16, 6, 6)], 0),
        # 5 n log2 n of 8 points, 12 times
        ("_fft_c2c", [floats(12, 8), [1], 0, True], [floats(12, 8)], 12 * 5 * 8 * 3),
        # four neighbors: 4 products, 3 sums
        ("upsample_bilinear2d", [POOLED, [6, 6], False], [X], 7 * 576),
    ],
)
def test_by_hand(name: str, arguments: list[object], results: list[Operand], flop: int) -> None:
    kind = "pointwise" if name in ("add", "relu_", "copy_", "silu") else "other"
    assert arithmetic(OperatorCall(name, arguments, results, kind)) == flop  # type: ignore[arg-type]


def test_views_compute_nothing() -> None:
    assert arithmetic(OperatorCall("transpose", [X], [X], "view")) == 0
