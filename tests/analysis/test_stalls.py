"""Oracle: event logs written by hand, whose answers are obvious from reading them."""

from __future__ import annotations

import math

import pytest

from sim.analysis.stalls import Window, align_to_steps, blame, resource_table, stall_table, without_overlap
from sim.events import FULL, STALLS, Cause, EventLog, LoggedRank, WaitSpan, WorkSpan

GPU, CPU, DISK = "gpu", "cpu cores", "disk"


def log(*entries: WaitSpan | WorkSpan, ranks: tuple[LoggedRank, ...] = (LoggedRank(0, 0, 1, "n0", (0,)),)) -> EventLog:
    event_log = EventLog(lambda: 0.0, ranks=list(ranks))
    for entry in entries:
        (event_log.waits if isinstance(entry, WaitSpan) else event_log.work).append(entry)  # type: ignore[arg-type]
    return event_log


def wait(cause: Cause, t0: float, t1: float, resource: str = "", ident: int = -1, rank: int = 0) -> WaitSpan:
    return WaitSpan(rank, cause, resource, ident, t0, t1)


def work(stream: str, cause: Cause, t0: float, t1: float, resource: str = "", ident: int = -1, rank: int = 0) -> WorkSpan:
    return WorkSpan(rank, stream, cause.value, cause, resource, ident, 0.0, t0, t1)


def table(event_log: EventLog, start: float, end: float, steps: int = 1) -> dict[str, float]:
    return {
        cause.value: seconds for cause, seconds in stall_table(resource_table(event_log, [Window(start, end, steps)])).items() if seconds
    }


def test_plain_waits_are_what_they_say() -> None:
    event_log = log(wait(Cause.COPY, 0, 1, "host to device"), wait(Cause.COMPUTE, 1, 4, GPU), wait(Cause.LAUNCH, 4, 5, "host"))
    assert table(event_log, 0, 5) == {"compute": 3, "copy": 1, "launch": 1}


def test_every_stall_has_a_place_in_the_table() -> None:
    assert list(stall_table([])) == list(STALLS)


def test_a_window_cuts_waits_and_divides_by_its_steps() -> None:
    event_log = log(wait(Cause.COMPUTE, 0, 10, GPU))
    assert table(event_log, 2, 6, steps=4) == {"compute": 1}


def test_a_wait_for_a_batch_is_spread_over_its_build() -> None:
    """The batch took 3 s to read and 1 s to prepare; the rank waited 2 s of that: 1.5 s for the disk, 0.5 s for the cores."""
    event_log = log(
        work("worker 0", Cause.FETCH, 0, 3, DISK, ident=7),
        work("worker 0", Cause.PREP, 3, 4, CPU, ident=7),
        wait(Cause.INPUT, 2, 4, ident=7),
    )
    assert table(event_log, 2, 4) == {"fetch": pytest.approx(1.5), "prep": pytest.approx(0.5)}


def test_of_two_collectives_at_a_time_the_one_that_began_first_bears_the_wait() -> None:
    """Bucket 0 holds a NIC from 0 to 4 s and the cores to 6 s, bucket 1 the switch from 1 to 8 s: its own are the last two seconds."""
    event_log = log(
        work("comm", Cause.NETWORK, 1, 8, "switch", ident=1),
        work("comm", Cause.NETWORK, 0, 4, "nic", ident=0),
        work("comm", Cause.INTERCONNECT, 4, 6, "cores", ident=0),
        wait(Cause.GRADIENT, 2, 9),
    )
    rows = {(row.cause.value, row.resource): row.seconds for row in resource_table(event_log, [Window(0, 9, 1)])}
    assert rows == {("network", "nic"): 2, ("interconnect", "cores"): 2, ("network", "switch"): 2, ("straggler", "slowest rank"): 1}


