"""Which numbers can a user write, and does turning one move anything that a run says?

Scenarios are runs of the catalog that between them use every part of the program. `moves` turns one field, in every block that has
it, of a scenario's descriptions and compares what the run says: its document, or the refusal to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple, get_args, get_origin

from sim.check import check_hardware, check_job, check_workload, job_warnings, require
from sim.cluster.build import Placement
from sim.mesh import LayoutRun, run_layout
from sim.report.document import run_document
from sim.report.layouts.layout import layout_document
from sim.simulate import ring_channels_of, simulate
from sim.spec.adapters import trained_layers
from sim.spec.fields import Spec
from sim.spec.hardware import Hardware
from sim.spec.memo import caching
from sim.spec.sections import file_fields, file_values, with_fields
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.layout import LayoutAnswer, layout_answer
from sim.study.memory_fit import memory_problem
from sim.study.scenario import Scenario, has_layout, prepare
from sim.training.job import Job

_SMALL = ("dataset.samples=20000", "training.batch=16")
_DISK = ("node.host.memory=8 GiB", "dataset.samples=100000", "node.storage.volume.burst_credits=5000", "node.storage.volume.io_size=64 KiB")
_SYNTHETIC = ("input.loader=synthetic", *_SMALL)
_SERVERS = "training.stack.servers"
_TP = ("--tp", "parallel.tensor", 4)
_PP = ("--pp", "parallel.pipeline", 2)
_EP = ("--ep", "parallel.expert", 8)
_CP = ("--cp", "parallel.context", 2)
_FSDP = ("--shard", "parallel.shard", "parameters")
_ZERO = ("--shard", "parallel.shard", "optimizer")
_REPLICATE = ("--replicate", "parallel.replicate", 2)
_MESH = "training.stack.mesh"
_OVERLAP = (f"{_MESH}.tensor_overlap=0.5", f"{_MESH}.expert_overlap=0.5", f"{_MESH}.bucket_elements=1000000000")
_HOST = (
    f"{_MESH}.expert_host=50 ms", f"{_MESH}.expert_launch=1 ms", f"{_MESH}.block_host=20 ms", f"{_MESH}.tensor_host=2 ms",
    f"{_MESH}.module_host=4 ms", f"{_MESH}.quantize_host=4 ms", f"{_MESH}.checkpoint_host=4 ms", f"{_MESH}.collective_check=5 ms",
)  # fmt: skip
_PAIRS = (
    f"{_MESH}.paired_schedules=[1f1b]", f"{_MESH}.expert_blocks=20", f"{_MESH}.one_copy=true", "model.transformer.expert_groups=8",
    "model.transformer.groups_per_token=4",
)  # fmt: skip
_SHAPE = tuple(f"model.transformer.{key}" for key in ("mla.q_rank=512", "prediction_layers=1", "shared_expert_ffn=2816"))
_MICRO = "training.gradient_accumulation_steps"
_CK = "training.activation_checkpointing=blocks"
_TOP_K = ("method=top_k", "density=0.1", "source=test")
_POWER_SGD = ("method=power_sgd", "rank=40", "source=test")
_STREAM = (
    "input.stream.store=object-store", "input.stream.store.bandwidth=1 MB/s", "input.stream.compressed=0.9", "input.stream.shard=2 MB",
)  # fmt: skip
"""Four nodes of one-billion decoders request more than that."""
_HYBRID = tuple(
    f"model.transformer.{key}"
    for key in (
        "layers=8", "pattern=MEG-*EC-", "block_letters=2", "short_conv=4", "ffn=4096", "experts=16", "experts_per_token=2",
        "expert_latent=512", "mamba.heads=64", "delta_net.key_heads=16", "delta_net.value_heads=32",
    )
)  # fmt: skip
SCENARIOS = (
    Scenario("hgx-h100", "nemotron-3-super-120b-a12b", (*_HYBRID, _CK), stack="megatron-core", nodes=1, layout=(_ZERO,)),
    Scenario("p3.16xlarge", "resnet18", _SMALL),
    Scenario(
        "p3.16xlarge",
        "resnet18",
        (
            "input.loader=synthetic", "training.noise.compute_cv=0.02", "training.noise.persistent_cv=0.02",
            "training.stack.distributed_overhead=2 ms",
            "training.stack.first_bucket_cap=2 MiB", "node.nic.transport.cpu_time_per_byte=10 s/GB", *_SMALL,
        ),
        nodes=2,
    ),
    Scenario("p3.2xlarge", "alexnet", ("node.storage.volume.size=100 GiB", "input.worker_start=2 s", *_DISK)),
    Scenario("p3.2xlarge", "alexnet", ("node.storage.volume.size=10 GiB", "node.storage.iops=500 IOPS", *_DISK)),
    Scenario("p3.2xlarge", "alexnet", ("node.storage.volume.size=900 GiB", "node.storage.volume.max_iops=400 IOPS", *_DISK)),
    Scenario("p2.8xlarge", "shufflenet_v2_x0_5", ("input.loader=dali_gpu", *_SMALL), stack="apex-per-tensor"),
    Scenario("p3.2xlarge", "shufflenet_v2_x0_5", ("node.host.cpu.launch_speed=0.3", *_SYNTHETIC)),
    Scenario("p3.16xlarge", "resnet18", ("input.loader=dali_cpu", "input.num_threads=1", *_SMALL)),
    Scenario(
        "p3.8xlarge",
        "alexnet",
        (
            "fabric.latency=20 us", "fabric.core_bandwidth=4 Gbps", "node.topology.host_bridge_bandwidth=1 GB/s",
            "input.loader=synthetic", *_SMALL,
        ),
        nodes=2,
    ),
    Scenario(
        "p2.16xlarge",
        "alexnet",
        (
            "node.topology.peer_to_peer=none", "node.topology.socket_copy_bandwidth=1 GB/s", "node.host_transport.channel_cap=10 GB/s",
            "training.stack.strategy=flat", *_SYNTHETIC,
        ),
    ),
    Scenario(
        "p2.8xlarge",
        "alexnet",
        ("node.host_transport.channel_cap=100 MB/s", "training.stack.strategy=flat", *_SYNTHETIC),
    ),
    Scenario(
        "p2.8xlarge",
        "alexnet",
        (
            "node.topology.peer_to_peer=none", "node.topology.host_copy_bandwidth=3 GB/s", "training.stack.strategy=flat", *_SYNTHETIC,
        ),
    ),
    Scenario(
        "p3.2xlarge",
        "alexnet",
        (
            *(f"fabric.leaf_spine.{key}" for key in ("nodes_per_leaf=2", "oversubscription=8", "radix=4", "pods.leaves=2")),
            "fabric.leaf_spine.pods.oversubscription=1.5", *_SYNTHETIC,
        ),
        nodes=8,
    ),
    Scenario(
        "p3.2xlarge", "alexnet", ("fabric.leaf_spine.nodes_per_leaf=4", "fabric.leaf_spine.uplink_bandwidth=1 Gbps", *_SYNTHETIC), nodes=8
    ),
    *(
        Scenario(
            "p3.2xlarge",
            "alexnet",
            (
                *(f"fabric.dragonfly.{key}" for key in ("nodes_per_router=2", "routers_per_group=2", "groups=3", "radix=5")),
                *(f"fabric.dragonfly.{key}" for key in ("global_links=1", f"local_bandwidth={local}", f"global_bandwidth={beyond}")),
                *_SYNTHETIC,
            ),
            nodes=12,
        )
        for local, beyond in (("1 Gbps", "10 Gbps"), ("10 Gbps", "1 Gbps"))
    ),
    Scenario("p3.2xlarge", "alexnet", ("fabric.torus.dimensions=[4, 2]", "fabric.torus.link_bandwidth=1 Gbps", *_SYNTHETIC), nodes=8),
    Scenario("p4d.24xlarge", "bert-base-seq128", ("training.stack.channels=4", *_SMALL), nodes=2),
    Scenario("p4d.24xlarge", "resnet18", ("node.gpu.persistent_cv=0.02", *_SYNTHETIC)),
    Scenario("p3.2xlarge", "bert-base-seq128", ("training.precision=amp_fp16", *_SYNTHETIC)),
    Scenario("g4dn.12xlarge", "resnet18", _SYNTHETIC, nodes=2),
    Scenario("g4dn.12xlarge", "resnet18", ("node.gpu=a40", "node.topology.bridged=true", *_SYNTHETIC), gpus=2),
    Scenario("p3.2xlarge", "resnet18", ("node.gpu.host_cores=3", "input.num_workers=4", *_SMALL)),
    Scenario("p3.2xlarge", "resnet18", ("training.stack.gradient_hooks=100", "training.stack.gradient_checks=30", *_SYNTHETIC)),
    Scenario("p3.2xlarge", "bert-base-seq128", ("training.stack.composed_traffic=3", *_SYNTHETIC)),
    Scenario("p3.2xlarge", "bert-base-seq128", ("training.precision=amp_fp16", "node.gpu.tensor_core_rate=0.1", *_SYNTHETIC)),
    Scenario(
        "p3.8xlarge",
        "bert-base-seq512",
        (
            "training.stack.unpadded=true", "training.stack.score_passes=4", "training.stack.length_imbalance=0.5",
            "input.loader=synthetic", "dataset.samples=20000", "training.batch=4",
        ),
    ),
    Scenario("p3.2xlarge", "vgg16", ("training.batch=110", "dataset.samples=20000")),
    Scenario("p3.16xlarge", "resnet18", ("training.stack.strategy=apex", *_SYNTHETIC), nodes=2),
    Scenario(
        "p3.16xlarge",
        "resnet18",
        (
            "training.stack.strategy=horovod", "training.stack.fusion.threshold=4 MiB", "training.stack.fusion.cycle_time=2 ms",
            "training.stack.fusion.response_cache=50", "training.stack.fusion.control_latency=50 us",
            "training.stack.fusion.request_time=1 us", "training.stack.fusion.source=test", *_SYNTHETIC,
        ),
        nodes=2,
    ),
    Scenario("p3.16xlarge", "resnet18", tuple(f"training.stack.compression.{key}" for key in _TOP_K) + _SYNTHETIC, nodes=2),
    Scenario("p3.16xlarge", "resnet18", tuple(f"training.stack.compression.{key}" for key in _POWER_SGD) + _SYNTHETIC, nodes=2),
    Scenario(
        "p3.16xlarge",
        "bert-base-seq128",
        ("training.stack.sparse_embeddings=true", "model.layers.1.rows=30522", "model.layers.1.rows_per_sample=20", *_SYNTHETIC),
        nodes=2,
    ),
    Scenario("cm-dare-p100", "resnet15-cifar", (f"{_SERVERS}.update_cpu=1 ms", "dataset.samples=20000"), stack="tf-parameter-server"),
    Scenario(
        "cm-dare-p100",
        "resnet15-cifar",
        (
            f"{_SERVERS}.racks=2", f"{_SERVERS}.count=2", f"{_SERVERS}.sharding=chunks", f"{_SERVERS}.update_cpu=1 ms",
            "dataset.samples=20000",
        ),
        stack="tf-parameter-server-sync",
    ),
    Scenario(
        "p3.2xlarge",
        "bert-base-seq384",
        (
            "training.precision=amp_fp16", "model.layers.1.frozen=[1000000]", "model.unused=1000", "model.parameters=109894186",
            "model.layers.20.segment=4", "model.layers.21.segment=5", *_SYNTHETIC,
        ),
    ),
    Scenario(
        "p3.16xlarge", "resnet18", ("training.parallel.cuts=[layer3.0.conv2]", "training.batch=8", f"{_MICRO}=4"), stack="torchtitan-2.x",
        layout=(_PP,),
    ),
    *(
        Scenario("hgx-h100", "llama-3.2-1b", ("training.batch=1", *sets), precision="fp8", fp8_recipe=recipe, stack=stack)
        for sets, recipe, stack in (
            (("training.stack.fused_casts=[feed.down]",), None, "megatron-core"),
            ((f"{_MESH}.quantize_host=10 ms",), "blockwise", "megatron-core"),
            (("training.stack.casts_again=false",), "rowwise", "torchtitan-2.x"),
        )
    ),
    *(
        Scenario("hgx-h100", workload, (*sets, "training.batch=1"), nodes=nodes, stack=stack, layout=layout)
        for workload, sets, nodes, stack, layout in (
            ("llama-2-7b", (f"{_MICRO}=8",), 2, "torchtitan-2.x", (_TP, _PP)),
            ("llama-3.1-8b", ("model.lora={rank: 16}", f"{_MICRO}=16", _CK), 2, "torchtitan-2.x", (_TP, ("--pp", "parallel.pipeline", 4))),
            ("llama-3.1-8b", ("training.parallel.reshard_after_forward=4",), 2, "torchtitan-2.x", (_FSDP, _REPLICATE)),
            ("mixtral-8x7b", ("model.transformer.shared_experts=1", *_OVERLAP, _CK), 4, "megatron-core", (_TP, _EP, _ZERO)),
            ("mixtral-8x7b", (*_HOST, _CK, "training.noise.compute_correlation=10 ms"), 4, "megatron-core", (_TP, _EP, _ZERO)),
            ("qwen3-30b-a3b", (*_PAIRS, f"{_MICRO}=4", _CK), 4, "megatron-core", (_EP, _ZERO)),
            ("deepseek-v2-lite", (*_SHAPE, _CK), 4, "torchtitan-2.x", (_EP, _FSDP)),
            ("gemma-2-2b", (_CK,), 1, "torchtitan-2.x", (_FSDP,)),
            ("nanotron-1b", (), 16, "nanotron", (_TP, _ZERO)),
            ("bloom-560m", ("training.stack.score_passes=null", f"{_MICRO}=8"), 1, "megatron-deepspeed", (_TP, _PP, _ZERO)),
            ("llama-3.2-1b", (*_STREAM, "input.stream.library=mosaic"), 4, "torchtitan-2.x", (_FSDP,)),
            ("llama-3.2-1b", (*_STREAM, "input.stream.library=huggingface", "input.stream.files=32"), 4, "torchtitan-2.x", (_FSDP,)),
            (
                "llama-3.1-8b", ("training.parallel.layers_per_stage=[8, 8, 8, 8]", f"{_MICRO}=8", _CK), 2, "megatron-core",
                (_CP, _PP, ("--parallel vp", "parallel.virtual_stages", 2), _ZERO),
            ),
        )
    ),
)  # fmt: skip
"""Few samples where that changes nothing but the run's cost."""

