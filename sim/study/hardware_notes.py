"""What must a user know about the machine that a scenario names? What an alias means, and how many nodes its file does not have."""

from __future__ import annotations

from sim.spec.hardware import Hardware


def hardware_notes(name: str, described: Hardware, simulated: Hardware) -> list[str]:
    """Return the notes on the machine that a user called *name*: as *described* in its file, and as *simulated* with ``--nodes``."""
    return [*_alias_note(name, described), *_added_nodes(described, simulated)]


def _alias_note(name: str, hardware: Hardware) -> list[str]:
    if name not in hardware.aliases:
        return []
    return [f"{name} means {hardware.name}{f': {hardware.note}' if hardware.note else ''}"]


def _added_nodes(described: Hardware, simulated: Hardware) -> list[str]:
    """Return a note if a cluster is simulated with more nodes than it has; one node is a machine, of which any number can be had."""
    count, wanted = described.worker_nodes, simulated.worker_nodes
    if not 1 < count < wanted:
        return []
    return [f"{described.name} has {count:,} nodes; {wanted:,} are simulated: {wanted - count:,} more like them"]
