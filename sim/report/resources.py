"""How is a recorded resource named in reports? Links by their description and ends; disks, cores and fabric by their kind."""

from __future__ import annotations

from collections import Counter

from sim.simulate import Run


def describe_resource(run: Run, name: str) -> tuple[str, int]:
    """Return the recorded resource *name* of *run* in words, or *name* if it is unknown, and how many of a node's links it represents."""
    slot, _, link = name.partition(".")
    owner = next((each for each in run.cluster if each.name == slot), None)
    if owner is None or not link:
        return (f"{link.replace('.', ' ')} of the fabric" if slot == "fabric" and link else name), 1
    plain = {"cores": "CPU cores", "disk": "disk, bandwidth", "disk iops": "disk, I/Os"}
    if link in plain:
        return plain[link], 1
    if link not in owner.graph.links:
        return ("decoding on the GPU" if ".job" in link else link), 1
    count = Counter(run.log.links.get(slot, {}).values())[name]
    return owner.graph.links[link].description + _direction(link), max(1, count)


def _direction(link: str) -> str:
    start, _, end = link.partition(">")
    return f" ({_plain(start)} to {_plain(end)})" if end else ""


def _plain(device: str) -> str:
    return device.upper() if device.startswith(("gpu", "nic")) else {"net": "network", "nvswitch": "NVSwitch"}.get(device, device)
