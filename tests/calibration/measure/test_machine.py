"""What does /proc/cpuinfo say? Oracle: texts written after those of known machines."""

from __future__ import annotations

from calibration.measure.machine import machine_facts, neutral_name, processor_facts

HEAD = "processor: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 5118 CPU @ 2.30GHz\ncpu MHz\t\t: 2300.000\n"


def cpuinfo(sockets: int, cores: int, threads: int) -> str:
    places = [(socket, core) for _ in range(threads) for socket in range(sockets) for core in range(cores)]
    return "\n\n".join(f"{HEAD}physical id\t: {socket}\ncore id\t\t: {core}" for socket, core in places)


def test_sockets_cores_and_threads() -> None:
    facts = processor_facts(cpuinfo(2, 12, 2), 48)
    assert (facts["sockets"], facts["physical_cores"], facts["vcpus"]) == (2, 24, 48)
    assert (facts["vendor"], facts["clock_hz"]) == ("intel", 2.3e9)


def test_a_share_of_the_threads_is_a_share_of_the_cores() -> None:
    facts = processor_facts(cpuinfo(1, 12, 2), 6)
    assert (facts["physical_cores"], facts["vcpus"]) == (3, 6)


def test_a_machine_that_tells_nothing() -> None:
    facts = processor_facts("", 4)
    assert (facts["sockets"], facts["physical_cores"], facts["vcpus"], facts["clock_hz"]) == (1, 4, 4, None)


def test_names_are_neutral() -> None:
    facts = machine_facts("cpu", 2, "gloo")
    assert neutral_name(facts | {"cpu": "AMD EPYC 7R13 Processor", "vcpus": 8}) == "epyc-8-cores"
    assert neutral_name(facts | {"gpus": [{"name": "NVIDIA A100-SXM4-40GB"}] * 8}) == "8x-a100-sxm4-40gb"
