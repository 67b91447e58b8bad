"""Which layouts of a model are possible on a cluster? Axes, sharding, schedule, micro-batch and order, for a fixed global batch.

Each stack has the layouts that its framework runs: FSDP2 (torchtitan) shards parameters or replicates, Megatron-LM shards the optimizer or
nothing, or gradients or parameters (Megatron-FSDP) if that is fixed, DeepSpeed has ZeRO 1 to 3; axes, schedules and sequence parallelism
are those of the stack's ``mesh``. Tensor groups stay inside a node unless ``wide_tensor`` is allowed. Features that change numerics or are
not validated (fp8, zero-bubble schedules) are included only if they are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple, get_args

from sim.parallel.own_schedule import own_passes
from sim.parallel.schedule import check_schedule
from sim.parallel.split import split, split_block, token_multiple
from sim.spec.extensions import SCHEDULES as OWN
from sim.spec.extensions import extension, names, registration_count
from sim.spec.parallel import NEAR_PIPELINE, SCHEDULES, SPLIT_AXES, MeshOptions, Parallel, Schedule, Shard, SplitAxis
from sim.spec.strict import whole_number
from sim.spec.training import Checkpointing
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

ALLOWED: Final[Mapping[str, str]] = {
    "recompute": "activation checkpointing of blocks",
    "virtual": "interleaved pipelines",
    "context": "context parallelism",
    "order": "stages on neighboring nodes",
    "own_schedule": "your own schedules (entry points stallsim.schedules)",
    "no_sequence": "tensor parallelism without sequence parallelism, if the framework allows it",
    "selective": "recomputation of attention only",
    "fp8": "8-bit products",
    "nvfp4": "4-bit products (Megatron's stacks)",
    "zero_bubble": "schedules zbv and dualpipev (torchtitan); not validated by measured runs",
    "gpipe": "schedule gpipe",
    "wide_tensor": "tensor groups across nodes",
}
DEFAULT: Final = frozenset({"recompute", "virtual", "context", "order", "own_schedule"})
ZERO_BUBBLE: Final[tuple[tuple[Schedule, int], ...]] = (("zb_h1", 1), ("zbv", 2), ("dualpipev", 2))
"""Schedules that split backward, with their chunks per rank."""
SHORTEST: Final = 2048
"""Minimum tokens of a sequence on one rank of a context group."""
MOST_VIRTUAL: Final = 10
"""Maximum chunks per rank."""
FIXED: Final[Mapping[str, str]] = {
    "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert", "vp": "virtual_stages", "sp": "sequence",
    "recompute": "checkpointing",
}  # fmt: skip
"""Short names of fields."""


class LayoutCandidate(NamedTuple):
    """One layout on *nodes* nodes; fields are those of `Parallel` and of ``training``."""

    nodes: int
    stack: str
    precision: str
    tensor: int
    sequence: bool
    context: int
    pipeline: int
    expert: int
    data: int
    replicate: int
    shard: Shard
    reshard: bool | None
    schedule: str
    virtual_stages: int
    batch: int
    micro_batches: int
    checkpointing: Checkpointing
    near: bool
    """Whether stages, rather than data ranks, are neighbors."""

    @property
    def parallel(self) -> Parallel:
        """Return the layout as a description holds it."""
        sequence = self.sequence if self.tensor > 1 else False  # not None, so that it never is plain data parallelism without a mesh
        return Parallel(
            tensor=self.tensor, sequence=sequence, context=self.context, pipeline=self.pipeline, expert=self.expert,
            replicate=self.replicate, shard=self.shard, reshard_after_forward=self.reshard,
            schedule=self.schedule if self.pipeline > 1 else None, virtual_stages=self.virtual_stages if self.pipeline > 1 else 1,
            order=NEAR_PIPELINE if self.near else (),
        )  # fmt: skip

    @property
    def chunks(self) -> int:
        """Return the chunks of layers per rank."""
        return self.virtual_stages if self.pipeline > 1 else 1

    @property
    def parts(self) -> int:
        """Return the chunks of layers of the whole pipeline."""
        return self.pipeline * self.chunks

    @property
    def split(self) -> tuple[int, bool, int, int]:
        """Return the fields that determine the share of a layer that one rank has."""
        return self.tensor, self.sequence, self.context, self.expert


@dataclass(frozen=True)
class Space:
    """The possible layouts of one plan."""

    global_batch: int
    allowed: Set[str] = DEFAULT
    fixed: Mapping[str, str] | None = None
    """Fields of `LayoutCandidate` with a fixed value."""
    structured: bool = False
    """Whether the position of nodes below the switches matters."""


def candidates(workload: Workload, nodes: int, gpus_per_node: int, space: Space) -> list[LayoutCandidate]:
    """Return every layout that the stack of *workload* can run on *nodes* nodes with *gpus_per_node* GPUs each.

    Raise SpecError for a stack that runs no layouts, and for a fixed field that does not exist.
    """
    options = workload.training.stack.mesh
    if options is None:
        raise SpecError(f"--stack {workload.training.stack.name}: runs plain data parallelism only; write torchtitan-2.x or megatron-core")
    fixed = parse_fixed(space.fixed or {})
    every = _all_candidates(workload, options, nodes, gpus_per_node, space)
    return [each for each in every if _matches(each, fixed)] if fixed else list(every)


def unsupported_option(workload: Workload, space: Space) -> str:
    """Return a sentence on the first option of *space* that the workload's stack does not support; empty if there is none."""
    stack, options, fixed = workload.training.stack.name, workload.training.stack.mesh, space.fixed or {}
    if options is None:
        return ""
    has = f"{stack} has the schedules {', '.join(options.schedules)}"
    for key, value in parse_fixed(fixed).items():
        option = next(f"--fix {name}={fixed[name]}" for name in fixed if FIXED.get(name, name) == key)
        if key in SPLIT_AXES and key not in options.axes and value != 1:
            return f"{option}: {stack} does not support {key} parallelism; leave it out, or name another --stack"
        if key == "schedule" and value in SCHEDULES and value not in options.schedules:
            return f"{option}: {has}; write one of these, or name another --stack"
        if key == "shard" and value not in options.shards:
            return f"{option}: {stack} shards {', '.join(options.shards)}; write one of these, or name another --stack"
        if key == "checkpointing" and not options.recomputes and value in ("blocks", "selective", "operators"):
            return f"{option}: {stack} recomputes neither blocks nor attention; leave it out, or name another --stack"
        if key == "sequence" and value is (options.sequence == "never") and options.sequence != "either":
            return f"{option}: tensor ranks of {stack} {options.sequence} split sequences; leave it out, or name another --stack"
    for name, any_of in (("gpipe", ("gpipe",)), ("zero_bubble", tuple(each for each, _ in ZERO_BUBBLE))):
        if name in space.allowed and not set(any_of) & set(options.schedules):
            return f"--allow {name}: {has}; leave it out, or name another --stack"
    if "selective" in space.allowed and not options.recomputes:
        return f"--allow selective: {stack} recomputes neither blocks nor attention; leave it out, or name another --stack"
    if "no_sequence" in space.allowed and options.sequence != "either":
        return f"--allow no_sequence: tensor ranks of {stack} {options.sequence} split sequences; leave it out, or name another --stack"
    return ""


