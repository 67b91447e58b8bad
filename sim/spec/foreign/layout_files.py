"""How is a layout written for the programs that run it? torchtitan, Megatron-LM, DeepSpeed, Accelerate, torchrun and SkyPilot.

Written are the fields that decide the layout and the batch; data, checkpoints and optimizer settings stay with the user. What a program
cannot express is refused with a sentence. The modules ``launch_*`` beside it read the first four back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from math import ceil
from typing import Any, Final, NamedTuple

from sim.spec.fields import Fp8Recipe
from sim.spec.foreign.launch_accelerate import ACCELERATE_8BIT
from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_megatron_model import LATENT
from sim.spec.foreign.launch_torchtitan import TORCHTITAN_MODELS
from sim.spec.foreign.launch_unread import FP8_RECIPES
from sim.spec.library import load_part
from sim.spec.parallel import Parallel, even_blocks
from sim.spec.transformer import Transformer
from sim.spec.workload import Model
from sim.spec.yaml import SpecError

_TITAN_NAMES: Final = {name: key for key, name in TORCHTITAN_MODELS.items()}
_TITAN_SCHEDULES: Final = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
_TITAN_RECOMPUTES: Final = {"none": "none", "model": "none", "blocks": "full", "selective": "selective", "operators": "selective"}


_TITAN_PRECISIONS: Final = {
    **dict.fromkeys(("bf16", "amp_bf16", "fp8"), "bfloat16"), **dict.fromkeys(("fp32", "tf32"), "float32"),
}  # fmt: skip
_FLEX: Final = ("deepseek_v3", "llama4")
"""Models of torchtitan whose flavors of the catalogue have ``attn_type`` flex (torchtitan/models/*/__init__.py, model/args.py)."""
_EXCHANGES: Final = {"ring": "alltoall", "all_gather": "allgather"}
"""How torch's context parallelism names ways to exchange keys and values."""
_UNTOLD: Final = {"rope_base": ("rotary-base", "10000"), "norm_epsilon": ("norm-epsilon", "1e-05")}
"""Fields that a model may leave untold: Megatron-LM's options of them, and its defaults."""


class Launch(NamedTuple):
    """What the files say of one run."""

    name: str
    """The workload's."""
    model: str
    """Its name in the catalogue."""
    shape: Transformer | None
    """None where the model is a table of layers."""
    adapters: bool
    """Whether low-rank adapters are trained, or parts are frozen."""
    sequence: int | None
    parallel: Parallel
    data: int
    """Data-parallel ranks."""
    batch: int
    micro_batches: int
    checkpointing: str
    precision: str
    nodes: int
    gpus_per_node: int
    accelerator: str
    """The GPU's name, as SkyPilot's catalogue has it."""
    fp8_recipe: Fp8Recipe | None = None
    """How 8 bits are scaled; None in other precisions."""

    @property
    def global_batch(self) -> int:
        """Return the samples of a step."""
        return self.data * self.batch * self.micro_batches


def torchtitan_toml(launch: Launch) -> str:
    """Return the TOML of torchtitan. Raise SpecError for what torchtitan has not."""
    own, name = launch.parallel, _titan_name(launch)
    _refuse_four_bits(launch, "torchtitan")
    if own.shard not in ("none", "parameters"):
        raise SpecError(f"torchtitan shards parameters or nothing, not {own.shard}")
    if own.pipeline > 1 and own.schedule not in (None, *_TITAN_SCHEDULES):
        raise SpecError(f"torchtitan has no schedule {own.schedule}")
    if launch.precision not in _TITAN_PRECISIONS:
        raise SpecError(f"torchtitan trains in {', '.join(_TITAN_PRECISIONS)}, not {launch.precision}")
    _titan_whole(launch, name)
    if own.order:
        raise SpecError("torchtitan has one order of axes: pp, dp_replicate, dp_shard, cp, tp")
    sharded = own.shard == "parameters"
    replicate = own.replicate if sharded else launch.data
    reshard = {None: "default", True: "always", False: "never"}[own.reshard_after_forward if sharded else None]  # type: ignore[index]
    piped = own.pipeline > 1
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": launch.data // replicate,
        "fsdp_reshard_after_forward": reshard,
        "tensor_parallel_degree": own.tensor,
        "context_parallel_degree": own.context,
        "pipeline_parallel_degree": own.pipeline,
        "expert_parallel_degree": own.expert,
    }
    if own.context > 1:
        parallelism["context_parallel_rotate_method"] = _EXCHANGES[own.context_exchange]
    if piped:
        usual = "1f1b" if own.virtual_stages == 1 else "interleaved_1f1b"
        parallelism["pipeline_parallel_schedule"] = _TITAN_SCHEDULES[own.schedule or usual]
        parallelism["pipeline_parallel_microbatch_size"] = launch.batch
        parallelism |= _titan_stages(launch)
    training = {
        "local_batch_size": launch.batch * (launch.micro_batches if piped else 1),
        "global_batch_size": launch.global_batch,
        "seq_len": launch.sequence,
        "mixed_precision_param": _TITAN_PRECISIONS[launch.precision],
    } | ({"dtype": _TITAN_PRECISIONS[launch.precision]} if _unmixed(launch) else {})
    model = {"name": name[0], "flavor": name[1]}
    quantized = _titan_quantized(launch)
    blocks: dict[str, dict[str, Any]] = {
        "model": model | ({"converters": [*quantized]} if quantized else {}), **quantized, "training": training, "parallelism": parallelism,
        "activation_checkpoint": {"mode": _TITAN_RECOMPUTES[launch.checkpointing]},
    }  # fmt: skip
    return "\n".join(
        f"[{block}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items()) for block, rows in blocks.items()
    )


def _titan_quantized(launch: Launch) -> dict[str, dict[str, Any]]:
    """Return the block of the converter that brings products to 8 bits. Raise SpecError for a recipe that torchtitan has not."""
    if launch.precision != "fp8":
        return {}
    if launch.fp8_recipe == "mxfp8":
        return {"quantize.linear.mx": {"recipe_name": "mxfp8_cublas"}}
    if launch.fp8_recipe not in ("tensorwise", "rowwise"):
        raise SpecError(f"torchtitan scales fp8 tensorwise, rowwise or as mxfp8, not {launch.fp8_recipe}")
    return {"quantize.linear.float8": {"recipe_name": launch.fp8_recipe}}


def _refuse_four_bits(launch: Launch, program: str) -> None:
    if launch.precision == "nvfp4":
        raise SpecError(f"{program} has no option for nvfp4; export megatron arguments, or plan with --precision fp8")


def _titan_whole(launch: Launch, name: tuple[str, str]) -> None:
    """Raise SpecError where torchtitan does not replicate, split, wrap or cut the model *name* as *launch* does."""
    own = launch.parallel
    if own.shard == "none" and own.context > 1:
        raise SpecError("torchtitan shards parameters over context ranks")
    if own.shard == "none" and launch.data > 1 and own.model_ranks * own.expert > 1:
        raise SpecError("torchtitan replicates beside no other axis (DDP has not supported > 1D parallelism); it shards parameters there")
    if own.expert > 1 and (launch.data // own.replicate * own.context * own.tensor) % own.expert:
        raise SpecError("torchtitan takes expert ranks from the tensor, context and data ranks of one replica")
    if own.tensor > 1 and not own.sequence_parallel:
        raise SpecError("torchtitan's tensor ranks split sequences as well")
    if own.context > 1 and name[0] in _FLEX:
        raise SpecError(f"torchtitan's {' '.join(name)} has flex attention, which no context ranks share")
    if own.wrap is not None:
        raise SpecError("torchtitan gathers whole blocks, no other wraps")
    if own.cuts:
        raise SpecError("torchtitan's stages begin with whole blocks, not at training.parallel.cuts")


def _unmixed(launch: Launch) -> bool:
    """Tell whether torchtitan mixes no precisions: where it neither shards parameters nor replicates (``mixed_precision_param``)."""
    return launch.parallel.shard == "none" and launch.parallel.model_ranks > 1


def _titan_stages(launch: Launch) -> dict[str, Any]:
    """Return what says which blocks a chunk holds, where torchtitan would take others: their number in each, or their names.

    By default it has one or two chunks on each rank, the embedding and the head counting as a block each
    (torchtitan/distributed/pipeline_parallel.py).
    """
    own, counts = launch.parallel, _blocks(launch, 1)
    blocks, chunks = sum(counts), len(counts)
    if counts == even_blocks(blocks, chunks, 1, 1):
        if own.chunks <= 2:
            return {}
        if (most := next((each for each in range(1, blocks + 3) if ceil((blocks + 2) / each) == chunks), None)) is not None:
            return {"pipeline_parallel_layers_per_stage": most}
    named = [[f"layers.{layer}" for layer in range(end - count, end)] for end, count in zip(accumulate(counts), counts, strict=True)]
    return {"module_fqns_per_model_part": [["tok_embeddings", *named[0]], *named[1:-1], [*named[-1], "norm", "output"]]}


def _blocks(launch: Launch, less: int) -> list[int]:
    """Return the blocks of each chunk: as the layout says, or evenly, the first and last of which hold *less* fewer."""
    own, shape = launch.parallel, launch.shape
    assert shape is not None
    return list(own.layers_per_stage) or even_blocks(shape.layers + shape.prediction_layers, own.pipeline * own.chunks, less, less)


def _shape(launch: Launch, program: str) -> Transformer:
    """Return the shape of the model. Raise SpecError for a model of which no file of *program* tells."""
    if launch.shape is None:
        raise SpecError(
            f"{launch.model} is a table of layers; {program} builds a decoder from its sizes (model.transformer), and no others from files"
        )
    if launch.adapters:
        raise SpecError(f"{program} trains all of a model; {launch.model} has adapters or frozen parts")
    return launch.shape


def _titan_name(launch: Launch) -> tuple[str, str]:
    """Return torchtitan's name and flavor of the model. Raise SpecError for one of other sizes than its own."""
    shape, name = _shape(launch, "torchtitan"), _TITAN_NAMES.get(launch.model)
    if name is None:
        raise SpecError(f"torchtitan has no configuration for {launch.model}")
    meant, own = _in_full(shape), load_part(Model, launch.model, "workloads/models").transformer
    assert own is not None
    if unlike := [field for field, value in _in_full(own).items() if meant[field] != value]:
        raise SpecError(f"torchtitan's {' '.join(name)} has another {', '.join(unlike)} than this {launch.model}")
    return name


def megatron_arguments(launch: Launch) -> str:
    """Return the arguments of Megatron-LM, one on a line. Raise SpecError for what Megatron-LM has not."""
    own, shape = launch.parallel, _shape(launch, "Megatron-LM")
    if own.shard not in ("none", "optimizer"):
        raise SpecError(f"Megatron-LM's arguments here shard the optimizer or nothing, not {own.shard}")
    if own.pipeline > 1 and own.schedule not in (None, "1f1b", "interleaved_1f1b"):
        raise SpecError(f"Megatron-LM has no schedule {own.schedule}")
    if own.cuts:
        raise SpecError("Megatron-LM's stages begin with whole blocks, not at training.parallel.cuts")
    said = _megatron_shape(shape, launch.sequence)
    if unsaid := _unsaid(shape, launch.sequence, said):
        raise SpecError(f"Megatron-LM's arguments do not say {', '.join(unsaid)} of {launch.model}")
    said |= {
        "tensor-model-parallel-size": own.tensor,
        "pipeline-model-parallel-size": own.pipeline,
        "context-parallel-size": own.context,
        "expert-model-parallel-size": own.expert,
        "micro-batch-size": launch.batch,
        "global-batch-size": launch.global_batch,
    }
    if own.sequence_parallel:
        said["sequence-parallel"] = ""
    if own.shard == "optimizer":
        said |= dict.fromkeys(("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather"), "")
    said |= _megatron_stages(launch) | _megatron_ranks(own)
    if launch.checkpointing == "blocks":
        said |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    if launch.checkpointing == "selective":
        said["recompute-granularity"] = "selective"
    return _lines(said | _megatron_precision(launch.precision, launch.fp8_recipe))


def _megatron_stages(launch: Launch) -> dict[str, Any]:
    """Return how the blocks are spread: a letter each where chunks are not equal (E embedding, t block, m predicted tokens, L loss)."""
    own, predicted = launch.parallel, _shape(launch, "Megatron-LM").prediction_layers
    counts = _blocks(launch, 0) if own.pipeline > 1 else [0]
    if own.pipeline > 1 and (predicted or len(set(counts)) > 1):
        if counts[-1] < predicted:
            raise SpecError(
                f"Megatron-LM has all {predicted} blocks that predict further tokens on one stage; the last here has {counts[-1]}"
            )
        counts[-1] -= predicted
        return {"pipeline-model-parallel-layout": f"E{'|'.join('t' * count for count in counts)}{'m' * predicted}L"}
    return {"num-virtual-stages-per-pipeline-rank": own.virtual_stages} if own.virtual_stages > 1 else {}


def _megatron_ranks(own: Parallel) -> dict[str, Any]:
    """Return what says how ranks of the axes of *own* lie and what they exchange, where Megatron-LM's default is another."""
    said: dict[str, Any] = {"use-tp-pp-dp-mapping": ""} if own.order else {}
    if own.expert > 1 and own.tensor > 1:
        said["expert-tensor-parallel-size"] = 1  # else experts are split over the tensor ranks as well
    if own.context > 1 and own.context_exchange != "ring":
        said["cp-comm-type"] = own.context_exchange
    if own.capacity_factor is not None:
        said["moe-expert-capacity-factor"] = own.capacity_factor
    return said | ({"moe-pad-expert-input-to-capacity": ""} if own.pad_to_capacity else {})


def _megatron_precision(precision: str, recipe: Fp8Recipe | None) -> dict[str, Any]:
    """Return the options of *precision*: gradients in e5m2 but where blocks have scales of their own (Megatron-Bridge's recipes)."""
    if precision in ("fp32", "tf32"):
        return {}
    if precision == "fp8" and recipe not in FP8_RECIPES:
        raise SpecError(f"Megatron-LM has no fp8 recipe {recipe}; it has {', '.join(FP8_RECIPES)}")
    said: dict[str, Any] = {"fp16" if precision.endswith("fp16") else "bf16": ""}
    if precision == "fp8":
        said |= {"fp8-format": "e4m3" if recipe == "mxfp8" else "hybrid", "fp8-recipe": recipe}
    return said | ({"fp4-format": "e2m1"} if precision == "nvfp4" else {})


def megatron_notes(shape: Transformer) -> list[str]:
    """Return what the arguments of Megatron-LM leave to its defaults since no description of *shape* tells."""
    fields = {field: said for field, said in _UNTOLD.items() if field != "rope_base" or shape.positions == "rope"}
    untold = {field: said for field, said in fields.items() if getattr(shape, field) is None}
    notes = [
        f"--{option} is {default}, Megatron-LM's default; model.transformer.{field} tells another"
        for field, (option, default) in untold.items()
    ]
    if shape.experts:
        notes.append("how a router scores and balances experts (--moe-router-...) is Megatron-LM's default")
    return notes


def _lines(said: Mapping[str, Any]) -> str:
    return "".join(f"--{name}{f' {value}' if value != '' else ''}\n" for name, value in said.items())


def _unsaid(shape: Transformer, sequence: int | None, said: Mapping[str, Any]) -> list[str]:
    """Return the fields of *shape* that a reader of the arguments *said* would take for another, for samples of *sequence* tokens."""
    if sequence and shape.window >= sequence:
        shape = shape.model_copy(update={"window": 0, "global_every": 0})
    read, meant = _in_full(Transformer(**megatron(_lines(said), "arguments").shape)), _in_full(shape)
    untold = {name for name in _UNTOLD if meant[name] is None}
    return [name for name, value in meant.items() if read[name] != value and name not in untold]


def _in_full(shape: Transformer) -> dict[str, Any]:
    """Return the fields of *shape*, defaults written out; how long sequences may be is told by the job."""
    full = shape.model_dump(exclude={"max_seq", "shared_experts"})
    full["kv_heads"] = shape.kv_heads or shape.heads
    full["head_dim"] = shape.head_dim or (None if shape.mla else shape.hidden // shape.heads)
    full["ffn"] = shape.ffn or 4 * shape.hidden
    full["norm_bias"] = shape.norm == "layernorm" if shape.norm_bias is None else shape.norm_bias
    if shape.experts:
        full["expert_ffn"] = shape.expert_ffn or full["ffn"]
        full["shared_expert_ffn"] = shape.shared_expert_ffn or shape.shared_experts * full["expert_ffn"]
    return full


def _megatron_shape(shape: Transformer, sequence: int | None) -> dict[str, Any]:
    """Return the options of the sizes of *shape*, and those of its kinds."""
    said: dict[str, Any] = {
        "num-layers": shape.layers, "hidden-size": shape.hidden, "num-attention-heads": shape.heads,
        "seq-length": sequence, "max-position-embeddings": max(sequence or 0, shape.max_seq or 0), "padded-vocab-size": shape.vocab,
        "ffn-hidden-size": shape.ffn, "kv-channels": None if shape.mla else shape.head_dim,
    }  # fmt: skip
    if shape.kv_heads and shape.kv_heads != shape.heads:
        said |= {"group-query-attention": "", "num-query-groups": shape.kv_heads}
    if shape.mla:
        said |= {"multi-latent-attention": ""} | {option: getattr(shape.mla, name) or None for option, (name, _) in LATENT.items()}
    said |= _megatron_kinds(shape) | _megatron_positions(shape) | _megatron_experts(shape)
    said["mtp-num-layers"] = shape.prediction_layers or None
    return {option: value for option, value in said.items() if value is not None}


def _megatron_kinds(shape: Transformer) -> dict[str, Any]:
    flags = {
        "swiglu": shape.activation == "swiglu", "squared-relu": shape.activation == "relu2", "qk-layernorm": shape.qk_norm == "head",
        "untie-embeddings-and-output-weights": not shape.tied, "disable-bias-linear": shape.bias in ("none", "qkv"),
        "add-qkv-bias": shape.bias == "qkv",
    }  # fmt: skip
    return {
        "normalization": "RMSNorm" if shape.norm == "rmsnorm" else None,
        "norm-epsilon": shape.norm_epsilon,
        **dict.fromkeys(("hidden-dropout", "attention-dropout"), shape.dropout),  # 0.1 where they are not said
        **{name: "" for name, holds in flags.items() if holds},
    }


def _megatron_positions(shape: Transformer) -> dict[str, Any]:
    """Return what says how tokens know their place: latent attention would take YaRN for sequences beyond those of pre-training."""
    if shape.positions != "rope":
        return {"position-embedding-type": "none" if shape.positions == "none" else None}
    return {
        "position-embedding-type": "rope", "rope-type": "rope" if shape.mla else None,
        "rotary-base": shape.rope_base, "rotary-percent": None if shape.rope_share == 1.0 else shape.rope_share,
    }  # fmt: skip


def _megatron_experts(shape: Transformer) -> dict[str, Any]:
    if not shape.experts:
        return {}
    dense, every = shape.first_dense_layers, shape.moe_every if shape.moe_every > 1 else None
    return {
        "num-experts": shape.experts, "moe-router-topk": shape.experts_per_token, "moe-ffn-hidden-size": shape.expert_ffn,
        "moe-shared-expert-intermediate-size": _in_full(shape)["shared_expert_ffn"] or None,
        "moe-layer-freq": f"([0]*{dense}+[1]*{shape.layers - dense})" if dense else every,
    }  # fmt: skip


def deepspeed_json(launch: Launch) -> str:
    """Return the JSON of DeepSpeed. Raise SpecError where the layout needs more than ZeRO."""
    own = launch.parallel
    _refuse_four_bits(launch, "DeepSpeed")
    if own.model_ranks > 1 or own.expert > 1 or own.replicate > 1:
        raise SpecError("DeepSpeed's JSON holds ZeRO alone; tensor, pipeline, context and expert ranks are set in the training program")
    if launch.precision == "fp8":
        raise SpecError("DeepSpeed's JSON has no fp8")
    width = next((name for name in ("bf16", "fp16") if launch.precision.endswith(name)), None)
    said = {
        "train_batch_size": launch.global_batch,
        "train_micro_batch_size_per_gpu": launch.batch,
        "gradient_accumulation_steps": launch.micro_batches,
        **({} if width is None else {width: {"enabled": True}}),
        "zero_optimization": {"stage": ("none", "optimizer", "gradients", "parameters").index(own.shard)},
    }
    return json.dumps(said, indent=2) + "\n"


def accelerate_yaml(launch: Launch) -> str:
    """Return the YAML of Accelerate's FSDP. Raise SpecError where the layout is no FSDP without a pipeline."""
    import yaml

    own = launch.parallel
    _refuse_four_bits(launch, "Accelerate")
    if own.shard != "parameters" or own.pipeline > 1 or own.expert > 1:
        raise SpecError("Accelerate's FSDP shards parameters, without pipeline and expert ranks")
    if isinstance(own.wrap, tuple):
        raise SpecError("Accelerate's FSDP wraps blocks, or modules by their size, not by patterns of paths")
    ranks: dict[str, int | str] = {
        "dp_replicate_size": own.replicate,
        "dp_shard_size": launch.data // own.replicate,
        "tp_size": own.tensor,
        "cp_size": own.context,
    }
    if own.context > 1:
        ranks["cp_comm_strategy"] = _EXCHANGES[own.context_exchange]
    wrap = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    sized = {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": own.wrap}
    said: dict[str, Any] = {
        "distributed_type": "FSDP",
        "mixed_precision": "no" if launch.precision in ("fp32", "tf32") else launch.precision.removeprefix("amp_"),
        **_accelerate_8bit(launch),
        "num_machines": launch.nodes,
        "num_processes": launch.nodes * launch.gpus_per_node,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": own.reshard_after_forward is not False,
            **(wrap if own.wrap is None else sized),
            "fsdp_activation_checkpointing": launch.checkpointing == "blocks",
        },
        "parallelism_config": {f"parallelism_config_{name}": size for name, size in ranks.items()},
    }
    return str(yaml.safe_dump(said, sort_keys=False))


def _accelerate_8bit(launch: Launch) -> dict[str, Any]:
    """Return the block of the library that brings products to 8 bits. Raise SpecError for a recipe that Accelerate has not."""
    if launch.precision != "fp8":
        return {}
    block = next((block for recipe, block in ACCELERATE_8BIT.items() if recipe == launch.fp8_recipe), None)
    if block is None:
        raise SpecError(f"Accelerate has no fp8 recipe {launch.fp8_recipe}; it has {', '.join(ACCELERATE_8BIT)}")
    return {"fp8_config": dict(block)}


def torchrun_line(launch: Launch, arguments: str) -> str:
    """Return the line that starts one node's processes; $NODE_RANK and $HEAD name the node and the first one."""
    return (
        f"torchrun --nnodes {launch.nodes} --nproc-per-node {launch.gpus_per_node} --node-rank $NODE_RANK "
        f"--rdzv-backend c10d --rdzv-endpoint $HEAD:29500 {arguments}\n"
    )


def skypilot_yaml(launch: Launch, run: str) -> str:
    """Return a SkyPilot task that starts *run* on every node."""
    import yaml

    script = f'export HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\nexport NODE_RANK=$SKYPILOT_NODE_RANK\n{run}'
    said = {
        "name": launch.name.replace(".", "-"),
        "num_nodes": launch.nodes,
        "resources": {"accelerators": f"{launch.accelerator}:{launch.gpus_per_node}"},
        "run": script,
    }
    return str(yaml.safe_dump(said, sort_keys=False))


class LayoutText(NamedTuple):
    """Launch files of one run."""

    files: dict[str, str]
    """Their texts by name."""
    left_out: dict[str, str]
    """Why others are not written."""
    notes: list[str]
    """What those that are written do not say."""


def launch_files(launch: Launch, command: str) -> LayoutText:
    """Return the files that express *launch*, with *command* (sim run)."""
    writers = {
        "torchtitan.toml": torchtitan_toml, "megatron.args": megatron_arguments,
        "deepspeed.json": deepspeed_json, "accelerate.yaml": accelerate_yaml,
    }  # fmt: skip
    files: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, write in writers.items():
        try:
            files[name] = write(launch)
        except SpecError as error:
            left_out[name] = error.problems[0]
    program = "-m torchtitan.train --job.config-file torchtitan.toml" if "torchtitan.toml" in files else "train.py"
    if "torchtitan.toml" not in files and "megatron.args" in files:
        program = "pretrain_gpt.py $(cat megatron.args)"
    line = torchrun_line(launch, program)
    notes = [f"megatron.args: {note}" for note in megatron_notes(launch.shape)] if launch.shape and "megatron.args" in files else []
    notes += _untold(launch, files)
    return LayoutText(
        {**files, "torchrun.sh": line, "skypilot.yaml": skypilot_yaml(launch, line), "sim.sh": command + "\n"}, left_out, notes
    )


def _untold(launch: Launch, files: Mapping[str, str]) -> list[str]:
    """Return what of the layout the training program itself must set, since *files* cannot."""
    notes = []
    if "torchtitan.toml" in files and _unmixed(launch) and launch.precision not in ("fp32", "tf32"):
        notes.append("torchtitan.toml: weights and optimizer states are in 16 bits, too (dtype), which take less memory than is said here")
    if "accelerate.yaml" in files:
        notes.append(
            f"accelerate.yaml: the program sets micro-batches of {launch.batch}, and accumulates gradients over {launch.micro_batches}"
        )
    if "deepspeed.json" in files and launch.checkpointing not in ("none", "model"):
        notes.append(f"deepspeed.json: the program sets what is computed again (activation_checkpointing: {launch.checkpointing})")
    return notes
