"""How do a configuration and launch files become a workload? They are identified by content, merged, and written as YAML that runs.

What the files leave out takes the defaults of `sim.spec.defaults`. The commented YAML is written to a temporary file next to its
destination, loaded like any other workload, and only then renamed, so the file at the destination is always complete and valid.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sim.spec.catalog import is_file, is_folder
from sim.spec.decoder import parameter_count
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_trainer import STACK
from sim.spec.foreign.layout_launch import fields_with_defaults
from sim.spec.library import load_part, load_workload
from sim.spec.model import Model
from sim.spec.strict import whole_number
from sim.spec.transformer import Transformer
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.new.file import NAME, for_editors, write_new
from sim.study.new.first_command import MACHINE, NextMachine, first_command, is_search, machine_for, machine_with
from sim.study.new.length import length_option, with_defaults, without_stack
from sim.study.new.sources import decoder_model, is_command_line, read_source
from sim.units import any_of, pluralized, rounded

LONGEST: Final = 8192
"""Tokens per sample of a model outside the catalog if not specified: as many as it takes, up to this; estimate (usual in training)."""
MOST_PARAMETERS: Final = 10**15
"""Maximum parameters of a model; products of more are no longer exact."""


@dataclass(frozen=True)
class NewWorkload:
    """A workload that was written: its path, a line about it, a command that runs it, and notes on what the description leaves out."""

    path: Path
    note: str
    command: str
    left_out: tuple[str, ...]


def new_workload(
    sources: Sequence[str],
    output: Path | None = None,
    name: str | None = None,
    sequence: int | None = None,
    overwrite: bool = False,
    batch: int | None = None,
    dataset: str | None = None,
) -> NewWorkload:
    """Write the workload that *sources* describe to *output* (default: its name in this folder) and return where it is.

    *sources* are files, folders with a ``config.json``, a hub id, a decoder of the catalog, or the command line that starts the job.
    *batch* (samples per GPU) and *dataset* (of the catalog) take precedence over them. Raise SpecError, and write nothing, if they do
    not define a workload.
    """
    told = LaunchSettings()
    places, configurations = [], []
    for source in sources:
        place, more = read_source(source, {Path(other).name for other in sources if other != source})
        places.append(place)
        if more.shape or more.model:
            configurations.append(place)
        told = told.joined(more)
    if len(configurations) == 2 and told.model and _same_sizes(told):  # as in files that plan exports for a model of the catalog
        told.shape, told.keys = {}, {}
    elif len(configurations) > 1:
        raise SpecError(f"{' and '.join(configurations)}: {len(configurations)} model configurations; name one")
    if told.released and not told.shape and not told.model:
        told.model = decoder_model(told.released)
    if not told.shape and not told.model:
        raise SpecError(
            f"{', '.join(places) or 'new workload'}: no model is described; add --from with a config.json, Megatron-LM arguments, a "
            "torchtitan TOML, or a catalog decoder such as llama-3.1-8b"
        )
    if batch is not None:
        told.training["batch"] = batch
    if len(told.sharded_by) > 1:
        turned_on = " and ".join(f"{place} turns on {library}" for library, place in told.sharded_by.items())
        raise SpecError(f"{turned_on}, but a job is sharded by one of them; leave the other out")
    told = with_defaults(told)
    _set_gpus(told, ", ".join(places))
    return write(
        told,
        name or _workload_name([each for each in sources if not is_command_line(each)] or ["workload"], told, output),
        output,
        sequence,
        ", ".join(places),
        overwrite,
        dataset,
    )


def place_of(name: str, output: Path | None, overwrite: bool) -> tuple[str, Path]:
    """Return *name* and the path for the workload of that name. Raise SpecError if the name is invalid, or if the file already exists."""
    if not NAME.fullmatch(name):
        raise SpecError(f"--name {name}: write letters, digits, '.', '_', '+' or '-'")
    path = output or Path(f"{name}.yaml")
    if path.exists() and not overwrite:
        raise SpecError(f"{path} already exists; write --force to replace it, or -o with another file")
    return name, path


def write(
    told: LaunchSettings,
    name: str,
    output: Path | None,
    sequence: int | None,
    origin: str,
    overwrite: bool = False,
    dataset: str | None = None,
) -> NewWorkload:
    """Write *told* as the workload *name*; *origin* names its sources. Raise SpecError, and write nothing, if it is invalid."""
    name, path = place_of(name, output, overwrite)
    shape, trained = _shape(told, origin)
    tokens = sequence or told.sequence or trained or min(shape.max_seq or LONGEST, LONGEST)
    if shape.max_seq is not None and tokens > shape.max_seq:
        raise SpecError(
            f"{origin}: a sequence of {tokens} tokens is longer than the model's {shape.max_seq} positions; write --sequence "
            f"{shape.max_seq}"
        )
    _whole_steps(told, origin)

    def written(command: str) -> Workload:
        return write_new(path, _text(told, name, command, shape, tokens, origin, dataset), lambda file: load_workload(file).spec)

    machine, workload = _machine(told), written("")
    command = first_command(str(path), str(path), told.global_batch, told.gpus, machine)
    if told.training.get("stack") == STACK and is_search(command):
        told = without_stack(told)
        workload = written("")
        command = first_command(str(path), str(path), told.global_batch, told.gpus, machine)
    option, notes = length_option(told, tokens, dataset, command)
    command += option
    told.notes += [*_other_gpus(told.gpus, command, machine), *_other_layout(told, command), *notes]
    written(command.replace(shlex.quote(str(path)), shlex.quote(path.name)))
    note = f"{_in_words(workload.model.parameters)} parameters, sequences of {tokens:,} tokens"
    if not (sequence or told.sequence) and shape.max_seq is not None and shape.max_seq > tokens:
        note += f" (the model takes {shape.max_seq:,}; --sequence N)"
    if "--global-batch" in command:  # no file has it: its micro-batches depend on the number of GPUs
        note += f"; the global batch is an option: --global-batch {told.global_batch}, also of plan, compare and recommend"
    return NewWorkload(path, note, command, tuple(told.notes))


def _other_gpus(gpus: int | None, command: str, machine: NextMachine) -> list[str]:
    """Return a note if *command* uses other than the *gpus* that the launch files request; empty if they request none."""
    stated = re.search(r" --nodes (\d+)", command)
    nodes = int(stated[1]) if stated else 1
    if gpus is None or gpus == nodes * machine.gpus or f" --gpus {gpus}" in command:
        return []
    requested, of_nodes = pluralized(gpus, "GPU"), pluralized(nodes, "node")
    return [f"the launch files request {requested}; the command below uses {of_nodes} of {machine.gpus}"]


def _other_layout(told: LaunchSettings, command: str) -> list[str]:
    """Return a note if *command* divides the model otherwise than the layout that launch files specify; empty if they specify none."""
    changed = re.findall(r" (--(?:tp|shard) \S+)", command)
    if not (told.parallel or told.sharded_by):
        return []
    if not changed and not is_search(command):
        return []
    instead = f"uses {' '.join(changed)}" if changed else "searches for others"
    return [
        "the layout of the launch files does not divide the model and the GPUs, or does not fit into their memory, on any number of nodes "
        f"tried; the command below {instead}"
    ]


def _machine(told: LaunchSettings) -> NextMachine:
    """Return the machine for the next command, with the GPU that the launch files name, and add a note on it to *told*."""
    usual = machine_for(told.training)
    if usual != MACHINE and not told.gpu:
        told.notes.append(f"{MACHINE.name} lacks the data types of the launch files; the command below uses {usual.name}")
        return usual
    machine = machine_with(told.gpu, told.gpus_per_node) if told.gpu else MACHINE
    if machine is None:
        told.notes.append(f"no machine in the catalog has a GPU {told.gpu}; the command below uses {MACHINE.name}")
    elif machine != MACHINE:
        told.notes.append(f"the launch files request {told.gpu}; the command below uses {machine.name}, which has {machine.gpus}")
    return machine or MACHINE


def _shape(told: LaunchSettings, origin: str) -> tuple[Transformer, int | None]:
    """Return the sizes of the model, and the tokens of a sample with which one of the catalog was trained."""
    if told.model:
        model = load_part(Model, told.model)
        assert model.transformer is not None, f"{told.model} is not a decoder"
        return model.transformer, model.sequence
    try:
        shape = Transformer.model_validate(told.shape)
    except ValueError as error:
        errors = error.errors() if hasattr(error, "errors") else []
        sentences = [": ".join([*map(str, each["loc"][-1:]), str(each["msg"]).removeprefix("Value error, ")]) for each in errors]
        raise SpecError([f"{origin}: {told.in_words_of_file(sentence)}" for sentence in sentences or [str(error)]]) from None
    if parameter_count(shape) > MOST_PARAMETERS:
        name, size = max(((name, each) for name, each in told.shape.items() if type(each) is int), key=lambda pair: pair[1])
        raise SpecError(
            f"{origin}: {told.keys.get(name, name)} {size:,} makes a model of over {MOST_PARAMETERS / 1e12:,.0f} trillion parameters; "
            "write a smaller number"
        )
    return shape, None


def _same_sizes(told: LaunchSettings) -> bool:
    """Return whether the sizes in a file are those of the model of the catalog that *told* also names."""
    own = load_part(Model, told.model).transformer
    try:
        return own is not None and fields_with_defaults(Transformer.model_validate(told.shape)) == fields_with_defaults(own)
    except ValueError:
        return False


def _set_gpus(told: LaunchSettings, origin: str) -> None:
    """Set the GPUs in *told* to those that its layout or its batch sizes need. Raise SpecError if the job starts others.

    torchtitan and DeepSpeed refuse them as well.
    """
    ranks = _model_ranks(told)
    batch, steps = (int(told.training.get(name, 0)) for name in ("batch", "gradient_accumulation_steps"))
    needed = told.ranks
    if "DeepSpeed" in told.sharded_by and told.global_batch and batch * steps and told.global_batch % (batch * steps) == 0:
        needed = told.global_batch // (batch * steps) * ranks
    if needed and told.gpus_assumed:
        told.gpus, told.gpus_assumed = needed, ""
    if needed and told.gpus and told.gpus != needed:
        requested = f"but the launch files request {pluralized(told.gpus, 'GPU')}"
        if told.ranks:
            raise SpecError(f"{origin}: the degrees of the layout multiply to {pluralized(needed, 'GPU')}, {requested}; both must agree")
        raise SpecError(
            f"{origin}: a global batch of {told.global_batch} in micro-batches of {batch}, {steps} in a step, takes "
            f"{pluralized(needed, 'GPU')}, {requested}; write {batch * steps * max(1, told.gpus // ranks)}"
        )
    if told.gpus and not told.gpus_assumed and told.gpus % ranks:
        requested = pluralized(told.gpus, "GPU")
        raise SpecError(
            f"{origin}: tensor x pipeline x context ranks are {ranks}, which do not divide the {requested} that the launch files request; "
            f"write degrees whose product does, or {-(-told.gpus // ranks) * ranks} GPUs"
        )
    told.gpus = told.gpus or needed
    told.notes += [told.gpus_assumed] if told.gpus_assumed else []


def _model_ranks(told: LaunchSettings) -> int:
    """Return over how many ranks the layout in *told* divides one copy of the model."""
    return math.prod(told.parallel.get(name, 1) for name in ("tensor", "pipeline", "context"))


def _whole_steps(told: LaunchSettings, origin: str) -> None:
    """Raise SpecError for a global batch that is no multiple of the samples of the micro-batches that all ranks compute together."""
    batch = told.training.get("batch", 1) * told.training.get("gradient_accumulation_steps", 1)
    what = f"the micro-batch of {batch}"
    ranks = _model_ranks(told)
    if told.gpus and not told.gpus_assumed and told.gpus % ranks == 0 and (data := told.gpus // ranks) > 1:
        what, batch = f"{what} on {data} data-parallel ranks", batch * data
    if told.global_batch and told.global_batch % batch:
        near = -(-told.global_batch // batch) * batch
        raise SpecError(f"{origin}: a global batch of {told.global_batch} is not a multiple of {what}; write {near}")


def _workload_name(sources: Sequence[str], told: LaunchSettings, output: Path | None) -> str:
    """Return the name of a workload: that of the catalog's model, of *output*, or of the first file or its folder, in lower case."""
    if told.model:
        return told.model
    path = Path(sources[0])
    stem = output.stem if output is not None else path.name if is_folder(path) or not path.suffix or not is_file(path) else path.stem
    if output is None and stem == "config":
        stem = path.resolve().parent.name
    return re.sub(r"[^a-z0-9._+-]+", "-", stem.lower()).strip("-._+") or "workload"


