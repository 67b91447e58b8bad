"""How long does a unit of the model take on one rank? GPU time, launches, and the exposed messages inside it.

Tensor-, context- and expert-parallel messages occur inside a unit. Compute waits for the part that the stack does not overlap. This exposed
part loads the links it crosses, so it and other traffic slow each other (`stage_compute`). Limit: the overlapped part does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

from sim.cluster.gpu import PRODUCTS, KernelWork, element_bytes, memory_time
from sim.cluster.kernels import indexed_time, overlap_time
from sim.cluster.measured import PassSetting, pass_time
from sim.cluster.shared_gpu import remaining_gpu
from sim.parallel.checkpointing import RecomputedPiece, checkpoint_count, checkpointed_share, recomputed_pieces, restored_bytes
from sim.parallel.collective_check import check_time
from sim.parallel.host_modules import module_count
from sim.parallel.layer_messages import GroupName, LayerMessage
from sim.parallel.program import Copy, PassPart, Work
from sim.parallel.ring import elements_of, engine_passes, ring_of, ring_passes
from sim.parallel.routing import (
    BACKWARD_LAUNCHES,
    bias_operations,
    cast_operations,
    copies_between,
    dispatch_width,
    dispatched_bytes,
    expert_host_time,
    expert_operations,
    gated_norm_time,
    padded_bytes,
    permuted_passes,
    received_bytes,
    routing_of,
    sorted_bytes,
    unfused_launches,
    unfused_passes,
)
from sim.parallel.split import LayerPiece, Unit
from sim.parallel.stage_parts import copy_passes, part_gathers
from sim.spec.fields import Precision
from sim.spec.fp8_recipe import usual_recipe
from sim.spec.hardware import Gpu
from sim.spec.identity import content
from sim.spec.layer import WIDTHS, Layer
from sim.spec.parallel import MeshOptions
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.sections import with_fields
from sim.spec.transformer import Transformer
from sim.spec.workload import Workload
from sim.training.layouts.group_price import MessageLoad
from sim.training.layouts.pairs import pair_time
from sim.training.layouts.prices import KernelTimes, LayoutPrices, PieceTimes, PriceBook
from sim.training.layouts.unit_time import Burst, ExposedWait, UnitTime, exposed_part, joined, merged_messages, part_of, segments_of
from sim.training.muon import muon_work


@dataclass(eq=False)
class UnitTimes:
    """Times of the units on one stage's ranks, cached for equal units."""

    workload: Workload
    gpu: Gpu
    units: Sequence[Unit]
    prices: LayoutPrices
    stage: int
    options: MeshOptions
    micro_batches: int
    adds_shards: bool
    """Whether gradients are reduced to shards before they are accumulated over micro-batches."""
    sends: bool = True
    """Whether messages take time. If not, units take their compute alone, wherever groups are placed and on any number of nodes."""
    gathered: frozenset[int] = frozenset()
    """Units before which tensor ranks gather what another stage has sent in parts: the first of each chunk but the first."""
    _unit_times: dict[tuple[int, PassPart], UnitTime] = field(default_factory=dict)
    _spans: dict[tuple[int, int, PassPart], UnitTime] = field(default_factory=dict)
    _pairs: dict[tuple[int, ...], UnitTime] = field(default_factory=dict)
    """Times of the backward passes of pairs, by the units of both passes."""
    _shared: dict[object, UnitTime] = field(default_factory=dict)
    """Times by the content of a unit, shared with other layouts."""
    _passes: KernelTimes = field(default_factory=dict)
    """Shared with layouts with other groups."""
    _layers: PieceTimes = field(default_factory=dict)
    """Shared with layouts with other recomputation or sharding."""
    _layers_alone: PieceTimes = field(default_factory=dict)
    """The same for layers without messages, shared with layouts that place groups elsewhere, also on another number of nodes."""

    def share(self, book: PriceBook) -> None:
        """Share times in *book* with other layouts of the same model, data types and hardware."""
        training, parallel = self.workload.training, self.prices.mesh.parallel
        groups = [axis for axis in get_args(GroupName) if self.prices.mesh.group_size(axis) > 1] if self.sends else []
        placements = tuple(self.prices.placement_key(self.stage, axis) for axis in groups)
        split = (parallel.tensor, parallel.sequence_parallel, parallel.context, parallel.context_exchange, parallel.expert)
        batches = min(self.micro_batches, 2) if self._weight_casts == 1.0 else self.micro_batches
        recomputation = (training.activation_checkpointing, training.recompute_blocks, training.recompute_modules, training.recompute_saves)
        stages = self.prices.mesh.stages if training.recompute_blocks else 0  # determines the recomputed share of a stage's blocks
        experts = parallel.expert_imbalance, parallel.capacity_factor, parallel.pad_to_capacity
        model, lengths = self.workload.model, self.workload.dataset.lengths
        described = (content(training.stack), content(model.transformer), content(model.measured), content(lengths))
        pass_key = (
            id(self.gpu), *described, training.batch, training.precision, training.fp8_recipe, training.compute_factor, self._weight_casts,
        )  # fmt: skip
        layer_key = (pass_key, split, experts, placements)
        alone_key = (pass_key, *split[2:], experts)  # tensor ranks only exchange messages; their shares of a layer are layers of their own
        own = book if self.sends else book.kernels
        self._passes = book.kernels.passes.setdefault(pass_key, {})
        self._layers = own.layers.setdefault(layer_key, {})
        self._layers_alone = book.kernels.layers.setdefault(alone_key, {})
        self._shared = own.times.setdefault((layer_key, *recomputation, stages, batches, self.adds_shards), {})

    def __call__(self, number: int, part: PassPart) -> UnitTime:
        """Return the time of unit *number* of the model for one micro-batch."""
        unit = self.units[number]
        key = (unit.content, part)
        if key not in self._unit_times:
            shared_key = (unit.unsplit_content, part)
            if shared_key not in self._shared:
                self._shared[shared_key] = self._time_of(unit, part)
            self._unit_times[key] = self._shared[shared_key]
        return self._unit_times[key]

    def span(self, first: int, last: int, part: PassPart) -> UnitTime:
        """Return the time of units *first* to *last* in sequence."""
        key = (first, last, part)
        if key not in self._spans:
            begins = self._gathers(first if part == "F" else last + 1, part) if self.gathered else []
            self._spans[key] = joined([*begins, *(self(number, part) for number in range(first, last + 1))])
        return self._spans[key]

    def _gathers(self, number: int, part: PassPart) -> list[UnitTime]:
        """Return the times in which tensor ranks gather what enters unit *number*, or its gradients, if stages send it in parts."""
        if part == "W" or number not in self.gathered:
            return []
        message = LayerMessage("tensor", "all_gather", self.units[number].boundary / self.workload.training.parallel.context)
        layer = self.units[number].pieces[0].layer
        copied = memory_time(copy_passes(self.options) * self._bytes(message, layer), self.gpu)
        waits = (self._exposed(message, layer, 0.0, False),) if self.sends else ()
        return [UnitTime((Burst(copied, 1.0),), waits)] * part_gathers(self.options, part != "F")

    def of(self, work: Work) -> UnitTime:
        """Return the time of *work*. What a pair waits for the messages of experts is in its backward pass."""
        time = self.span(work.first, work.last, work.part)
        if work.beside is None:
            return time
        if work.part == "F":
            return time._replace(exposed_waits=tuple(each for each in time.exposed_waits if each.axis != "expert"))
        key = (*work.beside, work.first, work.last)
        if key not in self._pairs:
            self._pairs[key] = self._backward_of_pair(*key)
        return self._pairs[key]

    def exposed_of_pair(self, work: Work) -> float:
        """Return the part of the messages of experts for which the pair of *work* waits; 1 if it is none."""
        if work.beside is None:
            return 1.0
        forward, backward = ((work.first, work.last), work.beside)[:: 1 if work.part == "F" else -1]
        waits = self.of(Work("B", *backward, 0, forward)).exposed_waits
        alone = sum(each.seconds for each in self._of_experts(forward, backward))
        return sum(each.seconds for each in waits if each.axis == "expert") / alone if alone else 0.0

    def _of_experts(self, forward: tuple[int, int], backward: tuple[int, int]) -> list[ExposedWait]:
        """Return the messages of experts in a *forward* and a *backward* pass."""
        return [
            each for time in (self.span(*forward, "F"), self.span(*backward, "B")) for each in time.exposed_waits if each.axis == "expert"
        ]

    def _backward_of_pair(self, first: int, last: int, *backward: int) -> UnitTime:
        """Return the backward pass over units *backward* in a pair with the forward pass over units *first* to *last*."""
        begin, end = backward
        time, ahead = self.span(begin, end, "B"), self.span(first, last, "F")
        alone = self._of_experts((first, last), (begin, end))
        forward = segments_of(layer for number in range(first, last + 1) for layer in self.in_turn(self.units[number], "F"))
        after = segments_of(layer for number in range(end, begin - 1, -1) for layer in self.in_turn(self.units[number], "B"))
        compute = ahead.compute + time.compute
        slowdown = 1.0
        if self.options.expert_blocks and compute and alone:
            beside = self._beside_experts
            slowdown = max(1.0, (beside.span(first, last, "F").compute + beside.span(begin, end, "B").compute) / compute)
        pair = pair_time(forward, after, slowdown)
        slowed = pair.compute - sum(each.compute for each in (*forward, *after))
        share = pair.exposed / sum(each.seconds for each in alone) if alone else 0.0
        others = [each for each in time.exposed_waits if each.axis != "expert"]
        bursts = (*time.bursts, Burst(slowed, 0.0)) if slowed > 0.0 else time.bursts
        waits = [merged_messages([exposed_part(each, share) for each in alone])] if share else []
        return UnitTime(bursts, (*others, *waits))

    @cached_property
    def _beside_experts(self) -> UnitTimes:
        """Return the times of units beside dispatch and combine, which occupy multiprocessors."""
        gpu = remaining_gpu(self.gpu, self.options.expert_blocks, 0.0)
        same = self.units, self.prices, self.stage, self.options, self.micro_batches, self.adds_shards
        return UnitTimes(self.workload, gpu, *same, sends=False, gathered=self.gathered)

    def _time_of(self, unit: Unit, part: PassPart) -> UnitTime:
        return joined(self.in_turn(unit, part))

    def in_turn(self, unit: Unit, part: PassPart) -> list[UnitTime]:
        """Return the times of *unit* for one micro-batch layer by layer, each with its individual messages after its kernels."""
        host = self._host(unit, part)
        if part == "F":
            return [*host, *(self._layer(piece, False, 1.0) for piece in unit.pieces)]
        if part == "B":
            layers = (self._layer(piece, True, 1.0) for piece in reversed(unit.pieces))
            return [*host, *self._recomputed(unit), *layers, self._accumulated(unit)]
        if part == "W":
            return [*host, *(self._weights(piece) for piece in unit.pieces), self._accumulated(unit)]
        inputs = (self._layer(piece, True, 1.0 - _weight_share(piece.layer)) for piece in reversed(unit.pieces))
        return [*host, *self._recomputed(unit), *inputs]

    def _host(self, unit: Unit, part: PassPart) -> list[UnitTime]:
        """Return the host time of a block in addition to launches; what is recomputed costs its share again, and each checkpoint."""
        training, options = self.workload.training, self.options
        if (
            unit.kind != "block"
            or training.stack.kernels.cuda_graphs
            or not (options.block_host or options.module_host or options.quantize_host)
        ):
            return []
        passes = {"F": 1.0, "B": BACKWARD_LAUNCHES}.get(part, 0.5 * BACKWARD_LAUNCHES)
        of_modules = self._host_of_modules(unit)
        host = passes * (options.block_host + sum(of_modules.values()))
        if part in ("B", "I") and (again := recomputed_pieces(training, unit)):
            repeated = options.block_host * self._repeated_share(unit, again)
            repeated += sum(own * of_modules[id(piece)] for piece, own in again)
            repeated += options.checkpoint_host * checkpoint_count(training, unit)
            host += checkpointed_share(training, self.units, self.prices.mesh.stages) * repeated
        return [UnitTime((Burst(0.0, 0.0, host=host),))]

    def _host_of_modules(self, unit: Unit) -> dict[int, float]:
        """Return the host time of the modules that run each piece of *unit* forward, in addition to launches, by its identity."""
        training, layers = self.workload.training, [piece.layer for piece in unit.pieces]
        quantized = self.options.quantize_host if PRECISION_TRAITS[training.precision].is_quantized else 0.0
        times = {}
        for number, piece in enumerate(unit.pieces):
            modules = module_count(layers, number, training.stack.kernels.fused_casts)
            casts = piece.layer.op == "gemm" and piece.layer.name.rpartition(".")[2] not in training.stack.kernels.unquantized
            times[id(piece)] = modules * (self.options.module_host + (quantized if casts else 0.0))
        return times

    def _repeated_share(self, unit: Unit, again: Sequence[RecomputedPiece]) -> float:
        """Return the share of the kernels of *unit*'s forward pass that *again* launches once more."""
        launches = sum(self._kernels(piece.layer, False).launches for piece in unit.pieces)
        repeated = sum(own * self._kernels(piece.layer, False).launches for piece, own in again)
        return repeated / launches if launches else 0.0

    def _recomputed(self, unit: Unit) -> list[UnitTime]:
        """Return the forward work that the backward pass recomputes, and the copies of outputs to where backward reads them."""
        training = self.workload.training
        share = checkpointed_share(training, self.units, self.prices.mesh.stages)
        again = [part_of(self._layer(piece, False, own), share) for piece, own in recomputed_pieces(training, unit)]
        restored = sum(
            nbytes * element_bytes(piece.layer.op, training.precision) / 4.0
            for piece, nbytes in zip(unit.pieces, restored_bytes(training, unit), strict=True)
        )
        if restored:
            copied = memory_time(2.0 * training.batch * restored, self.gpu) * training.compute_factor
            again.append(UnitTime((Burst(copied, checkpoint_count(training, unit)),)))
        return again

    def _weights(self, piece: LayerPiece) -> UnitTime:
        busy, launches = self._kernels(piece.layer, True)
        share = _weight_share(piece.layer)
        return UnitTime((Burst(busy * share, launches * share),))

    @property
    def _weight_casts(self) -> float:
        """Return how often weights are cast to 8 bits or fewer per micro-batch."""
        keeps_8bit = self.options.keeps_8bit_weights and PRECISION_TRAITS[self.workload.training.precision].is_quantized
        return 1.0 / self.micro_batches if keeps_8bit else 1.0

    @cached_property
    def _setting(self) -> PassSetting:
        training = self.workload.training
        # accumulation of gradients inside the products is counted by `_accumulated`
        stack = with_fields(self.workload.layer_stack, accumulates_gradients=False, weight_casts=self._weight_casts)
        return PassSetting(self.gpu, training.precision, stack, training.batch)

    def _kernels(self, layer: Layer, backward: bool) -> KernelWork:
        key = id(layer), backward
        if key not in self._passes:
            busy, launches = pass_time(layer, self.workload.model.measured, self._setting, backward)
            self._passes[key] = KernelWork(busy * self.workload.training.compute_factor, launches), layer
        return self._passes[key][0]

    def _layer(self, piece: LayerPiece, backward: bool, share: float) -> UnitTime:
        times = self._layers if (piece.backward if backward else piece.forward) else self._layers_alone
        key = id(piece), backward, share
        if key not in times:
            times[key] = self._layer_time(piece, backward, share), piece  # which keeps the piece alive, so that its identity is not reused
        return times[key][0]

    def _layer_time(self, piece: LayerPiece, backward: bool, share: float) -> UnitTime:
        layer = piece.layer
        busy, launches = self._kernels(layer, backward)
        launches += self._unfused_launches(layer, backward) if launches else 0
        busy *= share
        messages = piece.backward if backward else piece.forward
        waits = self.options.expert_counts and not self.prices.mesh.parallel.pad_to_capacity
        drained = piece.awaits_counts and waits and not backward
        host = self._checked(messages) + self._started(messages) + self._routing(piece, backward)
        busy += share * (self._sorted(messages, layer) + self.workload.training.compute_factor * self._unfused(layer, backward))
        beside = share * self._merged(layer, backward)
        sent = [message for message in messages for _ in range(message.times)] if self.sends else []
        return UnitTime(
            (Burst(busy + beside, launches * share, drained, host),),
            tuple(self._exposed(message, layer, busy, backward) for message in sent),
        )

    def _checked(self, messages: Sequence[LayerMessage]) -> float:
        """Return the host time (s) to compare *messages* between the ranks of their groups."""
        mesh, message_time = self.prices.mesh, self.options.collective_check
        if not message_time or not messages:
            return 0.0
        return sum(check_time(mesh.group_size(message.axis), message_time) for message in messages)

    def _started(self, messages: Sequence[LayerMessage]) -> float:
        """Return the host time (s) to start those of *messages* that tensor ranks exchange."""
        if not messages or not self.options.tensor_host or self.workload.training.stack.kernels.cuda_graphs:
            return 0.0
        return self.options.tensor_host * sum(message.axis == "tensor" for message in messages)

    def _routing(self, piece: LayerPiece, backward: bool) -> float:
        """Return the host time (s) for the experts of a block, which is spent when their dispatch begins."""
        if not piece.begins_experts:
            return 0.0
        seconds = expert_host_time(self.options.expert_host, self.workload.training.stack.kernels.cuda_graphs)
        return seconds * (BACKWARD_LAUNCHES if backward else 1.0) + self._of_local_experts(backward)

    def _of_local_experts(self, backward: bool) -> float:
        """Return the host time (s) to start what runs for each local expert of a block separately."""
        training, shape = self.workload.training, self.workload.model.transformer
        if not self.options.expert_launch or shape is None:
            return 0.0
        recipe = training.effective_recipe or usual_recipe(self.gpu)
        operations = expert_operations(cast_operations(training.precision, recipe, self.gpu), backward)
        operations += bias_operations(shape, backward, self.options.one_copy)
        return self.options.expert_launch * operations * self._local_experts

    def _sorted(self, messages: Sequence[LayerMessage], layer: Layer) -> float:
        """Return the GPU time (s) to sort and pad the token copies that are dispatched, or to undo this before they are combined."""
        training = self.workload.training
        if self.options.permutes_tokens:  # counted in `_unfused`
            return 0.0
        nbytes = sum(self._bytes(message, layer) for message in messages if message.op == "all_to_all") if messages else 0.0
        if self.options.framework == "megatron" and self.prices.mesh.parallel.expert == 1:  # chunks of one rank are sorted as well
            nbytes = element_bytes(layer.op, training.precision) / 4.0 * training.batch * dispatched_bytes(layer)
        if not nbytes:
            return 0.0
        transformer, ranks = self.workload.model.transformer, self.prices.mesh.parallel.expert
        moved = sorted_bytes(nbytes, self._local_experts)
        if self.options.one_copy:
            moved = received_bytes(nbytes, routing_of(transformer), ranks) if transformer is not None else 0.0
        if self.options.framework == "megatron" and not self.prices.mesh.parallel.pad_to_capacity:
            moved += padded_bytes(nbytes, PRECISION_TRAITS[training.precision].is_quantized, self.options.one_copy)
        return memory_time(moved, self.gpu) * training.compute_factor if moved else 0.0

    def _unfused(self, layer: Layer, backward: bool) -> float:
        training, transformer = self.workload.training, self.workload.model.transformer
        return unfused_time(layer, transformer, self.options, self.gpu, training.precision, training.batch, backward)

    def _unfused_launches(self, layer: Layer, backward: bool) -> int:
        training, transformer = self.workload.training, self.workload.model.transformer
        if transformer is None or self.options.framework != "megatron":
            return 0
        return unfused_launches(layer, transformer, backward, self.options, training.batch)

    def _merged(self, layer: Layer, backward: bool) -> float:
        """Return the GPU time (s) of merges and additions around a ring, beside which no message moves."""
        training, parallel = self.workload.training, self.workload.training.parallel
        if layer.attention is None or parallel.context == 1:
            return 0.0
        ring, own, width = ring_of(training, self.options), elements_of(layer.attention), element_bytes(layer.op, training.precision)
        if ring is not None:
            moved = ring_passes(own, parallel.context, width, ring, backward)
        elif parallel.context_exchange == "ring":
            moved = engine_passes(own, parallel.context, width, layer.attention.causal, backward)
        else:
            return 0.0
        return memory_time(training.batch * moved, self.gpu) * training.compute_factor

    def _bytes(self, message: LayerMessage, layer: Layer) -> float:
        """Return the bytes of one *message* for one micro-batch."""
        training = self.workload.training
        return (message.nbytes * element_bytes(layer.op, training.precision) / 4.0 + message.wide) * training.batch

    def _exposed(self, message: LayerMessage, layer: Layer, busy: float, backward: bool) -> ExposedWait:
        """Return how long compute waits for one *message* of a layer with a GPU time of *busy* seconds."""
        nbytes = self._bytes(message, layer)
        if message.op == "all_to_all" and message.axis == "expert":
            nbytes *= self._sent_copies
            if self.options.dispatch_8bit and layer.name.endswith("experts.combine" if backward else "experts.dispatch"):
                nbytes *= dispatch_width(PRECISION_TRAITS[self.workload.training.precision].is_quantized)
        price, links = self.prices.outline(self.stage, message.axis, message.op, nbytes, message.skew)
        seconds = price.uncontended_time
        if message.overlaps:
            seconds = max(0.0, seconds - (0.5 * busy if message.axis == "tensor" and backward else busy) / message.steps)
        hidden = {"tensor": self.options.tensor_overlap, "expert": self.options.expert_overlap, "context": 0.0}[message.axis]
        seconds *= 1.0 - hidden
        volume = price.volume * seconds / price.uncontended_time if price.uncontended_time else 0.0
        load = MessageLoad(((links, volume),))
        return ExposedWait(message.axis, seconds, price.cause, price.limit, message.op, nbytes, price.uncontended_time, volume, load)

    @cached_property
    def _local_experts(self) -> float:
        """Return the experts of one block that a rank holds; 0 for a model without."""
        transformer = self.workload.model.transformer
        return transformer.experts / self.prices.mesh.parallel.expert if transformer else 0.0

    @cached_property
    def _sent_copies(self) -> float:
        """Return the bytes that dispatch sends, relative to one copy per expert: between nodes, or between the ranks of a single node."""
        mesh, transformer = self.prices.mesh, self.workload.model.transformer
        if transformer is None:
            return 1.0
        group = mesh.group(mesh.rank(pipeline=self.stage), "expert")
        nodes = len({mesh.place(rank)[0] for rank in group})
        return copies_between(nodes if nodes > 1 else len(group), routing_of(transformer), self.options.one_copy)

    def _accumulated(self, unit: Unit) -> UnitTime:
        """Return the time to add a micro-batch's gradients to those of earlier ones.

        If the products accumulate gradients themselves, it is the time by which this lengthens them, because memory traffic overlaps with
        arithmetic. Gradients that are reduced at each micro-batch are accumulated as shards on another stream.
        """
        if self.micro_batches == 1 or self.adds_shards:
            return UnitTime((Burst(0.0, 0.0),))
        nbytes = self.options.accumulation_bytes or 2.0 * WIDTHS[self.options.gradients]
        moved = memory_time(nbytes * (unit.trained + unit.trained_experts), self.gpu)
        if self.options.fused_accumulation:
            products = sum(self._kernels(piece.layer, True).time * _weight_share(piece.layer) for piece in unit.pieces)
            moved = overlap_time(products, moved, self.gpu.kernels.sharpness if self.gpu.kernels else math.inf) - products
        return UnitTime((Burst(moved, 0.0),))


