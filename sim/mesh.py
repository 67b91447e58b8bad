"""How does a job with a layout run? From hardware and workload to a step: mesh, programs, message times, simulation, memory.

Plain data parallelism uses `sim.simulate`; every layout that shards, splits, pipelines or routes uses this module. Limits: one group of
equal nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import accumulate, chain
from statistics import stdev

from sim.analysis.layout_memory import FitVerdict, StageMemory, memory_by_stage, memory_timeline, worst_verdict
from sim.analysis.utilization import model_flops_utilization
from sim.cluster.build import with_nodes
from sim.cluster.shared_gpu import remaining_gpu
from sim.events import LAYOUT_STALLS, Cause
from sim.parallel.checkpointing import check_saves
from sim.parallel.lower.layouts import Layout, programs_of
from sim.parallel.mesh import Mesh, mesh_of
from sim.parallel.own_schedule import own_passes
from sim.parallel.program import HOST_WAITS, PassPart, Start
from sim.parallel.ring import ring_of
from sim.parallel.schedule import actions, check_schedule, find_deadlock
from sim.parallel.split import ModelKey, Unit, require_heads, require_tokens, split, split_block, tied_layers
from sim.parallel.stack_options import mesh_options
from sim.parallel.stage_parts import sends_parts
from sim.parallel.stages import distribution_of, stages_of
from sim.spec.hardware import Cpu, Gpu, Hardware, Node
from sim.spec.layer import WIDTHS
from sim.spec.model import Model
from sim.spec.parallel import HOST_TIMES, MeshOptions, Parallel
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.sections import with_fields
from sim.spec.training import MOST_MICRO_BATCHES
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.training.job import tuning_of
from sim.training.layouts.loader import copy_time, feed_of
from sim.training.layouts.noise import LayoutNoise, RankVariation
from sim.training.layouts.play import play
from sim.training.layouts.prices import SHARED, LayoutPrices, PriceBook
from sim.training.layouts.scene import GROUPS, LayoutScene, PlayedLayout
from sim.training.layouts.times import UnitTimes, optimizer_time
from sim.training.layouts.turning import play_steadily
from sim.training.pace import deviations
from sim.training.sequences import layers_run, length_variation
from sim.units import shorten


@dataclass(frozen=True, eq=False)
class LayoutRun:
    """One simulated step of a job with a layout."""

    hardware: Hardware
    workload: Workload
    layout: Layout
    played: PlayedLayout
    memory: tuple[StageMemory, ...]
    seed: int = 0

    @property
    def mesh(self) -> Mesh:
        """Return the mesh of ranks."""
        return self.layout.mesh

    @property
    def node(self) -> Node:
        """Return the kind of node that all ranks run on."""
        return worker_node(self.hardware)

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.mesh.gpus

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return math.ceil(self.mesh.gpus / self.mesh.gpus_per_node)

    @property
    def step_time(self) -> float:
        """Return the duration of one optimizer step in seconds."""
        return self.played.time

    @property
    def half_width(self) -> float | None:
        """Return the half-width of the 95% confidence interval of the step time (s); None if steps are not drawn."""
        drawn = self.played.drawn_times
        return 1.96 * stdev(drawn) / math.sqrt(len(drawn)) if len(drawn) > 1 else None

    @property
    def replicas(self) -> int:
        """Return the number of groups of GPUs that see different samples."""
        return self.mesh.data

    @property
    def global_batch(self) -> int:
        """Return the number of samples of one optimizer step."""
        return self.workload.training.batch * self.mesh.data * self.layout.micro_batches

    @property
    def throughput(self) -> float:
        """Return the throughput in samples per second."""
        return self.global_batch / self.step_time

    @cached_property
    def stalls(self) -> dict[Cause, float]:
        """Return seconds per step by cause, mean over ranks; they sum to the step time."""
        return {cause: sum(stage.stalls[cause] for stage in self.played.stages) / self.mesh.stages for cause in LAYOUT_STALLS}

    @cached_property
    def exposed(self) -> dict[str, float]:
        """Return the seconds per step during which compute waits for each kind of group, mean over ranks."""
        return {group: sum(stage.exposed[group] for stage in self.played.stages) / self.mesh.stages for group in GROUPS}

    @property
    def memory_peak_bytes(self) -> float:
        """Return the peak memory of torch's allocator on the fullest rank, in bytes."""
        return max(stage.allocated for stage in self.memory)

    @property
    def memory_verdict(self) -> FitVerdict:
        """Return whether every rank fits into memory: the worst verdict of all stages."""
        return worst_verdict(self.memory, self.node.gpu)

    def memory_over_time(self, stage: int) -> list[tuple[float, float, StageMemory]]:
        """Return (begin, end, memory) of each simulated instruction of *stage* in the last step: seconds, and bytes of one rank."""
        if not 0 <= stage < len(self.played.stages):
            raise SpecError(f"stage {stage}: a pipeline of {len(self.played.stages)} has stages 0 to {len(self.played.stages) - 1}")
        played = self.played.stages[stage]
        left_out = self.played.left_out
        simulated = replace(self.layout, micro_batches=self.layout.micro_batches - left_out) if left_out else self.layout
        course = memory_timeline(simulated, self.workload, self.node.gpu, stage)
        begins = (played.begin, *played.clock[:-1])
        return list(zip(begins, played.clock, course, strict=True)) if played.clock else []

    def completed(self) -> LayoutRun:
        """Return this run with all micro-batches in its log: simulated again if some were left out."""
        if not self.played.left_out:
            return self
        return run_layout(self.hardware, self.workload, self.mesh.gpus_per_node, seed=self.seed, complete=True)

    @property
    def model_flops_utilization(self) -> float | None:
        """Return the share of the GPUs' 16-bit peak used for the model's FLOP (MFU); None if they have no 16-bit units."""
        return model_flops_utilization(self.workload.model.layers, self.global_batch / self.step_time, [(self.node.gpu, self.gpus)])


