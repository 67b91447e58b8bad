"""What do Megatron-LM's arguments specify about a run? Layout, micro-batches, optimizer (megatron/training/arguments.py, its defaults)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from sim.spec.foreign.launch_megatron_model import LATENT, OPTIONS, SIZES, assumed_vocabulary, model_shape
from sim.spec.foreign.launch_options import Arguments, arguments
from sim.spec.foreign.launch_settings import JobLength, LaunchSettings, note_offloading
from sim.spec.foreign.launch_trainer import is_set
from sim.spec.foreign.launch_unread import FP8_RECIPES, refuse_typos, unread
from sim.spec.parallel import NEAR_PIPELINE, SHARDS, Schedule, even_blocks
from sim.spec.strict import whole_number
from sim.spec.training import RecomputedModule
from sim.spec.yaml import SpecError

_RANKS: Final[Mapping[str, str]] = {
    "tensor-model-parallel-size": "tensor",
    "pipeline-model-parallel-size": "pipeline",
    "context-parallel-size": "context",
    "expert-model-parallel-size": "expert",
}
_FSDP: Final[Mapping[str, str]] = {
    "no_shard": "none",
    "optim": "optimizer",
    "optim_grads": "gradients",
    "optim_grads_params": "parameters",
}
_STACK: Final = "megatron-core"
_DEEPSPEED_STACK: Final = "megatron-deepspeed"
_STATES: Final[Mapping[str, str]] = {"bf16": "bf16", "fp16": "bf16", "fp8": "int8"}
"""Data types of optimizer states with as many bytes, by Megatron-LM's names."""
_OPTIMIZERS: Final[Mapping[str, str]] = {"adam": "adam", "sgd": "momentum", "muon": "muon", "dist_muon": "muon"}
_MODULES: Final = re.compile(r"--recompute-modules[=\s]+((?:\w+[ \t]*)+)")
NUMERIC: Final = {*SIZES, *_RANKS, *LATENT, "seq-length", "num-query-groups", "padded-vocab-size", "pad-vocab-size-to", "vocab-size"} | {
    "micro-batch-size",
    "global-batch-size",
}
"""Options with numeric values."""
SCORE_PASSES: Final = 16.0
"""Memory passes of attention scores in a step if attention is not one kernel (``score_passes`` of workloads/stacks/megatron-deepspeed)."""
PAIRED: Final[tuple[Schedule, ...]] = ("1f1b", "interleaved_1f1b")
"""Schedules in which ``--overlap-moe-expert-parallel-comm`` runs pairs (core/pipeline_parallel/combined_1f1b.py)."""
DISPATCH_BLOCKS: Final[Mapping[str, int]] = {"deepep": 20, "hybridep": 16}
"""Multiprocessors of dispatch and combine by default, by the backend of the flex dispatcher (core/transformer/transformer_config.py)."""
_EXPERTS_SPLIT: Final = {"num-experts", "expert-tensor-parallel-size"}
_READ: Final = NUMERIC | {
    "sequence-parallel", "use-distributed-optimizer", "multi-latent-attention", "group-query-attention", "disable-bias-linear",
    "untie-embeddings-and-output-weights", "normalization", "position-embedding-type", "recompute-granularity", "hidden-dropout",
    "recompute-activations", "recompute-method", "recompute-num-layers", "overlap-grad-reduce", "overlap-param-gather",
    "no-gradient-accumulation-fusion", "grad-reduce-in-bf16", "use-precision-aware-optimizer", "main-grads-dtype", "exp-avg-dtype",
    "exp-avg-sq-dtype",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "moe-layer-freq", "data-parallel-sharding-strategy",
    "fp8-format", "fp8-recipe", "moe-token-dispatcher-type", "moe-flex-dispatcher-backend", "moe-enable-deepep", "moe-deepep-num-sms",
    "zero-stage", "checkpoint-activations", "activations-checkpoint-method", "embed-layernorm",
    "moe-hybridep-num-sms", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute", "no-rope-fusion",
}  # fmt: skip
"""Options that affect the simulation, against which other options are checked for typos."""