def test_a_collective_that_ends_with_one_that_began_before_has_no_piece() -> None:
    """Bucket 1 lies inside bucket 0 and ends with it, so that a trace shows no event of it; bucket 2 has what is left of it."""
    times = [(0.0, 4.0), (1.0, 4.0), (3.0, 6.0)]
    first, inside, after = (work("comm", Cause.NETWORK, *each, "nic", ident=number) for number, each in enumerate(times))
    assert without_overlap([first, inside, after]) == [first, after._replace(t0=4.0)]


def test_a_gap_before_a_stage_is_queueing_for_it() -> None:
    """Prepared at 1 s, pinned from 4 s to 5 s: four of the five seconds are the pin thread's."""
    event_log = log(
        work("worker 0", Cause.FETCH, 0, 1, DISK, ident=0),
        work("pin", Cause.PREP, 4, 5, "pin thread", ident=0),
        wait(Cause.INPUT, 0, 5, ident=0),
    )
    assert [(row.cause, row.resource, row.seconds) for row in blame(event_log, [Window(0, 5, 1)])[0]] == [
        (Cause.FETCH, DISK, pytest.approx(1.0)),
        (Cause.PREP, "pin thread", pytest.approx(4.0)),
    ]


def test_the_one_resource_that_is_full_bears_the_whole_wait() -> None:
    """Of 2 s the disk took three parts and the cores one; the disk is full, so that quicker cores would have filled no batch sooner."""
    event_log = log(
        work("worker 1", Cause.FETCH, 1, 3, DISK + FULL, ident=6),
        work("worker 0", Cause.FETCH, 3, 6, DISK + FULL, ident=7),
        work("worker 0", Cause.PREP, 6, 7, CPU, ident=7),
        work("worker 1", Cause.FETCH, 6, 8, DISK + FULL, ident=8),
        wait(Cause.INPUT, 5, 7, ident=7),
    )
    assert table(event_log, 5, 7) == {"fetch": pytest.approx(2.0)}


def test_a_disk_that_was_idle_before_a_build_is_full_during_it() -> None:
    """Only the build that the rank waits for counts: 4 s up to the end of its reading, before which the disk had a pause."""
    event_log = log(
        work("worker 1", Cause.FETCH, 0, 1, DISK + FULL, ident=6),
        work("worker 1", Cause.FETCH, 2, 3, DISK + FULL, ident=8),
        work("worker 0", Cause.FETCH, 3, 6, DISK + FULL, ident=7),
        work("worker 0", Cause.PREP, 6, 7, CPU, ident=7),
        wait(Cause.INPUT, 5, 7, ident=7),
    )
    assert table(event_log, 5, 7) == {"fetch": pytest.approx(2.0)}


def test_a_disk_is_full_from_the_first_reading_on() -> None:
    """The first build takes 4 s, of which the disk was full for all 3 up to the end of its reading: nothing could read before."""
    event_log = log(
        work("worker 0", Cause.FETCH, 0, 3, DISK + FULL, ident=0),
        work("worker 0", Cause.PREP, 3, 4, CPU, ident=0),
        wait(Cause.INPUT, 2, 4, ident=0),
    )
    assert table(event_log, 2, 4) == {"fetch": pytest.approx(2.0)}


@pytest.mark.parametrize("since", [0.0, 1e7])
def test_a_disk_that_is_idle_while_the_only_worker_prepares_is_not_full(since: float) -> None:
    """The disk limits each read, but one second in four it waits for the worker: quicker cores would have filled the batch sooner.

    An epoch of four months changes nothing: a pause is compared with the build, not with the time since the start.
    """
    event_log = log(
        work("worker 0", Cause.FETCH, since, since + 3, DISK + FULL, ident=6),
        work("worker 0", Cause.PREP, since + 3, since + 4, CPU, ident=6),
        work("worker 0", Cause.FETCH, since + 4, since + 7, DISK + FULL, ident=7),
        work("worker 0", Cause.PREP, since + 7, since + 8, CPU, ident=7),
        wait(Cause.INPUT, since + 6, since + 8, ident=7),
    )
    assert table(event_log, since + 6, since + 8) == {"fetch": pytest.approx(1.5), "prep": pytest.approx(0.5)}


