"""How are the nodes of a rank written as a Chakra trace? As other tools read them: whole microseconds, bytes, numbered communicators.

`sim.parallel.chakra` reads these files with the same conventions. Durations are rounded so that their sum is right to half a microsecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sim import __version__
from sim.parallel.chakra import PART_SIZED, RENDEZVOUS_KEY, SECONDS_KEY
from sim.parallel.program import Op
from sim.spec.foreign.chakra_files import GROUPS_FILE
from sim.spec.foreign.chakra_wire import COLLECTIVES, NODE_TYPES, TraceNode, WireValue, metadata_bytes, node_bytes
from sim.spec.whole_file import write_files

_TYPES: Final = {name: number for number, name in enumerate(NODE_TYPES)}
After = Sequence[int]
"""Numbers of the nodes that a node waits for."""


class Communicators:
    """Numbers of communicators, by name and ranks; they begin at 1, because 0 means all ranks to other tools."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, tuple[int, ...]], int] = {}

    def number(self, name: str, ranks: tuple[int, ...]) -> str:
        """Return the number of the communicator *name* of *ranks*; assign a new one at the first request."""
        return str(self._numbers.setdefault((name, ranks), len(self._numbers) + 1))

    def document(self) -> str:
        """Return the text of ``comm_group.json``."""
        return json.dumps({str(number): list(ranks) for (_, ranks), number in self._numbers.items()}) + "\n"


class Recording:
    """The nodes of one rank as they are recorded; each method adds one node and returns its number."""

    def __init__(self) -> None:
        self.nodes: list[TraceNode] = []
        self._time = 0.0

    def compute(self, name: str, seconds: float, after: After, host: bool = False) -> int:
        """Add *seconds* of work on the GPU, or on the *host*."""
        before, self._time = self._time, self._time + seconds
        micros = round(self._time * 1e6) - round(before * 1e6)
        return self._add(name, "COMP_NODE", after, {"is_cpu_op": host, SECONDS_KEY: seconds}, micros)

    def add_lateness(self, seconds: float, after: After) -> int:
        """Add the *seconds* by which the slowest rank is late, during which the others wait."""
        return self.compute("slowest rank", seconds, after, host=True)

    def collective(self, name: str, op: Op, nbytes: float, communicator: str, ranks: int, after: After) -> int:
        """Add *op* on *nbytes*, counted as in `sim.parallel.program.Message`, among *ranks* ranks of *communicator* (empty: all)."""
        own = nbytes / ranks if op in PART_SIZED else nbytes
        attributes: dict[str, WireValue] = {"is_cpu_op": False, "comm_type": COLLECTIVES.index(op.upper()), "comm_size": round(own)}
        return self._add(name, "COMM_COLL_NODE", after, attributes | ({"pg_name": communicator} if communicator else {}))

    def message(self, name: str, nbytes: float, ends: tuple[int, int], sends: bool, tag: int, after: After, meets: bool = False) -> int:
        """Add one end of a message from the first of *ends* to the second."""
        kind = "COMM_SEND_NODE" if sends else "COMM_RECV_NODE"
        attributes: dict[str, WireValue] = {
            "is_cpu_op": False, "comm_src": ends[0], "comm_dst": ends[1], "comm_size": round(nbytes), "comm_tag": tag,
        }  # fmt: skip
        return self._add(name, kind, after, attributes | ({RENDEZVOUS_KEY: True} if meets else {}))

    def _add(self, name: str, kind: str, after: After, attributes: Mapping[str, WireValue], micros: int = 0) -> int:
        number = len(self.nodes)
        deps = tuple(dict.fromkeys(after))
        self.nodes.append(TraceNode(number, name, _TYPES[kind], (), deps, 0, micros, "", attributes))
        return number


def write_ranks(
    folder: Path, name: str, ranks: Iterable[Iterable[bytes]], nodes_of: str, communicators: Communicators | None = None
) -> str:
    """Write the nodes of *ranks* (each as bytes) of the trace *name* into *folder*; return what was written.

    *nodes_of* describes the source of the trace. Raise SpecError if writing fails.
    """
    head = metadata_bytes(producer=f"stallsim {__version__}", scenario=nodes_of)
    files: dict[str, str | bytes] = {f"{name}.{rank}.et": head + b"".join(nodes) for rank, nodes in enumerate(ranks)}
    count = len(files)
    if communicators is not None:
        files[GROUPS_FILE] = communicators.document()
    write_files(folder, files)
    beside = f" and {GROUPS_FILE}" if communicators is not None else ""
    return f"{folder}/: {name}.0.et{f' to {name}.{count - 1}.et' if count > 1 else ''}{beside}"


def as_bytes(nodes: Iterable[TraceNode]) -> list[bytes]:
    """Return *nodes* as encoded in a file."""
    return [node_bytes(node) for node in nodes]
