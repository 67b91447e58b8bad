"""A library of small descriptions in a temporary folder, so that tests of the spec layer do not depend on the catalog."""

from __future__ import annotations

from pathlib import Path

MACHINE = """\
name: toy
provider: nobody
node:
  gpu: Toy-GPU
  gpu_count: 2
  topology:
    nvlink: {link: wire, pairs: {0-1: 1}}
    pcie: wire
    sockets: [{gpus: [0, 1], nics: [0]}]
    source: tests
  host: {cpu: toy-cpu, sockets: 1, physical_cores: 4, vcpus: 8, memory: 64 GiB, source: tests}
  nic: {bandwidth: 25 Gbps, transport: hop, source: tests}
  storage: {volume: disk, source: tests}
  nvlink_transport: hop
  peer_transport: hop
  host_transport: hop
price: {on_demand: 3 USD/h, date: 2026-07-20, source: tests}
"""

WORKLOAD = """\
name: toy-job
model: toy-net
dataset: pictures
training: {batch: 32, stack: plain}
"""

FILES = {
    "hardware/toy.yaml": MACHINE,
    "hardware/parts/gpus/toy-gpu.yaml": """\
name: Toy-GPU
architecture: toy
compute_capability: "1.0"
memory: 16 GiB
memory_bandwidth: 900 GB/s
memory_efficiency: 0.8
peak: {fp32: 10 TFLOP/s}
efficiency:
  conv: {fp32: 0.5}
  gemm: {fp32: [[1 GFLOP, 0.4], [100 GFLOP, 0.8]]}
kernel_time: 5 us
context_memory: 0.5 GiB
source: {"*": tests, memory_efficiency: estimate (no stream benchmark), efficiency.gemm: estimate (guessed)}
""",
    "hardware/parts/links/wire.yaml": "{name: wire, bandwidth: 10 GB/s, efficiency: 1.0, nccl_bandwidth: 10 GB/s, source: tests}\n",
    "hardware/parts/transports/hop.yaml": "{name: hop, hop_latency: 5 us, launch: 10 us, efficiency: 1.0, source: tests}\n",
    "hardware/parts/cpus/toy-cpu.yaml": """\
{name: toy-cpu, vendor: amd, clock: 3 GHz, speed: 1.0, smt_gain: 1.2, memory_bandwidth: 100 GB/s, socket_link: wire, source: tests}
""",
    "hardware/parts/volumes/disk.yaml": """\
{name: disk, size: 1 TB, bandwidth: 1 GB/s, io_size: 256 KiB, baseline_iops: 3000 IOPS, max_iops: 3000 IOPS, source: tests}
""",
    "workloads/toy-job.yaml": WORKLOAD,
    "workloads/jobs/toy-pair.yaml": "{name: toy-pair, jobs: [{workload: toy-job, gpus: [0]}, {workload: toy-job, placement: '1'}]}\n",
    "workloads/models/toy-net.yaml": """\
name: toy-net
parameters: 110
input: 1 KB
source: tests
layers:
  - {name: one, op: gemm, gradients: [100], forward: 1 MFLOP, backward: 2 MFLOP, read: 1 KB, write: 1 KB}
  - {name: two, op: gemm, gradients: [10], forward: 1 MFLOP, backward: 2 MFLOP, read: 1 KB, write: 1 KB}
""",
    "workloads/datasets/pictures.yaml": "{name: pictures, samples: 1000, sample: 100 KB, prepared: 600 KB, prep: 5 ms, source: tests}\n",
    "workloads/stacks/plain.yaml": """\
{name: plain, strategy: ddp, gradient_copy_passes: 4, optimizer: foreach, launch_cpu: 10 us, source: tests}
""",
}


def write_library(folder: Path) -> Path:
    """Write every description below *folder* and return it."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
