"""What share of their peak in 16 bits do GPUs use for the model's own FLOP (MFU; Chowdhery et al., arXiv 2204.02311, appendix B)?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.spec.decoder import model_flop
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer


def model_flops_utilization(layers: Sequence[Layer], samples_per_s: float, gpus: Iterable[tuple[Gpu, float]]) -> float | None:
    """Return the FLOP that *samples_per_s* of *layers* ask for over what so many of *gpus* could do in 16 bits.

    None where the layers have no products, or a GPU has no units for 16 bits.
    """
    peaks = [(gpu.dense_16bit, count) for gpu, count in gpus]
    flop = model_flop(layers)
    if not flop or not all(peak for peak, _ in peaks):
        return None
    return samples_per_s * flop / sum(peak * count for peak, count in peaks)
