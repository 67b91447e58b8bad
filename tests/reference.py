"""Which pages of docs/reference say what the program is? Written from the program itself: ``python -m tests.reference``.

Commands come from the command line, fields from the schema of descriptions, JSON documents from runs, stalls from the report; columns of
measured runs, on the page on calibration, from their reader.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import BaseModel

import stallsim
import stallsim.protocols
from calibration import run_columns
from calibration.cli import app as calibration_app
from sim.api import Result
from sim.causes import MEANINGS
from sim.cli import app, main
from sim.commands.help import walk_commands
from sim.layout_result import LayoutResult
from sim.spec import defaults, schema
from sim.spec.sections import file_fields, sections_of
from sim.units import any_of, show

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"
PROGRAMS: Final = {"python -m sim": app, "python -m calibration": calibration_app}
RUNS: Final = {
    "run": ("run p3.8xlarge alexnet --epochs 2", "one data-parallel run"),
    "run, with a layout": ("run hgx-h100 llama-3.2-1b --parallel shard=parameters --tokens 1B", "one run of a model that is split"),
    "run, of a Chakra trace": ("run p3.8xlarge examples/chakra", "one simulated trace"),
    "compare": ("compare p3.2xlarge p3.8xlarge alexnet", "one row per machine"),
    "recommend": ("recommend p3.2xlarge p3.8xlarge alexnet --nodes 1 --epochs 2 --budget-hours 9", "what to rent, and all candidates"),
    "whatif": ("whatif p3.8xlarge alexnet", "one row per resource"),
    "collective": ("collective p3.8xlarge --bytes 1MiB", "one row per size"),
    "collective, of a layout's group": ("collective p3.16xlarge --nodes 2 --tp 8 --group dp --bytes 1MiB", "one row per size"),
    "goodput": (
        "goodput hgx-h100 gpt2-xl --nodes 4 --batch 4 --precision amp_bf16 --days 9 --trials 20 --fast",
        "weeks with failures; each of `distribution[]` is one run, from the lowest to the highest effective share at even steps (`share`)",
    ),
    "list hardware": ("list hardware --where name=p3.8xlarge", "rows of the catalog"),
}
"""Commands whose documents are described, and what they hold."""
OPEN: Final = ("inputs", "inputs_sha256", "distribution")
"""Keys whose own keys are those of the descriptions."""
UNITS: Final = {
    "_samples_per_s": "samples/s", "_tokens_per_s": "tokens/s", "_bytes_per_s": "bytes/s", "_per_s": "1/s", "_s": "s", "_bytes": "bytes",
    "_usd_per_h": "USD/h", "_usd": "USD", "kg_per_kwh": "kg/kWh", "_kwh": "kWh", "_kg": "kg", "_w": "W", "_hz": "Hz", "_j": "J",
    "_flop": "FLOP",
}  # fmt: skip
"""What the end of a key says; keys inside such a block have its unit."""
TERMS: Final = {
    "stall": "Time of a step in which a GPU waits instead of computing. Every second of a step is compute or one stall.",
    "step": "One update of the weights: forward, backward, gradient exchange and optimizer.",
    "warm epoch, first epoch": "In the first epoch the page cache is empty, so samples come from the disk. Later epochs are warm.",
    "rank": "One process of a job, which drives one GPU.",
    "node": "One machine. A group is a number of equal nodes.",
    "straggler": "The rank that finishes last. The other ranks wait for it, because a gradient exchange needs all of them.",
    "exposed": "Not hidden behind other work. Only exposed communication makes a step longer.",
    "critical path": "The chain of events that decides when a step ends. Work that is not on it can be slower at no cost.",
    "bus bandwidth": "Rate of a collective that can be compared with the rate of a link: nccl-tests' busbw.",
    "MFU": "Model FLOPS utilization: arithmetic of the model per second, relative to the dense 16-bit peak of the GPUs.",
    "HFU": "Hardware FLOPS utilization: like MFU, but it also counts recomputed activations.",
    "Ring, Tree, NVLS": "Algorithms of NCCL: the order in which GPUs exchange the pieces of a message.",
    "Simple, LL, LL128": "Protocols of NCCL: how a GPU sees that data have arrived. LL and LL128 have less latency, Simple most bandwidth.",
    "channels": "Thread blocks of NCCL that work on one collective at the same time, each on a part of the message.",
    "median, 90th percentile": "Values that half and nine tenths of the errors do not exceed.",
    "micro-batch": "The samples of one forward and backward pass. A step can have several (gradient accumulation).",
    "MLPerf": "Benchmarks of training by MLCommons: the participants' timed runs, some with the power of their nodes, metered at the wall.",
    "global batch": "Samples per step over all GPUs.",
    "layout": "How a model is split over GPUs: tensor, pipeline, context and expert parallelism, and what data-parallel ranks shard.",
    "pipeline bubble": "Time in which a pipeline stage has no micro-batch to work on.",
    "page cache": "DRAM in which Linux keeps files after reading them. Warm epochs read as much of the data set from it as fits.",
    "effective share": "Share of a long job's time spent on useful training, without failures, restarts, repeated work and checkpoints.",
    "interpolated, extrapolated": "Whether the predicted run is within the range of the measured runs, or beyond it.",
    "estimate": "A number without a measurement or a data sheet. Its source says `estimate (reason)`, and `check -v` lists it.",
    "expected error": "Error of similar predictions against measurements: median and 90th percentile.",
    "ETTR, goodput": "Share of a long job's time spent on useful training, as Meta and Google define it: unlike in the effective share, "
    "steps on slow nodes count in full.",
    "PUE": "Power usage effectiveness: energy of the data center, cooling included, relative to that of its computers.",
    "p90": "The 90th percentile.",
    "on-demand, spot": "Machines at the list price, and spare machines at a lower price that the provider may take back at any time.",
    "revocation": "Interruption of a spot machine by its provider.",
    "energy per token or sample": "Energy of the whole job, cooling included, divided by its tokens or samples.",
    "all-reduce, all-gather, reduce-scatter": "Collectives: each rank gets the sum over ranks, all ranks' pieces, or its piece of the sum.",
    "NCCL": "NVIDIA's library of collectives. It chooses algorithm, protocol and channels by the links and the size of a message.",
    "NIC": "Network interface card of a node.",
    "data parallel, FSDP, ZeRO, HSDP": "Ranks train on different samples. FSDP and ZeRO divide optimizer state, gradients or weights "
    "among them (`--shard`); HSDP does so within groups that are replicas of each other (`--replicate`).",
    "tensor, sequence, pipeline, context, expert parallel": "Ranks split the weights of each layer, also its norms, the layers, each "
    "sequence, or the experts.",
    "1F1B, interleaved 1F1B, GPipe, zero bubble": "Pipeline schedules: one forward pass and one backward pass in turn; the same with "
    "several chunks of layers on each rank; all forward passes first; backward passes in two parts (`zb_h1`, `zbv`, `dualpipev`).",
    "stages side by side": "A layout with pipeline stages on neighboring GPUs and nodes, and data-parallel ranks further apart.",
    "breaks even at": "Price of a machine with the faster resource up to which the upgrade lowers the cost of an epoch.",
    "stack": "Framework and version that run a step. It decides how gradients are exchanged, what overlaps, and what a launch costs.",
    "sync, async, tiered checkpoints": "Training waits until a checkpoint is stored; or only until it is in host memory; or copies go often"
    " to another node's memory, and seldom to the store.",
    "Young, Daly": "Two approximations of the best interval between checkpoints, from the time of one and the rate of failures.",
    "spares": "Idle nodes that replace failed ones.",
    "fleet": "All machines of one operator. Failure rates differ between fleets.",
    "gp2, gp3": "Types of network disks of AWS.",
    "launch": "Start of a GPU kernel by the host, which takes microseconds.",
    "Pareto-optimal": "Nothing else is both faster and cheaper.",
    "zero-shot, calibrated": "Predicted from the description and how fast the job computes (measured on few GPUs), or also after a fit "
    "to measured rows of the cluster's network.",
}  # fmt: skip
WARNING: Final = "<!-- Written by `python -m tests.reference`; a test compares it. -->\n\n"


def pages() -> dict[str, str]:
    """Return the text of every page by file name."""
    return {
        "commands.md": commands(), "fields.md": fields(), "documents.md": documents(), "glossary.md": glossary(), "python.md": python(),
    }  # fmt: skip


def python() -> str:
    """Return the page of the public functions, whose signatures and docstrings mkdocstrings writes into the site."""
    functions = [name for name in stallsim.__all__ if inspect.isfunction(getattr(stallsim, name))]
    places = [f"{getattr(stallsim, name).__module__}.{name}" for name in functions]
    protocols = [getattr(stallsim.protocols, name) for name in stallsim.protocols.__all__]
    lines = ["# Python\n", WARNING, PYTHON, *(f"::: {place}\n" for place in places), "## Results of `run`\n"]
    lines += [f"::: {kind.__module__}.{kind.__name__}\n" for kind in (Result, LayoutResult)]
    lines += ["## Protocols\n", "Interfaces of user-defined objects; all of them are in `stallsim.protocols`.\n"]
    return "\n".join([*lines, *(f"::: {kind.__module__}.{kind.__name__}\n" for kind in protocols)]).rstrip("\n") + "\n"


PYTHON = """\
`import stallsim` provides the commands as functions. `run` returns a result; the others return pandas DataFrames, with the rest of the
command's [JSON document](documents.md) in `DataFrame.attrs`. For jobs on spot machines, `goodput` and `recommend` take *mean_lifetime*.
How to use them: [pages, traces and Python](../how-to/pages-and-traces.md). The site shows signatures and docstrings below; in Python,
`help(stallsim.run)` does.
"""


def commands() -> str:
    """Return the page of all commands: their help, 100 columns wide."""
    called, sys.argv = sys.argv, ["/sim/__main__.py"]
    try:
        lines = ["# Commands\n", WARNING, "The output of `--help`. Once installed, `stallsim` is the same as `python -m sim`.\n"]
        for program, made in PROGRAMS.items():
            group: Any = typer.main.get_command(made)
            context = group.context_class(group, info_name=program, terminal_width=100, **group.context_settings)
            lines += [f"\n## {program}\n", _fenced(group.get_help(context))]
            for path, command, below in walk_commands(group, context):
                lines += [f"\n### {' '.join((program, *path))}\n", _fenced(command.get_help(below))]
    finally:
        sys.argv = called
    return "\n".join(lines) + "\n"


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def fields() -> str:
    """Return the page of all fields of descriptions: type, unit, default and meaning."""
    lines = [
        "# YAML fields\n",
        WARNING,
        "A quantity is written with its unit. A field without a default is required. `--set` changes any of them by its dotted name, for",
        "example `--set node.nic.bandwidth='100 Gbps'`. A block, such as `--set training='{batch: 4}'`, sets its keys and leaves the",
        "others; `price` and blocks that extend a part are replaced. Every block that can be a file of the catalog may have `extends:`",
        "with the name of another one.\n",
        "Column *source* says where a description states the source of a value: `source.memory` is the `source` of the same block, which",
        "is one text for all its values, or a text for each (`memory: ...`, and `'*'` for the rest); *its own*: in the `source` inside",
        "that block. `python -m sim check FILE -v` lists the values of a file whose source is an estimate.\n",
        f"A workload without a stack runs on `{defaults.REPLICATED_STACK}`, with a layout on `{defaults.PARALLEL_STACK}`. A model that is",
        f"described by its transformer reads `{defaults.TOKENS}` and trains with:\n",
        *(f"- `{key}`: {_value(value)}" for block in (defaults.DECODER_TRAINING, defaults.LOADER) for key, value in block.items()),
    ]
    seen: set[str] = set()
    for name, kind in schema.KINDS.items():
        lines += [f"\n## {name}\n", f"Files in `{schema.FOLDERS[kind]}/`."]
        for model in _nested(kind, seen):
            lines += [f"\n### {model.__name__}\n", " ".join((inspect.getdoc(model) or "").split()), "", *_table(model)]
    return "\n".join(lines) + "\n"


def _nested(kind: type[BaseModel], seen: set[str]) -> Iterator[type[BaseModel]]:
    """Yield *kind* and the blocks inside it that were not *seen*, each once."""
    if kind.__name__ in seen:
        return
    seen.add(kind.__name__)
    yield kind
    for field in file_fields(kind).values():
        for inner in schema._models(field.annotation):
            yield from _nested(inner, seen)


EVERYWHERE: Final = {"name": "Name that is shown in lists and results.", "source": "Where the numbers come from."}
"""Meaning of fields that have the same one in every block."""


def _table(model: type[BaseModel]) -> list[str]:
    properties = model.model_json_schema(ref_template="{model}")["properties"]
    notes = _notes(model)
    rows = ["| field | type and unit | default | source | meaning |", "|---|---|---|---|---|"]
    for name, field in file_fields(model).items():
        default = "required" if field.is_required() else _value(field.get_default(call_default_factory=True))
        meaning = f"{notes.get(name, EVERYWHERE.get(name, ''))}{_only_with(model, name)}"
        cells = (_kind(properties[name]), default, _source_of(model, name, properties[name]), meaning)
        rows.append(f"| `{name}` | {' | '.join(map(_cell, cells))} |")
    return rows


def _only_with(model: type[BaseModel], name: str) -> str:
    """Return with which tags the field *name* of a section may be given or must be; empty if with all."""
    for classes in sections_of(model).values():
        having = {tag: variant.model_fields[name] for tag, variant in classes.variants.items() if name in variant.model_fields}
        if 0 < len(having) < len(classes.variants):
            needed = "Required with, and only with," if all(field.is_required() for field in having.values()) else "Only with"
            return f" {needed} `{classes.key}` {any_of([str(tag) for tag in having])}."
    return ""


def _source_of(model: type[BaseModel], name: str, said: Mapping[str, Any]) -> str:
    """Return where a description states the source of the field *name*, which the JSON schema *said* describes; empty if nowhere."""
    blocks = list(schema._models(file_fields(model)[name].annotation))
    if any("source" in block.model_fields for block in blocks):
        return "its own"
    is_figure = any(word in json.dumps(said) for word in ('"number"', '"integer"', "for example"))
    return f"`source.{name}`" if "source" in model.model_fields and name != "source" and not blocks and is_figure else ""


def _kind(said: Mapping[str, Any]) -> str:
    """Return in words what a value of a JSON schema may be."""
    if "$ref" in said:
        return f"[{said['$ref']}](#{said['$ref'].lower()})"
    if "anyOf" in said:
        return " or ".join(dict.fromkeys(_kind(one) for one in said["anyOf"] if one.get("type") != "null"))
    if "enum" in said or "const" in said:
        return ", ".join(f"`{one}`" for one in said.get("enum", [said.get("const")]))
    if "description" in said:
        return str(said["description"])
    if said.get("type") == "array":
        return f"list of {_kind(said['items'])}" if "items" in said else "list"
    if said.get("type") == "object" and isinstance(said.get("additionalProperties"), Mapping):
        return f"block of {_kind(said['additionalProperties'])}"
    return str(said.get("type", "any")).replace("string", "text").replace("boolean", "true or false")


def _value(value: Any) -> str:
    if value is None or value == () or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value(inner)}" for key, inner in value.items())
    if isinstance(value, tuple) and all(isinstance(time, float) for time in value):
        return f"[{', '.join(show(time, 'time') for time in value)}]"  # a span, the only list of numbers with a default
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _notes(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of *model*, of its sections, and of what they are made from.

    The docstring of a variant says what its tag means.
    """
    notes: dict[str, str] = {}
    for classes in sections_of(model).values():
        for variant in classes.variants.values():
            notes = {**_notes(variant), **notes}
        if classes.key:
            notes[classes.key] = " ".join(f"{tag}: {inspect.getdoc(variant)}" for tag, variant in classes.variants.items())
    for parent in reversed(model.__mro__):
        if not issubclass(parent, BaseModel) or parent is BaseModel:
            continue
        [defined] = ast.parse(inspect.getsource(parent)).body
        assert isinstance(defined, ast.ClassDef)
        for before, after in zip(defined.body, defined.body[1:], strict=False):
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
                notes[before.target.id] = ast.literal_eval(after.value)
    return notes