def worker_node(hardware: Hardware) -> Node:
    """Return the node of the only group of workers. Raise SpecError if there are several kinds."""
    groups = hardware.worker_groups
    if len({id(group.node) for group in groups}) != 1:
        raise SpecError(
            f"training.parallel: {hardware.name} has {len(groups)} groups of workers; a layout needs a single group of identical nodes"
        )
    return groups[0].node


def prepare(
    hardware: Hardware, workload: Workload, gpus_per_node: int | None = None, nodes: int | None = None, check_deadlock: bool = True
) -> Layout:
    """Return the checked layout of *workload* on *hardware*. Raise SpecError if it is impossible.

    Without *check_deadlock*, a built-in schedule is not checked for deadlock.
    """
    node = worker_node(hardware)
    count = hardware.worker_nodes if nodes is None else nodes
    training = workload.training
    parallel, options = training.parallel, _on_host(mesh_options(workload), node.host.cpu)
    schedule = parallel.schedule or ("interleaved_1f1b" if parallel.virtual_stages > 1 else "1f1b")
    micro_batches = training.gradient_accumulation_steps
    if micro_batches > MOST_MICRO_BATCHES:
        raise SpecError(f"{shorten(micro_batches)} micro-batches per step are implausible; a step has at most {MOST_MICRO_BATCHES:,}")
    try:
        user_passes = own_passes(schedule, parallel.pipeline, parallel.chunks, micro_batches, options.sends_ahead)
        if user_passes is None:
            check_schedule(schedule, parallel.pipeline, parallel.chunks, micro_batches)
    except SpecError as error:
        raise SpecError([f"training.parallel: {problem}" for problem in error.problems]) from None
    if check_deadlock and user_passes is None:
        _check_deadlock(schedule, parallel, micro_batches)
    gpus = (gpus_per_node or node.gpu_count) * count
    try:
        units = split(_as_run(workload), parallel, options.gathers_again, ring_of(training, options))
    except SpecError:
        require_heads(workload.model, parallel, gpus)  # with advice that fits these GPUs
        raise
    _check_wraps(workload, units)
    require_tokens(workload.padded_sequence, parallel)
    check_saves(training, units)
    chunks = stages_of(units, parallel, *distribution_of(options, workload.model.transformer, parallel.virtual_stages))
    _check_shared(workload.model, units, chunks)
    experts = _experts(ModelKey(workload.model))
    mesh = mesh_of(parallel, [gpus_per_node or node.gpu_count] * count, options.order, experts)  # after what the model allows on any GPUs
    activation = PRECISION_TRAITS[training.precision].activation
    in_parts = sends_parts(options, parallel.tensor, parallel.sequence_parallel)
    shares = parallel.context * (parallel.tensor if parallel.sequence_parallel or in_parts else 1)
    width = training.batch * activation / 4.0 / shares * _tokens_share(workload)
    return Layout(
        mesh=mesh,
        options=options,
        units=units,
        chunks=chunks,
        schedule=schedule,
        micro_batches=micro_batches,
        gathered_width=min(activation, WIDTHS[options.weights]),
        reduced_width=WIDTHS[options.reduction],
        input_bytes=tuple(width * nbytes for nbytes in _entering(workload, units, chunks)),
        clips_gradients=training.stack.update.gradient_clipping,
        tied_bytes=_tied_gradient_bytes(workload, options),
        synchronizes_each=training.stack.synchronizes_each(parallel.shard),
        own_passes=user_passes,
    )