def unfused_time(
    layer: Layer, transformer: Transformer | None, options: MeshOptions, gpu: Gpu, precision: Precision, batch: int, backward: bool
) -> float:
    """Return the GPU time (s) of Megatron's or torchtitan's passes over the tokens of *batch* samples outside fused kernels.

    Also the time by which the backward of a gated norm is longer than at the memory's bandwidth. There is none where no gradient passes.
    """
    if backward and not layer.backward_kernels:
        return 0.0
    elements = indexed = 0.0
    if options.permutes_tokens:
        elements, indexed = permuted_passes(layer, backward)
    elif transformer is not None and options.framework == "megatron":
        elements, indexed = unfused_passes(layer, transformer, backward, options, batch)
        if backward and transformer.mamba is not None and gpu.kernels is not None and layer.name.endswith("mamba.norm"):
            seconds = memory_time(element_bytes(layer.op, precision) / 4.0 * batch * layer.backward_traffic, gpu)
            return max(0.0, gated_norm_time(layer, transformer.mamba, gpu.kernels.sm_count, batch) - seconds)
    if not elements and not indexed:
        return 0.0
    if gpu.kernels is None:  # not known: a read and a write
        elements, indexed = elements + 2.0 * indexed, 0.0
    seconds = memory_time(element_bytes(layer.op, precision) * batch * elements, gpu)
    return seconds + indexed_time(batch * indexed, gpu) if indexed else seconds


