"""Which share of their 16-bit peak do GPUs use for the model's own FLOP (MFU; Chowdhery et al., arXiv 2204.02311, appendix B)?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.spec.decoder import model_flop
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer


def model_flops_utilization(layers: Sequence[Layer], samples_per_s: float, gpus: Iterable[tuple[Gpu, float]]) -> float | None:
    """Return the model FLOP/s of *layers* at *samples_per_s*, divided by the 16-bit peak of *gpus* (pairs of GPU and count).

    Return None if the layers have no matrix products, or if a GPU has no 16-bit units.
    """
    peaks = [(gpu.dense_16bit, count) for gpu, count in gpus]
    flop = model_flop(layers)
    if not flop or not all(peak for peak, _ in peaks):
        return None
    return samples_per_s * flop / sum(peak * count for peak, count in peaks)
