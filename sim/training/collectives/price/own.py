"""What does a user-defined all-reduce cost? It consists of sequential steps, which are verified before they are priced.

The payload is cut into chunks. A step is a list of sends with equal numbers of chunks; they read what their senders held before the step.
Arriving data are added to the receiver's chunk, or replace it. `verified_steps` runs the steps on sets of contributions: every rank must
end with every rank's contribution to every chunk, none of them added twice. A step takes the time of one send's bytes at the pace of its
slowest edge, plus the largest latency of its edges (as in `in_turn`). Limits: every node must have the same number of ranks; the busiest
of equal nodes in a step represents all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, cast

from sim.cluster.fabric import ALL, INSIDE, RING, Pattern
from sim.spec.extensions import COLLECTIVES, call_extension, extension, is_place
from sim.spec.yaml import SpecError
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.spans import EdgeSpan, Priced, limited_by_switches, traffic_of
from sim.training.collectives.price.traffic import Edge, EdgePace, Traffic, latency_of

Given = tuple[int, int, Iterable[int], bool]
"""A send in the user's format: source rank, destination rank, chunks, and whether they are added to the receiver's."""


class CollectiveAlgorithm(Protocol):
    """An all-reduce algorithm; docs/develop/own-collective.md has an example."""

    @property
    def name(self) -> str:
        """The name that ``nccl_algo`` and ``--algo`` refer to."""

    def all_reduce(self, ranks: int, per_node: int) -> tuple[int, Iterable[Iterable[Given]]]:
        """Return the number of chunks of the payload, and the steps: each a list of (from, to, chunks, adds).

        Ranks are numbered from 0, node by node, with *per_node* on each. Raise ValueError with a one-sentence message if the algorithm does
        not support these numbers.
        """


class OwnSend(NamedTuple):
    """One send of a step."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    adds: bool


class Transfer(NamedTuple):
    """*src* sends *nbytes* (the *chunks*) to *dst*, once the transfers with the indices *after* have arrived.

    *dst* reduces *reduce_bytes* of them into its own data; 0 means that they replace it. Transfers between a pair of ranks on one *channel*
    leave and arrive in list order, one at a time.
    """

    src: int
    dst: int
    nbytes: float
    chunks: tuple[int, ...]
    after: tuple[int, ...] = ()
    reduce_bytes: float = 0.0
    channel: int = 0


class OwnSteps(NamedTuple):
    """A verified all-reduce: the number of *chunks*, and the sends of each step."""

    chunks: int
    steps: tuple[tuple[OwnSend, ...], ...]


def own_steps(name: str, ranks: int, per_node: int) -> OwnSteps:
    """Return the verified steps of the all-reduce *name*. Raise SpecError if they are not a correct all-reduce."""
    return _verified_steps(_ObjectKey(name), name, ranks, per_node)


class _ObjectKey:
    """A user's object as a cache key, compared by identity, whether or not the object is hashable."""

    def __init__(self, name: str) -> None:
        self.algorithm = cast(CollectiveAlgorithm, extension(COLLECTIVES, name))

    def __hash__(self) -> int:
        return id(self.algorithm)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ObjectKey) and other.algorithm is self.algorithm


@lru_cache(maxsize=32)
def _verified_steps(key: _ObjectKey, name: str, ranks: int, per_node: int) -> OwnSteps:
    def build_steps() -> OwnSteps:
        chunks, steps = key.algorithm.all_reduce(ranks, per_node)
        return OwnSteps(chunks, tuple(tuple(OwnSend(src, dst, tuple(of), bool(adds)) for src, dst, of, adds in step) for step in steps))

    result = cast(OwnSteps, call_extension(COLLECTIVES, name, build_steps))
    verified_steps(name, result, ranks)
    return result


