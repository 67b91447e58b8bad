"""Is every device and link of a machine drawn, and what bounds the job marked? Oracle: the link graph itself."""

from __future__ import annotations

import pytest

from sim.report.page.drawing import JobBound, drawings
from sim.study.scenario import Scenario, answer
from tests.report.page.cases import case_answer, document
from tests.report.page.reading import Element, Page


def marks(html: str, look: str) -> list[Element]:
    return [element for element in Page(html).elements if look in element.attributes.get("class", "").split()]


@pytest.mark.parametrize("case", ["exchange", "NVSwitch", "servers", "several jobs"])
def test_every_device_and_link_is_there(case: str) -> None:
    run = case_answer(case).run
    slots = [slot for slot in run.cluster if any(job == 0 for job, _ in (*slot.lent_gpus, *slot.server_numbers))]
    html = drawings(run, 0, {}, JobBound("gpu"))
    lines = [line.attributes["data-tip"].split("\n")[0] for line in marks(html, "hit")]
    wanted = [link.description for slot in slots for link in slot.graph.links.values() if ">" in link.name]
    assert sorted(lines) == sorted(wanted[::1])[::2]  # both directions of a link are one line
    switches = sum(bool(slot.graph.switch_links) for slot in slots)
    disks = sum(slot.node.storage is not None for slot in slots)
    assert len(marks(html, "device")) == sum(len(slot.graph.parents) + len(slot.node.topology.sockets) for slot in slots) + switches + disks


def test_the_bottleneck_link_is_marked() -> None:
    """Oracle: what the document says the exchange is bound by."""
    run, slowest = case_answer("exchange").run, document("exchange")["collective"]["bottleneck"]
    html = drawings(run, 0, {}, JobBound("network", slowest))
    assert len(marks(html, "wire")) > 10 and len([line for line in marks(html, "wire") if "bound" in line.attributes["class"]]) == 1
    assert slowest in Page(html).all("figcaption")[0].text
    held = [wire for wire in Page(html).elements if wire.name == "path"]
    place = next(place for place, line in enumerate(held) if "bound" in line.attributes["class"].split())
    assert held[place + 1].attributes["data-tip"].startswith(slowest)


@pytest.mark.parametrize(
    ("resource", "device"), [("cpu", "socket 0"), ("disk", "disk gp2"), ("gpu", "GPU 0"), ("decode", "GPU 0"), ("spread", "GPU 0")]
)
def test_what_bounds_the_job_is_marked(resource: str, device: str) -> None:
    html = drawings(case_answer("exchange").run, 0, {}, JobBound(resource))  # type: ignore[arg-type]
    bound = [mark.attributes["data-tip"].split("\n")[0] for mark in marks(html, "device") if "bound" in mark.attributes["class"].split()]
    assert device in bound and all(name.split()[0] == device.split()[0] for name in bound)


def test_a_server_that_holds_the_job_is_marked() -> None:
    assert document("servers")["collective"]["bottleneck"] == "CPU of parameter server 0"
    html = drawings(case_answer("servers").run, 0, {}, JobBound("cpu", "CPU of parameter server 0"))
    assert "parameter server" in html
    last = [mark for mark in marks(html, "device") if mark.attributes["data-tip"].startswith("socket")][-1]
    assert "bound" in last.attributes["class"].split()


def test_gpus_of_nobody_are_pale() -> None:
    run = answer(Scenario("p3.16xlarge", "resnet50", gpus=2)).run
    assert [mark.attributes["data-tip"].split("\n")[0] for mark in marks(drawings(run, 0, {}, JobBound("gpu")), "off")] == [
        f"GPU {gpu}" for gpu in range(2, 8)
    ]


def test_memory_that_copies_wait_for_is_marked() -> None:
    """Oracle: gradients staged through host memory are bound by a link that no line shows, the DRAM of a socket."""
    run = answer(Scenario("p2.16xlarge", "resnet18")).run
    html = drawings(run, 0, {}, JobBound("network", "copies through host memory GPU0-GPU1 (host memory of socket 0)"))
    bound = [mark.attributes["data-tip"].split("\n")[0] for mark in marks(html, "device") if "bound" in mark.attributes["class"].split()]
    assert bound == ["socket 0"]
