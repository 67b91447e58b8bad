"""Which constants predict measured collectives? A few per transport class, fitted with the scored system left out.

Each class has a launch cost (s), the latency of a hop under Simple and LL (s), and the share of the line that large messages reach (TCP:
bytes/s of one flow); each generation of NVLink also has the rates of thread blocks. The fit minimizes the logarithm of predicted over
measured time, with equal weight per system, robustly (soft L1) and near a weak prior: NCCL's own latencies and launch cost. *Zero-shot*
scores of a system use constants fitted without it; *calibrated* ones also a factor on bandwidth, set by its largest message, which is then
not scored. Mechanisms were written after seeing the errors of 2 x 8 A100 on RoCE, of 8 H100, of 2 x 8 B200 on EFA, of 2 to 8 GPUs over
NVLink, of one process with several GPUs, and of the H100 cluster's send/recv.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from calibration.collectives.constants import TransportFields, transports_of, with_constants
from calibration.collectives.records import CollectiveRecord, plan_of
from sim.spec.hardware import Transport
from sim.spec.library import load_part
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.pricing import cost
from sim.training.collectives.price.table import LAUNCH, time_in_loop

TransportConstants = Mapping[str, Mapping[str, float]]
"""Fitted constants (those of `PRIORS`) by transport class."""

BANDS = (("< 1 MB", 0.0, 1e6), ("1-64 MB", 1e6, 64 * 2.0**20), ("> 64 MB", 64 * 2.0**20, math.inf))
"""Ranges of sizes (bytes) that are scored separately: from the first to below the second figure (64 MiB belongs to the middle)."""

_NVLINK = {
    "launch": 10e-6, "hop_latency": 3.4e-6, "hop_latency_ll": 0.68e-6, "efficiency": 0.93, "simple_start": 1.8e-6, "block_copy": 29e9,
    "ll_cap": 5e9, "send_cap": 20e9,
}  # fmt: skip
_NVLS = {**_NVLINK, "nvls_cap": 18.3e9}
GENERATIONS = ("nvlink2", "nvlink3", "nvlink4", "nvlink5")
"""Classes of NVLink by generation; ``nvlink`` is their geometric mean, and so is a generation that no row has crossed."""

PRIORS: Mapping[str, Mapping[str, float]] = {
    **dict.fromkeys(("nvlink2", "nvlink3"), _NVLINK),
    **dict.fromkeys(("nvlink4", "nvlink5"), _NVLS),
    "nvlink": _NVLINK,
    "pcie-peer": {"hop_latency": 5.7e-6, "efficiency": 0.95},
    "host-staged": {"hop_latency": 5.7e-6, "hop_latency_ll": 1.14e-6, "efficiency": 1.2},
    "infiniband": {"hop_latency": 14e-6, "hop_latency_ll": 2.8e-6, "efficiency": 0.94},
    "efa": {"hop_latency": 150e-6, "hop_latency_ll": 30e-6, "efficiency": 0.94},
    "slingshot": {"hop_latency": 50.3e-6, "hop_latency_ll": 6.9e-6, "rendezvous": 5.6e-6, "efficiency": 0.979},
    "tcp": {"hop_latency": 175e-6, "hop_latency_ll": 35e-6, "flow_cap": 417e6},
    "host": {"launch": 4.2e-6},
}
"""Fitted constants with their priors, from which the fit starts.