# --- writing -----------------------------------------------------------------------------------------------------------------

_COMMENTS: Final[Mapping[str, str]] = {
    "heads": "for queries",
    "kv_heads": "for keys and values",
    "ffn": "width inside the feed-forward block",
    "vocab": "rows of the embedding table",
    "max_seq": "maximum tokens per sample",
    "rope_base": "of rotary embeddings",
    "norm_epsilon": "of norms",
    "tied": "whether the output layer shares the embedding table",
    "window": "tokens that each token looks back (and ahead, if not causal)",
    "chunked": "the window does not slide: chunks attend to themselves",
    "global_every": "every n-th layer attends to all tokens",
    "causal": "false: an encoder, whose tokens attend to later ones as well",
    "expert_ffn": "width inside one expert",
    "norms_per_layer": "norms per block",
    "parallel": "attention and feed-forward block in parallel",
}


def _text(told: LaunchSettings, name: str, command: str, shape: Transformer, tokens: int, origin: str, dataset: str | None) -> str:
    count = parameter_count(shape)
    lines = [*for_editors("workload"), f"# {name}: {count:,} parameters, from {plain_comment(origin)}.", f"# {command}"]
    lines += [f"# {plain_comment(note)}" for note in told.notes]
    lines += [f"name: {name}", f'description: "{name}, {_in_words(count)} parameters, sequences of {tokens:,} tokens"', "model:"]
    if told.model:
        lines += [f"  extends: {told.model}"]
    else:
        lines += [f"  name: {name}", "  transformer:", *_fields(shape)]
    lines += [f"  sequence: {tokens}  # tokens per sample; --sequence N"]
    lines += [f"  lora: {{rank: {told.lora_rank}}}  # adapters train, nothing else"] if told.lora_rank else []
    if not told.model:
        lines += [f"  source: {json.dumps(plain_comment(origin))}"]
    stream = (
        f"dataset: {dataset}"
        if dataset
        else "# data set: the token stream of workloads/datasets/tokens.yaml, cut into samples of this length"
    )
    return "\n".join([*lines, stream, *_training(told, origin)]) + "\n"


