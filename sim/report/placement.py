"""Where does a job lie? Its nodes and GPUs in a few words, as in ``nodes 0..1, GPUs 0..3; node 4, GPU 6``."""

from __future__ import annotations

from collections.abc import Sequence

from sim.cluster.build import Placement


def placement_text(placement: Sequence[Placement]) -> str:
    """Return the nodes of *placement* by the GPUs it has there, in order of the first of them."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for part in placement:
        alike.setdefault(tuple(sorted(part.gpus)), []).append(part.node)
    return "; ".join(f"{_numbers('node', nodes)}, {_numbers('GPU', gpus)}" for gpus, nodes in alike.items())


def _numbers(what: str, numbers: Sequence[int]) -> str:
    """Return sorted *numbers* with ranges drawn together."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in spans]
    return f"{what}{'s' * (len(numbers) > 1)} {' '.join(texts)}"