def parse_fixed(texts: Mapping[str, str]) -> Mapping[str, object]:
    """Return the *texts* fields of a candidate with their values.

    Raise SpecError for fields and values that do not exist, and for a field that two names give two values.
    """
    fields: dict[str, object] = {}
    keys: dict[str, str] = {}
    for key, text in texts.items():
        name = FIXED.get(key, key)
        if name not in LayoutCandidate._fields or name in ("nodes", "data"):
            names = ", ".join(sorted({*FIXED, *LayoutCandidate._fields} - {"nodes", "data"}))
            raise SpecError(f"--fix {key}={text}: there is no field {key}; write one of {names}")
        kind = LayoutCandidate.__annotations__[name]
        value = _value(f"--fix {key}={text}", name, text, str(getattr(kind, "__forward_arg__", kind)))
        if fields.setdefault(name, value) != value:
            raise SpecError(f"--fix {key}={text}: contradicts {keys[name]}={texts[keys[name]]}; write one of the two")
        keys.setdefault(name, key)
    return fields


def _value(option: str, name: str, text: str, kind: str) -> object:
    if kind == "int":
        number = whole_number(text)
        if not number:
            raise SpecError(f"{option}: write a whole number of 1 or more")
        return number
    if "bool" in kind:
        if text.lower() not in ("true", "false"):
            raise SpecError(f"{option}: write true or false")
        return text.lower() == "true"
    if name == "schedule" and text not in SCHEDULES:
        try:
            extension(OWN, text, SCHEDULES)
        except SpecError as error:
            raise SpecError(f"{option}: {error}") from None
        return text
    choices = {"shard": get_args(Shard), "checkpointing": get_args(Checkpointing)}.get(name, ())
    if choices and text not in choices:
        raise SpecError(f"{option}: write one of {', '.join(choices)}")
    return text


