"""Placements and their refusals; and machines folded by hand: which GPUs and links become one, and what they carry."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import Placement, build, place, slots, with_nodes
from sim.cluster.network import Network
from sim.events import EventLog
from sim.spec.hardware import Group, Hardware
from sim.spec.yaml import SpecError
from tests.cluster import machines


def hardware(*groups, **keys):
    """A cluster of (machine, count) groups."""
    return Hardware(name="test", groups=tuple(Group(node=node, count=count, **keys) for node, count in groups))


def built(cluster, placements, crossings=None, fold=True):
    """The built cluster and its network."""
    env = simpy.Environment()
    network = Network(env, EventLog(lambda: env.now))
    built = build(slots(cluster, placements, fold), crossings or {}, fold)
    for link, capacity in built.capacity.items():
        network.add_link(link, capacity)
    return built, network


# --- where a job runs ------------------------------------------------------------------------------------------------


def test_a_job_takes_every_gpu_unless_told():
    two = hardware((machines.p3_16xlarge(), 1), (machines.on_one_socket(2), 1))
    assert place(two) == (Placement(0, tuple(range(8))), Placement(1, (0, 1)))


def test_a_number_of_gpus_is_spread_evenly():
    assert place(hardware((machines.p3_16xlarge(), 4)), 8) == tuple(Placement(node, (0, 1)) for node in range(4))


def test_a_pattern_gives_each_node_its_own_number():
    assert place(hardware((machines.p3_16xlarge(), 3)), pattern="1+2") == (Placement(0, (0,)), Placement(1, (0, 1)))


def test_servers_and_nodes_without_gpus_are_left_out():
    mixed = Hardware(
        name="test",
        groups=(
            Group(node=machines.on_one_socket(2), role="server"),
            Group(node=machines.on_one_socket(0), count=2),
            Group(node=machines.on_one_socket(4)),
        ),
    )
    assert place(mixed) == (Placement(0, (0, 1, 2, 3)),)


def test_one_node_is_no_plural() -> None:
    with pytest.raises(SpecError, match=r"^--gpus 5: needs 5 GPUs on each of 1 node, but one has 4; write 4 or less$"):
        place(hardware((machines.on_one_socket(4), 1)), gpus=5)


@pytest.mark.parametrize(
    ("gpus", "pattern", "sentence"),
    [
        (0, None, "--gpus 0: write 1 or more"),
        (-8, None, "--gpus -8: write 1 or more"),
        (3, None, "--gpus 3: does not divide evenly over 2 nodes; write 2 or 4, or place them unevenly with `run --placement 2+1`"),
        (10, None, "--gpus 10: needs 5 GPUs on each of 2 nodes, but one has 4; write 8 or less"),
        (None, "1+5", "--placement 1+5: 5 ranks on node 1, which has only 4 GPUs; --placement 1+4 would fit"),
        (None, "0+1", "--placement 0+1: 0 ranks on node 0, but each node listed needs one or more; write --placement 1+1"),
        (None, "1+-1", "--placement 1+-1: -1 ranks on node 1, but each node listed needs one or more; write --placement 1+1"),
        (None, "1+1+1", "--placement 1+1+1: 3 nodes, but the machine has 2; --nodes 3 adds identical ones"),
        (None, "1+two", "--placement 1+two: write the GPUs of each node joined by '+', for example 1+2"),
        (None, "1+", "--placement 1+: write the GPUs of each node joined by '+', for example 1+2"),
    ],
)
def test_a_placement_that_cannot_be_is_refused_in_a_sentence(gpus, pattern, sentence):
    with pytest.raises(SpecError) as error:
        place(hardware((machines.on_one_socket(4), 2)), gpus, pattern)
    assert error.value.problems == [sentence]


@pytest.mark.parametrize("groups", [{"role": "server", "node": machines.on_one_socket(2)}, {"node": machines.on_one_socket(0)}])
def test_a_cluster_without_workers_is_refused(groups):
    with pytest.raises(SpecError) as error:
        place(Hardware(name="test", groups=(Group(**groups),)))
    assert error.value.problems == ["test: no group has GPUs and the role 'worker'; a job needs one"]


def test_more_equal_nodes():
    grown = with_nodes(hardware((machines.two_islands(), 1)), 64)
    assert [group.count for group in grown.groups] == [64] and len(place(grown)) == 64


def test_more_nodes_of_unlike_groups_are_refused():
    with pytest.raises(SpecError) as error:
        with_nodes(hardware((machines.two_islands(), 1), (machines.p4d(), 1)), 4)
    each = "--set groups.0.count=2 --set groups.1.count=2"
    assert error.value.problems == [f"--nodes 4: test has 2 groups of workers; set the nodes of each, such as {each}"]
    with pytest.raises(SpecError) as error:
        with_nodes(hardware((machines.two_islands(), 1)), 0)
    assert error.value.problems == ["--nodes 0: write 1 or more"]


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 64))
def test_a_placement_has_as_many_gpus_as_asked_for_each_of_its_own(nodes, each, gpus):
    """Conservation: either refused, or exactly so many ranks on distinct GPUs that exist."""
    cluster = hardware((machines.on_one_socket(each), nodes))
    if gpus % nodes or gpus > nodes * each:
        with pytest.raises(SpecError):
            place(cluster, gpus)
        return
    ranks = [(part.node, gpu) for part in place(cluster, gpus) for gpu in part.gpus]
    assert len(ranks) == len(set(ranks)) == gpus
    assert all(node < nodes and gpu < each for node, gpu in ranks)


# --- slots -----------------------------------------------------------------------------------------------------------


def test_equal_nodes_used_alike_are_one_slot():
    cluster = hardware((machines.p3_16xlarge(), 64))
    (slot,) = slots(cluster, [place(cluster)])
    assert (slot.name, slot.node, slot.count, slot.lent_gpus) == ("n0", machines.p3_16xlarge(), 64, ((0, tuple(range(8))),))


def test_nodes_that_lend_unlike_gpus_are_slots_of_their_own():
    cluster = hardware((machines.p3_16xlarge(), 3))
    assert [(slot.name, slot.count, slot.lent_gpus) for slot in slots(cluster, [place(cluster, pattern="2+1+2")])] == [
        ("n0", 2, ((0, (0, 1)),)),
        ("n1", 1, ((0, (0,)),)),
    ]


def test_unlike_nodes_are_slots_of_their_own_and_unused_ones_none():
    cluster = hardware((machines.p3_16xlarge(), 2), (machines.p4d(), 3))
    assert [(slot.node.gpu.name, slot.count) for slot in slots(cluster, [place(cluster)])] == [("g", 2), ("g", 3)]
    assert [slot.count for slot in slots(cluster, [place(cluster, pattern="8+8+8")])] == [2, 1]


def test_jobs_meet_on_a_node():
    """The second job has the rest of the first node and all of the second."""
    cluster = hardware((machines.on_one_socket(4), 2))
    placements = [(Placement(0, (0, 1)),), (Placement(0, (2, 3)), Placement(1, (0, 1, 2, 3)))]
    assert [(slot.count, slot.lent_gpus) for slot in slots(cluster, placements)] == [
        (1, ((0, (0, 1)), (1, (2, 3)))),
        (1, ((1, (0, 1, 2, 3)),)),
    ]


def test_slots_know_which_nodes_they_are():
    """By hand: equal nodes keep their numbers if others are between them."""
    cluster = hardware((machines.on_one_socket(4), 4))
    node_slots = slots(cluster, [place(cluster, pattern="2+1+2+1")])
    assert [(slot.numbers, slot.first) for slot in node_slots] == [((0, 2), 0), ((1, 3), 1)]


def test_without_folding_every_node_is_a_slot():
    cluster = hardware((machines.p3_16xlarge(), 5))
    node_slots = slots(cluster, [place(cluster)], fold=False)
    assert [slot.name for slot in node_slots] == ["n0", "n1", "n2", "n3", "n4"] and {slot.count for slot in node_slots} == {1}


# --- classes and loads -----------------------------------------------------------------------------------------------


def test_a_symmetric_node_is_one_class():
    """p3.16xlarge by hand: 8 GPUs, two below each switch, four below each socket; NVLinks and the rest carry no copies."""
    cluster = hardware((machines.p3_16xlarge(), 64))
    made, network = built(cluster, [place(cluster)])
    (group,) = made.classes
    assert (group.job, group.gpus, group.size, group.members) == (0, tuple(range(8)), 512, 8)
    assert group.copy == {"n0.dram0": 4.0, "n0.socket0>plx0": 2.0, "n0.plx0>gpu0": 1.0}
    assert (group.memory, group.memory_load, group.cores, group.disk) == ("n0.dram0", 4.0, "n0.cores", "n0.disk")
    assert made.live_links["n0"]["plx3>gpu7"] == "n0.plx0>gpu0" and made.live_links["n0"]["dram1"] == "n0.dram0"
    assert network.capacity["n0.cores"] == 32 * 1.25  # two threads a core gain a quarter
    links = group.slot.graph.links
    assert set(made.live_links["n0"]) == set(links)
    assert all(network.capacity[live] == links[link].capacity for link, live in made.live_links["n0"].items())


def test_gpus_on_unlike_paths_are_classes_of_their_own():
    """Three of four GPUs below two switches: two share an uplink; of the third, uplink and port carry the same and become one link."""
    cluster = hardware((machines.p3_16xlarge(), 1))
    made, _ = built(cluster, [(Placement(0, (0, 1, 2)),)])
    assert [(group.gpus, group.copy) for group in made.classes] == [
        ((0, 1), {"n0.dram0": 2.0, "n0.socket0>plx0": 2.0, "n0.plx0>gpu0": 1.0}),
        ((2,), {"n0.dram0": 1.0, "n0.socket0>plx1": 1.0}),
    ]


def test_jobs_are_classes_of_their_own_on_shared_links():
    """Neighbors below one switch train for two jobs: each loads the uplink and the memory once."""
    made, _ = built(hardware((machines.p3_16xlarge(), 1)), [(Placement(0, (0,)),), (Placement(0, (1,)),)])
    assert [(group.job, group.gpus, group.copy["n0.dram0"], group.copy["n0.socket0>plx0"]) for group in made.classes] == [
        (0, (0,), 1.0, 1.0),
        (1, (1,), 1.0, 1.0),
    ]


def test_links_that_collectives_cross_unlike_stay_apart():
    """A collective that crosses the port of GPU 5 twice splits GPU 5 and its neighbor off; the other six stay one."""
    cluster = hardware((machines.p3_16xlarge(), 1))
    made, _ = built(cluster, [place(cluster)], {"n0": {"plx2>gpu5": 2}})
    assert {group.gpus for group in made.classes} == {(0, 1, 2, 3), (4,), (5,), (6, 7)}
    assert made.live_links["n0"]["plx2>gpu5"] == "n0.plx2>gpu5"
    made, _ = built(cluster, [place(cluster)], {"n0": {"nic0>net": 2}})
    assert [group.members for group in made.classes] == [8] and made.live_links["n0"]["nic0>net"] != made.live_links["n0"]["net>nic0"]


def test_hyperthreads_count_only_where_there_are_some():
    """32 cores with one thread each; a gain needs two."""
    single = machines.on_one_socket(1).host.model_copy(update={"vcpus": 32})
    cluster = hardware((machines.on_one_socket(1).model_copy(update={"host": single}), 1))
    assert built(cluster, [place(cluster)])[1].capacity["n0.cores"] == 32.0


def test_without_folding_every_gpu_and_link_is_its_own():
    cluster = hardware((machines.p3_16xlarge(), 2))
    made, network = built(cluster, [place(cluster)], fold=False)
    assert [group.gpus for group in made.classes] == [(gpu,) for gpu in range(8)] * 2
    assert all(set(group.copy.values()) == {1.0} and group.size == 1 for group in made.classes)
    links = made.classes[0].slot.graph.links
    assert set(network.capacity) == {f"{slot}.{link}" for slot in ("n0", "n1") for link in [*links, "cores"]}


MACHINES = [machines.p3_16xlarge, machines.dgx_1v, machines.p4d, machines.hgx_h100, machines.p2_16xlarge, machines.two_islands]


@st.composite
def shared_clusters(draw):
    """Up to three equal nodes of a machine, one or two jobs on some of their GPUs, and collectives that cross some links."""
    node = draw(st.sampled_from(MACHINES))()
    count = draw(st.integers(1, 3))
    owners = draw(st.lists(st.sampled_from([0, 0, 0, 1, None]), min_size=node.gpu_count, max_size=node.gpu_count))
    nodes = draw(st.sets(st.integers(0, count - 1), min_size=1))
    lent = [tuple(gpu for gpu, owner in enumerate(owners) if owner == job) for job in (0, 1)]
    placements = [tuple(Placement(number, gpus) for number in sorted(nodes)) for gpus in lent if gpus]
    crossed = draw(st.dictionaries(st.sampled_from(["plx0>gpu0", "gpu3>plx1", "dram0", "nic0>net"]), st.integers(1, 2), max_size=2))
    return hardware((node, count)), placements, {"n0": crossed}


@given(shared_clusters())
def test_classes_count_every_rank_once_and_load_links_as_often_as_their_members_cross_them(scene):
    """Conservation: class sizes sum to the ranks; each physical link carries of each class what its live link does."""
    cluster, placements, crossings = scene
    made, _ = built(cluster, placements, crossings)
    ranks = sorted((job, gpu) for job, placement in enumerate(placements) for gpu in placement[0].gpus)
    assert sorted((group.job, gpu) for group in made.classes for gpu in group.gpus) == ranks
    assert sum(group.size for group in made.classes) == sum(len(part.gpus) for placement in placements for part in placement)
    for group in made.classes:
        graph, live = group.slot.graph, made.live_links[group.slot.name]
        for link in graph.links:
            crossing = sum(graph.host_to_device(gpu).links.count(link) for gpu in group.gpus)
            assert group.copy.get(live[link], 0.0) == crossing
        assert group.memory_load == group.copy[group.memory]


def copy_times(made, network):
    """When the copies of all ranks end, by job and time, if all begin together; those of the second job are twice as long."""
    ends = []

    def copy(group):
        yield network.start("copy", 1e9 * (1 + group.job), group.copy).done
        ends.extend([(group.job, network.env.now)] * group.size)

    for group in made.classes:
        network.env.process(copy(group))
    network.env.run()
    return sorted(ends)


@given(shared_clusters())
def test_folded_copies_end_when_unfolded_ones_do(scene):
    """Oracle: the same cluster with every GPU and link on its own."""
    cluster, placements, crossings = scene
    folded = copy_times(*built(cluster, placements, crossings))
    unfolded = copy_times(*built(cluster, placements, crossings, fold=False))
    assert [job for job, _ in folded] == [job for job, _ in unfolded]
    assert [time for _, time in folded] == pytest.approx([time for _, time in unfolded], rel=1e-9)


def test_two_gpus_may_meet_farther_than_more():
    """NCCL's rule on AMD: a job on two GPUs sends straight across the host bridge, one on three copies through host memory."""
    topology = {"sockets": ({"gpus": (0, 1, 2), "nics": (0,)},), "peer_to_peer": "pxb", "peer_to_peer_of_two": "sys"}
    machine = hardware((machines.node(3, topology), 1))
    staged = {}
    for gpus in (2, 3):
        (slot,) = slots(machine, [place(machine, gpus)])
        staged[gpus] = slot.graph.route(0, 1).staged
    assert staged == {2: False, 3: True}
    (slot,) = slots(machine, [place(machine, pattern="2"), (Placement(0, (0, 1, 2)),)])
    assert slot.graph.route(0, 1).staged
