"""Which machine is this, and which software does it run? Facts that the machine reports, without its host name or address.

Linux reports processors and memory under /proc; other systems provide fewer facts. The name of the GPU comes from the driver.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from sim import __version__
from sim.spec.foreign.topo_matrix import COLOR
from sim.study.pool import cores

PACKAGES: Final = ("numpy", "pillow", "torchvision")


def machine_facts(device: str, ranks: int, backend: str, nodes: int = 1) -> dict[str, Any]:
    """Return processors, memory and GPUs of this machine, with *device*, *ranks*, *nodes* and the communication *backend*."""
    return {
        **processor_facts(_read("/proc/cpuinfo"), cores()),
        "memory_bytes": _memory(_read("/proc/meminfo")),
        "device": device,
        "gpus": _gpus() if device == "cuda" else [],
        **({"topology": _topology()} if device == "cuda" else {}),
        "ranks": ranks,
        "nodes": nodes,
        "backend": backend,
    }


def processor_facts(cpuinfo: str, usable: int) -> dict[str, Any]:
    """Return model, clock, sockets, physical cores and hardware threads from the text of /proc/cpuinfo.

    *usable* is the number of hardware threads that this process may use.
    """
    fields = [(match[1].strip(), match[2].strip()) for match in re.finditer(r"^([^:\n]+):(.*)$", cpuinfo, re.MULTILINE)]
    models = [value for key, value in fields if key == "model name"]
    vendors = [value for key, value in fields if key == "vendor_id"]
    clocks = [float(value) for key, value in fields if key == "cpu MHz"]
    places = _places(fields)
    physical = len(set(places)) or usable
    threads = max(1, len(models) // physical)
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "vendor": {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(vendors[0] if vendors else "", "arm"),
        "clock_hz": 1e6 * max(clocks) if clocks else None,
        "sockets": len({socket for socket, _ in places}) or 1,
        "physical_cores": max(1, min(physical, -(-usable // threads))),
        "vcpus": usable,
    }


def _places(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return (socket, core) of every hardware thread that lists its core; the socket is 0 if it is not listed."""
    places, socket = [], "0"
    for key, value in fields:
        if key == "physical id":
            socket = value
        elif key == "core id":
            places.append((socket, value))
    return places


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _memory(meminfo: str) -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _gpus() -> list[dict[str, Any]]:
    import torch

    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": gpu.name, "memory_bytes": gpu.total_memory, "compute_capability": f"{gpu.major}.{gpu.minor}"} for gpu in properties]


def _topology() -> str:
    """Return the topology of GPUs and NICs as the driver prints it; empty if it does not."""
    try:
        result = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return COLOR.sub("", result.stdout) if result.returncode == 0 else ""


def version_facts() -> dict[str, str]:
    """Return the versions of stallsim, Python and the libraries that are measured."""
    versions = {"stallsim": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions | _torch_versions()


def _torch_versions() -> dict[str, str]:
    try:
        import torch
    except ImportError:
        return {}
    versions = {"torch": torch.__version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.cuda.is_available() and torch.backends.cudnn.is_available():
        versions["cudnn"] = str(torch.backends.cudnn.version())
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


def neutral_name(facts: dict[str, Any]) -> str:
    """Return a name built from the hardware, such as ``epyc-2-cores`` or ``2x-tesla-v100``, that does not reveal the owner."""
    if facts["gpus"]:
        gpu = re.sub(r"[^a-z0-9]+", "-", facts["gpus"][0]["name"].lower().removeprefix("nvidia ")).strip("-")
        return f"{len(facts['gpus'])}x-{gpu}"
    words = [word for word in re.findall(r"[a-z]+", facts["cpu"].lower()) if word in ("epyc", "xeon", "ryzen", "core", "neoverse")]
    return f"{words[0] if words else 'cpu'}-{facts['vcpus']}-cores"