def verified_steps(name: str, steps: OwnSteps, ranks: int) -> None:
    """Raise SpecError, naming the step and the rank, unless *steps* leaves every sum on every rank."""
    if isinstance(steps.chunks, bool) or not isinstance(steps.chunks, int) or steps.chunks < 1:
        raise SpecError(f"collective {name}: cuts the payload into {steps.chunks!r} chunks; write 1 or more")
    held = [[1 << rank] * steps.chunks for rank in range(ranks)]
    for number, step in enumerate(steps.steps):
        where = f"collective {name}: step {number}"
        _check_step(where, step, ranks, steps.chunks)
        arriving = [(send, chunk, held[send.src][chunk]) for send in step for chunk in send.chunks]
        written = Counter((send.dst, chunk) for send in step if not send.adds for chunk in send.chunks)
        for send, chunk, sent in arriving:
            if written[send.dst, chunk] > 1 or (send.adds and written[send.dst, chunk]):
                raise SpecError(
                    f"{where} has two sends to chunk {chunk} of rank {send.dst}, at least one of which replaces it; write two steps"
                )
            if send.adds and held[send.dst][chunk] & sent:
                twice = (held[send.dst][chunk] & sent).bit_length() - 1
                raise SpecError(
                    f"{where} adds the contribution of rank {twice} to chunk {chunk} of rank {send.dst} twice; send each sum once"
                )
            held[send.dst][chunk] = held[send.dst][chunk] | sent if send.adds else sent
    total = (1 << ranks) - 1
    for rank, chunks in enumerate(held):
        for chunk, sums in enumerate(chunks):
            if sums != total:
                lacking = (~sums & total).bit_length() - 1
                raise SpecError(f"collective {name}: rank {rank} ends without the contribution of rank {lacking} to chunk {chunk}; send it")


def _check_step(where: str, step: Sequence[OwnSend], ranks: int, chunks: int) -> None:
    """Raise SpecError for a step without sends, with unequal sends, or with nonexistent ranks or chunks."""
    if not step:
        raise SpecError(f"{where} sends nothing; leave it out")
    for send in step:
        if not (is_place(send.src, ranks) and is_place(send.dst, ranks)) or send.src == send.dst:
            raise SpecError(f"{where} sends from rank {send.src!r} to rank {send.dst!r}; write two different ranks below {ranks}")
        if not send.chunks or not all(is_place(chunk, chunks) for chunk in send.chunks) or len(set(send.chunks)) < len(send.chunks):
            raise SpecError(f"{where} sends the chunks {list(send.chunks)!r}; write different ones below {chunks}")
    sizes = sorted({len(send.chunks) for send in step})
    if len(sizes) > 1:
        raise SpecError(f"{where} has sends of {' and '.join(map(str, sizes))} chunks; write two steps")


def transfers(steps: OwnSteps, nbytes: float) -> list[Transfer]:
    """Return *steps* on *nbytes* as transfers. Each waits for all transfers of its two ranks in their latest earlier steps."""
    each = nbytes / steps.chunks
    result: list[Transfer] = []
    before: dict[int, list[int]] = {}
    for step in steps.steps:
        now: dict[int, list[int]] = {}
        for send in step:
            after = tuple(sorted({*before.get(send.src, ()), *before.get(send.dst, ())}))
            size = each * len(send.chunks)
            for end in (send.src, send.dst):
                now.setdefault(end, []).append(len(result))
            result.append(Transfer(send.src, send.dst, size, send.chunks, after, size if send.adds else 0.0))
        before |= now
    return result


# --- cost ------------------------------------------------------------------------------------------------------------


class _EqualSteps(NamedTuple):
    """Equal steps, with sends of the same size between the same ranks: their edges, their traffic, and their number."""

    edges: tuple[Edge, ...]
    traffic: Traffic
    spans: tuple[EdgeSpan, ...]
    between: float
    share: float
    """Share of the payload in one send."""
    times: int


