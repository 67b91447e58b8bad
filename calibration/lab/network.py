"""How can one machine act as several hosts? As network namespaces, joined by veth cables to a bridge in one more namespace.

Every host sends through a token bucket (tc-tbf) of the requested rate, so each direction of each cable carries that rate. netem adds the
one-way delay on the way to the host; if the kernel lacks netem, `calibration.lab.delay` carries the frames between TAP devices. Everything
is inside namespaces whose names begin with `PREFIX` and the number of the owning process. Deleting them, after ending the processes in
them, leaves nothing behind; no other namespace or interface of the machine is touched. The next laboratory removes namespaces whose owner
is dead. Limits: hosts share the machine's cores, caches and memory bandwidth.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sim.spec.yaml import SpecError

PREFIX: Final = "stallsim-lab-"
INTERFACE: Final = "eth0"
"""The interface of every host."""
BURST_SECONDS: Final = 1e-3
"""Burst of the token bucket, in seconds of its rate, so that a late timer does not reduce the rate (tc-tbf(8), 'burst')."""
LEAST_BURST_BYTES: Final = 72_000
"""Minimum burst in bytes: the largest piece that TCP passes down (64 KiB and each frame's headers). A smaller bucket cuts pieces into
frames, each with the processor time of a piece and an acknowledgment of its own, which no network card does."""
QUEUE_BYTES: Final = 16 * 2**20
"""Bytes that may queue at the token bucket: more than a few sockets ever have in flight, so that nothing is dropped."""
_OWN: Final = re.compile(re.escape(PREFIX) + r"(\d+)-\w+")
_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class LabHosts:
    """The hosts of one laboratory network."""

    names: tuple[str, ...]
    """Namespaces."""
    cores: tuple[tuple[int, ...], ...]
    """Cores that each host's processes are pinned to."""
    delayed_by: str
    """What delays frames: ``netem``, ``delay line`` or, if nothing does, empty."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the IP address of each host."""
        return tuple(f"10.77.0.{number + 1}" for number in range(len(self.names)))

    def command_prefix(self, host: int) -> list[str]:
        """Return the prefix of a command that runs it on *host*, on its cores."""
        return ["ip", "netns", "exec", self.names[host], *pinning_prefix(self.cores[host])]


def pinning_prefix(cores: Sequence[int]) -> list[str]:
    """Return the prefix of a command that pins it to *cores*, with priority over other programs.

    Linux shares processors between sessions first (sched(7), autogroups), so every host is a session, and the session has the priority.
    """
    first = 'echo -20 2>/dev/null >/proc/self/autogroup; exec "$@"'
    return ["setsid", "nice", "-n", "-20", "sh", "-c", first, "sh", "taskset", "-c", ",".join(map(str, cores))]


def require_laboratory() -> None:
    """Raise SpecError if this process cannot build networks, or if the commands for it are missing."""
    if not sys.platform.startswith("linux"):
        raise SpecError("lab: network namespaces require Linux; run it on a Linux machine or in a Linux VM")
    if os.geteuid() != 0:
        raise SpecError("lab: building networks needs root; run it as root, for example with sudo")
    for command, package in (
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("taskset", "util-linux"),
        ("setsid", "util-linux"),
        ("nice", "coreutils"),
    ):
        if shutil.which(command) is None:
            raise SpecError(f"lab: the command '{command}' is missing; install {package}")
    name = f"{PREFIX}{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "del", name)
    except SpecError as error:
        raise SpecError(f"lab: root cannot create network namespaces on this machine ({error}); a container needs --privileged") from None


def has_netem() -> bool:
    """Return whether this kernel can delay frames itself."""
    with _namespaces(["probe"]) as (name,):
        _run("ip", "-n", name, "link", "add", "end0", "type", "veth", "peer", "name", "end1")
        with suppress(SpecError):
            _run("tc", "-n", name, "qdisc", "add", "dev", "end0", "root", "netem", "delay", "1ms")
            return True
    return False


def divide_cores(hosts: int, cores: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each of *hosts*: equal parts of *cores*; if there are more hosts than cores, several share one."""
    each = max(1, len(cores) // hosts)
    return tuple(tuple(cores[(host * each + extra) % len(cores)] for extra in range(each)) for host in range(hosts))


@contextmanager
def lab_network(count: int, rate: float, delay: float = 0.0, cores: Sequence[int] | None = None) -> Iterator[LabHosts]:
    """Yield *count* hosts on a network of *rate* bytes/s and *delay* seconds one way; afterwards, remove all of it.

    SIGTERM and SIGHUP end the block as Ctrl-C does.
    """
    remove_orphans()
    own = sorted(os.sched_getaffinity(0)) if cores is None else cores
    labels = [f"host{number}" for number in range(count)]
    netem = delay > 0 and has_netem()
    with ExitStack() as stack:
        stack.enter_context(_stoppable())
        names = stack.enter_context(_namespaces([*labels, "switch"]))
        hosts = LabHosts(tuple(names[:-1]), divide_cores(count, own), "netem" if netem else "delay line" if delay > 0 else "")
        if delay > 0 and not netem:
            from calibration.lab.delay import delay_line

            stack.enter_context(delay_line(hosts.names, delay))
        else:
            _cable(hosts, names[-1], delay)
        for number, name in enumerate(hosts.names):
            _address(name, hosts.addresses[number])
            _run("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *token_bucket_arguments(rate))
        yield hosts


def token_bucket_arguments(rate: float) -> list[str]:
    """Return the arguments of tc for a token bucket of *rate* bytes/s."""
    burst = max(LEAST_BURST_BYTES, round(rate * BURST_SECONDS))
    return ["rate", f"{round(8 * rate)}bit", "burst", str(burst), "limit", str(QUEUE_BYTES + burst)]


def _cable(hosts: LabHosts, switch: str, delay: float) -> None:
    """Join *hosts* by one cable each to a bridge in the namespace *switch*; with *delay*, netem holds frames on the way to a host."""
    _run("ip", "-n", switch, "link", "add", "bridge0", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge0", "up")
    for number, name in enumerate(hosts.names):
        port = f"port{number}"
        _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge0", "up")
        if delay > 0:
            _run("tc", "-n", switch, "qdisc", "add", "dev", port, "root", "netem", "delay", f"{round(delay * 1e6)}us", "limit", "100000")


def _address(name: str, address: str) -> None:
    _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
    _run("ip", "-n", name, "link", "set", INTERFACE, "up")


@contextmanager
def _namespaces(labels: Sequence[str]) -> Iterator[list[str]]:
    names = [f"{PREFIX}{os.getpid()}-{label}" for label in labels]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        yield names
    finally:
        for name in names:
            _remove(name)


def remove_orphans() -> None:
    """Remove the namespaces, and end the processes in them, of laboratories whose process is dead."""
    for name in laboratory_namespaces():
        match = _OWN.fullmatch(name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove(name)


def laboratory_namespaces() -> list[str]:
    """Return the laboratory namespaces on this machine, of all owners."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX)]


def _remove(name: str) -> None:
    """Remove the namespace *name*, if it exists, after killing the processes in it."""
    if name not in laboratory_namespaces():
        return
    for _ in range(50):
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout.split()
        if not pids:
            break
        for pid in map(int, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)  # a killed process is gone a moment later
    with suppress(SpecError):
        _run("ip", "netns", "del", name)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does; in threads, where signals do not arrive, change nothing."""

    def stop(number: int, frame: object) -> None:
        for other in _STOPS:
            signal.signal(other, signal.SIG_IGN)  # cleaning up must not be interrupted
        raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, stop) for number in _STOPS}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        raise SpecError(f"lab: '{' '.join(command)}' failed: {message or f'exit code {done.returncode}'}")
