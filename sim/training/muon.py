"""What does Muon's update compute beside its memory passes? Newton-Schulz products on each matrix inside the blocks, in 16 bits.

Five iterations of ``A = X X^T; X = a X + (b A + c A A) X`` with the shorter side m and the longer side n take ``5 (4 m^2 n + 2 m^3)`` FLOP
(kellerjordan.github.io/posts/muon). Embedding, head and vectors are Adam's. Where ranks share the states (ZeRO, FSDP) each one works on
the matrices of its part (Liu et al., arXiv 2502.16982).
Limits: fused products count as one matrix; the gather of a sharded matrix, a 16-bit copy of the gradients more, is not played.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sim.cluster.gpu import KernelWork, layer_time
from sim.spec.hardware import Gpu
from sim.spec.workload import Layer, Model, Workload

ITERATIONS: Final = 5


def newton_schulz_flop(inner: int, outer: int) -> float:
    """Return the FLOP that orthogonalising one matrix takes."""
    short, long = sorted((inner, outer))
    return ITERATIONS * (4.0 * short**2 * long + 2.0 * short**3)


def matrices(model: Model) -> Counter[tuple[int, int]]:
    """Return how many trained matrices of each shape the blocks of *model* have; each expert has its own."""
    counts: Counter[tuple[int, int]] = Counter()
    for layer in model.layers:
        if layer.op == "gemm" and layer.gradients and len(layer.channels) == 2 and layer.name != "head":
            counts[layer.channels[0], layer.channels[1]] += max(1, layer.groups)
    return counts


def muon_work(workload: Workload, gpu: Gpu, share: float = 1.0) -> KernelWork:
    """Return the GPU time and launches of orthogonalising a *share* of the model's matrices; none for another optimizer."""
    if workload.training.optimizer.name != "muon":
        return KernelWork(0.0, 0.0)
    stack = workload.training.stack
    time = launches = 0.0
    for (inner, outer), count in matrices(workload.model).items():
        short, long = sorted((inner, outer))
        for rows, between, columns in ((short, long, short), (short, short, short), (short, short, long)):
            product = layer_time(_product(rows, between, columns), gpu, "bf16", stack, 1)
            time += ITERATIONS * count * product.time
            launches += ITERATIONS * count * product.launches
    return KernelWork(share * time, share * launches)


def _product(rows: int, inner: int, outer: int) -> Layer:
    return Layer.model_construct(
        name="newton_schulz",
        op="gemm",
        forward=2.0 * rows * inner * outer,
        read=4.0 * (rows * inner + inner * outer),
        write=4.0 * rows * outer,
        channels=(inner, outer),
        tokens=rows,
    )
