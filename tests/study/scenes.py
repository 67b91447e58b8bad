"""Jobs that one slow resource bounds, by its name."""

from __future__ import annotations

from typing import Any

from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from tests.harness import layer, machine, toy_workload, volume

COMPUTE = 0.3
WORKERS = {"num_workers": 2, "pin_memory": False}
BIG = (layer(0.1, 0.2, 250_000_000),)  # 1 GB of gradients


def scene(name: str) -> tuple[Hardware, Workload]:
    """A job of 0.3 s of compute that one resource slows several times."""
    pytorch: dict[str, Any] = {"loader": "pytorch", "inputs": WORKERS}
    scenes = {
        "disk": (machine(1, disk=volume(bandwidth=1e6)), toy_workload(sample=1e6, **pytorch)),
        "cpu": (machine(1, disk=volume(), cores=2), toy_workload(prep=3.0, **pytorch)),
        "decode": (machine(1, disk=volume()), toy_workload(loader="dali_gpu", gpu_prep=1.0)),
        "copy": (machine(1, pcie=1e9), toy_workload(prepared=2e9)),
        "nvlink": (machine(2, nvlink=1e9), toy_workload(BIG)),
        "pcie": (machine(2, wiring="pcie", pcie=1e9), toy_workload(BIG)),
        "network": (machine(1, 2, nic=1e9, pcie=1e15), toy_workload(BIG)),
        "launch": (machine(1), toy_workload(stack={"launch_cpu": "1 s"})),
        "spread": (machine(4, compute_cv=0.5), toy_workload()),
    }
    return scenes[name]
