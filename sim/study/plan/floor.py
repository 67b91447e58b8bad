"""What are the lower bounds of memory and time of thousands of layouts? Computed for many layouts at once with numpy.

Memory: `sim.study.plan.least_memory`.
Time: a stage cannot start before the first micro-batch has passed the stages before it, it works on every micro-batch, and its last
gradient goes back through them. A share of the model is laid out once for all micro-batches. Times of units are computed once for each
share and micro-batch: without messages for all layouts that fit, once for all machines with the same GPU, and with messages, whose prices
take much longer, for those that are requested. Messages between stages lengthen the way of the first and the last micro-batch, and the
work of stages that wait for their sends; a step takes at least as long as a link needs for all of them
(`sim.training.layouts.link_bound`).
"""

from __future__ import annotations

import hashlib
import marshal
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from sim.mesh import compute_times_of, layout_prices, prepare, times_of, worker_node
from sim.parallel.lower.layouts import Layout
from sim.parallel.program import PassPart
from sim.parallel.schedule import RENDEZVOUS_SCHEDULES, holder
from sim.parallel.split import Unit, split
from sim.parallel.stack_options import mesh_options
from sim.parallel.stages import distribution_of
from sim.parallel.units import UnitKind
from sim.spec import memo
from sim.spec.extensions import has_registered
from sim.spec.hardware import Hardware
from sim.spec.identity import content
from sim.spec.parallel import SLOTTED, MeshOptions, Parallel
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.training import MOST_MICRO_BATCHES
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.plan.block_sums import BlockSums, FloatRow, ShareShape, summed, sums_of
from sim.study.plan.exchanges import SendRows, gather_time, least_sent, send_rows
from sim.study.plan.geometry import Geometry, chunked_sums, geometry_of, staged_sums, unlike_rows
from sim.study.plan.least_memory import least_memory
from sim.study.plan.prepared import PreparedLayouts
from sim.study.plan.space import LayoutCandidate, cut_parts
from sim.training.layouts.prices import LayoutPrices, PriceBook
from sim.training.layouts.times import UnitTimes

CandidatePlaces = NDArray[numpy.intp]

_BELOW: Final = 1.0 - 1e-12
"""Factor by which compute is below a time that is the same sum without messages, in spite of rounding."""
_NOT_SEARCHED: Final = ("context_exchange", "capacity_factor", "pad_to_capacity")
"""Fields of a layout that stay as the workload has them."""
_SHARE: Final = ("precision", "tensor", "sequence", "context", "pipeline", "expert", "shard", "checkpointing", "near")
"""Fields that determine the share of the model on one rank, and whether the engine refuses it."""
_CUT: Final = ("schedule", "virtual_stages", "micro_batches")
"""Fields that matter as well where the workload's own layout cuts units."""


@dataclass(frozen=True)
class Setting:
    """One cluster and one stack on which layouts are placed, and the prices that they share."""

    hardware: Hardware
    gpus_per_node: int
    workload: Workload
    book: PriceBook
    rate: float | None
    """USD/s of all nodes."""
    prepared: PreparedLayouts = field(default_factory=PreparedLayouts, compare=False, repr=False)
    """Layouts that were refined last."""

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return self.hardware.worker_nodes

    def has_own_cuts(self, candidate: LayoutCandidate) -> bool:
        """Return whether *candidate* has as many chunks as the workload's own layout cuts its model into."""
        return candidate.parts == cut_parts(self.workload.training.parallel)

    def workload_in(self, candidate: LayoutCandidate) -> Workload:
        """Return the workload in the layout of *candidate*, with the fields of its own layout that are not searched."""
        training = self.workload.training
        own = training.parallel
        kept: dict[str, object] = {name: getattr(own, name) for name in _NOT_SEARCHED}
        kept |= {"wrap": own.wrap if candidate.shard == "parameters" else None}
        kept |= {"expert_imbalance": min(own.expert_imbalance, float(candidate.expert))}
        if self.has_own_cuts(candidate):
            kept |= {"cuts": own.cuts, "layers_per_stage": own.layers_per_stage}
        return self.workload.with_training(
            parallel=candidate.parallel.model_copy(update=kept), batch=candidate.batch, precision=candidate.precision,
            gradient_accumulation_steps=candidate.micro_batches, activation_checkpointing=candidate.checkpointing,
        )  # fmt: skip


class PassRows(NamedTuple):
    """Seconds of one micro-batch on one rank of a share, summed up to each block."""

    forward: FloatRow
    backward: FloatRow