def price_own(layout: JobLayout, algorithm: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of the user's all-reduce *algorithm*: its sequential steps as one fluid."""
    steps = _steps(layout, algorithm, _ObjectKey(algorithm))
    time, volume, weighed = 0.0, 0.0, list[tuple[float, EdgePace]]()
    for step in steps:
        size = step.share * nbytes
        pace = limited_by_switches(step.traffic.edge_rates(step.edges, size, protocol).slowest, step.traffic, size, protocol)
        time += step.times * (size / pace.rate + max(edge.latency(protocol) for edge in step.edges))
        volume += step.times * size
        weighed.append((step.times * size / pace.rate, pace))
    spans = [EdgeSpan(span.edges, step.times * step.share * nbytes / volume, 1, span.pattern) for step in steps for span in step.spans]
    between = sum(step.between * step.times * step.share * nbytes / volume for step in steps)
    slowest = max(weighed)[1]._replace(rate=volume / sum(seconds for seconds, _ in weighed))
    edges = [edge for step in steps for edge in step.edges[:1] * step.times]
    return Priced(volume, time, max(step.share for step in steps) * nbytes, slowest, traffic_of(layout, spans, between), latency_of(edges))


@lru_cache(maxsize=64)
def _steps(layout: JobLayout, name: str, algorithm: _ObjectKey) -> tuple[_EqualSteps, ...]:
    counts = sorted({len(part.gpus) for part in layout.parts})
    if len(counts) > 1:
        raise SpecError(f"{name} needs the same number of ranks on every node, not {' and '.join(map(str, counts))}; use Ring or Tree")
    verified = own_steps(name, layout.ranks, layout.most_local)
    repeats = Counter((frozenset((send.src, send.dst) for send in step), len(step[0].chunks) / verified.chunks) for step in verified.steps)
    return tuple(_step(layout, sorted(pairs), share, times) for (pairs, share), times in repeats.items())


def _step(layout: JobLayout, pairs: Sequence[tuple[int, int]], share: float, times: int) -> _EqualSteps:
    local, nodes = layout.most_local, layout.every_node
    across = [(src, dst) for src, dst in pairs if src // local != dst // local]
    inside: list[Edge] = []
    outside: list[Edge] = []
    for part in layout.parts:
        numbers = [number for number, other in enumerate(nodes) if other is part]
        sends = {number: [pair for pair in pairs if number in (pair[0] // local, pair[1] // local)] for number in numbers}
        busiest = max(numbers, key=lambda number: (_busier_direction(sends[number], number, local), len(sends[number]), -number))
        leaving = _mostly_leaving(sends[busiest], busiest, local)
        for src, dst in sends[busiest]:
            ends = nodes[src // local].gpus[src % local], nodes[dst // local].gpus[dst % local]
            if src // local == dst // local:
                inside.append(layout.local_edge(part, *ends))
            elif (src // local == busiest) == leaving:
                outside.append(layout.nic_edge(nodes[src // local], nodes[dst // local], *ends))
    spans = [
        span for span in (EdgeSpan(inside, 1.0, 1, INSIDE), EdgeSpan(outside, 1.0, 1, _pattern(across, local, layout.nodes))) if span.edges
    ]
    traffic = traffic_of(layout, spans, float(len(across)))
    return _EqualSteps((*inside, *outside), traffic, tuple(spans), float(len(across)), share, times)


def _busier_direction(sends: Sequence[tuple[int, int]], node: int, local: int) -> int:
    """Return the number of sends that leave *node* or the number that enter it, whichever is larger."""
    out = sum(src // local == node != dst // local for src, dst in sends)
    into = sum(dst // local == node != src // local for src, dst in sends)
    return max(out, into)


def _mostly_leaving(sends: Sequence[tuple[int, int]], node: int, local: int) -> bool:
    """Return whether the sends that leave *node* represent both directions; otherwise, those that enter it do."""
    return sum(src // local == node != dst // local for src, dst in sends) == _busier_direction(sends, node, local)


def _pattern(across: Sequence[tuple[int, int]], local: int, nodes: int) -> Pattern:
    """Return the pattern of the node pairs in *across*, for links between switches: pairs at one distance, a ring, or any pairs."""
    ends = {(src // local, dst // local) for src, dst in across}
    apart = {src ^ dst for src, dst in ends}
    if len(apart) == 1:
        return Pattern("pairs", apart.pop())
    return RING if all((dst - src) % nodes == 1 for src, dst in ends) else ALL
