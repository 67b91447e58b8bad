"""What do the launch files of other programs say of a run? The model's shape, its sequence, and the training set-up, in our words.

Read are arguments of Megatron-LM (megatron/training/arguments.py), torchtitan's TOML (torchtitan/config/job_config.py), DeepSpeed's JSON
(deepspeed/runtime/config.py) and Accelerate's YAML (accelerate/commands/config). What they leave out takes their own defaults.
Limits: sizes that only a tokenizer knows must be written; shell variables are followed where one line sets them to a plain value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from sim.spec.foreign.launch_unread import OTHER_LAYERS, unread
from sim.spec.library import load_part
from sim.spec.parallel import NEAR_PIPELINE, even_blocks
from sim.spec.strict import whole_number
from sim.spec.workload import Model, RecomputedModule
from sim.spec.yaml import SpecError
from sim.units import shorten


@dataclass
class Told:
    """What one or several files tell; fields of a Transformer and of Training as plain data."""

    shape: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    """A model of the catalogue, in place of ``shape``."""
    sequence: int | None = None
    training: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    global_batch: int | None = None
    gpus: int | None = None
    """Of all nodes."""
    notes: list[str] = field(default_factory=list)
    """What the description does not hold, for its comments."""

    def joined(self, other: Told) -> Told:
        """Return this with what *other* tells on top."""
        return Told(
            {**self.shape, **other.shape},
            other.model or self.model,
            other.sequence or self.sequence,
            {**self.training, **other.training},
            {**self.parallel, **other.parallel},
            other.global_batch or self.global_batch,
            other.gpus or self.gpus,
            self.notes + other.notes,
        )


# --- Megatron-LM ---------------------------------------------------------------------------------------------------------

_MEGATRON_SIZES: Final[Mapping[str, str]] = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "num-attention-heads": "heads",
    "ffn-hidden-size": "ffn",
    "kv-channels": "head_dim",
    "max-position-embeddings": "max_seq",
    "num-experts": "experts",
    "moe-ffn-hidden-size": "expert_ffn",
    "moe-shared-expert-intermediate-size": "shared_expert_ffn",
    "moe-router-topk": "experts_per_token",
    "mtp-num-layers": "prediction_layers",
}
_MEGATRON_RANKS: Final[Mapping[str, str]] = {
    "tensor-model-parallel-size": "tensor",
    "pipeline-model-parallel-size": "pipeline",
    "context-parallel-size": "context",
    "expert-model-parallel-size": "expert",
}
LATENT: Final[Mapping[str, tuple[str, int]]] = {
    "q-lora-rank": ("q_rank", 0),
    "kv-lora-rank": ("kv_rank", 32),
    "qk-head-dim": ("nope_dim", 128),
    "qk-pos-emb-head-dim": ("rope_dim", 64),
    "v-head-dim": ("value_dim", 128),
}
"""Sizes of latent attention by option: their names here, and Megatron-LM's defaults."""
_MEGATRON_FSDP: Final[Mapping[str, str]] = {
    "no_shard": "none",
    "optim": "optimizer",
    "optim_grads": "gradients",
    "optim_grads_params": "parameters",
}
_MEGATRON_OPTIMIZERS: Final[Mapping[str, str]] = {"adam": "adam", "sgd": "momentum", "muon": "muon", "dist_muon": "muon"}
_MODULES: Final = re.compile(r"--recompute-modules[=\s]+((?:\w+[ \t]*)+)")
_ASSIGNMENT: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=[\"']?([^\s\"'$()]+)[\"']?\s*$", re.MULTILINE)
_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")


