"""Where is a job placed? Its nodes and GPUs in a few words, as in ``nodes 0..1+4, GPUs 0..3; node 5, GPU 6``."""

from __future__ import annotations

from collections.abc import Sequence

from sim.cluster.build import Placement

_MOST = 6
"""Maximum number of ranges that are written out."""


def placement_text(placement: Sequence[Placement]) -> str:
    """Return *placement* as text: nodes grouped by the GPUs used on them, in order of each group's first node."""
    nodes_of: dict[tuple[int, ...], list[int]] = {}
    for part in placement:
        nodes_of.setdefault(tuple(sorted(part.gpus)), []).append(part.node)
    return "; ".join(f"{_numbers('node', nodes)}, {_numbers('GPU', gpus)}" for gpus, nodes in nodes_of.items())


def _numbers(what: str, numbers: Sequence[int]) -> str:
    """Return sorted *numbers* as text, with consecutive ones combined into ranges."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in spans]
    if len(texts) > _MOST:
        texts = [*texts[:2], f"... {texts[-1]} ({len(numbers)} in all)"]
    return f"{what}{'s' * (len(numbers) > 1)} {'+'.join(texts)}"