def _weight_share(layer: Layer) -> float:
    """Return the share of a layer's backward that computes weight gradients: half for products with weights."""
    return 0.5 if layer.gradients and layer.op in PRODUCTS else 0.0


def copy_time(copy: Copy, gpu: Gpu) -> UnitTime:
    """Return the time of *copy*: kernels at memory bandwidth, and the host's further launches, which a full queue of launches delays."""
    return UnitTime((Burst(memory_time(copy.nbytes, gpu), 1.0, copy.host > 0, copy.host),))


def optimizer_time(workload: Workload, gpu: Gpu, options: MeshOptions, elements: float, tensors: int) -> tuple[float, float]:
    """Return the GPU time (s) and launches of one optimizer step over this rank's *elements* elements in *tensors* tensors.

    Gradients are read, master weights and states are read and written, and working weights are written (torch.optim's fused rule). Before,
    FSDP's gradients are read for their norm and multiplied, Megatron's read for it. Limit: what others read for it is not counted.
    """
    optimizer, stack = workload.training.optimizer, workload.training.stack
    if optimizer.name == "none" or not elements:
        return 0.0, 0.0
    states = 2.0 * optimizer.state_width(WIDTHS[options.states])
    weights = 2.0 * (4.0 if options.master else WIDTHS[options.weights]) + (WIDTHS[options.weights] if options.master else 0.0)
    between = 4.0 * optimizer.passes_between  # passes over an update in 32 bits, like master weights
    moved = elements * (WIDTHS[options.gradients] + states + weights + between)
    clipped = elements * WIDTHS[options.gradients] * options.clipping_passes if stack.update.gradient_clipping else 0.0
    fused = stack.update.optimizer == "fused"
    scale = 1.0 if fused else max(1.0, optimizer.separate_passes / max(optimizer.passes, 1.0))
    kernels = 4.0 if stack.update.optimizer in ("fused", "foreach") else tensors * optimizer.separate_kernels
    busy = (memory_time(moved * scale, gpu) + kernels * gpu.kernel_time) * stack.update.optimizer_factor + memory_time(clipped, gpu)
    more = muon_work(workload, gpu, min(1.0, elements / workload.model.parameters))
    return busy + more.time, kernels + more.launches
