"""What do layers cost on sequences of unequal length, and with fused attention? The layer table as the stack runs it; no simulation.

The table counts a sample of maximum length. A stack without padding computes real tokens only: work on tokens scales with the mean relative
length, work on attention scores (one per pair of tokens) with its mean square. Scores are the output of the first attention product and
the input of the second. Layers between them that read as many bytes work on scores. If softmax and dropout are fused with both products,
those layers vanish, and scores cross memory ``score_passes`` times per step (NVIDIA/apex apex/contrib/csrc/fmha/src: fprop writes them;
dgrad reads, overwrites and reads them) or never (Dao et al., FlashAttention, arXiv 2205.14135).
Ranks then differ from step to step: a sum of B lengths has the variation of one length over sqrt(B). Ranks that exchange sequences until
all have equally many tokens do not differ (``length_imbalance: 0``).
Limits: a rank's work is proportional to its tokens; heads that work on whole sequences are scaled like tokens; the GPU memory of data
parallelism is counted with padding.
"""

from __future__ import annotations

import math
from itertools import pairwise

from sim.spec.layer import WORK_FIELDS, Layer
from sim.spec.workload import Workload

_FORWARD_SHARE = 0.25
"""Share of a step's passes over scores that belong to the forward pass: one of four in apex's kernels."""


def layers_run(workload: Workload) -> tuple[Layer, ...]:
    """Return the layers of *workload* as its stack runs them, for a sample of mean cost."""
    stack, lengths = workload.training.stack, workload.dataset.lengths
    if not stack.unpadded and stack.kernels.score_passes is None:
        return workload.model.layers
    mean, square = (lengths.mean, lengths.square) if stack.unpadded and lengths is not None else (1.0, 1.0)
    layers = [_scaled(layer, mean) for layer in workload.model.layers]
    for first, second in attentions(workload.model.layers):
        for place in range(first, second + 1):
            layer, scores = workload.model.layers[place], workload.model.layers[first].write
            if place in (first, second):
                layers[place] = _product(layer, scores, place == first, mean, square, stack.kernels.score_passes)
            elif layer.read >= scores:
                layers[place] = _scaled(layer, square) if stack.kernels.score_passes is None else _vanished(layer)
    return tuple(layers)


def length_variation(workload: Workload) -> float:
    """Return the step-to-step coefficient of variation of one rank's compute that is due to the lengths of its sequences."""
    training, model = workload.training, workload.model
    lengths = workload.dataset.lengths if training.stack.unpadded else model.lengths if model.padding == "unpadded" else None
    if lengths is None:
        return 0.0
    each = math.sqrt(max(0.0, lengths.square / lengths.mean**2 - 1.0))
    return training.stack.length_imbalance * each / math.sqrt(training.batch * training.gradient_accumulation_steps)


def attentions(layers: tuple[Layer, ...]) -> list[tuple[int, int]]:
    """Return the indices of the two products of each attention, which have a softmax between them."""
    products = [place for place, layer in enumerate(layers) if layer.op == "attention"]
    return [pair for pair in pairwise(products) if any(layer.op == "softmax" for layer in layers[pair[0] : pair[1]])]


def _scaled(layer: Layer, factor: float) -> Layer:
    return layer if factor == 1.0 else layer.model_copy(update={name: getattr(layer, name) * factor for name in (*WORK_FIELDS, "saved")})


def _vanished(layer: Layer) -> Layer:
    return _scaled(layer, 0.0).model_copy(update={"forward_kernels": 0, "backward_kernels": 0})


def _product(layer: Layer, scores: float, first: bool, mean: float, square: float, passes: float | None) -> Layer:
    """Return one of the two products of attention. In the table it moves *scores* once forward and twice backward."""
    side = "write" if first else "read"
    # *passes* counts both products
    ahead, behind = (1.0, 2.0) if passes is None else (passes * _FORWARD_SHARE / 2, passes * (1 - _FORWARD_SHARE) / 2)
    update = {name: getattr(layer, name) * square for name in ("forward", "backward")}
    update |= {name: getattr(layer, name) * mean for name in ("read", "write", "saved")}
    update[side] = (getattr(layer, side) - min(scores, getattr(layer, side))) * mean + ahead * scores * square
    update["backward_traffic"] = max(0.0, layer.backward_traffic - 2.0 * scores) * mean + behind * scores * square
    return layer.model_copy(update=update)
