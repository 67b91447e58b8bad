"""What every run must hold: conservation, bounds, monotone single-resource scenes, folding, executors and determinism."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.build import Placement, place
from sim.events import STALLS, Cause
from sim.simulate import simulate, steps_per_epoch
from sim.spec.yaml import SpecError
from sim.training.job import Job
from tests.examples import examples
from tests.harness import carried, cluster, layer, loads, machine, run, toy_node, toy_workload, volume

LOADERS = {
    "synthetic": {"loader": "synthetic"},
    "inline": {"loader": "pytorch", "inputs": {"num_workers": 0}},
    "pytorch": {"loader": "pytorch"},
    "dali_cpu": {"loader": "dali_cpu"},
    "dali_gpu": {"loader": "dali_gpu", "gpu_prep": 0.01},
}
STACKS = {
    "ddp": {"strategy": "ddp", "first_bucket_cap": "1 MB", "bucket_cap": "10 MB"},
    "apex": {"strategy": "apex_per_tensor", "blocking_scalar_all_reduces": 3},
    "flat": {"strategy": "flat", "overlap": False},
}


class Setup:
    """A machine and a workload, with the seconds that one step needs at least of each resource."""

    def __init__(self, gpus, nodes, machine_keys, times, workload_keys):
        self.gpus, self.nodes, self.machine_keys, self.times, self.workload_keys = gpus, nodes, machine_keys, times, workload_keys

    def __repr__(self):
        return f"Setup({self.gpus}, {self.nodes}, {self.machine_keys}, {self.times}, {self.workload_keys})"

    def run(self, **keys):
        layers = [layer(forward, backward, elements) for forward, backward, elements in self.times]
        self.workload = toy_workload(layers, **self.workload_keys)
        self.hardware = machine(self.gpus, self.nodes, disk=volume(bandwidth=50e6), **self.machine_keys)
        return run(self.hardware, self.workload, **keys)

    @property
    def ranks(self):
        return self.gpus * self.nodes

    @property
    def per_step(self):
        return self.workload_keys["batch"] * self.workload_keys["accumulation"]


@st.composite
def setups(draw, loaders=tuple(LOADERS), stacks=tuple(STACKS), nodes=(1, 3), wiring=("nvswitch", "pcie")):
    gpus, count = draw(st.integers(1, 3)), draw(st.integers(*nodes))
    batch, accumulation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    seconds = st.floats(1e-3, 0.1)
    times = draw(st.lists(st.tuples(seconds, seconds, st.integers(1, 10**6)), min_size=1, max_size=4))
    loader = LOADERS[draw(st.sampled_from(loaders))]
    inputs = {"num_workers": draw(st.integers(1, 4)), "prefetch_factor": draw(st.integers(1, 3)), "pin_memory": draw(st.booleans())}
    return Setup(
        gpus,
        count,
        {
            "wiring": draw(st.sampled_from(wiring)),
            "nic": 1e9,
            "cores": draw(st.integers(1, 8)),
            "hop_latency": draw(st.sampled_from([0, 1e-4])),
            "network_latency": draw(st.sampled_from([0, 1e-3])),
            "compute_cv": draw(st.sampled_from([0, 0.05])),
            "memory": draw(st.sampled_from([1.0, 30e6])),
        },
        times,
        {
            "batch": batch,
            "accumulation": accumulation,
            "samples": batch * accumulation * gpus * count * draw(st.integers(1, 15)),
            "sample": 1e6,
            "prepared": draw(st.sampled_from([0.0, 1e7])),
            "prep": draw(st.floats(0, 0.3)),
            "stack": STACKS[draw(st.sampled_from(stacks))] | {"launch_cpu": draw(st.sampled_from(["0 s", "10 ms"]))},
            **loader,
            "inputs": inputs | loader.get("inputs", {}),
        },
    )


# --- conservation ----------------------------------------------------------------------------------------------------


@given(setups(), st.booleans())
def test_waits_tile_the_time_of_every_rank(setup, exact):
    """Conservation: a rank's waits follow one another without gap or overlap from the start of the epoch to its end."""
    epoch = setup.run(exact=exact, fold=False).jobs[0].warm
    for rank in range(setup.ranks):
        waits = [wait for wait in epoch.log.waits if wait.rank == rank]
        assert waits[0].t0 == 0.0
        assert all(earlier.t1 == later.t0 for earlier, later in pairwise(waits))
        assert waits[-1].t1 >= epoch.windows[-1].end
        assert all(wait.t1 > wait.t0 for wait in waits)