def test_a_disk_that_another_job_keeps_busy_is_full() -> None:
    """While this job's worker prepares, another job on the node reads: the disk never rests."""
    event_log = log(
        work("worker 0", Cause.FETCH, 0, 3, DISK + FULL, ident=0, rank=1),
        work("worker 0", Cause.FETCH, 3, 5, DISK + FULL, ident=7),
        work("worker 0", Cause.PREP, 5, 8, CPU, ident=7),
        wait(Cause.INPUT, 5, 8, ident=7),
        ranks=(LoggedRank(0, 0, 1, "n0", (0,)), LoggedRank(1, 0, 1, "n0", (1,))),
    )
    assert table(event_log, 5, 8) == {"fetch": pytest.approx(3.0)}


def test_of_two_full_resources_none_bears_all() -> None:
    """Disk and cores are full, and the copy does not wait: each second of the build counts the same."""
    event_log = log(
        work("worker 1", Cause.PREP, 0, 2, CPU + FULL, ident=6),
        work("worker 0", Cause.FETCH, 0, 2, DISK + FULL, ident=7),
        work("worker 0", Cause.PREP, 2, 3, CPU + FULL, ident=7),
        work("pin", Cause.COPY, 3, 4, "pin thread", ident=7),
        wait(Cause.INPUT, 0, 4, ident=7),
    )
    assert table(event_log, 0, 4) == {"fetch": pytest.approx(2.0), "prep": pytest.approx(1.0), "copy": pytest.approx(1.0)}


def test_a_stage_in_pieces_bears_its_own_time_and_no_more() -> None:
    """A second from the disk, one from the cache and one of the pin thread; the largest row comes first."""
    event_log = log(
        work("worker 0", Cause.FETCH, 0, 1, DISK, ident=7),
        work("worker 0", Cause.FETCH, 1, 2, "page cache", ident=7),
        work("pin", Cause.PREP, 2, 3, "pin thread", ident=7),
        wait(Cause.INPUT, 0, 3, ident=7),
        wait(Cause.COMPUTE, 3, 5, GPU),
    )
    rows = [(row.resource, row.seconds) for row in resource_table(event_log, [Window(0, 5, 1)])]
    assert rows[0] == (GPU, 2)
    assert dict(rows[1:]) == {DISK: pytest.approx(1.0), "page cache": pytest.approx(1.0), "pin thread": pytest.approx(1.0)}


def test_collectives_of_which_some_overlap_are_counted_once() -> None:
    """Bucket 0 holds the NIC to 2 s, bucket 1 the switch from 1 s to 3 s, bucket 2 the NIC again from 4 s on."""
    event_log = log(
        work("comm", Cause.NETWORK, 0, 2, "nic", ident=0),
        work("comm", Cause.INTERCONNECT, 1, 3, "switch", ident=1),
        work("comm", Cause.NETWORK, 4, 5, "nic", ident=2),
        wait(Cause.GRADIENT, 0, 5),
    )
    assert table(event_log, 0, 5) == {"network": 3, "interconnect": 1, "straggler": 1}


def test_gradients_are_blamed_on_what_bounds_the_collective_then() -> None:
    """From 0 to 1 s nothing runs (the slowest rank computes), then NVLink bounds it to 3 s, then the NIC to 4 s."""
    event_log = log(
        work("comm", Cause.INTERCONNECT, 1, 3, "NVLink GPU0-GPU1", ident=0),
        work("comm", Cause.NETWORK, 3, 6, "NIC 0", ident=0),
        wait(Cause.GRADIENT, 0, 4),
    )
    assert table(event_log, 0, 4) == {"straggler": 1, "interconnect": 2, "network": 1}


def test_decoding_on_the_gpu_takes_half_of_what_it_shares() -> None:
    """One of the four seconds from 10 s on is shared."""
    event_log = log(work("pipeline gpu", Cause.PREP, 11, 12, "GPU decode", ident=1), wait(Cause.COMPUTE, 10, 14, GPU))
    assert table(event_log, 10, 14) == {"compute": 3.5, "prep": 0.5}