@dataclass(frozen=True)
class Floors:
    """For each candidate, lower bounds of the bytes that a rank needs and of the seconds of a step."""

    memory: FloatRow
    compute: FloatRow
    """Lower bounds of the seconds of a step without messages; infinite if the candidate's memory does not fit."""
    work: FloatRow
    """Lower bounds of the seconds that a GPU computes in a step, averaged over stages; 0 if that is unknown."""
    time_of: Callable[[CandidatePlaces], FloatRow]
    """Returns bounds of the seconds of the candidates at some places that fit, with their messages: each is at least its ``compute``."""
    sketch_of: Callable[[CandidatePlaces], FloatRow] | None = None
    """Returns lower bounds of what ``time_of`` returns, in less time; None if there are none but ``compute``."""

    @property
    def time(self) -> FloatRow:
        """Return the bounds of the seconds of all candidates, with their messages."""
        time, fit = self.compute.copy(), numpy.flatnonzero(numpy.isfinite(self.compute))
        time[fit] = self.time_of(fit)
        return time


def floors(setting: Setting, candidates: Sequence[LayoutCandidate], most: float = numpy.inf) -> Floors:
    """Return lower bounds of memory and time of each of *candidates*; both are infinite if the engine refuses its shares.

    If a candidate needs more than *most* bytes, its time is not computed, and is infinite. Messages are priced when a time with them is
    requested. Raise SpecError if the engine refuses all.
    """
    shapes = _Shapes(setting)
    alike = _without_messages(shapes, candidates, most)

    def time_of(places: CandidatePlaces, sketched: bool = False) -> FloatRow:
        least, by_form = numpy.zeros(len(places)), defaultdict[tuple[int, int, str], list[int]](list)
        for row, place in enumerate(places):
            by_form[_form(candidates[place])].append(row)
        for rows in by_form.values():
            own = [candidates[places[row]] for row in rows]
            geometry, passes = shapes.geometry(own[0]), [shapes.passes(each, sketched) for each in own]
            if sketched:
                least[rows] = _BELOW * _time(geometry, own, passes, None)
                continue
            stepped = _time(geometry, own, passes, shapes.sends(geometry, own))
            least[rows] = numpy.maximum(stepped, [each.micro_batches * shapes.gather_time(each) for each in own])
        return least

    return Floors(*alike, time_of, partial(time_of, sketched=True))


class _WithoutMessages(NamedTuple):
    """Bounds without messages of the layouts of a workload on equal GPUs, whatever connects these."""

    memory: FloatRow
    compute: FloatRow
    work: FloatRow


def _without_messages(shapes: _Shapes, candidates: Sequence[LayoutCandidate], most: float) -> _WithoutMessages:
    """Return the bounds of *candidates*, which *shapes* divides; those that need more than *most* bytes have no time.

    They are kept: a machine often has the GPUs of another provider's, or is searched again.
    """
    setting = shapes.setting
    if has_registered():  # the user's own schedules may change
        return _bounded(shapes, candidates, most)
    described = hashlib.sha256(marshal.dumps([tuple(each) for each in candidates], 2)).digest()
    gpu = content(worker_node(setting.hardware).gpu)
    key = _WithoutMessages, id(setting.workload), setting.nodes, setting.gpus_per_node, most, described, gpu
    return memo.get_or_make(key, lambda: _bounded(shapes, candidates, most), held=setting.workload)


def _bounded(shapes: _Shapes, candidates: Sequence[LayoutCandidate], most: float) -> _WithoutMessages:
    """Compute what `_without_messages` returns."""
    setting = shapes.setting
    memory, compute = numpy.full(len(candidates), numpy.inf), numpy.full(len(candidates), numpy.inf)
    work = numpy.zeros(len(candidates))
    groups: dict[tuple[int, int, str], list[tuple[int, ShareShape]]] = defaultdict(list)
    for number, each in enumerate(candidates):
        if (shape := shapes(each)) is not None:
            groups[_form(each)].append((number, shape))
    if not groups and shapes.refused is not None:
        raise shapes.refused
    for members in groups.values():
        own = [candidates[number] for number, _ in members]
        at = numpy.array([number for number, _ in members])
        geometry = shapes.geometry(own[0])
        memory[at] = least_memory(setting.workload, worker_node(setting.hardware).gpu, geometry, own, [shape for _, shape in members])
        if (fit := numpy.flatnonzero(memory[at] <= most)).size:
            own = [own[place] for place in fit]
            passes = [shapes.compute_passes(each) for each in own]
            compute[at[fit]] = _BELOW * _time(geometry, own, passes, None)
            work[at[fit]] = _BELOW * numpy.array([each.micro_batches for each in own]) * _mean_work(geometry, passes)
    return _WithoutMessages(memory, compute, work)


