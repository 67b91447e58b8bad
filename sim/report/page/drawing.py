"""How is a machine wired, and what in it bounds the job? A drawing of its devices and links, with the bottleneck and the use of links.

One node represents all that are used identically. A line is both directions of a link; its tooltip gives the use of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.causes import Resource
from sim.cluster.build import Slot
from sim.cluster.node_links import fabric_link
from sim.report.page.drawing_plan import Box, DrawingPlan, drawing_plan
from sim.report.page.markup import Child, Figures, Html, join, table, tag
from sim.report.page.use import Use
from sim.report.page.words import as_percent, as_precise_percent
from sim.report.whatif import NAMES
from sim.simulate import Run
from sim.training.collectives.price.collective_plan import CORES_COPY
from sim.units import show

_NVLINK_DEPTH = 15.0
"""Additional depth of an arc for each GPU that it spans."""
_HELD: Mapping[Resource, tuple[str, ...]] = {"cpu": ("socket",), "disk": ("disk",), "gpu": ("gpu",), "decode": ("gpu",), "spread": ("gpu",)}
"""Devices, by prefix of their names, that represent a resource that is not a link."""


@dataclass(frozen=True)
class JobBound:
    """What bounds the job: a *resource* of the what-if, and the description of the *link* that bounds the exchange of gradients."""

    resource: Resource
    link: str = ""


def drawings(run: Run, number: int, uses: Mapping[str, Use], bound: JobBound) -> Html:
    """Return a drawing of each kind of node that job *number* of *run* uses."""
    slots = [
        slot
        for slot in run.cluster
        if any(job == number for job, _ in slot.lent_gpus) or any(job == number for job, _ in slot.server_numbers)
    ]
    return join(*(_Drawing(run, slot, number, uses, bound).figure() for slot in slots))


def use_table(uses: Sequence[Use], figures: Figures) -> Html:
    """Return a table of the use of every resource; *figures* have the values under ``links``."""
    rows: list[list[Child]] = [
        [
            use.description, str(use.count), use.capacity_in_words, figures.format(f"links/{place}/mean", as_precise_percent),
            figures.format(f"links/{place}/peak", as_precise_percent),
        ]
        for place, use in enumerate(uses)
    ]  # fmt: skip
    head = [("resource", False), ("number per node", True), ("capacity", True), ("mean use", True), ("peak", True)]
    return table(head, rows, "Use of links, disk and processors during the steps shown", "sortable")


@dataclass(frozen=True)
class _Drawing:
    run: Run
    slot: Slot
    number: int
    uses: Mapping[str, Use]
    bound: JobBound

    @property
    def _mine(self) -> set[int]:
        return {gpu for job, gpus in self.slot.lent_gpus if job == self.number for gpu in gpus}

    def figure(self) -> Html:
        """Return the drawing with its caption."""
        layout = drawing_plan(self.slot.graph)
        deepest = self._nvlink_depth(layout)
        height = layout.bottom + max(deepest, 46.0) + 16
        parts = [*self._wires(layout), *self._nvlinks(layout), *self._network(layout), *self._boxes(layout), *self._disk(layout)]
        if self.slot.count > 1:
            parts.append(_text(layout.boxes["socket0"].x, 12, f"one of {self.slot.count} identical nodes", "small"))
        elif not self.slot.lent_gpus:
            parts.append(_text(layout.boxes["socket0"].x, 56, "parameter server", "small"))
        words = self._in_words()
        picture = tag(
            "svg", *parts, viewBox=f"0 0 {layout.width:g} {height:g}", role="group", aria_label=words,
            style=f"--least:{layout.width:.0f}px;--most:{1.25 * layout.width:.0f}px",
        )  # fmt: skip
        return tag("figure", tag("div", picture, class_="drawing marks", tabindex="0", role="group", aria_label=words), self._caption())

    def _in_words(self) -> str:
        node = self.slot.node
        links = node.topology.nvlink
        fabric = " with NVSwitch" if self.slot.graph.switch_links else f" with {fabric_link(links.link)}s" if links else ""
        bound_text = f"; gradients wait on {self.bound.link}" if self.bound.link else ""
        host = f"{len(node.topology.sockets)} sockets, {node.nic.count} NICs"
        return f"{self.run.hardware.name}: {node.gpu_count} x {node.gpu.name}{fabric}, {host}{bound_text}"

    def _caption(self) -> Html:
        named: list[Child] = [f"{self.bound.link}, the slowest link on the path of gradients"] if self.bound.link else []
        if self.bound.resource in _HELD:
            named.append(f"the bottleneck of the job: {NAMES[self.bound.resource]}")
        marked = join(tag("span", "Orange", class_="flag"), ": ", "; ".join(map(str, named)), ". ") if named else None
        return tag("figcaption", marked, "Strong lines carried data during the steps shown; wider lines used more of their capacity.")

    # --- boxes ---------------------------------------------------------------------------------------------------

    def _boxes(self, layout: DrawingPlan) -> list[Html]:
        return [self._box(device, box) for device, box in layout.boxes.items()]

    def _box(self, device: str, box: Box) -> Html:
        name, below, says = self._labels(device)
        is_bound = any(device.startswith(start) for start in _HELD.get(self.bound.resource, ())) or self._slow(device)
        idle = device.startswith("gpu") and int(device[3:]) not in self._mine
        return _device(box, name, below, says, bound=is_bound, off=idle)

    def _slow(self, device: str) -> bool:
        """Return whether *device* itself bounds the exchange of gradients: a socket whose memory or cores the exchange waits for."""
        if not device.startswith("socket"):
            return False
        memory = self.slot.graph.links[device.replace("socket", "dram")].description
        served = self.bound.link in {f"CPU of {server}" for server in self._servers}
        return served or self.bound.link == CORES_COPY or f"({memory})" in self.bound.link

    @property
    def _servers(self) -> set[str]:
        """Return the parameter servers of the job on this node, by their names in the exchange."""
        numbers = {number for job, number in self.slot.server_numbers if job == self.number}
        return {"parameter server" if number < 0 else f"parameter server {number}" for number in numbers}

    def _labels(self, device: str) -> tuple[str, str, str]:
        node, index = self.slot.node, device.lstrip("abcdefghijklmnopqrstuvwxyz")
        if device.startswith("gpu"):
            return f"GPU {index}", "", f"GPU {index}\n{node.gpu.name}, {show(node.gpu.memory, 'binary size')}"
        if device.startswith("nic"):
            return (
                f"NIC {index}",
                show(node.nic.bandwidth, "bit rate"),
                f"NIC {index}\n{show(node.nic.bandwidth, 'bit rate')}, {node.nic.transport.name}",
            )
        if device.startswith("socket"):
            cores = node.host.physical_cores / len(node.topology.sockets)
            used = [self._used(f"{self.slot.name}.cores", "cores of the node"), self._used(self._live(f"dram{index}"), "memory")]
            return f"socket {index}", f"{cores:g} cores", "\n".join([f"socket {index}", node.host.cpu.name, *used])
        return device, "PCIe switch", f"{device}\nPCIe switch"

    def _used(self, name: str, what: str) -> str:
        use = self.uses.get(name)
        return f"{what}: {as_percent(use.mean)} used" if use else f"{what}: idle"

    def _disk(self, layout: DrawingPlan) -> list[Html]:
        storage = self.slot.node.storage
        if storage is None:
            return []
        name = f"disk {storage.volume.name}"
        box = Box(layout.boxes["socket0"].x, 34.0, 24.0 + 7.2 * len(name), 30.0)
        use = self.uses.get(f"{self.slot.name}.disk")
        says = (
            f"disk {storage.volume.name}\n{self._used(f'{self.slot.name}.disk', show(use.capacity, 'bandwidth') if use else 'bandwidth')}"
        )
        path = f"M{box.x:g},{box.y + box.height / 2:g} V{layout.boxes['socket0'].y - layout.boxes['socket0'].height / 2:g}"
        line = tag("path", d=path, class_="wire used" if use else "wire", stroke_width="1.5")
        return [line, _device(box, name, "", says, bound=self.bound.resource == "disk")]

    # --- wires ---------------------------------------------------------------------------------------------------

    def _wires(self, layout: DrawingPlan) -> list[Html]:
        wires = []
        for device, holder in self.slot.graph.parents.items():
            one, other = layout.boxes[device], layout.boxes[holder]
            x = one.x if abs(one.x - other.x) < other.width / 2 else other.x
            path = f"M{one.x:g},{one.y:g} L{one.x:g},{one.y - LEVEL_MIDDLE:g} L{x:g},{other.y:g}"
            wires.append(self._wire(device, holder, path))
        sockets = [name for name in layout.boxes if name.startswith("socket")]
        for place, device in enumerate(sockets):
            for holder in sockets[:place]:
                one, other = layout.boxes[holder], layout.boxes[device]
                lift = 34.0 * (abs(sockets.index(holder) - place) > 1)
                middle = (one.x + other.x) / 2
                wires.append(self._wire(holder, device, f"M{one.x:g},{one.y:g} Q{middle:g},{one.y - 2 * lift:g} {other.x:g},{other.y:g}"))
        return wires

    def _nvlinks(self, layout: DrawingPlan) -> list[Html]:
        graph = self.slot.graph
        if graph.switch_links:
            return self._nvswitch(layout)
        pairs = graph.node.topology.nvlink.pairs if graph.node.topology.nvlink and not graph.isolated else {}
        wires = []
        for pair, count in pairs.items():
            one, other = (f"gpu{end}" for end in pair.split("-"))
            left, right = sorted((layout.boxes[one].x, layout.boxes[other].x))
            depth = 2 * _depth(left, right, layout)
            top, low = f"{layout.bottom:g}", f"{layout.bottom + depth * 0.72:g}"
            path = f"M{left:g},{top} C{left:g},{low} {right:g},{low} {right:g},{top}"
            wires.append(self._wire(one, other, path, 0.6 + 0.9 * count))
        return wires

    def _nvlink_depth(self, layout: DrawingPlan) -> float:
        graph = self.slot.graph
        if graph.switch_links:
            return 84.0
        pairs = graph.node.topology.nvlink.pairs if graph.node.topology.nvlink and not graph.isolated else {}
        ends = [sorted(layout.boxes[f"gpu{end}"].x for end in pair.split("-")) for pair in pairs]
        return max((_depth(left, right, layout) for left, right in ends), default=0.0) * 1.1

    def _nvswitch(self, layout: DrawingPlan) -> list[Html]:
        gpus = [name for name in layout.boxes if name.startswith("gpu")]
        left, right = (pick(layout.boxes[name].x for name in gpus) for pick in (min, max))
        box = Box((left + right) / 2, layout.bottom + 62, right - left + 62, 26)
        wires = [self._wire(name, "nvswitch", f"M{layout.boxes[name].x:g},{layout.bottom:g} V{box.y:g}") for name in gpus]
        return [*wires, _device(box, "NVSwitch", "", "NVSwitch\njoins all GPUs of the node")]

    def _network(self, layout: DrawingPlan) -> list[Html]:
        wires = []
        for device, box in layout.boxes.items():
            if device.startswith("nic"):
                end = layout.bottom + 22
                wires += [self._wire(device, "net", f"M{box.x:g},{layout.bottom:g} V{end:g}"), _text(box.x, end + 12, "network", "small")]
        return wires

    def _live(self, link: str) -> str:
        return self.run.log.links.get(self.slot.name, {}).get(link, "")

    def _wire(self, one: str, other: str, path: str, width: float = 1.5) -> Html:
        """Return the line for both directions between two devices; the more it is used, the wider it is."""
        links = self.slot.graph.links
        both = [name for name in (f"{one}>{other}", f"{other}>{one}") if name in links]
        if not both:
            return Html("")
        words = links[both[0]].description
        used = [(name, self.uses.get(self._live(name))) for name in both]
        most = max((use.mean for _, use in used if use), default=0.0)
        bound = self.bound.link in {words, *(f"{server}: {words}" for server in self._servers)}
        lines = [f"{name.replace('>', ' to ')}: {as_percent(use.mean)} used, at most {as_percent(use.peak)}" for name, use in used if use]
        says = "\n".join([words, show(links[both[0]].capacity, "bandwidth"), *(lines or ["idle"])])
        look = "wire bound" if bound else "wire used" if most > 0 else "wire"
        line = tag("path", d=path, class_=look, stroke_width=f"{max(width, 3.0) if bound else width + 3 * most:.2f}")
        return join(line, tag("path", d=path, class_="hit mark", data_tip=says))


LEVEL_MIDDLE = 42.0
"""How far above a device its line turns toward the device it is attached to."""


def _depth(left: float, right: float, layout: DrawingPlan) -> float:
    spanned = sum(left < box.x < right for name, box in layout.boxes.items() if name.startswith("gpu"))
    return 22.0 + _NVLINK_DEPTH * spanned


def _device(box: Box, name: str, below: str, says: str, bound: bool = False, off: bool = False) -> Html:
    rect = tag("rect", x=box.x - box.width / 2, y=box.y - box.height / 2, width=box.width, height=box.height, rx="5")
    lines = [_text(box.x, box.y + (4 if not below else -2), name), *([_text(box.x, box.y + 11, below, "small")] if below else [])]
    return tag("g", rect, *lines, class_=f"device mark{' bound' * bound}{' off' * off}", data_tip=says)


def _text(x: float, y: float, text: str, class_: str = "") -> Html:
    return tag("text", text, x=x, y=y, class_=class_ or None, text_anchor="middle")
