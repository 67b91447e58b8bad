"""Is the shortcut the whole epoch? Every step simulated is the oracle, through changes of regime and without a period."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.epoch
from sim.cluster.build import Placement, with_nodes
from sim.events import Cause
from sim.report.document import run_document
from sim.simulate import simulate
from sim.study.bottleneck import bottlenecks
from sim.training.job import Job
from tests.epochs import assert_same_times
from tests.examples import examples
from tests.freed import freed_at_once
from tests.harness import cluster, layer, machine, run, toy_node, toy_workload, volume


def both(hardware, workload, **keys):
    """The same job by the shortcut and step by step."""
    return tuple(run(hardware, workload, exact=exact, **keys).jobs[0] for exact in (False, True))


def assert_same(short, full, rel=1e-9):
    assert short.exact
    assert short.steps == full.steps
    assert_same_times(short, full, rel)


@examples(
    10,
    25,
    gpus=st.integers(1, 3),
    steps=st.integers(100, 350),
    forward=st.floats(1e-3, 0.1),
    elements=st.integers(1, 10**7),
    loader=st.sampled_from(["synthetic", "pytorch", "dali_cpu"]),
    workers=st.integers(0, 5),
    prep=st.floats(0, 0.3),
    cores=st.integers(1, 6),
    extra=st.integers(0, 5),
    read=st.booleans(),
    accumulation=st.integers(1, 2),
)
def test_the_shortcut_is_the_whole_epoch(gpus, steps, forward, elements, loader, workers, prep, cores, extra, read, accumulation):
    """Oracle: every step simulated; the time of an epoch, of a step, and every stall agree to 1e-9 wherever an exact period is claimed."""
    workload = toy_workload(
        [layer(forward, 2 * forward, elements)],
        loader=loader,
        prep=prep,
        samples=steps * gpus * accumulation + extra,
        sample=1e6 if read else 1.0,
        prepared=1e7,
        accumulation=accumulation,
        inputs={"num_workers": workers, "num_threads": workers + 1},
    )
    short, full = both(machine(gpus, cores=cores, disk=volume(bandwidth=20e6), memory=1.0), workload)
    for one, other in ((short.first, full.first), (short.warm, full.warm)):
        if one.exact:
            assert_same(one, other)
        else:
            assert one.time == pytest.approx(other.time, rel=0.05)


def test_most_epochs_of_loaders_show_a_period():
    """A loader-bound, a compute-bound and a disk-bound epoch are all arithmetic after fewer than 100 steps."""
    for prep, disk in ((0.5, 1e12), (0.01, 1e12), (0.01, 5e6)):
        workload = toy_workload([layer(0.03, 0.06, 1000)], loader="pytorch", prep=prep, samples=40_000)
        epoch = run(machine(2, cores=16, disk=volume(bandwidth=disk)), workload).jobs[0].first
        assert epoch.exact
        assert epoch.steps == 20_000
        assert len(epoch.log.waits) < 2000


@pytest.mark.parametrize("exact", [False, True])
def test_an_epoch_of_one_step_has_a_steady_state(exact):
    """Closed form: a batch is prepared in 1.2 s by each of four workers, a step takes 0.3 s; the first one comes after 1.2 s."""
    workload = toy_workload([layer(0.1, 0.2, 1000)], loader="pytorch", prep=1.2, samples=1, inputs={"num_workers": 4})
    for epoch in (
        run(machine(1, disk=volume()), workload, exact=exact).jobs[0].warm,
        run(machine(1), toy_workload(samples=1)).jobs[0].warm,
    ):
        assert epoch.steps == 1
        assert epoch.step_time == pytest.approx(0.3, rel=1e-6)
        assert epoch.stalls[Cause.COMPUTE] == pytest.approx(0.3, rel=1e-6)
    assert run(machine(1, disk=volume()), workload, exact=exact).jobs[0].warm.time == pytest.approx(1.5, rel=1e-6)


def test_an_epoch_is_warm_up_and_windows():
    """Conservation: the windows stand for all steps after the warm-up, and hold all the time after it."""
    workload = toy_workload([layer(0.03, 0.06, 1000)], loader="pytorch", prep=0.35, samples=1003, inputs={"num_workers": 3})
    for exact in (False, True):
        epoch = run(machine(1, cores=2, disk=volume()), workload, exact=exact).jobs[0].first
        warm_up = epoch.windows[0].start
        stand_for = sum(window.steps * window.repeats for window in epoch.windows)
        assert epoch.time == pytest.approx(warm_up + stand_for * epoch.step_time, rel=1e-9)
        assert 0 < epoch.steps - stand_for < 100
        assert warm_up < 0.1 * epoch.time


# --- burst credits ---------------------------------------------------------------------------------------------------

BURSTING = {"burst_iops": "100 IOPS", "burst_credits": 300.3, "io_size": "1 MB"}


def bursting(steps, workers=2, read=1e6, gpus=1, prep=0.0, **keys):
    """A disk of 20 I/Os per second that bursts to 100 for a while, read by a loader that wants all it can get."""
    workload = toy_workload(
        [layer(0.001, 0.002, 10)], loader="pytorch", sample=read, files="per_sample", samples=steps * gpus, prep=prep,
        inputs={"num_workers": workers, "pin_memory": False},
    )  # fmt: skip
    return machine(gpus, disk=volume(iops=20.0, **BURSTING), cores=16, **keys), workload


def test_credits_run_out_once():
    """Closed form: 300.3 credits, spent at 100 - 20 a second, last 3.75 s and 375 reads; the other 625 go at 20 a second."""
    hardware, workload = bursting(1000)
    epoch = run(hardware, workload).jobs[0].first
    spent = 300.3 / 80
    assert epoch.time == pytest.approx(spent + (1000 - 100 * spent) / 20, rel=2e-3)
    assert epoch.exact


@examples(
    4,
    10,
    steps=st.integers(300, 1200),
    workers=st.integers(1, 5),
    ios=st.integers(1, 3),
    gpus=st.integers(1, 2),
    prep=st.sampled_from([0.0, 0.013, 0.05]),
)
def test_the_shortcut_sees_credits_run_out(steps, workers, ios, gpus, prep):
    """Oracle: every step simulated, through the change from burst to baseline."""
    short, full = both(*bursting(steps, workers, ios * 1e6, gpus, prep))
    for one, other in ((short.first, full.first), (short.warm, full.warm)):
        if one.exact:
            assert_same(one, other)
        else:
            assert one.time == pytest.approx(other.time, rel=0.02)


def test_the_next_epoch_finds_the_credits_that_are_left():
    """A later epoch of a data set that no cache holds begins at the baseline: 20 reads a second throughout."""
    job = run(*bursting(1000)).jobs[0]
    assert job.warm.time == pytest.approx(1000 / 20, rel=0.02)
    assert job.warm.time > job.first.time


def test_studies_of_the_warm_epoch_find_the_same_credits():
    """Without the cold epoch among its results, a run's warm epoch is the same, so that what-ifs compare with the step that is shown."""
    hardware, workload = bursting(1000)
    job = run(hardware, workload).jobs[0]
    alone = run(hardware, workload, cold=False).jobs[0]
    assert alone.warm.step_time == job.warm.step_time == alone.first.step_time != job.first.step_time


