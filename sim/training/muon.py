"""What does Muon's update compute in addition to its memory passes? 16-bit Newton-Schulz products on each matrix of the blocks.

Five iterations of ``A = X X^T; X = a X + (b A + c A A) X`` with shorter side m and longer side n take ``5 (4 m^2 n + 2 m^3)`` FLOP
(kellerjordan.github.io/posts/muon). Embedding, head and vectors use Adam. If ranks shard the optimizer states (ZeRO, FSDP), each rank
works on the matrices of its shard (Liu et al., arXiv 2502.16982).
Limits: fused products count as one matrix; the gather of a sharded matrix (a further 16-bit copy of the gradients) is not simulated.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sim.cluster.gpu import KernelWork, layer_time
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.workload import Workload

ITERATIONS: Final = 5


def matrices(model: Model) -> Counter[tuple[int, int]]:
    """Return how many trained matrices of each shape the blocks of *model* have; each expert has its own."""
    counts: Counter[tuple[int, int]] = Counter()
    for layer in model.layers:
        if layer.op == "gemm" and layer.gradients and len(layer.channels) == 2 and layer.name != "head":
            counts[layer.channels[0], layer.channels[1]] += max(1, layer.groups)
    return counts


def muon_work(workload: Workload, gpu: Gpu, share: float = 1.0) -> KernelWork:
    """Return the GPU time and launches to orthogonalize a *share* of the model's matrices; zero for other optimizers."""
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
