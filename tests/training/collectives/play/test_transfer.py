"""Every transfer as a flow, against one activity per collective, the recurrence, and conservation."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.collectives.play.transfer import TransferExecutor
from sim.training.collectives.price.recurrence import ring_steps, ring_time
from tests.examples import examples
from tests.harness import Rig, all_reduce_alone, carried, loads, machine

sizes = st.floats(1e4, 1e9)
latencies = st.sampled_from([0.0, 1e-5, 1e-4])


def around(counts):
    """NVLinks of a ring of GPUs, *counts* between one and the next."""
    n = len(counts)
    return {f"{min(k, (k + 1) % n)}-{max(k, (k + 1) % n)}": count for k, count in enumerate(counts)}


@given(n=st.integers(2, 16), nbytes=sizes, latency=latencies, wiring=st.sampled_from(["nvswitch", "pcie"]))
def test_equals_phase_on_uniform_rings(n, nbytes, latency, wiring):
    """The two executors agree to 1e-9."""
    toys = machine(n, wiring=wiring, hop_latency=latency, launch=1e-5)
    assert all_reduce_alone(toys, "transfer", nbytes) == pytest.approx(all_reduce_alone(toys, "phase", nbytes), rel=1e-9)


@examples(20, None, counts=st.lists(st.integers(1, 4), min_size=3, max_size=8), nbytes=sizes, latency=latencies)
def test_equals_phase_on_unequal_rings_without_shared_links(counts, nbytes, latency):
    """Hops of different width that share no link: to 1e-9, by the recurrence."""
    toys = machine(len(counts), wiring=around(counts), hop_latency=latency)
    assert all_reduce_alone(toys, "transfer", nbytes) == pytest.approx(all_reduce_alone(toys, "phase", nbytes), rel=1e-9)


@given(gpus=st.integers(1, 6), nodes=st.integers(2, 4), nbytes=sizes, nic=st.floats(1e8, 1e11), inside=latencies, between=latencies)
def test_equals_phase_across_nodes(gpus, nodes, nbytes, nic, inside, between):
    """One channel over slow NICs: to 1e-9."""
    toys = machine(gpus, nodes, nic=nic, hop_latency=inside, network_latency=between)
    assert all_reduce_alone(toys, "transfer", nbytes) == pytest.approx(all_reduce_alone(toys, "phase", nbytes), rel=1e-9)


@given(
    gpus=st.integers(2, 6), nodes=st.integers(1, 3), nics=st.integers(1, 2), nbytes=sizes, nic=st.floats(1e8, 1e11),
    dram=st.floats(1e10, 1e12), latency=latencies, wiring=st.sampled_from(["nvswitch", "pcie"]),
)  # fmt: skip
def test_phase_is_an_upper_bound_where_hops_share_links(gpus, nodes, nics, nbytes, nic, dram, latency, wiring):
    """Hops that share a link do not always want it at once; the phase executor lets them: never faster, at most 30% slower."""
    toys = machine(
        gpus, nodes, wiring=wiring, nic=nic, nics=nics, dram=dram, hop_latency=latency, network_latency=latency, peer_to_peer="none"
    )
    played, priced = all_reduce_alone(toys, "transfer", nbytes), all_reduce_alone(toys, "phase", nbytes)
    assert played * (1 - 1e-9) <= priced <= played * 1.3


def test_plays_the_recurrence():
    """Oracle: the recurrence on three hops of 1, 2 and 4 links with a latency of one chunk's time on the narrowest."""
    toys = machine(3, wiring=around([1, 2, 4]), nvlink=1e9, hop_latency=1e-3)
    rig = Rig(toys, "transfer")
    chunk = 6e6 / 3 / rig.plan.channels
    rig.ring("ring", 6e6)
    rig.env.run()
    expected = ring_time([chunk / 1e9, chunk / 2e9, chunk / 4e9], [1e-3] * 3, ring_steps("all_reduce", 3)).total
    assert rig.ends["ring"] == pytest.approx(expected, rel=1e-9)


def contended(toys, executor, nbytes, other, link, start):
    """Return when an all-reduce, and what shares *link* with it from *start* on, have ended."""
    rig = Rig(toys, executor)
    rig.ring("ring", nbytes)
    if link:
        rig.copy("other", other, [link], start=start)
    else:
        rig.ring("other", other, start=start)
    rig.env.run()
    return rig.ends