@given(setups(), st.booleans())
def test_stalls_sum_to_the_step(setup, exact):
    """Conservation: by cause and by resource, none negative, closed list of causes; and epoch = steps."""
    for epoch in (setup.run(exact=exact).jobs[0].first, setup.run(exact=exact).jobs[0].warm):
        assert tuple(epoch.stalls) == STALLS
        assert sum(epoch.stalls.values()) == pytest.approx(epoch.step_time, rel=1e-9)
        assert sum(row.seconds for row in epoch.resources) == pytest.approx(epoch.step_time, rel=1e-9)
        assert min(row.seconds for row in epoch.resources) >= -1e-12
        assert epoch.steps == math.ceil(setup.workload.dataset.samples / setup.ranks / setup.per_step)


@given(setups())
def test_no_resource_is_ever_over_capacity(setup):
    """Conservation: at no instant does any link, disk, core or GPU carry more than it can."""
    log = setup.run(exact=True, keep_rates=True).log
    for name, steps in loads(log).items():
        assert max(load for _, load in steps) <= log.capacity[name] * (1 + 1e-9), name


@examples(20, None, setups(loaders=["synthetic"], nodes=(2, 3)))
def test_gradients_cross_each_nic_as_often_as_a_ring_needs(setup):
    """Conservation: bytes sent = bytes received = 2(n-1)/n of the gradients in each step, on every NIC."""
    simulated = setup.run(exact=True, keep_rates=True, fold=False)
    steps = simulated.jobs[0].warm.steps
    gradients = 4.0 * sum(elements for _, _, elements in setup.times)
    scalars = 4.0 * setup.workload.training.stack.exchange.blocking_scalar_all_reduces
    n = setup.ranks
    on = carried(simulated.log)
    for node in range(setup.nodes):
        for direction in ("nic0>net", "net>nic0"):
            assert on[f"n{node}.{direction}"] == pytest.approx(steps * 2 * (n - 1) / n * (gradients + scalars), rel=1e-6)


# --- bounds ----------------------------------------------------------------------------------------------------------


@given(setups())
def test_a_step_takes_at_least_what_each_resource_needs(setup):
    """Bounds on an epoch: compute; bytes from disk, core-seconds, bytes into each GPU; gradients through each GPU's port or the NIC."""
    warm = setup.run().jobs[0]
    keys, node = setup.workload_keys, setup.hardware.groups[0].node
    samples = setup.per_step * setup.gpus
    reads = keys["loader"] != "synthetic"
    bounds = {"compute": setup.per_step * sum(forward + backward for forward, backward, _ in setup.times)}
    if reads:
        bounds["disk"] = samples * keys["sample"] * (1 - warm.hit_ratio) / 50e6
        bounds["cores"] = samples * keys["prep"] / node.host.physical_cores
    bounds["copy"] = setup.per_step * (keys["sample"] if keys["loader"] == "dali_gpu" else keys["prepared"]) / 10e9
    n = setup.ranks
    if n > 1:
        narrowest = 1e9 if setup.nodes > 1 else 10e9
        bounds["exchange"] = 2 * (n - 1) / n * 4.0 * sum(elements for _, _, elements in setup.times) / narrowest
    assert {name: least for name, least in bounds.items() if least * warm.warm.steps > warm.warm.time * (1 + 1e-9)} == {}


@examples(5, 15, setups(loaders=["pytorch", "dali_cpu"]))
def test_a_steady_step_takes_at_least_what_disk_and_cores_need(setup):
    """Bounds on a step, in an epoch so long that what was built in its first seconds is long used up."""
    setup.workload_keys["samples"] = 5000 * setup.per_step * setup.ranks
    warm = setup.run(cold=False).jobs[0]
    samples, keys = setup.per_step * setup.gpus, setup.workload_keys
    disk = samples * keys["sample"] * (1 - warm.hit_ratio) / 50e6
    cores = samples * keys["prep"] / setup.machine_keys["cores"]
    assert warm.warm.step_time >= max(disk, cores) * (1 - (1e-3 if warm.warm.exact else 0.02))  # the last period may be cut short


