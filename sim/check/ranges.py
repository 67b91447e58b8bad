"""Is a number plausible? Bounds that hold for every machine built or announced, with an order of magnitude to spare at the far end.

They catch wrong units: Calculon shipped ``"mem1": {"GiB": 80000000000}``, which is 8.6e19 bytes of GPU memory, and nothing
detected it. Numbers out of bounds are errors, not warnings; what-if studies stay within the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, get_args, get_origin

from sim import units
from sim.spec import hardware as hw
from sim.spec import reliability
from sim.spec.energy import GpuPower, PowerModel
from sim.spec.fabric import Dragonfly, LeafSpine, Pods, Torus
from sim.spec.fields import Dimension, Key, Spec
from sim.spec.input import Dataset, Input
from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.node_prices import CheapestPrices, Prices
from sim.spec.sections import blocks, file_fields, file_values
from sim.spec.servers import Servers
from sim.spec.stack import Compression, Fusion, Stack
from sim.spec.stores import Store
from sim.spec.stream import Stream
from sim.spec.training import MOST_MICRO_BATCHES, Training

Bounds = tuple[str | float, str | float]
"""Inclusive lower and upper limit: quantities as they are written, or plain numbers."""

_TRUNK: Final[Bounds] = ("10 Mbps", "100,000 Tbps")
"""Bounds of one or many links between switches."""

RANGES: Final[dict[type[Spec], dict[str, Bounds]]] = {
    hw.Gpu: {
        "memory": ("1 GB", "10 TB"),
        "memory_bandwidth": ("1 GB/s", "100 TB/s"),
        "memory_efficiency": (0.01, 1),
        "tensor_core_rate": (0.01, 1),
        "peak": ("1 GFLOP/s", "100 PFLOP/s"),
        "kernel_time": ("0 s", "10 ms"),
        "context_memory": ("0 B", "100 GB"),
        "power": ("1 W", "20 kW"),
        "compute_cv": (0, 0.5),
    },
    hw.Link: {"bandwidth": ("1 MB/s", "10 TB/s"), "nccl_bandwidth": ("1 MB/s", "10 TB/s"), "efficiency": (0.01, 1)},
    hw.Transport: {
        "hop_latency": ("0 s", "1 s"),
        "eager": ("0 B", "1 GB"),
        "rendezvous": ("0 s", "1 s"),
        "launch": ("0 s", "1 s"),
        "flow_cap": ("1 Mbps", "10 Tbps"),
        "channel_cap": ("1 MB/s", "10 TB/s"),
        "simple_start": ("0 s", "1 s"),
        "block_copy": ("1 MB/s", "10 TB/s"),
        "ll_cap": ("1 MB/s", "10 TB/s"),
        "send_cap": ("1 MB/s", "10 TB/s"),
        "nvls_cap": ("1 MB/s", "10 TB/s"),
        "flows": (1, 1024),
        "total_efficiency": (0.01, 1),
        "cpu_time_per_byte": ("0 s/GB", "1,000 s/GB"),
    },
    hw.Cpu: {
        "clock": ("100 MHz", "10 GHz"),
        "speed": (0.01, 100),
        "launch_speed": (0.01, 100),
        "smt_gain": (0.5, 8),
        "memory_bandwidth": ("1 GB/s", "10 TB/s"),
    },
    hw.Host: {"sockets": (1, 64), "physical_cores": (1, 10_000), "vcpus": (1, 10_000), "memory": ("1 GiB", "64 TiB")},
    hw.Topology: {
        "host_bridge_bandwidth": ("100 MB/s", "10 TB/s"),
        "socket_copy_bandwidth": ("100 MB/s", "10 TB/s"),
        "host_copy_bandwidth": ("100 MB/s", "10 TB/s"),
    },
    hw.NvLink: {"pairs": (1, 100), "switch_links": (0, 100)},
    # a rack has up to 144 NICs (bm.gpu.gb300.4, 18 trays of eight)
    hw.Nic: {"count": (1, 256), "bandwidth": ("10 Mbps", "10 Tbps"), "nccl_plugin_latency": ("0 s", "1 s")},
    hw.Volume: {
        "size": ("1 GB", "100 PB"),
        "bandwidth": ("1 MB/s", "10 TB/s"),
        "io_size": ("512 B", "1 GB"),
        "baseline_iops": ("1 IOPS", "1,000,000,000 IOPS"),
        "max_iops": ("1 IOPS", "1,000,000,000 IOPS"),
        "burst_iops": ("1 IOPS", "1,000,000,000 IOPS"),
        "iops_per_gib": (0, 1e6),
        "burst_credits": (0, 1e12),
        "latency": ("0 s", "10 s"),
        "count": (1, 1024),
    },
    hw.Storage: {"bandwidth": ("1 MB/s", "10 TB/s"), "iops": ("1 IOPS", "1,000,000,000 IOPS")},
    hw.Node: {"gpu_count": (0, 1024)},
    hw.Group: {"count": (1, 100_000)},
    # a rack of 18 trays costs up to 1,947 USD/h (nd128isr_ndr_gb200_v6)
    **{kind: dict.fromkeys(("on_demand", "spot"), ("0.001 USD/h", "2,500 USD/h")) for kind in (Prices, CheapestPrices)},
    hw.Fabric: {"latency": ("0 s", "1 s"), "core_bandwidth": ("10 Mbps", "100,000 Tbps")},
    LeafSpine: {"nodes_per_leaf": (1, 10_000), "oversubscription": (0.1, 1000), "uplink_bandwidth": _TRUNK, "radix": (2, 10_000)},
    Pods: {"leaves": (1, 10_000), "oversubscription": (1, 1000)},
    Dragonfly: {
        "nodes_per_router": (1, 10_000),
        "routers_per_group": (1, 10_000),
        "groups": (1, 100_000),
        "local_bandwidth": _TRUNK,
        "global_bandwidth": _TRUNK,
        "global_links": (1, 10_000),
        "radix": (2, 10_000),
    },
    Torus: {"dimensions": (1, 100_000), "link_bandwidth": _TRUNK},
    Layer: {
        **dict.fromkeys(("forward", "backward", "arithmetic", "backward_arithmetic"), ("0 FLOP", "10 PFLOP")),
        "kernel_size": (0, 1024),
        "rows": (0, 1e13),
        "rows_per_sample": (0, 1e9),
        "forward_kernels": (0, 100_000),
        "backward_kernels": (0, 100_000),
    },
    Model: {"parameters": (1, 1e14), "input": ("1 B", "100 GB"), "buffers": ("0 B", "10 TB")},
    Stream: {"shard": ("1 kB", "1 TB"), "compressed": (0.001, 1)},
    Dataset: {
        "samples": (1, 1e13),
        "sample": ("1 B", "100 GB"),
        "prepared": ("1 B", "100 GB"),
        "prep": ("0 s", "1 h"),
        "dali_prep": ("0 s", "1 h"),
        "dali_gpu_prep": ("0 s", "1 h"),
        "dali_gpu_time": ("0 s", "1 h"),
    },
    Input: {"num_workers": (0, 512), "prefetch_factor": (1, 10_000), "num_threads": (1, 4096), "worker_start": ("0 s", "1 h")},
    Training: {"batch": (1, 10_000_000), "gradient_accumulation_steps": (1, MOST_MICRO_BATCHES), "compute_factor": (0.001, 1000)},
    Servers: {
        "count": (1, 10_000),
        "chunk": ("1 B", "1 GB"),
        "update_cpu": ("0 s", "1 s"),
        "byte_cpu": ("0 s/GB", "1,000 s/GB"),
        "racks": (1, 1000),
    },
    Stack: {
        "launch_cpu": ("0 s", "100 ms"),
        "distributed_overhead": ("0 s", "100 s"),
        "kernels_per_operator": (0.001, 1000),
        "compute_factor": (0.001, 1000),
        "overlap_slowdown": (0.5, 100),
        "gradient_copy_passes": (0, 100),
        "score_passes": (0, 100),
        "blocking_scalar_all_reduces": (0, 100_000),
        "channels": (1, 64),
        "message_size": (1, 1e12),
    },
    Fusion: {
        "threshold": ("0 B", "100 GB"),
        "cycle_time": ("0 s", "1 h"),
        "response_cache": (0, 10_000_000),
        "control_latency": ("0 s", "1 s"),
        "request_time": ("0 s", "1 s"),
    },
    reliability.Quantile: {"time": ("0 s", "10,000 d")},
    reliability.NewFleet: {"within": ("1 h", "1,000 d")},
    reliability.Repeats: {"after": ("1 s", "100 d")},
    reliability.FaultCause: {"detection": ("0 s", "100 d"), "localization": ("0 s", "100 d")},
    reliability.Correlated: {"repair": ("0 s", "100 d"), "nodes": (2, 100_000)},
    reliability.SlowNodes: {"factor": (1, 100), "duration": ("0 s", "100 d")},
    reliability.Reliability: {"spread_of_nodes": (0.01, 1e6), "gpus_per_node": (1, 1024)},
    Store: {"bandwidth": ("1 MB/s", "1 PB/s"), "per_writer": ("1 MB/s", "1 TB/s"), "size": ("1 GB", "1,000 PB")},
    GpuPower: {"compute": (0.05, 2), "waiting": (0.01, 2), "idle": (0.01, 1)},
    PowerModel: {"pue": (1, 5), "pue_interval": (1, 5), "host_gpus": (1, 1024)},
    Compression: {"density": (1e-9, 1), "rank": (1, 100_000)},
}
"""Bounds of single fields. Every other quantity has the bounds of its dimension."""

DIMENSIONS: Final[dict[str, Bounds]] = {
    "time": ("0 s", "1 d"),
    "size": ("0 B", "1 PB"),
    "bandwidth": ("1 KB/s", "1 PB/s"),
    "work": ("0 FLOP", "1 EFLOP"),
    "compute rate": ("1 MFLOP/s", "1 EFLOP/s"),
    "frequency": ("1 Hz", "100 GHz"),
    "rate": ("0.001 /s", "1,000,000,000,000 /s"),
    "price": ("0 USD/h", "1,000 USD/h"),
    "money": ("0 USD", "1,000,000,000 USD"),
    "power": ("0 W", "1 MW"),
    "failure rate": ("0 /d", "100 /d"),
    "carbon intensity": ("0 g/kWh", "3,000 g/kWh"),
    "time per byte": ("0 s/GB", "1,000 s/GB"),
    "fraction": (0, 1000),
}


def out_of_bounds(spec: Spec, skip: Callable[[Spec], bool] = lambda _: False) -> Iterator[tuple[Key, str]]:
    """Yield the key of every number of *spec* that is out of bounds, with a sentence that names the bounds; ignore blocks to *skip*."""
    for key, block in blocks(spec, skip=skip):
        values = file_values(block)
        for name, (low, high, bounds, dimension) in _limits(type(block)).items():
            value = values.get(name)
            if value is None or (type(value) is float and low <= value <= high):  # the most frequent case
                continue
            for inner, number in _numbers(value):
                if number is not None and not low <= number <= high:
                    yield (*key, name, *([inner] if inner is not None else [])), _sentence(number, bounds, dimension)


def _numbers(value: Any) -> Iterable[tuple[str | int | None, Any]]:
    """Return each number of a field with its key inside the field: in a mapping, in a list, or None for the field itself."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, tuple) else ((None, value),)