def _as_run(workload: Workload) -> Model:
    """Return the model with its layers as the stack runs them: without padding, if the stack leaves it out."""
    if not workload.training.stack.unpadded:
        return workload.model
    return workload.model.model_copy(update={"layers": layers_run(workload)})


def _tokens_share(workload: Workload) -> float:
    """Return the share of a sample's tokens that the stack processes: those that are not padding, if it leaves padding out."""
    lengths = workload.dataset.lengths
    return lengths.mean if workload.training.stack.unpadded and lengths is not None else 1.0


def _check_wraps(workload: Workload, units: Sequence[Unit]) -> None:
    """Raise SpecError if FSDP wraps parts of a numbered block that backward recomputes as a whole."""
    training = workload.training
    runs_again = training.activation_checkpointing in ("blocks", "operators") or bool(training.recompute_modules)
    cut = split_block(units, workload.model)
    if runs_again and cut:
        raise SpecError(
            f"training.parallel.wrap: wraps parts of {cut}, which activation_checkpointing: {training.activation_checkpointing} "
            "recomputes as a whole; wrap whole blocks, or write activation_checkpointing: none"
        )


def _check_deadlock(schedule: str, parallel: Parallel, micro_batches: int) -> None:
    """Raise SpecError with the cycle of waits if the stages of *schedule* deadlock."""
    cycle = _waits(schedule, parallel.pipeline, parallel.chunks, micro_batches)
    if cycle is not None:
        raise SpecError(f"training.parallel.schedule: {schedule} deadlocks: {'; '.join(cycle)}; write schedule: 1f1b")


@lru_cache(maxsize=256)
def _waits(schedule: str, stages: int, chunks: int, micro_batches: int) -> list[str] | None:
    """Return `find_deadlock` of a built-in schedule, memoized: these numbers determine its order."""
    return find_deadlock(schedule, [actions(schedule, stages, chunks, micro_batches, stage) for stage in range(stages)])


@lru_cache(maxsize=256)
def _experts(same: ModelKey) -> int:
    """Return the most experts of a layer of a model; 0 if it has none."""
    return max((layer.groups for layer in same.model.layers), default=0)


def _on_host(options: MeshOptions, cpu: Cpu) -> MeshOptions:
    """Return *options* with the host times of a machine with *cpu*."""
    factor = cpu.host_factor
    return options if factor == 1.0 else with_fields(options, **{name: factor * getattr(options, name) for name in HOST_TIMES})


def _first_layers(units: Sequence[Unit]) -> list[int]:
    """Return the index of the first layer of each of *units* in the model's own layers: equal units share one unit's layer names."""
    return [0, *accumulate(len(unit.pieces) for unit in units)]


def _check_shared(model: Model, units: Sequence[Unit], chunks: Sequence[Sequence[int]]) -> None:
    """Raise SpecError if layers of two chunks share parameters, except for an embedding table that the head uses again."""
    if len(chunks) == 1 or not tied_layers(ModelKey(model)):
        return
    starts = _first_layers(units)
    chunk_of: dict[str, int] = {}
    for chunk, numbers in enumerate(chunks):
        for layer in chain.from_iterable(model.layers[starts[unit] : starts[unit + 1]] for unit in numbers):
            chunk_of[layer.name] = chunk
            if chunk_of.get(layer.shares, chunk) != chunk and not next(one for one in model.layers if one.name == layer.shares).rows:
                raise SpecError(
                    f"training.parallel.pipeline: {layer.name} of {model.name} uses the parameters of {layer.shares}, which are on another "
                    "stage; change where stages begin (training.parallel.cuts), or use pipeline: 1"
                )