def test_what_would_help_is_asked_of_a_disk_without_credits():
    """Closed form: 20 reads a second in the warm epoch, with much faster cores as well; only the disk saves time."""
    simulated = run(*bursting(1000))
    [bottleneck] = bottlenecks(simulated)
    assert bottleneck.freed_times["cpu"] == pytest.approx(1 / 20, rel=1e-6) and bottleneck.first == "disk"
    assert bottleneck.spread == pytest.approx((1 / 20, 1 / 20), rel=1e-3)


def test_what_would_help_one_job_is_asked_of_the_credits_of_its_own_node():
    """A job that reads nothing, on the first of two nodes, changes nothing for the one on the second, whose disk has no credits left."""
    hardware, workload = bursting(1000)
    hardware = with_nodes(hardware, 2)
    longer = toy_workload([layer(0.1, 0.2, 10)], samples=1000, loader="synthetic")
    simulated = simulate(hardware, [Job(longer, (Placement(0, (0,)),)), Job(workload, (Placement(1, (0,)),))])
    bottleneck = bottlenecks(simulated)[1]
    assert bottleneck.freed_times["cpu"] == pytest.approx(1 / 20, rel=1e-6) and bottleneck.first == "disk"


def test_a_later_end_of_credits_is_foretold():
    """Closed form: epochs of 100 reads at 100 a second take 80 of 300.3 credits each, so the fourth empties them; then 20 a second."""
    simulated = run(*bursting(100))
    assert simulated.jobs[0].warm.step_time == pytest.approx(1 / 100, rel=0.02)
    assert simulated.credits_end.epoch == 4
    assert simulated.credits_end.step_times == pytest.approx([1 / 20], rel=0.02)
    [said] = [text for text in run_document(simulated, {})["warnings"] if "burst credits" in text]
    assert said == "burst credits of the disk run out in epoch 4; from then on a step takes 50 ms instead of 10 ms"


def test_credits_that_end_in_the_warm_epoch_slow_the_next():
    """Closed form: 230 reads take 184 credits at burst; of 300.3 the first epoch leaves 116.3, of which the second can burst 1.45 s."""
    simulated = run(*bursting(230))
    assert simulated.credits_end.epoch == 2
    assert simulated.jobs[0].warm.step_time < 0.9 * simulated.credits_end.step_times[0]
    assert "epoch 2, the warm one" in str(run_document(simulated, {})["warnings"])