def megatron(text: str, place: str) -> LaunchSettings:
    """Return the settings in Megatron-LM's arguments in *text*, plain or inside a shell script. Raise SpecError for missing sizes.

    A script without any size of the model specifies only layout and batch.
    """
    options = Arguments(arguments(text, place, NUMERIC), place)
    refuse_typos(options.values, _READ, place)
    sizes = ("num-layers", "hidden-size", "num-attention-heads")
    sized = any(option in options.values for option in sizes)
    for option in sizes if sized else ():
        if option not in options.values:
            raise SpecError(f"{place}: --{option} is missing; the arguments of Megatron-LM are incomplete")
    told = LaunchSettings(
        shape=model_shape(options) if sized else {}, sequence=options.number("seq-length"),
        global_batch=options.number("global-batch-size"), keys=OPTIONS,
    )  # fmt: skip
    tokens, option = assumed_vocabulary(options)
    if sized and tokens and "GPT2BPETokenizer" not in option:
        told.notes.append(f"vocabulary of {tokens:,} tokens by {option}; if it has others, add --vocab-size")
    told.parallel = {name: size for option, name in _RANKS.items() if (size := options.number(option) or 1) > 1}
    if "sequence-parallel" not in options.values and "tensor" in told.parallel:
        told.parallel["sequence"] = False
        if "expert" in told.parallel:  # megatron/core/model_parallel_config.py, __post_init__
            raise SpecError(
                f"{place}: --expert-model-parallel-size {told.parallel['expert']} with --tensor-model-parallel-size "
                f"{told.parallel['tensor']} needs --sequence-parallel, without which Megatron-LM refuses it; add it"
            )
    told.parallel |= _shards(options)
    if "use-tp-pp-dp-mapping" in options.values:
        told.parallel["order"] = list(NEAR_PIPELINE)
    if "moe-expert-capacity-factor" in options.values:
        padded = {"pad_to_capacity": True} if "moe-pad-expert-input-to-capacity" in options.values else {}
        told.parallel |= {"capacity_factor": options.values["moe-expert-capacity-factor"], **padded}
    layout = re.search(r"--pipeline-model-parallel-layout[ =]+[\"']?([^\s\"']+)", text)
    told.parallel |= _stages(options, told, None if layout is None else layout[1])
    _exchanges(options, told)
    told.training = _training(options) | {"stack": _stack(options)}
    told.training |= _optimizer(options.values.get("optimizer", "adam"), told)
    told.training |= _blocks(options, told) | _modules(text, options.values, told)
    told.length = _length(options)
    for option in ("optimizer-cpu-offload", "cpu-offloading", "fine-grained-activation-offloading"):
        note_offloading(f"--{option}", option in options.values, told)
    if "delay-wgrad-compute" in options.values:
        told.notes.append("--delay-wgrad-compute is not modeled: backward computes gradients of weights with those of inputs")
    told.notes += unread(text, options.values, told.sequence)
    return told


def _length(options: Arguments) -> JobLength | None:
    """Return the length of the job, in steps or samples."""
    for option, name in (("train-iters", "steps"), ("train-samples", "samples")):
        if text := options.values.get(option):
            return JobLength(f"--{option} {text}", **{name: whole_number(text.replace("_", ""))})
    return None


def _shards(options: Arguments) -> dict[str, Any]:
    """Return what data-parallel ranks shard: optimizer states, or what a kind of FSDP or DeepSpeed's stage specifies."""
    if "deepspeed" in options.values and (stage := options.number("zero-stage", 0)):
        if stage >= len(SHARDS):
            raise SpecError(f"{options.place}: --zero-stage {stage}: write 0 to 3")
        return {"shard": SHARDS[stage]}
    if "use-torch-fsdp2" in options.values:
        return {"shard": "parameters"}
    if "use-megatron-fsdp" in options.values or "use-custom-fsdp" in options.values:
        strategy = options.values.get("data-parallel-sharding-strategy", "no_shard")
        if strategy not in _FSDP:
            raise SpecError(f"{options.place}: unknown --data-parallel-sharding-strategy {strategy}; supported: {', '.join(_FSDP)}")
        return {"shard": _FSDP[strategy]} if strategy != "no_shard" else {}
    return {"shard": "optimizer"} if "use-distributed-optimizer" in options.values else {}