def _form(candidate: LayoutCandidate) -> tuple[int, int, str]:
    """Return the fields that determine which units each stage holds."""
    return candidate.pipeline, candidate.chunks, candidate.schedule


def _time(geometry: Geometry, own: Sequence[LayoutCandidate], passes: Sequence[PassRows], sends: Sequence[SendRows] | None) -> FloatRow:
    """Return lower bounds of the seconds of a step; without messages between stages if *sends* is None."""
    unlike, which = unlike_rows(passes)
    forward, backward = (chunked_sums(geometry, rows)[which] for rows in zip(*unlike, strict=True))
    steps = numpy.array([each.micro_batches for each in own], dtype=float)[:, None]
    work = steps * staged_sums(geometry, forward + backward)
    if sends is None:
        return _way(geometry, work, forward, backward)
    alone, on_links, held = (numpy.stack(rows) for rows in zip(*sends, strict=True))
    least = _way(geometry, work + steps * held, forward + numpy.pad(alone, ((0, 0), (0, 1))), backward)
    if not on_links.any():
        return least
    last = backward if geometry.schedule in SLOTTED else numpy.zeros_like(backward)
    through = numpy.cumsum(forward + last, axis=1)[:, :-1] + 2.0 * (numpy.cumsum(alone, axis=1) - alone)
    with_links: FloatRow = numpy.where(on_links > 0.0, steps * on_links + through, 0.0).max(axis=1)
    return numpy.maximum(least, with_links)


def _mean_work(geometry: Geometry, passes: Sequence[PassRows]) -> FloatRow:
    """Return the seconds of one micro-batch with each of *passes*, averaged over stages."""
    unlike, which = unlike_rows(passes)
    mean: FloatRow = staged_sums(geometry, chunked_sums(geometry, [each.forward + each.backward for each in unlike])).mean(axis=1)
    return mean[which]


def _way(geometry: Geometry, work: FloatRow, forward: FloatRow, backward: FloatRow) -> FloatRow:
    """Return the longest *work* of a stage, with the way of the first micro-batch to it, and of the last one's gradient from it (s)."""
    ahead = numpy.cumsum(forward, axis=1)[:, : geometry.pipeline] - forward[:, : geometry.pipeline]
    behind = numpy.cumsum(backward, axis=1)[:, : geometry.pipeline] - backward[:, : geometry.pipeline]
    if geometry.schedule not in SLOTTED:  # weight gradients may fill the end
        behind = numpy.zeros_like(behind)
    if geometry.even:
        ahead, behind = numpy.zeros_like(ahead), numpy.zeros_like(behind)
    least: FloatRow = (work + ahead + behind).max(axis=1)
    return least