def _entering(workload: Workload, model_units: Sequence[Unit], chunks: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the bytes per sample (4 per element) that enter each chunk of the model; an empty chunk has the input of the next one."""
    starts, layers = _first_layers(model_units), workload.model.layers
    entering = [0.0]
    for units in reversed(chunks):
        entering.append(layers[starts[units[0]]].received_bytes if units else entering[-1])
    return entering[:0:-1]


def _tied_gradient_bytes(workload: Workload, options: MeshOptions) -> float:
    """Return the bytes of the gradient that the first and the last stage share, of an embedding table that the head uses again; else 0."""
    model = workload.model
    shared = tied_layers(ModelKey(model))
    table = next((layer for layer in model.layers if layer.name in shared and layer.rows), None) if shared else None
    return sum(table.gradients) / workload.training.parallel.tensor * WIDTHS[options.gradients] if table else 0.0


def run_layout(
    hardware: Hardware,
    workload: Workload,
    gpus_per_node: int | None = None,
    steps: int = 0,
    book: PriceBook | None = None,
    seed: int = 0,
    exact: bool = False,
    complete: bool = False,
    fits: Callable[[Layout, tuple[StageMemory, ...]], None] = lambda layout, memory: None,
    notice: Callable[[], None] = lambda: None,
) -> LayoutRun:
    """Simulate one step of *workload* on *hardware*, using *gpus_per_node* GPUs of each node (default: all).

    Layouts of one cluster and stack may share a *book* of cached message times. *seed* is for randomly drawn steps, whose mean is
    returned. Of many equal micro-batches, a few are simulated and logged; *complete* simulates all, as *steps* does (0: as many as it takes
    for a steady one) and *exact*, which also simulates ranks individually if only switches divide them unevenly (`play`). *fits* is called
    with layout and memory, and may raise before the simulation; *notice* is called before all micro-batches are simulated.
    """
    layout = prepare(hardware, workload, gpus_per_node)
    memory = memory_by_stage(layout, workload, worker_node(hardware).gpu)
    fits(layout, memory)
    scene = layout_scene(hardware, workload, layout, book, seed)
    if steps or exact or complete:
        notice()
        played = play(scene, steps, exact=exact)
    else:
        played = play_steadily(scene, notice)
    return LayoutRun(hardware, workload, layout, played, memory, seed)


def layout_scene(hardware: Hardware, workload: Workload, layout: Layout, book: PriceBook | None = None, seed: int = 0) -> LayoutScene:
    """Return everything that defines the simulation of *layout*; *seed* is for randomly drawn steps."""
    node, mesh, stack = worker_node(hardware), layout.mesh, workload.training.stack
    prices = layout_prices(hardware, workload, layout, book)
    times: dict[object, UnitTimes] = {}
    of_stage = []
    for stage in range(mesh.stages):
        key = prices.nodes_of(stage) if hardware.fabric.switches else mesh.place(mesh.rank(pipeline=stage))[1]
        if key not in times:
            times[key] = _times(node.gpu, workload, layout, prices, stage, book)
        of_stage.append(times[key])
    updates = tuple(_update(workload, node.gpu, layout, stage) for stage in range(mesh.stages))
    return LayoutScene(
        layout=layout,
        programs=programs_of(layout),
        times=of_stage,
        updates=updates,
        prices=prices,
        node=node,
        launch_cpu=0.0 if stack.kernels.cuda_graphs else stack.kernels.launch_cpu / node.host.cpu.launching,
        launch_blocking=stack.kernels.launch_blocking,
        overlap_slowdown=stack.exchange.overlap_slowdown,
        noise=LayoutNoise(
            _ranks(node.gpu, workload, mesh, *_intervals(workload, layout, of_stage[0])), seed if workload.training.noise.draw else None
        ),
        times_beside=_beside(workload, node.gpu, layout, prices) if layout.options.shares_device else None,
        feed=feed_of(node, workload, mesh),
        copy_time=copy_time(node, workload, mesh),
    )


def _intervals(workload: Workload, layout: Layout, times: UnitTimes) -> tuple[float, float]:
    """Return how many independent draws of jitter the first stage's ranks have per step, and after how many of them all of them meet.

    They have at most one per message inside units and per operation that the host waits for.
    """
    correlation_time = workload.training.noise.compute_correlation
    if correlation_time is None:
        return 1.0, 1.0
    passes = [times(unit, part) for unit in layout.units_of(0) for part in ("F", "B") if part == "F" or layout.units[unit].has_backward]
    draws = layout.micro_batches * sum(each.compute for each in passes) / correlation_time
    pieces = [piece for unit in layout.units_of(0) for piece in layout.units[unit].pieces]
    messages = layout.micro_batches * sum(len(piece.forward) + len(piece.backward) for piece in pieces)
    awaited = HOST_WAITS[layout.options.host_waits]
    stops = sum(isinstance(each, Start) and each.axis not in SHARED and each.op in awaited for each in programs_of(layout)[0])
    return max(1.0, min(draws, max(messages, stops))), max(1.0, min(draws, stops))


def _ranks(gpu: Gpu, workload: Workload, mesh: Mesh, intervals: float = 1.0, stage_intervals: float = 1.0) -> RankVariation:
    """Return which ranks wait for each other, and how their speeds vary."""
    parallel, (persistent, jitter) = mesh.parallel, deviations(workload, gpu)
    replica = parallel.tensor * parallel.context
    return RankVariation(
        inside=max(replica, parallel.expert),
        replica=replica,
        replicas=mesh.data,
        stages=mesh.stages,
        persistent_cv=persistent,
        compute_cv=jitter,
        tokens_cv=length_variation(workload),
        intervals=intervals,
        stage_intervals=stage_intervals,
    )


def _beside(workload: Workload, gpu: Gpu, layout: Layout, prices: LayoutPrices) -> Callable[[int, int, float], UnitTimes]:
    """Return a function for the times of a stage's units on the part of the GPU that collectives leave free."""

    @cache
    def times(stage: int, blocks: int, rate: float) -> UnitTimes:
        return _times(remaining_gpu(gpu, blocks, rate), workload, layout, prices, stage, None)

    return times


def times_of(hardware: Hardware, workload: Workload, layout: Layout, book: PriceBook, one_group: bool = False) -> list[UnitTimes]:
    """Return the times of units for each different placement of a stage within its nodes; layouts with the same *book* share them.

    With a structured fabric, stages may also differ in messages between nodes. *one_group*: as if no other group of a node sent messages.
    """
    gpu, mesh = worker_node(hardware).gpu, layout.mesh
    prices = replace(layout_prices(hardware, workload, layout, book), one_group=one_group)
    places = {mesh.place(mesh.rank(pipeline=stage))[1]: stage for stage in reversed(range(mesh.stages))}
    return [_times(gpu, workload, layout, prices, stage, book) for stage in places.values()]


def compute_times_of(hardware: Hardware, workload: Workload, layout: Layout, book: PriceBook) -> UnitTimes:
    """Return the times of units without messages, which are the same on every stage; layouts with the same *book* share them."""
    return _times(worker_node(hardware).gpu, workload, layout, layout_prices(hardware, workload, layout, book), 0, book, sends=False)


def least_compute(hardware: Hardware, workload: Workload, layout: Layout) -> float:
    """Return the least seconds of a step of *layout*: those for which the GPU of its mean stage computes."""
    times = compute_times_of(hardware, workload, layout, PriceBook())
    parts: dict[int, float] = {}
    for number, unit in enumerate(layout.units):
        if unit.content not in parts:
            passes: tuple[PassPart, ...] = ("F", "B") if unit.has_backward else ("F",)
            parts[unit.content] = sum(times(number, part).compute for part in passes)
    return layout.micro_batches * sum(parts[unit.content] for unit in layout.units) / layout.mesh.stages


def layout_prices(hardware: Hardware, workload: Workload, layout: Layout, book: PriceBook | None) -> LayoutPrices:
    """Return the prices of the messages of *layout*; layouts with the same *book* share them."""
    stack = workload.training.stack
    sockets = stack.library.gloo_transport if stack.library.backend == "gloo" else None
    tuning = tuning_of(stack.library)
    return LayoutPrices(hardware, layout.mesh, tuning, sockets, book=PriceBook() if book is None else book)


def _times(
    gpu: Gpu, workload: Workload, layout: Layout, prices: LayoutPrices, stage: int, book: PriceBook | None, sends: bool = True
) -> UnitTimes:
    parallel = layout.mesh.parallel
    entered = layout.chunks[1:] if sends_parts(layout.options, parallel.tensor, parallel.sequence_parallel) else ()
    gathered = frozenset(units[0] for units in entered if units)
    times = UnitTimes(workload, gpu, layout.units, prices, stage, layout.options, layout.micro_batches, layout.adds_shards, sends, gathered)
    if book is not None:
        times.share(book)
    return times


def _update(workload: Workload, gpu: Gpu, layout: Layout, stage: int) -> tuple[float, float]:
    """Return the GPU seconds and launches of the optimizer on one rank of *stage*."""
    mesh, level = layout.mesh, layout.mesh.parallel.shard
    dense, experts = (sum(layout.elements(unit, experts=each, trained=True) for unit in layout.units_of(stage)) for each in (False, True))
    if level != "none":
        dense, experts = dense / mesh.group_size("shard"), experts / mesh.group_size("expert_data")
    tensors = sum(len(piece.layer.gradients) for unit in layout.units_of(stage) for piece in layout.units[unit].pieces)
    return optimizer_time(workload, gpu, layout.options, dense + experts, tensors)


def predict(hardware: Hardware, workload: Workload, nodes: int, gpus_per_node: int | None = None) -> LayoutRun:
    """Simulate *workload* on *nodes* nodes like those of *hardware*."""
    return run_layout(with_nodes(hardware, nodes), workload, gpus_per_node)
