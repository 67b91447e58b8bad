"""Records of machines whose constants are known: what a profile would have measured, with noise or without."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibration.measure.machine_record import AnswerRow, MachineRecord, ProbeRecord
from sim.training.collectives.price.gloo_ring import cut_segments, segments_time

TRUTH = {
    "launch by the device": {"time per unit": 4e-6},
    "memory": {"time per unit": 1 / 20e9},
    "gemm fp32": {"fixed time": 12e-6, "time per unit": 1 / 80e9},
    "conv fp32": {"fixed time": 30e-6, "time per unit": 1 / 60e9},
    "pinned copy to device": {"fixed time": 8e-6, "time per unit": 1 / 12e9},
    "disk bytes": {"time per unit": 1 / 2e9},
    "disk latency": {"time per unit": 1e-4},
    "loading": {"time per unit": 5e-3},
    "products beside an exchange": {"factor": 1.5},
    "gloo": {"launch": 60e-6, "hop_latency": 180e-6, "time per unit": 1 / 0.9e9},
}
"""Seconds by subject and parameter."""
CPU = {
    "cpu": "AMD EPYC",
    "vendor": "amd",
    "clock_hz": 2.6e9,
    "sockets": 1,
    "physical_cores": 4,
    "vcpus": 4,
    "memory_bytes": 32 * 2**30,
    "device": "cpu",
    "gpus": [],
    "ranks": 2,
    "backend": "gloo",
}
GONE = {"model": "no_such_module:Net", "inputs": ["4"], "arguments": [], "batch": 4}
"""A model that is not here any more, so that its steps are not predicted."""
V100 = {"name": "Tesla V100-SXM2-16GB", "memory_bytes": 16 * 2**30, "compute_capability": "7.0"}


class Meter:
    """Gives repetitions of a time: the same noise for all of one question, and a little more for each."""

    def __init__(self, noise: float, seed: int) -> None:
        self.noise, self.generator = noise, np.random.default_rng(seed)

    def __call__(self, time: float, count: int = 5) -> list[float]:
        own = self.generator.normal(0.0, self.noise)
        return [time * float(np.exp(own + self.generator.normal(0.0, self.noise / 10))) for _ in range(count)]


def line(subject: str, size: float) -> float:
    truth = TRUTH[subject]
    return truth.get("fixed time", 0.0) + size * truth["time per unit"]


def cpu_record(noise: float = 0.0, seed: int = 0, **machine: Any) -> MachineRecord:
    """Return the record of a machine of `TRUTH` without a GPU; *machine* changes its facts."""
    meter = Meter(noise, seed)
    probes: dict[str, list[AnswerRow]] = {
        "launch": [{"clock": clock, "times_s": [meter(4e-6, 1)[0] for _ in range(8)]} for clock in ("device", "host")],
        "memory": [{"pass": "copy", "bytes": 2**power, "times_s": meter(line("memory", 2**power))} for power in (20, 26, 27, 28, 29)],
        "gemm": [
            {"precision": "fp32", "shape": [n, n, n], "flop": 2 * n**3, "times_s": meter(line("gemm fp32", 2 * n**3))}
            for n in (32, 48, 64, 96, 128, 256, 512, 1024, 1536)
        ],
        "convolution": [
            {"precision": "fp32", "class": "conv", "shape": [1], "flop": flop, "times_s": meter(line("conv fp32", flop))}
            for flop in (1e5, 3e5, 1e6, 3e6, 1e7, 1e8, 1e9)
        ],
        "disk": [
            {"way": "sequential", "block_bytes": 2**23, "threads": 1, "cache": "direct", "times_s": _each(meter, 2**23 / 2e9)},
            {"way": "random", "block_bytes": 4096, "threads": 1, "cache": "direct", "times_s": _each(meter, 1e-4)},
            {"way": "random", "block_bytes": 4096, "threads": 8, "cache": "direct", "times_s": _each(meter, 2e-4)},
        ],
        "loading": [
            {"stage": "loader", "workers": count, "picture_bytes": 1e5, "times_s": _each(meter, 5e-3 / count)} for count in (1, 2, 4)
        ],
        "steps": [GONE | {"exchange": False, "ranks": 2, "times_by_rank_s": [_scattered(each) for each in (1.0, 1.1)]}],
        "all_reduce": [*(_collective(meter, op, ranks, size) for ranks in (2, 8) for op, size in _sweep()), _beside(meter)],
    }
    probe_records = {name: ProbeRecord("done", "2026-01-02T00:00:00Z", rows=rows) for name, rows in probes.items()}
    return MachineRecord("box", CPU | machine, {"torch": "2"}, "complete", probe_records)


def over_two_machines(noise: float = 0.0, local: int = 2) -> MachineRecord:
    """Return the record of two such machines with *local* ranks each, joined at 1 Gbps; a step between them takes 480 us."""
    record, meter = cpu_record(noise, ranks=2 * local, nodes=2), Meter(noise, 1)
    rows = [row for row in record.rows("all_reduce") if row["ranks"] <= local]
    teams = sorted({2, 2 * local})
    rows += [_collective(meter, op, ranks, size, 480e-6, 0.956 * 125e6) | {"nodes": 2} for ranks in teams for op, size in _sweep()]
    record.probes["all_reduce"].rows = rows
    return record


def _each(meter: Meter, time: float) -> list[float]:
    return [meter(time, 1)[0] for _ in range(20)]


def _scattered(time: float) -> list[float]:
    """Steps whose median distance from their median is that of a normal scatter of 2%; one of them was disturbed."""
    near = 0.02 / 1.4826
    return [time * (1.0 + near * place) for place in (-2.0, -1.0, -1.0, 0.0, 1.0, 1.0, 40.0)]


def _sweep() -> list[tuple[str, int]]:
    return [("all_reduce", 4**power) for power in range(2, 14, 2)] + [("all_gather", size) for size in (64, 4096, 16384)]


def _collective(meter: Meter, op: str, ranks: int, size: int, latency: float = 180e-6, rate: float = 0.9e9) -> AnswerRow:
    passes = 2 if op == "all_reduce" else 1
    segments, segment = cut_segments(float(size), ranks)
    time = 60e-6 + passes * segments_time(segments, segment / rate, latency / 2, ranks == 2)
    sent = passes * (ranks - 1) * size / ranks
    return {"op": op, "ranks": ranks, "bytes": size, "cpu_s": 0.4e-9 * 2 * sent, "times_s": meter(time)}


def _beside(meter: Meter) -> AnswerRow:
    times = {
        "exchange_s": _each(meter, 0.04),
        "products_s": _each(meter, 0.02),
        "beside_s": _each(meter, 0.03),
        "times_s": _each(meter, 0.06),
    }
    return {"op": "all_reduce", "ranks": 2, "bytes": 2**25, "beside": "products"} | times


def gpu_record(count: int = 1, noise: float = 0.0, seed: int = 0) -> MachineRecord:
    """Return the record of a machine with V100s: no exchange, copies of 12 GB/s, memory at 80% of its data sheet."""
    record = cpu_record(noise, seed, device="cuda", gpus=[V100] * count, ranks=count, backend="nccl" if count > 1 else "none")
    meter = Meter(noise, seed)
    del record.probes["all_reduce"]
    copies = [
        {"way": "to device", "host": "pinned", "bytes": 4**power, "together": 1, "times_s": meter(line("pinned copy to device", 4**power))}
        for power in range(5, 15)
    ]
    record.probes["host_copy"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=copies)
    memory = [{"pass": "copy", "bytes": 2**power, "times_s": meter(2**power / 720e9)} for power in (26, 27, 28, 29)]
    record.probes["memory"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=memory)
    return record