class _Shapes:
    """The units of the model under each share, computed once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.options: MeshOptions = mesh_options(setting.workload)
        self.shape = setting.workload.model.transformer
        units = split(setting.workload.model, Parallel())
        self.kinds: tuple[UnitKind, ...] = tuple(unit.kind for unit in units)
        self.structured = setting.hardware.fabric.has_structure
        own_cuts = cut_parts(setting.workload.training.parallel) > 0
        self._share_of = _fields(*_SHARE, *(_CUT if own_cuts else ()))
        self._passes_of = _fields(*_SHARE, *(_CUT if own_cuts else ()), "batch", "micro_batches")
        self._laid: dict[object, tuple[Workload, Layout, BlockSums] | None] = {}
        self._alike: dict[LayoutCandidate, tuple[Workload, Layout, BlockSums] | None] = {}
        self._rows: dict[tuple[object, ...], BlockSums] = {}
        self._passes: dict[object, PassRows] = {}
        self._compute: dict[object, PassRows] = {}
        self._kept_compute: dict[object, tuple[PassRows, Sequence[Unit]]] = memo.get_or_make(
            (_Shapes, id(setting.workload), content(worker_node(setting.hardware).gpu)), dict, held=setting.workload
        )
        """Seconds of passes without messages on this GPU, whatever its machine; the value keeps the units alive."""
        self._sends: dict[object, SendRows] = {}
        self._send_prices: dict[object, LayoutPrices] = {}
        self._placed_sends: dict[object, SendRows] = {}
        self._gathers: dict[object, float] = {}
        self._of_one = PriceBook(kernels=setting.book.kernels)
        """Prices of groups that are alone on their nodes."""
        self.refused: SpecError | None = None
        """Why the engine refuses the last share that it refused."""

    def geometry(self, candidate: LayoutCandidate) -> Geometry:
        """Return where the chunks of *candidate* begin, as specified in the workload's own layout or as the stack cuts."""
        own = self.setting.workload.training.parallel
        alike = self.setting.has_own_cuts(candidate)
        if alike and own.cuts:
            stage = numpy.array(
                [holder(candidate.schedule, candidate.pipeline, candidate.chunks, part)[0] for part in range(candidate.parts)]
            )
            none = numpy.zeros_like(stage)
            return Geometry(none, none, stage, candidate.pipeline, candidate.schedule, True)
        counts = own.layers_per_stage if alike else ()
        over = distribution_of(self.options, self.shape, candidate.chunks)
        return geometry_of(self.kinds, candidate.pipeline, candidate.chunks, candidate.schedule, over, counts)

    def __call__(self, candidate: LayoutCandidate) -> ShareShape | None:
        """Return the shape of *candidate*; None if the engine refuses it."""
        laid = self._laid_out(candidate)
        return None if laid is None else laid[2].shape

    def _laid_out(self, candidate: LayoutCandidate) -> tuple[Workload, Layout, BlockSums] | None:
        """Return the share of *candidate* in a layout of one sample, and the sums of its blocks; None if the engine refuses it."""
        key = self._share_of(candidate)
        if _too_many(candidate):
            key = (*key, candidate.micro_batches)
        if key not in self._laid:
            like = self._like(candidate)
            if like not in self._alike:
                try:
                    self._alike[like] = self._lay(like)
                except SpecError as error:  # frames of its traceback would keep all that was computed
                    self._alike[like], self.refused = None, SpecError(error.problems)
            self._laid[key] = self._alike[like]
        return self._laid[key]

    def _like(self, candidate: LayoutCandidate) -> LayoutCandidate:
        """Return a layout of one sample with the share of *candidate*, which the engine refuses if it refuses that."""
        shard = "none" if candidate.shard == "optimizer" and "none" in self.options.shards else candidate.shard
        like = candidate._replace(batch=1, shard=shard, reshard=None, replicate=1)
        if self.setting.has_own_cuts(candidate):  # may cut units
            return like
        return like._replace(schedule="1f1b", virtual_stages=1, micro_batches=candidate.micro_batches if _too_many(candidate) else 1)

    def _with_samples(self, candidate: LayoutCandidate) -> tuple[Workload, Layout, BlockSums]:
        """Return what `_laid_out` returns for *candidate*, which has a shape, with its own micro-batches."""
        laid = self._laid_out(candidate)
        assert laid is not None
        _, layout, rows = laid
        input_bytes = tuple(candidate.batch * nbytes for nbytes in layout.input_bytes)
        workload = self.setting.workload_in(candidate)
        return workload, replace(layout, micro_batches=candidate.micro_batches, input_bytes=input_bytes), rows

    def passes(self, candidate: LayoutCandidate, sketched: bool = False) -> PassRows:
        """Return the seconds of the passes of *candidate*, which has a shape, on the quickest stage.

        *sketched*: as if only one group of a node sent messages, whose price takes a fraction of the time where a node has many groups.
        """
        paired = candidate.expert > 1 and candidate.schedule in self.options.paired_schedules  # whose messages may be hidden
        key = self._like(candidate), candidate.batch, candidate.micro_batches, sketched, paired
        if key not in self._passes:
            workload, layout, rows = self._with_samples(candidate)
            times = times_of(self.setting.hardware, workload, layout, self._of_one if sketched else self.setting.book, one_group=sketched)
            self._passes[key] = self._pass_rows(times, layout.units, rows, paired)
        return self._passes[key]

    def sends(self, geometry: Geometry, own: Sequence[LayoutCandidate]) -> list[SendRows] | None:
        """Return the seconds of the messages between stages of each of *own*; None if none are known, or there are none."""
        if geometry.pipeline == 1 or geometry.even:
            return None
        rows = []
        for each in own:
            key = self._like(each), each.batch, each.schedule, each.chunks
            if key not in self._sends:
                self._sends[key] = self._send_rows(geometry, each)
            rows.append(self._sends[key])
        return rows

    def gather_time(self, candidate: LayoutCandidate) -> float:
        """Return the seconds in which one micro-batch of *candidate* gathers all weights once, 0 with a pipeline, which keeps them.

        Gathers of a group take turns, and forward gathers what backward has freed.
        """
        if candidate.shard != "parameters" or candidate.pipeline > 1:
            return 0.0
        key = self._like(candidate), candidate.batch, candidate.replicate
        if key not in self._gathers:
            try:
                self._gathers[key] = self._gather_time(candidate)
            except SpecError:  # the engine refuses these replicas
                self._gathers[key] = 0.0
        return self._gathers[key]

    def _gather_time(self, candidate: LayoutCandidate) -> float:
        workload = self.setting.workload_in(candidate)
        layout = prepare(self.setting.hardware, workload, self.setting.gpus_per_node, check_deadlock=False)
        return gather_time(layout, layout_prices(self.setting.hardware, workload, layout, self.setting.book))

    def _send_rows(self, geometry: Geometry, candidate: LayoutCandidate) -> SendRows:
        workload, layout, _ = self._with_samples(candidate)
        holds = candidate.schedule in RENDEZVOUS_SCHEDULES and not self.options.sends_ahead
        stage_of, nbytes = tuple(map(int, geometry.stage)), least_sent(workload, layout)
        placed = (candidate.tensor, candidate.context, candidate.near, stage_of, nbytes, holds)  # which ranks send, and where they are
        if placed not in self._placed_sends:
            where = candidate.tensor, candidate.context, candidate.near, candidate.pipeline
            if where not in self._send_prices:
                self._send_prices[where] = layout_prices(self.setting.hardware, workload, layout, self.setting.book)
            self._placed_sends[placed] = send_rows(layout, self._send_prices[where], stage_of, nbytes, holds)
        return self._placed_sends[placed]

    def compute_passes(self, candidate: LayoutCandidate) -> PassRows:
        """Return the seconds of the passes of *candidate*, which has a shape, without messages."""
        key = self._passes_of(candidate)
        if key not in self._compute:
            self._compute[key] = self._compute_passes(candidate)
        return self._compute[key]

    def _compute_passes(self, candidate: LayoutCandidate) -> PassRows:
        laid = self._laid_out(candidate)
        assert laid is not None
        workload, layout, rows = laid
        steps = candidate.micro_batches if PRECISION_TRAITS[workload.training.precision].is_quantized else 0  # over which casts are spread
        recomputing = layout.mesh.stages if workload.training.recompute_blocks else 0  # stages, of which some blocks are recomputed
        key = id(rows.units), *_unit_fields(candidate), candidate.batch, candidate.micro_batches > 1, layout.adds_shards, steps, recomputing
        if key not in self._kept_compute:
            workload, layout, _ = self._with_samples(candidate)
            times = compute_times_of(self.setting.hardware, workload, layout, self.setting.book)
            self._kept_compute[key] = self._pass_rows([times], layout.units, rows), rows.units
        return self._kept_compute[key][0]

    def _pass_rows(self, times: Sequence[UnitTimes], units: Sequence[Unit], rows: BlockSums, paired: bool = False) -> PassRows:
        parts: tuple[PassPart, ...] = ("F", "B")
        return PassRows(*summed([self._quickest(times, units, part, paired) for part in parts], rows.ends))

    def _lay(self, candidate: LayoutCandidate) -> tuple[Workload, Layout, BlockSums]:
        workload = self.setting.workload_in(candidate)
        layout = prepare(self.setting.hardware, workload, self.setting.gpus_per_node, check_deadlock=False)
        key = (id(layout.units), *_unit_fields(candidate))  # the rows keep the units alive, so that their id is not reused
        if key not in self._rows:
            self._rows[key] = sums_of(layout, workload)
        return workload, layout, self._rows[key]

    def _quickest(self, times: Sequence[UnitTimes], units: Sequence[Unit], part: PassPart, paired: bool) -> list[float]:
        """Return the seconds of one pass over each unit on the quickest stage, at least; *paired*: whether it may be part of a pair."""
        least: dict[int, float] = {}
        for number, unit in enumerate(units):
            if unit.content in least:
                continue
            if part == "B" and not unit.has_backward:
                least[unit.content] = 0.0
                continue
            passes = [of_stage(number, part) for of_stage in times]
            least[unit.content] = min(
                (each.compute + (0.0 if self.structured else each.waits_beside(paired)) for each in passes), default=0.0
            )
        return [least[unit.content] for unit in units]


def _unit_fields(candidate: LayoutCandidate) -> tuple[object, ...]:
    """Return the fields that determine memory and time of a unit of *candidate* for one sample."""
    return (*candidate.split, candidate.checkpointing, candidate.precision)


def _too_many(candidate: LayoutCandidate) -> bool:
    """Return whether the engine refuses *candidate* because of its micro-batches alone."""
    return candidate.micro_batches > MOST_MICRO_BATCHES


def _fields(*names: str) -> Callable[[LayoutCandidate], tuple[object, ...]]:
    """Return a function that returns the fields *names* of a candidate."""
    return itemgetter(*map(LayoutCandidate._fields.index, names))