def precisions(workload: Workload, space: Space) -> list[str]:
    """Return the precisions to try, the workload's own first: only Megatron's stacks multiply in NVFP4, and FP8 depends on the recipe."""
    options = workload.training.stack.mesh
    more = {"fp8": workload.training.supports_recipe, "nvfp4": options is not None and options.framework == "megatron"}
    return list(dict.fromkeys([workload.training.precision, *(name for name, has in more.items() if has and name in space.allowed)]))


def _matches(candidate: LayoutCandidate, fixed: Mapping[str, object]) -> bool:
    return all(getattr(candidate, name) == value for name, value in fixed.items())


def _all_candidates(workload: Workload, options: MeshOptions, nodes: int, gpus_per_node: int, space: Space) -> Iterator[LayoutCandidate]:
    gpus, stack = nodes * gpus_per_node, workload.training.stack.name
    kinds = [unit.kind for unit in split(workload.model, Parallel())]
    blocks = kinds.count("block")
    cut = cut_parts(workload.training.parallel)
    widths = precisions(workload, space)
    modes = checkpointing_modes(workload, space)
    apart = split_block(split(workload.model, Parallel(shard="parameters", wrap=workload.training.parallel.wrap)), workload.model)
    fixed_shard = str(parse_fixed(space.fixed or {}).get("shard", ""))
    modes_of_shards = [mode for mode in modes if mode != "blocks"] if apart else modes
    for tensor, sequence, context, pipeline, expert in _axes(workload, options, max(blocks, cut), gpus, gpus_per_node, space):
        data = gpus // (tensor * context * pipeline)
        near_too = (
            options.framework == "megatron"
            and pipeline > 1
            and data > 1
            and _order_matters(nodes, tensor * context % gpus_per_node == 0, space)
        )
        orders = (False, True) if near_too else (False,)
        memory = [
            (shard, reshard, replicate, mode)
            for shard, reshard, replicate in _sharding(options, data, gpus_per_node, (tensor, context, pipeline, expert), fixed_shard)
            for mode in (modes_of_shards if shard == "parameters" else modes)
        ]
        for batch in divisors(space.global_batch // data) if space.global_batch % data == 0 else ():
            micro_batches = space.global_batch // (data * batch)
            schedules = _schedules(options, pipeline, (blocks, cut), micro_batches, space)
            for (schedule, virtual), (shard, reshard, replicate, mode), precision, near in product(schedules, memory, widths, orders):
                yield LayoutCandidate(
                    nodes, stack, precision, tensor, sequence, context, pipeline, expert, data, replicate, shard,
                    reshard, schedule, virtual, batch, micro_batches, mode, near,
                )  # fmt: skip


def cut_parts(parallel: Parallel) -> int:
    """Return into how many chunks a workload's own layout cuts its model; 0 if it does not specify that."""
    return len(parallel.cuts) + 1 if parallel.cuts else len(parallel.layers_per_stage)


def _order_matters(nodes: int, whole_nodes: bool, space: Space) -> bool:
    """Return whether the order of the axes matters: with *whole_nodes* it only permutes nodes, which may all be equal."""
    return "order" in space.allowed and nodes > 1 and (space.structured or not whole_nodes)


def checkpointing_modes(workload: Workload, space: Space) -> list[Checkpointing]:
    """Return the checkpointing modes to try: the workload's own, and others that are allowed."""
    own = workload.training.activation_checkpointing
    options = workload.training.stack.mesh
    modes: list[Checkpointing] = ["none" if own == "model" and not any(layer.segment for layer in workload.model.layers) else own]
    if options is not None and not options.recomputes:
        return modes
    if "recompute" in space.allowed and "blocks" not in modes:
        modes.append("blocks")
    if "selective" in space.allowed and "selective" not in modes and not workload.training.recompute_saves:  # these need blocks
        modes.append("selective")
    return modes


def _axes(
    workload: Workload, options: MeshOptions, blocks: int, gpus: int, gpus_per_node: int, space: Space
) -> Iterator[tuple[int, bool, int, int, int]]:
    """Yield (tensor, sequence, context, pipeline, expert) that the framework supports and that divide GPUs, heads, experts and tokens."""
    most = {name: gpus if name in options.axes else 1 for name in SPLIT_AXES}
    tokens = workload.padded_sequence or 0
    experts = [size for size in divisors(max((layer.groups for layer in workload.model.layers), default=0) or 1) if size <= most["expert"]]
    for tensor, context in _tensor_and_context(workload, most, gpus, gpus_per_node, space):
        pipelines = [size for size in divisors(gpus // (tensor * context)) if size <= min(blocks, most["pipeline"])]
        for pipeline, expert in ((stages, size) for stages in pipelines for size in experts if gpus // stages % size == 0):
            for sequence in _sequence(options, tensor, expert, space):
                if tokens % token_multiple(Parallel(tensor=tensor, sequence=sequence, context=context)) == 0:
                    yield tensor, sequence, context, pipeline, expert


def _tensor_and_context(
    workload: Workload, most: Mapping[SplitAxis, int], gpus: int, gpus_per_node: int, space: Space
) -> Iterator[tuple[int, int]]:
    """Yield (tensor, context) of which the product divides *gpus*, each up to *most* ranks, if heads and tokens are enough for them."""
    tokens = workload.sequence or 0
    for tensor in divisors(gpus if "wide_tensor" in space.allowed else gpus_per_node):
        if gpus % tensor or tensor > min(8 * gpus_per_node, most["tensor"]) or not _splits(workload, tensor):
            continue
        for context in divisors(gpus // tensor):
            if context == 1 or ("context" in space.allowed and context <= most["context"] and tokens / context >= SHORTEST):
                yield tensor, context


def _sequence(options: MeshOptions, tensor: int, expert: int, space: Space) -> tuple[bool, ...]:
    """Return whether tensor groups also split sequences: as in the framework, or both ways if both are allowed."""
    if options.sequence == "never" or tensor == 1:
        return (False,)
    without = "no_sequence" in space.allowed and expert == 1 and options.sequence == "either"  # experts need it (Megatron-LM)
    return (True, False) if without else (True,)


def _splits(workload: Workload, tensor: int) -> bool:
    """Return whether tensor groups of this size can split the layers of the model."""
    try:
        split(workload.model, Parallel(tensor=tensor))
    except SpecError:
        return False
    return True


def fsdp_left_out(workloads: Sequence[Workload], fixed: Mapping[str, str]) -> list[str]:
    """Return a sentence on layouts of Megatron-FSDP that are not searched with *fixed*; empty if no stack of *workloads* has any."""
    meshes = [workload.training.stack.mesh for workload in workloads]
    if "shard" in fixed or not any(mesh is not None and mesh.framework == "megatron" for mesh in meshes):
        return []
    return [
        "layouts of Megatron-FSDP, which shards gradients or parameters, are among them only with --fix shard=gradients or shard=parameters"
    ]


def _schedules(options: MeshOptions, stages: int, parts: tuple[int, int], micro_batches: int, space: Space) -> Iterator[tuple[str, int]]:
    """Yield (schedule, virtual stages) that run *micro_batches*; a model has at most as many chunks as blocks, or those of its own cuts."""
    blocks, cut = parts
    framework = options.framework
    if stages == 1:
        yield "1f1b", 1
        return
    wanted: list[tuple[Schedule, int]] = [("1f1b", 1)]
    if "gpipe" in space.allowed:
        wanted.append(("gpipe", 1))
    if "virtual" in space.allowed:
        wanted += [("interleaved_1f1b", size) for size in _virtual(framework, stages, blocks)]
    if "zero_bubble" in space.allowed:
        wanted += ZERO_BUBBLE
    for schedule, virtual in (each for each in wanted if each[0] in options.schedules):
        if (stages * virtual > blocks and stages * virtual != cut) or (
            framework == "megatron" and schedule == "interleaved_1f1b" and micro_batches % stages
        ):
            continue
        try:
            check_schedule(schedule, stages, virtual, micro_batches)
        except SpecError:
            continue
        yield schedule, virtual
    if "own_schedule" in space.allowed:
        chunks = [1, *(_virtual(framework, stages, blocks) if "virtual" in space.allowed else [])]
        for name in names(OWN):
            few = _few(micro_batches, stages)
            able = (size for size in chunks if stages * size <= blocks or stages * size == cut)
            runs = (size for size in able if _runs(name, registration_count(OWN, name), stages, size, few, options.sends_ahead))
            yield from ((name, size) for size in runs)


def _few(micro_batches: int, stages: int) -> int:
    """Return the micro-batches with which a user's own schedule is tried: two rounds of *stages* represent any more whole rounds.

    The passes of many micro-batches take seconds to generate, and are all checked only for the few layouts that a search refines.
    """
    return 2 * stages if micro_batches > 2 * stages and micro_batches % stages == 0 else micro_batches


@lru_cache(maxsize=65536)
def _runs(name: str, given: int, stages: int, chunks: int, micro_batches: int, sends_ahead: bool) -> bool:
    """Return whether the user's schedule *name* runs on such a pipeline; *given* counts the objects of that name, for the cache."""
    try:
        own_passes(name, stages, chunks, micro_batches, sends_ahead)
    except SpecError:
        return False
    return True


def _virtual(framework: str, stages: int, blocks: int) -> Sequence[int]:
    """Return the possible numbers of chunks per rank, which may differ by a block (Megatron-LM's ``pipeline_model_parallel_layout``).

    torchtitan has two chunks per rank unless its file says otherwise (distributed/pipeline_parallel.py); four are tried as well.
    """
    sizes = range(2, MOST_VIRTUAL + 1) if framework == "megatron" else (2, 4)
    return [size for size in sizes if stages * size <= blocks]


def _sharding(
    options: MeshOptions, data: int, gpus_per_node: int, ranks: tuple[int, int, int, int], fixed: str = ""
) -> Iterator[tuple[Shard, bool | None, int]]:
    """Yield (shard, reshard after forward, replicas) that the framework supports for *data* ranks with the other axes in *ranks*.

    *ranks* are (tensor, context, pipeline, expert). torchtitan replicates with no other axis ("DDP has not supported > 1D parallelism"),
    and takes the ranks of experts from one replica. Megatron-FSDP shards gradients or parameters (megatron/training/arguments.py,
    --data-parallel-sharding-strategy); these layouts are among the others only if that is *fixed*.
    """
    tensor, context, pipeline, expert = ranks
    titan = options.framework == "fsdp2"
    if not titan or data * context == 1 or max(ranks) == 1:
        yield "none", None, 1
    if data * context == 1:
        return
    if options.framework in ("megatron", "nanotron", "deepspeed"):
        yield "optimizer", None, 1
    if options.framework == "deepspeed" and pipeline == 1:
        yield "gradients", None, 1
    if options.framework == "megatron":
        yield from (("gradients", None, 1),) if fixed == "gradients" else (("parameters", None, 1),) if fixed == "parameters" else ()
    if options.framework in ("fsdp1", "fsdp2", "deepspeed"):
        inside = max(1, gpus_per_node // (tensor * context))
        replicas = {1, *(data // size for size in (inside, 8 * inside) if 1 < size < data and data % size == 0)}
        for replicate in sorted(replicas):
            if titan and (data // replicate * context * tensor) % expert:
                continue
            for reshard in (None, False) if pipeline == 1 and options.framework != "deepspeed" else (None,):
                yield "parameters", reshard, replicate


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of *number*, ascending."""
    return tuple(size for size in range(1, number + 1) if number % size == 0)