def _sentence(number: float, bounds: Bounds, dimension: str) -> str:
    shown = units.rounded(number) if isinstance(bounds[0], int | float) else units.show(number, dimension)
    if abs(number) >= 1e15 and not isinstance(bounds[0], str):
        shown = f"{float(number):.3g}"
    return f"{shown} is implausible; write {_bound(bounds[0])} to {_bound(bounds[1])}"


def _bound(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,g}" if value < 1e5 or value >= 1e9 else f"{value:,.0f}"


@lru_cache(maxsize=256)
def _limits(kind: type[Spec]) -> dict[str, tuple[float, float, Bounds, str]]:
    """Return, for every field of *kind* with bounds: lower and upper limit, both as written, and the dimension."""
    limits = {}
    for name, field in file_fields(kind).items():
        dimension = _dimension((field.annotation, *field.metadata)) or ""
        bounds = RANGES.get(kind, {}).get(name) or DIMENSIONS.get(dimension)
        if bounds is not None:
            low, high = (units.parse(bound, dimension) if isinstance(bound, str) else bound for bound in bounds)
            limits[name] = (low, high, bounds, dimension)
    return limits


def _dimension(pieces: tuple[Any, ...]) -> str | None:
    """Return the dimension of a quantity from its type and metadata, looking into unions and the values of dicts."""
    for piece in pieces:
        if isinstance(piece, Dimension):
            return piece.name
        inner = get_args(piece)[1:] if get_origin(piece) in (Annotated, dict) else get_args(piece)
        if inner and (nested := _dimension(inner)) is not None:
            return nested
    return None
