"""How is a layout written for the programs that run it? torchtitan, Megatron-LM, DeepSpeed, Accelerate, torchrun and SkyPilot.

Written are the fields that decide the layout and the batch; data, checkpoints and optimizer settings stay with the user. What a program
cannot express is refused with a sentence. `sim.spec.foreign.launch_files` reads the first four back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sim.spec.foreign.launch_files import LATENT, TORCHTITAN_MODELS, megatron
from sim.spec.library import load_part
from sim.spec.parallel import Parallel
from sim.spec.transformer import Transformer
from sim.spec.workload import Model
from sim.spec.yaml import SpecError

_TITAN_NAMES: Final = {name: key for key, name in TORCHTITAN_MODELS.items()}
_TITAN_SCHEDULES: Final = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
_TITAN_RECOMPUTES: Final = {"none": "none", "model": "none", "blocks": "full", "selective": "selective", "operators": "selective"}


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
    if own.pipeline > 1 and own.schedule not in _TITAN_SCHEDULES:
        raise SpecError(f"torchtitan has no schedule {own.schedule}")
    if own.virtual_stages > 2 or (own.virtual_stages == 2 and own.schedule == "1f1b"):
        raise SpecError(f"torchtitan's schedules have 1 or 2 chunks on each rank, not {own.virtual_stages}")
    if own.shard == "none" and own.context > 1:
        raise SpecError("torchtitan shards parameters over context ranks")
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
    if piped:
        parallelism["pipeline_parallel_schedule"] = _TITAN_SCHEDULES[own.schedule or "1f1b"]
        parallelism["pipeline_parallel_microbatch_size"] = launch.batch
    training = {
        "local_batch_size": launch.batch * (launch.micro_batches if piped else 1),
        "global_batch_size": launch.global_batch,
        "seq_len": launch.sequence,
    }
    model = {"name": name[0], "flavor": name[1]} | ({"converters": ["quantize.linear.float8"]} if launch.precision == "fp8" else {})
    blocks: dict[str, dict[str, Any]] = {
        "model": model, "training": training, "parallelism": parallelism,
        "activation_checkpoint": {"mode": _TITAN_RECOMPUTES[launch.checkpointing]},
    }  # fmt: skip
    return "\n".join(
        f"[{block}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items()) for block, rows in blocks.items()
    )


def _refuse_four_bits(launch: Launch, program: str) -> None:
    if launch.precision == "nvfp4":
        raise SpecError(f"{program} has no option for nvfp4; export megatron arguments, or plan with --precision fp8")


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
    if own.pipeline > 1 and own.schedule not in ("1f1b", "interleaved_1f1b"):
        raise SpecError(f"Megatron-LM has no schedule {own.schedule}")
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
    if own.virtual_stages > 1:
        said["num-virtual-stages-per-pipeline-rank"] = own.virtual_stages
    if own.order:
        said["use-tp-pp-dp-mapping"] = ""
    if launch.checkpointing == "blocks":
        said |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    if launch.checkpointing == "selective":
        said["recompute-granularity"] = "selective"
    said["bf16"] = ""
    if launch.precision == "fp8":
        said["fp8-format"] = "hybrid"
    if launch.precision == "nvfp4":
        said["fp4-format"] = "e2m1"
    return _lines(said)


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
    said = {
        "train_batch_size": launch.global_batch,
        "train_micro_batch_size_per_gpu": launch.batch,
        "gradient_accumulation_steps": launch.micro_batches,
        "bf16": {"enabled": True},
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
    ranks = {
        "dp_replicate_size": own.replicate,
        "dp_shard_size": launch.data // own.replicate,
        "tp_size": own.tensor,
        "cp_size": own.context,
    }
    said: dict[str, Any] = {
        "distributed_type": "FSDP",
        "mixed_precision": "fp8" if launch.precision == "fp8" else "bf16",
        "num_machines": launch.nodes,
        "num_processes": launch.nodes * launch.gpus_per_node,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": own.reshard_after_forward is not False,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": launch.checkpointing == "blocks",
        },
        "parallelism_config": {f"parallelism_config_{name}": size for name, size in ranks.items()},
    }
    return str(yaml.safe_dump(said, sort_keys=False))


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
    return LayoutText(
        {**files, "torchrun.sh": line, "skypilot.yaml": skypilot_yaml(launch, line), "sim.sh": command + "\n"}, left_out, notes
    )
