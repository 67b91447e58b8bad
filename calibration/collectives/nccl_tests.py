"""What did nccl-tests measure? The sizes and out-of-place times of its output, as rows of a table of collectives.

The output names each rank's host, ``-g`` as ``nGpus``, NCCL's release (with NCCL_DEBUG=VERSION), and in newer releases the collective
(github.com/NVIDIA/nccl-tests, src/common.cu). The machine is not in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from calibration.collectives.records import NETWORKS
from sim.spec.hardware import Node
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError

HEADER: Final = ("system", "network", "hardware", "nodes", "gpus_per_node", "gpus_per_process", "op", "bytes", "time_us", "nccl")
_COLUMNS: Final = re.compile(r"^#\s+size\s+count\s+type\s.*$", re.MULTILINE)
_RANK: Final = re.compile(r"^#\s+Rank\s+\d+\s.*?\bon\s+(\S+)\s+device\b", re.MULTILINE)
_GPUS: Final = re.compile(r"^#.*\bnGpus\s+(\d+)", re.MULTILINE)
_RELEASE: Final = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_PROGRAM: Final = re.compile(r"(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall|sendrecv|gather|scatter)_perf")


def is_nccl_tests(text: str) -> bool:
    """Return whether *text* is an output of nccl-tests."""
    return _COLUMNS.search(text) is not None


def nccl_tests_rows(path: Path, text: str, hardware: str) -> list[tuple[int, list[str]]]:
    """Return `HEADER` and a row for each size in *text*, an output of nccl-tests on *hardware*, with the numbers of their lines.

    Raise SpecError if the machine is not given, or if *text* names no collective, ranks or sizes.
    """
    if not hardware:
        raise SpecError(
            f"{path}: is an output of nccl-tests, which does not describe the machine; add --hardware, a file or a catalog name"
        )
    program = _PROGRAM.search(text) or _PROGRAM.search(path.name)
    if program is None:
        raise SpecError(f"{path}: does not name its collective; add a line such as '# all_reduce_perf', or put it into the file's name")
    hosts = _RANK.findall(text)
    if not hosts:
        raise SpecError(f"{path}: lists no ranks; keep the lines '#  Rank  0 ... on HOST device  0' of the output")
    nodes = len(set(hosts))
    if any(hosts.count(host) != hosts.count(hosts[0]) for host in hosts):
        raise SpecError(f"{path}: lists {len(hosts)} ranks on {nodes} hosts, not the same number on each; keep the lines of all ranks")
    release, gpus = _RELEASE.search(text), _GPUS.search(text)
    network = network_of(load_hardware(hardware).spec.groups[0].node, nodes)
    first = [path.stem, network, hardware, str(nodes), str(len(hosts) // nodes), gpus[1] if gpus else "1", program[1]]
    rows: list[tuple[int, list[str]]] = [(1, list(HEADER))]
    time = -1
    for number, line in enumerate(text.splitlines(), 1):
        if _COLUMNS.match(line):
            time = line.lstrip("#").split().index("time")
        elif time >= 0 and line.strip() and not line.startswith("#") and line.split()[0].isdigit() and len(line.split()) > time:
            cells = line.split()
            rows.append((number, [*first, cells[0], cells[time], release[1] if release else ""]))
    return rows


def network_of(node: Node, nodes: int) -> str:
    """Return the kind of network between *nodes* nodes like *node*, or between the GPUs of one."""
    if nodes == 1:
        return "pcie" if node.nvlink is None else "xgmi" if node.nvlink.link.name.startswith("xgmi") else "nvlink"
    return next((kind for kind in NETWORKS if kind in node.nic.transport.name), "tcp")
