"""Are hosts joined as asked, and is nothing left of them? Oracles: the rate itself as bound, twice the delay as bound, ``ip netns``."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from calibration.lab.network import PREFIX, divide_cores, lab_network, remove_orphans, require_laboratory, token_bucket_arguments
from calibration.lab.probe import probe_rates
from sim.spec.yaml import SpecError
from tests.calibration.lab.laboratory import left_of, needs_laboratory

SLOW = 100e6 / 8


def test_cores_are_divided_and_shared_only_where_they_must() -> None:
    assert divide_cores(2, [0, 1, 2, 3]) == ((0, 1), (2, 3))
    assert divide_cores(2, [4, 7]) == ((4,), (7,))
    assert divide_cores(4, [4, 7]) == ((4,), (7,), (4,), (7,))
    assert divide_cores(3, [0, 1, 2, 3]) == ((0,), (1,), (2,))


def test_a_token_bucket_lets_a_piece_through() -> None:
    """By hand: 1 ms of 1 Gbps; and on a slower line a piece of 64 KiB with the headers of its 46 frames."""
    assert token_bucket_arguments(125e6)[:4] == ["rate", "1000000000bit", "burst", "125000"]
    assert int(token_bucket_arguments(25e6)[3]) > 65536 + 46 * 66


def test_only_root_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SpecError, match="lab: building networks needs root; run it as root, for example with sudo"):
        require_laboratory()


def test_a_missing_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: None if command == "tc" else f"/bin/{command}")
    with pytest.raises(SpecError, match="the command 'tc' is missing; install iproute2"):
        require_laboratory()


@needs_laboratory
def test_no_more_than_the_rate_arrives_in_either_direction() -> None:
    """The bucket's burst is over when the second half of the bytes comes, so frames cannot beat the rate."""
    with lab_network(2, SLOW) as hosts:
        assert len(left_of(os.getpid())) == 3
        rates = probe_rates(hosts, SLOW)
    assert 0 < rates.forward <= 1.02 * SLOW and 0 < rates.backward <= 1.02 * SLOW and 0 < rates.duplex <= 1.02 * SLOW
    assert left_of(os.getpid()) == []


@needs_laboratory
@pytest.mark.nightly
def test_a_round_trip_takes_the_delay_twice() -> None:
    with lab_network(2, SLOW, 0.02) as hosts:
        assert hosts.delayed_by in ("netem", "delay line")
        rates = probe_rates(hosts, SLOW)
    assert rates.round_trip >= 0.04
    assert left_of(os.getpid()) == []


@needs_laboratory
def test_processes_on_a_host_end_with_it_and_failure_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="on the way"), lab_network(2, SLOW) as hosts:
        asleep = subprocess.Popen([*hosts.command_prefix(1), "sleep", "1000"])
        raise ValueError("on the way")
    assert asleep.wait(timeout=10) == -9
    assert left_of(os.getpid()) == []


@needs_laboratory
def test_what_a_dead_laboratory_left_is_removed_and_nothing_else() -> None:
    """A process that has ended owns the one name; the other only looks alike."""
    ended = subprocess.Popen(["true"])
    ended.wait(240)
    orphan, stranger = f"{PREFIX}{ended.pid}-host0", "another-lab-1-host0"
    for name in (orphan, stranger):
        subprocess.run(["ip", "netns", "add", name], check=True, timeout=240)
    try:
        remove_orphans()
        names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=240).stdout
        assert orphan not in names and stranger in names
    finally:
        subprocess.run(["ip", "netns", "del", stranger], check=True, timeout=240)
