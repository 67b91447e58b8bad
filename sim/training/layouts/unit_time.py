"""What does one pass over a unit of the model cost a rank? Bursts of kernels and exposed messages, how they add up, and shares of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sim.events import Cause
from sim.parallel.layer_messages import GroupName
from sim.parallel.program import Op
from sim.training.layouts.group_price import LinkShare, MessageLoad
from sim.training.layouts.pairs import PassSegment

_NO_LOAD: Final = MessageLoad()


class ExposedWait(NamedTuple):
    """The time (s) that a unit waits for messages of one group axis."""

    axis: GroupName
    seconds: float
    cause: Cause
    limit: str
    op: Op | None = None
    """The operation, if this is a single message; *nbytes* and *uncontended_time* (s) are those of the whole message, overlap included."""
    nbytes: float = 0.0
    uncontended_time: float = 0.0
    volume: float = 0.0
    """Volume moved during the exposed time, in the units of the price."""
    message_load: MessageLoad = _NO_LOAD

    @property
    def load(self) -> tuple[LinkShare, ...]:
        """Return the total load on links of the stage's nodes and of the machine, not per unit of volume."""
        return self.message_load.links


class Burst(NamedTuple):
    """Sequential kernels, which the host launches ahead."""

    compute: float
    launches: float
    waits_for_gpu: bool = False
    """Whether the host waits for the GPU before it launches them."""
    host: float = 0.0
    """Host time (s) in addition to the launches."""

    def launch_time(self, launch_cpu: float) -> float:
        """Return the host time (s) if one launch takes *launch_cpu* seconds."""
        return self.launches * launch_cpu + self.host


class UnitTime(NamedTuple):
    """One pass over a unit: bursts of kernels, and exposed messages."""

    bursts: tuple[Burst, ...]
    exposed_waits: tuple[ExposedWait, ...] = ()

    @property
    def compute(self) -> float:
        """Return the GPU time (s) of all bursts."""
        return sum(burst.compute for burst in self.bursts)

    def launch_time(self, launch_cpu: float) -> float:
        """Return the host time (s) of all bursts if one launch takes *launch_cpu* seconds."""
        return sum(burst.launch_time(launch_cpu) for burst in self.bursts)

    @property
    def waits(self) -> float:
        """Return the time (s) of all exposed messages."""
        return sum(each.seconds for each in self.exposed_waits)

    def waits_beside(self, paired: bool) -> float:
        """Return the time (s) of exposed messages, at least: if the pass may be *paired*, those of experts may all be hidden."""
        return sum(each.seconds for each in self.exposed_waits if each.axis != "expert" or not paired)


def part_of(time: UnitTime, share: float) -> UnitTime:
    """Return *share* of *time*: the mean cost per block if only some blocks have the pass."""
    if share == 1.0:
        return time
    bursts = (Burst(each.compute * share, each.launches * share, each.waits_for_gpu, each.host * share) for each in time.bursts)
    return UnitTime(tuple(bursts), tuple(exposed_part(each, share) for each in time.exposed_waits))


def exposed_part(message: ExposedWait, share: float) -> ExposedWait:
    """Return *share* of *message*."""
    return message._replace(
        seconds=message.seconds * share,
        uncontended_time=message.uncontended_time * share,
        volume=message.volume * share,
        message_load=MessageLoad(((message.message_load, share),)),
    )


def joined(times: Iterable[UnitTime]) -> UnitTime:
    """Return *times* one after the other, as one; messages of one axis with the same cause and limit are merged."""
    bursts: list[Burst] = []
    exposed: dict[tuple[GroupName, Cause, str], list[ExposedWait]] = defaultdict(list)
    for time in times:
        for burst in time.bursts:  # bursts before which the host waits for the GPU stay separate, because it has lost its lead
            if bursts and not burst.waits_for_gpu and not bursts[-1].waits_for_gpu:
                last = bursts[-1]
                bursts[-1] = Burst(last.compute + burst.compute, last.launches + burst.launches, host=last.host + burst.host)
            else:
                bursts.append(burst)
        for each in time.exposed_waits:
            exposed[each.axis, each.cause, each.limit].append(each)
    return UnitTime(tuple(bursts), tuple(map(merged_messages, exposed.values())))


def segments_of(layers: Iterable[UnitTime]) -> list[PassSegment]:
    """Return *layers* as segments between messages of experts; other messages count as compute."""
    segments, compute = [], 0.0
    for layer in layers:
        compute += layer.compute + sum(each.seconds for each in layer.exposed_waits if each.axis != "expert")
        for each in layer.exposed_waits:
            if each.axis == "expert" and each.seconds > 0.0:
                segments.append(PassSegment(compute, each.seconds))
                compute = 0.0
    return [*segments, PassSegment(compute, 0.0)]


def merged_messages(messages: Sequence[ExposedWait]) -> ExposedWait:
    """Return *messages* of one axis with the same limit, merged into one."""
    first = messages[0]
    seconds, volume = sum(each.seconds for each in messages), sum(each.volume for each in messages)
    load = MessageLoad([(each.message_load, 1.0) for each in messages])
    return ExposedWait(first.axis, seconds, first.cause, first.limit, volume=volume, message_load=load)