def _in_words(count: int) -> str:
    return f"{rounded(count / 1e9)} billion" if count >= 1e9 else f"{rounded(count / 1e6)} million"


def _fields(shape: Transformer) -> list[str]:
    fields = shape.model_dump(exclude_defaults=True)
    fields |= {name: getattr(shape, name) for name in ("activation", "norm", "positions", "tied")}
    rows = []
    for name in Transformer.model_fields:
        if name in fields:
            value = fields[name]
            rows.append(f"    {name}: {_yaml_value(value)}" + (f"  # {_COMMENTS[name]}" if name in _COMMENTS else ""))
    return rows


def _training(told: LaunchSettings, origin: str) -> list[str]:
    given = {"batch": 1, "precision": "bf16", "optimizer": {"name": "adam"}, **told.training}
    lines = ["training:", f"  batch: {given['batch']}  # samples per GPU and micro-batch; --batch N", f"  precision: {given['precision']}"]
    lines += [f"  optimizer: {{name: {given['optimizer']['name']}}}"]
    for name in (
        *("fp8_recipe", "gradient_accumulation_steps", "activation_checkpointing", "recompute_blocks", "recompute_modules", "stack"),
    ):
        lines += [f"  {name}: {_yaml_value(given[name])}"] if name in given else []
    if "stack" not in given:
        lines += ["  # stack: torch-2.x-ddp, or torchtitan-2.x if the layout below shards or splits the model;"]
        lines += ["  #   hf-transformers for the modeling code of Hugging Face transformers under autocast (many small kernels)"]
    if told.parallel:
        lines += ["  parallel:", *(f"    {name}: {_yaml_value(value)}" for name, value in told.parallel.items())]
    else:
        lines += ["  # parallel: {shard: parameters, tensor: 1, pipeline: 1}  # or --shard, --tp, --pp"]
    return [*lines, f"  source: {json.dumps(f'{plain_comment(origin)}; defaults for everything else')}"]


