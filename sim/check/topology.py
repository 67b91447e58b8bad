"""Is the link graph of a node complete? Every GPU and NIC is attached once, switches form a tree, NVLinks connect existing GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sim.spec.catalog import suggestions
from sim.spec.fields import Key
from sim.spec.hardware import Node, NvLink

Problem = tuple[Key, str]
"""The key of a problem, and a sentence with what is wrong and what is accepted."""

_PAIR: Final = re.compile(r"(0|[1-9]\d{0,3})-(0|[1-9]\d{0,3})")
_TAKEN: Final = re.compile(r"(gpu|nic|socket|dram|bridge)\d+|nvswitch|net")
"""Names that the link graph itself uses."""

_FEWER: Final = {
    "gpus": "to use fewer GPUs of a node keep gpu_count and run with --gpus N",
    "nics": "for a slower network keep the NICs and lower nic.bandwidth",
}
"""What to do instead of a lower count of devices in a node whose topology holds more."""


def check_topology(node: Node) -> Iterator[Problem]:
    """Yield what is wrong with the link graph of *node*, by keys below ``topology``."""
    yield from _sockets(node)
    yield from _names(node)
    yield from _parents(node)
    yield from _places(node, "gpus", node.gpu_count, "gpu_count")
    yield from _places(node, "nics", node.nic.count, "nic.count")
    if node.topology.nvlink is not None:
        yield from _nvlink(node, node.topology.nvlink)
    if node.topology.bridged:
        yield from _bridged(node)


def _bridged(node: Node) -> Iterator[Problem]:
    if node.gpu.bridge is None:
        yield ("bridged",), f"{node.gpu.name} takes no NVLink bridge; leave it out, or describe gpu.bridge"
    if node.topology.nvlink is not None:
        yield ("bridged",), "topology.nvlink already describes the NVLinks; write one of the two"


def _sockets(node: Node) -> Iterator[Problem]:
    listed, expected = len(node.topology.sockets), node.host.sockets
    if listed != expected:
        yield ("sockets",), f"lists {listed} sockets, but host.sockets is {expected}; write one item per socket, {{}} for an empty one"


def _names(node: Node) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, switch in enumerate(node.topology.switches):
        key: Key = ("switches", index, "name")
        if switch.name in seen:
            yield key, f"'{switch.name}' is the name of two switches; give each switch its own name"
        if _TAKEN.fullmatch(switch.name) or ">" in switch.name:
            yield key, f"'{switch.name}' is already used in the link graph; write a name such as plx0"
        seen.add(switch.name)


def _parents(node: Node) -> Iterator[Problem]:
    topology = node.topology
    sockets = [f"socket{index}" for index in range(len(topology.sockets))]
    above = {switch.name: switch.parent for switch in topology.switches}
    for index, switch in enumerate(topology.switches):
        key: Key = ("switches", index, "parent")
        if switch.parent not in above and switch.parent not in sockets:
            similar = suggestions(switch.parent, [*sockets, *above], most=1)
            hint = f"did you mean {similar[0]}?" if similar else f"write one of {', '.join([*sockets, *above])}"
            yield key, f"there is no {switch.parent}; {hint}"
        elif _in_circle(switch.name, above):
            yield key, f"{switch.name} and the switches above it form a cycle that reaches no socket; put the topmost one below a socket"


def _in_circle(name: str, above: dict[str, str]) -> bool:
    place = above[name]
    for _ in above:
        if place == name:
            return True
        place = above.get(place, "")
    return False


def _places(node: Node, devices: str, count: int, counted: str) -> Iterator[Problem]:
    """Check that each of *count* devices (``gpus`` or ``nics``) is attached in exactly one place."""
    word = devices[:-1].upper() if devices == "gpus" else "NIC"
    seen: dict[int, str] = {}
    beyond = sorted({number for _, _, numbers in _holders(node, devices) for number in numbers if number >= count})
    if len(beyond) > 1:
        first = next(key for key, _, numbers in _holders(node, devices) if beyond[0] in numbers)
        yield (
            first,
            f"places {word}s up to {beyond[-1]}, but {counted} is {count}; {_FEWER[devices]}, or write a topology with fewer {word}s",
        )
        return
    for key, place, numbers in _holders(node, devices):
        for number in numbers:
            if number >= count:
                yield key, f"there is no {word} {number}; {counted} is {count}, so write {_numbers(count)}"
            elif number in seen:
                yield key, f"{word} {number} is already attached to {seen[number]}; list it in one place"
            seen.setdefault(number, place)
    missing = [str(number) for number in range(count) if number not in seen]
    if missing:
        one = len(missing) == 1
        yield (
            (),
            f"disconnected: {counted} is {count}, but {word}{'' if one else 's'} {', '.join(missing)} {'is' if one else 'are'} not "
            f"attached to any socket or switch; list {'it' if one else 'them'} under '{devices}' of one",
        )


def _numbers(count: int) -> str:
    return "none" if count == 0 else "0" if count == 1 else f"0 to {count - 1}"


def _holders(node: Node, devices: str) -> Iterator[tuple[Key, str, tuple[int, ...]]]:
    for index, socket in enumerate(node.topology.sockets):
        yield ("sockets", index, devices), f"socket{index}", getattr(socket, devices)
    for index, switch in enumerate(node.topology.switches):
        yield ("switches", index, devices), switch.name, getattr(switch, devices)


def _nvlink(node: Node, nvlink: NvLink) -> Iterator[Problem]:
    if not nvlink.pairs and not nvlink.switch_links:
        yield ("nvlink",), "connects nothing; write 'pairs' such as {0-1: 2}, or 'switch_links' to an NVSwitch"
    for pair in nvlink.pairs:
        key: Key = ("nvlink", "pairs", pair)
        match = _PAIR.fullmatch(pair)
        if match is None or int(match[1]) == int(match[2]):
            yield key, f"'{pair}' is not a pair; write two GPU numbers, the smaller first, such as 0-1"
        elif int(match[1]) > int(match[2]):
            yield key, f"write the smaller GPU number first: {match[2]}-{match[1]}"
        elif int(match[2]) >= node.gpu_count:
            yield key, f"there is no GPU {match[2]}; gpu_count is {node.gpu_count}, so write {_numbers(node.gpu_count)}"