def megatron(text: str, place: str) -> Told:
    """Return what the arguments of Megatron-LM in *text*, plain or inside a shell script, tell. Raise SpecError for what is missing.

    A script without any size of the model tells of layout and batch alone.
    """
    given = Arguments(arguments(text, place), place)
    sizes = ("num-layers", "hidden-size", "num-attention-heads")
    sized = any(option in given.said for option in sizes)
    for option in sizes if sized else ():
        if option not in given.said:
            raise SpecError(f"{place}: --{option} is missing; these are no complete arguments of Megatron-LM")
    told = Told(
        shape=_megatron_shape(given) if sized else {}, sequence=given.number("seq-length"), global_batch=given.number("global-batch-size")
    )
    told.parallel = {name: size for option, name in _MEGATRON_RANKS.items() if (size := given.number(option) or 1) > 1}
    if "sequence-parallel" not in given.said and "tensor" in told.parallel:
        told.parallel["sequence"] = False
    told.parallel |= _megatron_shards(given)
    if "use-tp-pp-dp-mapping" in given.said:
        told.parallel["order"] = list(NEAR_PIPELINE)
    if "moe-expert-capacity-factor" in given.said:
        padded = {"pad_to_capacity": True} if "moe-pad-expert-input-to-capacity" in given.said else {}
        told.parallel |= {"capacity_factor": given.said["moe-expert-capacity-factor"], **padded}
    layout = re.search(r"--pipeline-model-parallel-layout[ =]+[\"']?([^\s\"']+)", text)
    told.parallel |= _megatron_stages(given, told, None if layout is None else layout[1])
    _megatron_exchanges(given, told)
    told.training = _megatron_training(given)
    told.training |= _megatron_optimizer(given.said.get("optimizer", "adam"), told)
    told.training |= _megatron_modules(text, given.said, told)
    for option in ("optimizer-cpu-offload", "cpu-offloading", "fine-grained-activation-offloading"):
        _offloaded(f"--{option}", option in given.said, told)
    told.notes += unread(text, given.said, _READ, told.sequence)
    return told


def _megatron_shards(given: Arguments) -> dict[str, Any]:
    """Return what data-parallel ranks share: states, or with one of FSDP's kinds what the strategy says."""
    if "use-torch-fsdp2" in given.said:
        return {"shard": "parameters"}
    if "use-megatron-fsdp" in given.said or "use-custom-fsdp" in given.said:
        strategy = given.said.get("data-parallel-sharding-strategy", "no_shard")
        if strategy not in _MEGATRON_FSDP:
            raise SpecError(
                f"{given.place}: --data-parallel-sharding-strategy {strategy} is not known; known are {', '.join(_MEGATRON_FSDP)}"
            )
        return {"shard": _MEGATRON_FSDP[strategy]} if strategy != "no_shard" else {}
    return {"shard": "optimizer"} if "use-distributed-optimizer" in given.said else {}


def _megatron_optimizer(name: str, told: Told) -> dict[str, Any]:
    """Return the optimizer; where it is not modeled adam stands in for it, and *told* has a note."""
    rule = _MEGATRON_OPTIMIZERS.get(name)
    told.notes += [] if rule else [f"--optimizer {name} is not modeled: the workload has adam"]
    return {"optimizer": {"name": rule or "adam"}}


def _megatron_modules(text: str, said: Mapping[str, str], told: Told) -> dict[str, Any]:
    """Return which modules of a block are recomputed by themselves, where the options in *text* name some."""
    named = _MODULES.search(text.replace("\\\n", " "))
    if named is None or said.get("recompute-granularity") != "selective":
        return {}
    if not told.parallel:
        told.notes.append("--recompute-modules is left out: parts of blocks are recomputed in layouts, such as --shard optimizer")
        return {"activation_checkpointing": "none"}
    words = named[1].split()
    modeled = get_args(RecomputedModule)
    told.notes += [f"--recompute-modules {word} is not modeled: it is not recomputed" for word in words if word not in modeled]
    attention = {} if "core_attn" in words else {"activation_checkpointing": "none"}
    return {"recompute_modules": [word for word in words if word in modeled], **attention}


def _megatron_exchanges(given: Arguments, told: Told) -> None:
    """Take over how context ranks exchange keys and values, and say which ways there and over expert ranks are not modeled."""
    kind = given.said.get("cp-comm-type", "p2p")
    if "context" in told.parallel and kind != "p2p":
        told.parallel |= {"context_exchange": "all_gather"} if kind == "all_gather" else {}
        told.notes += [] if kind == "all_gather" else [f"--cp-comm-type {kind} is not modeled: keys and values go round a ring"]
    tensor, expert = told.parallel.get("tensor", 1), told.parallel.get("expert", 1)
    modeled = 1 if expert > 1 else tensor
    if "num-experts" in given.said and (own := given.number("expert-tensor-parallel-size", tensor)) != modeled:
        told.notes.append(
            f"experts split over {own} tensor ranks (--expert-tensor-parallel-size) are not modeled: "
            + ("each is whole on its expert rank" if expert > 1 else f"they are split over {tensor}")
        )