def epoch_of(workload_keys, **machine_keys):
    return run(machine(1, **machine_keys), toy_workload([layer(0.05, 0.05)], **workload_keys)).jobs[0].warm


pairs = st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted)


@settings(max_examples=25)
@given(pairs, st.integers(0, 4), st.integers(1, 3))
def test_a_slower_disk_never_lowers_the_fetch_stall(disks, num_workers, factor):
    """Monotone, alone on the disk: fetch stall and step time against bandwidth."""
    keys = {"loader": "pytorch", "inputs": {"num_workers": num_workers, "prefetch_factor": factor}}
    slow, fast = (epoch_of(keys, disk=volume(bandwidth=rate * 1e7)) for rate in disks)
    assert slow.stalls[Cause.FETCH] >= fast.stalls[Cause.FETCH] - 1e-9
    assert slow.step_time >= fast.step_time - 1e-9
    assert slow.stalls[Cause.PREP] == fast.stalls[Cause.PREP] == 0


@settings(max_examples=25)
@given(pairs, st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.sampled_from(["pytorch", "dali_cpu"]))
def test_more_cpu_never_raises_the_prep_stall(prep, cores, more, num_workers, loader):
    """Monotone, alone on the cores: prep stall and step time against cores and against the time of one sample."""
    inputs = {"num_workers": num_workers, "num_threads": num_workers, "pin_memory": False}
    few, many = sorted((cores, more))
    epochs = [
        epoch_of({"loader": loader, "prep": seconds / 10, "inputs": inputs}, cores=count, disk=volume())
        for seconds, count in ((prep[0], many), (prep[0], few), (prep[1], few))
    ]
    for better, worse in pairwise(epochs):
        slack = 1e-6 + (0.02 * worse.step_time if not (better.exact and worse.exact) else 0.0)
        assert better.stalls[Cause.PREP] <= worse.stalls[Cause.PREP] + slack
        assert better.step_time <= worse.step_time + slack


@settings(max_examples=25)
@given(pairs, st.integers(1, 3), st.integers(1, 3), st.sampled_from(tuple(STACKS)))
def test_more_bandwidth_never_slows(bandwidths, gpus, nodes, stack):
    """Monotone, gradients alone on every link."""
    layers = [layer(0.01, 0.02, 10**6, 10**5), layer(0.01, 0.02, 10**6)]
    slow, fast = (
        run(machine(gpus, nodes, nvlink=many * 1e9, pcie=many * 1e9, nic=many * 1e8), toy_workload(layers, stack=STACKS[stack]))
        .jobs[0]
        .warm
        for many in bandwidths
    )
    assert fast.step_time <= slow.step_time * (1 + 1e-9)


# --- folding, executors, determinism ---------------------------------------------------------------------------------


def same(one, other, rel=1e-9):
    assert one.step_time == pytest.approx(other.step_time, rel=rel)
    assert one.time == pytest.approx(other.time, rel=rel)
    assert dict(one.stalls) == pytest.approx(dict(other.stalls), rel=rel, abs=rel * one.step_time)


@examples(20, None, setups())
def test_folded_equals_unfolded(setup):
    """Equal ranks simulated once or one by one: the same to 1e-9."""
    for folded, unfolded in zip(setup.run(exact=True).jobs, setup.run(exact=True, fold=False).jobs, strict=True):
        same(folded.first, unfolded.first)
        same(folded.warm, unfolded.warm)


@settings(max_examples=20)
@given(setups(loaders=["synthetic", "pytorch"]))
def test_both_executors_tell_the_same_run(setup):
    """Where no copy meets a ring chunk by chunk, every transfer as a flow gives the step of one activity each."""
    if setup.machine_keys["wiring"] == "pcie":
        setup.workload_keys["prepared"] = 0.0
    played, priced = (setup.run(exact=True, executor=executor).jobs[0].warm for executor in ("transfer", "phase"))
    assert played.time == pytest.approx(priced.time, rel=1e-6)


