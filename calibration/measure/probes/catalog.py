"""Which probes are there, and in which order do they run? Short ones first, so that an interrupted run has measured most of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calibration.measure.probes.attention import ATTENTION
from calibration.measure.probes.collectives import COLLECTIVES
from calibration.measure.probes.copies import HOST_COPY, PEER_COPY
from calibration.measure.probes.disk import DISK
from calibration.measure.probes.exchange import EXCHANGE
from calibration.measure.probes.layouts import LAYOUTS
from calibration.measure.probes.loading import LOADING
from calibration.measure.probes.passes import LAUNCH, MEMORY
from calibration.measure.probes.probe import Probe
from calibration.measure.probes.products import CONVOLUTION, GEMM
from calibration.measure.probes.stash import STASH
from calibration.measure.probes.training import LAYERS, STEPS_PROBE
from sim.spec.yaml import SpecError

PROBES: Final = (
    LAUNCH, MEMORY, GEMM, CONVOLUTION, ATTENTION, HOST_COPY, PEER_COPY, DISK, LOADING, EXCHANGE, COLLECTIVES, LAYERS, STEPS_PROBE, LAYOUTS,
    STASH,
)  # fmt: skip


def select_probes(names: str | None) -> Sequence[Probe]:
    """Return the probes that ``NAME,NAME`` lists, in catalog order; all of them for None. Raise SpecError for an unknown name."""
    if names is None:
        return PROBES
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    all_names = {probe.name for probe in PROBES}
    for name in wanted:
        if name not in all_names:
            raise SpecError(f"--only {name}: no such probe; choose from {', '.join(probe.name for probe in PROBES)}")
    if not wanted:
        raise SpecError(f"--only: names no probe; choose from {', '.join(probe.name for probe in PROBES)}")
    return [probe for probe in PROBES if probe.name in wanted]