@given(
    gpus=st.integers(2, 6), nodes=st.integers(1, 2), nbytes=st.floats(1e5, 1e9), latency=latencies, share=st.floats(0.1, 3),
    begin=st.floats(0, 0.8), on_nic=st.booleans(), wiring=st.sampled_from(["nvswitch", "pcie"]), nic=st.sampled_from([1e9, 3e9, 10e9]),
)  # fmt: skip
def test_agrees_beside_a_copy(gpus, nodes, nbytes, latency, share, begin, on_nic, wiring, nic):
    """A copy on one link, whenever it comes and however long it lasts: both ends agree within 10% and the time of one chunk.

    Where latency takes over a tenth of the ring's time, 20%: what the slowed hop takes longer then adds to it in some steps.
    """
    toys = machine(gpus, nodes, wiring=wiring, hop_latency=latency, network_latency=latency, nic=nic)
    plan = Rig(toys).plan
    link = "nic0>net" if on_nic and nodes > 1 else "gpu0>nvswitch" if wiring == "nvswitch" else "gpu0>plx0"
    start = begin * plan.cost(nbytes).uncontended_time
    ends = [contended(toys, executor, nbytes, share * nbytes, link, start) for executor in ("phase", "transfer")]
    bound = 0.1 if plan.cost(nbytes).latency_share < 0.1 else 0.2
    chunk = nbytes / plan.ranks / (nic if link == "nic0>net" else 10e9)
    assert ends[0] == pytest.approx(ends[1], rel=bound, abs=chunk)


@given(
    gpus=st.integers(1, 4), nodes=st.integers(1, 3), nbytes=st.floats(1e5, 1e9), share=st.floats(0.1, 3), begin=st.floats(0, 0.8),
    latency=latencies,
)  # fmt: skip
def test_agrees_beside_a_second_ring(gpus, nodes, nbytes, share, begin, latency):
    """Another all-reduce over the same links: within 10%, and 30% where latency is over a tenth and chunks of both meet in bursts."""
    if gpus * nodes == 1:
        return
    toys = machine(gpus, nodes, hop_latency=latency, network_latency=latency, nic=3e9)
    plan = Rig(toys).plan
    start = begin * plan.cost(nbytes).uncontended_time
    ends = [contended(toys, executor, nbytes, share * nbytes, None, start) for executor in ("phase", "transfer")]
    bound = 0.1 if max(plan.cost(size).latency_share for size in (nbytes, share * nbytes)) < 0.1 else 0.3
    assert ends[0] == pytest.approx(ends[1], rel=bound)


@examples(
    20,
    None,
    gpus=st.integers(2, 5),
    nodes=st.integers(1, 2),
    nbytes=sizes,
    share=st.floats(0.1, 3),
    wiring=st.sampled_from(["nvswitch", "pcie"]),
)
def test_no_link_carries_more_than_it_can(gpus, nodes, nbytes, share, wiring):
    """Conservation: at no instant over capacity; and every byte of ring and copy crosses."""
    rig = Rig(machine(gpus, nodes, wiring=wiring, peer_to_peer="none", dram=20e9, hop_latency=1e-5), "transfer")
    rig.ring("ring", nbytes)
    rig.copy("copy", share * nbytes, ["dram0", "socket0>plx0", "plx0>gpu1"])
    rig.env.run()
    for link, steps in loads(rig.log).items():
        assert max(load for _, load in steps) <= rig.network.capacity[link] * (1 + 1e-9)
    n = gpus * nodes
    wire = 2 * (n - 1) / n * nbytes
    assert carried(rig.log)["n0.plx0>gpu1"] == pytest.approx(share * nbytes + (wire if wiring == "pcie" else 0.0), rel=1e-6)


@given(gpus=st.integers(2, 5), nodes=st.integers(1, 2), nbytes=sizes, latency=latencies)
def test_blame_tiles_the_collective(gpus, nodes, nbytes, latency):
    """The critical path leaves no moment out and counts none twice; spans in order of time."""
    rig = Rig(machine(gpus, nodes, nic=2e9, hop_latency=latency, launch=1e-5), "transfer")
    rig.ring("ring", nbytes)
    rig.copy("copy", nbytes, ["gpu0>nvswitch"], start=1e-4)
    rig.env.run()
    spans = rig.log.work
    assert spans[0].t0 == 0.0
    assert spans[-1].t1 == rig.ends["ring"]
    assert all(earlier.t1 == later.t0 for earlier, later in pairwise(spans))
    assert sum(span.nbytes for span in spans) == nbytes


def test_blames_the_slow_hop():
    """Without latency a ring in which one of four hops is four times narrower spends all its time there."""
    rig = Rig(machine(4, wiring=around([4, 1, 4, 4]), nvlink=1e9), "transfer")
    rig.ring("ring", 1e9)
    rig.env.run()
    spent = sum(span.t1 - span.t0 for span in rig.log.work if "GPU1-GPU2" in span.resource)
    assert spent == pytest.approx(rig.ends["ring"])


def test_refuses_folded_nodes():
    """One pattern for several nodes has no transfers of its own."""
    rig = Rig(machine(1, 2), fold=True)
    with pytest.raises(ValueError, match="without folding"):
        TransferExecutor(rig.network, rig.log, 0, rig.plan, rig.built.live_links)