@pytest.mark.parametrize("keys", [{"prep": 0.06}, {"memory": 1e12}])
def test_credits_that_never_end_are_not_foretold(keys):
    """A loader slower than the baseline, and a data set that the page cache holds: no credit is taken in a warm epoch."""
    assert run(*bursting(100, workers=1, **keys)).credits_end is None


def test_a_disk_that_is_asked_for_less_keeps_bursting():
    """A step of 0.1 s reads 10 times a second, below the baseline: no regime changes, whatever the length."""
    hardware, workload = bursting(20_000, prep=0.01)
    slow = workload.model_copy(update={"model": workload.model.model_copy(update={"layers": (layer(0.03, 0.07, 10),)})})
    epoch = run(hardware, slow).jobs[0].first
    assert epoch.exact
    assert epoch.step_time == pytest.approx(0.1)
    assert epoch.stalls[Cause.FETCH] == 0
    assert len(epoch.windows) <= 2


def test_at_the_baseline_credits_that_come_back_change_nothing():
    """A loader just below the baseline gains a few credits back and forth; the disk stays at its baseline until the epoch ends."""
    hardware, workload = bursting(3000, workers=1, prep=0.002)
    epoch = run(hardware, workload).jobs[0].first
    assert epoch.exact
    assert len(epoch.log.waits) < 5000


# --- without a period ------------------------------------------------------------------------------------------------


def test_without_a_period_the_mean_of_later_steps_stands_for_the_rest(monkeypatch):
    """Oracle: every step simulated; with no recurrence to be found, the mean is close and says that it is one."""
    monkeypatch.setattr(sim.epoch.PeriodDetector, "observe", lambda self, step, now, state: self._history.append((step, now, state)))
    workload = toy_workload([layer(0.03, 0.06, 1000)], loader="pytorch", prep=0.35, samples=1500, inputs={"num_workers": 3})
    hardware = machine(1, cores=2, disk=volume())
    short, full = both(hardware, workload)
    assert not short.first.exact
    assert full.first.exact
    assert short.first.time == pytest.approx(full.first.time, rel=0.01)
    assert sum(short.first.stalls.values()) == pytest.approx(short.first.step_time)
    assert abs(short.first.step_time - full.first.step_time) <= short.first.interval + 1e-9 < 0.05 * full.first.step_time
    assert full.first.interval is None


def drift_by(monkeypatch, drift):
    """Add a clock to the state that drifts by the share *drift* of a step at each, so that no state recurs."""
    observe = sim.epoch.PeriodDetector.observe

    def drifting(self, step, now, state):
        return observe(self, step, now, state._replace(times=(*state.times, drift * step * state.scale)))

    monkeypatch.setattr(sim.epoch.PeriodDetector, "observe", drifting)


@pytest.mark.parametrize(("drift", "simulated"), [(1e-6, sim.epoch.LEAST_LIVE_STEPS), (1e-3, sim.epoch.MOST_LIVE_STEPS)])
def test_steps_that_hardly_drift_need_not_all_be_simulated(monkeypatch, drift, simulated):
    """Oracle: every step simulated."""
    workload = toy_workload([layer(0.03, 0.06, 1000)], loader="pytorch", prep=0.01, samples=3000)
    hardware = machine(1, cores=2, disk=volume())
    drift_by(monkeypatch, drift)
    short, full = both(hardware, workload)
    assert len(short.first.log.steps[0]) == pytest.approx(simulated, abs=2)  # the epoch ends once the log tells of all waits
    assert not short.first.exact
    assert short.first.time == pytest.approx(full.first.time, rel=1e-4)


@pytest.mark.parametrize(("drift", "simulated"), [(0.0, sim.epoch.LEAST_LIVE_STEPS), (1e-3, sim.epoch.MOST_LIVE_STEPS)])
def test_jobs_without_a_common_period_are_simulated_until_each_is_steady(monkeypatch, drift, simulated):
    """Oracle: every step simulated. A step of one takes the square root of two times as long; where states drift, 400 are simulated."""
    jobs = [
        Job(toy_workload([layer(share * 0.03, share * 0.06, 1000)], loader="pytorch", prep=0.01, samples=1500), (Placement(0, (gpu,)),))
        for gpu, share in enumerate((2**0.5, 1.0))
    ]
    drift_by(monkeypatch, drift)
    short, full = (simulate(machine(2, cores=4, disk=volume()), jobs, exact=exact).jobs for exact in (False, True))
    assert len(short[0].warm.log.steps[0]) == pytest.approx(simulated, abs=2)
    for one, other in zip(short, full, strict=True):
        assert not one.warm.exact
        assert one.warm.step_time == pytest.approx(other.warm.step_time, rel=1e-4)
        assert one.first.time == pytest.approx(other.first.time, rel=1e-4)
        assert dict(one.warm.stalls) == pytest.approx(dict(other.warm.stalls), abs=1e-3 * other.warm.step_time)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_epochs_of_a_few_steps(steps):
    """Nothing repeats in one step; the figures are those of the steps there are."""
    workload = toy_workload(
        [layer(0.1, 0.2, 10)], loader="pytorch", prep=1.0, samples=steps, inputs={"num_workers": 1, "pin_memory": False}
    )
    epoch = run(machine(1, disk=volume()), workload).jobs[0].first
    assert epoch.time == pytest.approx(1.0 * steps + 0.3)
    assert epoch.steps == steps
    assert sum(epoch.stalls.values()) == pytest.approx(epoch.step_time)