@settings(max_examples=10)
@given(setups())
def test_same_inputs_same_log(setup):
    """Determinism: two runs are equal to the last bit."""
    one, other = (setup.run(keep_rates=True).jobs[0].warm for _ in range(2))
    for name in ("ranks", "waits", "work", "rates", "capacity", "decisions"):
        assert repr(getattr(one.log, name)) == repr(getattr(other.log, name))
    assert repr(one) == repr(other)


def test_unequal_nodes_meet_at_the_slowest():
    """Closed form: a rank whose loader needs 0.5 s a batch sets the step of one that needs 0.3 s of compute."""
    few, many = toy_node(1, cores=1, disk=volume()), toy_node(1, cores=16, disk=volume())
    workload = toy_workload([layer(0.1, 0.2, 100)], loader="pytorch", prep=0.5, inputs={"num_workers": 4, "pin_memory": False})
    epoch = run(cluster(few, many), workload).jobs[0].warm
    assert epoch.step_time == pytest.approx(0.5, rel=1e-2)
    assert epoch.stalls[Cause.PREP] == pytest.approx(0.2 / 2, rel=0.05)  # one rank of two waits for its cores,
    assert epoch.stalls[Cause.STRAGGLER] == pytest.approx(0.2 / 2, rel=0.05)  # the other for that rank


def test_the_slowest_of_many_ranks_sets_the_step():
    """Closed form: with a coefficient of variation of 5% and 8 ranks, compute up to the exchange is longer by 1.4236 x 5%."""
    epoch = run(machine(8), toy_workload([layer(0.1, 0.2, 1)], noise=0.05)).jobs[0].warm
    assert epoch.stalls[Cause.STRAGGLER] == pytest.approx(0.3 * 0.05 * 1.42360, rel=1e-3)
    assert epoch.stalls[Cause.COMPUTE] == pytest.approx(0.3)


def test_accumulation_computes_often_and_exchanges_once():
    """Closed form: three micro-batches and one all-reduce of 1.5 x 400 MB at 10 GB/s after the last."""
    epoch = run(machine(4), toy_workload([layer(0.1, 0.2, 10**8)], accumulation=3)).jobs[0].warm
    assert epoch.stalls[Cause.COMPUTE] == pytest.approx(0.9)
    assert epoch.stalls[Cause.INTERCONNECT] == pytest.approx(1.5 * 0.4 / 10)


def test_the_fabric_of_the_hardware_counts():
    """Closed form: 2 nodes exchange 400 MB over a core of 0.1 GB/s, 0.05 GB/s for each edge, after backward."""
    hardware = cluster(toy_node(1, nic=1e9), count=2, core_bandwidth="0.1 GB/s")
    epoch = run(hardware, toy_workload([layer(0.1, 0.2, 10**8)])).jobs[0].warm
    assert epoch.stalls[Cause.NETWORK] == pytest.approx(0.4 / 0.05)


# --- several jobs ----------------------------------------------------------------------------------------------------


def two_jobs(first, second, start=0.0, **keys):
    """Two jobs of one GPU each on one node."""
    jobs = [Job(first, (Placement(0, (0,)),)), Job(second, (Placement(0, (1,)),), start)]
    return simulate(machine(2, **keys), jobs).jobs


def test_two_jobs_share_what_they_share():
    """Closed form: each alone would take 0.25 s for its copy over the common uplink; together 0.5 s."""
    workload = toy_workload([layer(0.0, 0.0)], prepared=2.5e9)
    one, other = two_jobs(workload, workload)
    assert one.warm.step_time == pytest.approx(0.5)
    assert other.warm.step_time == pytest.approx(0.5)
    assert run(machine(1), workload).jobs[0].warm.step_time == pytest.approx(0.25)


def test_jobs_that_share_nothing_do_not_meet():
    """A job that shares neither GPUs nor data with another runs as if it were alone."""
    slow, quick = toy_workload([layer(0.7, 1.1)], samples=40), toy_workload([layer(0.1, 0.2)], samples=40)
    together = two_jobs(slow, quick)
    assert [job.warm.step_time for job in together] == pytest.approx([1.8, 0.3])
    assert [job.warm.time for job in together] == pytest.approx([40 * 1.8, 40 * 0.3])


