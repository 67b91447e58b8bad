"""What do unequal sequences and fused attention cost? Oracles: by hand, sums over drawn lengths, the expected slowest of n ranks."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from sim.events import Cause
from sim.simulate import simulate
from sim.spec.layer import Layer
from sim.spec.lengths import Lengths
from sim.spec.library import load_workload
from sim.spec.workload import Workload
from sim.training.job import Job
from sim.training.sequences import layers_run, length_variation
from sim.training.spread import expected_maximum
from tests.harness import layer, machine, place, toy_workload

HALF = {"mean": 0.75, "square": 0.625, "source": "test"}
"""Half of the sequences are half as long as the others."""


TOKENS = (layer(1.0, 2.0, 10),)


def of(layers=TOKENS, lengths=HALF, batch: int = 1, accumulation: int = 1, **stack: object) -> Workload:
    workload = toy_workload(layers, batch=batch, accumulation=accumulation, stack=stack)
    moments = Lengths.model_validate(lengths) if lengths else None
    return workload.model_copy(update={"dataset": workload.dataset.model_copy(update={"lengths": moments})})


def row(op: str, read: int, write: int, backward: int, flop: int = 0) -> Layer:
    size = {"read": f"{read} B", "write": f"{write} B", "backward_traffic": f"{backward} B", "saved": f"{read} B"}
    return Layer.model_validate({"name": op, "op": op, "forward": f"{flop} FLOP", "backward": f"{2 * flop} FLOP", **size})


ATTENTION = (
    row("gemm", 16, 16, 48, 100),
    row("attention", 32, 80, 232, 1000),  # 80 bytes of scores: written forward; backward two more passes
    row("softmax", 80, 80, 240),
    row("elementwise", 16, 16, 0),  # a copy of the values, no scores
    row("elementwise", 80, 80, 160),
    row("attention", 96, 16, 240, 1000),
    row("elementwise", 100, 100, 200),  # after attention: not scores, however large
)


def traffic(layers) -> list[tuple[float, float, float]]:
    return [(each.read, each.write, each.backward_traffic) for each in layers]


def test_a_padded_step_without_fused_attention_is_the_layer_table() -> None:
    """Oracle: identity."""
    workload = of(ATTENTION)
    assert layers_run(workload) is workload.model.layers
    assert length_variation(workload) == 0.0


def test_tokens_go_with_the_length_and_scores_with_its_square() -> None:
    """By hand: 0.75 for tokens, 0.625 for scores; of the products' traffic 80 bytes forward and 160 backward are scores."""
    rows = layers_run(of(ATTENTION, unpadded=True))
    assert [each.forward for each in rows] == [75, 625, 0, 0, 0, 625, 0]
    assert traffic(rows) == [
        (12, 12, 36), (24, 50, 54 + 100), (50, 50, 150), (12, 12, 0), (50, 50, 100), (12 + 50, 12, 60 + 100), (75, 75, 150),
    ]  # fmt: skip


@pytest.mark.parametrize("passes", [0, 4, 8])
def test_fused_attention_moves_scores_as_often_as_it_says(passes: float) -> None:
    """Conservation: all layers of attention together move the tokens' bytes, and *passes* times the scores; products stay."""
    rows = layers_run(of(ATTENTION, score_passes=passes))[1:6]
    tokens = 32 + (16 + 16) + (16 + 16) + (232 - 160) + (240 - 160)  # first product, copy, second product, backward
    assert sum(map(sum, traffic(rows))) == pytest.approx(tokens + 80 * passes)
    assert sum(each.forward + each.backward for each in rows) == 6000
    assert [each.forward_kernels for each in rows] == [1, 0, 1, 0, 1]


def test_a_batch_of_drawn_sequences_costs_what_the_mean_says() -> None:
    """Oracle: the FLOP of a layer of tokens and of a product of attention, summed over 200 000 drawn lengths."""
    lengths = np.random.default_rng(3).integers(1, 101, 200_000) / 100
    moments = {"mean": float(lengths.mean()), "square": float((lengths**2).mean()), "source": "drawn"}
    rows = layers_run(of(ATTENTION, moments, unpadded=True))
    assert rows[0].forward == pytest.approx(100 * lengths.mean())
    assert rows[1].forward == pytest.approx(1000 * np.mean(lengths**2))
    batches = lengths.reshape(-1, 32).sum(axis=1)
    assert length_variation(of(lengths=moments, batch=8, accumulation=4, unpadded=True)) == pytest.approx(
        batches.std() / batches.mean(), rel=0.03
    )


@pytest.mark.parametrize(("imbalance", "batch"), [(1, 1), (1, 16), (0.5, 4), (0, 1)])
def test_ranks_wait_for_the_one_with_the_longest_sequences(imbalance: float, batch: int) -> None:
    """Closed form: the expected maximum of 8 normal sums of *batch* lengths; nobody waits where sequences are exchanged."""
    workload = of(batch=batch, unpadded=True, length_imbalance=imbalance)
    hardware = machine(8, nvlink=1e15, pcie=1e15)
    warm = simulate(hardware, [Job(workload, place(hardware))]).jobs[0].warm
    variation = imbalance * (0.625 / 0.75**2 - 1) ** 0.5 / batch**0.5
    assert warm.stalls.get(Cause.STRAGGLER, 0.0) == pytest.approx(expected_maximum(8) * variation * 3 * 0.75 * batch, rel=1e-6, abs=1e-9)


def test_every_attention_of_bert_is_found() -> None:
    """Oracle: 24 layers of 16 heads, 512 x 512 scores of 4 bytes each, which cross memory once forward where attention is fused."""
    workload = load_workload("bert-large-seq512", ["training.stack.score_passes=4"]).spec
    fused, table = layers_run(workload), workload.model.layers
    gone = [before.name for before, after in zip(table, fused, strict=True) if before.read and not after.read]
    assert len(gone) == 24 * 3 and all(name.endswith(("div", "softmax", "attention_dropout")) for name in gone)
    scores = sum(each.read + each.write for each in fused if each.op == "attention") - 24 * 4 * 2097152
    assert scores == pytest.approx(24 * 16 * 512 * 512 * 4)


@pytest.mark.parametrize(("mean", "square"), [(0.5, 0.6), (0.5, 0.2), (0.0, 0.0)])
def test_lengths_that_cannot_be_are_refused(mean: float, square: float) -> None:
    """Oracle: mean^2 <= mean square <= mean for shares of the longest."""
    with pytest.raises(ValidationError, match="write fractions of the longest sequence"):
        Lengths(mean=mean, square=square, source="test")
