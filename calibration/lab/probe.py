"""Does a laboratory network reach its rate? A plain socket's payload rate in each direction and in both at once, and its round-trip time.

    python -m calibration.lab.probe serve ADDRESS        on one host: waits for one client
    python -m calibration.lab.probe ask ADDRESS BYTES    on the other: round trips of one byte, then BYTES there, back, and both

The receiver measures the rate over the second half of the bytes, which excludes the connection's slow start and the token bucket's initial
burst.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from calibration.lab.network import LabHosts
from sim.spec.yaml import SpecError

_PORT: Final = 29400
_TRIPS: Final = 20
_CHUNK: Final = 2**18
_LENGTH: Final = 0.6
"""Data sent in each direction, in seconds of the rate."""


@dataclass(frozen=True)
class SocketRates:
    """Rates of a plain socket from the first host to the last, and back."""

    forward: float
    """Payload, bytes/s."""
    backward: float
    duplex: float
    """Rate of the slower direction when both are in use, as in a ring."""
    round_trip: float
    """Median seconds for one byte there and one back."""


def probe_rates(hosts: LabHosts, rate: float) -> SocketRates:
    """Return the rates that the network of *hosts*, set to *rate* bytes/s, reaches. Raise SpecError if no connection can be made."""
    address, nbytes = hosts.addresses[0], max(_CHUNK, round(_LENGTH * rate))
    module = [sys.executable, "-m", "calibration.lab.probe"]
    server = subprocess.Popen(
        [*hosts.command_prefix(0), *module, "serve", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if server.stdout is None or server.stdout.readline().strip() != "ready":
            raise SpecError(f"lab: could not start a server on a host: {_last(server.communicate(timeout=10)[1])}")
        command = [*hosts.command_prefix(len(hosts.names) - 1), *module, "ask", address, str(nbytes)]
        client = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if client.returncode:
            raise SpecError(f"lab: the hosts cannot reach each other: {_last(client.stderr)}")
        answer = json.loads(client.stdout)
        # the client is on the last host, so its two directions are swapped here
        return SocketRates(answer["back_bytes_per_s"], answer["there_bytes_per_s"], answer["both_bytes_per_s"], answer["round_trip_s"])
    except subprocess.TimeoutExpired:
        raise SpecError("lab: a transfer between two hosts did not finish within 2 minutes") from None
    finally:
        server.kill()
        server.communicate()


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "unknown reason"


def serve(address: str) -> None:
    """Answer one client at *address*."""
    with socket.create_server((address, _PORT)) as listening:
        print("ready", flush=True)
        connection, _ = listening.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_TRIPS):
                connection.sendall(connection.recv(1))
            nbytes = int(_line(connection))
            connection.sendall(b"g")
            _tell(connection, _received(connection, nbytes))
            connection.recv(1)
            _send(connection, nbytes)
            connection.recv(1)
            _tell(connection, _exchanged(connection, nbytes))
            connection.recv(1)


def ask(address: str, nbytes: int) -> None:
    """Measure the connection to the server at *address* with *nbytes* each way, and print the results."""
    with socket.create_connection((address, _PORT), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = [_trip(connection) for _ in range(_TRIPS)]
        connection.sendall(f"{nbytes}\n".encode())
        connection.recv(1)
        _send(connection, nbytes)
        there = float(_line(connection))
        connection.sendall(b"g")
        back = _received(connection, nbytes)
        connection.sendall(b"g")
        both = _exchanged(connection, nbytes)
        both = min(both, float(_line(connection)))
        connection.sendall(b"g")
    rates = {"there_bytes_per_s": there, "back_bytes_per_s": back, "both_bytes_per_s": both}
    print(json.dumps(rates | {"round_trip_s": statistics.median(trips)}))


def _tell(connection: socket.socket, value: float) -> None:
    connection.sendall(f"{value!r}\n".encode())


def _exchanged(connection: socket.socket, nbytes: int) -> float:
    """Return the bytes/s received while *nbytes* are sent at the same time."""
    sending = threading.Thread(target=_send, args=(connection, nbytes))
    sending.start()
    rate = _received(connection, nbytes)
    sending.join()
    return rate


def _trip(connection: socket.socket) -> float:
    begin = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(1)
    return time.perf_counter() - begin


def _line(connection: socket.socket) -> str:
    text = b""
    while not text.endswith(b"\n"):
        text += connection.recv(1)
    return text.decode()


def _send(connection: socket.socket, nbytes: int) -> None:
    chunk = memoryview(bytes(_CHUNK))
    while nbytes:
        part = min(nbytes, _CHUNK)
        connection.sendall(chunk[:part])
        nbytes -= part


def _received(connection: socket.socket, nbytes: int) -> float:
    """Receive *nbytes* and return the bytes/s of their second half."""
    left, begin, timed = nbytes, 0.0, 0
    while left > 0:
        left -= len(connection.recv(min(left, _CHUNK)))
        if not timed and left <= nbytes / 2:
            begin, timed = time.perf_counter(), left
    return timed / (time.perf_counter() - begin)


def main(arguments: Sequence[str]) -> None:
    """Run the command in *arguments*; see the module."""
    serve(arguments[1]) if arguments[0] == "serve" else ask(arguments[1], int(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