def _optimizer(name: str, told: LaunchSettings) -> dict[str, Any]:
    """Return the optimizer; if it is not modeled, return adam and add a note to *told*."""
    rule = _OPTIMIZERS.get(name)
    told.notes += [] if rule else [f"--optimizer {name} is not modeled: the workload uses adam"]
    return {"optimizer": {"name": rule or "adam"}}


def _stack(options: Arguments) -> str | dict[str, Any]:
    """Return the stack; it is a block if overlap or data types differ from those of the stack, which are those of published scripts.

    With DeepSpeed, it is that of Megatron-DeepSpeed, unless ranks divide the model in ways that it has not.
    """
    said = options.values
    others = ("context-parallel-size", "expert-model-parallel-size")
    if "deepspeed" in said and "sequence-parallel" not in said and all((options.number(name) or 1) == 1 for name in others):
        narrow = {"mesh": dict.fromkeys(("weights", "gradients", "reduction"), "fp16")} if is_set(said, "fp16") else {}
        fused = {"score_passes": 0} if any(name.startswith("use-flash-attn") for name in said) else {}
        return {"extends": _DEEPSPEED_STACK, **fused, **narrow} if fused or narrow else _DEEPSPEED_STACK
    mesh: dict[str, Any] = {}
    if "overlap-grad-reduce" not in said:
        mesh["overlap_gradients"] = False
    if "use-distributed-optimizer" in said and "overlap-param-gather" not in said:
        mesh["overlap_parameters"] = False
    if "no-gradient-accumulation-fusion" in said:
        mesh["fused_accumulation"] = False
    if "grad-reduce-in-bf16" in said:
        mesh |= {"gradients": "bf16", "reduction": "bf16"}
    if "use-precision-aware-optimizer" in said:
        mesh["casts_gradients"] = "never"
        mesh |= {"gradients": "bf16"} if said.get("main-grads-dtype") == "bf16" else {}
        states = {_STATES.get(said.get(option, "fp32"), "fp32") for option in ("exp-avg-dtype", "exp-avg-sq-dtype")}
        mesh |= {"states": states.pop()} if len(states) == 1 and states != {"fp32"} else {}
    if said.get("moe-token-dispatcher-type") == "flex":  # DeepEP or HybridEP: transformer/moe/token_dispatcher.py, MoEFlexTokenDispatcher
        mesh["one_copy"] = True
    if "overlap-moe-expert-parallel-comm" in said:
        mesh |= {"paired_schedules": list(PAIRED), "expert_blocks": _expert_blocks(options)}
    if "multi-latent-attention" in said and ("no-rope-fusion" in said or said.get("rope-type") == "rope"):
        mesh["fused_latents"] = False  # only the rotation of YaRN, the default, is fused: core/transformer/transformer_config.py
    own = {**({} if _is_fused(said) else {"score_passes": SCORE_PASSES}), **({"mesh": mesh} if mesh else {})}
    return {"extends": _STACK, **own} if own else _STACK


def _is_fused(said: Mapping[str, str]) -> bool:
    """Return whether attention is one kernel, as in Transformer Engine unless ``--attention-backend`` says otherwise.

    Megatron's own layers have separate products and softmax (core/transformer/dot_product_attention.py), but for FlashAttention 1 and 2.
    """
    own_layers = said.get("transformer-impl") == "local" and not any(name.startswith("use-flash-attn") for name in said)
    return said.get("attention-backend") not in ("unfused", "local") and not own_layers


