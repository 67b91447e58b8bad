"""What is the input of NCCL's tuner for a whole job? For equal nodes, the result of `nccl.search` on one; otherwise the minimum of each.

NCCL treats GPUs in separate containers as separate nodes, and its tree spans all of them.
"""

from __future__ import annotations

from sim.training.collectives.nccl.constants import constants_of
from sim.training.collectives.nccl.cost import ChannelPattern, TunerMachine
from sim.training.collectives.nccl.search import nccl_machine
from sim.training.collectives.price.layout import JobLayout


def machine_of(layout: JobLayout, version: str) -> TunerMachine:
    """Return the input of NCCL *version*'s tuner for the job on *layout*."""
    collnet = _collnet(layout)
    machines = [nccl_machine(part.slot.graph, part.gpus, layout.nodes, version, collnet) for part in layout.parts]
    first = machines[0]
    return first._replace(
        ranks=layout.ranks,
        nodes=layout.ranks if layout.isolated else layout.nodes,
        ring=_bounded(min((machine.ring for machine in machines), key=_carried), version),
        tree=_bounded(min((machine.tree for machine in machines), key=_carried), version),
        compute_capability=min(machine.compute_capability for machine in machines),
        intra_path="nvlink" if all(machine.intra_path == "nvlink" for machine in machines) else "pcie",
        nic_near=all(machine.nic_near for machine in machines),
        plugin_latency=max(machine.plugin_latency for machine in machines),
        same_channels=all(machine.same_channels for machine in machines),
        nvswitch=all(machine.nvswitch for machine in machines),
        nvls=_bounded(first.nvls, version) if first.nvls and all(machine.nvls for machine in machines) else None,
    )


def _bounded(pattern: ChannelPattern, version: str) -> ChannelPattern:
    """Return *pattern* with at most the maximum number of channels of NCCL; a rack has more NICs."""
    return pattern._replace(channels=min(pattern.channels, constants_of(version).max_channels))


def _carried(pattern: ChannelPattern) -> float:
    return pattern.channels * pattern.inter


def _collnet(layout: JobLayout) -> ChannelPattern | None:
    """Return the reduction in the network, if its switches support it: one channel per NIC, at its rate."""
    if not layout.fabric.in_network_reduction or layout.nodes == 1:
        return None
    nic = min((part.slot.node.nic for part in layout.parts), key=lambda nic: nic.count * nic.bandwidth)
    return ChannelPattern(nic.count, nic.bandwidth, nic.bandwidth)
