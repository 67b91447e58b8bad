"""How are frames delayed if the kernel cannot do it? A switch in user space holds each frame for the delay.

The only interface of every host is a TAP device. This process reads the frames that leave a device and, when the delay is over, writes them
to the device of their destination address (broadcasts to all others). Frames keep their virtio-net header
(linux/Documentation/networking/tuntap.rst), so one read returns up to 64 KiB that have not been cut into packets; this lets Python carry
gigabits per second. The process runs with real-time priority, like a device. Limits: it uses a core; `calibration.lab.probe` measures the
remaining rate.
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


def open_tap(namespace: str, interface: str) -> int:
    """Return the file descriptor of a new TAP device *interface* in *namespace*."""
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
    """Create an interface in each of *namespaces*, and carry frames between them with *delay* seconds one way, until the block ends."""
    command = [sys.executable, "-m", "calibration.lab.delay", repr(delay), *namespaces]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline().strip() != _STARTED:
            process.kill()
            messages = process.communicate()[1].strip().splitlines()
            raise SpecError(
                f"lab: this machine cannot delay frames, neither with netem nor with TAP devices: "
                f"{messages[-1] if messages else 'unknown reason'}"
            )
        yield
    finally:
        process.kill()
        process.communicate()


class DelaySwitch:
    """Carries frames between TAP devices, each held for *delay* seconds."""

    def __init__(self, devices: Sequence[int], delay: float) -> None:
        self._devices = devices
        self._delay = delay
        self._behind: dict[bytes, int] = {}
        """The device behind which each address was last seen."""
        self._held: deque[tuple[float, int, bytes]] = deque()
        """Due time, source device and content of each frame; in order, because all frames are held equally long."""

    def carry(self) -> None:
        """Carry frames forever."""
        while True:
            for device in select.select(self._devices, (), (), self._patience())[0]:
                self._take(device)
            self._deliver()

    def _patience(self) -> float | None:
        """Return the seconds until the next frame is due; None if none is held."""
        return max(0.0, self._held[0][0] - time.monotonic()) if self._held else None

    def _take(self, device: int) -> None:
        """Read a few of the frames that wait at *device*."""
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
                    with suppress(BlockingIOError, OSError):  # the frame is dropped, as by a full or unplugged port
                        os.write(device, frame)


def main(arguments: Sequence[str]) -> None:
    """Carry frames between the namespaces *arguments*[1:], each held for *arguments*[0] seconds."""
    delay, namespaces = float(arguments[0]), arguments[1:]
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    switch = DelaySwitch([open_tap(name, "eth0") for name in namespaces], delay)
    print(_STARTED, flush=True)
    switch.carry()


if __name__ == "__main__":
    main(sys.argv[1:])