def test_gaps_between_collectives_are_as_long_as_they_are() -> None:
    """From 10 s on: the slowest rank to 12 s, NVLink to 13 s, the slowest rank again to 15 s, then the NIC to 16 s."""
    event_log = log(
        work("comm", Cause.INTERCONNECT, 12, 13, "NVLink", ident=0),
        work("comm", Cause.NETWORK, 15, 16, "NIC 0", ident=1),
        wait(Cause.GRADIENT, 10, 16),
    )
    assert table(event_log, 10, 16) == {"straggler": 4, "interconnect": 1, "network": 1}


def test_what_ends_as_a_window_begins_has_no_row() -> None:
    """Neither the wait nor the collective that end at 4 s have a row; rows are means over ranks, so their rank is -1."""
    event_log = log(
        work("comm", Cause.INTERCONNECT, 2, 4, "NVLink", ident=0),
        work("comm", Cause.NETWORK, 4, 6, "NIC 0", ident=1),
        wait(Cause.COPY, 3, 4, "host to device"),
        wait(Cause.GRADIENT, 4, 6),
    )
    (row,) = resource_table(event_log, [Window(4, 6, 1)])
    assert row == (-1, Cause.NETWORK, "NIC 0", 2)


def test_classes_weigh_with_their_ranks_and_windows_with_their_repeats() -> None:
    """3 ranks compute 1 s of each 2 s step, 1 rank 2 s; the second window stands for three."""
    ranks = (LoggedRank(0, 0, 3, "n0", (0, 1, 2)), LoggedRank(0, 1, 1, "n0", (3,)))
    event_log = log(
        *(wait(Cause.COMPUTE, t, t + 1, GPU) for t in (0, 2)),
        *(wait(Cause.COPY, t + 1, t + 2) for t in (0, 2)),
        wait(Cause.COMPUTE, 0, 4, GPU, rank=1),
        ranks=ranks,
    )
    rows = resource_table(event_log, [Window(0, 2, 1), Window(2, 4, 1, 3.0)])
    assert {row.cause: row.seconds for row in rows} == {Cause.COMPUTE: pytest.approx(1.25), Cause.COPY: pytest.approx(0.75)}
    assert math.isclose(sum(row.seconds for row in rows), 2.0)


def test_jobs_are_told_apart() -> None:
    ranks = (LoggedRank(0, 0, 1, "n0", (0,)), LoggedRank(1, 1, 1, "n0", (1,)))
    event_log = log(
        wait(Cause.GRADIENT, 0, 2, rank=1),
        work("comm", Cause.NETWORK, 0, 2, "NIC 0", rank=0),
        work("comm", Cause.INTERCONNECT, 0, 2, "NVLink", rank=1),
        ranks=ranks,
    )
    assert stall_table(resource_table(event_log, [Window(0, 2, 1)], job=1))[Cause.INTERCONNECT] == 2
    assert sum(stall_table(resource_table(event_log, [Window(0, 2, 1)], job=0)).values()) == 0


def test_windows_are_moved_to_whole_steps_of_another_job() -> None:
    """By hand: steps of 3 s from 1 s on; [2, 9] reaches from 1 to 7, and a window within one step holds none."""
    times = [1.0, 4.0, 7.0, 10.0]
    assert align_to_steps([Window(2, 9, 5, 3.0)], times, 10.0) == [Window(1, 7, 2, 3.0)]
    assert align_to_steps([Window(4, 11, 2)], times, 10.0) == [Window(4, 10, 2)]
    assert align_to_steps([Window(0, 4, 5)], times, 10.0) == [Window(1, 4, 1)]
    assert align_to_steps([Window(5, 6, 9)], times, 9.9) == [Window(4, 7, 1)]
    assert align_to_steps([], times, 2.0) == [Window(1, 4, 1)]