def _expert_blocks(options: Arguments) -> int:
    """Return the multiprocessors of dispatch and combine; 0 for NCCL's all-to-all."""
    if options.values.get("moe-token-dispatcher-type") != "flex":
        return 0
    backend = "hybridep" if options.values.get("moe-flex-dispatcher-backend") == "hybridep" else "deepep"
    return options.number(f"moe-{backend}-num-sms", DISPATCH_BLOCKS[backend]) or 0


def _blocks(options: Arguments, told: LaunchSettings) -> dict[str, Any]:
    """Return how many blocks of a stage are fully recomputed: with method block, so many in each of its chunks (transformer_block.py)."""
    said, count = options.values, options.number("recompute-num-layers")
    if said.get("recompute-granularity") != "full" or count is None:
        return {}
    if said.get("recompute-method") == "block":
        return {"recompute_blocks": count * told.parallel.get("virtual_stages", 1)} if count else {"activation_checkpointing": "none"}
    if count > 1:
        told.notes.append(f"--recompute-num-layers {count}: modeled as 1, so each block keeps its input, not only every {count}th")
    return {}


def _modules(text: str, said: Mapping[str, str], told: LaunchSettings) -> dict[str, Any]:
    """Return which modules of a block are recomputed individually, if the options in *text* name any."""
    named = _MODULES.search(text.replace("\\\n", " "))
    if named is None or _granularity(said) != "selective":
        return {}
    words = named[1].split()
    modeled = get_args(RecomputedModule)
    told.notes += [f"--recompute-modules {word} is not modeled and not recomputed" for word in words if word not in modeled]
    attention = {} if "core_attn" in words else {"activation_checkpointing": "none"}
    return {"recompute_modules": [word for word in words if word in modeled], **attention}


def _granularity(said: Mapping[str, str]) -> str:
    """Return what is recomputed; ``--recompute-activations`` is short for selective (validate_args).

    Releases before 2022, and Megatron-DeepSpeed, have only whole blocks: ``--checkpoint-activations`` or a method for them.
    """
    if not {"checkpoint-activations", "activations-checkpoint-method"}.isdisjoint(said):
        return "full"
    return "selective" if "recompute-activations" in said else said.get("recompute-granularity", "")


def _exchanges(options: Arguments, told: LaunchSettings) -> None:
    """Set in *told* how context ranks exchange keys and values, and add notes on exchanges that are not modeled."""
    kind = options.values.get("cp-comm-type", "p2p")
    if "context" in told.parallel and kind != "p2p":
        told.parallel |= {"context_exchange": "all_gather"} if kind == "all_gather" else {}
        told.notes += [] if kind == "all_gather" else [f"--cp-comm-type {kind} is not modeled: keys and values are exchanged in a ring"]
    tensor, expert = told.parallel.get("tensor", 1), told.parallel.get("expert", 1)
    modeled = 1 if expert > 1 else tensor
    if _EXPERTS_SPLIT & options.values.keys() and (own := options.number("expert-tensor-parallel-size", tensor)) != modeled:
        told.notes.append(
            f"experts split over {own} tensor ranks (--expert-tensor-parallel-size) are not modeled: "
            + ("each expert is placed whole on its expert rank" if expert > 1 else f"experts are split over {tensor}")
        )


