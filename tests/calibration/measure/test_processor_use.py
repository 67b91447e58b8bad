"""Is the work of other programs distinguished from our own? Oracles: the kernel's accounts of this process, and made-up moments."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from calibration.measure.machine_record import MachineRecord, ProbeRecord
from calibration.measure.processor_use import DISTURBANCE, ProcessorUse, busy_core_ticks, busy_ticks, process_time


def test_others_are_what_is_left() -> None:
    """In 10 s everybody took 14 core-seconds and we 9 of them: others kept half a core busy."""
    assert ProcessorUse(110.0, 34.0, 12.0).others_since(ProcessorUse(100.0, 20.0, 3.0)) == pytest.approx(0.5)
    assert ProcessorUse(110.0, 20.0, 12.0).others_since(ProcessorUse(100.0, 20.0, 3.0)) == 0.0


def test_idle_ticks_and_interrupts_are_nobodys() -> None:
    """user, nice, system, idle, iowait, irq, softirq, steal (proc(5)); old kernels end before steal."""
    assert busy_ticks([1, 2, 4, 8, 16, 32, 64, 128]) == 1 + 2 + 4 + 128
    assert busy_ticks([1, 2, 4, 8]) == 7
    stat = "cpu  111 0 0 9\ncpu0 1 0 0 9\ncpu1 10 0 0 9\ncpu10 100 0 0 9\nctxt 5\n"
    assert busy_core_ticks(stat, {0, 1, 10}) == 111 and busy_core_ticks(stat, {10}) == 100  # of the cores that we may use


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_process_counts_with_the_children_it_has_waited_for() -> None:
    """Two looks at the same accounts, which the kernel keeps in ticks of 10 ms."""
    subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True, timeout=240)
    first, own_time, second = sum(os.times()[:4]), process_time([os.getpid(), 2**22 + 1]), sum(os.times()[:4])
    assert first - 0.05 <= own_time <= second + 0.05


def test_a_record_says_which_probes_were_disturbed() -> None:
    probes = {"gemm": ProbeRecord("done", "", others_cores=DISTURBANCE * 8 + 0.1), "disk": ProbeRecord("done", "", others_cores=0.1)}
    warning = MachineRecord("box", {"vcpus": 8}, {}, "complete", probes).disturbed()
    assert warning == "other programs used, of 8 cores, 0.9 during gemm; when they are idle, run: profile --again --only gemm"
    assert MachineRecord("box", {"vcpus": 16}, {}, "complete", probes).disturbed() == ""