FACTORS = (1.3, 0.7, 0.5)


class Knob(NamedTuple):
    """A numeric field of a class of blocks."""

    block: str
    field: str

    def __str__(self) -> str:
        return f"{self.block}.{self.field}"


def knobs() -> list[Knob]:
    """Return every numeric field that the descriptions of a run can hold."""
    return [
        Knob(kind.__name__, name)
        for kind in _kinds(Hardware, Workload)
        for name, field in file_fields(kind).items()
        if {int, float} & {*_leaves(field.annotation)}
    ]


def _kinds(*of: type[Spec]) -> Sequence[type[Spec]]:
    """Return the kinds *of* blocks and of all inside them."""
    kinds = dict.fromkeys(of)
    for kind in (queue := list(kinds)):
        for field in file_fields(kind).values():
            for leaf in _leaves(field.annotation):
                if isinstance(leaf, type) and issubclass(leaf, Spec) and leaf not in kinds:
                    kinds[leaf] = None
                    queue.append(leaf)
    return queue


def _leaves(annotation: Any) -> Iterator[Any]:
    """Yield the types inside *annotation*; what a ``Literal`` allows is none."""
    if get_origin(annotation) is Literal:
        return
    arguments = get_args(annotation)
    if not arguments:
        yield annotation
    for argument in arguments if hasattr(annotation, "__metadata__") is False else arguments[:1]:
        yield from _leaves(argument)