def _yaml_value(value: object) -> str:
    if isinstance(value, float) and "e" in str(value):
        mantissa, _, exponent = str(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"  # some YAML parsers read 1e-05 as text
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str) and not value[:1].isalnum():
        return json.dumps(value)  # a pattern that begins with *, which would be an alias
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain_comment(text: str) -> str:
    """Return *text* as one line of a comment, with base names of absolute paths and without unprintable characters."""
    parts = [Path(part).name if Path(part).is_absolute() else part for part in text.split(", ")]
    return "".join(letter if letter.isprintable() else "?" for letter in ", ".join(parts))


# --- questions ---------------------------------------------------------------------------------------------------------------

Ask = Callable[[str, str], str]
"""Asks a question with a default and returns the answer."""
_ACTIVATIONS: Final = ("swiglu", "geglu", "gelu", "relu", "relu2")
_NORMS: Final = ("rmsnorm", "layernorm")


def _refuse(error: SpecError) -> None:
    raise error


def by_questions(ask: Ask, refuse: Callable[[SpecError], None] = _refuse) -> LaunchSettings:
    """Return the user's answers about a decoder; defaults are sizes like those of Llama.

    An answer that makes no sense is passed to *refuse*; unless that raises, the question is asked again.
    """

    def answer(question: str, default: str, read: Callable[[str], Any]) -> Any:
        while True:
            try:
                return read(ask(question, default))
            except SpecError as error:
                refuse(error)

    def number(question: str, default: int, least: int = 1, divides: int = 0) -> int:
        return int(answer(question, str(default), lambda text: _number(question, text, least, divides)))

    def choice(question: str, default: str, words: Sequence[str]) -> str:
        return str(answer(f"{question} ({', '.join(words)})", default, lambda text: _choice(question, text, words)))

    like = answer("similar catalog decoder (empty: none, enter its sizes)", "", lambda text: text and decoder_model(text))
    if like:
        return LaunchSettings(model=like)
    layers, hidden = number("layers", 32), number("hidden size", 4096)
    heads = number("attention heads", max(count for count in range(1, max(1, hidden // 128) + 1) if hidden % count == 0), divides=hidden)
    shape: dict[str, Any] = {"layers": layers, "hidden": hidden, "heads": heads}
    shape["kv_heads"] = number("key and value heads", heads, divides=heads)
    shape["activation"] = choice("activation", "swiglu", _ACTIVATIONS)
    gated = shape["activation"] in ("swiglu", "geglu")
    shape["ffn"] = number("width inside the feed-forward block", 4 * hidden if not gated else -(-8 * hidden // 3 // 256) * 256)
    shape["norm"] = choice("norm", "rmsnorm" if gated else "layernorm", _NORMS)
    shape["vocab"] = number("vocabulary", 128256)
    if experts := number("experts (0: none)", 0, least=0):
        shape |= {"experts": experts, "experts_per_token": number("experts per token", min(2, experts)), "expert_ffn": shape["ffn"]}
    return LaunchSettings(shape=shape, sequence=number("tokens per sample", 4096))


def _number(question: str, answer: str, least: int, divides: int) -> int:
    number = whole_number(answer)
    if number is None or number < least:
        raise SpecError(f"{question}: {answer[:40]} is not a whole number of {least} or more")
    if number and divides % number:
        raise SpecError(f"{question}: {number} does not divide {divides}")
    return number


def _choice(question: str, answer: str, words: Sequence[str]) -> str:
    if answer not in words:
        raise SpecError(f"{question}: {answer[:40]} is unknown; write {any_of(words)}")
    return answer