# --- jobs and regimes ------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(start=st.floats(0, 100), first=st.floats(0.01, 0.5), second=st.floats(0.01, 0.5))
def test_the_shortcut_sees_a_second_job_start(start, first, second):
    """Oracle: every step simulated, through the start of a job that shares the uplink."""
    hardware = machine(2)
    jobs = [
        Job(toy_workload([layer(first, 0.1)], prepared=1e9, samples=150), (Placement(0, (0,)),)),
        Job(toy_workload([layer(second, 0.1)], prepared=1e9, samples=150), (Placement(0, (1,)),), start),
    ]
    short, full = (simulate(hardware, jobs, exact=exact).jobs[0].first for exact in (False, True))
    assert short.time == pytest.approx(full.time, rel=1e-9 if short.exact else 0.05)


def test_equal_segments_do_not_make_a_false_period():
    """By hand: the second job's ten equal layers look alike at the first job's boundaries; one of its steps takes 1 s, not one layer."""
    hardware = machine(2)
    jobs = [
        Job(toy_workload([layer(0.02, 0.03)], samples=500), (Placement(0, (0,)),)),
        Job(toy_workload([layer(0.05, 0.05, 1000)] * 10, samples=500), (Placement(0, (1,)),)),
    ]
    simulated_jobs = simulate(hardware, jobs).jobs
    assert [job.warm.step_time for job in simulated_jobs] == pytest.approx([0.05, 1.0])


@st.composite
def beside_each_other(draw):
    """Two jobs that share the NIC, and the disk, of the middle one of three nodes; their steps and epochs differ up to a hundredfold."""
    jobs = []
    for nodes, gpu in (((0, 1), 0), ((1, 2), 1)):
        loader = draw(st.sampled_from(["synthetic", "pytorch"]))
        workload = toy_workload(
            [layer(draw(st.floats(0.01, 1.0)), 0.02, draw(st.sampled_from([1000, 10**7])))],
            loader=loader,
            prep=draw(st.floats(0.0, 1.0)),
            samples=draw(st.sampled_from([1, 2, 20, 120])),
            inputs={"num_workers": 2} if loader == "pytorch" else {},
            stack={"launch_cpu": "3 ms"},
        )
        jobs.append(Job(workload, tuple(Placement(node, (gpu,)) for node in nodes), draw(st.sampled_from([0.0, 0.7])) if jobs else 0.0))
    return jobs


def with_slow_memory(node):
    """Passes over weights and gradients then take time, and a step ends with one: 0.16 s of SGD's for 10 million parameters."""
    return node.model_copy(update={"gpu": node.gpu.model_copy(update={"memory_bandwidth": 1e9})})


@examples(10, 25, jobs=beside_each_other(), fold=st.booleans(), exact=st.booleans())
def test_stalls_of_jobs_side_by_side_sum_to_their_steps(jobs, fold, exact):
    """Conservation: for each job, however short the first one's epoch is compared with a step of the other, or how far they drift
    apart."""
    nodes = (toy_node(2, disk=volume(bandwidth=1e8)), toy_node(2, nic=5e8, disk=volume(bandwidth=1e7)), toy_node(2, disk=volume()))
    for job in simulate(cluster(*map(with_slow_memory, nodes)), jobs, fold=fold, exact=exact).jobs:
        for epoch in (job.first, job.warm):
            assert sum(epoch.stalls.values()) == pytest.approx(epoch.step_time, rel=1e-9)


@pytest.mark.parametrize("loader", ["synthetic", "pytorch", "dali_gpu"])
def test_a_simulation_is_freed_without_a_garbage_collection(loader):
    """Oracle: weak references. Circles of references would keep a thousand objects of each epoch until the next collection."""
    with freed_at_once():
        done = run(machine(2, disk=volume()), toy_workload([layer(0.01, 0.02, 10**6)], loader=loader, samples=400))
        assert done.jobs[0].warm.log.waits