def documents() -> str:
    """Return the page of JSON documents: every key of what ``--json`` prints, its type and unit."""
    lines = [
        "# JSON documents\n",
        WARNING,
        "All values are in SI units, or in the unit at the end of their key. `[]` means each element of a list.\n",
    ]
    for name, (command, holds) in RUNS.items():
        lines += [
            f"\n## {name}\n",
            f"{holds[0].upper()}{holds[1:]}: `python -m sim {command} --json`\n",
            "| key | type | unit |",
            "|---|---|---|",
        ]
        types_by_key: dict[str, set[str]] = {}
        for key, value in _leaves(json.loads(_printed(command)), ""):
            types_by_key.setdefault(key, set()).add(_type(value))
        lines += [f"| `{key}` | {' or '.join(sorted(types))} | {_unit(key)} |" for key, types in types_by_key.items()]
    return "\n".join(lines) + "\n"


def _printed(command: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
        code = main([*command.split(), "--json"])
    assert code == 0, command
    return shown.getvalue()


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and key.rpartition(".")[2] not in OPEN:
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and isinstance(value[0], (Mapping, list)):
        for inner in value:
            yield from _leaves(inner, f"{key}[]")
    else:
        yield key, value


def _type(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {_type(value[0])}s" if value else "list"
    kinds = {bool: "true or false", int: "number", float: "number", str: "text", type(None): "null", dict: "object"}
    return kinds[type(value)]


def _unit(key: str) -> str:
    for part in reversed(key.replace("[]", "").split(".")):
        for end, unit in UNITS.items():
            if part.endswith(end):
                return unit
    return ""


def glossary() -> str:
    """Return the page of the stalls and the other terms."""
    lines = ["# Glossary\n", WARNING, "Where the time of a step goes:\n", "| name | what a GPU does, or waits for |", "|---|---|"]
    lines += [f"| {cause.value} | {meaning} |" for cause, meaning in MEANINGS.items()]
    lines += [
        "\nOther terms:\n",
        *(f"**{term}**\n: {meaning}\n" for term, meaning in sorted(TERMS.items(), key=lambda item: item[0].lower())),
    ]
    return "\n".join(lines).rstrip() + "\n"


CALIBRATE: Final = FOLDER.parent / "how-to" / "calibrate.md"
_COLUMNS: Final = re.compile(r"(?<=<!-- columns -->\n).*?(?=<!-- end columns -->)", re.DOTALL)


def with_columns(text: str) -> str:
    """Return the *text* of the page on calibration with the columns of measured runs as the program reads them."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in run_columns.MEANINGS.items()]
    made, times = _COLUMNS.subn(lambda _: "\n".join(["| column | what it holds |", "|---|---|", *rows, ""]), text)
    assert times == 1, "the page has no single place for the columns"
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
    CALIBRATE.write_text(with_columns(CALIBRATE.read_text(encoding="utf-8")), encoding="utf-8")