@dataclass(frozen=True)
class Arguments:
    """Options by name, without dashes in front; *place* is their file's name in messages."""

    said: Mapping[str, str]
    place: str

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number, or *default* where the option is not there."""
        value = self.said.get(name)
        if value is None:
            return default
        number = whole_number(value)
        if number is None:
            raise SpecError(f"{self.place}: --{name} {value[:40]}: write a whole number")
        return number

    def figure(self, name: str, default: float, least: float | None = None) -> float:
        """Return a number of *least* or more (None: above zero), or *default*, Megatron-LM's own, where the option is not there."""
        value = self.said.get(name, str(default))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not (number > 0.0 if least is None else number >= least) or number == float("inf"):
            what = "above zero" if least is None else f"of {least:g} or more"
            raise SpecError(f"{self.place}: --{name} {value[:40]}: write a number {what}")
        return number


def _megatron_shape(given: Arguments) -> dict[str, Any]:
    """Return the fields of the transformer."""
    if other := next((option for option in OTHER_LAYERS if option in given.said), None):
        raise SpecError(
            f"{given.place}: --{other} makes layers of another kind, which are not described; decoders of attention and "
            "feed-forward blocks are"
        )
    shape: dict[str, Any] = {name: size for option, name in _MEGATRON_SIZES.items() if (size := given.number(option)) is not None}
    shape |= {"vocab": _megatron_vocabulary(given), **_megatron_kind(given), "norm_epsilon": given.figure("norm-epsilon", 1e-5)}
    if shape["positions"] == "rope":
        shape |= {"rope_base": given.number("rotary-base", 10_000), "rope_share": given.figure("rotary-percent", 1.0)}
    if "group-query-attention" in given.said:
        shape["kv_heads"] = given.number("num-query-groups", 1)
    if "experts" in shape:
        shape["experts_per_token"] = given.number("moe-router-topk", 2)
        shape |= {"shared_experts": 1} if "shared_expert_ffn" in shape else {}
        shape |= _expert_layers(given.said.get("moe-layer-freq", "1"), given.place)
    else:
        shape.pop("experts_per_token", None)
    if "multi-latent-attention" in given.said:
        shape["mla"] = {name: given.number(option, default) for option, (name, default) in LATENT.items()}
        shape.pop("head_dim", None)
    return shape


def arguments(text: str, place: str) -> dict[str, str]:
    """Return the options of *text* by name, with variables of the script put in."""
    values = dict(_ASSIGNMENT.findall(text))
    plain = re.sub(r"(^|\s)#.*", r"\1", text.replace("\\\n", " "), flags=re.MULTILINE)
    plain = _VARIABLE.sub(lambda match: str(values.get(match[1], match[2] or match[0])), plain)
    try:
        words = shlex.split(plain.replace("(", " ").replace(")", " ").replace('"', " ").replace("'", " "))
    except ValueError as error:
        raise SpecError(f"{place}: cannot be read as arguments: {error}") from None
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = words[index + 1] if index + 1 < len(words) else ""
            options[name.replace("_", "-")] = value if equals else "" if after.startswith("--") else after
    unknown = next((f"--{name} {value}" for name, value in options.items() if value.startswith("$") and name in _NUMERIC), None)
    if unknown:
        raise SpecError(f"{place}: {unknown}: the script does not say what this variable is; write the number")
    return options


_NUMERIC: Final = {*_MEGATRON_SIZES, *_MEGATRON_RANKS, *LATENT, "seq-length", "num-query-groups", "padded-vocab-size", "vocab-size"} | {
    "micro-batch-size",
    "global-batch-size",
}
_READ: Final = _NUMERIC | {
    "sequence-parallel", "use-distributed-optimizer", "multi-latent-attention", "group-query-attention", "disable-bias-linear",
    "untie-embeddings-and-output-weights", "normalization", "position-embedding-type", "recompute-granularity", "hidden-dropout",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "moe-layer-freq", "data-parallel-sharding-strategy",
}  # fmt: skip
"""Options that change what is simulated, by which slips are known."""


