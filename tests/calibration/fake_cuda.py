"""A GPU that is none: a host clock and a device clock, moved by launches and kernels as CUDA's streams move theirs.

What our code asks of torch.cuda for measuring (events, synchronize, memory, devices) is answered from these clocks, so it runs as on a
machine with GPUs; kernels are calls of `FakeCuda.kernel`. Nothing of torch's own CUDA code is exercised.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from calibration.measure.probes import timing

CYCLES = 1.5e9
"""A second, of its clock."""


class FakeCuda:
    """Clocks of a host and of the one stream it launches into, seconds."""

    def __init__(self, launch: float = 5e-6) -> None:
        self.host = self.device = 0.0
        self.launch = launch
        self.launched = 0
        self.current = 0

    def kernel(self, duration: float) -> None:
        """Launch a kernel: it begins when the device has done what came before, and the host is done launching."""
        self.launched += 1
        self.host += self.launch
        self.device = max(self.device, self.host) + duration

    def synchronize(self, device: object = None) -> None:
        self.host = max(self.host, self.device)

    def sleep(self, cycles: int) -> None:
        self.kernel(cycles / CYCLES)

    def perf_counter(self) -> float:
        return self.host

    def event(self, enable_timing: bool = False) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at = cuda, -1.0

    def record(self) -> None:
        self.cuda.device = self.at = max(self.cuda.device, self.cuda.host)

    def synchronize(self) -> None:
        self.cuda.host = max(self.cuda.host, self.at)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert 0 <= self.at <= end.at <= self.cuda.host, "read before it has happened"
        return 1e3 * (end.at - self.at)


def install(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, count: int = 1) -> FakeCuda:
    """Let torch.cuda be *cuda*, and *count* such devices be there."""
    import torch

    replacements = {
        "Event": cuda.event,
        "synchronize": cuda.synchronize,
        "_sleep": cuda.sleep,
        "is_available": lambda: True,
        "device_count": lambda: count,
        "set_device": lambda device: setattr(cuda, "current", getattr(device, "index", device)),
        "empty_cache": lambda: None,
    }
    for name, value in replacements.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=cuda.perf_counter))
    return cuda
