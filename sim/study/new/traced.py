"""How does a traced torch model become a workload? One commented YAML has its layer table, data like its inputs, and how it trains."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

from sim.spec.input import Dataset
from sim.spec.library import load_part, load_workload
from sim.spec.model import Model
from sim.spec.workload import Workload
from sim.study.new.file import for_editors, write_new
from sim.study.new.first_command import first_command
from sim.study.new.workload import NewWorkload, place_of, plain_comment
from sim.units import show

EXPORTED: Final = ".pt2"
"""Extension of files that ``torch.export.save`` writes."""
BATCH: Final = 16
"""Samples per GPU if none are specified."""


def is_torch(source: str) -> bool:
    """Return whether *source* names a callable that returns a torch model (``net.py:Net``, ``torchvision.models:vgg16``) or an export."""
    return source.endswith(EXPORTED) or bool(re.fullmatch(r"(.*\.py|[A-Za-z_][\w.]*):[^/]*", source))


def place_of_traced(source: str, output: Path | None, name: str | None, dataset: str | None, overwrite: bool) -> tuple[str, Path]:
    """Return the name and the path of the workload of the torch model *source*. Raise SpecError if it cannot be written there.

    Called before the model is traced, which takes some seconds.
    """
    if dataset is not None:
        load_part(Dataset, dataset)
    module, _, called = source.rpartition(":")
    stem = Path(source).stem if source.endswith(EXPORTED) else Path(module).stem if module.endswith(".py") else called
    return place_of(name or (output.stem if output is not None else stem), output, overwrite)


def write_traced(
    table: Model, text: str, source: str, dataset: str, path: Path, batch: int = BATCH, tokens: int | None = None
) -> NewWorkload:
    """Write the workload of the model in *table*, whose YAML is *text*, to *path*. Raise SpecError, and write nothing, if it is invalid.

    *dataset* names a data set of the catalog with samples like the inputs. If it is a stream of text, it is cut into samples of *tokens*.
    """
    like = load_part(Dataset, dataset)
    cut = None if tokens is None or like.sequence in (None, tokens) else like.of_sequence(tokens)

    def written(command: str) -> Workload:
        return write_new(path, _text(table, text, source, like, cut, batch, command), lambda file: load_workload(file).spec)

    written("")
    command = first_command(str(path), str(path))
    workload = written(command.replace(shlex.quote(str(path)), shlex.quote(path.name)))
    note = f"{workload.model.parameters:,} parameters, {len(workload.model.layers)} layers, samples like those of {dataset}"
    tokens_note = () if cut is None else (f"{dataset} is cut into samples of {tokens:,} tokens, the length of the input",)
    return NewWorkload(path, note, command, tokens_note)


def _text(table: Model, text: str, source: str, like: Dataset, cut: Dataset | None, batch: int, command: str) -> str:
    origin = plain_comment(source)
    lines = [
        *for_editors("workload"),
        f"# {table.name}: {table.parameters:,} parameters, traced from {origin}.",
        f"# {command}",
        f"name: {table.name}",
        f"description: {json.dumps(f'{table.name}, {table.parameters:,} parameters')}",
        "dataset:",
        f"  extends: {like.name}  # samples similar to the inputs; 'python -m sim list datasets' shows others",
        f"  prepared: {table.input:.0f} B  # one sample as fed to the model",
        *_of_catalog(like, cut),
        "  source:",
        *(f"    {name}: {json.dumps(reason)}" for name, reason in _sources(like, cut, origin).items()),
        "training:",
        f"  batch: {batch}  # samples per GPU; --batch N",
        "  precision: amp_bf16  # --precision",
        "  optimizer: {name: adam}  # or momentum, sgd, lamb, ...",
        "  # stack: torch-2.x-ddp; --stack",
        "  # parallel: {shard: parameters}  # FSDP; or --shard",
        '  source: "the defaults of python -m sim new workload"',
        "# inputs and sizes are those of the trace: for others, generate this file again",
        "model:",
        *(f"  {line}" for line in text.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def _of_catalog(like: Dataset, cut: Dataset | None) -> list[str]:
    """Return the lines of the data set that are those of *like*: comments, or what they become in samples *cut* to the input's length."""
    if cut is None:
        return [
            f"  # of {like.name} until you write your own:",
            f"  # samples: {like.samples}  # per epoch",
            f"  # sample: {show(like.sample, 'size')}  # mean size of one on disk",
            f"  # prep: {show(like.prep, 'time')}  # time of one CPU core to decode, augment and collate one; larger samples take longer",
        ]
    return [
        f"  sequence: {cut.sequence}  # tokens per sample: the length of the input",
        f"  # the stream of {like.name}, cut into such samples, until you write your own:",
        f"  tokens: {cut.tokens}",
        f"  samples: {cut.samples}  # per epoch",
        f"  sample: {cut.sample:g} B  # mean size of one on disk",
        f"  prep: {cut.prep * 1e6:g} us  # time of one CPU core to decode, augment and collate one",
    ]


def _sources(like: Dataset, cut: Dataset | None, origin: str) -> dict[str, str]:
    """Return where the values of the data set come from, by field."""
    fields = () if cut is None else ("sequence", "tokens", "samples", "sample", "prep")
    return {"prepared": f"the inputs of {origin}"} | {name: f"as {like.name}, cut to the input's length" for name in fields}