def _megatron_vocabulary(given: Arguments) -> int:
    """Return the padded vocabulary: a multiple of ``--make-vocab-size-divisible-by`` (128) times the tensor ranks."""
    if (padded := given.number("padded-vocab-size")) is not None:
        return padded
    size = given.number("vocab-size") or (50257 if given.said.get("tokenizer-type", "") == "GPT2BPETokenizer" else None)
    if size is None:
        raise SpecError(f"{given.place}: the vocabulary is the tokenizer's, which is not read; add --padded-vocab-size, for example 128256")
    step = (given.number("make-vocab-size-divisible-by") or 128) * (given.number("tensor-model-parallel-size") or 1)
    return -(-size // step) * step


def _megatron_kind(arguments: Arguments) -> dict[str, Any]:
    given = arguments.said
    bias = "none" if "disable-bias-linear" in given else "all"
    return {
        "activation": "swiglu" if "swiglu" in given else "relu2" if "squared-relu" in given else "gelu",
        "norm": "rmsnorm" if given.get("normalization") == "RMSNorm" else "layernorm",
        "positions": {"rope": "rope", "none": "none"}.get(given.get("position-embedding-type", ""), "learned")
        if "use-rotary-position-embeddings" not in given
        else "rope",
        "tied": "untie-embeddings-and-output-weights" not in given,
        "bias": "qkv" if bias == "none" and "add-qkv-bias" in given else bias,
        "qk_norm": "head" if "qk-layernorm" in given else "none",
        "dropout": arguments.figure("hidden-dropout", 0.1, least=0.0),
        **_megatron_window(arguments),
    }


def _megatron_window(given: Arguments) -> dict[str, Any]:
    """Return how far tokens look back (``--window-size LEFT,RIGHT``), and that each n-th layer looks back on all."""
    said = given.said.get("window-size")
    if said is None:
        return {}
    match = re.match(r"\s*(-1|\d{1,9})\s*(?:,|$)", said)
    if match is None:
        raise SpecError(f"{given.place}: --window-size {said}: write the tokens to look back on, such as 128,0")
    window = int(match[1])
    every = given.number("window-attn-skip-freq")
    return {"window": window, **({"global_every": every} if every else {})} if window > 0 else {}


def _expert_layers(pattern: str, place: str) -> dict[str, Any]:
    """Return which layers have experts, by ``--moe-layer-freq``: a number, or a pattern such as ``([0]*3+[1]*58)``."""
    if (every := whole_number(pattern)) is not None:
        return {"moe_every": every}
    match = re.fullmatch(r"\[0\]\*(\d+)\+\[1\]\*\d+", pattern.replace(" ", ""))
    if match is None:
        raise SpecError(f"{place}: --moe-layer-freq {pattern}: write a number, or [0]*N+[1]*M")
    return {"first_dense_layers": int(match[1])}


def _megatron_stages(given: Arguments, told: Told, layout: str | None) -> dict[str, Any]:
    """Return how many chunks each rank of a pipeline has, and how many blocks each chunk, where they are not equal."""
    stages = told.parallel.get("pipeline", 1)
    if stages == 1:
        return {}
    layers = told.shape.get("layers")
    virtual = given.number("num-virtual-stages-per-pipeline-rank") or 1
    if each := given.number("num-layers-per-virtual-pipeline-stage"):
        if layers is None:
            raise SpecError(f"{given.place}: --num-layers-per-virtual-pipeline-stage needs --num-layers; write it too")
        virtual = max(1, layers // stages // each)
    if layout is not None:
        counts = _letters(layout, given.place)
        if layers is not None and sum(counts) != layers + told.shape.get("prediction_layers", 0):
            raise SpecError(
                f"{given.place}: --pipeline-model-parallel-layout has {sum(counts)} blocks, --num-layers is {layers}; change one"
            )
        if len(counts) % stages:
            raise SpecError(
                f"{given.place}: --pipeline-model-parallel-layout has {len(counts)} parts, which {stages} stages do not share evenly; "
                f"write {-(-len(counts) // stages) * stages}"
            )
        virtual = len(counts) // stages
    else:
        counts = [] if layers is None else _ends_apart(given, layers, stages, virtual)
    usual = not counts or counts == even_blocks(sum(counts), len(counts), 0, 0)
    spread = {} if usual else {"layers_per_stage": counts}
    return ({"virtual_stages": virtual} if virtual > 1 else {}) | spread


def _letters(layout: str, place: str) -> list[int]:
    """Return the blocks of each part of a ``--pipeline-model-parallel-layout`` such as ``Et*3|(tt|)*29,m|L``."""
    text = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d{1,3})(?!\d)", r"([EtmL])\*(\d{1,3})(?!\d)"):
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    if not re.fullmatch(r"[EtmL|]{1,100000}", text):
        raise SpecError(
            f"{place}: --pipeline-model-parallel-layout {layout[:40]}: write E, t, m and L, parts apart by |, such as Ettt|tttL"
        )
    return [part.count("t") + part.count("m") for part in text.split("|")]


def _ends_apart(given: Arguments, layers: int, stages: int, virtual: int) -> list[int]:
    """Return the blocks of each chunk where the first or the last stage has others than the rest; nothing where none does."""
    first, last = given.number("decoder-first-pipeline-num-layers"), given.number("decoder-last-pipeline-num-layers")
    less = ["account-for-embedding-in-pipeline-split" in given.said, "account-for-loss-in-pipeline-split" in given.said]
    if any(less):
        return even_blocks(layers, stages * virtual, *map(int, less))
    if first is None and last is None:
        return []
    ends = {stage: count for stage, count in ((0, first), (stages - 1, last)) if count is not None}
    rest, others = layers - sum(ends.values()), stages - len(ends)
    of_stage = [ends.get(stage, rest // max(1, others)) for stage in range(stages)]
    if sum(of_stage) != layers or min(of_stage) < 1 or any(count % virtual for count in of_stage):
        given_ = " and ".join(f"--decoder-{end}-pipeline-num-layers {count}" for end, count in (("first", first), ("last", last)) if count)
        raise SpecError(f"{given.place}: {layers} layers do not divide over {stages} stages with {given_}; change that")
    return [count // virtual for _ in range(virtual) for count in of_stage]


def _megatron_training(given: Arguments) -> dict[str, Any]:
    said = given.said
    narrow = "nvfp4" if "fp4-format" in said else "fp8" if "fp8-format" in said else ""
    precision = narrow or ("bf16" if "bf16" in said else "amp_fp16" if "fp16" in said else "fp32")
    recompute = {"full": "blocks", "selective": "selective"}.get(said.get("recompute-granularity", ""))
    training = {"batch": given.number("micro-batch-size", 1), "precision": precision, "stack": "megatron-core"}
    return training | ({"activation_checkpointing": recompute} if recompute else {})


# --- torchtitan ------------------------------------------------------------------------------------------------------------

TORCHTITAN_MODELS: Final[Mapping[tuple[str, str], str]] = {
    **{("llama3", size.upper()): f"llama-3.1-{size}" for size in ("8b", "70b", "405b")},
    ("llama4", "17bx16e"): "llama-4-scout-17b-16e",
    ("llama4", "17bx128e"): "llama-4-maverick-17b-128e",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    **{("qwen3", size): f"qwen3-{size.lower()}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")},
}
"""The catalogue's name of a model and flavor (torchtitan/models/*/__init__.py)."""
_TITAN_RANKS: Final[Mapping[str, str]] = {
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "context_parallel_degree": "context",
    "expert_parallel_degree": "expert",
    "data_parallel_replicate_degree": "replicate",
}
_TITAN_SCHEDULES: Final[Mapping[str, str]] = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved_1f1b",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipev",
}


def torchtitan(said: Mapping[str, Any], place: str) -> Told:
    """Return what a TOML of torchtitan tells. Raise SpecError for a model that the catalogue lacks."""
    model, training, layout = (_block(said, name, place) for name in ("model", "training", "parallelism"))
    key = str(model.get("name", "")), str(model.get("flavor", ""))
    if key not in TORCHTITAN_MODELS:
        models = ", ".join(" ".join(each) for each in TORCHTITAN_MODELS)
        raise SpecError(f"{place}: model {' '.join(key).strip() or '(missing)'} is not in the catalogue; known are {models}")
    told = Told(model=TORCHTITAN_MODELS[key], sequence=_count(training, "seq_len", 2048, f"{place}: training"))
    ranks = {name: _count(layout, option, 1, f"{place}: parallelism") for option, name in _TITAN_RANKS.items()}
    told.parallel = {name: size for name, size in ranks.items() if size > 1}
    shards = layout.get("data_parallel_shard_degree", -1)
    if shards == -1 or _count(layout, "data_parallel_shard_degree", 1, f"{place}: parallelism") != 1 or told.parallel.get("context", 1) > 1:
        told.parallel["shard"] = "parameters"
        reshard = {"always": True, "never": False}.get(str(layout.get("fsdp_reshard_after_forward", "default")))
        told.parallel |= {} if reshard is None else {"reshard_after_forward": reshard}
    else:
        told.parallel.pop("replicate", None)  # plain data parallelism
    schedule = str(layout.get("pipeline_parallel_schedule", "1F1B")).lower().replace("schedule", "")
    if told.parallel.get("pipeline", 1) > 1:
        if schedule not in _TITAN_SCHEDULES:
            raise SpecError(f"{place}: pipeline_parallel_schedule {schedule} is not known; known are {', '.join(_TITAN_SCHEDULES)}")
        told.parallel["schedule"] = _TITAN_SCHEDULES[schedule]
        told.parallel |= _titan_stages(layout, told, place)
    if told.parallel.get("context", 1) > 1:
        told.parallel |= _exchange(layout, "context_parallel_rotate_method", place)
    wide = str(training.get("mixed_precision_param", "bfloat16")) == "float32"
    told.training = {
        "batch": _titan_batch(training, layout, place),
        "precision": "fp8" if re.search(r"float8|linear\.mx", str(model.get("converters", ""))) else "fp32" if wide else "bf16",
        "activation_checkpointing": _titan_recomputes(_block(said, "activation_checkpoint", place), place, told),
        "stack": "torchtitan-2.x",
    }
    optimizer = str(_block(said, "optimizer", place).get("name", "AdamW"))
    told.notes += [] if optimizer in ("Adam", "AdamW") else [f"optimizer {optimizer} is not modeled: the workload has adam"]
    _offloaded("training.enable_cpu_offload", training.get("enable_cpu_offload"), told)
    wanted = training.get("global_batch_size", -1)
    told.global_batch = wanted if isinstance(wanted, int) and wanted > 0 else None
    return told


def _titan_recomputes(block: Mapping[str, Any], place: str, told: Told) -> str:
    """Return what is recomputed. Raise SpecError for a mode that torchtitan does not have."""
    mode, option = str(block.get("mode", "selective")), str(block.get("selective_ac_option", "op"))
    modes = {"none": "none", "full": "blocks", "selective": "operators", "memory_budget": "operators"}
    if mode not in modes:
        raise SpecError(f"{place}: activation_checkpoint.mode {mode} is not known; known are {', '.join(modes)}")
    if mode == "memory_budget":
        told.notes.append("activation_checkpoint.mode memory_budget is not modeled: the workload has selective, by operators")
    if mode == "selective" and option != "op":
        told.notes.append(f"activation_checkpoint.selective_ac_option {option} is not modeled: the workload has op")
    return modes[mode]


def _titan_stages(layout: Mapping[str, Any], told: Told, place: str) -> dict[str, Any]:
    """Return the chunks of each rank, and the blocks of each chunk where torchtitan would not spread them so by itself."""
    shape = load_part(Model, told.model, "workloads/models").transformer
    assert shape is not None
    pipeline, several = told.parallel["pipeline"], told.parallel["schedule"] not in ("gpipe", "1f1b")
    first, last = (_count(layout, f"pipeline_parallel_{end}_stage_less_layers", 1, f"{place}: parallelism", 0) for end in ("first", "last"))
    named, parts = layout.get("module_fqns_per_model_part"), pipeline * (2 if several else 1)
    if layout.get("pipeline_parallel_layers_per_stage") is not None:
        each = _count(layout, "pipeline_parallel_layers_per_stage", 1, f"{place}: parallelism")
        parts = -(-(shape.layers + first + last) // each)
    if named is not None:
        parts = len(_titan_names(named, shape.layers, place))
    if parts % pipeline or (parts > pipeline) != several:
        wanted = f"a multiple of {pipeline}, 2 or more times it" if several else f"{pipeline}"
        raise SpecError(
            f"{place}: {layout.get('pipeline_parallel_schedule', '1F1B')} with {parts} stages on {pipeline} ranks; write {wanted}"
        )
    if parts > shape.layers or max(first, last) > (shape.layers + first + last) // parts:
        raise SpecError(
            f"{place}: {shape.layers} layers do not fill {parts} stages, the first of {first} and the last of {last} less; write fewer"
        )
    usual = even_blocks(shape.layers, parts, 1, 1)
    counts = even_blocks(shape.layers, parts, first, last) if named is None else _titan_names(named, shape.layers, place)
    chunks = {"virtual_stages": parts // pipeline} if told.parallel["schedule"] == "interleaved_1f1b" else {}
    return chunks | ({} if counts == usual else {"layers_per_stage": counts})


def _titan_names(named: object, layers: int, place: str) -> list[int]:
    """Return the blocks of each part of ``module_fqns_per_model_part``. Raise SpecError unless these are all *layers*."""
    parts = [part if isinstance(part, list) else [] for part in named] if isinstance(named, list) else []
    counts = [sum(str(name).startswith("layers.") for name in part) for part in parts]
    if sum(counts) != layers:
        raise SpecError(
            f"{place}: parallelism.module_fqns_per_model_part names {sum(counts)} blocks, but the model has {layers}; "
            'write a list of names for each stage, such as [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]'
        )
    return counts


def _exchange(block: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """Return how context ranks exchange keys and values, by torch's names of it."""
    kind = block.get(key, "allgather")
    if kind not in ("allgather", "alltoall"):
        raise SpecError(f"{place}: {key} {shorten(str(kind))}: write allgather or alltoall")
    return {"context_exchange": "all_gather"} if kind == "allgather" else {}


def _titan_batch(training: Mapping[str, Any], layout: Mapping[str, Any], place: str) -> int:
    """Return the samples of a micro-batch: of a pipeline, not all that a rank has in one pass."""
    if layout.get("pipeline_parallel_degree", 1) > 1 and "pipeline_parallel_microbatch_size" in layout:
        return _count(layout, "pipeline_parallel_microbatch_size", 1, f"{place}: parallelism")
    return _count(training, "local_batch_size" if "local_batch_size" in training else "batch_size", 8, f"{place}: training")


def _count(block: Mapping[str, Any], name: str, default: int, place: str, least: int = 1) -> int:
    """Return the number *name* of *block*, or *default*. Raise SpecError for what is no whole number of *least* or more."""
    value = block.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(f"{place}.{name} {str(value)[:40]}: write a whole number, {least} or more")
    return value


# --- DeepSpeed and Accelerate ------------------------------------------------------------------------------------------------

_ZERO: Final = ("none", "optimizer", "gradients", "parameters")
_FSDP: Final[Mapping[str, str]] = {
    **dict.fromkeys(("FULL_SHARD", "1", "HYBRID_SHARD", "4"), "parameters"),
    **dict.fromkeys(("SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5"), "gradients"),
    **dict.fromkeys(("NO_SHARD", "3"), "none"),
}


def deepspeed(said: Mapping[str, Any], place: str) -> Told:
    """Return what a JSON of DeepSpeed tells; ``auto`` is left to the defaults."""
    told = Told()
    stage = _block(said, "zero_optimization", place).get("stage", 0)
    if type(stage) is not int or stage not in range(4):
        raise SpecError(f"{place}: zero_optimization.stage {shorten(str(stage))}: write the number 0, 1, 2 or 3")
    if stage:
        told.parallel["shard"] = _ZERO[stage]
    for option, name in (("train_micro_batch_size_per_gpu", "batch"), ("gradient_accumulation_steps", "gradient_accumulation_steps")):
        if isinstance(said.get(option), int):
            told.training[name] = said[option]
    if isinstance(said.get("train_batch_size"), int):
        told.global_batch = said["train_batch_size"]
    widths = [width for width in ("bf16", "fp16") if _block(said, width, place).get("enabled") is True]
    if len(widths) > 1:
        raise SpecError(f"{place}: bf16 and fp16 are both enabled; write false for one of them")
    told.training |= {"precision": widths[0]} if widths else {}
    _deepspeed_optimizer(_block(said, "optimizer", place), told)
    zero = _block(said, "zero_optimization", place)
    for option in ("offload_optimizer", "offload_param"):
        _offloaded(f"zero_optimization.{option}", _block(zero, option, place).get("device", "none"), told)
    _offloaded("zero_optimization.cpu_offload", zero.get("cpu_offload"), told)
    for option in sorted(_ZERO_PLUS & zero.keys()):
        if zero[option] not in (False, None, 0, 1):
            told.notes.append(f"zero_optimization.{option} {zero[option]} is not modeled: the workload is plain ZeRO")
    return told


_ZERO_PLUS: Final = frozenset(
    ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
)
"""Keys of ZeRO++, which change what is exchanged."""
_DEEPSPEED_OPTIMIZERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "deepspeedcpuadam"), "adam"),
    **dict.fromkeys(("lamb", "fusedlamb"), "lamb"),
    "sgd": "sgd",
    "muon": "muon",
    "adafactor": "adafactor",
}


def _deepspeed_optimizer(block: Mapping[str, Any], told: Told) -> None:
    """Take over the optimizer of the *block*, or say that adam stands in for it."""
    kind, settings = block.get("type"), block.get("params")
    if not isinstance(kind, str) or kind == "auto":
        return
    name = _DEEPSPEED_OPTIMIZERS.get(kind.lower())
    if name == "sgd" and isinstance(settings, Mapping) and settings.get("momentum"):
        name = "momentum"
    told.training |= {"optimizer": {"name": name}} if name else {}
    told.notes += [] if name else [f"optimizer {kind} is not modeled: the workload has adam"]


def _offloaded(option: str, device: object, told: Told) -> None:
    """Say that *option*, which keeps something in host memory or on a disk, is left out: states then lie on the GPU and move nowhere."""
    if device not in (None, False, "none", "None", "auto"):
        where = "cpu" if device is True else device
        told.notes.append(f"{option} ({where}) is not modeled: what it offloads is counted in GPU memory, and takes no time to come and go")


def accelerate(said: Mapping[str, Any], place: str) -> Told:
    """Return what a YAML of Accelerate tells."""
    told = Told()
    precisions = {"bf16": "bf16", "fp16": "amp_fp16", "fp8": "fp8", "no": "fp32", "false": "fp32"}
    precision = precisions.get(kind := str(said.get("mixed_precision", "")).lower())
    if kind and not precision:
        raise SpecError(f"{place}: mixed_precision {shorten(kind)}: write no, fp16, bf16 or fp8")
    told.training |= {"precision": precision} if precision else {}
    zero, sharded, mesh = (_block(said, name, place) for name in ("deepspeed_config", "fsdp_config", "parallelism_config"))
    if zero:
        stage = str(zero.get("zero_stage", 0))
        if stage not in ("0", "1", "2", "3"):
            raise SpecError(f"{place}: deepspeed_config.zero_stage {shorten(stage)}: write 0, 1, 2 or 3")
        told.parallel |= {"shard": _ZERO[int(stage)]} if stage != "0" else {}
        steps = zero.get("gradient_accumulation_steps")
        told.training |= {"gradient_accumulation_steps": steps} if isinstance(steps, int) else {}
        for option in ("offload_optimizer_device", "offload_param_device"):
            _offloaded(f"deepspeed_config.{option}", zero.get(option), told)
    if sharded:
        strategy = str(sharded.get("fsdp_sharding_strategy", sharded.get("fsdp_reshard_after_forward", "FULL_SHARD")))
        shard = _FSDP.get(strategy, "parameters")
        told.parallel |= {"reshard_after_forward": False} if strategy.lower() == "false" else {}
        told.parallel |= {"shard": shard} if shard != "none" else {}
        least = sharded.get("fsdp_min_num_params")
        sized = shard == "parameters" and str(sharded.get("fsdp_auto_wrap_policy")) == "SIZE_BASED_WRAP"
        told.parallel |= {"wrap": least} if sized and isinstance(least, int) and least > 0 else {}
        if strategy.startswith("HYBRID") or strategy in ("4", "5"):
            told.notes.append("hybrid sharding: write replicate, the number of nodes, as --replicate N")
        _offloaded("fsdp_config.fsdp_offload_params", sharded.get("fsdp_offload_params"), told)
        told.training |= {"activation_checkpointing": "blocks"} if sharded.get("fsdp_activation_checkpointing") is True else {}
    for option, name in (("tp_size", "tensor"), ("cp_size", "context"), ("dp_replicate_size", "replicate")):
        size = _accelerate_number(mesh, f"parallelism_config_{option}" if f"parallelism_config_{option}" in mesh else option, place)
        told.parallel |= {name: size} if size > 1 else {}
    if "context" in told.parallel:
        key = "parallelism_config_cp_comm_strategy"
        told.parallel |= _exchange(mesh, key if key in mesh else "cp_comm_strategy", place)
    megatron_block = _block(said, "megatron_lm_config", place)
    for option, name in (("megatron_lm_tp_degree", "tensor"), ("megatron_lm_pp_degree", "pipeline")):
        size = whole_number(str(megatron_block.get(option, 1))) or 1
        told.parallel |= {name: size} if size > 1 else {}
    processes = _accelerate_number(said, "num_processes", place)
    told.gpus = processes if processes > 1 else None
    if not (zero or sharded or mesh or megatron_block) and "distributed_type" not in said:
        raise SpecError(f"{place}: is no configuration of Accelerate; write distributed_type")
    return told


def _accelerate_number(block: Mapping[str, Any], key: str, place: str) -> int:
    """Return the whole number of *key*, 1 where it is left out. Raise SpecError for anything else."""
    value = block.get(key)
    number = 1 if value is None else whole_number(str(value))
    if not number:
        raise SpecError(f"{place}: {key} {shorten(str(value))}: write a whole number, 1 or more")
    return number


def _block(said: Mapping[str, Any], name: str, place: str) -> Mapping[str, Any]:
    value = said.get(name) or {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{place}: {name} is a single value; write a block of keys")
    return value
