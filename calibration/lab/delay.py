"""How do frames arrive later than they were sent, where the kernel cannot do it? A switch in user space that holds each for the delay.

The one interface of every host is a TAP device; this process reads the frames that leave one, and writes them to the one their
destination address belongs to (all others for broadcasts) when the delay is over. Frames cross with their virtio-net header
(linux/Documentation/networking/tuntap.rst), so one read carries up to 64 KiB that no one has cut into packets: that is what lets
Python carry gigabits. The process runs with real-time priority, as a device would. Limits: it takes a core's time, about which
`calibration.lab.probe` says how much rate is left.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from sim.spec.yaml import SpecError

_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_FLAGS: Final = 0x0002 | 0x1000 | 0x4000
"""IFF_TAP, IFF_NO_PI, IFF_VNET_HDR of linux/if_tun.h."""
_OFFLOADS: Final = 0x01 | 0x02 | 0x04
"""TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 of linux/if_tun.h."""
_NETWORK: Final = 0x40000000
"""CLONE_NEWNET of linux/sched.h."""
_HEADER: Final = 10
"""Bytes of struct virtio_net_hdr."""
_MOST: Final = 2**16 + 2**10
"""Bytes of one read: the largest uncut frame and its header."""
_STARTED: Final = "ready"


def tap(namespace: str, interface: str) -> int:
    """Return a descriptor of the new TAP device *interface* of *namespace*."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as place:
        if library.setns(place.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _FLAGS))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOADS)
    return device


@contextmanager
def delay_line(namespaces: Sequence[str], delay: float) -> Iterator[None]:
    """Give each of *namespaces* an interface, and carry frames between them with *delay* seconds one way, until the block ends."""
    command = [sys.executable, "-m", "calibration.lab.delay", repr(delay), *namespaces]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline().strip() != _STARTED:
            process.kill()
            said = process.communicate()[1].strip().splitlines()
            raise SpecError(
                f"lab: this machine cannot delay frames, neither with netem nor with TAP devices: {said[-1] if said else 'unknown reason'}"
            )
        yield
    finally:
        process.kill()
        process.communicate()


class DelaySwitch:
    """Frames under way between TAP devices."""

    def __init__(self, devices: Sequence[int], delay: float) -> None:
        self._devices = devices
        self._delay = delay
        self._behind: dict[bytes, int] = {}
        """The device behind which each address was last seen."""
        self._held: deque[tuple[float, int, bytes]] = deque()
        """When each frame is due, where it came from, and the frame: in order, as all are held equally long."""

    def carry(self) -> None:
        """Carry frames without end."""
        while True:
            for device in select.select(self._devices, (), (), self._patience())[0]:
                self._take(device)
            self._deliver()

    def _patience(self) -> float | None:
        """Return the seconds until something is due; None where nothing is held."""
        return max(0.0, self._held[0][0] - time.monotonic()) if self._held else None

    def _take(self, device: int) -> None:
        """Take in a few of the frames that wait at *device*."""
        with suppress(BlockingIOError):
            for _ in range(8):
                frame = os.read(device, _MOST)
                self._behind[frame[_HEADER + 6 : _HEADER + 12]] = device
                self._held.append((time.monotonic() + self._delay, device, frame))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            _, source, frame = self._held.popleft()
            target = self._behind.get(frame[_HEADER : _HEADER + 6])
            for device in self._devices if target is None else (target,):
                if device != source:
                    with suppress(BlockingIOError, OSError):  # as a full or unplugged port drops it
                        os.write(device, frame)


def main(arguments: Sequence[str]) -> None:
    """Carry frames between the namespaces *arguments*[1:], held *arguments*[0] seconds."""
    delay, namespaces = float(arguments[0]), arguments[1:]
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    switch = DelaySwitch([tap(name, "eth0") for name in namespaces], delay)
    print(_STARTED, flush=True)
    switch.carry()


if __name__ == "__main__":
    main(sys.argv[1:])