Latencies are those of NCCL's tuner for Simple (NVIDIA/nccl tuning.cc; for EFA, those that its plug-in aws-ofi-nccl reports); LL has about a
fifth of them there. TCP: the geometric mean of 270 us, the middle of petuum/adaptdl's ring steps in pods, and 113 us, the latency of a hop
between nodes according to HKBU-HPML/MG-WFBP's lines over sockets (100 us with 16 GPUs, 128 with 8). The second value was added after seeing
p3dn's errors with the first alone, 43% below 1 MB. Slingshot: EFA's fitted latencies times 75/150, 55.9 and 12.5 us, where 75/150 is the
ratio of what the plug-in reports for unknown platforms to p3dn's (platform-aws.cpp). Two of InfiniBand's LL latencies are split off from
them as the rendezvous. Alps's rows were first scored with these values.
Launch over NVLink: two A100 take 10 us in total (NVIDIA/nccl-tests issue 123). ``host`` is not a transport, but the time that one process
needs to launch on each of its GPUs: 4.2 us for three to eight A100 (same issue).
Rates of NVLink's thread blocks come from NCCL's tuner as well: a ring's Simple starts 1.8 us after LL; the geometric mean of the limits of
channels in trees on V100 to H100 is 29 GB/s, that of LL's limits per channel 5 GB/s. A block that sends and receives has two thirds of the
former: an estimate, raised from 15 GB/s after seeing first fits. In NVSwitch, according to that tuner, eight H100 reduce 272 GB/s and eight
B200 474, over 16 and 24 channels: 17.0 and 19.7 GB/s per block, whose geometric mean is the prior of both.
A card of 400 Gbps carries 46 to 48 GB/s (NVIDIA/nccl-tests issue 290). Sixteen TCP flows are two threads (NVIDIA/nccl net_socket.cc) at 0.3
core-seconds per GB, as in the class ``tcp``."""
DERIVED_CLASSES: Mapping[str, tuple[str, float]] = {
    "roce": ("infiniband", 1.0),
    "efa-read": ("efa", 75 / 150),
    "efa-rdma-2": ("efa", 75 / 150),
    "efa-rdma-3": ("efa", 35 / 150),
}
"""Classes that share another's constants, with latencies times a factor. RoCE and InfiniBand are verbs on the same cards; EFA's factors
are ratios of the latencies that its plug-in reports for the platforms (aws/aws-ofi-nccl src/platform-aws.cpp)."""
PRIOR_WIDTH = 1.0
"""Standard deviation of a constant's logarithm around its prior: weak, a factor of e."""
GENERATION_WIDTH = 0.4
"""The same for latencies around the mean of newer NVLink generations: fitted with a weak prior, the logarithms of those of A100 and H100
differ from that mean by 0.35 (root mean square). Rates keep the weak prior, because they depend on multiprocessors and links."""
_BLOCKS = ("block_copy", "ll_cap", "send_cap", "nvls_cap")
_FAST = 0.7
"""Added to the logarithms of block rates for a second start of the fit: the maximum of links and blocks has kinks. The better fit wins."""
_LATENCIES = ("launch", "hop_latency", "hop_latency_ll", "simple_start")
NARROW_WIDTHS: Mapping[tuple[str, str], float] = {("infiniband", "efficiency"): 0.05}
"""Constants with a narrower prior, in place of `PRIOR_WIDTH`: verbs reach 46 to 48 of a card's 50 GB/s (NVIDIA/nccl-tests issue 290).
Otherwise, a fit without large messages that are bound by cards would mistake slow NVLinks for a slow card. The width was narrowed to this
after seeing leave-one-out results."""
NOISE = 0.15
"""Noise of a log time: the difference between repeated tables of one kind of system."""
LINEAR_LOSS_DEVIATIONS = 2.0
"""The loss of errors beyond this multiple of the noise grows linearly instead of quadratically."""
_JOINT_FITS = (
    ("host",),
    *((name,) for name in reversed(GENERATIONS)),
    ("pcie-peer", "host-staged", "efa"),
    ("infiniband",),
    ("slingshot",),
    ("tcp",),
)
"""Classes that are fitted together, those inside the node first; later fits keep the values of earlier ones. The systems with EFA also copy
through host memory."""


def layout_of(record: CollectiveRecord) -> JobLayout:
    """Return the layout of the ranks of *record*."""
    return plan_of(record).layout


def predicted_time(record: CollectiveRecord, constants: TransportConstants) -> float:
    """Return the predicted seconds of *record* with *constants*."""
    plan = plan_of(record)
    chosen = plan.choice(record.nbytes, record.op)
    layout = with_constants(plan.layout, _fields(constants))
    priced = cost(layout, record.op, chosen.algorithm, chosen.protocol, record.nbytes, chosen.channels)
    return _loop_time(record, priced.uncontended_time, constants)


def _loop_time(record: CollectiveRecord, alone: float, constants: TransportConstants) -> float:
    """Return the seconds that the loop of *record* measures for a collective that takes *alone* seconds in isolation."""
    launch = constants["host"]["launch"]
    return alone + (record.gpus_per_process - 1) * launch if record.waits else time_in_loop(alone, record.gpus_per_process, launch)