def moves(knobs: Sequence[Knob], scenario: Scenario, factors: Sequence[float] = FACTORS) -> bool:
    """Tell whether turning *knobs* together by one of *factors* changes what the run of *scenario* says."""
    there = [knob for knob in knobs if knob in _written(scenario)]
    return bool(there) and any(_says(turned) != _base(scenario) for turned in _turned(_described(scenario), there, factors))


def writes(scenario: Scenario, knob: Knob) -> bool:
    """Tell whether *scenario* sets a field of that name itself."""
    return any(knob.field in text.partition("=")[0].split(".") for text in scenario.overrides)


class _Described(NamedTuple):
    """What a run is made of. Without a placement the model is laid out over *gpus* of each node."""

    hardware: Hardware
    workload: Workload
    placement: tuple[Placement, ...] | None
    gpus: int


@cache
def _laid_out(scenario: Scenario) -> LayoutRun:
    return layout_answer(scenario).run


@cache
def _described(scenario: Scenario) -> _Described:
    if has_layout(scenario):
        run = _laid_out(scenario)
        return _Described(run.hardware, run.workload, None, run.gpus // run.nodes)
    question = prepare(scenario)
    [job] = question.jobs
    return _Described(question.hardware, job.workload, job.placement, 0)


@cache
def _written(scenario: Scenario) -> frozenset[Knob]:
    """Return the fields that the descriptions of *scenario* give a value other than None, zero or an empty one."""
    described = _described(scenario)
    return frozenset(_knobs_in(described.hardware)) | frozenset(_knobs_in(described.workload))


def _knobs_in(value: Any) -> Iterator[Knob]:
    if isinstance(value, Spec):
        for name, inner in file_values(value).items():
            if inner:
                yield Knob(type(value).__name__, name)
                yield from _knobs_in(inner)
    elif isinstance(value, tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _knobs_in(inner)


@cache
def _base(scenario: Scenario) -> Any:
    return _layout_document(_laid_out(scenario)) if has_layout(scenario) else _says(_described(scenario))


def _says(described: _Described) -> Any:
    """Return the results of the run. A field that decides an epoch but is missing in the cache's key is then found to have no effect."""
    try:
        with caching("knobs"):
            return _layout_says(described) if described.placement is None else _job_says(described, described.placement)
    except SpecError as error:
        return str(error)


def _layout_says(described: _Described) -> dict[str, Any]:
    hardware, workload = described.hardware, described.workload
    require([*check_hardware(hardware), *check_workload(workload)])
    return _layout_document(run_layout(hardware, workload, described.gpus))


def _layout_document(run: LayoutRun) -> dict[str, Any]:
    return _without_inputs(layout_document(LayoutAnswer(run, {})))


def _without_inputs(document: dict[str, Any]) -> dict[str, Any]:
    """Return *document* without what repeats every number."""
    return {key: value for key, value in document.items() if key != "inputs"}


def _job_says(described: _Described, placement: tuple[Placement, ...]) -> dict[str, Any]:
    hardware, workload = described.hardware, described.workload
    job = Job(workload, placement)
    fits = partial(memory_problem, ranks=job.ranks, channels=ring_channels_of(hardware, job))
    require([*check_hardware(hardware), *check_workload(workload), *check_job(hardware, workload, fit=fits)])
    return _without_inputs(run_document(simulate(hardware, [job]), {}, job_warnings(hardware, workload)))


def _turned(described: _Described, knobs: Sequence[Knob], factors: Sequence[float]) -> Iterator[_Described]:
    for factor in factors:
        hardware, workload = described.hardware, described.workload
        for knob in knobs:
            hardware, workload = _turn(hardware, knob, factor), _turn(workload, knob, factor)
        try:
            workload = _remade(workload, described.workload)
        except ValueError:  # the shape refuses the number: it is read
            workload = workload.model_copy(update={"name": "refused"})
        if hardware != described.hardware or workload != described.workload:
            yield described._replace(hardware=hardware, workload=workload)


def _remade(workload: Workload, before: Workload) -> Workload:
    """Return *workload* with the layers of its decoder where the shape of the decoder is another than *before*."""
    model = workload.model
    shape = (model.transformer, model.sequence, model.lora)
    if model.transformer is None or shape == (before.model.transformer, before.model.sequence, before.model.lora):
        return workload
    transformer = type(model.transformer).model_validate(model.transformer.model_dump())
    layers = trained_layers(transformer, model.sequence or 0, model.lora, model.frozen)
    return workload.model_copy(update={"model": model.model_copy(update={"layers": layers})})


@cache
def _blocks_in(kind: type[Spec]) -> frozenset[str]:
    """Return the names of the blocks that one of *kind* can be or hold."""
    return frozenset(each.__name__ for each in _kinds(kind))


def _turn(value: Any, knob: Knob, factor: float, matched: bool = False) -> Any:
    """Return *value* with the numbers of *knob* multiplied; whole numbers move by one or more, zeros stay."""
    if isinstance(value, Spec):
        if knob.block not in _blocks_in(type(value)):
            return value
        mine = type(value).__name__ == knob.block
        values = file_values(value)
        return with_fields(value, **{name: _turn(inner, knob, factor, mine and name == knob.field) for name, inner in values.items()})
    if isinstance(value, tuple):
        return _turned_curve(value, factor) if matched and _is_curve(value) else tuple(_turn(item, knob, factor, matched) for item in value)
    if isinstance(value, dict):
        return {key: _turn(item, knob, factor, matched) for key, item in value.items()}
    if not matched or not value or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, float):
        return value * factor
    return max(value + 1, round(value * factor)) if factor > 1 else max(1, min(value - 1, round(value * factor)))


def _is_curve(value: tuple[Any, ...]) -> bool:
    return bool(value) and isinstance(value[0], tuple)


def _turned_curve(curve: tuple[tuple[float, float], ...], factor: float) -> tuple[tuple[float, float], ...]:
    return tuple((size, level * factor) for size, level in curve)