def _stages(options: Arguments, told: LaunchSettings, layout: str | None) -> dict[str, Any]:
    """Return the number of chunks on each pipeline rank and, if they are uneven, the number of blocks in each chunk."""
    stages = told.parallel.get("pipeline", 1)
    if stages == 1:
        return {}
    layers = told.shape.get("layers")
    virtual = options.number("num-virtual-stages-per-pipeline-rank") or 1
    if each := options.number("num-layers-per-virtual-pipeline-stage"):
        if layers is None:
            raise SpecError(f"{options.place}: --num-layers-per-virtual-pipeline-stage requires --num-layers; add it")
        virtual = max(1, layers // stages // each)
    if layout is not None:
        counts, more = _letters(layout, options.place), told.shape.get("prediction_layers", 0)
        if layers is not None and sum(counts) != layers + more:
            beside = f" and --mtp-num-layers {more}" if more else ""
            raise SpecError(
                f"{options.place}: --pipeline-model-parallel-layout has {sum(counts)} blocks, but --num-layers is {layers}{beside}; "
                "both must agree"
            )
        if len(counts) % stages:
            raise SpecError(
                f"{options.place}: --pipeline-model-parallel-layout has {len(counts)} parts, which do not divide evenly over {stages} "
                f"stages; write {-(-len(counts) // stages) * stages}"
            )
        virtual = len(counts) // stages
    else:
        counts = [] if layers is None else _uneven_ends(options, layers, stages, virtual)
        if layers is not None and (more := told.shape.get("prediction_layers", 0)):  # on the last stage, beside its own
            counts = counts or even_blocks(layers, stages * virtual, 0, 0)
            counts[-1] += more
    usual = not counts or (len(counts) <= sum(counts) and counts == even_blocks(sum(counts), len(counts), 0, 0))
    spread = {} if usual else {"layers_per_stage": counts}
    return ({"virtual_stages": virtual} if virtual > 1 else {}) | spread


def _letters(layout: str, place: str) -> list[int]:
    """Return the number of blocks in each part of a ``--pipeline-model-parallel-layout`` such as ``Et*3|(tt|)*29,m|L``."""
    text = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d{1,3})(?!\d)", r"([EtmL])\*(\d{1,3})(?!\d)"):
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    if not re.fullmatch(r"[EtmL|]{1,100000}", text):
        raise SpecError(
            f"{place}: --pipeline-model-parallel-layout {layout[:40]}: write E, t, m and L, with | between parts, such as Ettt|tttL"
        )
    return [part.count("t") + part.count("m") for part in text.split("|")]


def _uneven_ends(options: Arguments, layers: int, stages: int, virtual: int) -> list[int]:
    """Return the number of blocks in each chunk if the first or last stage differs from the rest; empty if none does."""
    first, last = options.number("decoder-first-pipeline-num-layers"), options.number("decoder-last-pipeline-num-layers")
    less = ["account-for-embedding-in-pipeline-split" in options.values, "account-for-loss-in-pipeline-split" in options.values]
    if any(less):
        return even_blocks(layers, stages * virtual, *map(int, less))
    if first is None and last is None:
        return []
    ends = {stage: count for stage, count in ((0, first), (stages - 1, last)) if count is not None}
    rest, others = layers - sum(ends.values()), stages - len(ends)
    of_stage = [ends.get(stage, rest // max(1, others)) for stage in range(stages)]
    if sum(of_stage) != layers or min(of_stage) < 1 or any(count % virtual for count in of_stage):
        end_options = " and ".join(
            f"--decoder-{end}-pipeline-num-layers {count}" for end, count in (("first", first), ("last", last)) if count
        )
        raise SpecError(f"{options.place}: {layers} layers do not divide over {stages} stages with {end_options}; change one of them")
    return [count // virtual for _ in range(virtual) for count in of_stage]


def _training(options: Arguments) -> dict[str, Any]:
    said = options.values
    if is_set(said, "bf16") and is_set(said, "fp16"):
        raise SpecError(f"{options.place}: --bf16 and --fp16 are both set, which Megatron-LM refuses; leave one of them out")
    narrow = "nvfp4" if "fp4-format" in said else "fp8" if "fp8-format" in said else ""
    precision = narrow or ("bf16" if "bf16" in said else "amp_fp16" if "fp16" in said else "fp32")
    recompute = {"full": "blocks", "selective": "selective"}.get(_granularity(said))
    training = {"batch": options.number("micro-batch-size", 1), "precision": precision}
    scaled = said.get("fp8-recipe") if narrow == "fp8" else None
    training |= {"fp8_recipe": scaled} if scaled in FP8_RECIPES else {}
    return training | ({"activation_checkpointing": recompute} if recompute else {})