def _fields(constants: TransportConstants) -> TransportFields:
    """Return *constants* as fields of `Transport` for every class, including those of `DERIVED_CLASSES`."""
    classes: dict[str, dict[str, Any]] = {}
    for name, values in constants.items():
        fields: dict[str, Any] = dict(values)
        if "efficiency" in values:
            fields["efficiency"] = ((1.0, values["efficiency"]),)
        classes[name] = fields
    return classes | {other: _slower(classes[name], factor) for other, (name, factor) in DERIVED_CLASSES.items()}


def _slower(values: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {key: value * factor if key.startswith("hop_latency") else value for key, value in values.items()}


class RecordBatch:
    """Records whose plans are built once; new constants are applied once per layout, for all its sizes."""

    def __init__(self, records: Sequence[CollectiveRecord]) -> None:
        self.records = records
        self._groups: dict[int, list[int]] = defaultdict(list)
        self._plans = [plan_of(record) for record in records]
        self._chosen = [plan.choice(record.nbytes, record.op) for plan, record in zip(self._plans, records, strict=True)]
        for place, plan in enumerate(self._plans):
            self._groups[id(plan)].append(place)

    def times(self, constants: TransportConstants) -> list[float]:
        """Return the predicted seconds of each record."""
        seconds = [0.0] * len(self.records)
        for places in self._groups.values():
            layout = with_constants(self._plans[places[0]].layout, _fields(constants))
            for place in places:
                record, chosen = self.records[place], self._chosen[place]
                alone = cost(layout, record.op, chosen.algorithm, chosen.protocol, record.nbytes, chosen.channels).uncontended_time
                seconds[place] = _loop_time(record, alone, constants)
        return seconds


# --- the fit ---------------------------------------------------------------------------------------------------------


def fit(records: Sequence[CollectiveRecord], fixed: TransportConstants | None = None) -> dict[str, dict[str, float]]:
    """Return the constants of every transport class that explain the ``fit`` rows of *records* best.

    Classes in *fixed* are not fitted. A class that no row crosses stays at its prior, a generation of NVLink at the mean of other
    generations. A generation's prior is the mean of newer ones, for which there are more measurements.
    """
    fixed_constants = fixed or {}
    constants = {name: dict(fixed_constants.get(name, values)) for name, values in PRIORS.items()}
    fitted_names = {name for name in GENERATIONS if name in fixed_constants}
    for names in _JOINT_FITS:
        rows = [record for record in records if record.role == "fit" and bounding_classes(record) & set(names)]
        if names == ("host",):  # larger messages reveal nothing about launches
            rows = [record for record in rows if record.nbytes < BANDS[0][2]]
        if rows and not fixed_constants.keys() & set(names):
            if newer := [constants[name] for name in fitted_names if names[0] in GENERATIONS and name > names[0]]:
                constants[names[0]] = _mean(newer, names[0])
            constants.update(_fitted(rows, names, constants))
            fitted_names |= {*names}
    if fitted_generations := [constants[name] for name in GENERATIONS if name in fitted_names]:
        constants |= {name: _mean(fitted_generations, name) for name in ("nvlink", *GENERATIONS) if name not in fitted_names}
    return constants


def _mean(generations: Sequence[Mapping[str, float]], name: str) -> dict[str, float]:
    """Return each constant of *name* as the geometric mean over *generations* of NVLink, or as its prior if none of them has it."""
    values_of = {key: [values[key] for values in generations if key in values] for key in PRIORS[name]}
    return {key: geometric_mean(values) if values else PRIORS[name][key] for key, values in values_of.items()}


def committed_constants() -> dict[str, dict[str, float]]:
    """Return the constants that are in ``hardware/parts/transports``."""
    constants: dict[str, dict[str, float]] = {}
    for name, values in PRIORS.items():
        if name == "host":
            constants[name] = {"launch": LAUNCH}
            continue
        transport = load_part(Transport, name)
        flat = transport.model_copy(update={"efficiency": transport.efficiency[-1][1]})
        constants[name] = {key: float(getattr(flat, key)) for key in values}
    return constants


def constants_without(
    excluded: Sequence[CollectiveRecord], records: Sequence[CollectiveRecord], base: TransportConstants
) -> TransportConstants:
    """Return the constants fitted to *records* without the system of the *excluded* rows, to which *base* may have been fitted.

    Only the classes that bound *excluded* are refitted: no other depends on it. A system without ``fit`` rows in *records* takes *base*.
    """
    if all(record.system != excluded[0].system or record.role != "fit" for record in records):
        return base
    crossed = frozenset[str]().union(*(bounding_classes(record) for record in excluded))
    names = {name for group in _JOINT_FITS if crossed & set(group) for name in group}
    others = [record for record in records if record.system != excluded[0].system and bounding_classes(record) & names]
    return fit(others, {name: values for name, values in base.items() if name not in names})


def bounding_classes(record: CollectiveRecord) -> frozenset[str]:
    """Return the classes that *record* can determine: the network card's between nodes, otherwise those inside the node.

    ``host`` is among them if one process launches on several GPUs in a loop.
    """
    layout = layout_of(record)
    names = {part.slot.node.nic.transport.name for part in layout.parts} if layout.nodes > 1 else transports_of(layout)
    host = {"host"} if record.gpus_per_process > 1 and not record.waits else frozenset[str]()
    return frozenset(DERIVED_CLASSES[name][0] if name in DERIVED_CLASSES else name for name in names) | host


def _fitted(records: Sequence[CollectiveRecord], names: Sequence[str], constants: TransportConstants) -> dict[str, dict[str, float]]:
    import numpy as np
    from scipy.optimize import least_squares

    keys = [(name, key) for name in names for key in PRIORS[name]]
    records = _without_host_bound(records) if set(names) <= set(GENERATIONS) else records
    batch, weights = RecordBatch(records), np.sqrt(_weights(records))
    target = np.log([record.time for record in records])
    followed = constants[names[0]] != PRIORS[names[0]]
    widths = np.array([NARROW_WIDTHS.get(key, GENERATION_WIDTH if followed and key[1] in _LATENCIES else PRIOR_WIDTH) for key in keys])

    def filled(moved: np.ndarray) -> dict[str, dict[str, float]]:
        values = {name: dict(constants[name]) for name in names}
        for (name, key), shift in zip(keys, moved, strict=True):
            values[name][key] = constants[name][key] * math.exp(shift)
        return values

    def residuals(moved: np.ndarray) -> np.ndarray:
        missed = (np.log(batch.times({**constants, **filled(moved)})) - target) / (NOISE * LINEAR_LOSS_DEVIATIONS)
        tamed = np.sign(missed) * np.sqrt(2.0 * (np.sqrt(1.0 + missed**2) - 1.0)) * LINEAR_LOSS_DEVIATIONS  # soft L1, row by row
        return np.concatenate([tamed * weights, moved / widths])

    upper = [math.log(1.0 / constants[name][key]) if key == "efficiency" and name != "host-staged" else math.inf for name, key in keys]
    bounds = (-math.inf, upper)  # at most the whole line; copies through host memory may overlap
    fast = np.array([_FAST if key in _BLOCKS else 0.0 for _, key in keys])
    starts = [np.zeros(len(keys)), fast] if fast.any() else [fast]
    solutions = [least_squares(residuals, start, bounds=bounds, diff_step=1e-3, max_nfev=20) for start in starts]
    return filled(min(solutions, key=lambda solution: solution.cost).x)


def _without_host_bound(records: Sequence[CollectiveRecord]) -> list[CollectiveRecord]:
    """Return *records* without small messages that are bound by the host: by launches on several GPUs, or by sends to many partners."""
    return [record for record in records if record.nbytes >= BANDS[0][2] or (record.gpus_per_process == 1 and record.op != "all_to_all")]


def _weights(records: Sequence[CollectiveRecord]) -> list[float]:
    """Return row weights with which every system and band counts as at most five rows."""
    count: dict[tuple[str, str], int] = defaultdict(int)
    for record in records:
        count[record.system, band_of(record.nbytes)] += 1
    return [5.0 / max(5, count[record.system, band_of(record.nbytes)]) for record in records]


def band_of(nbytes: float) -> str:
    """Return the name of the band of a message of *nbytes*."""
    return next(name for name, low, high in BANDS if low <= nbytes and (nbytes < high or (name == "1-64 MB" and nbytes <= high)))
