"""NCCL's cuts of a send are its own, and no operation passes its links."""

from __future__ import annotations

from sim.study.collective import collective_table
from sim.training.collectives.nccl.constants import VERSIONS
from sim.training.collectives.price.collective_plan import OPS, Tuning
from sim.training.collectives.price.point_to_point import SENDS


def test_how_nccl_cuts_a_send():
    """By hand from paths.cc and enqueue.cc: 24 connected channels give 32, a NIC 2; a part has 64 KiB, and above 16 MiB a part, more.

    Between nodes LL has no buffer (net.cc: connections that rings do not use are shared).
    """
    wrong = []
    for hardware, nodes, nbytes, channels, protocol in (
        ("hgx-h100", 1, 2**14, 1, "LL"),
        ("hgx-h100", 1, 2**20, 4, "Simple"),
        ("hgx-h100", 1, 2**30, 32, "Simple"),
        ("hgx-h100", 4, 2**14, 1, "Simple"),
        ("hgx-h100", 4, 2**20, 2, "Simple"),
        ("g4dn.12xlarge", 1, 2**14, 1, "LL"),
        ("g4dn.12xlarge", 1, 2**20, 1, "Simple"),
    ):
        (row,) = collective_table(hardware, "send_recv", [nbytes], nodes=nodes).rows
        if (row.channels, row.protocol) != (channels, protocol):
            wrong.append((hardware, nodes, nbytes, row.channels, row.protocol))
        (old,) = collective_table(hardware, "send_recv", [nbytes], nodes=nodes, tuning=Tuning("2.10")).rows
        assert old.protocol == "Simple"
    assert not wrong


def test_no_operation_passes_its_links():
    """Bus bandwidth is what the busiest rank must send per byte: never above its NVLinks, or its NIC where one rank stands on a node."""
    wrong = []
    for version in VERSIONS:
        for op in OPS:
            inside = collective_table("hgx-h100", op, [2**14, 2**22, 2**30], tuning=Tuning(version)).rows
            wrong += [(version, op, row) for row in inside if row.busbw > 450e9 and row.algorithm != "NVLS"]
            between = collective_table("hgx-h100", op, [2**14, 2**22, 2**30], nodes=4, placement="1+1+1+1", tuning=Tuning(version)).rows
            wrong += [(version, op, row) for row in between if row.busbw > 50e9]
            assert all(row.algorithm == SENDS.get(op, row.algorithm) for row in (*inside, *between))
    assert not wrong