def test_a_job_of_long_steps_beside_one_of_short_epochs():
    """The second job's first step ends after the first job's whole epoch; its figures are its own all the same."""
    quick, slow = toy_workload([layer(0.01, 0.02)], samples=5), toy_workload([layer(3.0, 5.0)], samples=5)
    together = two_jobs(quick, slow)
    assert [job.warm.step_time for job in together] == pytest.approx([0.03, 8.0])
    assert [sum(job.warm.stalls.values()) for job in together] == pytest.approx([0.03, 8.0])


def test_a_job_that_starts_later_slows_the_rest_of_the_epoch():
    """Closed form: 100 copies of 0.25 s, of which those after 10 s share the uplink: 40 + 60 x 2 quarter seconds."""
    workload = toy_workload([layer(0.0, 0.0)], prepared=2.5e9, samples=100)
    one, other = two_jobs(workload, workload, start=10.0)
    assert one.first.time == pytest.approx(10.0 + 60 * 0.5)
    assert one.first.exact
    assert one.warm.step_time == other.first.step_time == pytest.approx(0.5)
    assert one.first.step_time == pytest.approx(one.first.time / 100, rel=0.02)


def test_a_job_that_starts_too_late_starts_with_the_next_epoch():
    """It is reported next to the first job all the same."""
    workload = toy_workload([layer(0.0, 0.0)], prepared=2.5e9, samples=20)
    one, other = two_jobs(workload, workload, start=1e6)
    assert one.first.time == pytest.approx(20 * 0.25)
    assert other.warm.step_time == pytest.approx(0.5)


def test_jobs_with_different_data_sets_share_one_disk():
    """Closed form: a disk of 100 I/Os per second; one job reads small files, one reads large ones, each for half of the I/Os."""
    disk = volume(bandwidth=1e12, iops=100.0, io_size="1 MB")
    keys = {"loader": "pytorch", "files": "per_sample", "inputs": {"num_workers": 1, "pin_memory": False}, "samples": 200}
    small, large = toy_workload([layer(0.0, 0.0)], sample=1e5, **keys), toy_workload([layer(0.0, 0.0)], sample=1e6, **keys)
    jobs = [Job(small, (Placement(0, (0,)),)), Job(large, (Placement(0, (1,)),))]
    finished = simulate(machine(2, disk=disk), jobs).jobs
    ios = [1 / job.first.step_time for job in finished]
    assert sum(ios) == pytest.approx(100, rel=0.05)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_unknown_executor_is_refused():
    with pytest.raises(ValueError, match="one of phase, transfer"):
        run(machine(2), toy_workload(), executor="fast")


def test_real_data_need_a_disk():
    with pytest.raises(SpecError, match="no storage"):
        run(machine(1), toy_workload(loader="pytorch"))


@given(st.integers(1, 1000), st.integers(1, 16), st.integers(1, 8), st.integers(1, 3))
def test_steps_of_an_epoch(samples, ranks, batch, accumulation):
    """Definition: as many steps as see every sample once."""
    workload = toy_workload(samples=samples, batch=batch, accumulation=accumulation)
    steps = steps_per_epoch(workload, Job(workload, (Placement(0, tuple(range(ranks))),)).samples)
    assert steps * ranks * batch * accumulation >= samples > (steps - 1) * ranks * batch * accumulation


def test_throughput_counts_all_ranks():
    """Closed form: 2 nodes x 4 GPUs x 3 samples x 2 micro-batches each 0.6 s."""
    job = run(machine(4, 2), toy_workload([layer(0.04, 0.06)], batch=3, accumulation=2)).jobs[0]
    assert job.throughput == pytest.approx(48 / 0.6)


def test_fold_is_given_up_for_transfers():
    """The transfer executor simulates every rank individually, whatever is requested."""
    hardware = machine(4)
    assert len(simulate(hardware, [Job(toy_workload(), place(hardware))], executor="transfer").log.ranks) == 4
    assert len(simulate(hardware, [Job(toy_workload(), place(hardware))]).log.ranks) == 1
